//! Keep: other nodes hold an original too, so that the object outlives the death of the node that it was put at.
//!
//! As long as this node lives it sees to it that there are so many, whoever comes and goes. A copy that another node
//! keeps is as good as the original, and is not evicted.
//!
//! Copies spread evenly over all nodes, by their bytes. A keeper whose own clients need the room asks to give copies back,
//! and holds them until another node has them.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use super::{Action, Asked, Node, Waiting, question::Subject};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId},
    message::Message,
    planted::{self, Bug},
    table::Copy,
    time::Instant,
};

/// An original that is to be at several nodes.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// At how many, this one among them.
    copies: usize,
    /// What a copy takes where it is kept.
    bytes: u64,
    /// Who was asked to keep it, and has not answered.
    asked: BTreeSet<NodeId>,
    kept: BTreeSet<NodeId>,
    /// Who keeps it until another node does.
    tired: BTreeSet<NodeId>,
    /// Who has no room for it, or was leaving.
    refused: BTreeSet<NodeId>,
    /// Who kept it, and was lost since. It may have it still when it is met again.
    lost: BTreeSet<NodeId>,
    /// When they are asked again.
    retry_at: Option<Instant>,
}

/// Between two questions to those that had no room: 1 s.
const RETRY_NS: u64 = 1_000_000_000;

impl Keeping {
    fn is_known(&self, node: NodeId) -> bool {
        let known = [&self.asked, &self.kept, &self.tired, &self.refused];
        known.iter().any(|nodes| nodes.contains(&node))
    }

    fn forget(&mut self, node: NodeId) {
        if [&mut self.kept, &mut self.tired].into_iter().any(|nodes| nodes.remove(&node)) {
            self.lost.insert(node);
        }
        for nodes in [&mut self.asked, &mut self.refused] {
            nodes.remove(&node);
        }
    }

    /// Who has room taken by it, or will have.
    fn charged(&self) -> impl Iterator<Item = NodeId> {
        self.asked.iter().chain(&self.kept).copied()
    }

    /// How many others are to have it, of those that there are.
    fn wanted(&self, others: usize) -> usize {
        self.copies.saturating_sub(1).min(others)
    }
}

impl Node {
    /// A client wants an original of this node to be at `copies` nodes.
    pub(super) fn keep(
        &mut self,
        asked: &Asked,
        id: ObjectId,
        copies: u32,
        out: &mut Vec<Action>,
    ) -> Option<Result<Answer, Error>> {
        let current = self.table.current(&id);
        let is_original = |instance: &Instance| {
            self.table.get(*instance).is_some_and(|copy| copy.origin && copy.is_complete())
        };
        let Some(instance) = current.filter(is_original) else {
            let error = if current.is_some() {
                let said = format!("{id} was not put at this node, which can't see to its copies");
                Error::InvalidArgument(said)
            } else {
                // This is asked right after the seal.
                self.directory.why_gone(&id).unwrap_or(Error::ObjectDeleted { id })
            };
            return Some(Err(error));
        };
        let keeping = self.keeping.entry(instance).or_default();
        keeping.copies = keeping.copies.max(copies as usize);
        keeping.bytes = self.table.get(instance).map_or(0, Copy::cost);
        self.remember(asked, Waiting::Copies(id, instance));
        self.ask_keepers(instance, out);
        None
    }

    /// Asks as many others as it takes, and answers whoever waits once they have it.
    fn ask_keepers(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(copy) = self.table.get(instance) else { return };
        let Some(keeping) = self.keeping.get_mut(&instance) else { return };
        let wanted = keeping.wanted(self.members.others().count());
        let is_promised = planted::has(Bug::CountsQuestionsAsCopies) && !keeping.asked.is_empty();
        if keeping.kept.len() >= wanted || is_promised {
            keeping.retry_at = None;
            // Others kept it before; those that are no members hear of it when they are met again.
            let spare = keeping.lost.iter().chain(&keeping.tired).copied();
            let spare: Vec<NodeId> = spare
                .filter(|node| {
                    self.members.contains(*node) && !keeping.charged().any(|it| it == *node)
                })
                .collect();
            keeping.refused.append(&mut keeping.tired);
            keeping.lost.retain(|node| !self.members.contains(*node));
            let id = copy.id.clone();
            for node in spare {
                self.send(node, Message::Unkeep { id: id.clone(), instance }, out);
            }
            return self.answer_keepers(instance, &Ok(Answer::Done), out);
        }
        let missing = wanted.saturating_sub(keeping.kept.len() + keeping.asked.len());
        let is_enough = keeping.kept.len() + keeping.tired.len() >= wanted;
        let others = self.members.others().filter(|other| !keeping.is_known(other.id));
        // One that may have it still; else the one that keeps least for this node, and after it in a ring of all nodes, so
        // that the copies of many nodes spread, too.
        let rank = |node: NodeId| {
            let kept = self.keepers.get(&node).copied().unwrap_or_default();
            (!keeping.lost.contains(&node), kept, node.0.wrapping_sub(self.me.id.0))
        };
        let mut others: Vec<_> = others.map(|other| (rank(other.id), other.id)).collect();
        others.sort_unstable();
        let chosen: Vec<NodeId> = others.into_iter().take(missing).map(|(_, node)| node).collect();
        keeping.asked.extend(&chosen);
        let bytes = keeping.bytes;
        chosen.iter().for_each(|node| *self.keepers.entry(*node).or_default() += bytes);
        let is_short = keeping.kept.len() + keeping.asked.len() < wanted;
        keeping.retry_at = is_short.then(|| keeping.retry_at.unwrap_or(self.now + RETRY_NS));
        if let Some(at) = keeping.retry_at {
            let next = self.next_keeping.get_or_insert(at);
            *next = at.min(*next);
        }
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        for target in chosen {
            let (id, meta, inline) = (id.clone(), meta.clone(), inline.clone());
            let may_wait = false;
            self.send(target, Message::Adopt { id, instance, meta, inline, may_wait }, out);
        }
        if is_enough {
            // Those that want to give it back hold it until others do.
            self.answer_keepers(instance, &Ok(Answer::Done), out);
        }
    }

