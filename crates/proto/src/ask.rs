//! What clients ask of their node, and what they are answered: the same words for a client inside the process
//! of the node and for one that is attached over a socket.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    id::{Instance, Name, NodeId, ObjectId},
    inline::Inline,
    lifetime::{Job, Lifetime},
    members::Member,
    message::{Holding, Listed},
    meta::{Meta, Op},
    redial::Absentee,
    swim::Suspicion,
};

/// A question of a client; each but `Release` and `BreakPromises` is answered exactly once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Store these few bytes.
    Put {
        /// A name, an id that was promised to this client, or none for a new id.
        id: Option<ObjectId>,
        /// Their metadata.
        meta: Meta,
        /// The bytes, at most [`crate::limits::INLINE_BYTES_MAX`].
        bytes: Inline,
        /// How long they are to live from then; none until they are deleted.
        ttl_ns: Option<u64>,
    },
    /// What I make from now on is of this job. Answered with `Done`.
    Join {
        /// The job.
        job: Job,
    },
    /// This object is to live as long as I do, or until I give it back so often as I have taken it. Answered with `Done`.
    TakeLease {
        /// Which.
        id: ObjectId,
    },
    /// I need it no more. Answered with `Done`.
    ReturnLease {
        /// Which.
        id: ObjectId,
    },
    /// Give me the id of an object that I will make, so that others can wait for it.
    Promise {
        /// What it is to be: a name that no object has, or none for a new id.
        name: Option<Name>,
    },
    /// I make none of what I promised and have not made. Not answered.
    BreakPromises,
    /// Give me space to fill.
    Create {
        /// As in `Put`.
        id: Option<ObjectId>,
        /// Metadata of what will be there.
        meta: Meta,
        /// As in `Put`, from when it is sealed.
        ttl_ns: Option<u64>,
    },
    /// The space is filled.
    Seal {
        /// As answered to `Create`.
        instance: Instance,
    },
    /// The space will not be filled.
    Abort {
        /// As answered to `Create`.
        instance: Instance,
    },
    /// Give me the object when it is complete.
    Get {
        /// Which.
        id: ObjectId,
    },
    /// Let me read the object while it arrives. Answered when its memory is here, with `Growing`, or with `Done` when
    /// there is nothing to follow. Asks no other node for the object: a `Get` beside it does that.
    Follow {
        /// Which.
        id: ObjectId,
    },
    /// Which of these are complete somewhere, or can't come any more? Answered when `count` are, or at the deadline.
    Wait {
        /// All different.
        ids: Vec<ObjectId>,
        /// How many; at most that many are named.
        count: u32,
    },
    /// See to it that so many nodes hold an object that was put at this one, or all if there are fewer. Answered when
    /// they do, with `Kept`.
    Keep {
        /// Which.
        id: ObjectId,
        /// How many, this node among them.
        copies: u32,
    },
    /// I read no more. Not answered.
    Release {
        /// As answered to `Get`.
        instance: Instance,
    },
    /// Fold the first `count` of `inputs` to arrive. Answered at once; the deadline is that of the result.
    Reduce {
        /// Candidates, all different.
        inputs: Vec<ObjectId>,
        /// How to fold.
        op: Op,
        /// How many.
        count: u32,
        /// What the result is to be: as in `Put`.
        id: Option<ObjectId>,
        /// As in `Put`, from when the result is complete.
        ttl_ns: Option<u64>,
    },
    /// Which inputs were folded into the result of a reduce of this node, once it is there.
    Inputs {
        /// The result.
        id: ObjectId,
    },
    /// Which inputs of a reduce of this node can't come any more, as far as is known now?
    Lost {
        /// The result.
        id: ObjectId,
    },
    /// Remove all copies everywhere.
    Delete {
        /// Of these.
        ids: Vec<ObjectId>,
    },
    /// The newest name under a prefix, newer than `after`, when there is one.
    Latest {
        /// The text before the number, with its `/`.
        prefix: String,
        /// Only newer ones count.
        after: Option<u64>,
    },
    /// Delete the names that are older than this one, but for the newest `keep - 1`. Answered when that is ordered.
    Prune {
        /// A name with a number.
        name: Name,
        /// How many to keep, this one among them.
        keep: u64,
    },
    /// Which nodes hold the object, as soon as that is not what is known already?
    Locations {
        /// Which.
        id: ObjectId,
        /// What is known; none for an answer at once.
        known: Option<Vec<Holding>>,
    },
    /// Why is the object not here?
    Explain {
        /// Which.
        id: ObjectId,
    },
    /// Which nodes keep where the object is?
    Owners {
        /// Which.
        id: ObjectId,
    },
    /// One page of the living objects that a member is the first owner of.
    List {
        /// The member.
        owner: NodeId,
        /// What their refs begin with; all do with nothing.
        prefix: String,
        /// Only those behind this one, in order.
        after: Option<ObjectId>,
    },
    /// How the node is.
    Status,
    /// The copies that the node has.
    Objects,
    /// I read no more, since I have copied the object: of the copies that may go this is the first. Not answered.
    ReleaseCopied {
        /// As answered to `Get`.
        instance: Instance,
    },
}

