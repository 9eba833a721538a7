//! An answer that is on its way to a program: waited for by a thread, or told of to an event loop.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hoplite_proto::{ask::Answer, error::Error as CallError, id::ObjectId};

use super::{
    connection::{Close, Connection},
    protocol::ToNode,
    view::Guard,
};
use crate::{
    error::Error,
    latch::Latch,
    shared_epoll::{SharedEpoll, Waited},
    sync::lock,
};

/// What came back for a question.
pub(crate) enum Said {
    /// The machine's answer, with the memory that it speaks of.
    Answer(Answer, Option<Guard>),
    /// How the node is, as JSON.
    Status(String),
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
    /// Open once there is an answer, or will be none.
    over: Latch,
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
        let old = {
            let mut state = lock(&self.state);
            match *state {
                State::Open | State::Watched(_) => mem::replace(&mut *state, new),
                State::Answered(_) | State::Over => return None,
                State::Abandoned | State::Closed => {
                    return if let State::Answered(raw) = new { Some(raw) } else { None };
                }
            }
        };
        self.over.open();
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
    begun: Instant,
    /// The object that the request is about, if it is about one.
    about: Option<ObjectId>,
    lateness: Lateness,
    shared: Arc<Shared>,
    finish: Option<Finish<T>>,
}

/// How long a question that has a deadline may be without an answer, unless its timeout is longer, before the client
/// checks whether the node is stopped.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How much later than its deadline an answer may come before the client checks whether the node is stopped.
const LATE_MAX: Duration = Duration::from_millis(250);

/// Between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How many checks may find that the node is not stopped. It then answers, however busy its host is, unless its container
/// is paused or it hangs. Checks are counted, not seconds: a client that was stopped itself has the answer in its socket.
const CHECKS_MAX: u32 = 10;

/// What a client knows of a node that has not answered at its deadline.
struct Lateness {
    /// When to check; none if there is no limit.
    check_at: Option<Instant>,
    checks_left: u32,
    verdict: Option<Verdict>,
}

impl Lateness {
    fn new(timeout: Option<Duration>, now: Instant) -> Self {
        let patience = timeout.map(|timeout| timeout.saturating_add(LATE_MAX).max(SILENCE_MAX));
        let check_at = patience.and_then(|patience| now.checked_add(patience));
        Self { check_at, checks_left: CHECKS_MAX, verdict: None }
    }

    /// Checks, if it is time, and returns how long to wait until the next check: zero once there is a verdict, none if there
    /// is no limit.
    fn check(
        &mut self,
        now: Instant,
        stopped_process: impl FnOnce() -> Option<u32>,
    ) -> Option<Duration> {
        let check_at = self.check_at?;
        if now < check_at {
            return Some(check_at - now);
        }
        if self.verdict.is_none() {
            let stopped = stopped_process().map(Verdict::Stopped);
            self.verdict = stopped.or((self.checks_left == 0).then_some(Verdict::Late));
        }
        if self.verdict.is_some() {
            return Some(Duration::ZERO);
        }
        self.checks_left -= 1;
        self.check_at = now.checked_add(CHECK_EVERY);
        Some(CHECK_EVERY)
    }
}

/// Why a client does not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The node's process is stopped.
    Stopped(u32),
    /// It is not, or this process can't see it; but it does not answer.
    Late,
}

