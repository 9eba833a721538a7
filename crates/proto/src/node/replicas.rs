//! Replicas: other nodes hold an original too, so that the object outlives the death of the node that it was put at.
//!
//! As long as this node lives it sees to it that there are as many copies as its client asked for, whichever nodes come and
//! go. A copy that another node keeps is as good as the original, and is not evicted. Does not know the memory of this node,
//! nor whether a copy here is an original.
//!
//! Copies spread evenly over all nodes, by their bytes. A keeper whose own clients need the room asks to give copies back,
//! and holds them until another node has them.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use super::{
    requests::{Asked, Requests, Waiting},
    world::World,
};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    lifetime::Terms,
    message::Message,
    meta::Meta,
    planted::{self, Bug},
    table::Copy,
    time::Instant,
    timed::{Deadline, Timed},
};

/// The originals of this node that are to be at several nodes.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    all: Timed<Instance, Replicated>,
    /// How many bytes of them each other node keeps, or was asked to.
    load: BTreeMap<NodeId, u64>,
}

/// An original that is to be at several nodes.
#[derive(Debug)]
struct Replicated {
    id: ObjectId,
    meta: Meta,
    inline: Option<Inline>,
    /// How long it lives, if not until it is deleted.
    terms: Option<Box<Terms>>,
    /// What a copy takes where it is kept.
    bytes: u64,
    /// At how many nodes it is to be, this one among them.
    copies: usize,
    /// The questions that wait for that.
    requests: Vec<RequestId>,
    /// Nodes that were asked to keep it, and have not answered.
    asked: BTreeSet<NodeId>,
    kept: BTreeSet<NodeId>,
    /// Nodes that keep it until another node does.
    tired: BTreeSet<NodeId>,
    /// Nodes that had no room for it, or were leaving.
    refused: BTreeSet<NodeId>,
    /// Nodes that kept it, and were lost since. One may have it still when it is met again.
    lost: BTreeSet<NodeId>,
    /// When they are asked again.
    retry_at: Option<Instant>,
}

/// Between two questions to those that had no room: 1 s.
const RETRY_NS: u64 = 1_000_000_000;

impl Deadline for Replicated {
    fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }
}

impl Replicated {
    fn new(copy: &Copy) -> Self {
        Self {
            id: copy.id.clone(),
            meta: copy.meta.clone(),
            inline: copy.inline.clone(),
            terms: copy.terms.clone(),
            bytes: copy.bytes(),
            copies: 0,
            requests: Vec::new(),
            asked: BTreeSet::new(),
            kept: BTreeSet::new(),
            tired: BTreeSet::new(),
            refused: BTreeSet::new(),
            lost: BTreeSet::new(),
            retry_at: None,
        }
    }

    /// Asks a node to keep it.
    fn request_of(&self, instance: Instance, now: Instant) -> Message {
        let (id, meta, inline) = (self.id.clone(), self.meta.clone(), self.inline.clone());
        let lifetime = self.terms.as_ref().map(|terms| terms.tell(now));
        Message::Adopt { id, instance, meta, inline, lifetime, may_wait: false }
    }

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

    /// Nodes where it takes room, or will.
    fn charged(&self) -> impl Iterator<Item = NodeId> {
        self.asked.iter().chain(&self.kept).copied()
    }

    /// How many others are to have it, of those that there are.
    fn wanted(&self, others: usize) -> usize {
        self.copies.saturating_sub(1).min(others)
    }

    /// Asks as many others as it takes; whether there are enough copies now.
    fn ask(
        &mut self,
        instance: Instance,
        load: &mut BTreeMap<NodeId, u64>,
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
            (!self.lost.contains(&node), kept, node.0.wrapping_sub(world.me().0))
        };
        let mut others: Vec<_> = others.map(|other| (rank(other.id), other.id)).collect();
        others.sort_unstable();
        for (_, node) in others.into_iter().take(missing) {
            self.asked.insert(node);
            *load.entry(node).or_default() += self.bytes;
            world.send(node, self.request_of(instance, world.now()));
        }
        let is_short = self.kept.len() + self.asked.len() < wanted;
        self.retry_at = is_short.then(|| self.retry_at.unwrap_or(world.now() + RETRY_NS));
        // Those that want to give it back hold it until others do.
        self.kept.len() + self.tired.len() >= wanted
    }

    /// Enough nodes keep it: others that do need not.
    fn has_enough(&mut self, instance: Instance, world: &mut World) {
        self.retry_at = None;
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
}

impl Replicas {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, instance: Instance) -> bool {
        self.all.contains_key(&instance)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    /// A client wants an original of this node to be at `copies` nodes.
    pub(super) fn want(
        &mut self,
        asked: &Asked,
        (instance, copy): (Instance, &Copy),
        copies: u32,
        requests: &mut Requests,
        world: &mut World,
    ) {
        if !self.contains(instance) {
            self.all.insert(instance, Replicated::new(copy));
        }
        self.all.update(&instance, |original| {
            original.copies = original.copies.max(copies as usize);
            original.requests.push(asked.request);
        });
        requests.remember(asked, Waiting::Copies(copy.id.clone(), instance), world);
        self.ask(instance, requests, world);
    }

    /// A client does not wait any more.
    pub(super) fn stop_waiting(&mut self, instance: Instance, request: RequestId) {
        self.all.update(&instance, |original| original.requests.retain(|it| *it != request));
    }

