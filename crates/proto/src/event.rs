//! Events and actions: the interface between a node's state machine and its shell.

use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};
use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    broadcast::Reason,
    directory::Slice,
    error::Error,
    failed_members::ReconnectFailure,
    id::{ClientId, FetchId, Instance, NodeId, ObjectId, QuestionId, ReduceId, RequestId, ServeId},
    inline::Inline,
    inspection::Inspection,
    lifetime::Lifetime,
    members::Member,
    message::{FoldKey, FoldOrder, Message},
    meta::{Digest, Dtype, Meta, Op},
    place::Place,
    reduce::{
        cost::{DegreeReason, Link},
        shape::Degree,
    },
    request::{Reply, Request},
    time::Instant,
};

/// Minimum interval of [`Event::FetchProgress`] for one transfer: 10 ms.
pub const FETCH_PROGRESS_NS: u64 = 10_000_000;

/// Time after which a fold that waits for a child reports [`Event::FoldStalled`], and interval of
/// further reports: 200 ms. The coordinator then restarts the fold with another input, which takes
/// as long as the fold itself. The timeout of a copy transfer would be too long.
pub const FOLD_STALL_NS: u64 = 200_000_000;

/// Default time that a leaving node waits for other nodes: 60 s.
pub const LEAVE_TIMEOUT_NS: u64 = 60 * 1_000_000_000;

/// Pinned copies that were lost when their node left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostObjects {
    /// The first of them, at most [`LOST_NAMED_MAX`].
    pub ids: Vec<ObjectId>,
    /// Their number.
    pub count: usize,
}

/// The bytes of another node's copy that a copy of a range consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeSource {
    /// The instance at the source.
    pub of: Instance,
    /// The offset of the first byte in it.
    pub start: u64,
}

/// Metadata in the file of a pinned copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpilledCopy {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// Its metadata.
    pub meta: Meta,
    /// Time to live and job; `None` if the object exists until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
    /// The bytes of an inline object; otherwise they are in its slot or in the file.
    pub inline: Option<Inline>,
}

