//! Re-announces copies to owners after a membership change, a slice at a time.
//!
//! New copies are announced to the present owners in any case. Only a deletion must not reach an owner before the
//! announcement of the deleted object.

use alloc::vec::Vec;

use super::Node;
use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::membership_change::MembershipChange,
    message::Message,
    mutants::{self, Mutant},
};

impl Node {
    /// Announces the copies of this node to new owners and to a reconnected node.
    pub(super) fn reannounce_copies(&mut self, change: &MembershipChange) {
        // An owner that gets a request for the rest of an object must have the announcement of the part on this node.
        for id in self.pulls.ids() {
            if let Some(instance) = self.copies.current(&id) {
                self.reannounce_copy(instance, core::slice::from_ref(change));
            }
        }
        self.reannouncements.note(change.clone());
        self.reannounce_slice();
    }

    pub(super) fn expire_reannouncements(&mut self) {
        if self.reannouncements.deadline().is_some_and(|at| at <= self.world.now()) {
            self.reannounce_slice();
        }
    }

    fn reannounce_slice(&mut self) {
        let slice = self.world.config().slice;
        let mut reannouncements = core::mem::take(&mut self.reannouncements);
        let (changes, after) = reannouncements.next();
        let some = self.copies.table().following(after);
        let some: Vec<Instance> = some.take(slice.entries).collect();
        for instance in &some {
            // Already announced, at once or since.
            let is_told =
                self.copies.get(*instance).is_none_or(|copy| self.pulls.contains(&copy.id));
            if !is_told {
                self.reannounce_copy(*instance, changes);
            }
        }
        reannouncements.advance(&some, slice.entries, self.world.now() + slice.pause_ns);
        self.reannouncements = reannouncements;
    }

    /// Announces the copy of an object that is about to be deleted first.
    pub(super) fn announce_before_deletion(&mut self, id: &ObjectId) {
        let Some(instance) = self.copies.current(id) else { return };
        let reannouncements = core::mem::take(&mut self.reannouncements);
        reannouncements
            .all()
            .into_iter()
            .for_each(|changes| self.reannounce_copy(instance, changes));
        self.reannouncements = reannouncements;
    }

    fn reannounce_copy(&mut self, instance: Instance, changes: &[MembershipChange]) {
        let is_current = |id: &ObjectId| self.copies.current(id) == Some(instance);
        let copy = self.copies.get(instance).filter(|copy| is_current(&copy.id));
        let Some(copy) = copy.filter(|_| !mutants::is_active(Mutant::NeverReannounces)) else {
            return;
        };
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
