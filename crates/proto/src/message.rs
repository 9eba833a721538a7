//! Messages between nodes. A message may arrive twice, or after its cause has passed. Therefore it
//! identifies instances, and can't be mistaken for newer state.
//!
//! Participants: a *holder* announces its copies to the two *owners* of an object. A *requester*
//! requests a source from the primary owner, or from the backup owner if the primary is
//! unresponsive. A *coordinator* watches the inputs of a reduce and orders the folds. Payload above
//! [`crate::limits::INLINE_BYTES_MAX`] never travels in messages.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, QuestionId, ReduceId},
    inline::Inline,
    lifetime::{Lease, Lifetime},
    members::Member,
    meta::{Dtype, Meta, Op},
    question::{Answer, Question},
    rate::Rate,
    swim::SwimMessage,
};

pub use crate::{
    question::{Found, Holding, Listed, Located, ReceiveRate, Source},
    swim::ENDED,
};

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum Message {
    /// Introduces members to a node that may not have met them.
    Members(Vec<Member>),
    /// The sender is leaving: it finishes the folds that were ordered, and accepts no new ones.
    Leaving,
    /// Reply to [`Message::Leaving`]: no reduce of the sender has a position on the receiver, or
    /// will have one.
    Drained,
    /// The sender leaves now; other nodes have taken over the copies that only it had.
    Leave,
    /// The sender has declared `node` dead.
    Down {
        /// The dead node.
        node: NodeId,
        /// Its last known incarnation, or [`ENDED`]. The node refutes this message with a later
        /// incarnation.
        incarnation: u32,
        /// Why, as text.
        reason: String,
    },
    /// To a node that has rejoined: the sender had declared it dead, and dropped everything that it
    /// announced.
    StateDropped,
    /// An update of the failure detector.
    Swim(SwimMessage),

    /// To both owners: the sender has a copy.
    Announce(Announce),
    /// To the holder that claimed a name: whether the claim is granted.
    Claimed {
        /// The object.
        id: ObjectId,
        /// The instance that claimed the name.
        instance: Instance,
        /// The node of the instance that has the name; `None` grants the claim.
        taken_by: Option<NodeId>,
    },
    /// To both owners, and to nodes that may count it as a replica: the sender lost its copy.
    Withdraw {
        /// The object.
        id: ObjectId,
        /// The instance of the copy.
        instance: Instance,
    },
    /// To both owners: the sender receives nothing of the object, although they may have assigned a
    /// source.
    Decline {
        /// The object.
        id: ObjectId,
    },
    /// To the primary owner: reports the rate at which an object arrives. If the primary does not
    /// reply to a report of a stall, the backup owner gets it too. The owner replies with
    /// [`Message::Redirect`] if the receiver is stalled, or must take the rest from another source.
    RateReport(RateReport),
    /// From the primary owner to a receiver: it receives `times` slower than others. The receiver
    /// reports this to the owners of other objects that it requests.
    MarkSlow {
        /// The factor.
        times: u64,
        /// The fair rate of the receiver; see [`Rate::fair`].
        bytes_per_second: u64,
    },
    /// To a receiver: assigns a source for the rest. The new source is nearer to the holders, or
    /// faster than the present one. If it is the present one, the owner has no better source.
    Redirect {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// The new source.
        source: NodeId,
    },
    /// A question, usually to an owner; it replaces an earlier one of the same number.
    Ask {
        /// The number, which the answers repeat.
        number: QuestionId,
        /// The question.
        question: Question,
    },
    /// The answer to [`Message::Ask`].
    Answer {
        /// The number of the question.
        number: QuestionId,
        /// The answer.
        answer: Answer,
    },
    /// The sender needs no answer to a question any more.
    Cancel {
        /// The number of the question.
        number: QuestionId,
    },
    /// To the primary owner, and to the backup owner once the primary has granted it: reserves the
    /// name for an object of a client of the sender, or for the result of its reduce. The reply is
    /// [`Message::Claimed`].
    Reserve {
        /// The name.
        id: ObjectId,
        /// Represents the reservation; no copy ever has this instance.
        instance: Instance,
    },
    /// To a holder: drop this instance. The reply is [`Message::Dropped`].
    Drop {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// The error for readers that wait for it; `None` if another instance is on its way.
        error: Option<Error>,
    },
    /// To a holder: the sender has no record of a complete copy. The holder drops a partial copy
    /// that arrives from another node, since it can't be completed. If the copy is complete or
    /// produced there, the holder announces it again.
    DropPartial {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// The error for readers that wait for it.
        error: Error,
    },
    /// To a holder: the sender doubts that this copy exists. It may have missed the deletion, or a
    /// requester reported the copy missing. A node that has the copy announces it again, and one
    /// without it answers with [`Message::Withdraw`].
    Reannounce {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
    },
    /// To the owner: the sender no longer serves this copy.
    Dropped {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
    },
    /// To both owners: the object can't be produced.
    Fail {
        /// The object.
        id: ObjectId,
        /// Why.
        error: Error,
        /// The reservation of its name, if a reduce has reserved it.
        reserved: Option<Instance>,
    },
    /// To both owners: the sender can no longer keep its pinned copy, and no other node has taken
    /// it over.
    Abandon {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
    },
    /// From another owner, or a former one: a tombstone.
    Tombstone {
        /// The object.
        id: ObjectId,
        /// Deleted instances, which must not return.
        instances: Vec<Instance>,
        /// The error for requesters; `None` if the name belongs to another object by now.
        error: Option<Error>,
        /// Whether the object was deleted because a newer version exists.
        pruned: bool,
    },
    /// To both owners of a lease: whether clients of the sender have the lease.
    LeaseUpdate {
        /// The lease.
        lease: Lease,
        /// Whether a client of the sender has it.
        is_held: bool,
    },
    /// To both owners of a job's lease: whether the sender owns objects that exist as long as the
    /// job.
    JobObjects {
        /// The job.
        job: Name,
        /// Whether the sender owns such objects.
        has_objects: bool,
    },
    /// From the primary owner of a job's lease to the owners of its objects: the job has no clients
    /// any more.
    JobEnded {
        /// The job.
        job: Name,
    },

    /// From a coordinator: fold these inputs and the children's streams, for the node that fetches
    /// the result.
    Fold(FoldOrder),
    /// From a coordinator: fold one part of the result, and fetch the other parts from the nodes
    /// that fold them.
    RingReduce(Box<RingOrder>),
    /// From a coordinator: stop the folds of this reduce up to and including this epoch.
    EndEpoch {
        /// The reduce.
        reduce: ReduceId,
        /// The last epoch that is over.
        epoch: u32,
        /// Whether the last epoch failed, so that its result is dropped. Otherwise the result is
        /// complete, and so are copies made of parts, once all parts have arrived.
        is_aborted: bool,
    },
    /// To the coordinator: a position waits for the stream of a child, and nothing arrives.
    FoldStalled {
        /// The reduce.
        reduce: ReduceId,
        /// The epoch.
        epoch: u32,
        /// The node of the child.
        node: NodeId,
    },
    /// To a node that positions of a reduce wait for: requests [`Message::FoldProbeAck`].
    FoldProbe {
        /// The reduce.
        reduce: ReduceId,
        /// The epoch.
        epoch: u32,
    },
    /// To the coordinator: the sender is alive.
    FoldProbeAck {
        /// The reduce.
        reduce: ReduceId,
        /// The epoch.
        epoch: u32,
    },
    /// To the coordinator: a position failed.
    FoldFailed {
        /// The reduce.
        reduce: ReduceId,
        /// The epoch that failed.
        epoch: u32,
        /// Why, as text.
        detail: String,
        /// Whether the stream of another node broke. That node may have failed, and not all nodes
        /// may have detected it.
        is_lost: bool,
    },

    /// From a leaving node, or from a node that replicates an object: requests that the receiver
    /// store a pinned copy.
    StoreReplica {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// Its metadata.
        meta: Meta,
        /// The bytes of an inline object.
        inline: Option<Inline>,
        /// Time to live and job; `None` if the object exists until it is deleted.
        lifetime: Option<Box<Lifetime>>,
        /// Whether the sender can wait until the receiver has capacity.
        may_wait: bool,
    },
    /// Reply to [`Message::StoreReplica`]. If a node that has confirmed a replica sends `accepted:
    /// false`, it needs the capacity. It keeps the copy until it receives
    /// [`Message::ReleaseReplica`].
    ReplicaReply {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
        /// Whether the sender keeps a pinned copy.
        accepted: bool,
    },
    /// To a node with a replica: enough other nodes have one. This one becomes a cached copy.
    ReleaseReplica {
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
    },

    /// A message of a survey, for the shell of the receiver: at most
    /// [`crate::limits::SURVEY_BYTES_MAX`].
    Survey(Inline),

    /// To the backup owner: claims a name as [`Message::Announce`] does, because the primary owner
    /// does not reply to the sender. Repeated until there is a reply: the backup owner passes it on
    /// while the primary owner replies to it.
    ClaimAtBackup(Announce),
    /// The same for [`Message::Reserve`].
    ReserveAtBackup {
        /// The name.
        id: ObjectId,
        /// Represents the reservation.
        instance: Instance,
    },
}

