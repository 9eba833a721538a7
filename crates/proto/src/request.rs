//! Requests of clients and the node's replies. A client inside the node's process and a client
//! attached over a socket use the same types.

use alloc::{boxed::Box, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    failed_members::FailedMember,
    id::{Instance, Name, NodeId, ObjectId, RequestId},
    inline::Inline,
    inspection::Inspection,
    lifetime::Lifetime,
    members::Member,
    message::{Holding, Listed},
    meta::{Meta, Op},
    selection::Selection,
    swim::Suspicion,
    table::CopyKey,
};

/// A request of a client. Each gets exactly one reply, except `Release`, `ReleaseCopied` and
/// `CancelReservations`, which get none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Store an inline object.
    Put {
        /// A name, an id reserved by this client, a slot, or `None` for a new id.
        id: Option<ObjectId>,
        /// Its metadata.
        meta: Meta,
        /// Its bytes, at most [`crate::limits::INLINE_BYTES_MAX`].
        bytes: Inline,
        /// Time to live from then on; `None` keeps it until it is deleted.
        ttl_ns: Option<u64>,
    },
    /// Assign all objects that this client creates from now on to a job. The reply is `Done`.
    JoinJob {
        /// The job.
        job: Name,
    },
    /// Keep an object while this client exists, until it has returned the lease as often as it took
    /// it. The reply is `Done`.
    AcquireLease {
        /// The object.
        id: ObjectId,
    },
    /// Return a lease of the object. The reply is `Done`.
    ReleaseLease {
        /// The object.
        id: ObjectId,
    },
    /// Reserve the id or name of an object that this client will create, so that others can wait
    /// for it.
    Reserve {
        /// A name that no object has, or `None` for a new id.
        name: Option<Name>,
    },
    /// Generate ids that any client of the cluster may put, each once. Their directory entries are
    /// on this node. The unfilled ones end with this client.
    Slots {
        /// Number of slots, at most [`crate::limits::SLOTS_MAX`].
        count: u32,
    },
    /// Give up all reservations of this client whose objects do not exist. No reply.
    CancelReservations,
    /// Allocate space for the client to fill.
    Create {
        /// As in `Put`.
        id: Option<ObjectId>,
        /// Metadata of the future object.
        meta: Meta,
        /// As in `Put`, counted from the seal.
        ttl_ns: Option<u64>,
    },
    /// Report that the space is filled.
    Seal {
        /// The instance in the reply to `Create`.
        instance: Instance,
    },
    /// Give up the space without filling it.
    Abort {
        /// The instance in the reply to `Create`.
        instance: Instance,
    },
    /// Get the object once it is complete.
    Get {
        /// The object.
        id: ObjectId,
    },
    /// Read the object while it arrives. The reply is `Growing` once its memory is allocated, or
    /// `Done` if there is nothing to follow. This request does not search for the object; a `Get`
    /// next to it does that.
    Follow {
        /// The object.
        id: ObjectId,
    },
    /// Wait until `count` of these objects are complete somewhere or can no longer appear, or until
    /// the deadline.
    Wait {
        /// The objects, without duplicates.
        ids: Vec<ObjectId>,
        /// Number of objects to wait for; the reply lists at most that many.
        count: u32,
    },
    /// Replicate an object that was put on this node to `replicas` nodes, or to all if there are
    /// fewer. The reply is `Replicated`, once they have it.
    Replicate {
        /// The object.
        id: ObjectId,
        /// Number of nodes, including this one.
        replicas: u32,
    },
    /// Stop reading an object. No reply.
    Release {
        /// The instance in the reply to `Get`.
        instance: Instance,
    },
    /// Fold the first `count` of `inputs` to arrive. The reply comes at once; the deadline applies
    /// to the result.
    Reduce {
        /// Candidates, without duplicates.
        inputs: Vec<ObjectId>,
        /// The operation.
        op: Op,
        /// Number of inputs to fold.
        count: u32,
        /// Id of the result, as in `Put`.
        id: Option<ObjectId>,
        /// As in `Put`, counted from when the result is complete.
        ttl_ns: Option<u64>,
    },
    /// List the inputs that were folded into a result of this node's reduces, once it is complete.
    Inputs {
        /// The result.
        id: ObjectId,
    },
    /// List the inputs of a reduce of this node that are known to be lost or deleted.
    LostInputs {
        /// The result.
        id: ObjectId,
    },
    /// Delete all copies on all nodes.
    Delete {
        /// The objects.
        ids: Vec<ObjectId>,
    },
    /// Get the newest name under a prefix that is newer than `after`, once there is one.
    Latest {
        /// The text before the number, with its `/`.
        prefix: String,
        /// Ignore names up to this number.
        after: Option<u64>,
    },
    /// Delete the names older than `name`, except the newest `retain - 1`. The reply comes once the
    /// deletions are ordered.
    Prune {
        /// A name that ends in a number.
        name: Name,
        /// Number of names to retain, including `name`.
        retain: u64,
    },
    /// List the nodes that have the object, once the list differs from `known`.
    Locations {
        /// The object.
        id: ObjectId,
        /// The list that the client has; `None` for a reply at once.
        known: Option<Vec<Holding>>,
    },
    /// Explain why the object is not here.
    Explain {
        /// The object.
        id: ObjectId,
    },
    /// Explain what another request of the same client waits for.
    ExplainRequest {
        /// The request.
        request: RequestId,
    },
    /// List the owners of the object.
    Owners {
        /// The object.
        id: ObjectId,
    },
    /// List one page of the objects whose primary owner is `owner`.
    List {
        /// The member.
        owner: NodeId,
        /// Prefix of the refs; the empty text matches all.
        prefix: String,
        /// Ids up to this one are on earlier pages.
        after: Option<ObjectId>,
    },
    /// Report the status of the node.
    Status,
    /// List one page of the copies of this node.
    Objects {
        /// Prefix of the refs; the empty text matches all.
        prefix: String,
        /// Copies up to this one are on earlier pages.
        after: Option<CopyKey>,
    },
    /// Stop reading an object that the client has copied. Its cached copy is the first to be
    /// evicted. No reply.
    ReleaseCopied {
        /// The instance in the reply to `Get`.
        instance: Instance,
    },
    /// Get rows or bytes of an object, once a complete copy exists. The reply is `Got`: with the
    /// selected bytes alone, or with the whole object if it is on this node, is arriving or is
    /// small.
    GetRange {
        /// The object.
        id: ObjectId,
        /// The rows or bytes.
        selection: Selection,
    },
    /// Report what a member does, or its metrics. The reply is `Inspected`.
    Inspect {
        /// The member; `None` for this node.
        node: Option<NodeId>,
        /// What to report.
        inspection: Inspection,
    },
}

