//! Writes one line per event and per action of a node, in fixed columns:
//!
//! ```text
//! time          node  what   words
//! 0.004217s     n3    event  Message { from: n1, message: Waiting { id: "group0/x1" } }
//! ```

use std::{
    collections::hash_map::DefaultHasher,
    fmt,
    hash::{Hash, Hasher},
};

use hoplite_proto::{id::NodeId, time::Instant};

use crate::verdict::Record;

/// Output of a trace.
#[derive(Debug)]
pub(crate) enum Trace {
    Off,
    Print,
    /// Hashes all lines into one number, to compare two runs.
    Hash(DefaultHasher),
}

impl Trace {
    pub(crate) fn of(record: Record) -> Self {
        match record {
            Record::Nothing => Self::Off,
            Record::Print => Self::Print,
            Record::Hash => Self::Hash(DefaultHasher::new()),
        }
    }

    pub(crate) fn line(
        &mut self,
        now: Instant,
        node: Option<NodeId>,
        what: &str,
        words: impl FnOnce() -> String,
    ) {
        if matches!(self, Self::Off) {
            return;
        }
        let node = node.map_or_else(|| "-".to_string(), |node| format!("{node:?}"));
        let line = Line { now, node, what, words: words() };
        match self {
            Self::Off => {}
            Self::Print => println!("{line}"),
            Self::Hash(hasher) => line.to_string().hash(hasher),
        }
    }

    /// The hash of all lines.
    pub(crate) fn hash(&self) -> u64 {
        match self {
            Self::Hash(hasher) => hasher.finish(),
            Self::Off | Self::Print => 0,
        }
    }
}

struct Line<'a> {
    now: Instant,
    node: String,
    what: &'a str,
    words: String,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { now, node, what, words } = self;
        write!(f, "{:<13} {node:<5} {what:<6} {words}", now.to_string())
    }
}
