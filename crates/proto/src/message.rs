//! What nodes say to each other. Each message may arrive twice, or after its reason has passed: it names
//! instances, so that nothing it says can be mistaken for something newer.
//!
//! Participants: a *holder* tells the two *owners* of an object what it has; an *asker* asks the first owner
//! for a sender, the second if the first is silent; a *coordinator* watches the inputs of a reduce and orders
//! the folding. Payload above [`crate::limits::INLINE_BYTES_MAX`] never travels here.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::ops::{Range, RangeInclusive};

use serde::{Deserialize, Serialize};

use crate::{
    broadcast::Reason,
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, ReduceId, RequestId},
    inline::Inline,
    lifetime::{Lease, Lifetime},
    members::Member,
    meta::{Dtype, Meta, Op},
    pace::Rate,
    place::Place,
    survey::Burst,
    swim::Rumour,
};

pub use crate::swim::ENDED;

/// One message from node to node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Members that the sender knows, told to a node that may not.
    Members(Vec<Member>),
    /// The sender was told to leave: it finishes the folds that it was ordered to do, and wants no new ones.
    Leaving,
    /// To a node that said [`Message::Leaving`]: no reduce of the sender has a seat there, and none will have one.
    Unseated,
    /// The sender leaves; it has handed over what only it held.
    Leave,
    /// The sender found `node` dead.
    Down {
        /// Who.
        node: NodeId,
        /// The last that was heard of it, or [`ENDED`]: what it has said of itself later is true.
        incarnation: u32,
        /// Why, in words.
        reason: String,
    },
    /// To a node that is a member again: the sender had given it up, and forgotten all that it was told by it.
    Forgotten,
    /// Who lives.
    Rumour(Rumour),

    /// To both owners: the sender has a copy.
    Announce(Announce),
    /// To the holder that asked for it: whether its claim of a name stands.
    Claimed {
        /// The object.
        id: ObjectId,
        /// The instance that claimed it.
        instance: Instance,
        /// Which node holds the name, if another instance does.
        taken_by: Option<NodeId>,
    },
    /// To both owners: the sender has no copy any more.
    Withdraw {
        /// The object.
        id: ObjectId,
        /// The instance it had.
        instance: Instance,
    },
    /// To the owner: which node shall I receive the object from?
    Locate {
        /// The object.
        id: ObjectId,
        /// Senders that failed the asker, to be taken only if no other node has it.
        avoid: Vec<NodeId>,
        /// A sender that said it has no such copy.
        not_here: Option<(NodeId, Instance)>,
        /// How fast the asker receives.
        receives: Receives,
        /// Whether the asker has been sent a location since its clients asked. Only then a deletion concerns it.
        seen: bool,
    },
    /// To the owner: the question is void.
    Unlocate {
        /// The object.
        id: ObjectId,
    },
    /// To the first owner: how fast an object comes; to the second too, where the first does not answer that it is stalled.
    /// Answered by [`Message::Redirect`] if the receiver is stalled, or is to take the rest from another sender.
    Paced(Paced),
    /// From the first owner to a receiver: so many times slower than others it receives. It says so to the owners of other
    /// objects that it asks for.
    Slow {
        /// How many times.
        times: u64,
        /// Its fair rate then: see [`Rate::fair`].
        bytes_per_second: u64,
    },
    /// To the asker: the question is known, the object is not there yet.
    Waiting {
        /// The object.
        id: ObjectId,
    },
    /// To the asker: here it is.
    Located {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// Its metadata.
        meta: Meta,
        /// Where to take it from.
        source: Source,
        /// How long it lives, if not until it is deleted.
        lifetime: Option<Box<Lifetime>>,
    },
    /// To a receiver: take the rest from this node. It stands nearer to those who have the object, or is faster than the
    /// present sender. It may be the present sender: then the owner knows of none that is better.
    Redirect {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// The sender from now on.
        source: NodeId,
    },
    /// To askers and watchers: it can't come.
    Gone {
        /// The object.
        id: ObjectId,
        /// Why.
        error: Error,
    },
    /// To the owner: tell me now whether the object exists, and again when it comes to exist.
    Watch {
        /// The object.
        id: ObjectId,
        /// Whether the watcher has been told that it exists. Only then a deletion concerns it.
        seen: bool,
    },
    /// To both owners: tell me no more.
    Unwatch {
        /// The object.
        id: ObjectId,
    },
    /// To the watcher: what is known.
    Found {
        /// The object.
        id: ObjectId,
        /// What it is and who has it, if it exists.
        found: Option<Found>,
    },
    /// To the owner: who holds the object, as soon as that is not what is known already?
    Locations {
        /// The object.
        id: ObjectId,
        /// What the asker knows; none for an answer at once.
        known: Option<Vec<Holding>>,
        /// To be named in the answer.
        request: RequestId,
    },
    /// To both owners: the question is void.
    Unlocations {
        /// The object.
        id: ObjectId,
        /// Of the question.
        request: RequestId,
    },
    /// The answer to [`Message::Locations`].
    LocationsAre {
        /// Of the question.
        request: RequestId,
        /// All holders, by node; or why there will be none.
        holdings: Result<Vec<Holding>, Error>,
    },
    /// To the first owner, and to the second when that has agreed: the sender makes the object by a reduce; the name is
    /// its own until the result is there. Answered by [`Message::Claimed`].
    Reserve {
        /// The object, which has a name.
        id: ObjectId,
        /// Stands for the reduce; no bytes ever have it.
        instance: Instance,
    },
    /// To both owners: remove every copy. The first owner answers the request.
    Delete {
        /// The object.
        id: ObjectId,
        /// To be named in the answer.
        request: RequestId,
        /// Whether a newer version of the name replaces the object.
        pruned: bool,
    },
    /// To the node that asked for the deletion: no holder gives the object to others any more.
    Deleted {
        /// The object.
        id: ObjectId,
        /// Of the question.
        request: RequestId,
    },
    /// To a holder: drop this instance. Answered by [`Message::Dropped`].
    Drop {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// What a reader who waits for it is told; none if another instance is on its way.
        error: Option<Error>,
    },
    /// To a holder: no node is known that has all of it. What of this instance is not complete, nor made there, never will
    /// be, and is to be dropped; else the sender of this has missed something, and is told.
    Stranded {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// What a reader who waits for it is told.
        error: Error,
    },
    /// To a holder: the sender may have missed the end of this instance, and has given its name to another; or was told by
    /// one that asked there that the copy is gone. A holder that still has it announces it again.
    Doubted {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
    },
    /// To the owner: no node is given that copy any more.
    Dropped {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
    },
    /// To both owners: the object can't come to exist, for this reason.
    Fail {
        /// The object.
        id: ObjectId,
        /// Why.
        error: Error,
        /// The reservation of its name, if a reduce reserved one.
        reserved: Option<Instance>,
    },
    /// To both owners: the sender leaves, and no other node could take over its original.
    Abandon {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
    },
    /// From an owner that is one no longer: what is to be remembered of an object that is gone.
    Remember {
        /// The object.
        id: ObjectId,
        /// Which instances must not come back.
        instances: Vec<Instance>,
        /// What askers are told; none if the name is something else by now.
        error: Option<Error>,
        /// Whether a newer version replaced it.
        pruned: bool,
    },
    /// To the owner of the prefix: the newest name under it that is newer than `after`, as soon as there is one.
    Latest {
        /// The text before the number, with its `/`.
        prefix: String,
        /// Only newer ones count; none takes any.
        after: Option<u64>,
        /// To be named in the answer.
        request: RequestId,
    },
    /// To the owner of the prefix: the question is void.
    Unlatest {
        /// Of the question.
        request: RequestId,
    },
    /// The answer to [`Message::Latest`].
    LatestIs {
        /// The newest name.
        name: Name,
        /// Of the question.
        request: RequestId,
    },

    /// To the asker of [`Message::Latest`] or [`Message::Locations`]: there is nothing new yet; the question is kept.
    NothingYet {
        /// Of the question.
        request: RequestId,
        /// Whose holders it asks for; none of a question for names.
        id: Option<ObjectId>,
    },
    /// To the owner of the prefix: which names under it are older than `name`, but for the newest `keep - 1` of them?
    Older {
        /// A name with a number.
        name: Name,
        /// How many to keep, `name` among them.
        keep: u64,
        /// To be named in the answer.
        request: RequestId,
    },
    /// The answer to [`Message::Older`].
    OlderAre {
        /// The names, oldest first, of living objects.
        names: Vec<Name>,
        /// Of the question.
        request: RequestId,
    },

    /// To any member: which living objects are you the first owner of, whose refs begin with `prefix`?
    List {
        /// What refs begin with; all do with nothing.
        prefix: String,
        /// Only those behind this one, in order.
        after: Option<ObjectId>,
        /// To be named in the answer.
        request: RequestId,
    },
    /// The answer to [`Message::List`]: one page, at most [`crate::limits::LISTED_MAX`] rows.
    ListIs {
        /// Of the question.
        request: RequestId,
        /// In order of their ids; perhaps none, though there is a next page.
        rows: Vec<Listed>,
        /// Behind which object the next page begins; none if there is none.
        next: Option<ObjectId>,
    },

    /// To both owners of a lease: clients of the sender have taken it; or none of them has it any more.
    Leased {
        /// The lease.
        lease: Lease,
        /// Whether a client of the sender has it.
        is_taken: bool,
    },
    /// To both owners of the lease of a job: the sender owns objects that live as long as that; or none any more.
    Covers {
        /// The job.
        job: Name,
        /// Whether the sender owns such objects.
        covers: bool,
    },
    /// From the first owner of the lease of a job to those that own its objects: no client of the job is left.
    JobEnded {
        /// The job.
        job: Name,
    },

    /// From a coordinator: fold these inputs and those children's streams, for the node that fetches the result.
    Fold(FoldOrder),
    /// From a coordinator: fold one part of the result, and take the others from those who fold them.
    Scatter(Box<ScatterOrder>),
    /// From a coordinator: stop whatever this reduce does here in epochs up to this one.
    Unfold {
        /// The reduce.
        reduce: ReduceId,
        /// The last epoch that is over.
        epoch: u32,
        /// Whether the result of the last is void, also what there is of it here. Otherwise it is complete, and so is what
        /// was made of it in parts, as soon as all of them are there.
        is_void: bool,
    },
    /// To the coordinator: a position waits for the stream of a child, and nothing comes.
    FoldStarves {
        /// The reduce.
        reduce: ReduceId,
        /// Its attempt.
        epoch: u32,
        /// The node of the child.
        node: NodeId,
    },
    /// To a node that positions of a reduce wait for: do you live? Answered by [`Message::FoldAlive`].
    FoldProbe {
        /// The reduce.
        reduce: ReduceId,
        /// Its attempt.
        epoch: u32,
    },
    /// To the coordinator: the sender lives.
    FoldAlive {
        /// The reduce.
        reduce: ReduceId,
        /// Its attempt.
        epoch: u32,
    },
    /// To the coordinator: a position can't go on.
    FoldFailed {
        /// The reduce.
        reduce: ReduceId,
        /// The epoch that failed.
        epoch: u32,
        /// Why, in words.
        detail: String,
        /// Whether the stream of another node broke off: that may be lost, and its death not known everywhere yet.
        is_lost: bool,
    },

    /// From a node that leaves, or wants an object to be at several nodes: take a copy of this and keep it.
    Adopt {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// Its metadata.
        meta: Meta,
        /// Its bytes, if they are few.
        inline: Option<Inline>,
        /// How long it lives, if not until it is deleted.
        lifetime: Option<Box<Lifetime>>,
        /// Whether the asker waits until there is room.
        may_wait: bool,
    },
    /// To the node that asked: done, or it can't be done here. If it was done before: the sender needs the room, and keeps
    /// the copy until it hears [`Message::Unkeep`].
    Adopted {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// Whether a copy is kept.
        kept: bool,
    },
    /// To a keeper: enough other nodes keep the object. Its copy may be evicted.
    Unkeep {
        /// The object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
    },

    /// From the member that surveys the network ([`crate::survey`]): send a burst to another member, now.
    Measure {
        /// The round of the survey.
        round: u32,
        /// Which member.
        to: NodeId,
        /// How long the burst is.
        bytes: u32,
    },
    /// A part of a burst.
    Burst {
        /// The round of the survey.
        round: u32,
        /// How many parts follow.
        left: u16,
        /// Bytes that say nothing.
        filling: Inline,
    },
    /// To the sender of a burst: all of it is here.
    BurstCame {
        /// The round of the survey.
        round: u32,
        /// Whether the receiver moved objects.
        is_busy: bool,
    },
    /// To the member that surveys: what became of a burst.
    Measured {
        /// The round of the survey.
        round: u32,
        /// What became of it.
        burst: Burst,
    },
    /// From the member that surveys: where members stand.
    Places {
        /// The members that were asked, and the places of those that share a link.
        places: Vec<(NodeId, Option<Place>)>,
    },
}

