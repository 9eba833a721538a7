//! Leave: this node hands over what only it holds and finishes what it folds, then says good-bye.
//!
//! Clients are told at once that it is closing; but what they are filling in that moment, and others may be reading while
//! it grows, they may still seal.
//!
//! A reduce that folds here would have to begin again, so this node asks every member ([`Message::Leaving`]). From then on
//! the member's reduces take no seat here: an input that only this node holds they take from the node that adopts it. A
//! member answers ([`Message::Unseated`]) when none of its reduces has a seat here any more; orders that it gave before
//! have come by then, since messages of one member keep their order. What this node's own clients reduce fails at once:
//! their result would be lost with this node.
//!
//! ```text
//!   told to leave --> adopted, unseated, folds over --> good-bye
//!         |                                                ^
//!         +--------------- its time is over ---------------+  what it still folds begins again without it
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{Action, Node, Waiting};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    members::Members,
    message::Message,
    reduce::Reduce,
    time::Instant,
};

/// How long a node that leaves waits for others if it is not said: 60 s.
pub const LEAVE_PATIENCE_NS: u64 = 60 * 1_000_000_000;

/// How long it waits for clients to seal what they are filling: 1 s.
const FILL_PATIENCE_NS: u64 = 1_000_000_000;

/// What is still to be done before this node may close.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Originals, and who was asked to take each so far.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Originals that clients are filling, and until when they are waited for.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    /// Members whose reduces may have a seat here.
    seated_by: BTreeSet<NodeId>,
    until: Instant,
    has_left: bool,
}

impl Leaving {
    /// When what it waits for has had its time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = if self.filling.is_empty() { self.until } else { self.filling_until };
        Some(until).filter(|_| !self.has_left)
    }
}

impl Node {
    /// This node shall leave: others take over the originals that are here.
    pub(super) fn leave(&mut self, patience_ns: u64, out: &mut Vec<Action>) {
        if self.leaving.is_some() {
            return;
        }
        let until = self.now + patience_ns;
        let filling_until = until.min(self.now + FILL_PATIENCE_NS);
        let filling = self.creates.iter().filter(|(_, create)| create.is_filling());
        let filling = filling.map(|(instance, _)| *instance).collect();
        let (open, seated_by, has_left) = (BTreeMap::new(), BTreeSet::new(), false);
        let leaving = Leaving { open, filling, filling_until, seated_by, until, has_left };
        self.leaving = Some(leaving);
        self.members.begin_to_leave(self.me.id);
        for other in self.members.others().map(|other| other.id).collect::<Vec<_>>() {
            self.say_leaving(other, out);
        }
        let ours: Vec<ObjectId> = self.reduce_of.keys().cloned().collect();
        for id in ours {
            let said = alloc::format!("node {}, which folds {id}, left the cluster", self.me.id);
            self.fail_reduce_of(&id, &Error::NodeDown(said), out);
        }
        for request in self.requests.keys().copied().collect::<Vec<RequestId>>() {
            match self.requests.get(&request).map(|pending| pending.kind.clone()) {
                Some(Waiting::Object(id)) => self.stop_waiting(&id, request, out),
                Some(Waiting::Growth(id)) => self.stop_following(&id, request),
                Some(Waiting::Several(waited)) => self.stop_listening(&waited, request, out),
                _ => {}
            }
            let said = alloc::format!("node {} is closing", self.me.id);
            self.reply(request, Err(Error::NodeDown(said)), out);
        }
        // Who leaves too asks another one.
        for id in self.adoptions.keys().cloned().collect::<Vec<ObjectId>>() {
            self.adoption_failed(&id, out);
            self.end_if_unwanted(&id, out);
        }
        let originals: Vec<Instance> = self
            .table
            .iter()
            .filter(|(_, copy)| copy.origin && copy.is_complete() && !copy.doomed)
            .map(|(instance, _)| instance)
            .collect();
        for instance in originals {
            self.hand_over(instance, BTreeSet::new(), out);
        }
    }

    fn say_leaving(&mut self, to: NodeId, out: &mut Vec<Action>) {
        let Some(leaving) = self.leaving.as_mut().filter(|leaving| !leaving.has_left) else {
            return;
        };
        leaving.seated_by.insert(to);
        self.send(to, Message::Leaving, out);
    }

    /// Members that are new, or have forgotten it, hear that this node leaves.
    pub(super) fn tell_of_leaving(
        &mut self,
        before: &Members,
        renewed: Option<NodeId>,
        out: &mut Vec<Action>,
    ) {
        if self.leaving.is_none() {
            return;
        }
        let others = self.members.others().map(|other| other.id);
        let others = others.filter(|node| !before.contains(*node) || renewed == Some(*node));
        for other in others.collect::<Vec<_>>() {
            self.say_leaving(other, out);
        }
    }

    /// No reduce of a member has a seat here, nor will have one.
    pub(super) fn unseated(&mut self, by: NodeId) {
        if let Some(leaving) = &mut self.leaving {
            leaving.seated_by.remove(&by);
        }
    }

    /// Whether this node leaves, and has finished what `coordinator` ordered.
    pub(super) fn takes_no_orders_of(&self, coordinator: NodeId) -> bool {
        let leaving = self.leaving.as_ref();
        leaving.is_some_and(|leaving| !leaving.seated_by.contains(&coordinator))
    }