/// Something that happened outside the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client sent a request.
    Request {
        /// The client.
        client: ClientId,
        /// Number of the request; the reply repeats it.
        request: RequestId,
        /// The request.
        body: Request,
        /// Deadline of the reply. A deadline of now means: only if the object is already here.
        deadline: Option<Instant>,
    },
    /// A client canceled a request. It still gets a reply.
    Cancelled {
        /// The client.
        client: ClientId,
        /// The request.
        request: RequestId,
    },
    /// A client closed or failed. Its pins, its requests and its unsealed objects end with it.
    ClientDisconnected {
        /// The client.
        client: ClientId,
        /// Its process, if known.
        process: Option<u32>,
    },
    /// A client is about to fork. The copies that it reads are pinned once more for `child`, which
    /// sends no requests and ends at some point.
    ClientForked {
        /// The parent.
        client: ClientId,
        /// The child.
        child: ClientId,
    },
    /// Memory for a copy is allocated.
    SlotReady {
        /// The copy.
        instance: Instance,
    },
    /// No memory for a copy is available now. The node evicts what it can, then the copy waits
    /// until memory is free.
    SlotRefused {
        /// The copy.
        instance: Instance,
        /// What is exhausted.
        detail: String,
    },
    /// Memory for a copy can't be allocated.
    SlotFailed {
        /// The copy.
        instance: Instance,
        /// Error of the operating system.
        detail: String,
    },
    /// An earlier node left pinned copies in files. This is the first event.
    CopiesRecovered {
        /// Metadata in the files. Of two instances of one name, the later one comes last.
        all: Vec<SpilledCopy>,
    },
    /// A copy is completely written to a file.
    Spilled {
        /// The copy.
        instance: Instance,
    },
    /// A copy could not be written to a file.
    SpillFailed {
        /// The copy.
        instance: Instance,
        /// The folder and the error of the operating system.
        detail: String,
        /// Whether the disk would not take another copy either. If not, only this copy can't be
        /// written.
        is_disk_failing: bool,
    },
    /// A copy is completely back in memory.
    Unspilled {
        /// The copy.
        instance: Instance,
    },
    /// The file of a copy is unreadable or corrupt.
    UnspillFailed {
        /// The copy.
        instance: Instance,
        /// The file and what is wrong with it.
        detail: String,
    },
    /// A member sent a message.
    Message {
        /// The member.
        from: NodeId,
        /// The message.
        message: Message,
    },
    /// A connection to a node was established, in either direction.
    PeerUp {
        /// The node.
        member: Member,
    },
    /// A member reconnected because its connection to this node broke. Its last messages may be
    /// lost.
    PeerReconnected {
        /// The member.
        member: Member,
    },
    /// The connection to a node broke, and a reconnect failed.
    PeerUnreachable {
        /// The node.
        node: NodeId,
        /// Whether the node's process has ended: at its address there is no process or another one.
        /// Otherwise the shell keeps trying.
        is_dead: bool,
    },
    /// A member is barred from the cluster. The shell rejects its connections from now on.
    PeerRevoked {
        /// The member.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A connection attempt to a node failed.
    ReconnectFailed {
        /// The node.
        node: NodeId,
        /// How it failed.
        failure: ReconnectFailure,
    },
    /// A node requests a copy.
    FetchRequested {
        /// Number of the request; the reply repeats it.
        serve: ServeId,
        /// The object.
        id: ObjectId,
        /// The instance.
        instance: Instance,
    },
    /// A transfer from this node ended for any reason, or its requester gave up before the reply.
    ServeEnded {
        /// The transfer.
        serve: ServeId,
    },
    /// A transfer waits for its turn: others from its source arrive.
    FetchQueued {
        /// The transfer.
        fetch: FetchId,
    },
    /// It is a queued transfer's turn: its source gets the request.
    FetchStarted {
        /// The transfer.
        fetch: FetchId,
    },
    /// More of a copy has arrived. The shell reports this at most every [`FETCH_PROGRESS_NS`].
    FetchProgress {
        /// The transfer.
        fetch: FetchId,
        /// Bytes that this transfer has delivered.
        received: u64,
        /// Bytes that this transfer has yet to deliver.
        missing: u64,
        /// Number of transfers that share the busier end of its link, including this one.
        shares: u16,
    },
    /// Everything that a transfer was to deliver has arrived.
    Fetched {
        /// The transfer.
        fetch: FetchId,
    },
    /// A transfer ended before it had delivered everything.
    FetchFailed {
        /// The transfer.
        fetch: FetchId,
        /// Whether the source replied that it has no such copy.
        not_here: bool,
    },
    /// A block did not match its checksum and was dropped.
    BlockCorrupt {
        /// The node that sent it.
        source: NodeId,
    },
    /// A whole copy has arrived, but does not match its creator's digest.
    CopyCorrupt {
        /// The transfer that sent the last part.
        fetch: FetchId,
    },
    /// An inline object from an owner does not match its creator's digest. The shell drops the
    /// message.
    InlineCorrupt {
        /// The object.
        id: ObjectId,
        /// The owner.
        source: NodeId,
    },
    /// Inline inputs were folded.
    FoldedInline {
        /// The reduce.
        reduce: ReduceId,
        /// Its epoch.
        epoch: u32,
        /// The result.
        result: Inline,
    },
    /// A fold waits for the stream of a child, and nothing has arrived for [`FOLD_STALL_NS`].
    /// Repeated at the same interval.
    FoldStalled {
        /// The fold.
        key: FoldKey,
        /// The node of the child.
        node: NodeId,
    },
    /// A fold ended.
    FoldEnded {
        /// The fold.
        key: FoldKey,
        /// Why it failed; `None` if it finished.
        failure: Option<String>,
    },
    /// Latency and bandwidth to the other nodes were measured.
    LinkMeasured {
        /// The measured values; defaults where there are none.
        link: Link,
        /// Whether the bandwidth was measured.
        has_bandwidth: bool,
    },
    /// The report of an [`Action::Inspect`].
    Inspected {
        /// The member that requested it.
        to: NodeId,
        /// Its question.
        number: QuestionId,
        /// The report, as JSON.
        report: String,
    },
    /// This node must leave the cluster.
    LeaveRequested {
        /// Time limit.
        timeout_ns: u64,
    },
    /// The measured places of members, in place of all earlier ones. Configured places take
    /// precedence.
    PlacesFound {
        /// The members that share a link with others.
        places: BTreeMap<NodeId, Place>,
    },
    /// The time of [`Node::deadline`] has come.
    DeadlinePassed,
}

