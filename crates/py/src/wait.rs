//! Waiting without the interpreter, but not deaf to Ctrl-C; and answers that an event loop waits for.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hoplite_node::{Client, Latch, Wait, Waker, proto::id::ObjectId};
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use rustix::{
    event::{EventfdFlags, eventfd},
    process::getpid,
    thread::gettid,
};

use crate::errors;

/// How long the first wait of a call takes at most, and each after a signal. A signal that comes while the thread sleeps wakes
/// it; this is for one that came just before.
const FIRST_NAP: Duration = Duration::from_millis(50);

/// How long a get waits before it says so; then twice as long each time.
const FIRST_WORD_AFTER: Duration = Duration::from_secs(10);

/// The longest silence of a wait without a timeout.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// How long a thread sleeps before it looks for signals, if none wakes it. Python runs their handlers on the main thread alone.
struct Naps {
    is_main: bool,
    was_short: bool,
}

impl Naps {
    fn new() -> Self {
        Self { is_main: gettid() == getpid(), was_short: false }
    }

    fn next(&mut self) -> Duration {
        self.was_short = self.is_main && !self.was_short;
        if self.was_short { FIRST_NAP } else { Duration::MAX }
    }
}

/// Opens a latch when its thread ends, by a panic too.
struct AtEnd(Arc<Latch>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Does something that waits on its own thread, with the interpreter released. Ctrl-C ends the wait; what was begun goes
/// on to its end, and its result is dropped.
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
    let mut naps = Naps::new();
    while !py.detach(|| {
        over.wait(naps.next());
        over.is_open()
    }) {
        py.check_signals()?;
    }
    let panicked = |_| PyRuntimeError::new_err(format!("the thread {name} panicked"));
    thread.join().map_err(panicked)
}

/// Asks and waits for the answer, both with the interpreter released; a signal handler's exception takes the question
/// back.
pub(crate) fn wait<T: Send>(py: Python<'_>, ask: impl FnOnce() -> Wait<T> + Send) -> PyResult<T> {
    wait_saying(py, ask, None)
}

/// The same. If the question is about an object, the log is told now and then why that is not here.
pub(crate) fn wait_saying<T: Send>(
    py: Python<'_>,
    ask: impl FnOnce() -> Wait<T> + Send,
    about: Option<(&Client, &ObjectId)>,
) -> PyResult<T> {
    let begun = Instant::now();
    let mut naps = Naps::new();
    // Without an object there is nothing to be said.
    let mut next_word = about.map_or(Duration::MAX, |_| FIRST_WORD_AFTER);
    let mut nap = naps.next().min(next_word);
    // Let go of once for both: to take the interpreter again costs a wait where many threads ask.
    let (mut answer, mut waiting) = py.detach(move || {
        let mut waiting = ask();
        (waiting.wait_for(nap), waiting)
    });
    loop {
        match answer {
            Some(answer) => return answer.map_err(|error| errors::of(py, &error)),
            None => py.check_signals()?,
        }
        let waited = begun.elapsed();
        if waited >= next_word
            && let Some((client, id)) = about
        {
            next_word = waited + waited.min(SILENCE_MAX);
            let said = (id.to_string(), waited.as_secs_f64(), explain(py, client, id));
            py.import("hoplite._waits")?.call_method1("still_waiting", said)?;
        }
        nap = naps.next().min(next_word.saturating_sub(waited));
        (answer, waiting) = py.detach(move || (waiting.wait_for(nap), waiting));
    }
}

/// Why an object is not here, as its node says in a second.
fn explain(py: Python<'_>, client: &Client, id: &ObjectId) -> String {
    let state = py.detach(|| client.start_explain(id).wait_for(Duration::from_secs(1)));
    match state {
        Some(Ok(state)) => state,
        Some(Err(error)) => error.to_string(),
        None => "the node of this host does not answer".into(),
    }
}

