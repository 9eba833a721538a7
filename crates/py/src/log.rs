//! Writes the log to stderr, for processes that run a node and nothing else.

mod json;
mod text;

use std::io::{self, IsTerminal, Write, stderr};

use pyo3::prelude::*;
use rustix::io::Errno;
use tracing_subscriber::{
    field::MakeExt,
    filter::{LevelFilter, Targets},
    fmt::format::debug_fn,
    prelude::*,
};

use hoplite_node::proto::error::Quoted;

use self::{json::JsonLines, text::write_field};
use crate::errors;

/// Writes the log of this process's nodes to stderr. `levels` is a level, and MODULE=LEVEL for single modules,
/// separated by commas.
#[pyfunction]
#[pyo3(signature = (levels, is_json = false))]
pub(crate) fn log_to_stderr(py: Python<'_>, levels: &str, is_json: bool) -> PyResult<()> {
    let targets = targets(levels).ok_or_else(|| {
        let message = format!(
            "log levels {} are not valid: use off, error, warn, info, debug or trace, and MODULE=LEVEL for modules",
            Quoted(levels)
        );
        errors::raise(py, "InvalidArgument", message)
    })?;
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(|| Stderr);
    // If another logger exists, perhaps from an earlier call, it stays.
    let _ = if is_json {
        lines.event_format(JsonLines).finish().with(targets).try_init()
    } else {
        let text = lines.fmt_fields(debug_fn(write_field).delimited(" "));
        text.with_ansi(stderr().is_terminal()).finish().with(targets).try_init()
    };
    Ok(())
}

/// Stderr without the lock of the standard library: a child forked while another thread writes would wait for it
/// forever. Each event is one write. What stderr does not take is dropped: the subscriber would report the error to
/// stderr by the standard library, and panic if it does not take that either.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::io::write(rustix::stdio::stderr(), bytes) {
            Err(Errno::INTR) => Err(Errno::INTR.into()),
            written => Ok(written.unwrap_or(bytes.len())),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The level of each module; None if a level is unknown.
fn targets(levels: &str) -> Option<Targets> {
    levels.split(',').try_fold(Targets::new(), |targets, part| {
        let (module, level) = part.split_once('=').unwrap_or(("", part));
        let level = level.parse::<LevelFilter>().ok()?;
        Some(match module {
            "" => targets.with_default(level),
            module => targets.with_target(format!("{}{module}", json::CRATE), level),
        })
    })
}
