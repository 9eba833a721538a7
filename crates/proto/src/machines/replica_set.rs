//! Replicas of one pinned copy: which nodes were requested to keep one, and which keep it.
//!
//! A node may take long to fetch a large object, or may never reply. After its deadline
//! ([`replica_timeout_ns`]), another node is requested in addition. The first one that has the
//! object keeps it; a later one is released. A client's request fails when every other node was
//! requested and twice the time has passed.
//!
//! ```text
//!   unknown --> requested --> kept --> tired (it wants to give the copy back)
//!                   |   \--> refused (it has no capacity), for RETRY_NS
//!                   |
//!                   +--> late (past its deadline) --> as above, or unknown again if enough others keep it
//!   kept or tired --> unknown, if its file is lost
//! ```
//!
//! Does not know other objects. Of the waiting clients it knows only the numbers of their requests.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    lifetime::Terms,
    limits::PROGRESS_WINDOW_NS,
    machines::world::World,
    members::Members,
    message::Message,
    meta::Meta,
    mutants::{self, Mutant},
    reduce::cost::Link,
    table::Copy,
    time::Instant,
    timed::Deadline,
};

/// A pinned copy that is to have replicas.
#[derive(Debug)]
pub(crate) struct ReplicaSet {
    pub(crate) id: ObjectId,
    meta: Meta,
    inline: Option<Inline>,
    /// Its lifetime; `None` if it lives until it is deleted.
    terms: Option<Box<Terms>>,
    /// The capacity that a replica takes.
    pub(crate) bytes: u64,
    /// The number of nodes that should hold it, this one included.
    pub(crate) replicas: usize,
    /// The client requests that wait for that.
    pub(crate) requests: Vec<RequestId>,
    /// Nodes that were requested and have not replied, each with its deadline, after which another
    /// node is requested in addition.
    requested: BTreeMap<NodeId, Instant>,
    /// Nodes that have missed their deadline.
    overdue: BTreeSet<NodeId>,
    pub(crate) stored: BTreeSet<NodeId>,
    /// Nodes that keep it until another node does.
    pub(crate) returning: BTreeSet<NodeId>,
    /// Nodes that had no capacity for it, or were leaving.
    pub(crate) refused: BTreeSet<NodeId>,
    /// Nodes that kept it or were requested to, and were lost since. One may still have it when it
    /// rejoins, or receive the request after it has dropped this node's state.
    pub(crate) failed: BTreeSet<NodeId>,
    /// Whether this node leaves, so that its own copy does not count, and a node without capacity
    /// may wait for it.
    leaves: bool,
    /// Nodes that were requested before this node began to leave, and may have capacity later.
    requested_before: BTreeSet<NodeId>,
    /// The number of the last membership change that was applied to it.
    pub(crate) changes_seen: u32,
    /// When nodes without capacity are requested again.
    pub(crate) retry_at: Option<Instant>,
    /// When waiting requests fail because no other node is left.
    pub(crate) give_up_at: Option<Instant>,
}

/// Minimum share of a link that a node receives a replica with, before another one is requested: a
/// hundredth, because a hundred other transfers may share the link.
const SHARE_OF_LINK: u64 = 100;

/// The time that a node has to get a replica of `bytes` bytes, before another one is requested in
/// addition: 30 s, plus 14 minutes for each GiB at 1 Gbit/s.
pub(crate) fn replica_timeout_ns(bytes: u64, link: Link) -> u64 {
    let bytes_per_second = u128::from((link.bytes_per_second / SHARE_OF_LINK).max(1));
    let arriving_ns = u128::from(bytes) * 1_000_000_000 / bytes_per_second;
    PROGRESS_WINDOW_NS.saturating_add(u64::try_from(arriving_ns).unwrap_or(u64::MAX))
}

/// How many nodes are compared, those that follow this one in a ring: enough that the load is even,
/// and few enough that a choice takes microseconds in a large cluster.
const CANDIDATES: usize = 64;

/// Time between two requests to nodes that had no capacity: 1 s.
const RETRY_NS: u64 = 1_000_000_000;

impl Deadline for ReplicaSet {
    fn deadline(&self) -> Option<Instant> {
        let requested = self.requested.values().copied();
        requested.chain(self.retry_at).chain(self.give_up_at).min()
    }
}

