//! Errors of client calls. Each message names the object, the nodes and the numbers involved.

use alloc::{boxed::Box, format, string::String, vec::Vec};
use core::fmt;

use serde::{Deserialize, Serialize};

pub use crate::quoted::Quoted;
use crate::{
    id::{NodeId, ObjectId},
    meta::{Dtype, Kind, Meta, Op},
    table::COPY_OVERHEAD_BYTES,
};

/// Why a call failed. The documentation of each variant states what the caller can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call timed out. Use a longer timeout, or read in `state` why the result is late.
    #[error("timed out after {} waiting for {what}: {state}", Seconds(*waited_ns))]
    Timeout {
        /// What the call waited for.
        what: String,
        /// How long, in nanoseconds: the timeout of this call, if it has its own.
        waited_ns: u64,
        /// The state of the operation when the time was over.
        state: String,
    },
    /// The last copy is lost. Put the object again, under a new ref or the same name.
    #[error("object {id} is lost: {detail}")]
    ObjectLost {
        /// The object.
        id: ObjectId,
        /// Which nodes held it last.
        detail: String,
    },
    /// A client deleted the object.
    #[error("object {id} was deleted")]
    ObjectDeleted {
        /// The object.
        id: ObjectId,
    },
    /// The name belongs to an existing object, or a client or a reduce has reserved it. Delete that
    /// first, or choose another name.
    #[error(
        "the name {id} is taken by an object on node {holder}, or reserved by a client or a \
         reduce there: delete it first or choose another name"
    )]
    NameTaken {
        /// The name.
        id: ObjectId,
        /// The node where the object was put, or whose client or reduce reserved the name.
        holder: NodeId,
    },
    /// Pinned bytes leave no capacity. Delete objects, drop views, or give the node a larger
    /// capacity.
    #[error(
        "the store, with a capacity of {capacity} bytes, can't fit {needed} bytes: {}",
        remedy(*needed, *capacity, *pinned, largest)
    )]
    StoreFull {
        /// Bytes requested.
        needed: u64,
        /// Capacity of the store in bytes.
        capacity: u64,
        /// Bytes that can't be evicted.
        pinned: u64,
        /// The largest copies that can't be evicted, as text.
        largest: String,
    },
    /// The host, a control group or the store has no memory for the object, although the capacity
    /// would allow it.
    #[error("can't allocate {needed} bytes of shared memory: {detail}")]
    NoMemory {
        /// Bytes requested.
        needed: u64,
        /// What is exhausted, and what uses it.
        detail: String,
    },
    /// Two inputs of one reduce differ in dtype or shape.
    #[error(
        "inputs of a reduce must have the same dtype and shape: {first} is {} but {other} is {}",
        .metas.0,
        .metas.1
    )]
    ShapeMismatch {
        /// The input that arrived first.
        first: ObjectId,
        /// The input that differs from it.
        other: ObjectId,
        /// Metadata of both.
        metas: Box<(Meta, Meta)>,
    },
    /// The input is not an array, or the operation is not defined for its elements.
    #[error("a reduce by {op} can't fold {id}, which is {meta}: {advice}")]
    Unreducible {
        /// The input.
        id: ObjectId,
        /// Its metadata.
        meta: Box<Meta>,
        /// The operation.
        op: Op,
        /// What to do instead.
        advice: String,
    },
    /// Fewer than `count` inputs can still arrive.
    #[error(
        "a reduce that needs {count} inputs can't complete: only {possible} can still arrive. \
         Lost or deleted: {}",
        List(gone)
    )]
    TooFewInputs {
        /// The `count` of the reduce.
        count: u64,
        /// How many inputs have arrived or can still arrive.
        possible: u64,
        /// Some of the inputs that can no longer arrive.
        gone: Vec<ObjectId>,
    },
    /// An argument is not valid.
    #[error("{0}")]
    InvalidArgument(String),
    /// The bytes from every holder fail the check against the creator's digest. Put the object
    /// again.
    #[error(
        "object {id} is corrupt: the bytes from {} do not match the digest that its creator \
         announced, and no other node has a copy; delete it and put it again",
        Nodes(senders)
    )]
    ObjectCorrupt {
        /// The object.
        id: ObjectId,
        /// The nodes that sent corrupt bytes.
        senders: Vec<NodeId>,
    },
    /// The node is closed or its process has ended. Attach to another node, or start it again.
    #[error("node down: {0}")]
    NodeDown(String),
    /// The client's capability does not allow the request, has expired, or was not issued by this
    /// cluster.
    #[error("{0}")]
    NotAllowed(String),
}

