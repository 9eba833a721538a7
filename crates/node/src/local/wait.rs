//! Sends a request and waits for its reply, which wakes a thread or an event loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_proto::{
    error::Error as CallError,
    id::{ObjectId, RequestId},
    request::{Reply, Request},
};

use super::{
    connection::{Close, Connection, SlotGuard},
    protocol::ToNode,
    reply_cell::{ReplyCell, State},
};
use crate::{error::Error, shared_epoll::Waited};

pub use super::reply_cell::Waker;

/// The reply to a request with the memory that it refers to, or its error.
type RawReply = Result<(Reply, Option<SlotGuard>), CallError>;

/// Converts a reply and its memory to the caller's result.
type Finish<T> = Box<dyn FnOnce(Reply, Option<SlotGuard>) -> Result<T, Error> + Send>;

/// The node's end of a pending reply. Dropping it without a reply ends the wait with an error.
struct Completer {
    shared: Arc<Shared>,
    is_over: bool,
}

/// State shared by both ends of a pending reply.
struct Shared {
    connection: Arc<Connection>,
    reply: ReplyCell<RawReply>,
}

impl Completer {
    fn complete(mut self, raw: RawReply) {
        self.is_over = true;
        if let Some(raw) = self.shared.reply.set(State::Replied(raw)) {
            undo(&self.shared.connection, &raw);
        }
    }
}

impl Close for Shared {
    /// Ends the wait because its client was closed.
    fn close(&self) {
        drop(self.reply.set(State::Closed));
    }
}

/// Deletes the objects or slots created by a request whose caller gave up: no program has their
/// ids.
fn undo(connection: &Connection, raw: &RawReply) {
    let Ok((reply, _)) = raw else { return };
    match reply {
        Reply::Put { id } | Reply::Reserved { id } | Reply::Reducing { id } => {
            connection.delete_in_passing(id.clone());
        }
        Reply::Slots { ids } => {
            ids.iter().for_each(|id| connection.delete_in_passing(id.clone()));
        }
        _ => {}
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.shared.reply.set(State::Over));
        }
    }
}

/// A pending reply. Dropping it cancels the request.
pub struct PendingReply<T> {
    request: u64,
    /// Whether the client has registered this wait, to end it on close.
    is_listed: bool,
    /// The timeout, and since when it runs.
    timed: Option<(Duration, Instant)>,
    /// The object that the request refers to, if any.
    about: Option<ObjectId>,
    response_check: ResponseCheck,
    shared: Arc<Shared>,
    finish: Option<Finish<T>>,
}

/// Minimum time without a reply, for a request with a deadline, before the client checks whether
/// the node is stopped.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Delay after the deadline before the client checks whether the node is stopped.
const LATE_MAX: Duration = Duration::from_millis(250);

/// Interval between checks.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Number of checks that find the node not stopped before the wait fails. Such a node still
/// replies, however busy its host is, unless it hangs or its container is paused. Checks are
/// counted, not seconds: a client that was stopped itself already has the reply in its socket.
const CHECKS_MAX: u32 = 10;

/// A pending request without a timeout, to find out what it waits for.
#[derive(Clone)]
pub struct WaitQuery {
    connection: Arc<Connection>,
    request: u64,
}

impl std::fmt::Debug for WaitQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitQuery").field("request", &self.request).finish_non_exhaustive()
    }
}

/// State of the checks of a node that has not replied at the deadline.
struct ResponseCheck {
    /// Time of the next check; None without a timeout.
    check_at: Option<Instant>,
    checks_left: u32,
    verdict: Option<Verdict>,
}

impl ResponseCheck {
    /// The checks of a request with this timeout and start, None without a timeout.
    fn new(timed: Option<(Duration, Instant)>) -> Self {
        let check_at = timed.and_then(|(timeout, begun)| {
            begun.checked_add(timeout.saturating_add(LATE_MAX).max(SILENCE_MAX))
        });
        Self { check_at, checks_left: CHECKS_MAX, verdict: None }
    }

    /// Checks the node if it is time. Returns the time until the next check: zero once there is a
    /// verdict, None without a timeout.
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

/// Reason why a client stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// The node's process is stopped.
    Stopped(u32),
    /// The node does not reply, but is not stopped, or this process can't detect which.
    Late,
}

impl WaitQuery {
    /// Requests what the request waits for, and why that is not here.
    pub fn start(&self) -> PendingReply<(String, String)> {
        let body = Request::ExplainRequest { request: RequestId(self.request) };
        let timeout = Some(Duration::from_secs(1));
        send(&self.connection, false, body, timeout, |reply, _| match reply {
            Reply::Explained { what, state, .. } => Ok((what, state)),
            _ => Err(Error::unexpected_reply()),
        })
    }
}

