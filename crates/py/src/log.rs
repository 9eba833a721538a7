//! The node's log, on stderr, for the process that is a node and nothing else.

use std::{
    fmt::{self, Write},
    io::IsTerminal,
};

use pyo3::prelude::*;
use tracing::{field::Field, level_filters::LevelFilter};
use tracing_subscriber::{
    field::MakeExt,
    fmt::format::{Writer, debug_fn},
};

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
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}

/// Bytes of one text in the log. What is longer comes from another node or program, and says no more at the end of it.
const TEXT_BYTES_MAX: usize = 1024;

/// Writes a field of a line: other nodes and programs have said some of the texts, and none of them begins a line of its own
/// or moves the cursor of a terminal.
fn write_field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(to, "{}=", field.name())?;
    }
    let mut line = OneLine { to, left: TEXT_BYTES_MAX };
    match write!(line, "{}", Value(value)) {
        Err(fmt::Error) if line.left == 0 => to.write_str("..."),
        written => written,
    }
}

/// The value of a field as tracing hands it over: what a line of the log displays comes as that text, a string in quotes.
struct Value<'a>(&'a dyn fmt::Debug);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes the beginning of a text with what can't be printed escaped; an error when it is longer.
struct OneLine<'a, 'b> {
    to: &'a mut Writer<'b>,
    left: usize,
}

impl Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.left = self.left.saturating_sub(character.len_utf8());
            if self.left == 0 {
                return Err(fmt::Error);
            }
            if is_printed(character) {
                self.to.write_char(character)?;
            } else {
                write!(self.to, "{}", character.escape_unicode())?;
            }
        }
        Ok(())
    }
}

/// Whether a character stands for itself, in its place. Not so what controls a terminal, begins a line or turns the direction of
/// reading.
fn is_printed(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}