    /// A node keeps so much less for this one.
    fn discharge(&mut self, node: NodeId, bytes: u64) {
        if let Some(kept) = self.keepers.get_mut(&node) {
            *kept = kept.saturating_sub(bytes);
        }
    }

    /// Another node keeps an original of this one, or can't, or wants to give it back.
    pub(super) fn keeper_answered(
        &mut self,
        from: NodeId,
        instance: Instance,
        is_kept: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(keeping) = self.keeping.get_mut(&instance) else { return };
        let bytes = keeping.bytes;
        if keeping.asked.remove(&from) {
            keeping.lost.remove(&from);
            let nodes = if is_kept { &mut keeping.kept } else { &mut keeping.refused };
            nodes.insert(from);
        } else if !is_kept && keeping.kept.remove(&from) {
            keeping.tired.insert(from);
        } else {
            return;
        }
        if !is_kept {
            self.discharge(from, bytes);
        }
        self.ask_keepers(instance, out);
    }

    /// What a node kept is lost with it, and what it was asked is void. One that is there all the same is asked again.
    pub(super) fn keepers_without(&mut self, node: NodeId) {
        self.kept_for.without(node);
        if !planted::has(Bug::ReplacesNoKeepers) {
            self.keeping.values_mut().for_each(|keeping| keeping.forget(node));
            self.keepers.remove(&node);
        }
    }

    /// Members came or went: others may have to be asked, or can be. What was said to `renewed` may be lost.
    pub(super) fn keep_again(&mut self, renewed: Option<NodeId>, out: &mut Vec<Action>) {
        if let Some(node) = renewed {
            let hit = self
                .keeping
                .values_mut()
                .filter_map(|keeping| keeping.asked.remove(&node).then_some(keeping.bytes));
            let bytes = hit.sum();
            self.discharge(node, bytes);
        }
        let wanted: Vec<Instance> = self.keeping.keys().copied().collect();
        for instance in wanted {
            self.ask_keepers(instance, out);
        }
    }

    /// Asks those again that had no room.
    pub(super) fn expire_keeping(&mut self, out: &mut Vec<Action>) {
        if self.next_keeping.is_none_or(|at| at > self.now) {
            return;
        }
        let is_due = |keeping: &Keeping| keeping.retry_at.is_some_and(|at| at <= self.now);
        let due = self.keeping.iter().filter(|(_, keeping)| is_due(keeping));
        for instance in due.map(|(instance, _)| *instance).collect::<Vec<_>>() {
            if let Some(keeping) = self.keeping.get_mut(&instance) {
                keeping.refused.clear();
                keeping.retry_at = None;
            }
            self.ask_keepers(instance, out);
        }
        self.next_keeping = self.keeping.values().filter_map(|keeping| keeping.retry_at).min();
    }

    /// The original is no more.
    pub(super) fn keep_over(&mut self, instance: Instance, out: &mut Vec<Action>) {
        self.kept_for.remove(instance);
        if let Some(keeping) = self.keeping.remove(&instance) {
            keeping.charged().for_each(|node| self.discharge(node, keeping.bytes));
            let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) else { return };
            self.answer_keepers(instance, &Err(Error::ObjectDeleted { id }), out);
        }
    }

    /// How far it is, in words.
    pub(super) fn keeping_state(&self, instance: Instance) -> String {
        let (kept, refused) = self.keeping.get(&instance).map_or((0, 0), |keeping| {
            (keeping.kept.len() + keeping.tired.len(), keeping.refused.len())
        });
        match refused {
            0 => format!("it is at {} nodes", kept + 1),
            _ => format!("it is at {} nodes, and {refused} have no room for it", kept + 1),
        }
    }

    fn answer_keepers(
        &mut self,
        instance: Instance,
        answer: &Result<Answer, Error>,
        out: &mut Vec<Action>,
    ) {
        for request in self.askers(Subject::Copies(instance)) {
            self.reply(request, answer.clone(), out);
        }
    }
}

/// By instance.
pub(super) type Kept = BTreeMap<Instance, Keeping>;