/// Sends a request; `finish` converts the reply and its memory to the caller's result. `may_wait`
/// if this thread may block.
pub(super) fn send<T>(
    connection: &Arc<Connection>,
    may_wait: bool,
    body: Request,
    timeout: Option<Duration>,
    finish: impl FnOnce(Reply, Option<SlotGuard>) -> Result<T, Error> + Send + 'static,
) -> PendingReply<T> {
    let timed = timeout.map(|timeout| (timeout, Instant::now()));
    let shared = Arc::new(Shared { connection: connection.clone(), reply: ReplyCell::default() });
    let mut wait = PendingReply {
        request: 0,
        is_listed: false,
        timed,
        about: timeout.and_then(|_| subject(&body)),
        response_check: ResponseCheck::new(timed),
        shared: shared.clone(),
        finish: Some(Box::new(finish)),
    };
    let completer = Completer { shared, is_over: false };
    // A forked child gets no reply: its end is dropped.
    if connection.is_forked() {
        return wait;
    }
    wait.request = connection.ask(body, timed, may_wait, move |request, reply| {
        let raw = reply.map(|(reply, slot)| {
            let guard = SlotGuard::of(&completer.shared.connection, request, &reply, slot);
            (reply, guard)
        });
        completer.complete(raw);
    });
    if !wait.shared.reply.is_known_over() {
        wait.is_listed = true;
        connection.register(wait.request, wait.shared.clone());
    }
    wait
}

/// The object that a request with a timeout refers to.
fn subject(body: &Request) -> Option<ObjectId> {
    match body {
        Request::Put { id, .. } | Request::Create { id, .. } | Request::Reduce { id, .. } => {
            id.clone()
        }
        Request::Get { id }
        | Request::GetRange { id, .. }
        | Request::Follow { id }
        | Request::Replicate { id, .. }
        | Request::Inputs { id }
        | Request::Locations { id, .. } => Some(id.clone()),
        _ => None,
    }
}

impl<T> PendingReply<T> {
    /// The request, to find out what it waits for; None with a timeout, whose error reports that.
    pub fn query(&self) -> Option<WaitQuery> {
        let (connection, request) = (&self.shared.connection, self.request);
        self.timed.is_none().then(|| WaitQuery { connection: connection.clone(), request })
    }

    /// The timeout.
    pub fn timeout(&self) -> Option<Duration> {
        self.timed.map(|(timeout, _)| timeout)
    }

    /// Sets the object that the request refers to.
    pub(crate) fn about(mut self, id: ObjectId) -> Self {
        self.about = Some(id);
        self
    }

    /// Checks the node if it is time. Returns the time until the next check, when to call this
    /// again; None without a timeout. Zero once the node does not reply: a wait then ends at once
    /// with that error.
    pub fn next_check(&mut self) -> Option<Duration> {
        let stopped_process = || self.shared.connection.stopped_process();
        self.response_check.check(Instant::now(), stopped_process)
    }

    /// Whether the wait is over: there is a reply, or none will come.
    pub fn is_over(&self) -> bool {
        self.shared.reply.is_over()
    }

    /// Waits for at most `time`, or until a signal handler ran on this thread. Returns whether the
    /// wait is over.
    pub fn is_over_within(&mut self, time: Duration) -> bool {
        self.shared.reply.sleep(time);
        self.is_over()
    }

    /// Registers a waker to call when the wait is over. Returns false, without calling it, if it is
    /// over already.
    pub fn when_over(&self, waker: Waker) -> bool {
        self.shared.reply.watch(waker)
    }

    /// Waits for at most `time`, or until a signal handler ran on this thread. None if there is no
    /// reply yet.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<T, Error>> {
        // Most replies are there already: read no clock for them.
        let mut reply = self.take();
        let until = reply.is_none().then(|| Instant::now().checked_add(time)).flatten();
        let mut is_interrupted = false;
        while reply.is_none() {
            let next_check = self.next_check();
            if let Some(verdict) = self.response_check.verdict {
                return Some(Err(self.silence(verdict)));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if is_interrupted || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let left = left.into_iter().chain(next_check).min().unwrap_or(Duration::MAX);
            is_interrupted = match self.wait_in_epoll(left) {
                Waited::Over => false,
                Waited::Interrupted => true,
                Waited::Elsewhere => !self.shared.reply.sleep(left),
            };
            reply = self.take();
        }
        reply
    }

    /// The result of the wait, if it is over.
    fn take(&mut self) -> Option<Result<T, Error>> {
        let ended = self.shared.reply.take()?;
        Some(match ended {
            State::Replied(raw) => self.end(raw),
            State::Closed => {
                self.finish = None;
                Err(Error::Closed)
            }
            _ => Err(self.no_answer()),
        })
    }

    /// Handles events of the node on this thread until the wait is over.
    fn wait_in_epoll(&self, time: Duration) -> Waited {
        let connection = &self.shared.connection;
        let Some(epoll) = connection.epoll() else { return Waited::Elsewhere };
        self.shared.reply.wait_in(epoll, |is_over| connection.wait_in_epoll(time, is_over))
    }

