//! The kinds of events, with the fields of their rows, and the ring of recent ones.

use std::collections::VecDeque;

use hoplite_proto::{
    broadcast::Reason,
    id::{Instance, NodeId, ObjectId},
    message::FoldKey,
    node::Node as Machine,
    reduce::{cost::DegreeReason, shape::Degree},
    time::Instant,
};
use serde::{Serialize, Serializer};

use super::json::{maybe, seconds, text, texts};

/// The PID of a client's process, if known.
pub(super) type Process = Option<u32>;

/// Longest text of an event in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// The beginning of a text, which may be as long as a message.
pub(super) fn beginning(text: &str) -> Box<str> {
    (0..=text.len().min(TEXT_BYTES_MAX))
        .rev()
        .find_map(|end| text.get(..end))
        .unwrap_or(text)
        .into()
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Subject {
    Nothing,
    Object(#[serde(serialize_with = "text")] ObjectId),
    Prefix(Box<str>),
}

/// Why a source was chosen for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Located(Reason),
    /// The owner replaced an earlier source.
    Redirect,
    /// This node was ordered to receive from it.
    Ordered,
}

/// The names of choices.
pub(super) const CHOICES: [&str; 6] =
    ["only_holder", "idle_complete", "idle_relay", "least_loaded", "insert", "redirect"];

impl Choice {
    /// Its index in [`CHOICES`].
    pub(super) const fn index(self) -> Option<usize> {
        Some(match self {
            Self::Located(Reason::OnlyHolder) => 0,
            Self::Located(Reason::IdleComplete) => 1,
            Self::Located(Reason::IdleRelay { .. }) => 2,
            Self::Located(Reason::LeastLoaded { .. }) => 3,
            Self::Located(Reason::Insert { .. }) => 4,
            Self::Redirect => 5,
            Self::Ordered => return None,
        })
    }
}

impl Serialize for Choice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row {
            choice: &'static str,
            reason: String,
        }
        let choice = self.index().map_or("ordered", |index| CHOICES[index]);
        let reason = match self {
            Self::Located(reason) => reason.to_string(),
            Self::Redirect => "the owner replaced its source".into(),
            Self::Ordered => "it produces this part".into(),
        };
        Row { choice, reason }.serialize(serializer)
    }
}

/// The name of a degree.
pub(super) const fn degree_name(degree: Degree) -> &'static str {
    match degree {
        Degree::Chain => "chain",
        Degree::Binary => "tree 2",
        Degree::Star => "star",
    }
}

/// The fields of a fold that begins or runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct FoldRow {
    #[serde(serialize_with = "text")]
    result: ObjectId,
    epoch: u32,
    #[serde(serialize_with = "position_in_tree")]
    position: u32,
    #[serde(serialize_with = "texts")]
    children: Box<[NodeId]>,
    #[serde(serialize_with = "texts")]
    inputs: Box<[ObjectId]>,
}

/// Inputs and children of one fold that are shown; a reduce may have 65 536.
const INPUTS_MAX: usize = 32;
const CHILDREN_MAX: usize = 256;

impl FoldRow {
    pub(super) fn of(
        result: &ObjectId,
        key: &FoldKey,
        children: &[(NodeId, u32)],
        inputs: &[Instance],
        machine: &Machine,
    ) -> Self {
        let FoldKey { epoch, position, .. } = *key;
        let children = children.iter().take(CHILDREN_MAX).map(|(node, _)| *node).collect();
        let inputs = inputs.iter().take(INPUTS_MAX);
        let inputs = inputs.filter_map(|input| id_of(*input, machine)).collect();
        Self { result: result.clone(), epoch, position, children, inputs }
    }
}

/// The object of a copy.
pub(super) fn id_of(instance: Instance, machine: &Machine) -> Option<ObjectId> {
    machine.table().get(instance).map(|copy| copy.id.clone())
}