impl Message {
    /// The object of a message to an owner, if it concerns one.
    pub(crate) const fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::Announce(Announce { id, .. })
            | Self::RateReport(RateReport { id, .. })
            | Self::Withdraw { id, .. }
            | Self::Decline { id }
            | Self::Dropped { id, .. }
            | Self::Fail { id, .. }
            | Self::Abandon { id, .. }
            | Self::Tombstone { id, .. }
            | Self::Reserve { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The claim of [`Message::ClaimAtBackup`] or [`Message::ReserveAtBackup`] as the primary owner
    /// gets it.
    pub(crate) fn into_claim(self) -> Self {
        match self {
            Self::ClaimAtBackup(claim) => Self::Announce(claim),
            Self::ReserveAtBackup { id, instance } => Self::Reserve { id, instance },
            other => other,
        }
    }

    /// The claim of [`Message::Announce`] or [`Message::Reserve`] as the backup owner gets it.
    pub(crate) fn into_backup_claim(self) -> Self {
        match self {
            Self::Announce(claim) => Self::ClaimAtBackup(claim),
            Self::Reserve { id, instance } => Self::ReserveAtBackup { id, instance },
            other => other,
        }
    }

    /// Whether the receiver replies at once: a later reply shows that it is unresponsive, or cannot
    /// be reached.
    pub const fn expects_reply(&self) -> bool {
        matches!(
            self,
            Self::Swim(SwimMessage::Ping { .. })
                | Self::Announce(Announce { claim: true, .. })
                | Self::Reserve { .. }
        ) || matches!(self, Self::Ask { question, .. } if question.expects_reply())
    }

    /// Whether the sender may have sent this message in reply to one that expects a reply. Messages
    /// of a node arrive in order: a message that nobody requested does not show that the sender
    /// receives any.
    pub const fn is_reply(&self) -> bool {
        matches!(self, Self::Swim(SwimMessage::Ack { .. }) | Self::Claimed { .. })
            || matches!(self, Self::Answer { answer, .. } if answer.is_reply())
    }

    /// Whether nothing waits for the effect of this message. It can be sent a moment later, with
    /// the next message to the same node.
    pub const fn can_wait(&self) -> bool {
        matches!(
            self,
            Self::Answer { answer: Answer::NoSource, .. }
                | Self::Withdraw { .. }
                | Self::Decline { .. }
                | Self::Cancel { .. }
                | Self::EndEpoch { is_aborted: true, .. }
        )
    }
}

/// Report of the rate at which an object arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateReport {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// The source.
    pub source: NodeId,
    /// The rate since the last report.
    pub rate: Rate,
    /// Bytes still missing.
    pub missing: u64,
    /// The receiver's rate from other nodes in bytes per second, if measured.
    pub usual: Option<u64>,
}