impl Message {
    /// The object that a message to an owner is about, if it is about one.
    pub const fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::Announce(announce) => Some(&announce.id),
            Self::Withdraw { id, .. }
            | Self::Locate { id, .. }
            | Self::Unlocate { id }
            | Self::Delete { id, .. }
            | Self::Fail { id, .. }
            | Self::Abandon { id, .. }
            | Self::Remember { id, .. }
            | Self::Reserve { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Whether nothing waits for what it brings about: it may leave with the next message to the same node, or a moment
    /// later.
    pub const fn can_wait(&self) -> bool {
        matches!(
            self,
            Self::Waiting { .. }
                | Self::Withdraw { .. }
                | Self::Unlocate { .. }
                | Self::Unwatch { .. }
                | Self::Unlocations { .. }
                | Self::Unlatest { .. }
                | Self::Unfold { is_void: true, .. }
        )
    }
}

/// A living object, as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The object.
    pub id: ObjectId,
    /// Its metadata.
    pub meta: Meta,
    /// Nodes that have all of it.
    pub complete: u32,
    /// Nodes that have a part of it.
    pub partial: u32,
    /// Nanoseconds since its owner has first heard of it.
    pub age_ns: u64,
    /// How long it lives, if not until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}

/// How fast a node receives, as it tells the owners of what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receives {
    /// How many times slower than others, as an owner has told it by [`Message::Slow`]; 1 if none has.
    pub slowness: u64,
    /// Bytes per second that it is used to receive, if that was measured.
    pub usual: Option<u64>,
}