/// Serializes the position of a fold: null for the calling node.
fn position_in_tree<S: Serializer>(position: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    (*position != FoldKey::RESULT).then_some(*position).serialize(serializer)
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum What {
    Put {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        bytes: u64,
        process: Process,
    },
    Create {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        bytes: u64,
        process: Process,
    },
    Seal {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
    },
    Delete {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        process: Process,
    },
    ReduceBegin {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        count: u32,
        inputs: u32,
        op: &'static str,
        process: Process,
    },
    Wait {
        verb: &'static str,
        #[serde(rename = "ref")]
        subject: Subject,
        process: Process,
    },
    Reply {
        verb: &'static str,
        #[serde(rename = "ref")]
        subject: Subject,
        process: Process,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
        error: Option<Box<str>>,
    },
    Source {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        source: NodeId,
        #[serde(flatten)]
        choice: Choice,
    },
    Redirect {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        before: NodeId,
        #[serde(serialize_with = "text")]
        source: NodeId,
    },
    Locate {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        reader: NodeId,
        #[serde(serialize_with = "text")]
        source: NodeId,
    },
    Fetch {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        instance: Instance,
        #[serde(serialize_with = "text")]
        source: NodeId,
        bytes: u64,
        resumed: bool,
    },
    Fetched {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        instance: Instance,
        #[serde(serialize_with = "text")]
        source: NodeId,
        bytes: u64,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
    },
    FetchFailed {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        instance: Instance,
        #[serde(serialize_with = "text")]
        source: NodeId,
        bytes: u64,
        received: u64,
        why: &'static str,
    },
    Serve {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        instance: Instance,
        #[serde(serialize_with = "maybe")]
        reader: Option<NodeId>,
        relayed: bool,
    },
    Served {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(serialize_with = "text")]
        instance: Instance,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
    },
    Evicted {
        copies: u64,
    },
    Spill {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        bytes: u64,
    },
    Spilled {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
    },
    SpillFailed {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        why: Box<str>,
    },
    Unspill {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        bytes: u64,
    },
    Unspilled {
        #[serde(rename = "ref", serialize_with = "text")]
        id: ObjectId,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
    },
    Degree {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        degree: &'static str,
        #[serde(serialize_with = "text")]
        reason: Box<DegreeReason>,
    },
    Ring {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        parts: u64,
    },
    Restart {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        epoch: u32,
        why: Box<str>,
    },
    Reduced {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
        error: Option<Box<str>>,
    },
    Fold(FoldRow),
    Folded {
        #[serde(serialize_with = "text")]
        result: ObjectId,
        epoch: u32,
        #[serde(serialize_with = "position_in_tree")]
        position: u32,
        #[serde(rename = "seconds", serialize_with = "seconds")]
        ns: u64,
        error: Option<Box<str>>,
    },
    Member {
        #[serde(serialize_with = "text")]
        node: NodeId,
        state: &'static str,
        why: Box<str>,
    },
    Corrupt {
        #[serde(serialize_with = "text")]
        source: NodeId,
        #[serde(rename = "ref", serialize_with = "maybe")]
        id: Option<ObjectId>,
    },
    Rejected {
        #[serde(serialize_with = "text")]
        node: NodeId,
        message: &'static str,
    },
    Limit {
        limit: &'static str,
        #[serde(serialize_with = "maybe")]
        node: Option<NodeId>,
        process: Process,
    },
}

/// Events kept: those of several minutes on a busy node. Each takes 90 bytes.
pub(super) const EVENTS_MAX: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };

/// The most recent events, each with a serial number.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: VecDeque<(Instant, What)>,
    /// The number that the next event gets.
    next: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Instant, what: What) {
        if self.kept.len() >= EVENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((at, what));
        self.next += 1;
    }

    /// The number of the oldest event.
    pub(super) fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// The events from number `after` on, oldest first, each with its number.
    pub(super) fn since(&self, after: u64) -> impl Iterator<Item = (u64, &(Instant, What))> {
        let first = self.first();
        let skip = after.saturating_sub(first).min(self.kept.len() as u64);
        (first + skip..).zip(self.kept.range(skip as usize..))
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> impl Iterator<Item = &What> {
        self.kept.iter().map(|(_, what)| what)
    }
}
