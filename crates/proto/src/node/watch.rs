//! Watch: owners are asked to tell of an object, now and whenever that changes. If the first does not answer, for it is
//! cut off from this node and from nobody else, the second is asked too; and if the object is lost, or at a node that is no
//! member here, both are asked anew, for one of them may not have heard yet of what happened to it.

use alloc::collections::{BTreeSet, VecDeque};

use super::Node;
use crate::{
    id::{NodeId, ObjectId},
    limits::OWNER_PATIENCE_NS,
    message::Message,
    time::Instant,
};

/// Objects of which owners are asked again, each at its time.
#[derive(Debug, Default)]
pub(super) struct Due {
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

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until.front().map(|(until, _)| *until)
    }
}

impl Node {
    pub(super) fn watch(&mut self, id: ObjectId) {
        let owners = self.world.members().owners(&id);
        if owners.first != self.world.me() && owners.second.is_some() {
            self.unanswered.insert(self.world.now() + OWNER_PATIENCE_NS, id.clone());
        }
        self.world.send(owners.first, Message::Watch { id });
    }

    /// The first owner knows of no object so far. The second is asked to tell of it, too: the first may be frozen or cut
    /// off when the object comes, and the news would be late by as long as its death takes to be noticed.
    pub(super) fn watch_at_second(&mut self, from: NodeId, id: &ObjectId) {
        let owners = self.world.members().owners(id);
        let is_wanted = self.watches.contains_key(id) || self.awaited.contains_key(id);
        if let Some(second) = owners.second.filter(|_| is_wanted && owners.first == from) {
            self.world.send(second, Message::Watch { id: id.clone() });
        }
    }

    /// An owner has spoken, or nobody here listens any more.
    pub(super) fn watch_answered(&mut self, id: &ObjectId) {
        self.unanswered.remove(id);
    }

    pub(super) fn expire_watches(&mut self) {
        while let Some(id) = self.unanswered.take_due(self.world.now()) {
            if let Some(second) = self.world.members().owners(&id).second {
                self.world.send(second, Message::Watch { id });
            }
        }
        while let Some(id) = self.missed.take_due(self.world.now()) {
            if self.watches.contains_key(&id) {
                self.watch(id);
            }
        }
    }

    /// An input can't be had as it is.
    pub(super) fn watch_later(&mut self, id: &ObjectId) {
        self.missed.insert(self.world.now() + OWNER_PATIENCE_NS, id.clone());
    }
}
