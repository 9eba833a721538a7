//! Copies that owners have to be told of again after a change of members, a slice of them at a time.
//!
//! What this node does meanwhile it tells the owners of now by itself; only a deletion must not come to an owner that does
//! not know yet of what is deleted.

use alloc::vec::Vec;

use super::{Node, change::Change};
use crate::{
    id::{Instance, NodeId, ObjectId},
    message::Message,
    planted::{self, Bug},
    time::Instant,
};

/// Changes of which the owners of some copies have not been told.
#[derive(Debug, Default)]
pub(super) struct Retelling {
    /// Those that the walk through the copies is about, and those that came since it began.
    changes: Vec<Change>,
    later: Vec<Change>,
    /// How far the walk has come.
    after: Option<Instance>,
    next_at: Instant,
}

impl Retelling {
    /// When the next slice is to be told.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.changes.is_empty()).then_some(self.next_at)
    }

    fn note(&mut self, change: Change) {
        if self.after.is_some() {
            self.later.push(change);
        } else {
            self.changes.push(change);
        }
    }

    /// A slice of `most` copies was told of; whether there are more, the next one at a given time.
    fn told(&mut self, some: &[Instance], most: usize, next_at: Instant) {
        self.after = some.last().copied().filter(|_| some.len() == most);
        if self.after.is_none() {
            self.changes = core::mem::take(&mut self.later);
        }
        self.next_at = next_at;
    }
}

impl Node {
    /// Tells the owners that were not owners before, and the node to be told anew, of the copies here.
    pub(super) fn tell_of_copies(&mut self, change: &Change) {
        // An owner that is asked for the rest of an object has to know of the part that is here.
        for id in self.pulls.ids() {
            if let Some(instance) = self.copies.current(&id) {
                self.tell_of(instance, core::slice::from_ref(change));
            }
        }
        self.retelling.note(change.clone());
        self.tell_of_some();
    }

    pub(super) fn expire_retelling(&mut self) {
        if self.retelling.deadline().is_some_and(|at| at <= self.world.now()) {
            self.tell_of_some();
        }
    }

    fn tell_of_some(&mut self) {
        let slice = self.world.config().slice;
        let some = self.copies.table().following(self.retelling.after);
        let some: Vec<Instance> = some.take(slice.entries).collect();
        let mut retelling = core::mem::take(&mut self.retelling);
        for instance in &some {
            // Told of at once, or since.
            let is_told =
                self.copies.get(*instance).is_none_or(|copy| self.pulls.contains(&copy.id));
            if !is_told {
                self.tell_of(*instance, &retelling.changes);
            }
        }
        retelling.told(&some, slice.entries, self.world.now() + slice.pause_ns);
        self.retelling = retelling;
    }

    /// What is here of an object that is about to be deleted is told of first.
    pub(super) fn tell_before_deletion(&mut self, id: &ObjectId) {
        if self.retelling.changes.is_empty() {
            return;
        }
        let Some(instance) = self.copies.current(id) else { return };
        let retelling = core::mem::take(&mut self.retelling);
        self.tell_of(instance, &retelling.changes);
        self.tell_of(instance, &retelling.later);
        self.retelling = retelling;
    }

    fn tell_of(&mut self, instance: Instance, changes: &[Change]) {
        let is_current = |id: &ObjectId| self.copies.current(id) == Some(instance);
        let copy = self.copies.get(instance).filter(|copy| is_current(&copy.id));
        let Some(copy) = copy.filter(|_| !planted::has(Bug::TellsNewOwnersNothing)) else { return };
        let new = changes.iter().flat_map(|change| change.new_owners(&copy.id, &self.world));
        let new: Vec<NodeId> = new.collect();
        if new.is_empty() {
            return;
        }
        let owners = self.world.members().owners(&copy.id).iter();
        let Some(announce) = self.announcement(instance) else { return };
        for owner in owners.filter(|owner| new.contains(owner)) {
            self.world.send(owner, Message::Announce(announce.clone()));
        }
    }
}
