//! Writes rows of JSON. Does not know what they mean.

use std::fmt::{self, Display, Write};

/// JSON text that grows.
#[derive(Debug, Default)]
pub(super) struct Json(String);

/// Escapes text inside quotation marks.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' | '\\' => {
                    self.0.push('\\');
                    self.0.push(character);
                }
                control if control < ' ' => write!(self.0, "\\u{:04x}", u32::from(control))?,
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

impl Json {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// Writes `inside` between braces.
    pub(super) fn object(&mut self, inside: impl FnOnce(&mut Self)) {
        self.open('{');
        inside(self);
        self.close('}');
    }

    /// Writes `inside` between brackets.
    pub(super) fn list(&mut self, inside: impl FnOnce(&mut Self)) {
        self.open('[');
        inside(self);
        self.close(']');
    }

    fn open(&mut self, bracket: char) {
        self.comma();
        self.0.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    fn comma(&mut self) {
        if !matches!(self.0.bytes().last(), None | Some(b'{' | b'[' | b':')) {
            self.0.push(',');
        }
    }

    /// Begins a field; its value follows.
    pub(super) fn key(&mut self, key: &str) -> &mut Self {
        self.comma();
        self.0.push('"');
        self.0.push_str(key);
        self.0.push_str("\":");
        self
    }

    /// Writes a value that is JSON already, such as a number.
    pub(super) fn raw(&mut self, value: &dyn Display) {
        self.comma();
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{value}");
    }

    /// Writes a text value.
    pub(super) fn quoted(&mut self, value: &dyn Display) {
        self.comma();
        self.0.push('"');
        let _ = write!(Escaped(&mut self.0), "{value}");
        self.0.push('"');
    }

    /// Writes a field with a text.
    pub(super) fn text(&mut self, key: &str, value: &dyn Display) {
        self.key(key).quoted(value);
    }

    /// Writes a field with a text, or null.
    pub(super) fn maybe(&mut self, key: &str, value: Option<&dyn Display>) {
        match value {
            Some(value) => self.text(key, value),
            None => self.key(key).raw(&"null"),
        }
    }

    /// Writes a field with a number.
    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key).raw(&value);
    }

    /// Writes a field with a boolean.
    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.key(key).raw(&value);
    }

    /// Writes a field with nanoseconds as seconds.
    pub(super) fn seconds(&mut self, key: &str, ns: u64) {
        self.key(key).raw(&format_args!("{:.9}", ns as f64 / 1e9));
    }

    /// Writes a field with seconds, to the microsecond.
    pub(super) fn time(&mut self, key: &str, seconds: f64) {
        self.key(key).raw(&format_args!("{seconds:.6}"));
    }

    /// Writes a field with a list of texts.
    pub(super) fn texts<T: Display>(&mut self, key: &str, values: &[T]) {
        self.key(key).list(|json| values.iter().for_each(|value| json.quoted(value)));
    }
}