impl Ask {
    /// Whether it begins nothing: a node that leaves still takes it.
    pub const fn ends_something(&self) -> bool {
        matches!(
            self,
            Self::Seal { .. }
                | Self::Release { .. }
                | Self::ReleaseCopied { .. }
                | Self::Abort { .. }
                | Self::BreakPromises
                | Self::ReturnLease { .. }
        )
    }
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The object is in the store.
    Put {
        /// Its id.
        id: ObjectId,
    },
    /// An object of this id can come into being, and only if this client makes it.
    Promised {
        /// To be given to others now, and to this node with the object.
        id: ObjectId,
    },
    /// There is space.
    Created {
        /// The id it will have.
        id: ObjectId,
        /// To be named when it is sealed or aborted.
        instance: Instance,
    },
    /// Here it is; to be released if it is in a slot.
    Got {
        /// The object.
        id: ObjectId,
        /// What it is.
        meta: Meta,
        /// Which instance.
        instance: Instance,
        /// Its bytes, if they are few; otherwise it is in the slot of `instance`.
        inline: Option<Inline>,
    },
    /// It grows in the slot of `instance`.
    Growing {
        /// What it will be.
        meta: Meta,
        /// Which instance.
        instance: Instance,
    },
    /// These have come, or can't.
    Waited {
        /// Places in the list of the question, in the order in which they were seen.
        ready: Vec<u32>,
    },
    /// The result will have this id.
    Reducing {
        /// The id.
        id: ObjectId,
    },
    /// These were folded; or these are lost.
    Inputs {
        /// In the order in which they arrived; of lost ones, in no order.
        ids: Vec<ObjectId>,
    },
    /// Nodes hold the object.
    Kept {
        /// How many, this node among them: fewer than were wanted if there are no more.
        copies: u32,
    },
    /// It is done.
    Done,
    /// The newest name.
    Latest {
        /// The name.
        name: Name,
    },
    /// Who holds the object.
    Locations(Vec<Location>),
    /// Why it is not here.
    Explained {
        /// In words.
        state: String,
        /// If it waits for room: the bytes that it needs, and those of the whole store.
        lacks: Option<(u64, u64)>,
    },
    /// Who keeps where it is: the first, and the second if there is one.
    Owners(Vec<NodeId>),
    /// Living objects of one member's part of the directory.
    List {
        /// In order of their ids; perhaps none, though there is a next page.
        rows: Vec<Listed>,
        /// Behind which object the next page begins; none if this is the last.
        next: Option<ObjectId>,
    },
    /// How the node is.
    Status(Box<Status>),
    /// The copies that the node has.
    Objects(Vec<ObjectRow>),
}

/// A copy and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The node that has it.
    pub member: Member,
    /// Whether it has all of it.
    pub complete: bool,
}

/// How a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node itself.
    pub me: Member,
    /// Everybody, the node too.
    pub members: Vec<Member>,
    /// Members that do not answer just now.
    pub suspicions: Vec<(NodeId, Suspicion)>,
    /// Nodes that were members and were lost; they are called again.
    pub lost: Vec<Absentee>,
    /// Members that have sent blocks which differ from their checksums, and how many.
    pub corrupt: Vec<(NodeId, u32)>,
    /// How much is here and under way.
    pub counts: Counts,
    /// The store.
    pub store: StoreCounts,
}

/// How much is at a node and under way there. The names of the fields are those of the status that users read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Copies here.
    pub objects: u64,
    /// Living objects in this node's part of the directory.
    pub owned: u64,
    /// Requests of clients without a reply.
    pub waiting: u64,
    /// Reduces of clients that are under way.
    pub reduces: u64,
    /// Whether the network was surveyed: `none`, `waiting`, `even` or `found`.
    pub survey: String,
}

/// The store of a node, in bytes; named as in the status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCounts {
    /// Of copies in memory.
    pub used: u64,
    /// That these may take.
    pub capacity: u64,
    /// Of small objects of other members in the directory.
    pub small: u64,
    /// That these may take.
    pub small_capacity: u64,
    /// Of files of copies.
    pub spilled: u64,
    /// That these may take; zero if the node has no folder for them.
    pub spill_limit: u64,
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// Of which object.
    pub id: ObjectId,
    /// Which instance.
    pub instance: Instance,
    /// What it is.
    pub meta: Meta,
    /// `filling`, `flowing`, `folding`, `complete`, `spilled` (on disk alone) or `returning` (from disk).
    pub state: String,
    /// Whether it is an original, pinned until deletion.
    pub origin: bool,
    /// Readers, transfers and folds that use it now.
    pub pins: u32,
    /// How long it lives, if not until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}
