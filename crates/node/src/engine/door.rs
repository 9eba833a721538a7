//! Hands a state over from thread to thread: one at a time is inside, and handles what the others
//! leave in a queue. No thread waits. Does not know the state, nor what is queued.

use std::sync::TryLockError;

// Relative, because the model checker compiles this file with primitives of its own: see
// `crate::tests::models`.
use super::sync::{Mutex, lock};

pub(crate) struct Door<S, Q> {
    state: Mutex<S>,
    queue: Mutex<Q>,
}

/// What threads leave for the one inside.
pub(crate) trait Queue {
    type Item;

    fn push(&mut self, item: Self::Item);
    fn is_empty(&self) -> bool;
}

/// Why a thread left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// Nothing is queued, or the thread inside will see it.
    Done,
    /// Its turn is over, although something is queued: another thread must come.
    TurnOver,
    /// The state is not used any more.
    Closed,
}

impl<S, Q: Queue> Door<S, Q> {
    pub(crate) fn new(state: S, queue: Q) -> Self {
        Self { state: Mutex::new(state), queue: Mutex::new(queue) }
    }

    pub(crate) const fn queue(&self) -> &Mutex<Q> {
        &self.queue
    }

    /// Whether no thread is inside.
    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Calls `work` with the state and `next`, until nothing is queued or `work` returns that the
    /// turn is over. If another thread is inside, leaves `next` for it.
    pub(crate) fn pass(
        &self,
        mut next: Option<Q::Item>,
        is_open: impl Fn() -> bool,
        mut work: impl FnMut(&mut S, &mut Option<Q::Item>) -> bool,
    ) -> Passed {
        let mut is_over = false;
        while is_open() {
            match self.state.try_lock() {
                // After a panic the state is not used again: it may be half changed.
                Ok(mut state) => is_over = work(&mut state, &mut next),
                // The thread inside checks the queue again after it leaves. Nothing else locks the
                // door.
                Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => match next.take() {
                    Some(item) => lock(&self.queue).push(item),
                    None => return Passed::Done,
                },
            }
            if lock(&self.queue).is_empty() {
                return Passed::Done;
            }
            if is_over {
                return Passed::TurnOver;
            }
        }
        Passed::Closed
    }
}