/// A transfer of missing blocks of a copy to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOrder {
    /// Its number.
    pub fetch: FetchId,
    /// The object.
    pub id: ObjectId,
    /// The copy.
    pub instance: Instance,
    /// The source.
    pub source: NodeId,
    /// The missing bytes of these ranges are received, in this order; `None` for all that is
    /// missing.
    pub ranges: Option<Vec<Range<u64>>>,
    /// Whether the other ranges are produced here: the transfer ends when they are there too. The
    /// source may not know yet that it will have the ranges.
    pub in_parts: bool,
    /// Expected digest of the whole copy, for a transfer of all that is missing; a mismatch results
    /// in [`Event::CopyCorrupt`].
    pub digest: Option<Digest>,
    /// Where the bytes of the copy are in the source's copy; `None` if both are copies of the same
    /// instance.
    pub range: Option<RangeSource>,
}

/// Something that the shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reply to a client.
    Reply {
        /// The client.
        client: ClientId,
        /// The request.
        request: RequestId,
        /// The reply.
        reply: Result<Reply, Error>,
    },
    /// What a request began and what went on after its reply has ended, or a part of it. Comes once
    /// for each reduce, reservation, slot, and lease, however it ends.
    WorkEnded {
        /// The request.
        request: RequestId,
    },
    /// Send a message. Messages are sent in the order of these actions.
    Send {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: Message,
    },
    /// Prepare to send to this member.
    AddPeer(Member),
    /// Close all connections to this node.
    DropPeer {
        /// The node.
        node: NodeId,
        /// Whether the node left by itself, and must still receive what was sent. Messages queued
        /// for a failed node are dropped.
        has_left: bool,
    },
    /// Reconnect to a failed member; results in `PeerReconnected` or `ReconnectFailed`.
    Reconnect(Member),
    /// Allocate memory for a copy; results in `SlotReady`, `SlotRefused` or `SlotFailed`, unless
    /// `FreeSlot` comes first.
    CreateSlot {
        /// The copy.
        instance: Instance,
        /// Its payload in bytes.
        size: u64,
        /// The client that will write it, if any.
        writer: Option<ClientId>,
    },
    /// Release the memory of a copy, into which no transfer runs any more. Readers of a complete
    /// copy keep it; readers that wait for the rest of a partial one are notified.
    FreeSlot {
        /// The copy.
        instance: Instance,
    },
    /// Write a complete copy to a file; results in `Spilled` or `SpillFailed`, unless `DropSpilled`
    /// comes first. The copy may lose its memory meanwhile.
    Spill {
        /// Metadata for the file.
        kept: Box<SpilledCopy>,
    },
    /// Read a copy from its file into its slot, front to back; results in `Unspilled` or
    /// `UnspillFailed`, unless `FreeSlot` comes first.
    Unspill {
        /// The copy.
        instance: Instance,
    },
    /// Remove the file of a copy, even if it is still being written.
    DropSpilled {
        /// The copy.
        instance: Instance,
    },
    /// Receive missing blocks of a copy; results in `Fetched`, `FetchFailed` or `CopyCorrupt`.
    /// Several transfers into one copy have disjoint ranges.
    Fetch(FetchOrder),
    /// Stop a transfer. No event results.
    StopFetch {
        /// The transfer.
        fetch: FetchId,
    },
    /// Send a copy, including what still arrives of it; results in `ServeEnded`.
    Serve {
        /// The request.
        serve: ServeId,
        /// The copy.
        instance: Instance,
        /// Whether the copy itself arrived over the network, or is produced by a reduce.
        relayed: bool,
    },
    /// Reply that this node has no such copy.
    Refuse {
        /// The request.
        serve: ServeId,
    },
    /// Fold; results in `FoldEnded`. Inputs without a slot are in files.
    StartFold {
        /// The order.
        order: FoldOrder,
        /// The copy to fold into and the number of inputs it will contain; otherwise buffer the
        /// stream for the parent.
        target: Option<(Instance, u64)>,
    },
    /// Stop a fold; also results in `FoldEnded`.
    StopFold {
        /// The fold.
        key: FoldKey,
    },
    /// Fold inline inputs; results in `FoldedInline`.
    FoldInline {
        /// The reduce.
        reduce: ReduceId,
        /// Its epoch.
        epoch: u32,
        /// The operation.
        op: Op,
        /// Element type.
        dtype: Dtype,
        /// The inputs, all of the same length.
        inputs: Vec<Inline>,
    },
    /// Report what this node does, or its metrics; results in `Inspected`.
    Inspect {
        /// The member that requests it, perhaps this node.
        to: NodeId,
        /// Its question.
        number: QuestionId,
        /// What to report.
        inspection: Inspection,
    },
    /// Handle a message of a survey; may result in `PlacesFound`.
    Survey {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Inline,
    },
    /// Log and count a decision.
    Log(LogEvent),
    /// This node has announced its departure and may close.
    Left {
        /// Pinned copies that no other node took over.
        lost: LostObjects,
    },
}

