//! Writes the log to stderr, for processes that run a node and nothing else.

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

/// Writes the log of this process's nodes to stderr. `level` is off, error, warning, info, debug or trace.
#[pyfunction]
pub(crate) fn log_to_stderr(py: Python<'_>, level: &str) -> PyResult<()> {
    let filter = match level.to_ascii_lowercase().as_str() {
        "warning" => LevelFilter::WARN,
        "off" => LevelFilter::OFF,
        other => other.parse().map_err(|_| {
            let message = format!(
                "unknown log level {}: use off, error, warning, info, debug or trace",
                Quoted(level)
            );
            errors::raise(py, "InvalidArgument", message)
        })?,
    };
    // If another logger exists, perhaps from an earlier call, it stays.
    let _ = tracing_subscriber::fmt()
        .with_max_level(filter)
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    Ok(())
}

/// Longest text of one field. Longer texts come from other nodes or programs; the rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;

/// Writes one field of a log line. Some texts come from other nodes and programs. Escaping prevents them from starting
/// a new line or moving a terminal's cursor.
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

/// A field's value as tracing passes it: `Display` values as plain text, strings in quotes.
struct Value<'a>(&'a dyn fmt::Debug);

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes up to `left` bytes of a text with unprintable characters escaped. Fails if the text is longer.
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

/// Whether a character is printed as it is. Control characters, line separators and bidirectional controls are escaped.
fn is_printed(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}