impl ReplicaSet {
    pub(crate) fn new(copy: &Copy) -> Self {
        Self {
            id: copy.id.clone(),
            meta: copy.meta.clone(),
            inline: copy.inline.clone(),
            terms: copy.terms.clone(),
            bytes: copy.bytes(),
            replicas: 0,
            requests: Vec::new(),
            requested: BTreeMap::new(),
            overdue: BTreeSet::new(),
            stored: BTreeSet::new(),
            returning: BTreeSet::new(),
            refused: BTreeSet::new(),
            failed: BTreeSet::new(),
            leaves: false,
            requested_before: BTreeSet::new(),
            changes_seen: 0,
            retry_at: None,
            give_up_at: None,
        }
    }

    /// The message that requests a node to keep a replica.
    fn request_of(&self, instance: Instance, now: Instant) -> Message {
        let (id, meta, inline) = (self.id.clone(), self.meta.clone(), self.inline.clone());
        let lifetime = self.terms.as_ref().map(|terms| terms.to_lifetime(now));
        Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait: self.leaves }
    }

    fn is_known(&self, node: NodeId) -> bool {
        let known = [&self.overdue, &self.stored, &self.returning, &self.refused];
        self.requested.contains_key(&node) || known.iter().any(|nodes| nodes.contains(&node))
    }

    /// All nodes that were requested and are not lost.
    pub(crate) fn known(&self) -> impl Iterator<Item = NodeId> {
        let replied = [&self.stored, &self.returning, &self.refused];
        self.pending().chain(replied.into_iter().flatten().copied())
    }

    /// Nodes that were requested and have not replied.
    pub(crate) fn pending(&self) -> impl Iterator<Item = NodeId> {
        self.requested.keys().chain(&self.overdue).copied()
    }

    /// Marks the request to a node as answered or void. Returns whether there was one.
    pub(crate) fn settle(&mut self, node: NodeId) -> bool {
        self.requested_before.remove(&node);
        self.requested.remove(&node).is_some() || self.overdue.remove(&node)
    }

    /// Handles that a requested node has replied. A refusal of a request from before this node
    /// began to leave does not count: such a node gets another one, for which it may wait. Returns
    /// whether it was requested.
    pub(crate) fn replied(&mut self, node: NodeId, accepted: bool) -> bool {
        let is_early = self.requested_before.contains(&node);
        let was_requested = self.settle(node);
        if was_requested && accepted {
            self.stored.insert(node);
        } else if was_requested && !is_early {
            self.refused.insert(node);
        }
        was_requested
    }

    /// Moves nodes that are past their deadline to `overdue`, and returns them.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let overdue = self.requested.iter().filter(|(_, until)| **until <= now);
        let overdue: Vec<NodeId> = overdue.map(|(node, _)| *node).collect();
        for node in &overdue {
            self.requested.remove(node);
            self.overdue.insert(*node);
        }
        overdue
    }

    /// Marks the request to a node as void, because messages to it may be lost. Returns whether
    /// there was one.
    pub(crate) fn void_request(&mut self, node: NodeId) -> bool {
        let was_requested = self.settle(node);
        if was_requested {
            self.failed.insert(node);
        }
        was_requested
    }

    pub(crate) fn forget(&mut self, node: NodeId) {
        if [&mut self.stored, &mut self.returning].into_iter().any(|nodes| nodes.remove(&node)) {
            self.failed.insert(node);
        }
        self.void_request(node);
        self.refused.remove(&node);
    }

    /// Nodes that may have a replica, or look for one, without being a holder yet.
    pub(crate) fn searching(&self) -> BTreeSet<NodeId> {
        self.pending().chain(self.failed.iter().copied()).collect()
    }

    /// Nodes where a replica takes capacity, or will.
    pub(crate) fn charged(&self) -> impl Iterator<Item = NodeId> {
        self.pending().chain(self.stored.iter().copied())
    }

    /// How many of the other nodes should have a replica.
    pub(crate) fn wanted(&self, members: &Members) -> usize {
        match self.leaves {
            // At least one, even if no node is left to request it from.
            true => self.replicas.max(1).min(members.staying()).max(1),
            false => self.replicas.saturating_sub(1).min(members.len() - 1),
        }
    }

    /// Begins to replace the copy of this node, which leaves.
    pub(crate) fn leave(&mut self) {
        if !self.leaves {
            self.requested_before = self.pending().collect();
        }
        self.leaves = true;
        // They may have capacity later.
        self.refused.clear();
    }

    /// Whether this node leaves, and no other one is left to request a replica from.
    pub(crate) fn is_given_up(&self) -> bool {
        self.leaves && self.pending().next().is_none()
    }

    /// Whether the copy of this node is being replaced.
    pub(crate) const fn leaves(&self) -> bool {
        self.leaves
    }

    /// Requests as many replicas as are missing, from `unresponsive` nodes last. Returns whether
    /// there are enough now.
    pub(crate) fn send_requests(
        &mut self,
        instance: Instance,
        load: &mut BTreeMap<NodeId, u64>,
        unresponsive: &BTreeSet<NodeId>,
        world: &mut World,
    ) -> bool {
        let wanted = self.wanted(world.members());
        let counts_requested =
            mutants::is_active(Mutant::CountsRequestedReplicas) && !self.requested.is_empty();
        if self.stored.len() >= wanted || counts_requested {
            self.release_extra(instance, world);
            return true;
        }
        let missing = wanted.saturating_sub(self.stored.len() + self.requested.len());
        let members = world.members();
        let is_candidate = |node: &NodeId| {
            members.contains(*node) && !members.is_leaving(*node) && !self.is_known(*node)
        };
        let near = members.ring().filter(|node| !self.failed.contains(node) && is_candidate(node));
        let failed = self.failed.iter().copied().filter(is_candidate);
        // First, nodes that may still have it. Then, the node that keeps the least for this one.
        // Ties go to the next node in a ring of all nodes, so that the replicas of many nodes
        // spread as well.
        let rank = |node: NodeId| {
            let stored = load.get(&node).copied().unwrap_or_default();
            let is_new = !self.failed.contains(&node);
            (unresponsive.contains(&node), is_new, stored, node.0.wrapping_sub(world.me().0))
        };
        let until = world.now() + replica_timeout_ns(self.bytes, world.config().link);
        let candidates = failed.chain(near.take(CANDIDATES));
        let mut candidates: Vec<_> = candidates.map(|node| (rank(node), node)).collect();
        candidates.sort_unstable();
        for (_, node) in candidates.into_iter().take(missing) {
            self.requested.insert(node, until);
            *load.entry(node).or_default() += self.bytes;
            world.send(node, self.request_of(instance, world.now()));
        }
        let is_short = self.stored.len() + self.requested.len() < wanted;
        // A node refuses a copy of a leaving one only if it will never have capacity.
        let may_have_room =
            is_short && !self.leaves && (self.overdue.is_empty() || !self.refused.is_empty());
        self.retry_at = may_have_room.then(|| self.retry_at.unwrap_or(world.now() + RETRY_NS));
        let is_stuck = is_short && !may_have_room && self.requested.is_empty();
        let has_no_candidate = is_stuck && !self.requests.is_empty();
        self.give_up_at = has_no_candidate.then(|| self.give_up_at.unwrap_or(until));
        // Nodes that want to give it back hold it until other nodes do.
        self.stored.len() + self.returning.len() >= wanted
    }

    /// Handles that enough nodes keep it: releases the others.
    fn release_extra(&mut self, instance: Instance, world: &mut World) {
        (self.retry_at, self.give_up_at) = (None, None);
        // Others kept it before, or were requested to. Those that are not members now are released
        // when they rejoin.
        let spare = self.failed.iter().chain(&self.returning).copied();
        let spare = spare.filter(|node| {
            world.members().contains(*node) && !self.charged().any(|it| it == *node)
        });
        for node in spare.collect::<Vec<_>>() {
            world.send(node, Message::ReleaseReplica { id: self.id.clone(), instance });
        }
        self.refused.append(&mut self.returning);
        let members = world.members();
        self.failed.retain(|node| !members.contains(*node) && members.is_departed(*node));
    }

    /// The number of nodes that hold it, this one included.
    pub(crate) fn reached(&self) -> u32 {
        u32::try_from(self.stored.len() + self.returning.len() + 1).unwrap_or(u32::MAX)
    }

    /// Describes the progress in words.
    pub(crate) fn state(&self) -> String {
        let mut state = format!("it has {} of {} replicas", self.reached(), self.replicas);
        if !self.refused.is_empty() {
            state += &format!(", {} nodes have no capacity for it", self.refused.len());
        }
        for node in &self.overdue {
            state += &format!(", node {node} has not replied to the request for a replica");
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_of_a_replica_grows_with_its_size() {
        let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
        assert_eq!(replica_timeout_ns(1000, link) / 1_000_000_000, 30);
        assert_eq!(replica_timeout_ns(1 << 30, link) / 60_000_000_000, 14);
        let slowest = Link { bytes_per_second: 0, ..link };
        assert_eq!(replica_timeout_ns(u64::MAX, slowest), u64::MAX);
    }
}