/// Announcement of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announce {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// Whether the copy is pinned: put, reduced or adopted by this node.
    pub pinned: bool,
    /// How much of the copy has arrived.
    pub progress: Progress,
    /// Whether the sender waits for [`Message::Claimed`].
    pub claim: bool,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}

/// How much of a copy has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// Complete; the message contains the bytes.
    Inline(Inline),
    /// Complete.
    Complete,
    /// Partial.
    Partial {
        /// The source; `None` if a client writes the copy or a reduce produces it.
        source: Option<NodeId>,
    },
    /// Partial, produced from the parts of a ring reduce. Another node may complete its copy
    /// earlier, before this node restarts the attempt. Readers therefore receive it from this node,
    /// directly or through relays.
    Parts,
    /// There is no copy, since the holders of a small object are gone: the sender has stored its
    /// bytes as an owner. Another owner that lacks them requests them.
    Stored(Option<Inline>),
}

impl Progress {
    /// Whether the copy is complete.
    pub const fn is_complete(&self) -> bool {
        matches!(self, Self::Inline(_) | Self::Complete)
    }

    /// The bytes of a small object in the message.
    pub const fn bytes(&self) -> Option<&Inline> {
        match self {
            Self::Inline(bytes) | Self::Stored(Some(bytes)) => Some(bytes),
            Self::Complete | Self::Partial { .. } | Self::Parts | Self::Stored(None) => None,
        }
    }
}