/// A question's two ends. The number of the question is told by [`Wait::asked_as`]; `timeout` is that of the question, which
/// is `about` an object.
pub(crate) fn pair<T>(
    connection: Arc<Connection>,
    timeout: Option<Duration>,
    about: Option<ObjectId>,
    finish: Finish<T>,
) -> (Promise, Wait<T>) {
    let shared = Arc::new(Shared::default());
    let begun = Instant::now();
    let lateness = Lateness::new(timeout, begun);
    let (request, is_listed, finish) = (0, false, Some(finish));
    let wait = Wait {
        connection,
        request,
        is_listed,
        timeout,
        begun,
        about,
        lateness,
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

    /// How long to wait until the next check whether the node answers at all; none if there is no limit. Call it again
    /// then: it checks. Zero once the node does not answer; then a wait ends at once, with that error.
    pub fn patience(&mut self) -> Option<Duration> {
        let stopped_process = || self.connection.stopped_process();
        self.lateness.check(Instant::now(), stopped_process)
    }

    /// Whether there is an answer, or will be none.
    pub fn is_over(&self) -> bool {
        !matches!(*lock(&self.shared.state), State::Open | State::Watched(_))
    }

    /// Waits for at most `time`, or until a handler of a signal ran on this thread; whether there is an answer, or will be none.
    pub fn is_over_within(&mut self, time: Duration) -> bool {
        self.shared.over.wait(time);
        self.is_over()
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

    /// Waits for at most `time`, or until a handler of a signal ran on this thread; none if there is no answer yet.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<T, Error>> {
        let until = Instant::now().checked_add(time);
        let mut is_interrupted = false;
        loop {
            if let Some(answer) = self.take() {
                return Some(answer);
            }
            let patience = self.patience();
            if let Some(verdict) = self.lateness.verdict {
                return Some(Err(self.silence(verdict)));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if is_interrupted || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let left = left.into_iter().chain(patience).min().unwrap_or(Duration::MAX);
            is_interrupted = match self.wait_in_epoll(left) {
                Waited::Over => false,
                Waited::Interrupted => true,
                Waited::Elsewhere => !self.shared.over.wait(left),
            };
        }
    }

    /// What the wait ended with, if it is over.
    fn take(&mut self) -> Option<Result<T, Error>> {
        let mut state = lock(&self.shared.state);
        let next = match *state {
            State::Open | State::Watched(_) => return None,
            State::Answered(_) | State::Over | State::Abandoned => State::Over,
            State::Closed => State::Closed,
        };
        let ended = mem::replace(&mut *state, next);
        drop(state);
        Some(match ended {
            State::Answered(raw) => self.end(raw),
            State::Closed => {
                self.finish = None;
                Err(Error::Closed)
            }
            _ => Err(self.no_answer()),
        })
    }

    /// Takes what others say to the node with this thread until there is an answer.
    fn wait_in_epoll(&self, time: Duration) -> Waited {
        let Some(epoll) = self.connection.epoll() else { return Waited::Elsewhere };
        *lock(&self.shared.epoll) = Some(epoll);
        let waited = self.connection.wait_in_epoll(time, || self.is_over());
        *lock(&self.shared.epoll) = None;
        waited
    }

    /// Waits until there is an answer.
    ///
    /// # Errors
    /// What went wrong with the call.
    pub fn join(mut self) -> Result<T, Error> {
        loop {
            if let Some(answer) = self.wait_for(Duration::MAX) {
                return answer;
            }
        }
    }

    fn end(&mut self, raw: Raw) -> Result<T, Error> {
        let finish = self.finish.take();
        let said = raw.map_err(|error| self.as_given(error))?;
        match finish {
            Some(finish) => finish(said),
            None => Err(Error::node_down("the answer was taken before")),
        }
    }

    /// An error of the node; where this call's own timeout is over, with that timeout, and not with how late the node noticed.
    fn as_given(&self, mut error: CallError) -> CallError {
        if let CallError::Timeout { waited_ns, .. } = &mut error
            && let Some(timeout) = self.timeout
            && self.begun.elapsed() >= timeout
            && Duration::from_nanos(*waited_ns) >= timeout
        {
            *waited_ns = nanoseconds(timeout);
        }
        error
    }

    /// The error of a wait whose node does not answer.
    fn silence(&self, verdict: Verdict) -> Error {
        let about = self.about.as_ref().map_or_else(String::new, |id| format!(" about {id}"));
        let state = match verdict {
            Verdict::Stopped(process) => format!(
                "it does not answer, because its process {process} is stopped: continue it with `kill -CONT {process}`"
            ),
            Verdict::Late => "it does not answer, though its process is not known to be stopped: check whether the host \
                              is overloaded or the node's container is paused"
                .into(),
        };
        // The time of a stopped node's caller is not over if its timeout was shorter than the time to find that out.
        let is_over = |timeout: &Duration| match verdict {
            Verdict::Stopped(_) => *timeout >= SILENCE_MAX,
            Verdict::Late => !timeout.is_zero(),
        };
        match self.timeout.filter(is_over) {
            Some(timeout) => {
                let what = format!("an answer{about} from the node of this host");
                let waited_ns = nanoseconds(timeout);
                CallError::Timeout { what, waited_ns, state }.into()
            }
            None if about.is_empty() => Error::node_down(state),
            None => Error::node_down(format!("{state} (the request was{about})")),
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

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
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
            State::Open | State::Watched(_) => {
                self.connection.say(ToNode::Cancel { request: self.request })
            }
            State::Answered(raw) => undo(&self.connection, &raw),
            State::Over | State::Abandoned | State::Closed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks as often as it is time, at most `times`; how long that took from the beginning, and the verdict.
    fn checked(
        timeout: Duration,
        times: u32,
        stopped_at: Option<u32>,
    ) -> (Duration, Option<Verdict>) {
        let begun = Instant::now();
        let mut lateness = Lateness::new(Some(timeout), begun);
        let mut now = begun;
        for number in 0..=times {
            let stopped = || stopped_at.filter(|at| number >= *at).map(|_| 77);
            let wait = lateness.check(now, stopped).unwrap();
            if wait.is_zero() {
                break;
            }
            now += wait;
        }
        (now - begun, lateness.verdict)
    }

    #[test]
    fn a_stopped_node_is_found_at_the_deadline_and_one_that_is_not_is_waited_for() {
        let second = Duration::from_secs(1);
        let late = |timeout: Duration| timeout + LATE_MAX;
        let stopped = Some(Verdict::Stopped(77));
        assert_eq!(checked(9 * second, 99, Some(0)), (late(9 * second), stopped));
        assert_eq!(checked(Duration::ZERO, 99, Some(0)), (SILENCE_MAX, stopped));
        // It was stopped only then.
        assert_eq!(checked(9 * second, 99, Some(3)), (late(9 * second) + 2 * second, stopped));
        let most = late(9 * second) + CHECKS_MAX * CHECK_EVERY;
        assert_eq!(checked(9 * second, CHECKS_MAX, None).1, None);
        assert_eq!(checked(9 * second, 99, None), (most, Some(Verdict::Late)));
    }

    #[test]
    fn a_client_that_was_stopped_itself_checks_as_often() {
        let begun = Instant::now();
        let mut lateness = Lateness::new(Some(Duration::ZERO), begun);
        let much_later = begun + Duration::from_secs(1000);
        assert_eq!(lateness.check(much_later, || None), Some(CHECK_EVERY));
        assert_eq!(Lateness::new(None, begun).check(much_later, || Some(77)), None);
    }
}
