//! The state of [`Replicas`]. Other files change it, one part each.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::set::ReplicaSet;
use crate::{
    event::LostObjects,
    id::{Instance, Name, NodeId, ObjectId},
    time::Instant,
    timed::Timed,
};

/// This node's pinned copies that are to have replicas, and those that it keeps for other nodes.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    pub(super) sets: Timed<Instance, ReplicaSet>,
    /// Bytes of replicas that each other node keeps, or was requested to keep.
    pub(super) load: BTreeMap<NodeId, u64>,
    /// Nodes that missed a deadline and have not replied since: they are requested last.
    pub(super) unresponsive: BTreeSet<NodeId>,
    pub(super) hosted: Hosted,
    /// While this node leaves.
    pub(super) hand_over: Option<Box<HandOver>>,
}

/// Pinned copies that other nodes requested this one to keep.
#[derive(Debug, Default)]
pub(super) struct Hosted {
    /// In transfer to this node, each with the number of losses of its requester before. After
    /// another one it is void, until the walk for that change removes it.
    pub(super) incoming: BTreeMap<ObjectId, (IncomingReplica, u32)>,
    /// Of each requester, the number of copies in transfer, and of its losses since it has any.
    pub(super) requesters: BTreeMap<NodeId, (usize, u32)>,
    /// Here, for nodes that have them too: first those that were not given back.
    pub(super) stored: BTreeMap<(IsReturned, Instance), HostedFor>,
    pub(super) stored_bytes: u64,
    pub(super) returned_bytes: u64,
}

/// Whether this node gives a replica back: another node is being sought.
pub(super) type IsReturned = bool;

/// A pinned copy in transfer to this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingReplica {
    pub(crate) requester: NodeId,
    pub(crate) instance: Instance,
    /// Whether the requester waits until there is capacity here. It does so only when it leaves.
    pub(crate) may_wait: bool,
}

/// The node that a replica is kept for, and the capacity that the replica takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostedFor {
    pub(super) requester: NodeId,
    pub(super) bytes: u64,
}

/// Progress of the hand-over.
#[derive(Debug)]
pub(super) struct HandOver {
    /// The last copy for which another node was requested, and whether none is left.
    pub(super) reached: Option<Instance>,
    pub(super) is_over: bool,
    /// Pinned copies that no other node takes.
    pub(super) untaken: BTreeSet<Instance>,
    /// Until when the node waits for clients that are filling objects.
    pub(super) fills_until: Option<Instant>,
    pub(super) until: Instant,
    /// When the next slice is due.
    pub(super) next_at: Instant,
    /// What is left to do once nothing can be handed over any more.
    pub(super) farewell: Option<Farewell>,
}

/// What the other nodes must learn before this one leaves.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    pub(crate) next: FarewellStage,
    pub(crate) lost: LostObjects,
    /// Files that may be read until this node ends.
    pub(crate) files: Vec<Instance>,
}

/// What the last walk visits next: one kind of state, and the last key of it that was visited.
#[derive(Clone, Debug)]
pub(crate) enum FarewellStage {
    Copies(Option<Instance>),
    Jobs(Option<Name>),
    Entries(Option<ObjectId>),
}

impl Default for FarewellStage {
    fn default() -> Self {
        Self::Copies(None)
    }
}