/// The task of one position of a reduce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldOrder {
    /// The reduce, its epoch and the position.
    pub key: FoldKey,
    /// The result of the reduce, for reports.
    pub result: ObjectId,
    /// The instances to fold. The receiver of the order has at least a partial copy of each.
    pub inputs: Vec<Instance>,
    /// Nodes and positions whose streams are folded in.
    pub children: Vec<(NodeId, u32)>,
    /// The operation.
    pub op: Op,
    /// Element type.
    pub dtype: Dtype,
    /// Size of each input and of the result in bytes.
    pub size: u64,
    /// The byte range to fold: everything, except in a ring reduce.
    pub part: Range<u64>,
    /// Frame size of all streams of this reduce, in bytes; a whole number of blocks.
    pub frame: u32,
}

/// A ring reduce, in which every node that has inputs folds one part. All of them receive the same
/// order. [`crate::reduce::ring`] derives the steps from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingOrder {
    /// The reduce.
    pub reduce: ReduceId,
    /// The epoch.
    pub epoch: u32,
    /// The result.
    pub id: ObjectId,
    /// The instance of the result.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// The operation.
    pub op: Op,
    /// Frame size of all streams, in bytes.
    pub frame: u32,
    /// The nodes and their inputs. The n-th node folds the n-th part.
    pub contributors: Vec<(NodeId, Vec<Instance>)>,
}

/// One position in one epoch of a reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FoldKey {
    /// The reduce.
    pub reduce: ReduceId,
    /// The epoch.
    pub epoch: u32,
    /// The part of the index range that has its own tree.
    pub segment: u32,
    /// The position; [`FoldKey::RESULT`] for the calling node.
    pub position: u32,
}

impl FoldKey {
    /// The position of the calling node, above every tree.
    pub const RESULT: u32 = u32::MAX;

    /// Whether the position belongs to this epoch.
    pub fn is_of(&self, reduce: ReduceId, epoch: u32) -> bool {
        (self.reduce, self.epoch) == (reduce, epoch)
    }

    /// The range of keys of one coordinator.
    pub(crate) const fn all_of(coordinator: NodeId) -> RangeInclusive<Self> {
        const fn key(node: NodeId, serial: u64, least: u32) -> FoldKey {
            let (epoch, segment, position) = (least, least, least);
            FoldKey { reduce: ReduceId { node, serial }, epoch, segment, position }
        }
        key(coordinator, 0, 0)..=key(coordinator, u64::MAX, u32::MAX)
    }

    /// The key of the calling node in an epoch.
    pub const fn result(reduce: ReduceId, epoch: u32) -> Self {
        Self { reduce, epoch, segment: 0, position: Self::RESULT }
    }
}
