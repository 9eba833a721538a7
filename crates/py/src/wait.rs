//! Waiting without the interpreter, but not deaf to Ctrl-C.

use std::time::Duration;

use hoplite_node::Wait;
use pyo3::prelude::*;

use crate::errors;

/// How often a waiting call looks for signals. An answer ends the wait at once, whatever this is.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(50);

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
