//! Replicas of one pinned copy: which nodes were requested to keep one, and which keep it.
//!
//! A node may take long to fetch a large object, or may never reply. After its deadline
//! ([`replica_timeout_ns`]), another node is requested in addition. The first one that has the
//! object keeps it; a later one is released. A client's request fails when every other node was
//! requested and twice the time has passed.
//!
//! ```text
//!   unknown --> requested --> stored --> returning (it wants to give the copy back)
//!                   |   \--> refused (it has no capacity), for RETRY_NS
//!                   |
//!                   +--> late (past its deadline) --> as above
//!   any but refused --> lost (it may still have it when it rejoins) --> requested
//!   stored or returning --> unknown, if its file is lost
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
pub(super) struct ReplicaSet {
    pub(super) id: ObjectId,
    meta: Meta,
    inline: Option<Inline>,
    /// Its lifetime; `None` if it lives until it is deleted.
    terms: Option<Box<Terms>>,
    /// The capacity that a replica takes.
    pub(super) bytes: u64,
    /// The number of nodes that should hold it, this one included.
    pub(super) replicas: usize,
    /// The client requests that wait for that.
    pub(super) requests: Vec<RequestId>,
    nodes: BTreeMap<NodeId, Keeper>,
    /// Whether this node leaves, so that its own copy does not count, and a node without capacity
    /// may wait for it.
    leaves: bool,
    /// The number of the last membership change that was applied to it.
    pub(super) changes_seen: u32,
    /// When nodes without capacity are requested again.
    pub(super) retry_at: Option<Instant>,
    /// When waiting requests fail because no other node is left.
    pub(super) give_up_at: Option<Instant>,
}

/// Another node that was requested to keep a replica.
#[derive(Clone, Copy, Debug)]
struct Keeper {
    state: State,
    /// When another node is requested in addition.
    until: Instant,
    /// Whether it was requested before this node began to leave: then it may have capacity later.
    is_early: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not replied.
    Requested,
    /// Neither has it, and it has missed its deadline.
    Late,
    Stored,
    /// It keeps the replica until another node does.
    Returning,
    /// It had no capacity, was leaving, or was released.
    Refused,
    /// It was lost, or messages to it. It may have the replica, or receive the request after it has
    /// dropped this node's state.
    Lost,
}

/// States of nodes that were requested and have not replied.
const PENDING: &[State] = &[State::Requested, State::Late];

/// States of nodes where a replica takes capacity, or will.
const CHARGED: &[State] = &[State::Requested, State::Late, State::Stored];

/// Minimum share of a link that a node receives a replica with, before another one is requested: a
/// hundredth, because a hundred other transfers may share the link.
const SHARE_OF_LINK: u64 = 100;

/// The time that a node has to get a replica of `bytes` bytes, before another one is requested in
/// addition: 30 s, plus 14 minutes for each GiB at 1 Gbit/s.
pub(super) fn replica_timeout_ns(bytes: u64, link: Link) -> u64 {
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
        let requested = self.nodes.values().filter(|keeper| keeper.state == State::Requested);
        let requested = requested.map(|keeper| keeper.until);
        requested.chain(self.retry_at).chain(self.give_up_at).min()
    }
}

