//! Replicas of one pinned copy: which nodes were requested to keep one, and which keep it.
//!
//! A node may take long to fetch a large object, or may never reply. After its deadline ([`patience_ns`]), another
//! node is requested in addition. The first one that has the object keeps it; a later one is released. A client's
//! request fails when every other node was requested and twice the time has passed.
//!
//! ```text
//!   unknown --> asked --> kept --> tired (it wants to give the copy back)
//!                 |  \--> refused (it has no capacity), for RETRY_NS
//!                 |
//!                 +--> late (past its deadline) --> as above, or unknown again if enough others keep it
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
    limits::TURN_NS,
    machines::world::World,
    message::Message,
    meta::Meta,
    planted::{self, Bug},
    reduce::cost::Link,
    table::Copy,
    time::Instant,
    timed::Deadline,
};

/// A pinned copy that is to have replicas.
#[derive(Debug)]
pub(crate) struct Replicated {
    pub(crate) id: ObjectId,
    meta: Meta,
    inline: Option<Inline>,
    /// Its lifetime; `None` if it lives until it is deleted.
    terms: Option<Box<Terms>>,
    /// The capacity that a replica takes.
    pub(crate) bytes: u64,
    /// The number of nodes that should hold it, this one included.
    pub(crate) copies: usize,
    /// The client requests that wait for that.
    pub(crate) requests: Vec<RequestId>,
    /// Nodes that were requested and have not replied, each with its deadline, after which another node is requested
    /// in addition.
    asked: BTreeMap<NodeId, Instant>,
    /// Nodes that have missed their deadline.
    late: BTreeSet<NodeId>,
    pub(crate) kept: BTreeSet<NodeId>,
    /// Nodes that keep it until another node does.
    pub(crate) tired: BTreeSet<NodeId>,
    /// Nodes that had no capacity for it, or were leaving.
    pub(crate) refused: BTreeSet<NodeId>,
    /// Nodes that kept it and were lost since. One may still have it when it rejoins.
    pub(crate) lost: BTreeSet<NodeId>,
    /// When nodes without capacity are requested again.
    pub(crate) retry_at: Option<Instant>,
    /// When waiting requests fail because no other node is left.
    pub(crate) hopeless_at: Option<Instant>,
}

/// Minimum share of a link that a node receives a replica with, before another one is requested: a hundredth, because
/// a hundred other transfers may share the link.
const SHARE_OF_LINK: u64 = 100;

/// The time that a node has to get a replica of `bytes` bytes, before another one is requested in addition: 30 s, plus
/// 14 minutes for each GiB at 1 Gbit/s.
pub(crate) fn patience_ns(bytes: u64, link: Link) -> u64 {
    let bytes_per_second = u128::from((link.bytes_per_second / SHARE_OF_LINK).max(1));
    let arriving_ns = u128::from(bytes) * 1_000_000_000 / bytes_per_second;
    TURN_NS.saturating_add(u64::try_from(arriving_ns).unwrap_or(u64::MAX))
}

/// Time between two requests to nodes that had no capacity: 1 s.
const RETRY_NS: u64 = 1_000_000_000;

impl Deadline for Replicated {
    fn deadline(&self) -> Option<Instant> {
        let asked = self.asked.values().copied();
        asked.chain(self.retry_at).chain(self.hopeless_at).min()
    }
}

impl Replicated {
    pub(crate) fn new(copy: &Copy) -> Self {
        Self {
            id: copy.id.clone(),
            meta: copy.meta.clone(),
            inline: copy.inline.clone(),
            terms: copy.terms.clone(),
            bytes: copy.bytes(),
            copies: 0,
            requests: Vec::new(),
            asked: BTreeMap::new(),
            late: BTreeSet::new(),
            kept: BTreeSet::new(),
            tired: BTreeSet::new(),
            refused: BTreeSet::new(),
            lost: BTreeSet::new(),
            retry_at: None,
            hopeless_at: None,
        }
    }

    /// The message that requests a node to keep a replica.
    fn request_of(&self, instance: Instance, now: Instant) -> Message {
        let (id, meta, inline) = (self.id.clone(), self.meta.clone(), self.inline.clone());
        let lifetime = self.terms.as_ref().map(|terms| terms.tell(now));
        Message::Adopt { id, instance, meta, inline, lifetime, may_wait: false }
    }

    fn is_known(&self, node: NodeId) -> bool {
        let known = [&self.late, &self.kept, &self.tired, &self.refused];
        self.asked.contains_key(&node) || known.iter().any(|nodes| nodes.contains(&node))
    }