impl Request {
    /// Whether the request only ends something; a leaving node still accepts it.
    pub const fn is_allowed_while_leaving(&self) -> bool {
        matches!(
            self,
            Self::Seal { .. }
                | Self::Release { .. }
                | Self::ReleaseCopied { .. }
                | Self::Abort { .. }
                | Self::CancelReservations
                | Self::ReleaseLease { .. }
        )
    }
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The object, or another result.
    pub what: String,
    /// Why it is not here.
    pub state: String,
    /// Time since the request began, in nanoseconds.
    pub waited_ns: u64,
}

/// The reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The object is stored.
    Put {
        /// Its id.
        id: ObjectId,
    },
    /// The id is reserved. Only this client can create the object.
    Reserved {
        /// The id; other clients can wait for it from now on.
        id: ObjectId,
    },
    /// The slots are ready. Any client can fill each once.
    Slots {
        /// Their ids, as many as requested.
        ids: Vec<ObjectId>,
    },
    /// Space is allocated.
    Created {
        /// The id of the future object.
        id: ObjectId,
        /// Passed to `Seal` or `Abort`.
        instance: Instance,
    },
    /// The object. If it is in a slot, the client must release it.
    Got {
        /// The object.
        id: ObjectId,
        /// Its metadata.
        meta: Meta,
        /// Which instance.
        instance: Instance,
        /// The bytes of an inline object; otherwise they are in the slot of `instance`.
        inline: Option<Inline>,
        /// Whether this is only the selection of a `GetRange`, which `meta` describes.
        is_range: bool,
    },
    /// The object arrives in the slot of `instance`.
    Growing {
        /// Its metadata.
        meta: Meta,
        /// Which instance.
        instance: Instance,
    },
    /// Objects that are complete or can no longer appear.
    Waited {
        /// Indexes into the request's list, in the order in which they were detected.
        ready: Vec<u32>,
    },
    /// The reduce has begun; its result will have this id.
    Reducing {
        /// The id.
        id: ObjectId,
    },
    /// Inputs that were folded, or that are lost.
    Inputs {
        /// Folded inputs in order of arrival; lost ones in no particular order.
        ids: Vec<ObjectId>,
    },
    /// Enough nodes have the object.
    Replicated {
        /// Number of nodes, including this one; fewer than requested if there are no more members.
        replicas: u32,
    },
    /// Done.
    Done,
    /// The newest name.
    Latest {
        /// The name.
        name: Name,
    },
    /// The holders of the object.
    Locations(Vec<Location>),
    /// Why the object is not here, or what a request waits for.
    Explained {
        /// The object, or the result of the request.
        what: String,
        /// As text.
        state: String,
        /// If it waits for capacity: the bytes that it needs, and the capacity of the store.
        lacks: Option<(u64, u64)>,
    },
    /// The owners of the object: primary first, then backup if there is one.
    Owners(Vec<NodeId>),
    /// One page of a member's part of the directory.
    List {
        /// Sorted by id. May be empty although another page follows.
        rows: Vec<Listed>,
        /// The id after which the next page begins; `None` on the last page.
        next: Option<ObjectId>,
    },
    /// Status of the node.
    Status(Box<Status>),
    /// One page of the copies of this node.
    Objects {
        /// Sorted by id and instance. May be empty although another page follows.
        rows: Vec<ObjectRow>,
        /// The copy after which the next page begins; `None` on the last page.
        next: Option<CopyKey>,
    },
    /// What a member reports about itself, as JSON.
    Inspected {
        /// The report.
        report: String,
    },
}