impl ReplicaSet {
    pub(super) fn new(copy: &Copy) -> Self {
        Self {
            id: copy.id.clone(),
            meta: copy.meta.clone(),
            inline: copy.inline.clone(),
            terms: copy.terms.clone(),
            bytes: copy.bytes(),
            replicas: 0,
            requests: Vec::new(),
            nodes: BTreeMap::new(),
            leaves: false,
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

    fn those(&self, states: &[State]) -> impl Iterator<Item = NodeId> {
        let those = self.nodes.iter().filter(|(_, keeper)| states.contains(&keeper.state));
        those.map(|(node, _)| *node)
    }

    fn count(&self, state: State) -> usize {
        self.those(&[state]).count()
    }

    fn state_of(&self, node: NodeId) -> Option<State> {
        self.nodes.get(&node).map(|keeper| keeper.state)
    }

    /// Sets the state of a node that was requested; `None` forgets it.
    fn set(&mut self, node: NodeId, state: Option<State>) {
        match (state, self.nodes.get_mut(&node)) {
            (Some(state), Some(keeper)) => keeper.state = state,
            _ => drop(self.nodes.remove(&node)),
        }
    }

    /// All nodes that were requested.
    pub(super) fn known(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Nodes that were requested and have not replied.
    pub(super) fn pending(&self) -> BTreeSet<NodeId> {
        self.those(PENDING).collect()
    }

    /// Nodes that may have a replica, or look for one, without being a holder yet.
    pub(super) fn searching(&self) -> BTreeSet<NodeId> {
        self.those(&[State::Requested, State::Late, State::Lost]).collect()
    }

    /// Nodes where a replica takes capacity, or will.
    pub(super) fn charged(&self) -> BTreeSet<NodeId> {
        self.those(CHARGED).collect()
    }

    /// Handles the reply of a node. A refusal of a request from before this node began to leave
    /// does not count: such a node gets another one, for which it may wait. Returns whether the
    /// node was requested, or kept a replica.
    pub(super) fn replied(
        &mut self,
        node: NodeId,
        instance: Instance,
        accepted: bool,
        world: &mut World,
    ) -> bool {
        let Some(Keeper { state, is_early, .. }) = self.nodes.get(&node).copied() else {
            return false;
        };
        let is_enough = self.count(State::Stored) >= self.wanted(world.members());
        let next = match (state, accepted) {
            (State::Requested | State::Late, true) if is_enough => {
                // Another node was requested in addition, and was faster.
                world.send(node, Message::ReleaseReplica { id: self.id.clone(), instance });
                None
            }
            (State::Requested | State::Late, true) => Some(State::Stored),
            (State::Requested | State::Late, false) if is_early => None,
            (State::Requested | State::Late, false) => Some(State::Refused),
            (State::Stored, false) => Some(State::Returning),
            _ => return false,
        };
        self.set(node, next);
        true
    }

    /// Marks nodes that are past their deadline as late, and returns them.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let requested = self.nodes.iter().filter(|(_, keeper)| keeper.state == State::Requested);
        let overdue = requested.filter(|(_, keeper)| keeper.until <= now);
        let overdue: Vec<NodeId> = overdue.map(|(node, _)| *node).collect();
        overdue.iter().for_each(|node| self.set(*node, Some(State::Late)));
        overdue
    }

    /// Requests nodes without capacity once more.
    pub(super) fn forget_refusals(&mut self) {
        self.nodes.retain(|_, keeper| keeper.state != State::Refused);
    }

    /// Handles that a node no longer has its copy. Returns whether it kept a replica.
    pub(super) fn withdrawn(&mut self, node: NodeId) -> bool {
        let kept = matches!(self.state_of(node), Some(State::Stored | State::Returning));
        if kept {
            self.set(node, None);
        }
        kept
    }

    /// Handles that a node is lost with what it keeps, or only messages to it.
    pub(super) fn lose(&mut self, node: NodeId, is_node_lost: bool) {
        match self.state_of(node) {
            Some(State::Requested | State::Late) => self.set(node, Some(State::Lost)),
            Some(State::Stored | State::Returning) if is_node_lost => {
                self.set(node, Some(State::Lost));
            }
            Some(State::Refused) if is_node_lost => self.set(node, None),
            _ => {}
        }
    }

    /// How many of the other nodes should have a replica.
    fn wanted(&self, members: &Members) -> usize {
        match self.leaves {
            // At least one, even if no node is left to request it from.
            true => self.replicas.max(1).min(members.staying()).max(1),
            false => self.replicas.saturating_sub(1).min(members.len() - 1),
        }
    }

    /// Begins to replace the copy of this node, which leaves.
    pub(super) fn leave(&mut self) {
        if !core::mem::replace(&mut self.leaves, true) {
            self.nodes.values_mut().for_each(|keeper| keeper.is_early = true);
        }
        // They may have capacity later.
        self.forget_refusals();
    }

    /// Whether this node leaves, and no other one is left to request a replica from.
    pub(super) fn is_given_up(&self) -> bool {
        self.leaves && self.those(PENDING).next().is_none()
    }

    /// Whether the copy of this node is being replaced.
    pub(super) const fn leaves(&self) -> bool {
        self.leaves
    }

    /// Requests as many replicas as are missing, from `unresponsive` nodes last. Returns whether
    /// there are enough now.
    pub(super) fn send_requests(
        &mut self,
        instance: Instance,
        load: &mut BTreeMap<NodeId, u64>,
        unresponsive: &BTreeSet<NodeId>,
        world: &mut World,
    ) -> bool {
        let wanted = self.wanted(world.members());
        let (stored, requested) = (self.count(State::Stored), self.count(State::Requested));
        let counts_requested = mutants::is_active(Mutant::CountsRequestedReplicas) && requested > 0;
        if stored >= wanted || counts_requested {
            self.release_extra(instance, world);
            return true;
        }
        let missing = wanted.saturating_sub(stored + requested);
        let members = world.members();
        let is_lost = |node: NodeId| self.state_of(node) == Some(State::Lost);
        let may_keep = |node: &NodeId| members.contains(*node) && !members.is_leaving(*node);
        let near = members.ring().filter(|node| !self.nodes.contains_key(node) && may_keep(node));
        let lost = self.those(&[State::Lost]).filter(may_keep);
        // First, nodes that may still have it. Then, the node that keeps the least for this one.
        // Ties go to the next node in a ring of all nodes, so that the replicas of many nodes
        // spread as well.
        let rank = |node: NodeId| {
            let bytes = load.get(&node).copied().unwrap_or_default();
            (unresponsive.contains(&node), !is_lost(node), bytes, node.0.wrapping_sub(world.me().0))
        };
        let until = world.now() + replica_timeout_ns(self.bytes, world.config().link);
        let candidates = lost.chain(near.take(CANDIDATES));
        let mut candidates: Vec<_> = candidates.map(|node| (rank(node), node)).collect();
        candidates.sort_unstable();
        candidates.truncate(missing);
        for (_, node) in &candidates {
            let (state, is_early) = (State::Requested, false);
            self.nodes.insert(*node, Keeper { state, until, is_early });
            *load.entry(*node).or_default() += self.bytes;
            world.send(*node, self.request_of(instance, world.now()));
        }
        self.schedule(stored + requested + candidates.len(), until, world);
        // Nodes that want to give it back hold it until other nodes do.
        stored + self.count(State::Returning) >= wanted
    }

    /// Schedules what happens if too few nodes are left to request: `reached` is how many have a
    /// replica or may reply in time.
    fn schedule(&mut self, reached: usize, until: Instant, world: &World) {
        let is_short = reached < self.wanted(world.members());
        let (has_late, has_refused) = (self.count(State::Late) > 0, self.count(State::Refused) > 0);
        // A node refuses a copy of a leaving one only if it will never have capacity.
        let may_have_room = is_short && !self.leaves && (!has_late || has_refused);
        self.retry_at = may_have_room.then(|| self.retry_at.unwrap_or(world.now() + RETRY_NS));
        let is_stuck = is_short && !may_have_room && reached == self.count(State::Stored);
        let has_no_candidate = is_stuck && !self.requests.is_empty();
        self.give_up_at = has_no_candidate.then(|| self.give_up_at.unwrap_or(until));
    }

    /// Handles that enough nodes keep it: releases the others.
    fn release_extra(&mut self, instance: Instance, world: &mut World) {
        (self.retry_at, self.give_up_at) = (None, None);
        // Others kept it before, or were requested to. Those that are not members now are released
        // when they rejoin.
        let members = world.members();
        let spare = self.those(&[State::Lost, State::Returning]);
        for node in spare.filter(|node| members.contains(*node)).collect::<Vec<_>>() {
            world.send(node, Message::ReleaseReplica { id: self.id.clone(), instance });
        }
        let members = world.members();
        self.nodes.retain(|node, keeper| {
            if keeper.state == State::Returning {
                keeper.state = State::Refused;
            }
            let is_awaited = !members.contains(*node) && members.is_departed(*node);
            keeper.state != State::Lost || is_awaited
        });
    }

    /// The number of nodes that hold it, this one included.
    pub(super) fn reached(&self) -> u32 {
        let holders = self.count(State::Stored) + self.count(State::Returning);
        u32::try_from(holders + 1).unwrap_or(u32::MAX)
    }

    /// Describes the progress in words.
    pub(super) fn state(&self) -> String {
        let mut state = format!("it has {} of {} replicas", self.reached(), self.replicas);
        let refused = self.count(State::Refused);
        if refused > 0 {
            state += &format!(", {refused} nodes have no capacity for it");
        }
        for node in self.those(&[State::Late]) {
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
