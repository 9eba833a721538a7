//! Waits for replies with the interpreter lock released, interruptible by Ctrl-C, or on behalf of an event loop.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hoplite_node::{Client, Latch, PendingReply, Waker, proto::id::ObjectId};
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use rustix::{
    event::{EventfdFlags, eventfd},
    process::getpid,
    thread::gettid,
};

use crate::errors;

/// Longest duration of the first sleep of a call, and of the first one after a signal. A signal wakes a sleeping
/// thread. The limit covers a signal that arrives just before the thread sleeps.
const FIRST_NAP: Duration = Duration::from_millis(50);

/// A get logs that it is still waiting after this time, then at intervals that double.
const FIRST_WORD_AFTER: Duration = Duration::from_secs(10);

/// Longest interval between two such log lines.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// Chooses how long a thread sleeps before it checks for signals. Python runs signal handlers on the main thread only.
struct SignalPoll {
    is_main: bool,
    was_short: bool,
}

impl SignalPoll {
    fn new() -> Self {
        Self { is_main: gettid() == getpid(), was_short: false }
    }

    fn next(&mut self) -> Duration {
        self.was_short = self.is_main && !self.was_short;
        if self.was_short { FIRST_NAP } else { Duration::MAX }
    }
}

/// Opens a latch when its thread ends, also after a panic.
struct AtEnd(Arc<Latch>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Runs blocking work on a separate thread, with the interpreter lock released. Ctrl-C ends the wait only: the work
/// runs to completion and its result is dropped.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let over = Arc::<Latch>::default();
    let at_end = AtEnd(over.clone());
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _at_end = at_end;
        work()
    })?;
    let mut naps = SignalPoll::new();
    while !py.detach(|| {
        over.wait(naps.next());
        over.is_open()
    }) {
        py.check_signals()?;
    }
    let panicked = |_| PyRuntimeError::new_err(format!("the thread {name} panicked"));
    thread.join().map_err(panicked)
}

/// Sends a request and waits for the reply with the interpreter lock released. If a signal handler raises, the request
/// is canceled.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    ask: impl FnOnce() -> PendingReply<T> + Send,
) -> PyResult<T> {
    wait_saying(py, ask, None)
}

/// Like [`wait`]. If the request concerns an object, the log reports at intervals why the object has not arrived.
pub(crate) fn wait_saying<T: Send>(
    py: Python<'_>,
    ask: impl FnOnce() -> PendingReply<T> + Send,
    about: Option<(&Client, &ObjectId)>,
) -> PyResult<T> {
    let begun = Instant::now();
    let mut naps = SignalPoll::new();
    // Without an object there is nothing to log.
    let mut next_word = about.map_or(Duration::MAX, |_| FIRST_WORD_AFTER);
    let mut nap = naps.next().min(next_word);
    // Release the lock once for both steps: taking it again costs a wait when many threads send requests.
    let (mut reply, mut waiting) = py.detach(move || {
        let mut waiting = ask();
        (waiting.wait_for(nap), waiting)
    });
    loop {
        match reply {
            Some(reply) => return reply.map_err(|error| errors::of(py, &error)),
            None => py.check_signals()?,
        }
        let waited = begun.elapsed();
        if waited >= next_word
            && let Some((client, id)) = about
        {
            next_word = waited + waited.min(SILENCE_MAX);
            let words = (id.to_string(), waited.as_secs_f64(), explain(py, client, id));
            py.import("hoplite._waits")?.call_method1("still_waiting", words)?;
        }
        nap = naps.next().min(next_word.saturating_sub(waited));
        (reply, waiting) = py.detach(move || (waiting.wait_for(nap), waiting));
    }
}

/// Requests from the node the reason why an object has not arrived, with a timeout of one second.
fn explain(py: Python<'_>, client: &Client, id: &ObjectId) -> String {
    let state = py.detach(|| client.start_explain(id).wait_for(Duration::from_secs(1)));
    match state {
        Some(Ok(state)) => state,
        Some(Err(error)) => error.to_string(),
        None => "the node of this host does not reply".into(),
    }
}