    /// Nodes that were requested and have not replied.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = NodeId> {
        self.asked.keys().chain(&self.late).copied()
    }

    /// Marks the request to a node as answered or void. Returns whether there was one.
    pub(crate) fn answers(&mut self, node: NodeId) -> bool {
        self.asked.remove(&node).is_some() || self.late.remove(&node)
    }

    /// Moves nodes that are past their deadline to `late`, and returns them.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<NodeId> {
        let overdue = self.asked.iter().filter(|(_, until)| **until <= now);
        let overdue: Vec<NodeId> = overdue.map(|(node, _)| *node).collect();
        for node in &overdue {
            self.asked.remove(node);
            self.late.insert(*node);
        }
        overdue
    }

    pub(crate) fn forget(&mut self, node: NodeId) {
        if [&mut self.kept, &mut self.tired].into_iter().any(|nodes| nodes.remove(&node)) {
            self.lost.insert(node);
        }
        self.answers(node);
        self.refused.remove(&node);
    }

    /// Nodes where a replica takes capacity, or will.
    pub(crate) fn charged(&self) -> impl Iterator<Item = NodeId> {
        self.unanswered().chain(self.kept.iter().copied())
    }

    /// How many of the other nodes should have a replica.
    pub(crate) fn wanted(&self, others: usize) -> usize {
        self.copies.saturating_sub(1).min(others)
    }

    /// Requests as many replicas as are missing, from `silent` nodes last. Returns whether there are enough now.
    pub(crate) fn ask(
        &mut self,
        instance: Instance,
        load: &mut BTreeMap<NodeId, u64>,
        silent: &BTreeSet<NodeId>,
        world: &mut World,
    ) -> bool {
        let wanted = self.wanted(world.members().others().count());
        let is_promised = planted::has(Bug::CountsQuestionsAsCopies) && !self.asked.is_empty();
        if self.kept.len() >= wanted || is_promised {
            self.has_enough(instance, world);
            return true;
        }
        let missing = wanted.saturating_sub(self.kept.len() + self.asked.len());
        let others = world.members().others().filter(|other| !self.is_known(other.id));
        // First, nodes that may still have it. Then, the node that keeps the least for this one. Ties go to the next
        // node in a ring of all nodes, so that the replicas of many nodes spread as well.
        let rank = |node: NodeId| {
            let kept = load.get(&node).copied().unwrap_or_default();
            let is_new = !self.lost.contains(&node);
            (silent.contains(&node), is_new, kept, node.0.wrapping_sub(world.me().0))
        };
        let until = world.now() + patience_ns(self.bytes, world.config().link);
        let mut others: Vec<_> = others.map(|other| (rank(other.id), other.id)).collect();
        others.sort_unstable();
        for (_, node) in others.into_iter().take(missing) {
            self.asked.insert(node, until);
            *load.entry(node).or_default() += self.bytes;
            world.send(node, self.request_of(instance, world.now()));
        }
        let is_short = self.kept.len() + self.asked.len() < wanted;
        let may_have_room = is_short && (self.late.is_empty() || !self.refused.is_empty());
        self.retry_at = may_have_room.then(|| self.retry_at.unwrap_or(world.now() + RETRY_NS));
        let is_stuck = is_short && !may_have_room && self.asked.is_empty();
        let is_hopeless = is_stuck && !self.requests.is_empty();
        self.hopeless_at = is_hopeless.then(|| self.hopeless_at.unwrap_or(until));
        // Nodes that want to give it back hold it until other nodes do.
        self.kept.len() + self.tired.len() >= wanted
    }

    /// Handles that enough nodes keep it: releases the others.
    fn has_enough(&mut self, instance: Instance, world: &mut World) {
        (self.retry_at, self.hopeless_at) = (None, None);
        // Others kept it before. Those that are not members now are released when they rejoin.
        let spare = self.lost.iter().chain(&self.tired).copied();
        let spare = spare.filter(|node| {
            world.members().contains(*node) && !self.charged().any(|it| it == *node)
        });
        for node in spare.collect::<Vec<_>>() {
            world.send(node, Message::Unkeep { id: self.id.clone(), instance });
        }
        self.refused.append(&mut self.tired);
        let members = world.members();
        self.lost.retain(|node| !members.contains(*node) && members.is_departed(*node));
    }

    /// The number of nodes that hold it, this one included.
    pub(crate) fn reached(&self) -> u32 {
        u32::try_from(self.kept.len() + self.tired.len() + 1).unwrap_or(u32::MAX)
    }

    /// Describes the progress in words.
    pub(crate) fn state(&self) -> String {
        let mut state = format!("it has {} of {} replicas", self.reached(), self.copies);
        if !self.refused.is_empty() {
            state += &format!(", {} nodes have no capacity for it", self.refused.len());
        }
        for node in &self.late {
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
        assert_eq!(patience_ns(1000, link) / 1_000_000_000, 30);
        assert_eq!(patience_ns(1 << 30, link) / 60_000_000_000, 14);
        let slowest = Link { bytes_per_second: 0, ..link };
        assert_eq!(patience_ns(u64::MAX, slowest), u64::MAX);
    }
}
