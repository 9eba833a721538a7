//! One original that is to be at several nodes: which were asked, and which keep it.
//!
//! A node that was asked may fetch a large object for long, or may never answer. Once it has had its time
//! ([`patience_ns`]) another node is asked beside it. The first that has the object keeps it; a later one lets go of its copy.
//! A question of a client ends with an error when every other node was asked and has had its time twice.
//!
//! ```text
//!   unknown --> asked --> kept --> tired (it wants to give the copy back)
//!                 |  \--> refused (it has no room), for RETRY_NS
//!                 |
//!                 +--> late (its time is over) --> as above, or unknown again if enough others keep it
//! ```
//!
//! Does not know other originals, nor who waits beyond the numbers of their questions.

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

/// An original that is to be at several nodes.
#[derive(Debug)]
pub(crate) struct Replicated {
    pub(crate) id: ObjectId,
    meta: Meta,
    inline: Option<Inline>,
    /// How long it lives, if not until it is deleted.
    terms: Option<Box<Terms>>,
    /// What a copy takes where it is kept.
    pub(crate) bytes: u64,
    /// At how many nodes it is to be, this one among them.
    pub(crate) copies: usize,
    /// The questions that wait for that.
    pub(crate) requests: Vec<RequestId>,
    /// Nodes that were asked to keep it, and have not answered: until when no other is asked beside each.
    asked: BTreeMap<NodeId, Instant>,
    /// Nodes that have not answered in time.
    late: BTreeSet<NodeId>,
    pub(crate) kept: BTreeSet<NodeId>,
    /// Nodes that keep it until another node does.
    pub(crate) tired: BTreeSet<NodeId>,
    /// Nodes that had no room for it, or were leaving.
    pub(crate) refused: BTreeSet<NodeId>,
    /// Nodes that kept it, and were lost since. One may have it still when it is met again.
    pub(crate) lost: BTreeSet<NodeId>,
    /// When those without room are asked again.
    pub(crate) retry_at: Option<Instant>,
    /// When those who wait hear that no other node is left to be asked.
    pub(crate) hopeless_at: Option<Instant>,
}

/// So much of a link a node that receives a copy has at least, else another is asked beside it: a hundredth, for a hundred other
/// transfers may share it.
const SHARE_OF_LINK: u64 = 100;

/// How long a node may take to have a copy of so many bytes, before another one is asked beside it: 30 s, and 14 minutes for
/// each GiB at 1 Gbit/s.
pub(crate) fn patience_ns(bytes: u64, link: Link) -> u64 {
    let bytes_per_second = u128::from((link.bytes_per_second / SHARE_OF_LINK).max(1));
    let arriving_ns = u128::from(bytes) * 1_000_000_000 / bytes_per_second;
    TURN_NS.saturating_add(u64::try_from(arriving_ns).unwrap_or(u64::MAX))
}

/// Between two questions to those that had no room: 1 s.
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

    /// Asks a node to keep it.
    fn request_of(&self, instance: Instance, now: Instant) -> Message {
        let (id, meta, inline) = (self.id.clone(), self.meta.clone(), self.inline.clone());
        let lifetime = self.terms.as_ref().map(|terms| terms.tell(now));
        Message::Adopt { id, instance, meta, inline, lifetime, may_wait: false }
    }

    fn is_known(&self, node: NodeId) -> bool {
        let known = [&self.late, &self.kept, &self.tired, &self.refused];
        self.asked.contains_key(&node) || known.iter().any(|nodes| nodes.contains(&node))
    }

    /// Nodes that have not answered.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = NodeId> {
        self.asked.keys().chain(&self.late).copied()
    }

    /// What a node was asked is answered, or void; whether it was asked.
    pub(crate) fn answers(&mut self, node: NodeId) -> bool {
        self.asked.remove(&node).is_some() || self.late.remove(&node)
    }

    /// Nodes that have had their time.
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

    /// Nodes where it takes room, or will.
    pub(crate) fn charged(&self) -> impl Iterator<Item = NodeId> {
        self.unanswered().chain(self.kept.iter().copied())
    }

    /// How many others are to have it, of those that there are.
    pub(crate) fn wanted(&self, others: usize) -> usize {
        self.copies.saturating_sub(1).min(others)
    }

    /// Asks as many others as it takes, those that are `silent` last; whether there are enough copies now.
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
        // One that may have it still; else the one that keeps least for this node, and after it in a ring of all nodes, so
        // that the copies of many nodes spread, too.
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
        // Those that want to give it back hold it until others do.
        self.kept.len() + self.tired.len() >= wanted
    }

    /// Enough nodes keep it: others that do need not.
    fn has_enough(&mut self, instance: Instance, world: &mut World) {
        (self.retry_at, self.hopeless_at) = (None, None);
        // Others kept it before; those that are no members hear of it when they are met again.
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

    /// How many nodes hold it, this one among them.
    pub(crate) fn reached(&self) -> u32 {
        u32::try_from(self.kept.len() + self.tired.len() + 1).unwrap_or(u32::MAX)
    }

    /// How far it is, in words.
    pub(crate) fn state(&self) -> String {
        let mut state = format!("it is at {} nodes", self.reached());
        if !self.refused.is_empty() {
            state += &format!(", {} have no room for it", self.refused.len());
        }
        for node in &self.late {
            state += &format!(", node {node} was asked to keep it and does not answer");
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fetches_a_large_object_has_longer() {
        let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
        assert_eq!(patience_ns(1000, link) / 1_000_000_000, 30);
        assert_eq!(patience_ns(1 << 30, link) / 60_000_000_000, 14);
        let slowest = Link { bytes_per_second: 0, ..link };
        assert_eq!(patience_ns(u64::MAX, slowest), u64::MAX);
    }
}