/// Whom a limit concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSubject {
    /// A member of the cluster.
    Member(NodeId),
    /// A client of this node.
    Client(ClientId),
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// A source was chosen for this node.
    SourceChosen {
        /// The object.
        id: ObjectId,
        /// The source.
        source: NodeId,
        /// Why.
        reason: Reason,
    },
    /// An owner replaced the source of an arriving object. Received blocks stay.
    SourceReplaced {
        /// The object.
        id: ObjectId,
        /// The previous source.
        before: NodeId,
        /// The source of the rest.
        source: NodeId,
    },
    /// The shape of a reduce tree was chosen.
    DegreeChosen {
        /// The result.
        id: ObjectId,
        /// The degree of the tree.
        degree: Degree,
        /// Why.
        reason: DegreeReason,
    },
    /// A reduce runs as a ring; each of several nodes folds a part.
    RingChosen {
        /// The result.
        id: ObjectId,
        /// Number of parts.
        parts: usize,
    },
    /// A node has sent corrupt blocks, and is avoided from now on.
    SourceAvoided {
        /// The node.
        node: NodeId,
        /// Number of corrupt blocks.
        blocks: u32,
    },
    /// An attempt of a reduce failed, and the next begins.
    ReduceRestarted {
        /// The result.
        id: ObjectId,
        /// The epoch that failed.
        epoch: u32,
        /// Why.
        detail: String,
    },
    /// A reduce of this node ended.
    ReduceEnded {
        /// The result.
        id: ObjectId,
        /// When it began.
        since: Instant,
        /// Why it failed; `None` if its result is complete.
        failure: Option<String>,
    },
    /// A node is no longer a member.
    MemberRemoved {
        /// The node.
        node: NodeId,
        /// `left`, `failed` or `barred`.
        how: &'static str,
        /// Why, as text.
        reason: String,
    },
    /// A node has not confirmed in time that it keeps a replica. Another node gets the same
    /// request.
    ReplicaLate {
        /// The object.
        id: ObjectId,
        /// The late node.
        node: NodeId,
    },
    /// A message was dropped because it is malformed, or because its sender is not the owner in
    /// this node's membership view.
    MessageRejected {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Box<Message>,
    },
    /// A limit rejected a message of a member or a request of a client.
    Limited {
        /// The member or client.
        whose: LimitSubject,
        /// The name of the limit in [`crate::limits`].
        limit: &'static str,
    },
    /// A request has waited for long; reported once.
    LongWait {
        /// The request.
        request: RequestId,
        /// The object, or another result.
        what: String,
        /// Why it is not here.
        state: String,
        /// Time since the request began, in nanoseconds.
        waited_ns: u64,
    },
    /// Copies were evicted.
    Evicted {
        /// Their number.
        copies: usize,
    },
}

/// Settings of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Capacity of the store in bytes.
    pub capacity: u64,
    /// Latency and bandwidth to assume until they are measured.
    pub link: Link,
    /// The degree of every reduce, for the simulator, which tries all of them; `None` lets the cost
    /// model choose.
    pub degree: Option<Degree>,
    /// Time after which an unresponsive member is declared dead; `None` waits until its connections
    /// break.
    pub detection_ns: Option<u64>,
    /// Number of entries and copies to update at a time after a membership change.
    #[serde(default)]
    pub slice: Slice,
    /// Limit of the inline cache for other members in bytes; `None` takes the share
    /// [`crate::limits::INLINE_SHARE`] of the capacity.
    #[serde(default)]
    pub inline_capacity: Option<u64>,
}

impl Config {
    /// A configuration with defaults for all other settings. Failure detection by probes is off.
    pub fn new(capacity: u64, link: Link) -> Self {
        Self {
            capacity,
            link,
            degree: None,
            detection_ns: None,
            slice: Slice::default(),
            inline_capacity: None,
        }
    }
}
