//! The node's log, on stderr, for the process that is a node and nothing else.

use std::io::IsTerminal;

use pyo3::prelude::*;
use tracing::level_filters::LevelFilter;

use hoplite_node::proto::error::Quoted;

use crate::errors;

/// Writes the log of nodes in this process to stderr from `level` on: error, warning, info, debug or trace.
#[pyfunction]
pub(crate) fn log_to_stderr(py: Python<'_>, level: &str) -> PyResult<()> {
    let filter = match level.to_ascii_lowercase().as_str() {
        "warning" => LevelFilter::WARN,
        "off" => LevelFilter::OFF,
        other => other.parse().map_err(|_| {
            let said = format!(
                "the log level {} is none of off, error, warning, info, debug and trace",
                Quoted(level)
            );
            errors::raise(py, "InvalidArgument", said)
        })?,
    };
    // Another logger was set up before, perhaps by an earlier call: it stays.
    let _ = tracing_subscriber::fmt()
        .with_max_level(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}