impl Default for Receives {
    fn default() -> Self {
        Self { slowness: 1, usual: None }
    }
}

/// How fast an object comes to a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paced {
    /// The object.
    pub id: ObjectId,
    /// Which instance.
    pub instance: Instance,
    /// The node that sends it.
    pub source: NodeId,
    /// Since the last report.
    pub rate: Rate,
    /// Bytes that are still to come.
    pub missing: u64,
    /// Bytes per second at which the receiver has received from others, if that was measured.
    pub usual: Option<u64>,
}

/// That a node has a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announce {
    /// The object.
    pub id: ObjectId,
    /// Which instance of it.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// Whether the copy is pinned: put here, reduced here or adopted.
    pub origin: bool,
    /// How much of it there is.
    pub progress: Progress,
    /// Whether the sender waits for [`Message::Claimed`].
    pub claim: bool,
    /// How long it lives, if not until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}

/// How much of a copy there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// All, and these are the bytes.
    Inline(Inline),
    /// All.
    Complete,
    /// It grows.
    Partial {
        /// Who sends it; none where a client writes it or a reduce makes it.
        source: Option<NodeId>,
    },
    /// It grows by parts that others make, too. They may have all of it before this node does, which then may begin again:
    /// it is to be taken from here, or from who takes it from here.
    Parts,
}

