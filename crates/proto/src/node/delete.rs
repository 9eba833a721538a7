//! Delete: removes all copies on all nodes.

use alloc::vec::Vec;

use super::Node;
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    message::Message,
    mutants::{self, Mutant},
    table::State,
};

impl Node {
    /// The owner requests that a copy be dropped: it was deleted, failed, or was replaced by
    /// another instance.
    pub(super) fn drop_copy(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Option<Error>,
    ) {
        if let Some(error) = &error
            && (id.is_slot() || matches!(error, Error::NoMemory { .. }))
            && self.claims.is_claiming(instance)
        {
            // The owner of the name has no entry left for this node, or the slot has ended.
            return self.fail_put(instance, error.clone());
        }
        if let Some(error) = &error {
            self.reservation_dropped(from, id, instance, error);
        }
        if matches!(error, Some(Error::ObjectDeleted { .. })) {
            self.claims.deleted(instance);
        }
        let was_current = self.copies.current(id) == Some(instance);
        // A failed attempt may still be read.
        let state = self.copies.get(instance).filter(|copy| !copy.doomed).map(|copy| copy.state);
        if state == Some(State::Folding) {
            let error = error.clone().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() });
            self.fail_reduce_of(id, &error);
        }
        let was_told = was_current || self.pull_without_capacity(id) == Some(instance);
        if !mutants::is_active(Mutant::KeepsDroppedCopies) {
            self.doom(instance);
        }
        if was_current {
            self.coordinator.forget_folded(id);
        }
        if error.is_some() {
            self.world.send(from, Message::Dropped { id: id.clone(), instance });
        }
        if was_told {
            // The other owner may have received the deletion before the announcement of this copy,
            // or not at all, and would keep the name for it. Without an error, the requesting owner
            // has no tombstone either, and a late announcement would have the same effect.
            let owners = self.world.members().owners(id).iter();
            let misled = owners.filter(|owner| *owner != from || error.is_none());
            for owner in misled.collect::<Vec<_>>() {
                self.world.send(owner, Message::Withdraw { id: id.clone(), instance });
            }
            // The name may have been put again meanwhile: clients that wait for that instance
            // continue to wait.
            match &error {
                Some(error) => self.pull_failed(id, error),
                None => {
                    self.end_pull(id);
                    self.pull_if_wanted(id);
                }
            }
        }
    }

    /// The owner has no holder with a complete copy.
    pub(super) fn drop_partial(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Error,
    ) {
        let copy = self.copies.get(instance).filter(|copy| !copy.doomed);
        if copy.is_some_and(|copy| copy.state != State::Arriving) {
            // For a while the owner received no announcements of this node.
            self.announce(instance);
        } else {
            self.drop_copy(from, id, instance, Some(error));
        }
    }

    /// An owner doubts that this copy exists. If it does, announce it to the present owners, and
    /// withdraw it if not. If this node has stored the object as an owner, the other one gets the
    /// bytes.
    pub(super) fn reannounce_if_held(&mut self, from: NodeId, id: &ObjectId, instance: Instance) {
        let is_here = self.copies.current(id) == Some(instance);
        if is_here || self.pull_without_capacity(id) == Some(instance) {
            return self.announce(instance);
        }
        let stored = self.directory.stored(self.world.now(), id);
        self.world.send(from, Message::Withdraw { id: id.clone(), instance });
        if let Some(stored) = stored.filter(|stored| stored.instance == instance) {
            self.world.send(from, Message::Announce(stored));
        }
    }
}
