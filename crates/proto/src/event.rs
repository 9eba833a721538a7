//! The language between a node's decisions and its shell: facts that go in, orders that come out.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    ask::{Answer, Ask},
    broadcast::Reason,
    directory::Slice,
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, ReduceId, RequestId, ServeId},
    inline::Inline,
    lifetime::Lifetime,
    members::Member,
    message::{FoldKey, FoldOrder, Message},
    meta::{Digest, Dtype, Meta, Op},
    redial::CallFailure,
    reduce::{
        cost::{DegreeReason, Link},
        shape::Degree,
    },
    time::Instant,
};

/// Nanoseconds between two [`Event::FetchGrew`] of a transfer, at least: 10 ms.
pub const GROWTH_NS: u64 = 10_000_000;

/// After how long a wait for a child is an [`Event::FoldWaited`], and again: 200 ms. The coordinator then begins the sum anew
/// with another input, which takes as long as the sum itself; to wait as long as for a copy would be too long.
pub const FOLD_WAITED_NS: u64 = 200_000_000;

/// How long a node that leaves waits for others if it is not said: 60 s.
pub const LEAVE_PATIENCE_NS: u64 = 60 * 1_000_000_000;

/// Originals that were lost with a node that left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The first of them, at most [`LOST_NAMED_MAX`].
    pub ids: Vec<ObjectId>,
    /// How many they are.
    pub count: usize,
}