    /// Asks as many others as it takes, and answers the clients that wait once they have it.
    fn ask(&mut self, instance: Instance, requests: &mut Requests, world: &mut World) {
        let load = &mut self.load;
        let answered = self.all.update(&instance, |original| {
            original.ask(instance, load, world).then(|| core::mem::take(&mut original.requests))
        });
        for request in answered.flatten().unwrap_or_default() {
            requests.reply(request, Ok(Answer::Done), world);
        }
    }

    /// A node keeps so much less for this one.
    fn discharge(&mut self, node: NodeId, bytes: u64) {
        if let Some(kept) = self.load.get_mut(&node) {
            *kept = kept.saturating_sub(bytes);
        }
    }

    /// Another node keeps an original of this one, or can't, or wants to give it back.
    pub(super) fn answered(
        &mut self,
        from: NodeId,
        instance: Instance,
        is_kept: bool,
        requests: &mut Requests,
        world: &mut World,
    ) {
        let charged = self.all.update(&instance, |original| {
            if original.asked.remove(&from) {
                original.lost.remove(&from);
                let nodes = if is_kept { &mut original.kept } else { &mut original.refused };
                nodes.insert(from);
            } else if !is_kept && original.kept.remove(&from) {
                original.tired.insert(from);
            } else {
                return None;
            }
            Some(original.bytes)
        });
        let Some(bytes) = charged.flatten() else { return };
        if !is_kept {
            self.discharge(from, bytes);
        }
        self.ask(instance, requests, world);
    }

    /// What a node kept is lost with it, and what it was asked is void. One that is there all the same is asked again.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        if !planted::has(Bug::ReplacesNoKeepers) {
            for instance in self.all.keys().copied().collect::<Vec<_>>() {
                self.all.update(&instance, |original| original.forget(node));
            }
            self.load.remove(&node);
        }
    }

    /// Members came or went: others may have to be asked, or can be. What was said to `renewed` may be lost.
    pub(super) fn ask_again(
        &mut self,
        renewed: Option<NodeId>,
        requests: &mut Requests,
        world: &mut World,
    ) {
        for instance in self.all.keys().copied().collect::<Vec<_>>() {
            let void = self.all.update(&instance, |original| {
                let node = renewed.filter(|node| original.asked.remove(node))?;
                Some((node, original.bytes))
            });
            if let Some((node, bytes)) = void.flatten() {
                self.discharge(node, bytes);
            }
        }
        for instance in self.all.keys().copied().collect::<Vec<_>>() {
            self.ask(instance, requests, world);
        }
    }

    /// Asks those again that had no room.
    pub(super) fn expire(&mut self, requests: &mut Requests, world: &mut World) {
        for instance in self.all.due(world.now()) {
            self.all.update(&instance, |original| {
                original.refused.clear();
                original.retry_at = None;
            });
            self.ask(instance, requests, world);
        }
    }

    /// The original is no more.
    pub(super) fn end(&mut self, instance: Instance, requests: &mut Requests, world: &mut World) {
        let Some(original) = self.all.remove(&instance) else { return };
        // What they look for may not be found any more, and be put by no node again.
        for node in &original.asked {
            world.send(*node, Message::Unkeep { id: original.id.clone(), instance });
        }
        original.charged().for_each(|node| self.discharge(node, original.bytes));
        for request in &original.requests {
            let error = Error::ObjectDeleted { id: original.id.clone() };
            requests.reply(*request, Err(error), world);
        }
    }

    /// How far it is, in words.
    pub(super) fn state(&self, instance: Instance) -> String {
        let (kept, refused) = self.all.get(&instance).map_or((0, 0), |original| {
            (original.kept.len() + original.tired.len(), original.refused.len())
        });
        match refused {
            0 => format!("it is at {} nodes", kept + 1),
            _ => format!("it is at {} nodes, and {refused} have no room for it", kept + 1),
        }
    }

    /// Whether no other node has room taken by originals of this one.
    #[cfg(test)]
    pub(super) fn takes_no_room(&self) -> bool {
        self.load.values().all(|bytes| *bytes == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::ClientId,
        node::Action,
        table::{State, Table},
    };

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    /// Nodes that are asked to keep the original, in order.
    fn asked(world: &mut World) -> Vec<u64> {
        let asked = |action| match action {
            Action::Send { to, message: Message::Adopt { .. } } => Some(to.0),
            _ => None,
        };
        world.taken().into_iter().filter_map(asked).collect()
    }

    #[test]
    fn a_node_without_room_is_replaced_and_asked_again_later() {
        let mut world = World::of(3);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id, Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question = Asked { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [2]);
        replicas.answered(NodeId(2), INSTANCE, false, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [3]);
        replicas.answered(NodeId(3), INSTANCE, false, &mut requests, &mut world);
        assert_eq!((asked(&mut world), requests.len()), (Vec::new(), 1));
        let due = replicas.deadline().expect("both are asked again");
        world.wait_until(due);
        replicas.expire(&mut requests, &mut world);
        assert_eq!(asked(&mut world).len(), 1);
        replicas.answered(NodeId(2), INSTANCE, true, &mut requests, &mut world);
        assert_eq!((requests.len(), replicas.deadline()), (0, None));
        replicas.end(INSTANCE, &mut requests, &mut world);
        assert!(replicas.takes_no_room());
    }

    /// Goal: no node looks for ever for an original that ended before it came there, and that is put by no node again.
    #[test]
    fn who_was_asked_for_what_ends_hears_of_it() {
        let mut world = World::of(2);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id.clone(), Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question = Asked { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [2]);
        replicas.end(INSTANCE, &mut requests, &mut world);
        let message = Message::Unkeep { id, instance: INSTANCE };
        assert!(world.taken().contains(&Action::Send { to: NodeId(2), message }));
    }
}