    /// A member was told to leave: reduces of this node order it nothing new.
    pub(super) fn member_leaves(&mut self, node: NodeId, out: &mut Vec<Action>) {
        self.members.begin_to_leave(node);
        self.unseating.insert(node);
        for key in self.reduces.keys().copied().collect::<Vec<_>>() {
            self.advise(key, |reduce, _, _, steps| reduce.holder_leaves(node, steps), out);
        }
    }

    /// Members that leave hear when no reduce of this node has a seat there.
    pub(super) fn unseat(&mut self, out: &mut Vec<Action>) {
        if self.unseating.is_empty() {
            return;
        }
        let seats: BTreeSet<NodeId> = self.reduces.values().flat_map(Reduce::nodes).collect();
        for node in self.unseating.difference(&seats).copied().collect::<Vec<_>>() {
            self.unseating.remove(&node);
            self.send(node, Message::Unseated, out);
        }
    }

    /// A client has filled what it was filling when this node was told to leave.
    pub(super) fn filled_while_leaving(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(leaving) = &mut self.leaving else { return };
        leaving.filling.remove(&instance);
        // Also one that was not waited for any more, as long as others are.
        if !leaving.has_left {
            self.hand_over(instance, BTreeSet::new(), out);
        }
    }

    /// Asks the next member that was not asked before to keep an original.
    fn hand_over(
        &mut self,
        instance: Instance,
        mut asked: BTreeSet<NodeId>,
        out: &mut Vec<Action>,
    ) {
        let Some(copy) = self.table.get(instance) else { return };
        // By the order of ownership, so that originals spread over all who stay.
        let mut others = self.members.clone();
        others.resign();
        let leaving: Vec<NodeId> = others.iter().map(|other| other.id).collect();
        let leaving = leaving.into_iter().filter(|node| others.is_leaving(*node));
        for node in asked.iter().copied().chain(leaving.collect::<Vec<_>>()) {
            others.remove(node);
        }
        let target = others.iter().next().map(|_| others.owners(&copy.id).first);
        let Some(leaving) = &mut self.leaving else { return };
        let Some(target) = target else {
            leaving.open.remove(&instance);
            return;
        };
        asked.insert(target);
        leaving.open.insert(instance, asked);
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        // It may have room later; without it the object is lost.
        let may_wait = true;
        self.send(target, Message::Adopt { id, instance, meta, inline, may_wait }, out);
    }

    /// An original is no more: nobody need take it over.
    pub(super) fn hand_over_void(&mut self, instance: Instance) {
        let Some(leaving) = &mut self.leaving else { return };
        leaving.open.remove(&instance);
        leaving.filling.remove(&instance);
    }

    /// A member that is there has forgotten what it was asked to take over: it is asked again.
    pub(super) fn hand_over_anew(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let Some(leaving) = &mut self.leaving else { return };
        let hit = leaving.open.iter_mut().filter_map(|(instance, asked)| {
            asked.remove(&node).then(|| (*instance, asked.clone()))
        });
        for (instance, asked) in hit.collect::<Vec<_>>() {
            self.hand_over(instance, asked, out);
        }
    }

    /// Whoever had promised to keep something is gone itself.
    pub(super) fn hand_over_again(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let Some(leaving) = &self.leaving else { return };
        let hit = leaving.open.iter().filter(|(_, asked)| asked.contains(&node));
        for (instance, asked) in hit.map(|(i, a)| (*i, a.clone())).collect::<Vec<_>>() {
            self.hand_over(instance, asked, out);
        }
    }

    pub(super) fn adopted(
        &mut self,
        from: NodeId,
        instance: Instance,
        kept: bool,
        out: &mut Vec<Action>,
    ) {
        self.keeper_answered(from, instance, kept, out);
        let Some(leaving) = &mut self.leaving else { return };
        let Some(asked) =
            leaving.open.get(&instance).filter(|asked| asked.contains(&from)).cloned()
        else {
            return;
        };
        if kept {
            leaving.open.remove(&instance);
        } else {
            self.hand_over(instance, asked, out);
        }
    }

    pub(super) fn expire_leaving(&mut self) {
        let now = self.now;
        let Some(leaving) = &mut self.leaving else { return };
        if leaving.filling_until <= now {
            leaving.filling.clear();
        }
    }

    /// Says good-bye once nothing is left to be done, or its time is over; after each event, for what came of it is to be
    /// said before.
    pub(super) fn leave_when_empty(&mut self, out: &mut Vec<Action>) {
        let Some(leaving) = self.leaving.as_mut().filter(|leaving| !leaving.has_left) else {
            return;
        };
        let is_kept = leaving.open.is_empty() && leaving.filling.is_empty();
        let has_folded = leaving.seated_by.is_empty()
            && self.folds.values().all(|fold| fold.is_stopped)
            && self.scatters.is_empty();
        if !(is_kept && has_folded || leaving.until <= self.now) {
            return;
        }
        // Said once.
        leaving.has_left = true;
        leaving.open.clear();
        let mut mail = Vec::new();
        let mut without_me = self.members.clone();
        without_me.resign();
        self.directory.leave(self.now, &without_me, &mut mail);
        self.post(mail, out);
        for other in self.members.others().map(|other| other.id).collect::<Vec<_>>() {
            self.send(other, Message::Leave, out);
        }
        out.push(Action::Left { is_kept });
    }
}
