//! Keep: other nodes hold an original too, so that the object outlives the death of the node that it was put at.
//!
//! As long as this node lives it sees to it that there are so many, whoever comes and goes. A copy that another node
//! keeps is as good as the original, and nobody's to evict.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use super::{Action, Asked, Node, Pending, Waiting};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    message::Message,
    planted::{self, Bug},
    time::Instant,
};

/// An original that is to be at several nodes.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// At how many, this one among them.
    copies: usize,
    /// Who was asked to keep it, and has not answered.
    asked: BTreeSet<NodeId>,
    kept: BTreeSet<NodeId>,
    /// Who has no room for it, or was leaving.
    refused: BTreeSet<NodeId>,
    /// When they are asked again.
    retry_at: Option<Instant>,
}

/// Between two questions to those that had no room: 1 s.
const RETRY_NS: u64 = 1_000_000_000;

impl Keeping {
    fn is_known(&self, node: NodeId) -> bool {
        [&self.asked, &self.kept, &self.refused].iter().any(|nodes| nodes.contains(&node))
    }

    fn forget(&mut self, node: NodeId) {
        for nodes in [&mut self.asked, &mut self.kept, &mut self.refused] {
            nodes.remove(&node);
        }
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
            return self.answer_keepers(instance, &Ok(Answer::Done), out);
        }
        // By the order of ownership, so that copies spread over all nodes; the owners of what is small have it anyway.
        let mut others = self.members.clone();
        others.resign();
        self.members.others().filter(|other| keeping.is_known(other.id)).for_each(|other| {
            others.remove(other.id);
        });
        let mut chosen = Vec::new();
        while keeping.kept.len() + keeping.asked.len() < wanted && others.iter().next().is_some() {
            let target = others.owners(&copy.id).first;
            others.remove(target);
            keeping.asked.insert(target);
            chosen.push(target);
        }
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
    }

    /// Another node keeps an original of this one, or can't.
    pub(super) fn keeper_answered(
        &mut self,
        from: NodeId,
        instance: Instance,
        is_kept: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(keeping) = self.keeping.get_mut(&instance) else { return };
        if keeping.asked.remove(&from) {
            let nodes = if is_kept { &mut keeping.kept } else { &mut keeping.refused };
            nodes.insert(from);
            self.ask_keepers(instance, out);
        }
    }

    /// What a node kept is lost with it, and what it was asked is void. One that is there all the same is asked again.
    pub(super) fn keepers_without(&mut self, node: NodeId) {
        if !planted::has(Bug::ReplacesNoKeepers) {
            self.keeping.values_mut().for_each(|keeping| keeping.forget(node));
        }
    }

    /// Members came or went: others may have to be asked, or can be. What was said to `renewed` may be lost.
    pub(super) fn keep_again(&mut self, renewed: Option<NodeId>, out: &mut Vec<Action>) {
        if let Some(node) = renewed {
            for keeping in self.keeping.values_mut() {
                keeping.asked.remove(&node);
            }
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
        if self.keeping.remove(&instance).is_some() {
            let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) else { return };
            self.answer_keepers(instance, &Err(Error::ObjectDeleted { id }), out);
        }
    }

    /// How far it is, in words.
    pub(super) fn keeping_state(&self, instance: Instance) -> String {
        let (kept, refused) = self
            .keeping
            .get(&instance)
            .map_or((0, 0), |keeping| (keeping.kept.len(), keeping.refused.len()));
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
        let waits =
            |pending: &Pending| matches!(&pending.kind, Waiting::Copies(_, of) if *of == instance);
        let waiting = self.requests.iter().filter(|(_, pending)| waits(pending));
        for request in waiting.map(|(request, _)| *request).collect::<Vec<RequestId>>() {
            self.reply(request, answer.clone(), out);
        }
    }
}

/// By instance.
pub(super) type Kept = BTreeMap<Instance, Keeping>;
