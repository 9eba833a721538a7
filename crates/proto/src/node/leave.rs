//! Leave: this node hands over what only it holds, then says good-bye.
//!
//! Clients are told at once that it is closing; but what they are filling in that moment, and others may be reading while
//! it grows, they may still seal.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use super::{Action, Node, Waiting};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    message::Message,
    time::Instant,
};

/// How long a node that leaves waits for others to take over what only it holds: 60 s.
pub const LEAVE_PATIENCE_NS: u64 = 60 * 1_000_000_000;

/// How long it waits for clients to seal what they are filling: 1 s.
const FILL_PATIENCE_NS: u64 = 1_000_000_000;

/// What is still to be handed over before this node may close.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Originals, and who was asked to take each so far.
    open: BTreeMap<Instance, BTreeSet<NodeId>>,
    /// Originals that clients are filling, and until when they are waited for.
    filling: BTreeSet<Instance>,
    filling_until: Instant,
    until: Instant,
}

impl Leaving {
    /// When what it waits for has had its time.
    pub(super) fn deadline(&self) -> Instant {
        if self.filling.is_empty() { self.until } else { self.filling_until }
    }
}

impl Node {
    /// This node shall leave: others take over the originals that are here.
    pub(super) fn leave(&mut self, out: &mut Vec<Action>) {
        if self.leaving.is_some() {
            return;
        }
        let (until, filling_until) = (self.now + LEAVE_PATIENCE_NS, self.now + FILL_PATIENCE_NS);
        let filling = self.creates.iter().filter(|(_, create)| create.is_filling());
        let filling = filling.map(|(instance, _)| *instance).collect();
        self.leaving = Some(Leaving { open: BTreeMap::new(), filling, filling_until, until });
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

    /// A client has filled what it was filling when this node was told to leave.
    pub(super) fn filled_while_leaving(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let Some(leaving) = &mut self.leaving else { return };
        leaving.filling.remove(&instance);
        // Also one that was not waited for any more, as long as others are.
        if leaving.until != Instant(u64::MAX) {
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
        for node in &asked {
            others.remove(*node);
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
        let Some(leaving) = self.leaving.as_mut().filter(|leaving| leaving.deadline() <= now)
        else {
            return;
        };
        leaving.filling.clear();
        if leaving.until <= now {
            leaving.open.clear();
        }
    }

    /// Says good-bye once nothing is left to be handed over; after each event, for what came of it is to be said before.
    pub(super) fn leave_when_empty(&mut self, out: &mut Vec<Action>) {
        let Some(leaving) = &mut self.leaving else { return };
        let is_empty = leaving.open.is_empty() && leaving.filling.is_empty();
        if !is_empty || leaving.until == Instant(u64::MAX) {
            return;
        }
        // Said once.
        leaving.until = Instant(u64::MAX);
        let mut mail = Vec::new();
        let mut without_me = self.members.clone();
        without_me.resign();
        self.directory.members_changed(self.now, &without_me, None, &mut mail);
        self.post(mail, out);
        for other in self.members.others().map(|other| other.id).collect::<Vec<_>>() {
            self.send(other, Message::Leave, out);
        }
        out.push(Action::Left);
    }
}
