//! Formats an event as a line of JSON. Fields keep their types: numbers, booleans and texts.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

use super::text::{is_printed, write_bounded};

/// Prefix of the modules of a node.
pub(super) const CRATE: &str = "hoplite_node::";

/// One object per line: `time`, `level`, `module`, `message` and `fields`.
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let target = event.metadata().target();
        let module = target.strip_prefix(CRATE).unwrap_or(target);
        let module = module.split("::").next().unwrap_or(module);
        let level = event.metadata().level().as_str().to_lowercase();
        let line = format!(
            r#"{{"time":{},"level":{},"module":{},"message":{message},"fields":{}}}"#,
            Value::from(time),
            Value::from(level),
            Value::from(module),
            Value::from(fields.0)
        );
        // JSON permits characters that move a terminal's cursor. In valid JSON, they occur only within strings.
        for character in line.chars() {
            if is_printed(character) {
                writer.write_char(character)?;
            } else {
                write!(writer, "\\u{:04x}", character as u32)?;
            }
        }
        writeln!(writer)
    }
}

/// The fields of an event by name.
struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        self.0.insert(field.name().into(), value);
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Only a `Debug` implementation could fail; the text so far is kept.
        let _ = write_bounded(&mut text, value);
        self.insert(field, text.into());
    }
}