impl Error {
    /// Returns this error with each text cut to `bytes`, for long-term storage.
    pub(crate) fn shortened(mut self, bytes: usize) -> Self {
        match &mut self {
            Self::Timeout { what, state, .. } => {
                shorten(what, bytes);
                shorten(state, bytes);
            }
            Self::ObjectLost { detail: text, .. }
            | Self::NoMemory { detail: text, .. }
            | Self::StoreFull { largest: text, .. }
            | Self::Unreducible { advice: text, .. }
            | Self::InvalidArgument(text)
            | Self::NodeDown(text)
            | Self::NotAllowed(text) => shorten(text, bytes),
            Self::ObjectCorrupt { senders, .. } => senders.truncate(10),
            // The message of `TooFewInputs` names at most this many.
            Self::TooFewInputs { gone, .. } => gone.truncate(10),
            Self::ObjectDeleted { .. } | Self::NameTaken { .. } | Self::ShapeMismatch { .. } => {}
        }
        self
    }

    /// An [`Error::Unreducible`] with advice for the input.
    pub fn unreducible(id: ObjectId, meta: Meta, op: Op) -> Self {
        let advice = match meta.kind {
            Kind::Bytes => "put a numeric array instead (NumPy, torch or any buffer)",
            Kind::Array { dtype, .. } => advice(op, dtype),
        };
        Self::Unreducible { id, meta: Box::new(meta), op, advice: advice.into() }
    }
}

fn shorten(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        text.truncate(end);
        text.push_str("...");
        text.shrink_to_fit();
    }
}

/// Whether an operation is defined for an element type.
///
/// A mean of integers or of times would have to round. A sum of bool could be a count or an "or",
/// so it is not defined. Complex numbers have no order. A sum of dates is not a date. A fold of
/// narrow numbers would overflow, or round away nearly all of its inputs.
pub const fn is_reducible(op: Op, dtype: Dtype) -> bool {
    match dtype {
        Dtype::Bool => matches!(op, Op::Any | Op::All),
        Dtype::Complex64 | Dtype::Complex128 => matches!(op, Op::Sum | Op::Prod | Op::Mean),
        Dtype::Datetime64(_) => matches!(op, Op::Min | Op::Max),
        Dtype::Timedelta64(_) => matches!(op, Op::Sum | Op::Min | Op::Max),
        Dtype::Narrow(_) => false,
        _ if matches!(op, Op::Mean) => dtype.is_float(),
        _ => !matches!(op, Op::Any | Op::All),
    }
}

/// What to use instead of an operation that is not defined for an element type.
const fn advice(op: Op, dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bool => {
            "use op=\"any\" or op=\"all\", or put it as uint8, int64 or a float type for the \
             other operations"
        }
        Dtype::Complex64 | Dtype::Complex128 => {
            "complex numbers have no order and no truth value: use op=\"sum\", \"prod\" or \"mean\""
        }
        Dtype::Datetime64(_) => {
            "dates have a minimum and a maximum only: use op=\"min\" or op=\"max\", or put \
             differences of dates"
        }
        Dtype::Timedelta64(_) => "use op=\"sum\", \"min\" or \"max\"; for a mean, divide the sum",
        Dtype::Narrow(_) => {
            "no operation is defined for it, because in so few bits a fold overflows or loses \
             nearly all precision after a few inputs; convert the inputs to bfloat16, float32 or \
             int32 first"
        }
        _ if matches!(op, Op::Any | Op::All) => {
            "any and all fold arrays of bool: put array != 0 instead, or use op=\"max\" or \"min\""
        }
        _ => "use op=\"sum\" and divide, or convert to a float dtype",
    }
}

/// Nanoseconds, displayed in seconds with up to three decimals.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.saturating_add(500_000) / 1_000_000;
        let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
        match (rest % 10, rest % 100, rest) {
            (_, _, 0) => write!(f, "{seconds} s"),
            (_, 0, _) => write!(f, "{seconds}.{} s", rest / 100),
            (0, ..) => write!(f, "{seconds}.{:02} s", rest / 10),
            _ => write!(f, "{seconds}.{rest:03} s"),
        }
    }
}

/// Explains why a store has no capacity for `needed` bytes, and what helps.
fn remedy(needed: u64, capacity: u64, pinned: u64, largest: &str) -> String {
    if needed.saturating_add(COPY_OVERHEAD_BYTES) > capacity {
        return "they do not fit even into an empty store; give the node a larger capacity".into();
    }
    format!(
        "{pinned} bytes are pinned by puts and readers; {largest}; delete objects, drop views of \
         them, or give the node a larger capacity"
    )
}

/// A list of nodes, as it appears in a sentence.
struct Nodes<'a>(&'a [NodeId]);

impl fmt::Display for Nodes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            write!(f, "{}{node}", if index == 0 { "node " } else { ", node " })?;
        }
        Ok(())
    }
}

/// The first ten of a list, and the number of the others.
pub struct List<'a>(pub &'a [ObjectId]);

