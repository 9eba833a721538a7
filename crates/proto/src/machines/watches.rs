//! Watches: the objects of which this node has owners tell, now and whenever that changes, and on whose behalf.
//!
//! If the first owner does not answer, because it is cut off from this node and from no other, the second is asked too; and
//! if the object is lost, or at a node that is no member here, both are asked anew, for one of them may not have heard yet
//! of what happened to it. Does not know what follows from an answer.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId, ObjectId, ReduceId, RequestId},
    limits::OWNER_PATIENCE_NS,
    machines::{change::Change, world::World},
    message::Message,
    time::Instant,
};

/// On whose behalf this node listens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listener {
    /// The object is an input of this reduce.
    Reduce(ReduceId),
    /// A client waits for the object.
    Request(RequestId),
    /// All parts of this result are here, and it is not known whether it is complete.
    Parts(Instance),
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    listeners: BTreeMap<ObjectId, BTreeSet<Listener>>,
    /// Those of them that exist, or did since this node listens.
    seen: BTreeSet<ObjectId>,
    /// Objects of which no owner has spoken.
    unanswered: Due,
    /// Inputs that are lost, or at nodes which are no members.
    missed: Due,
}

/// Objects of which owners are asked again, each at its time.
#[derive(Debug, Default)]
struct Due {
    ids: BTreeSet<ObjectId>,
    /// When each is to be asked for, in order; some need not be any more.
    until: VecDeque<(Instant, ObjectId)>,
}

impl Due {
    fn insert(&mut self, until: Instant, id: ObjectId) {
        if self.ids.insert(id.clone()) {
            self.until.push_back((until, id));
        }
    }

    fn remove(&mut self, id: &ObjectId) {
        if self.ids.remove(id) {
            self.skip_answered();
        }
    }

    fn skip_answered(&mut self) {
        while self.until.front().is_some_and(|(_, id)| !self.ids.contains(id)) {
            self.until.pop_front();
        }
    }

    fn take_due(&mut self, now: Instant) -> Option<ObjectId> {
        self.until.front().filter(|(until, _)| *until <= now)?;
        let (_, id) = self.until.pop_front()?;
        self.ids.remove(&id);
        self.skip_answered();
        Some(id)
    }

    fn deadline(&self) -> Option<Instant> {
        self.until.front().map(|(until, _)| *until)
    }
}

impl Watches {
    pub(crate) fn len(&self) -> usize {
        self.listeners.len()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.unanswered.deadline().into_iter().chain(self.missed.deadline()).min()
    }

    /// Asks the owner of an object, and goes on listening until [`Self::stop`].
    pub(crate) fn start(&mut self, id: &ObjectId, listener: Listener, world: &mut World) {
        self.listeners.entry(id.clone()).or_default().insert(listener);
        self.ask(id, world);
    }

    fn watch(&self, id: &ObjectId) -> Message {
        Message::Watch { id: id.clone(), seen: self.seen.contains(id) }
    }

    fn ask(&mut self, id: &ObjectId, world: &mut World) {
        let owners = world.members().owners(id);
        if owners.first != world.me() && owners.second.is_some() {
            self.unanswered.insert(world.now() + OWNER_PATIENCE_NS, id.clone());
        }
        world.send(owners.first, self.watch(id));
    }

    /// One listener less; the owners hear when there is none left.
    pub(crate) fn stop(&mut self, id: &ObjectId, listener: Listener, world: &mut World) {
        if self.listeners.get_mut(id).is_some_and(|listeners| listeners.remove(&listener)) {
            self.end_if_unheard(id, world);
        }
    }

    /// The questions of clients for an object are answered.
    pub(crate) fn stop_requests(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(listeners) = self.listeners.get_mut(id) {
            listeners.retain(|listener| !matches!(listener, Listener::Request(_)));
        }
        self.end_if_unheard(id, world);
    }

    fn end_if_unheard(&mut self, id: &ObjectId, world: &mut World) {
        if self.listeners.get(id).is_none_or(BTreeSet::is_empty) {
            self.listeners.remove(id);
            self.seen.remove(id);
            self.unanswered.remove(id);
            // The second may have been the first when it was asked.
            world.send_owners(id, &Message::Unwatch { id: id.clone() });
        }
    }