impl Progress {
    /// Whether it is all.
    pub const fn is_complete(&self) -> bool {
        matches!(self, Self::Inline(_) | Self::Complete)
    }
}

/// Where an asker takes an object from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// From this message.
    Inline(Inline),
    /// From a node.
    Holder {
        /// Which.
        node: NodeId,
        /// Why this one.
        reason: Reason,
    },
}

/// That a node has a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holding {
    /// Which node.
    pub node: NodeId,
    /// Whether it has all of it.
    pub complete: bool,
}

/// What a watcher learns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Which instance exists.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// A node that has it, the watcher itself if it does.
    pub holder: NodeId,
    /// Its bytes, if they are few.
    pub inline: Option<Inline>,
    /// Whether some copy is complete. If not, it is told again when one is.
    pub complete: bool,
}

/// What a position of a reduce has to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoldOrder {
    /// Which position of which attempt of which reduce.
    pub key: FoldKey,
    /// The instances to fold, all of which the receiver of the order holds at least in part.
    pub inputs: Vec<Instance>,
    /// Whose streams to fold in.
    pub children: Vec<(NodeId, u32)>,
    /// What to do.
    pub op: Op,
    /// To elements of which type.
    pub dtype: Dtype,
    /// Bytes of each input and of the result.
    pub size: u64,
    /// Which bytes of them: all, but in a scattered reduce.
    pub part: Range<u64>,
    /// Bytes of the frames of all streams of this reduce, a whole number of blocks.
    pub frame: u32,
}

