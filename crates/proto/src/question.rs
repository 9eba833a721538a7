//! Questions of a node to the owners of an object, or to one member, and their answers.
//!
//! A node numbers its questions, and each answer repeats the number. A member has at most one open
//! question of each number: one that arrives again replaces the earlier one.
//!
//! ```text
//!   Ask --> Answer                          the question is closed
//!   Ask --> Pending, Found --> ... Answer   the owner keeps it open until the answer that closes it, or until Cancel
//! ```

use alloc::{boxed::Box, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId},
    inline::Inline,
    inspection::Inspection,
    lifetime::Lifetime,
    meta::Meta,
};

/// A question to the owners of an object, or to one member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum Question {
    /// Whether the object exists: the owner answers now, and again when that changes.
    Watch {
        /// The object.
        id: ObjectId,
        /// Whether the node has seen that the object exists. Only then do deletions apply to it.
        seen: bool,
    },
    /// The holders of an object, once they differ from `known`.
    Locations {
        /// The object.
        id: ObjectId,
        /// The holders that the node already has; `None` for an answer at once.
        known: Option<Vec<Holding>>,
    },
    /// The newest name below a prefix that is newer than `after`, once there is one.
    Latest {
        /// The text before the number, with its `/`.
        prefix: Name,
        /// Ignore names up to this number; `None` accepts any.
        after: Option<u64>,
    },
    /// The names older than `name`, except the newest `retain - 1` of them.
    OlderVersions {
        /// A name that ends in a number.
        name: Name,
        /// Number of names to retain, including `name`.
        retain: u64,
    },
    /// To both owners: deletes all copies. The answer of the primary owner counts.
    Delete {
        /// The object.
        id: ObjectId,
        /// Whether the object is deleted because newer versions of the name exist.
        pruned: bool,
    },
    /// To any member: the objects whose refs begin with `prefix` and whose primary owner is the
    /// receiver.
    List {
        /// Prefix of the refs; the empty text matches all.
        prefix: String,
        /// Ids up to this one are on earlier pages.
        after: Option<ObjectId>,
    },
    /// To any member: a report about what it does, or its metrics.
    Inspect(Inspection),
}

/// An answer to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum Answer {
    /// There is no answer yet. The owner keeps the question open.
    Pending,
    /// To [`Question::Watch`]: the state of an existing object. The owner keeps the question open.
    Found(Box<Found>),
    /// To [`Question::Locations`]: all holders, sorted by node.
    Locations(Vec<Holding>),
    /// To [`Question::Latest`]: the newest name.
    Latest(Name),
    /// To [`Question::OlderVersions`]: names of existing objects, oldest first.
    OlderVersions(Vec<Name>),
    /// To [`Question::Delete`]: no holder serves the object any more.
    Deleted,
    /// To [`Question::List`]: one page, at most [`crate::limits::LISTED_MAX`] rows.
    List {
        /// Sorted by id. May be empty although another page follows.
        rows: Vec<Listed>,
        /// The id after which the next page begins; `None` on the last page.
        next: Option<ObjectId>,
    },
    /// To [`Question::Inspect`]: the report, at most [`crate::limits::REPORT_BYTES_MAX`], as JSON.
    Report(String),
    /// There will be no other answer: the object can't appear, or the member is gone.
    Gone(Error),
}

impl Question {
    /// The object whose owners get the question; `None` for a question to one member.
    pub fn subject(&self) -> Option<ObjectId> {
        match self {
            Self::Watch { id, .. } | Self::Locations { id, .. } | Self::Delete { id, .. } => {
                Some(id.clone())
            }
            // All names below a prefix have the owners of the prefix.
            Self::Latest { prefix: name, .. } | Self::OlderVersions { name, .. } => {
                Some(ObjectId::Named(name.clone()))
            }
            Self::List { .. } | Self::Inspect(_) => None,
        }
    }

    /// Whether a member may keep the question open, so that it gets a cancellation.
    pub(crate) const fn is_kept(&self) -> bool {
        matches!(self, Self::Watch { .. } | Self::Locations { .. } | Self::Latest { .. })
    }

    /// Whether this is an answer to the question.
    pub(crate) const fn takes(&self, answer: &Answer) -> bool {
        match answer {
            Answer::Pending => self.is_kept(),
            Answer::Found(_) => matches!(self, Self::Watch { .. }),
            Answer::Locations(_) => matches!(self, Self::Locations { .. }),
            Answer::Latest(_) => matches!(self, Self::Latest { .. }),
            Answer::OlderVersions(_) => matches!(self, Self::OlderVersions { .. }),
            Answer::Deleted => matches!(self, Self::Delete { .. }),
            Answer::List { .. } => matches!(self, Self::List { .. }),
            Answer::Report(_) => matches!(self, Self::Inspect(_)),
            Answer::Gone(_) => true,
        }
    }

    /// Whether an owner replies at once: a later reply shows that it is unresponsive, or cannot be
    /// reached.
    pub(crate) const fn expects_reply(&self) -> bool {
        !matches!(self, Self::Delete { .. } | Self::List { .. } | Self::Inspect(_))
    }
}

impl Question {
    /// The error of a question to a member that is gone.
    pub(crate) fn member_gone(&self, node: NodeId) -> Error {
        Error::NodeDown(match self {
            Self::List { .. } => format!(
                "node {node} is not a member any more: list the objects again from the start"
            ),
            _ => format!("node {node} is not a member: status() lists the members"),
        })
    }
}

impl Answer {
    /// Whether an owner may send it in reply to a question that expects a reply
    /// ([`Question::expects_reply`]).
    pub(crate) const fn is_reply(&self) -> bool {
        !matches!(self, Self::Deleted | Self::List { .. } | Self::Report(_))
    }

    /// Whether the owner keeps the question open.
    pub const fn keeps_open(&self) -> bool {
        matches!(self, Self::Pending | Self::Found(_))
    }
}

/// An existing object in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The object.
    pub id: ObjectId,
    /// Its metadata.
    pub meta: Meta,
    /// Number of complete copies.
    pub complete: u32,
    /// Number of partial copies.
    pub partial: u32,
    /// Nanoseconds since its owner first received an announcement of it.
    pub age_ns: u64,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}

/// A holder of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holding {
    /// The node.
    pub node: NodeId,
    /// Whether its copy is complete.
    pub complete: bool,
}

/// State of an object that a node watches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The instance.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// A holder; the watcher itself if it has a copy.
    pub holder: NodeId,
    /// The bytes of an inline object.
    pub inline: Option<Inline>,
    /// Whether any copy is complete. If not, the owner reports again once one is.
    pub complete: bool,
}