    /// Waits until the wait is over.
    ///
    /// # Errors
    /// The error of the request.
    pub fn join(mut self) -> Result<T, Error> {
        loop {
            if let Some(reply) = self.wait_for(Duration::MAX) {
                return reply;
            }
        }
    }

    fn end(&mut self, raw: RawReply) -> Result<T, Error> {
        let finish = self.finish.take();
        let (reply, guard) = raw.map_err(|error| self.as_given(error))?;
        match finish {
            Some(finish) => finish(reply, guard),
            None => Err(Error::node_down("the reply was already taken")),
        }
    }

    /// Adjusts a timeout error of the node: reports this call's own timeout, not how late the node
    /// detected it.
    fn as_given(&self, mut error: CallError) -> CallError {
        if let CallError::Timeout { waited_ns, .. } = &mut error
            && let Some((timeout, begun)) = self.timed
            && begun.elapsed() >= timeout
            && Duration::from_nanos(*waited_ns) >= timeout
        {
            *waited_ns = nanoseconds(timeout);
        }
        error
    }

    /// The error of a wait whose node does not reply.
    fn silence(&self, verdict: Verdict) -> Error {
        let about = self.about.as_ref().map_or_else(String::new, |id| format!(" about {id}"));
        let state = match verdict {
            Verdict::Stopped(process) => format!(
                "it does not reply because its process {process} is stopped: continue it with \
                 `kill -CONT {process}`"
            ),
            Verdict::Late => "it does not reply, but its process does not appear to be stopped: \
                              check whether the host is overloaded or the node's container is \
                              paused"
                .into(),
        };
        // If the timeout was shorter than the time to detect a stopped node, report the node and
        // not the timeout.
        let is_over = |timeout: &Duration| match verdict {
            Verdict::Stopped(_) => *timeout >= SILENCE_MAX,
            Verdict::Late => !timeout.is_zero(),
        };
        match self.timeout().filter(is_over) {
            Some(timeout) => {
                let what = format!("a reply{about} from the node of this host");
                let waited_ns = nanoseconds(timeout);
                CallError::Timeout { what, waited_ns, state }.into()
            }
            None if about.is_empty() => Error::node_down(state),
            None => Error::node_down(format!("{state} (the request was{about})")),
        }
    }

    fn no_answer(&mut self) -> Error {
        self.finish = None;
        if self.shared.connection.is_forked() {
            Error::Forked
        } else {
            Error::node_down("it sent no reply")
        }
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<T> std::fmt::Debug for PendingReply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingReply").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T> Drop for PendingReply<T> {
    fn drop(&mut self) {
        if self.is_listed {
            self.shared.connection.unregister(Arc::as_ptr(&self.shared).addr());
        }
        if self.finish.is_none() {
            return;
        }
        let before = self.shared.reply.abandon();
        let connection = &self.shared.connection;
        match before {
            State::Open | State::Watched(_) => {
                connection.send(ToNode::Cancel { request: self.request })
            }
            State::Replied(raw) => undo(connection, &raw),
            State::Over | State::Abandoned | State::Closed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs due checks, at most `times`; returns the time that passed and the verdict.
    fn checked(
        timeout: Duration,
        times: u32,
        stopped_at: Option<u32>,
    ) -> (Duration, Option<Verdict>) {
        let begun = Instant::now();
        let mut response_check = ResponseCheck::new(Some((timeout, begun)));
        let mut now = begun;
        for number in 0..=times {
            let stopped = || stopped_at.filter(|at| number >= *at).map(|_| 77);
            let wait = response_check.check(now, stopped).unwrap();
            if wait.is_zero() {
                break;
            }
            now += wait;
        }
        (now - begun, response_check.verdict)
    }

    #[test]
    fn stopped_node_is_detected_at_the_deadline_and_late_node_awaited() {
        let second = Duration::from_secs(1);
        let late = |timeout: Duration| timeout + LATE_MAX;
        let stopped = Some(Verdict::Stopped(77));
        assert_eq!(checked(9 * second, 99, Some(0)), (late(9 * second), stopped));
        assert_eq!(checked(Duration::ZERO, 99, Some(0)), (SILENCE_MAX, stopped));
        // It is stopped only at the third check.
        assert_eq!(checked(9 * second, 99, Some(3)), (late(9 * second) + 2 * second, stopped));
        let most = late(9 * second) + CHECKS_MAX * CHECK_EVERY;
        assert_eq!(checked(9 * second, CHECKS_MAX, None).1, None);
        assert_eq!(checked(9 * second, 99, None), (most, Some(Verdict::Late)));
    }

    #[test]
    fn stopped_client_makes_as_many_checks() {
        let begun = Instant::now();
        let mut response_check = ResponseCheck::new(Some((Duration::ZERO, begun)));
        let much_later = begun + Duration::from_secs(1000);
        assert_eq!(response_check.check(much_later, || None), Some(CHECK_EVERY));
        assert_eq!(ResponseCheck::new(None).check(much_later, || Some(77)), None);
    }
}
