//! Waiting without the interpreter, but not deaf to Ctrl-C.

use std::{sync::mpsc, time::Duration};

use hoplite_node::Wait;
use pyo3::{exceptions::PyRuntimeError, prelude::*};

use crate::errors;

/// How often a waiting call looks for signals. An answer ends the wait at once, whatever this is.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Does something that waits on its own thread, with the interpreter released. Ctrl-C ends the wait; what was begun goes
/// on to its end, and nobody sees what comes of it.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, mut result) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn(move || drop(done.send(work())))?;
    loop {
        let received;
        (received, result) = py.detach(move || (result.recv_timeout(SIGNALS_EVERY), result));
        match received {
            Ok(value) => return Ok(value),
            Err(mpsc::RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(format!("the thread {name} panicked")));
            }
        }
    }
}

/// Asks and waits for the answer, both with the interpreter released; a signal handler's exception takes the question
/// back.
pub(crate) fn wait<T: Send>(py: Python<'_>, ask: impl FnOnce() -> Wait<T> + Send) -> PyResult<T> {
    let mut waiting = py.detach(ask);
    loop {
        let answer;
        (answer, waiting) = py.detach(move || (waiting.wait_for(SIGNALS_EVERY), waiting));
        match answer {
            Some(answer) => return answer.map_err(|error| errors::of(py, &error)),
            None => py.check_signals()?,
        }
    }
}