/// A copy and the node that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The holder.
    pub member: Member,
    /// Whether the copy is complete.
    pub complete: bool,
}

/// Status of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// This node.
    pub me: Member,
    /// All members, including this node.
    pub members: Vec<Member>,
    /// Members that currently fail to ack probes.
    pub suspicions: Vec<(NodeId, Suspicion)>,
    /// Failed members; the node tries to reconnect to them.
    pub failed: Vec<FailedMember>,
    /// Members that sent corrupt blocks, and how many.
    pub corrupt: Vec<(NodeId, u32)>,
    /// Number of objects and operations.
    pub counts: Counts,
    /// The store.
    pub store: StoreCounts,
}

/// Numbers of objects and operations at a node. The status that users read has the same field
/// names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Copies on this node.
    pub objects: u64,
    /// Objects in this node's part of the directory.
    pub owned: u64,
    /// Client requests without a reply.
    pub waiting: u64,
    /// Client reduces in progress.
    pub reduces: u64,
}

/// Store sizes of a node in bytes. The status has the same field names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCounts {
    /// Copies in memory.
    pub used: u64,
    /// Limit of `used`.
    pub capacity: u64,
    /// Other members' small objects in the directory.
    pub small: u64,
    /// Limit of `small`.
    pub small_capacity: u64,
    /// Files of copies.
    pub spilled: u64,
    /// Limit of `spilled`; zero if the node has no spill directory.
    pub spill_limit: u64,
}

/// One copy on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRow {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// `filling`, `flowing`, `folding`, `complete`, `spilled` (on disk only) or `returning` (from
    /// disk).
    pub state: String,
    /// Whether the copy is pinned until the object is deleted.
    pub pinned: bool,
    /// Readers, transfers and folds that use it.
    pub readers: u32,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
}