/// A scattered reduce, of which every node that holds inputs makes a part; each is sent the same. What follows from it
/// is in [`crate::reduce::scatter`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScatterOrder {
    /// The reduce.
    pub reduce: ReduceId,
    /// Its attempt.
    pub epoch: u32,
    /// The result.
    pub id: ObjectId,
    /// Which instance of it.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// What to do.
    pub op: Op,
    /// Bytes of the frames of all streams.
    pub frame: u32,
    /// Who holds which inputs. The n-th makes the n-th part.
    pub seats: Vec<(NodeId, Vec<Instance>)>,
}

/// One position in one epoch of a reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FoldKey {
    /// The reduce.
    pub reduce: ReduceId,
    /// Its attempt.
    pub epoch: u32,
    /// The part of the index range that has a tree of its own.
    pub segment: u32,
    /// The position; [`FoldKey::RESULT`] for the caller's own.
    pub position: u32,
}

impl FoldKey {
    /// The caller's own place, above every tree.
    pub const RESULT: u32 = u32::MAX;

    /// Whether it is of this attempt.
    pub fn is_of(&self, reduce: ReduceId, epoch: u32) -> bool {
        (self.reduce, self.epoch) == (reduce, epoch)
    }

    /// Those of all reduces of a coordinator.
    pub(crate) const fn all_of(coordinator: NodeId) -> RangeInclusive<Self> {
        const fn key(node: NodeId, serial: u64, least: u32) -> FoldKey {
            let (epoch, segment, position) = (least, least, least);
            FoldKey { reduce: ReduceId { node, serial }, epoch, segment, position }
        }
        key(coordinator, 0, 0)..=key(coordinator, u64::MAX, u32::MAX)
    }

    /// The caller's own in an attempt.
    pub const fn result(reduce: ReduceId, epoch: u32) -> Self {
        Self { reduce, epoch, segment: 0, position: Self::RESULT }
    }
}
