//! An answer that is on its way to a program: waited for by a thread, or told of to an event loop.

use std::{
    mem,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{ask::Answer, error::Error as CallError};

use super::{
    connection::{Close, Connection},
    view::Guard,
};
use crate::{error::Error, shared_epoll::SharedEpoll, sync::lock};

/// What came back for a question.
pub(crate) enum Said {
    /// The machine's answer, with the memory that it speaks of.
    Answer(Answer, Option<Guard>),
    /// How the node is, as JSON.
    Description(String),
}

/// What came back for a question, or why nothing did.
pub(crate) type Raw = Result<Said, CallError>;

/// Called once, when there is an answer, on whatever thread has it. Must not wait.
pub type Waker = Box<dyn FnOnce() + Send>;

/// Makes of an answer what the caller wants.
pub(crate) type Finish<T> = Box<dyn FnOnce(Said) -> Result<T, Error> + Send>;

/// The end of the node, which answers. Dropped without an answer, it ends the wait with an error.
pub(crate) struct Promise(Arc<Shared>);

/// What a question's two ends share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    /// Whether a thread waits for `answered`; changed with `state` locked. A notification that wakes no thread is a system call too.
    has_sleeper: AtomicBool,
    /// Where the thread that waits takes events, as long as it does.
    epoll: Mutex<Option<Arc<SharedEpoll>>>,
}

#[derive(Default)]
enum State {
    #[default]
    Open,
    Watched(Waker),
    Answered(Raw),
    /// The answer was taken, or none will come.
    Over,
    /// The caller gave up. What the answer brings into being is to go again.
    Abandoned,
    /// The client was closed before the answer came. What the answer brings into being is to go again.
    Closed,
}

impl Promise {
    pub(crate) fn keep(self, connection: &Connection, raw: Raw) {
        if let Some(raw) = self.0.set(State::Answered(raw)) {
            undo(connection, &raw);
        }
    }
}

impl Close for Shared {
    /// Ends the wait since its client was closed.
    fn close(&self) {
        drop(self.set(State::Closed));
    }
}

impl Shared {
    /// Ends the wait; gives an answer back that no caller will take.
    fn set(&self, new: State) -> Option<Raw> {
        let (old, has_sleeper) = {
            let mut state = lock(&self.state);
            let old = match *state {
                State::Open | State::Watched(_) => mem::replace(&mut *state, new),
                State::Answered(_) | State::Over => return None,
                State::Abandoned | State::Closed => {
                    return if let State::Answered(raw) = new { Some(raw) } else { None };
                }
            };
            (old, self.has_sleeper.load(Ordering::Relaxed))
        };
        if has_sleeper {
            self.answered.notify_all();
        }
        // A thread that took the answer itself looks without being told.
        if let Some(epoll) = lock(&self.epoll).as_ref().filter(|epoll| !epoll.is_here()) {
            epoll.poke();
        }
        if let State::Watched(waker) = old {
            waker();
        }
        None
    }
}

/// Deletes what a question brought into being whose asker gave up as it was answered: no program knows its id.
fn undo(connection: &Connection, raw: &Raw) {
    if let Ok(Said::Answer(
        Answer::Put { id } | Answer::Promised { id } | Answer::Reducing { id },
        _,
    )) = raw
    {
        connection.delete_in_passing(id.clone());
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        drop(self.0.set(State::Over));
    }
}

/// An answer that is on its way. Dropping it takes the question back.
pub struct Wait<T> {
    connection: Arc<Connection>,
    request: u64,
    /// Whether the client has a list with this wait in it, to end it when it is closed.
    is_listed: bool,
    timeout: Option<Duration>,
    /// When a node that has said nothing does not answer at all.
    given_up_at: Option<Instant>,
    shared: Arc<Shared>,
    finish: Option<Finish<T>>,
}

/// How long a question that has a deadline may be without an answer, unless its timeout is longer. A node answers at the
/// deadline; one that says nothing for so long is frozen.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How much later than its deadline an answer may come by. That of a node says more than that it was late.
const LATE_MAX: Duration = Duration::from_millis(250);

/// A question's two ends. The number of the question is told by [`Wait::asked_as`]; `timeout` is that of the question.
pub(crate) fn pair<T>(
    connection: Arc<Connection>,
    timeout: Option<Duration>,
    finish: Finish<T>,
) -> (Promise, Wait<T>) {
    let shared = Arc::new(Shared::default());
    let patience = timeout.map(|timeout| timeout.saturating_add(LATE_MAX).max(SILENCE_MAX));
    let given_up_at = patience.and_then(|patience| Instant::now().checked_add(patience));
    let (request, is_listed, finish) = (0, false, Some(finish));
    let wait = Wait {
        connection,
        request,
        is_listed,
        timeout,
        given_up_at,
        shared: shared.clone(),
        finish,
    };
    (Promise(shared), wait)
}

