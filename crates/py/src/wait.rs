//! Waits for replies with the interpreter lock released, interruptible by Ctrl-C, or on behalf of an event loop.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hoplite::interrupt::{self, Interrupt};
use hoplite_node::{Latch, PendingReply, WaitQuery, Waker};
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

/// A call without a timeout logs that it is still waiting after this time, then at intervals that double.
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

/// The work of a Python thread while it waits: signal handlers, and the log lines of a long wait.
struct Host {
    naps: RefCell<SignalPoll>,
    begun: Instant,
    /// Time since `begun` when it last worked.
    waited: Cell<Duration>,
    next_word: Cell<Duration>,
    /// What a signal handler raised.
    raised: Cell<Option<PyErr>>,
}

impl Host {
    fn new() -> Self {
        Self {
            naps: RefCell::new(SignalPoll::new()),
            begun: Instant::now(),
            waited: Cell::default(),
            next_word: Cell::new(FIRST_WORD_AFTER),
            raised: Cell::default(),
        }
    }

    fn work(&self, query: Option<&WaitQuery>) -> PyResult<()> {
        Python::attach(|py| py.check_signals())?;
        let waited = self.begun.elapsed();
        self.waited.set(waited);
        if waited >= self.next_word.get() {
            self.next_word.set(waited + waited.min(SILENCE_MAX));
            // The error of a call with a timeout reports the same.
            let Some((what, state)) = query.map(explain) else { return Ok(()) };
            let words = (what, waited.as_secs_f64(), state);
            Python::attach(|py| {
                py.import("hoplite._waits")?.call_method1("still_waiting", words).map(drop)
            })?;
        }
        Ok(())
    }
}

impl Interrupt for Host {
    fn nap(&self) -> Duration {
        let left = self.next_word.get().saturating_sub(self.waited.get());
        self.naps.borrow_mut().next().min(left)
    }

    fn check(&self, query: Option<&WaitQuery>) -> bool {
        let raised = self.work(query).err();
        let goes_on = raised.is_none();
        self.raised.set(raised);
        goes_on
    }
}

/// Sends a request and waits for the reply with the interpreter lock released. If a signal handler raises, the request
/// is canceled. Without a timeout, the log reports at intervals what the request waits for.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    ask: impl FnOnce() -> PendingReply<T> + Send,
) -> PyResult<T> {
    // Release the lock once: taking it again costs a wait when many threads send requests.
    let (reply, raised) = py.detach(|| {
        let host = Host::new();
        let mut pending = ask();
        let query = pending.query();
        let reply = interrupt::wait_as(&host, query.as_ref(), |nap| pending.wait_for(nap));
        (reply, host.raised.take())
    });
    ended(py, reply, raised)?.map_err(|error| errors::of(py, error))
}

/// As [`wait`], for a blocking call of the core.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> hoplite::Result<T> + Send,
) -> PyResult<T> {
    let (result, raised) = py.detach(|| {
        let host = Rc::new(Host::new());
        (interrupt::with(host.clone(), call), host.raised.take())
    });
    ended(py, result, raised)
}

/// Returns the result of a wait, or raises what a signal handler raised.
fn ended<T>(py: Python<'_>, result: hoplite::Result<T>, raised: Option<PyErr>) -> PyResult<T> {
    match raised {
        Some(raised) => Err(raised),
        None => result.map_err(|error| errors::of(py, error)),
    }
}

/// Requests from the node what a request waits for, with a timeout of one second.
fn explain(query: &WaitQuery) -> (String, String) {
    let state = match query.start().wait_for(Duration::from_secs(1)) {
        Some(Ok(explained)) => return explained,
        Some(Err(error)) => error.to_string(),
        None => "the node of this host does not reply".into(),
    };
    ("a reply".into(), state)
}

/// A pending reply of any type.
pub(crate) trait Operation: Send {
    /// Whether the reply has arrived, or never will.
    fn is_over(&self) -> bool;
    /// Registers a waker to call when it is over. Returns false, without calling it, if it is over already.
    fn when_over(&mut self, py: Python<'_>, waker: Waker) -> bool;
    /// As [`PendingReply::next_check`].
    fn next_check(&mut self) -> Option<Duration>;
    /// Waits for at most `time`, or until a signal handler ran on this thread. Returns whether it is over.
    fn is_over_within(&mut self, time: Duration) -> bool;
    /// Whether it has no timeout.
    fn is_unlimited(&self) -> bool;
    /// The request that it waits for now, if that has no timeout.
    fn query(&self) -> Option<WaitQuery>;
    /// Waits for the reply and converts it to a Python object.
    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// A wait, and the conversion of its reply.
struct PendingOperation<T, F> {
    waiting: PendingReply<T>,
    then: F,
}

impl<T, F> Operation for PendingOperation<T, F>
where
    T: Send + 'static,
    F: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send,
{
    fn is_over(&self) -> bool {
        self.waiting.is_over()
    }

    fn when_over(&mut self, _py: Python<'_>, waker: Waker) -> bool {
        self.waiting.when_over(waker)
    }

    fn next_check(&mut self) -> Option<Duration> {
        self.waiting.next_check()
    }

    fn is_over_within(&mut self, time: Duration) -> bool {
        self.waiting.is_over_within(time)
    }

    fn is_unlimited(&self) -> bool {
        self.waiting.timeout().is_none()
    }

    fn query(&self) -> Option<WaitQuery> {
        self.waiting.query()
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { waiting, then } = *self;
        then(py, wait(py, || waiting)?)
    }
}

/// Waits for at most `time`. Returns whether the reply has arrived.
fn wait_briefly(py: Python<'_>, question: &mut dyn Operation, time: Duration) -> PyResult<bool> {
    let begun = Instant::now();
    let mut naps = SignalPoll::new();
    loop {
        let left = time.saturating_sub(begun.elapsed());
        let nap = naps.next().min(left);
        if py.detach(|| question.is_over_within(nap)) {
            return Ok(true);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(false);
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
        Self::of(PendingOperation { waiting, then })
    }

    pub(crate) fn of(operation: impl Operation + 'static) -> Self {
        Self(Mutex::new(Some(Box::new(operation))))
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
        let is_over = wait_briefly(py, &mut *question, time);
        *self.question() = Some(question);
        is_over
    }

    /// Registers the reply with an inbox under `key`. Returns false, without registering, if the reply has already
    /// arrived.
    fn register(&self, py: Python<'_>, inbox: &Inbox, key: u64) -> bool {
        let inbox = inbox.0.clone();
        let waker = Box::new(move || inbox.put(key));
        self.question().as_mut().is_some_and(|question| question.when_over(py, waker))
    }

    /// Seconds until the next check whether the node responds; `None` if there is no limit. A call at that time makes
    /// the check. It returns 0 if the node does not respond; `result` then raises that error at once.
    fn until_check(&self) -> Option<f64> {
        let until_check = self.question().as_mut().and_then(|question| question.next_check());
        until_check.map(|until_check| until_check.as_secs_f64())
    }

    /// Whether the request has no timeout.
    fn is_unlimited(&self) -> bool {
        self.question().as_ref().is_some_and(|question| question.is_unlimited())
    }

    /// Requests what the reply waits for, and why that is not here. `None` with a timeout, or between two steps.
    fn start_explain(&self) -> Option<Self> {
        let query = self.question().as_ref()?.query()?;
        let pair = |py: Python<'_>, pair: (String, String)| {
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        };
        Some(Self::new(query.start(), pair))
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
