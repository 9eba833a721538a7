//! Waiting without the interpreter, but not deaf to Ctrl-C.

use std::time::Duration;

use hoplite_node::Wait;
use pyo3::prelude::*;

use crate::errors;

/// How often a waiting call looks for signals. An answer ends the wait at once, whatever this is.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Waits for an answer with the interpreter released; a signal handler's exception takes the question back.
pub(crate) fn wait<T: Send>(py: Python<'_>, mut waiting: Wait<T>) -> PyResult<T> {
    loop {
        let answer;
        (answer, waiting) = py.detach(move || (waiting.wait_for(SIGNALS_EVERY), waiting));
        match answer {
            Some(answer) => return answer.map_err(|error| errors::of(py, &error)),
            None => py.check_signals()?,
        }
    }
}