    fn of<'a>(&'a self, id: &ObjectId) -> impl Iterator<Item = Listener> + use<'a> {
        self.listeners.get(id).into_iter().flatten().copied()
    }

    /// The reduces that an object is an input of.
    pub(crate) fn reduces(&self, id: &ObjectId) -> Vec<ReduceId> {
        let reduce = |listener| match listener {
            Listener::Reduce(key) => Some(key),
            Listener::Request(_) | Listener::Parts(_) => None,
        };
        self.of(id).filter_map(reduce).collect()
    }

    /// The questions of clients that wait for an object.
    pub(crate) fn requests(&self, id: &ObjectId) -> Vec<RequestId> {
        let request = |listener| match listener {
            Listener::Request(request) => Some(request),
            Listener::Reduce(_) | Listener::Parts(_) => None,
        };
        self.of(id).filter_map(request).collect()
    }

    /// An owner has spoken.
    pub(crate) fn answered(&mut self, id: &ObjectId) {
        self.unanswered.remove(id);
    }

    /// An owner knows of the object.
    pub(crate) fn saw(&mut self, id: &ObjectId) {
        if self.listeners.contains_key(id) {
            self.seen.insert(id.clone());
        }
    }

    /// The object has ended: whoever asks for its name from now on waits for another one.
    pub(crate) fn ended(&mut self, id: &ObjectId) {
        self.seen.remove(id);
    }

    /// An owner knows of no object so far. If it is the first the second is asked to tell of it, too: the first may be
    /// frozen or cut off when the object comes, and the news would be late by as long as its death takes to be noticed.
    pub(crate) fn absent(&self, from: NodeId, id: &ObjectId, world: &mut World) {
        let owners = world.members().owners(id);
        let is_wanted = self.of(id).any(|listener| !matches!(listener, Listener::Parts(_)));
        if let Some(second) = owners.second.filter(|_| is_wanted && owners.first == from) {
            world.send(second, self.watch(id));
        }
    }

    /// An input can't be had as it is: its owner is asked again later.
    pub(crate) fn missed(&mut self, id: &ObjectId, world: &World) {
        self.missed.insert(world.now() + OWNER_PATIENCE_NS, id.clone());
    }

    pub(crate) fn expire(&mut self, world: &mut World) {
        while let Some(id) = self.unanswered.take_due(world.now()) {
            if let Some(second) = world.members().owners(&id).second {
                world.send(second, self.watch(&id));
            }
        }
        while let Some(id) = self.missed.take_due(world.now()) {
            if !self.reduces(&id).is_empty() {
                self.ask(&id, world);
            }
        }
    }

    /// Asks the owners that are new.
    pub(crate) fn ask_again(&mut self, change: &Change, world: &mut World) {
        for id in self.listeners.keys().cloned().collect::<Vec<ObjectId>>() {
            if change.new_owner(&id, world).is_some() {
                self.ask(&id, world);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Action;

    fn sent(world: &mut World) -> Vec<(u64, Message)> {
        let sent = |action| match action {
            Action::Send { to, message } => Some((to.0, message)),
            _ => None,
        };
        world.taken().into_iter().filter_map(sent).collect()
    }

    /// Node 1 of three, and an object of node 2.
    fn world() -> (World, ObjectId) {
        (World::of(3), ObjectId::Minted { node: NodeId(2), serial: 1 })
    }

    #[test]
    fn owners_hear_when_the_last_listener_has_gone() {
        let ((mut world, id), mut watches) = (world(), Watches::default());
        let reduce = Listener::Reduce(ReduceId { node: NodeId(1), serial: 7 });
        let parts = Listener::Parts(Instance { node: NodeId(3), serial: 8 });
        watches.start(&id, reduce, &mut world);
        watches.start(&id, parts, &mut world);
        sent(&mut world);
        watches.stop(&id, reduce, &mut world);
        watches.stop(&id, reduce, &mut world);
        assert_eq!(sent(&mut world), []);
        watches.stop(&id, parts, &mut world);
        let unwatch = Message::Unwatch { id: id.clone() };
        let told = sent(&mut world);
        assert!(told.iter().all(|(_, message)| *message == unwatch) && told[0].0 == 2, "{told:?}");
        assert_eq!((watches.len(), watches.deadline()), (0, None));
    }

    #[test]
    fn the_second_owner_is_asked_where_the_first_is_silent() {
        let ((mut world, id), mut watches) = (world(), Watches::default());
        let listener = Listener::Reduce(ReduceId { node: NodeId(1), serial: 7 });
        watches.start(&id, listener, &mut world);
        let watch = Message::Watch { id: id.clone(), seen: false };
        assert_eq!(sent(&mut world), [(2, watch.clone())]);
        let due = watches.deadline().expect("the first may not answer");
        world.wait_until(due);
        watches.expire(&mut world);
        let second = world.members().owners(&id).second.expect("there are three");
        let expected =
            if second == world.me() { Vec::new() } else { Vec::from([(second.0, watch)]) };
        assert_eq!(sent(&mut world), expected);
        assert_eq!(watches.deadline(), None);
    }
}
