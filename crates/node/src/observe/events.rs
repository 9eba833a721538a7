//! The kinds of events, and how each is written.

use std::fmt::Display;

use hoplite_proto::{
    broadcast::Reason,
    id::{Instance, NodeId, ObjectId},
    message::FoldKey,
    meta::Op,
    reduce::{cost::DegreeReason, shape::Degree},
};

use super::json::Json;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Nothing,
    Object(ObjectId),
    Prefix(Box<str>),
}

impl Subject {
    pub(super) fn write(&self, json: &mut Json) {
        json.maybe(
            "ref",
            match self {
                Self::Nothing => None,
                Self::Object(id) => Some(id),
                Self::Prefix(prefix) => Some(prefix),
            },
        );
    }
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

    pub(super) fn write(self, json: &mut Json) {
        json.text("choice", &self.index().map_or("ordered", |index| CHOICES[index]));
        match self {
            Self::Located(reason) => json.text("reason", &reason),
            Self::Redirect => json.text("reason", &"the owner replaced its source"),
            Self::Ordered => json.text("reason", &"it produces this part"),
        }
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

/// The position of a fold: null for the calling node.
pub(super) fn write_position(json: &mut Json, position: u32) {
    let position = (position != FoldKey::RESULT).then_some(position);
    match position {
        Some(position) => json.number("position", position.into()),
        None => json.maybe("position", None),
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Put {
        id: ObjectId,
        bytes: u64,
        process: Process,
    },
    Create {
        id: ObjectId,
        bytes: u64,
        process: Process,
    },
    Seal {
        id: ObjectId,
    },
    Delete {
        id: ObjectId,
        process: Process,
    },
    ReduceBegin {
        result: ObjectId,
        count: u32,
        inputs: u32,
        op: Op,
        process: Process,
    },
    Wait {
        verb: &'static str,
        subject: Subject,
        process: Process,
    },
    Reply {
        verb: &'static str,
        subject: Subject,
        process: Process,
        ns: u64,
        error: Option<Box<str>>,
    },
    Source {
        id: ObjectId,
        source: NodeId,
        choice: Choice,
    },
    Redirect {
        id: ObjectId,
        before: NodeId,
        source: NodeId,
    },
    Locate {
        id: ObjectId,
        reader: NodeId,
        source: NodeId,
    },
    Fetch {
        id: ObjectId,
        instance: Instance,
        source: NodeId,
        bytes: u64,
        resumed: bool,
    },
    Fetched {
        id: ObjectId,
        instance: Instance,
        source: NodeId,
        bytes: u64,
        ns: u64,
    },
    FetchFailed {
        id: ObjectId,
        instance: Instance,
        source: NodeId,
        bytes: u64,
        received: u64,
        not_here: bool,
    },
    Serve {
        id: ObjectId,
        instance: Instance,
        reader: Option<NodeId>,
        relayed: bool,
    },
    Served {
        id: ObjectId,
        instance: Instance,
        ns: u64,
    },
    Evicted {
        copies: u64,
    },
    Spill {
        id: ObjectId,
        bytes: u64,
    },
    Spilled {
        id: ObjectId,
        ns: u64,
    },
    SpillFailed {
        id: ObjectId,
        why: Box<str>,
    },
    Unspill {
        id: ObjectId,
        bytes: u64,
    },
    Unspilled {
        id: ObjectId,
        ns: u64,
    },
    Degree {
        result: ObjectId,
        degree: Degree,
        reason: Box<DegreeReason>,
    },
    Ring {
        result: ObjectId,
        parts: u64,
    },
    Restart {
        result: ObjectId,
        epoch: u32,
        why: Box<str>,
    },
    Reduced {
        result: ObjectId,
        ns: u64,
        error: Option<Box<str>>,
    },
    Fold {
        result: ObjectId,
        epoch: u32,
        position: u32,
        children: Box<[NodeId]>,
        inputs: Box<[ObjectId]>,
    },
    Folded {
        result: ObjectId,
        epoch: u32,
        position: u32,
        ns: u64,
        error: Option<Box<str>>,
    },
    Member {
        node: NodeId,
        state: &'static str,
        why: Box<str>,
    },
    Corrupt {
        source: NodeId,
        id: Option<ObjectId>,
    },
    Rejected {
        node: NodeId,
        message: &'static str,
    },
    Limit {
        limit: &'static str,
        node: Option<NodeId>,
        process: Process,
    },
}

fn display<T: Display>(value: &Option<T>) -> Option<&dyn Display> {
    value.as_ref().map(|value| value as &dyn Display)
}

pub(super) fn write_process(json: &mut Json, process: Process) {
    match process {
        Some(pid) => json.number("process", pid.into()),
        None => json.maybe("process", None),
    }
}

impl What {
    /// Writes the fields.
    pub(super) fn write(&self, json: &mut Json) {
        let kind = |json: &mut Json, name: &str| json.text("kind", &name);
        let object = |json: &mut Json, name: &str, id: &ObjectId| {
            json.text("kind", &name);
            json.text("ref", id);
        };
        let reduce = |json: &mut Json, name: &str, result: &ObjectId| {
            json.text("kind", &name);
            json.text("result", result);
        };
        match self {
            Self::Put { id, bytes, process } => {
                object(json, "put", id);
                json.number("bytes", *bytes);
                write_process(json, *process);
            }
            Self::Create { id, bytes, process } => {
                object(json, "create", id);
                json.number("bytes", *bytes);
                write_process(json, *process);
            }
            Self::Seal { id } => object(json, "seal", id),
            Self::Delete { id, process } => {
                object(json, "delete", id);
                write_process(json, *process);
            }
            Self::ReduceBegin { result, count, inputs, op, process } => {
                reduce(json, "reduce_begin", result);
                json.number("count", (*count).into());
                json.number("inputs", (*inputs).into());
                json.text("op", &op.name());
                write_process(json, *process);
            }
            Self::Wait { verb, subject, process } => {
                kind(json, "wait");
                json.text("verb", verb);
                subject.write(json);
                write_process(json, *process);
            }
            Self::Reply { verb, subject, process, ns, error } => {
                kind(json, "reply");
                json.text("verb", verb);
                subject.write(json);
                write_process(json, *process);
                json.seconds("seconds", *ns);
                json.maybe("error", display(error));
            }
            Self::Source { id, source, choice } => {
                object(json, "source", id);
                json.text("source", source);
                choice.write(json);
            }
            Self::Redirect { id, before, source } => {
                object(json, "redirect", id);
                json.text("before", before);
                json.text("source", source);
            }
            Self::Locate { id, reader, source } => {
                object(json, "locate", id);
                json.text("reader", reader);
                json.text("source", source);
            }
            Self::Fetch { id, instance, source, bytes, resumed } => {
                object(json, "fetch", id);
                json.text("instance", instance);
                json.text("source", source);
                json.number("bytes", *bytes);
                json.flag("resumed", *resumed);
            }
            Self::Fetched { id, instance, source, bytes, ns } => {
                object(json, "fetched", id);
                json.text("instance", instance);
                json.text("source", source);
                json.number("bytes", *bytes);
                json.seconds("seconds", *ns);
            }
            Self::FetchFailed { id, instance, source, bytes, received, not_here } => {
                object(json, "fetch_failed", id);
                json.text("instance", instance);
                json.text("source", source);
                json.number("bytes", *bytes);
                json.number("received", *received);
                let why = if *not_here { "it has no such copy" } else { "the transfer broke" };
                json.text("why", &why);
            }
            Self::Serve { id, instance, reader, relayed } => {
                object(json, "serve", id);
                json.text("instance", instance);
                json.maybe("reader", display(reader));
                json.flag("relayed", *relayed);
            }
            Self::Served { id, instance, ns } => {
                object(json, "served", id);
                json.text("instance", instance);
                json.seconds("seconds", *ns);
            }
            Self::Evicted { copies } => {
                kind(json, "evicted");
                json.number("copies", *copies);
            }
            Self::Spill { id, bytes } => {
                object(json, "spill", id);
                json.number("bytes", *bytes);
            }
            Self::Unspill { id, bytes } => {
                object(json, "unspill", id);
                json.number("bytes", *bytes);
            }
            Self::Spilled { id, ns } => {
                object(json, "spilled", id);
                json.seconds("seconds", *ns);
            }
            Self::Unspilled { id, ns } => {
                object(json, "unspilled", id);
                json.seconds("seconds", *ns);
            }
            Self::SpillFailed { id, why } => {
                object(json, "spill_failed", id);
                json.text("why", why);
            }
            Self::Degree { result, degree, reason } => {
                reduce(json, "degree", result);
                json.text("degree", &degree_name(*degree));
                json.text("reason", reason);
            }
            Self::Ring { result, parts } => {
                reduce(json, "ring", result);
                json.number("parts", *parts);
            }
            Self::Restart { result, epoch, why } => {
                reduce(json, "restart", result);
                json.number("epoch", (*epoch).into());
                json.text("why", why);
            }
            Self::Reduced { result, ns, error } => {
                reduce(json, "reduced", result);
                json.seconds("seconds", *ns);
                json.maybe("error", display(error));
            }
            Self::Fold { result, epoch, position, children, inputs } => {
                reduce(json, "fold", result);
                json.number("epoch", (*epoch).into());
                write_position(json, *position);
                json.maybe("parent", None);
                json.texts("children", children);
                json.texts("inputs", inputs);
            }
            Self::Folded { result, epoch, position, ns, error } => {
                reduce(json, "folded", result);
                json.number("epoch", (*epoch).into());
                write_position(json, *position);
                json.seconds("seconds", *ns);
                json.maybe("error", display(error));
            }
            Self::Member { node, state, why } => {
                kind(json, "member");
                json.text("node", node);
                json.text("state", state);
                json.text("why", why);
            }
            Self::Corrupt { source, id } => {
                kind(json, "corrupt");
                json.text("source", source);
                json.maybe("ref", display(id));
            }
            Self::Rejected { node, message } => {
                kind(json, "rejected");
                json.text("node", node);
                json.text("message", message);
            }
            Self::Limit { limit, node, process } => {
                kind(json, "limit");
                json.text("limit", limit);
                json.maybe("node", display(node));
                write_process(json, *process);
            }
        }
    }
}
