//! Watches: objects whose owners notify this node now and at each change, and the listeners of each.
//!
//! If the primary owner does not reply, for example because a partition separates it from this node only, the backup
//! owner gets the request too. If the object is lost, or is at a node that is not a member here, the request is sent again later,
//! because one owner may not know yet what happened to it. Does not know what follows from a reply.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};

use crate::{
    id::{Instance, NodeId, ObjectId, ReduceId, RequestId},
    limits::OWNER_TIMEOUT_NS,
    machines::{membership_change::MembershipChange, world::World},
    message::Message,
    time::Instant,
    timed::key_after,
};

/// A reduce or a request of this node that listens to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listener {
    /// The object is an input of this reduce.
    Reduce(ReduceId),
    /// A client waits for the object.
    Request(RequestId),
    /// A client wants a range of the object.
    Range(RequestId),
    /// All parts of this result are here, but it is not known whether it is complete.
    Parts(Instance),
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    listeners: BTreeMap<ObjectId, BTreeSet<Listener>>,
    /// Objects that exist, or did since this node started to listen.
    seen: BTreeSet<ObjectId>,
    /// Objects about which no owner has replied yet.
    unanswered: RetryQueue,
    /// Inputs that are lost, or at nodes that are not members.
    missed: RetryQueue,
}

/// Objects whose owners get another request, each at its time.
#[derive(Debug, Default)]
struct RetryQueue {
    ids: BTreeSet<ObjectId>,
    /// When each request is due, in order; some are no longer needed.
    until: VecDeque<(Instant, ObjectId)>,
}

impl RetryQueue {
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

    /// Sends a watch request for an object to its owner; the watch lasts until [`Self::stop`].
    pub(crate) fn start(&mut self, id: &ObjectId, listener: Listener, world: &mut World) {
        self.listeners.entry(id.clone()).or_default().insert(listener);
        self.ask(id, world);
    }

    fn watch(&self, id: &ObjectId) -> Message {
        Message::Watch { id: id.clone(), seen: self.seen.contains(id) }
    }

    fn ask(&mut self, id: &ObjectId, world: &mut World) {
        let owners = world.members().owners(id);
        world.send(owners.primary, self.watch(id));
        if let Some(backup) = world.standby(id) {
            world.send(backup, self.watch(id));
        } else if owners.primary != world.me() && owners.backup.is_some() {
            self.unanswered.insert(world.now() + OWNER_TIMEOUT_NS, id.clone());
        }
    }

    /// Repeats the watch requests to the backup owner, because the primary owner is unresponsive.
    pub(crate) fn primary_unresponsive(&mut self, primary: NodeId, world: &mut World) {
        for id in self.listeners.keys().cloned().collect::<Vec<ObjectId>>() {
            let owners = world.members().owners(&id);
            if let Some(backup) = owners.backup.filter(|_| owners.primary == primary) {
                self.unanswered.remove(&id);
                world.send(backup, self.watch(&id));
            }
        }
    }

    /// Removes a listener. After the last one the owners are notified.
    pub(crate) fn stop(&mut self, id: &ObjectId, listener: Listener, world: &mut World) {
        if self.listeners.get_mut(id).is_some_and(|listeners| listeners.remove(&listener)) {
            self.stop_if_unused(id, world);
        }
    }

    /// Removes all client requests that listen to an object.
    pub(crate) fn stop_requests(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(listeners) = self.listeners.get_mut(id) {
            listeners.retain(|listener| !matches!(listener, Listener::Request(_)));
        }
        self.stop_if_unused(id, world);
    }

    fn stop_if_unused(&mut self, id: &ObjectId, world: &mut World) {
        if self.listeners.get(id).is_none_or(BTreeSet::is_empty) {
            self.listeners.remove(id);
            self.seen.remove(id);
            self.unanswered.remove(id);
            // The current backup owner may have been the primary owner when the request was sent.
            world.send_owners(id, &Message::Unwatch { id: id.clone() });
        }
    }

