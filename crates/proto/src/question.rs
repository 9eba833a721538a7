//! Questions of a node to the owners of an object, or to one member, and their answers.
//!
//! A node numbers its questions, and each answer repeats the number. A member has at most one open
//! question of each number: one that arrives again replaces the earlier one.
//!
//! ```text
//!   Ask --> Answer                          the question is closed
//!   Ask --> Pending, Found --> ... Answer   the owner keeps it open until the answer that closes
//!                                           it, or until Cancel
//! ```

use alloc::{boxed::Box, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    broadcast::Reason,
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
    /// A source for the object, at once or when there is one. The owner lists the node as a holder
    /// then.
    Locate(Box<Locate>),
    /// A complete copy from which to fetch a range of the object. The node does not become a
    /// holder.
    LocateRange(Box<LocateRange>),
    /// Whether the object exists: the owner answers now, and again when that changes.
    Watch {
        /// The object.
        id: ObjectId,
        /// The node that had the object when an owner last reported it; `None` if none has. Only
        /// with one do deletions apply to the question.
        seen_at: Option<NodeId>,
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
    /// To the primary owner: deletes all copies. It reports to the backup owner which object ended
    /// ([`crate::message::Message::Tombstone`]). The backup owner gets it if the primary one is
    /// unresponsive or does not know the object.
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
    /// To [`Question::Locate`]: there is no source yet. The owner keeps the question open.
    NoSource,
    /// To [`Question::Locate`]: a source.
    Located(Box<Located>),
    /// To [`Question::LocateRange`]: the source; `None` if no other node has a complete copy of
    /// that instance.
    RangeLocated(Option<NodeId>),
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
    /// The same, from an owner that knew no such object, or may not know the latest: the other
    /// owner may know it.
    Unknown,
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
            Self::Locate(locate) => Some(locate.id.clone()),
            Self::LocateRange(locate) => Some(locate.id.clone()),
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
        matches!(
            self,
            Self::Locate(_) | Self::Watch { .. } | Self::Locations { .. } | Self::Latest { .. }
        )
    }

    /// Removes what is no longer true when the question is sent again: the refusal of a source.
    pub(crate) fn forget_refusal(&mut self) {
        match self {
            Self::Locate(locate) => locate.not_here = None,
            Self::LocateRange(locate) => locate.not_here = None,
            _ => {}
        }
    }

    /// Whether this is an answer to the question.
    pub(crate) const fn takes(&self, answer: &Answer) -> bool {
        match answer {
            Answer::Pending => self.is_kept() && !matches!(self, Self::Locate(_)),
            Answer::NoSource | Answer::Located(_) => matches!(self, Self::Locate(_)),
            Answer::RangeLocated(_) => matches!(self, Self::LocateRange(_)),
            Answer::Found(_) => matches!(self, Self::Watch { .. }),
            Answer::Locations(_) => matches!(self, Self::Locations { .. }),
            Answer::Latest(_) => matches!(self, Self::Latest { .. }),
            Answer::OlderVersions(_) => matches!(self, Self::OlderVersions { .. }),
            Answer::Deleted | Answer::Unknown => matches!(self, Self::Delete { .. }),
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
        !matches!(self, Self::Deleted | Self::Unknown | Self::List { .. } | Self::Report(_))
    }

    /// Whether the owner keeps the question open.
    pub const fn keeps_open(&self) -> bool {
        matches!(self, Self::Pending | Self::NoSource | Self::Found(_))
    }
}

/// A request for a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locate {
    /// The object.
    pub id: ObjectId,
    /// Sources that failed the node. The owner assigns them only if no other node has the object.
    pub avoid: Vec<NodeId>,
    /// A node that replied that it has no such copy.
    pub not_here: Option<(NodeId, Instance)>,
    /// How fast the node receives.
    pub receives: ReceiveRate,
    /// The last source since the clients' requests. Only with one do deletions apply to them.
    pub seen_at: Option<NodeId>,
}

/// A request for a source of a range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocateRange {
    /// The object.
    pub id: ObjectId,
    /// The instance, as the owner reported it.
    pub instance: Instance,
    /// Number of bytes to fetch.
    pub bytes: u64,
    /// Sources that failed the node. The owner assigns them only if no other node has a complete
    /// copy.
    pub avoid: Vec<NodeId>,
    /// A node that replied that it has no such copy, and the nanoseconds since the request to the
    /// owner that assigned it.
    pub not_here: Option<(NodeId, u64)>,
}

/// An object, and where a node gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// Where the node gets the object.
    pub source: Source,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}

/// Where a node gets an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The bytes are in this message.
    Inline(Inline),
    /// Another node has a copy.
    Holder {
        /// The source.
        node: NodeId,
        /// Why the owner chose it.
        reason: Reason,
    },
}

/// How fast a node receives, as it reports it to the owners of objects that it requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveRate {
    /// The factor of the last [`Message::MarkSlow`](crate::message::Message::MarkSlow); 1 without
    /// one.
    pub slowness: u64,
    /// Usual rate in bytes per second, if measured.
    pub usual: Option<u64>,
}

impl Default for ReceiveRate {
    fn default() -> Self {
        Self { slowness: 1, usual: None }
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