/// A question on its way to its answer, of whatever type that is.
trait Answering: Send {
    fn is_over(&self) -> bool;
    fn when_over(&self, waker: Waker) -> bool;
    fn patience(&mut self) -> Option<Duration>;
    /// Waits and makes a Python object of the answer.
    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>>;
    /// Waits for at most this long; whether there is an answer.
    fn wait(&mut self, py: Python<'_>, time: Duration) -> PyResult<bool>;
}

/// A wait, what to make of its answer, and what to say if that is long in coming.
struct Question<T, F> {
    waiting: Wait<T>,
    then: F,
    about: Option<(Client, ObjectId)>,
}

impl<T, F> Answering for Question<T, F>
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

    fn patience(&mut self) -> Option<Duration> {
        self.waiting.patience()
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { waiting, then, about } = *self;
        let about = about.as_ref().map(|(client, id)| (client, id));
        then(py, wait_saying(py, || waiting, about)?)
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> PyResult<bool> {
        let begun = Instant::now();
        let mut naps = Naps::new();
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

/// A question on its way to its answer. Dropping it takes the question back.
#[pyclass(frozen)]
pub(crate) struct Pending(Mutex<Option<Box<dyn Answering>>>);

impl Pending {
    pub(crate) fn new<T: Send + 'static>(
        waiting: Wait<T>,
        then: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self(Mutex::new(Some(Box::new(Question { waiting, then, about: None }))))
    }

    /// The same for a question about an object that may be long in coming.
    pub(crate) fn about<T: Send + 'static>(
        client: Client,
        id: ObjectId,
        waiting: Wait<T>,
        then: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        let about = Some((client, id));
        Self(Mutex::new(Some(Box::new(Question { waiting, then, about }))))
    }

    fn question(&self) -> MutexGuard<'_, Option<Box<dyn Answering>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Pending {
    /// Waits for the answer and returns it. Once only.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let question = self.question().take();
        match question {
            Some(question) => question.finish(py),
            None => Err(PyRuntimeError::new_err("the answer was taken before")),
        }
    }

    /// Whether there is an answer, or will be none.
    fn is_over(&self) -> bool {
        self.question().as_ref().is_none_or(|question| question.is_over())
    }

    /// Waits for at most so many seconds; whether there is an answer.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let Some(mut question) = self.question().take() else { return Ok(true) };
        let is_over = question.wait(py, time);
        *self.question() = Some(question);
        is_over
    }

    /// Lets the inbox hear of the answer by `key`; false if there is one already, and then it hears nothing.
    fn tell(&self, inbox: &Inbox, key: u64) -> bool {
        let inbox = inbox.0.clone();
        let waker = Box::new(move || inbox.put(key));
        self.question().as_ref().is_some_and(|question| question.when_over(waker))
    }

    /// Seconds until the next check whether the node answers at all; none if there is no limit. Called then, it checks, and is
    /// 0 if the node does not answer: `result` then raises that error at once.
    fn patience(&self) -> Option<f64> {
        let patience = self.question().as_mut().and_then(|question| question.patience());
        patience.map(|patience| patience.as_secs_f64())
    }

    /// Takes the question back.
    fn cancel(&self, py: Python<'_>) {
        let question = self.question().take();
        py.detach(|| drop(question));
    }
}

/// Answers that an event loop is to look at. Filled from any thread, without the interpreter.
#[pyclass(frozen)]
pub(crate) struct Inbox(Arc<Letters>);

struct Letters {
    keys: Mutex<Vec<u64>>,
    /// Readable while there are keys.
    event: OwnedFd,
}

impl Letters {
    fn put(&self, key: u64) {
        let is_first = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.push(key);
            keys.len() == 1
        };
        if is_first {
            // It can't be full, and a loop that is gone reads nothing anyway.
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
        Ok(Self(Arc::new(Letters { keys: Mutex::default(), event })))
    }

    /// The descriptor that is readable while something is in the box.
    fn fileno(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }

    /// Empties the box.
    fn take(&self) -> Vec<u64> {
        let mut count = [0; 8];
        // Before the keys: what is put after this makes it readable again.
        let _ = rustix::io::read(&self.0.event, &mut count);
        std::mem::take(&mut *self.0.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