impl fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Ten names fit into a line or two of a log; a reduce may have thousands of inputs.
        for (index, id) in self.0.iter().take(10).enumerate() {
            write!(f, "{}{id}", if index == 0 { "" } else { ", " })?;
        }
        if self.0.len() > 10 {
            write!(f, " and {} more", self.0.len() - 10)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;
    use crate::unit::Unit;

    #[test]
    fn each_element_type_has_its_operations() {
        let ops = |dtype| {
            Op::ALL.iter().copied().filter(move |op| is_reducible(*op, dtype)).collect::<Vec<_>>()
        };
        for dtype in Dtype::all() {
            let expected = match dtype {
                Dtype::Bool => vec![Op::Any, Op::All],
                Dtype::Complex64 | Dtype::Complex128 => vec![Op::Sum, Op::Prod, Op::Mean],
                Dtype::Datetime64(_) => vec![Op::Min, Op::Max],
                Dtype::Timedelta64(_) => vec![Op::Sum, Op::Min, Op::Max],
                Dtype::Narrow(_) => vec![],
                float if float.is_float() => vec![Op::Sum, Op::Min, Op::Max, Op::Prod, Op::Mean],
                _ => vec![Op::Sum, Op::Min, Op::Max, Op::Prod],
            };
            assert_eq!(ops(dtype), expected, "{dtype}");
        }
    }

    #[test]
    fn advice_names_an_operation_that_is_defined() {
        let is_narrow = |dtype: &Dtype| matches!(dtype, Dtype::Narrow(_));
        for dtype in Dtype::all().filter(|dtype| !is_narrow(dtype)) {
            for op in Op::ALL.iter().copied().filter(|op| !is_reducible(*op, dtype)) {
                let text = advice(op, dtype);
                let defined = |op: &Op| is_reducible(*op, dtype) && text.contains(&op.to_string());
                assert!(Op::ALL.iter().any(defined), "{op} of {dtype}: {text}");
            }
        }
    }

    #[test]
    fn advice_for_a_narrow_type_gives_the_reason_and_a_type_that_can_be_folded() {
        let meta = Meta::array("float8_e5m2".parse().unwrap(), vec![3]).unwrap();
        let text = Error::unreducible("a".parse().unwrap(), meta, Op::Sum).to_string();
        assert!(text.contains("which is float8_e5m2[3]: no operation"), "{text}");
        assert!(text.contains("overflows") && text.contains("convert"), "{text}");
        for dtype in ["bfloat16", "float32", "int32"] {
            assert!(
                text.contains(dtype) && is_reducible(Op::Sum, dtype.parse().unwrap()),
                "{text}"
            );
        }
    }

    #[test]
    fn an_object_larger_than_the_store_gets_its_own_advice() {
        let largest = || "the largest is a/1".into();
        let full = |needed| {
            Error::StoreFull { needed, capacity: 1000, pinned: 800, largest: largest() }.to_string()
        };
        for (needed, helps) in [(300, true), (744, true), (745, false), (u64::MAX, false)] {
            assert_eq!(full(needed).contains("800 bytes are pinned"), helps, "{}", full(needed));
            assert_eq!(full(needed).contains("delete objects"), helps, "{}", full(needed));
            assert!(full(needed).contains("a larger capacity"), "{}", full(needed));
        }
    }

    #[test]
    fn a_timeout_is_displayed_as_it_was_given() {
        let written = |waited_ns| Seconds(waited_ns).to_string();
        for (waited_ns, expected) in [
            (0, "0 s"),
            (200_000_000, "0.2 s"),
            (50_000_000, "0.05 s"),
            (1_234_000_000, "1.234 s"),
            (2_100_000_000, "2.1 s"),
            (2_010_000_000, "2.01 s"),
            (5_000_000_000, "5 s"),
            (4_999_999_800, "5 s"),
            (60_000_000_000, "60 s"),
        ] {
            assert_eq!(written(waited_ns), expected);
        }
    }

    #[test]
    fn stored_errors_are_shortened() {
        let id: ObjectId = "a".parse().unwrap();
        let lost = |detail: &str| Error::ObjectLost { id: id.clone(), detail: detail.into() };
        assert_eq!(lost("gone").shortened(4), lost("gone"));
        assert_eq!(lost("\u{e9}\u{e9}\u{e9}").shortened(5), lost("\u{e9}\u{e9}..."));
    }

    #[test]
    fn a_shape_mismatch_names_both_units() {
        let times = |unit| Meta::array(Dtype::Datetime64(unit), vec![3]).unwrap();
        let microseconds = "[25us]".parse().unwrap();
        let error = Error::ShapeMismatch {
            first: "a".parse().unwrap(),
            other: "b".parse().unwrap(),
            metas: Box::new((times(Unit::NANOSECONDS), times(microseconds))),
        };
        let text = error.to_string();
        assert!(text.contains("datetime64[ns]") && text.contains("datetime64[25us]"), "{text}");
    }
}
