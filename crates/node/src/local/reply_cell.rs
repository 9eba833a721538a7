//! One reply, for which a thread or an event loop waits. A thread handles the node's events
//! meanwhile, unless another one does; then it sleeps. Does not know requests, nor what a reply
//! contains.

use std::{mem, sync::Arc, time::Duration};

// Relative, because the model checker compiles this file with primitives of its own: see
// `crate::tests::models`.
use super::{
    latch::Latch,
    shared_epoll::{SharedEpoll, Waited},
    sync::{Mutex, lock},
};

/// Called once, when the wait is over, on any thread. Must not block.
pub type Waker = Box<dyn FnOnce() + Send>;

/// The reply, or why there is none.
pub(crate) struct ReplyCell<R> {
    inner: Mutex<Inner<R>>,
    /// Open once the wait is over.
    over: Latch,
}

struct Inner<R> {
    state: State<R>,
    /// The epoll on which the waiting thread handles events meanwhile.
    epoll: Option<Arc<SharedEpoll>>,
}

pub(crate) enum State<R> {
    Open,
    Watched(Waker),
    Replied(R),
    /// The reply was taken, or none will come.
    Over,
    /// The caller dropped the wait. An object created by the reply must be deleted.
    Abandoned,
    /// The client was closed before the reply came. An object created by the reply must be deleted.
    Closed,
}

impl<R> Default for ReplyCell<R> {
    fn default() -> Self {
        let inner = Mutex::new(Inner { state: State::Open, epoll: None });
        Self { inner, over: Latch::default() }
    }
}

impl<R> ReplyCell<R> {
    /// Ends the wait; returns a reply that no caller will take.
    pub(crate) fn set(&self, new: State<R>) -> Option<R> {
        let (old, epoll) = {
            let mut inner = lock(&self.inner);
            match inner.state {
                State::Open | State::Watched(_) => {
                    let old = mem::replace(&mut inner.state, new);
                    (old, inner.epoll.clone())
                }
                State::Replied(_) | State::Over => return None,
                State::Abandoned | State::Closed => {
                    return if let State::Replied(reply) = new { Some(reply) } else { None };
                }
            }
        };
        self.over.open();
        // A thread that received the reply itself checks without being woken.
        if let Some(epoll) = epoll.filter(|epoll| !epoll.is_here()) {
            epoll.poke();
        }
        if let State::Watched(waker) = old {
            waker();
        }
        None
    }

    /// Whether there is a reply, or none will come.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(lock(&self.inner).state, State::Open | State::Watched(_))
    }

    /// As [`ReplyCell::is_over`] without the lock, perhaps a little later.
    pub(crate) fn is_known_over(&self) -> bool {
        self.over.is_open()
    }

    /// Calls a waker when the wait is over. Returns false, without calling it, if it is over
    /// already.
    pub(crate) fn watch(&self, waker: Waker) -> bool {
        let mut inner = lock(&self.inner);
        let is_open = matches!(inner.state, State::Open | State::Watched(_));
        if is_open {
            inner.state = State::Watched(waker);
        }
        is_open
    }

    /// Takes the reply, or why there is none; `None` while the wait goes on.
    pub(crate) fn take(&self) -> Option<State<R>> {
        let mut inner = lock(&self.inner);
        let next = match inner.state {
            State::Open | State::Watched(_) => return None,
            State::Replied(_) | State::Over | State::Abandoned => State::Over,
            State::Closed => State::Closed,
        };
        Some(mem::replace(&mut inner.state, next))
    }

    /// Records that no caller waits any more. Returns the state before.
    pub(crate) fn abandon(&self) -> State<R> {
        mem::replace(&mut lock(&self.inner).state, State::Abandoned)
    }

    /// Handles events on this thread with `wait`, until the wait is over.
    pub(crate) fn wait_in(
        &self,
        epoll: Arc<SharedEpoll>,
        wait: impl FnOnce(&dyn Fn() -> bool) -> Waited,
    ) -> Waited {
        lock(&self.inner).epoll = Some(epoll);
        let waited = wait(&|| self.is_over());
        lock(&self.inner).epoll = None;
        waited
    }

    /// Sleeps until the wait is over, for at most `time`. Returns false if a signal handler ran on
    /// this thread meanwhile. May return early.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        self.over.wait(time)
    }
}
