//! Bounds and escapes texts of the log. Some come from other nodes and programs.

use std::fmt::{self, Write};

use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// Longest text of one field. The rest is cut off.
const TEXT_BYTES_MAX: usize = 1024;

/// Writes one field of a line of text. Escaping prevents it from starting a new line or moving a terminal's cursor.
pub(super) fn write_field(
    to: &mut Writer<'_>,
    field: &Field,
    value: &dyn fmt::Debug,
) -> fmt::Result {
    if field.name() != "message" {
        write!(to, "{}=", field.name())?;
    }
    write_bounded(&mut Escaped(to), value)
}

/// Writes the first [`TEXT_BYTES_MAX`] bytes of a value, and "..." if there are more. tracing passes `Display` values as
/// plain text, and strings in quotes.
pub(super) fn write_bounded(to: &mut dyn Write, value: &dyn fmt::Debug) -> fmt::Result {
    let mut bounded = Bounded { to, left: TEXT_BYTES_MAX };
    match write!(bounded, "{}", Shown(value)) {
        Err(fmt::Error) if bounded.left == 0 => to.write_str("..."),
        written => written,
    }
}

/// A value as tracing passes it.
struct Shown<'a>(&'a dyn fmt::Debug);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a character is printed as it is. Control characters, line separators and bidirectional controls are escaped.
pub(super) fn is_printed(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Writes up to `left` bytes of a text. Fails if the text is longer.
struct Bounded<'a> {
    to: &'a mut dyn Write,
    left: usize,
}

impl Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.left = self.left.saturating_sub(character.len_utf8());
            if self.left == 0 {
                return Err(fmt::Error);
            }
            self.to.write_char(character)?;
        }
        Ok(())
    }
}

/// Escapes the unprintable characters of a text.
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if is_printed(character) {
                self.0.write_char(character)?;
            } else {
                write!(self.0, "{}", character.escape_unicode())?;
            }
        }
        Ok(())
    }
}