    fn of<'a>(&'a self, id: &ObjectId) -> impl Iterator<Item = Listener> + use<'a> {
        self.listeners.get(id).into_iter().flatten().copied()
    }

    /// The reduces that have an object as an input.
    pub(crate) fn reduces(&self, id: &ObjectId) -> Vec<ReduceId> {
        let reduce = |listener| match listener {
            Listener::Reduce(key) => Some(key),
            Listener::Request(_) | Listener::Range(_) | Listener::Parts(_) => None,
        };
        self.of(id).filter_map(reduce).collect()
    }

    /// The client requests that wait for an object.
    pub(crate) fn requests(&self, id: &ObjectId) -> Vec<RequestId> {
        let request = |listener| match listener {
            Listener::Request(request) => Some(request),
            Listener::Reduce(_) | Listener::Range(_) | Listener::Parts(_) => None,
        };
        self.of(id).filter_map(request).collect()
    }

    /// The client requests for a range of an object.
    pub(crate) fn range_reads(&self, id: &ObjectId) -> Vec<RequestId> {
        let request = |listener| match listener {
            Listener::Range(request) => Some(request),
            Listener::Reduce(_) | Listener::Request(_) | Listener::Parts(_) => None,
        };
        self.of(id).filter_map(request).collect()
    }

    /// Whether no owner has replied about an object yet.
    pub(crate) fn is_unanswered(&self, id: &ObjectId) -> bool {
        self.unanswered.ids.contains(id)
    }

    /// Records that an owner has replied.
    pub(crate) fn answered(&mut self, id: &ObjectId) {
        self.unanswered.remove(id);
    }

    /// Records that an owner has the object.
    pub(crate) fn saw(&mut self, id: &ObjectId) {
        if self.listeners.contains_key(id) {
            self.seen.insert(id.clone());
        }
    }

    /// Records that the object has ended: later requests for its name wait for another object.
    pub(crate) fn ended(&mut self, id: &ObjectId) {
        self.seen.remove(id);
    }

    /// Handles the reply of an owner that has no such object yet. If it is the primary owner, the backup owner gets a
    /// watch request too. Otherwise, if the primary owner freezes or is partitioned before the object appears, the
    /// notification would be late by the time until its failure is detected.
    pub(crate) fn absent(&self, from: NodeId, id: &ObjectId, world: &mut World) {
        let owners = world.members().owners(id);
        let is_wanted = self.of(id).any(|listener| !matches!(listener, Listener::Parts(_)));
        if let Some(second) = owners.backup.filter(|_| is_wanted && owners.primary == from) {
            world.send(second, self.watch(id));
        }
    }

    /// Schedules another request to the owner of an input that is unavailable.
    pub(crate) fn missed(&mut self, id: &ObjectId, world: &World) {
        self.missed.insert(world.now() + OWNER_TIMEOUT_NS, id.clone());
    }

    pub(crate) fn expire(&mut self, world: &mut World) {
        while let Some(id) = self.unanswered.take_due(world.now()) {
            if let Some(second) = world.members().owners(&id).backup {
                world.send(second, self.watch(&id));
            }
        }
        while let Some(id) = self.missed.take_due(world.now()) {
            if !self.reduces(&id).is_empty() {
                self.ask(&id, world);
            }
        }
    }

    /// The watched object after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        key_after(&self.listeners, after)
    }

    /// Repeats a watch request to a new owner.
    pub(crate) fn resend(&mut self, id: &ObjectId, change: &MembershipChange, world: &mut World) {
        if self.listeners.contains_key(id) && change.new_owner(id, world).is_some() {
            self.ask(id, world);
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
    fn owners_are_notified_after_the_last_listener() {
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
    fn the_backup_owner_gets_the_watch_if_the_primary_owner_does_not_reply() {
        let ((mut world, id), mut watches) = (world(), Watches::default());
        let listener = Listener::Reduce(ReduceId { node: NodeId(1), serial: 7 });
        watches.start(&id, listener, &mut world);
        let watch = Message::Watch { id: id.clone(), seen: false };
        assert_eq!(sent(&mut world), [(2, watch.clone())]);
        let due = watches.deadline().expect("the primary owner may not reply");
        world.wait_until(due);
        watches.expire(&mut world);
        let second = world.members().owners(&id).backup.expect("there are three nodes");
        let expected =
            if second == world.me() { Vec::new() } else { Vec::from([(second.0, watch)]) };
        assert_eq!(sent(&mut world), expected);
        assert_eq!(watches.deadline(), None);
    }
}