/// What a file says of the original that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of which object.
    pub id: ObjectId,
    /// Which instance.
    pub instance: Instance,
    /// What it is.
    pub meta: Meta,
    /// How long the object lives, if not until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
    /// Its bytes if they are few; otherwise they are in its slot, or in the file.
    pub inline: Option<Inline>,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client asks.
    Asked {
        /// Who.
        client: ClientId,
        /// To be named in the reply.
        request: RequestId,
        /// What.
        ask: Ask,
        /// When it wants an answer at the latest; now means: only if it is here already.
        deadline: Option<Instant>,
    },
    /// A client does not want its answer any more. It is still given one.
    Cancelled {
        /// Of the question.
        request: RequestId,
    },
    /// A client is gone: its pins, its questions and what it had not sealed go with it.
    ClientGone {
        /// Who.
        client: ClientId,
    },
    /// A client is about to be forked: the copies that it reads are pinned once more, for `heir`, who asks nothing and
    /// is gone one day.
    ClientForked {
        /// Who.
        client: ClientId,
        /// On whose behalf.
        heir: ClientId,
    },
    /// There is memory for a copy.
    SlotReady {
        /// Which.
        instance: Instance,
    },
    /// There is no memory for a copy now. What may go does, then the copy waits until some is free.
    SlotRefused {
        /// Which.
        instance: Instance,
        /// What has no more.
        detail: String,
    },
    /// There can't be memory for a copy.
    SlotFailed {
        /// Which.
        instance: Instance,
        /// What the operating system said.
        detail: String,
    },
    /// A node of before has left these originals in files. Told before everything else.
    Kept {
        /// What the files say; of two instances under one name the later one last.
        all: Vec<Kept>,
    },
    /// A copy is in a file as a whole.
    Spilled {
        /// Which.
        instance: Instance,
    },
    /// A copy is in no file, and can't be now.
    SpillFailed {
        /// Which.
        instance: Instance,
        /// In which folder, and what the operating system said.
        detail: String,
    },
    /// A copy is in memory again as a whole.
    Unspilled {
        /// Which.
        instance: Instance,
    },
    /// The file of a copy can't be read, or is not what was written.
    UnspillFailed {
        /// Which.
        instance: Instance,
        /// Which file, and what is wrong with it.
        detail: String,
    },
    /// A member says something.
    Message {
        /// Who.
        from: NodeId,
        /// What.
        message: Message,
    },
    /// A node was met: it called us, or we it.
    PeerUp {
        /// Who.
        member: Member,
    },
    /// A member has connected anew, for its connection to here broke: what it said last may be lost.
    PeerAgain {
        /// Who.
        member: Member,
    },
    /// The connection to a node broke, and another can't be made.
    PeerLost {
        /// Who.
        node: NodeId,
        /// Whether its process is gone: no process, or another one, is at its address. Otherwise the shell goes on trying.
        is_dead: bool,
    },
    /// A member may not be one any more: the shell lets it in no more.
    PeerBarred {
        /// Who.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A node that was to be called can't be reached.
    CallFailed {
        /// Who.
        node: NodeId,
        /// How.
        failure: CallFailure,
    },
    /// A node wants to receive a copy.
    FetchAsked {
        /// To be named in the answer.
        serve: ServeId,
        /// Of which object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
    },
    /// A transfer out of here is over, however it ended; or who asked for it gave up before it was answered.
    ServeEnded {
        /// Which.
        serve: ServeId,
    },
    /// More of a copy has arrived. The shell says so every [`GROWTH_NS`] at most.
    FetchGrew {
        /// Which.
        instance: Instance,
        /// Who sends it.
        source: NodeId,
        /// Bytes that came by this transfer.
        received: u64,
        /// Bytes that are still to come by it.
        missing: u64,
        /// How many transfers share the busier end of its link, this one included.
        shares: u16,
    },
    /// A copy has arrived.
    Fetched {
        /// Which.
        instance: Instance,
    },
    /// A copy stopped arriving.
    FetchFailed {
        /// Which.
        instance: Instance,
        /// Who sent it.
        source: NodeId,
        /// Whether the sender said that it has no such copy.
        not_here: bool,
    },
    /// Bytes that a node sent differ from their checksum; they are not used.
    BlockCorrupt {
        /// Who sent them.
        source: NodeId,
    },
    /// A whole copy has come, and its bytes have another digest than their maker announced.
    CopyDiffers {
        /// Which.
        instance: Instance,
        /// Who sent its end.
        source: NodeId,
    },
    /// An owner answered with bytes that have another digest than their maker announced. The answer is not handed on.
    InlineDiffers {
        /// Of which object.
        id: ObjectId,
        /// The owner.
        source: NodeId,
    },
    /// Small inputs were folded.
    FoldedInline {
        /// For which reduce.
        reduce: ReduceId,
        /// In which epoch.
        epoch: u32,
        /// The result.
        result: Inline,
    },
    /// A fold waits for the stream of a child, and nothing has come for [`FOLD_WAITED_NS`]. Stated again each time that it
    /// has waited as long once more.
    FoldWaited {
        /// Which fold.
        key: FoldKey,
        /// The node of the child.
        node: NodeId,
    },
    /// A fold is over.
    FoldEnded {
        /// Which.
        key: FoldKey,
        /// Why it did not finish, if it did not.
        failure: Option<String>,
    },
    /// Latency and bandwidth to the others were measured.
    LinkMeasured {
        /// As far as they are known, and else what was assumed.
        link: Link,
        /// Whether the bandwidth was measured.
        has_bandwidth: bool,
    },
    /// This node shall leave the cluster.
    LeaveAsked {
        /// How long that may take.
        patience_ns: u64,
    },
    /// The moment of [`Node::deadline`] is here.
    DeadlinePassed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer a client.
    Reply {
        /// Which node.
        client: ClientId,
        /// To which question.
        request: RequestId,
        /// The answer.
        answer: Result<Answer, Error>,
    },
    /// Send a message, in the order of these actions.
    Send {
        /// To which node.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Be ready to send to this member.
    AddPeer(Member),
    /// Close all connections to this node.
    DropPeer {
        /// Which.
        node: NodeId,
        /// Whether it is there, and is to get what was sent. What was to be sent to one that was lost is void.
        has_left: bool,
    },
    /// Try to reach a node that was lost; answered by `PeerUp` or `CallFailed`.
    Call(Member),
    /// Take memory for a copy; answered by `SlotReady`, `SlotRefused` or `SlotFailed`, unless `FreeSlot` comes first.
    CreateSlot {
        /// Which.
        instance: Instance,
        /// Its payload.
        size: u64,
        /// The client that will write it, if one will.
        writer: Option<ClientId>,
    },
    /// Let go of the memory. Who reads a complete copy goes on; who waits for the rest of a growing one is told.
    FreeSlot {
        /// Which.
        instance: Instance,
    },
    /// Write a complete copy to a file; answered by `Spilled` or `SpillFailed`, unless `DropSpilled` comes first. It may lose its
    /// memory meanwhile.
    Spill {
        /// What the file is to say of it.
        kept: Box<Kept>,
    },
    /// Read a copy from its file into its slot, from front to end; answered by `Unspilled` or `UnspillFailed`, unless `FreeSlot`
    /// comes first.
    Unspill {
        /// Which.
        instance: Instance,
    },
    /// Remove the file of a copy, also if it is being written.
    DropSpilled {
        /// Which.
        instance: Instance,
    },
    /// Receive what is missing of a copy; answered by `Fetched`, `FetchFailed` or `CopyDiffers`. Ends the transfer of that copy before
    /// it, which is not answered then.
    Fetch {
        /// Of which object.
        id: ObjectId,
        /// Which instance.
        instance: Instance,
        /// From which node.
        source: NodeId,
        /// What to receive, in this order, from a node that may not know yet that it will have it, while the rest is made
        /// here; the copy has arrived when that is there too. Otherwise all that is missing.
        parts: Option<Vec<Range<u64>>>,
        /// What the whole copy is to have; if it has another, that is [`Event::CopyDiffers`].
        digest: Option<Digest>,
    },
    /// Stop receiving. Not answered.
    StopFetch {
        /// Which.
        instance: Instance,
    },
    /// Send a copy, and what is still to come of it; ends with `ServeEnded`.
    Serve {
        /// To which question.
        serve: ServeId,
        /// Which.
        instance: Instance,
        /// Whether the copy came over the network itself, or is made by a reduce.
        relayed: bool,
    },
    /// Say that there is no such copy here.
    Refuse {
        /// To which question.
        serve: ServeId,
    },
    /// Fold; ends with `FoldEnded`. Inputs that have no slot are in files.
    StartFold {
        /// The order.
        order: FoldOrder,
        /// The copy to fold into and how many inputs it will hold; otherwise keep the stream for the parent.
        target: Option<(Instance, u64)>,
    },
    /// Stop folding; ends with `FoldEnded` too.
    StopFold {
        /// Which.
        key: FoldKey,
    },
    /// Fold small inputs; answered by `FoldedInline`.
    FoldInline {
        /// For which reduce.
        reduce: ReduceId,
        /// In which epoch.
        epoch: u32,
        /// How.
        op: Op,
        /// Elements of which type.
        dtype: Dtype,
        /// Equally long.
        inputs: Vec<Inline>,
    },
    /// Worth a line in the log and a count.
    Note(Note),
    /// This node has said good-bye and may close.
    Left {
        /// The originals that no other node has taken over.
        lost: Lost,
    },
}

/// What a limit is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A member of the cluster.
    Member(NodeId),
    /// A client of this node.
    Client(ClientId),
}

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A sender was chosen for this node.
    SourceChosen {
        /// Of which object.
        id: ObjectId,
        /// Which node.
        source: NodeId,
        /// Why.
        reason: Reason,
    },
    /// An owner named another sender while the object arrived; what has come of it stays.
    SenderReplaced {
        /// Of which object.
        id: ObjectId,
        /// Who sent it until now.
        before: NodeId,
        /// Who sends the rest.
        source: NodeId,
    },
    /// The shape of a reduce was chosen.
    DegreeChosen {
        /// The result.
        id: ObjectId,
        /// Which.
        degree: Degree,
        /// Why.
        reason: DegreeReason,
    },
    /// A reduce is folded in parts, each at another node.
    Scattered {
        /// The result.
        id: ObjectId,
        /// How many.
        parts: usize,
    },
    /// A node has sent bytes that differ from their checksums, and is avoided from now on.
    SenderAvoided {
        /// Which.
        node: NodeId,
        /// How often.
        blocks: u32,
    },
    /// An attempt of a reduce failed and the next begins.
    ReduceRestarted {
        /// The result.
        id: ObjectId,
        /// The attempt that failed.
        epoch: u32,
        /// Why.
        detail: String,
    },
    /// A node that was asked to keep an original of this one has not answered in time: another one is asked beside it.
    KeeperLate {
        /// The original.
        id: ObjectId,
        /// Who was asked.
        node: NodeId,
    },
    /// A message was dropped: it is malformed, or its sender is not the owner that this node takes for one.
    MessageRefused {
        /// The sender.
        from: NodeId,
        /// The message.
        message: Box<Message>,
    },
    /// A limit turned away what a member said, or what a client asked for.
    Limited {
        /// Whose it was.
        whose: Whose,
        /// The name of the limit in [`crate::limits`].
        limit: &'static str,
    },
    /// A survey of the network is over.
    Surveyed {
        /// How many nodes were asked.
        nodes: usize,
        /// How many groups share a link each.
        groups: usize,
    },
    /// Copies were evicted.
    Evicted {
        /// How many.
        copies: usize,
    },
}

/// What a node may use and assumes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Bytes of objects the node may hold.
    pub capacity: u64,
    /// Latency and bandwidth until they are measured.
    pub link: Link,
    /// The degree of every reduce, for the simulation, which tries all of them; none lets the cost model choose.
    pub degree: Option<Degree>,
    /// After how long a member that falls silent counts as dead; none waits for its connections to break.
    pub detection_ns: Option<u64>,
    /// How much of what a change of members touches is worked off in one go.
    #[serde(default)]
    pub slice: Slice,
    /// Bytes of small objects of other members that live here beside that; none for a share of the capacity,
    /// [`crate::limits::SMALL_SHARE`].
    #[serde(default)]
    pub small: Option<u64>,
}

impl Config {
    /// All but capacity and link as a node has it to which nothing is said; it waits for connections to break.
    pub fn new(capacity: u64, link: Link) -> Self {
        Self {
            capacity,
            link,
            degree: None,
            detection_ns: None,
            slice: Slice::default(),
            small: None,
        }
    }
}