impl<T> Wait<T> {
    /// Says under which number the question was asked.
    pub(crate) fn asked_as(mut self, request: u64) -> Self {
        self.request = request;
        if !self.is_over() {
            self.is_listed = true;
            self.connection.list(self.request, self.shared.clone());
        }
        self
    }

    /// For how much longer a node may say nothing before it counts as frozen; none if there is no limit. Then a wait ends
    /// at once, with that.
    pub fn patience(&self) -> Option<Duration> {
        self.given_up_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether there is an answer, or will be none.
    pub fn is_over(&self) -> bool {
        !matches!(*lock(&self.shared.state), State::Open | State::Watched(_))
    }

    /// Waits for at most `time`; whether there is an answer, or will be none.
    pub fn is_over_within(&mut self, time: Duration) -> bool {
        let state = lock(&self.shared.state);
        let is_open = |state: &mut State| matches!(*state, State::Open | State::Watched(_));
        self.shared.has_sleeper.store(true, Ordering::Relaxed);
        let waited = self.shared.answered.wait_timeout_while(state, time, is_open);
        self.shared.has_sleeper.store(false, Ordering::Relaxed);
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
                State::Over | State::Abandoned => {
                    *state = State::Over;
                    drop(state);
                    return Some(Err(self.no_answer()));
                }
                State::Closed => {
                    *state = State::Closed;
                    drop(state);
                    self.finish = None;
                    return Some(Err(Error::Closed));
                }
                open => *state = open,
            }
            let now = Instant::now();
            if self.given_up_at.is_some_and(|at| at <= now) {
                drop(state);
                return Some(Err(self.silence()));
            }
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let silence = self.given_up_at.map(|at| at.saturating_duration_since(now));
            let left = left.into_iter().chain(silence).min().unwrap_or(Duration::MAX);
            drop(state);
            let has_waited = self.wait_in_epoll(left);
            state = lock(&shared.state);
            if has_waited || !matches!(*state, State::Open | State::Watched(_)) {
                continue;
            }
            shared.has_sleeper.store(true, Ordering::Relaxed);
            let waited = shared.answered.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            shared.has_sleeper.store(false, Ordering::Relaxed);
        }
    }

    /// Takes what others say to the node with this thread until there is an answer; false if another thread does so.
    fn wait_in_epoll(&self, time: Duration) -> bool {
        let Some(epoll) = self.connection.epoll() else { return false };
        *lock(&self.shared.epoll) = Some(epoll);
        let has_waited = self.connection.wait_in_epoll(time, || self.is_over());
        *lock(&self.shared.epoll) = None;
        has_waited
    }

    /// Waits until there is an answer.
    ///
    /// # Errors
    /// What went wrong with the call.
    pub fn join(mut self) -> Result<T, Error> {
        loop {
            // As long as a thread can be asked to wait; the answer wakes it.
            if let Some(answer) = self.wait_for(Duration::from_secs(3600)) {
                return answer;
            }
        }
    }

    fn end(&mut self, raw: Raw) -> Result<T, Error> {
        let finish = self.finish.take();
        let said = raw?;
        match finish {
            Some(finish) => finish(said),
            None => Err(Error::node_down("the answer was taken before")),
        }
    }

    /// The error of a wait whose node has said nothing all the time.
    fn silence(&self) -> Error {
        match self.timeout {
            // The time is over, whether the node is frozen or only busy.
            Some(timeout) if timeout >= SILENCE_MAX => {
                let what = "an answer of the node of this host".into();
                let waited_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
                let state = "it does not answer: is its process stopped?".into();
                CallError::Timeout { what, waited_ns, state }.into()
            }
            _ => Error::node_down("it does not answer: is its process stopped?"),
        }
    }

    fn no_answer(&mut self) -> Error {
        self.finish = None;
        if self.connection.is_forked() {
            Error::Forked
        } else {
            Error::node_down("it gave no answer")
        }
    }
}

impl<T> std::fmt::Debug for Wait<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T> Drop for Wait<T> {
    fn drop(&mut self) {
        if self.is_listed {
            self.connection.unlist(Arc::as_ptr(&self.shared).addr());
        }
        if self.finish.is_none() {
            return;
        }
        let before = mem::replace(&mut *lock(&self.shared.state), State::Abandoned);
        match before {
            State::Open | State::Watched(_) => self.connection.cancel(self.request),
            State::Answered(raw) => undo(&self.connection, &raw),
            State::Over | State::Abandoned | State::Closed => {}
        }
    }
}