/// A pending reply of any type.
trait Operation: Send {
    fn is_over(&self) -> bool;
    fn when_over(&self, waker: Waker) -> bool;
    fn next_check(&mut self) -> Option<Duration>;
    /// Waits for the reply and converts it to a Python object.
    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
    /// Waits for at most `time`. Returns whether the reply has arrived.
    fn wait(&mut self, py: Python<'_>, time: Duration) -> PyResult<bool>;
}

/// A wait, the conversion of its reply, and the object to log about if the reply is late.
struct PendingOperation<T, F> {
    waiting: PendingReply<T>,
    then: F,
    about: Option<(Client, ObjectId)>,
}

impl<T, F> Operation for PendingOperation<T, F>
where
    T: Send + 'static,
    F: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send,
{
    fn is_over(&self) -> bool {
        self.waiting.is_over()
    }

    fn when_over(&self, waker: Waker) -> bool {
        self.waiting.when_over(waker)
    }

    fn next_check(&mut self) -> Option<Duration> {
        self.waiting.next_check()
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { waiting, then, about } = *self;
        let about = about.as_ref().map(|(client, id)| (client, id));
        then(py, wait_saying(py, || waiting, about)?)
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> PyResult<bool> {
        let begun = Instant::now();
        let mut naps = SignalPoll::new();
        loop {
            let left = time.saturating_sub(begun.elapsed());
            let (waiting, nap) = (&mut self.waiting, naps.next().min(left));
            if py.detach(|| waiting.is_over_within(nap)) {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

/// A pending reply. Dropping it cancels the request.
#[pyclass(frozen)]
pub(crate) struct Pending(Mutex<Option<Box<dyn Operation>>>);

impl Pending {
    pub(crate) fn new<T: Send + 'static>(
        waiting: PendingReply<T>,
        then: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self(Mutex::new(Some(Box::new(PendingOperation { waiting, then, about: None }))))
    }

    /// Like [`Pending::new`], for a request about an object. A long wait is logged.
    pub(crate) fn about<T: Send + 'static>(
        client: Client,
        id: ObjectId,
        waiting: PendingReply<T>,
        then: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let about = Some((client, id));
        Self(Mutex::new(Some(Box::new(PendingOperation { waiting, then, about }))))
    }

    fn question(&self) -> MutexGuard<'_, Option<Box<dyn Operation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pending {
    /// Waits for the reply and returns it. Can be called only once.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let question = self.question().take();
        match question {
            Some(question) => question.finish(py),
            None => Err(PyRuntimeError::new_err("the reply was already taken")),
        }
    }

    /// Whether the reply has arrived, or never will.
    fn is_over(&self) -> bool {
        self.question().as_ref().is_none_or(|question| question.is_over())
    }

    /// Waits for at most `seconds`. Returns whether the reply has arrived.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let Some(mut question) = self.question().take() else { return Ok(true) };
        let is_over = question.wait(py, time);
        *self.question() = Some(question);
        is_over
    }

    /// Registers the reply with an inbox under `key`. Returns false, without registering, if the reply has already
    /// arrived.
    fn register(&self, inbox: &Inbox, key: u64) -> bool {
        let inbox = inbox.0.clone();
        let waker = Box::new(move || inbox.put(key));
        self.question().as_ref().is_some_and(|question| question.when_over(waker))
    }

    /// Seconds until the next check whether the node responds; `None` if there is no limit. A call at that time makes
    /// the check. It returns 0 if the node does not respond; `result` then raises that error at once.
    fn until_check(&self) -> Option<f64> {
        let until_check = self.question().as_mut().and_then(|question| question.next_check());
        until_check.map(|until_check| until_check.as_secs_f64())
    }

    /// Cancels the request.
    fn cancel(&self, py: Python<'_>) {
        let question = self.question().take();
        py.detach(|| drop(question));
    }
}

/// Replies that are ready for an event loop. Any thread can add to it without the interpreter lock.
#[pyclass(frozen)]
pub(crate) struct Inbox(Arc<InboxState>);

struct InboxState {
    keys: Mutex<Vec<u64>>,
    /// Readable while `keys` is not empty.
    event: OwnedFd,
}

impl InboxState {
    fn put(&self, key: u64) {
        let is_first = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.push(key);
            keys.len() == 1
        };
        if is_first {
            // The counter cannot overflow, and a loop that has ended reads nothing anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(io::Error::from)?;
        Ok(Self(Arc::new(InboxState { keys: Mutex::default(), event })))
    }

    /// The descriptor that is readable while the inbox is not empty.
    fn fileno(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    /// Empties the inbox and returns its keys.
    fn take(&self) -> Vec<u64> {
        let mut count = [0; 8];
        // Reset the event before taking the keys: a key that is put afterwards makes it readable again.
        let _ = rustix::io::read(&self.0.event, &mut count);
        std::mem::take(&mut *self.0.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
