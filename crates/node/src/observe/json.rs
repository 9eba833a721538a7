//! Writes reports as JSON, field by field. Does not know what they mean.

use std::fmt::Display;

use serde::{Serialize, Serializer};

/// A JSON object that grows, so that its length is known while a list is written.
#[derive(Debug, Default)]
pub(super) struct Json(Vec<u8>);

/// Keys and values that are written as an object.
pub(super) struct Map<I>(pub(super) I);

impl<K: Serialize, V: Serialize, I: Iterator<Item = (K, V)> + Clone> Serialize for Map<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

/// Serializes a value as its text.
pub(super) fn text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Serializes a value as its text, or null.
pub(super) fn maybe<T: Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// Serializes values as a list of their texts.
pub(super) fn texts<T: Display, S: Serializer>(
    values: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

/// Serializes nanoseconds as seconds.
pub(super) fn seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

impl Json {
    /// Writes a field.
    pub(super) fn field(&mut self, key: &str, value: impl Serialize) {
        self.key(key);
        self.value(&value);
    }

    /// Writes a field with a list of rows, until it has about `bytes`. Returns the number of rows.
    pub(super) fn list<T: Serialize>(
        &mut self,
        key: &str,
        rows: impl Iterator<Item = T>,
        bytes: usize,
    ) -> usize {
        self.key(key);
        let (full, mut written) = (self.0.len() + bytes, 0);
        self.0.push(b'[');
        for row in rows {
            if self.0.len() >= full {
                break;
            }
            if written > 0 {
                self.0.push(b',');
            }
            self.value(&row);
            written += 1;
        }
        self.0.push(b']');
        written
    }

    /// The text of the whole object.
    pub(super) fn into_text(mut self) -> String {
        self.0.push(b'}');
        String::from_utf8(self.0).unwrap_or_default()
    }

    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.value(&key);
        self.0.push(b':');
    }

    fn value(&mut self, value: &impl Serialize) {
        let written = serde_json::to_writer(&mut self.0, value);
        debug_assert!(written.is_ok(), "{written:?}");
    }
}
