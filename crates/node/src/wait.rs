//! An answer that is on its way to a program: waited for by a thread, or told of to an event loop.

use std::{
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use hoplite_proto::{ask::Answer, error::Error as CallError};

use crate::{client::Client, driver::lock, error::Error, view::Guard};

/// What came back for a question, with the memory it speaks of.
pub(crate) type Raw = Result<(Answer, Option<Guard>), CallError>;

/// Called once, when there is an answer, on whatever thread has it. Must not wait.
pub type Waker = Box<dyn FnOnce() + Send>;

/// Makes of an answer what the caller wants.
pub(crate) type Finish<T> = Box<dyn FnOnce(Answer, Option<Guard>) -> Result<T, Error> + Send>;

/// The end of whoever answers. Dropped without an answer, it ends the wait with an error.
pub(crate) struct Promise(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Open,
    Watched(Waker),
    Answered(Raw),
    /// The answer was taken, or none will come.
    Over,
}

impl Promise {
    pub(crate) fn keep(self, raw: Raw) {
        self.set(State::Answered(raw));
    }

    fn set(&self, new: State) {
        let old = {
            let mut state = lock(&self.0.state);
            match *state {
                State::Open | State::Watched(_) => mem::replace(&mut *state, new),
                State::Answered(_) | State::Over => return,
            }
        };
        self.0.answered.notify_all();
        if let State::Watched(waker) = old {
            waker();
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.set(State::Over);
    }
}

/// An answer that is on its way. Dropping it takes the question back.
pub struct Wait<T> {
    client: Client,
    request: u64,
    shared: Arc<Shared>,
    finish: Option<Finish<T>>,
}

/// A question's two ends. The number of the question is told by [`Wait::asked_as`].
pub(crate) fn pair<T>(client: Client, finish: Finish<T>) -> (Promise, Wait<T>) {
    let shared = Arc::new(Shared::default());
    let wait = Wait { client, request: 0, shared: shared.clone(), finish: Some(finish) };
    (Promise(shared), wait)
}

impl<T> Wait<T> {
    pub(crate) fn asked_as(mut self, request: u64) -> Self {
        self.request = request;
        self
    }

    /// Whether there is an answer, or will be none.
    pub fn is_over(&self) -> bool {
        matches!(*lock(&self.shared.state), State::Answered(_) | State::Over)
    }

    /// Waits for at most `time`; whether there is an answer, or will be none.
    pub fn is_over_within(&mut self, time: Duration) -> bool {
        let state = lock(&self.shared.state);
        let is_open = |state: &mut State| matches!(*state, State::Open | State::Watched(_));
        let waited = self.shared.answered.wait_timeout_while(state, time, is_open);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Lets `waker` be called when there is an answer; false if there is one already, and then it is not called.
    pub fn when_over(&self, waker: Waker) -> bool {
        let mut state = lock(&self.shared.state);
        let is_open = matches!(*state, State::Open | State::Watched(_));
        if is_open {
            *state = State::Watched(waker);
        }
        is_open
    }

    /// Waits for at most `time`; none if there is no answer yet.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<T, Error>> {
        let until = Instant::now().checked_add(time);
        let shared = self.shared.clone();
        let mut state = lock(&shared.state);
        loop {
            match mem::take(&mut *state) {
                State::Answered(raw) => {
                    *state = State::Over;
                    drop(state);
                    return Some(self.end(raw));
                }
                State::Over => {
                    *state = State::Over;
                    drop(state);
                    return Some(Err(self.no_answer()));
                }
                open => *state = open,
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let left = left.unwrap_or(Duration::MAX);
            let waited = shared.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until there is an answer.
    ///
    /// # Errors
    /// What went wrong with the call.
    pub fn join(mut self) -> Result<T, Error> {
        loop {
            // As long as a thread can be asked to wait; whoever answers wakes it.
            if let Some(answer) = self.wait_for(Duration::from_secs(3600)) {
                return answer;
            }
        }
    }

    fn end(&mut self, raw: Raw) -> Result<T, Error> {
        let finish = self.finish.take();
        let (answer, guard) = raw?;
        match finish {
            Some(finish) => finish(answer, guard),
            None => Err(Error::node_down("the answer was taken before")),
        }
    }

    fn no_answer(&mut self) -> Error {
        self.finish = None;
        if self.client.is_forked() { Error::Forked } else { Error::node_down("it gave no answer") }
    }
}

impl<T> std::fmt::Debug for Wait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        if self.finish.is_some() && !self.is_over() {
            self.client.cancel(self.request);
        }
    }
}
