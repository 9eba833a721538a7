//! Delete: all copies go, everywhere.

use alloc::vec::Vec;

use super::Node;
use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, RequestId},
    machines::puts::Phase,
    message::Message,
    planted::{self, Bug},
    table::State,
};

impl Node {
    /// An owner has said which names are older than the one that is kept.
    pub(super) fn prune_these(&mut self, request: RequestId, names: Vec<Name>) {
        let ids: Vec<ObjectId> = names.into_iter().map(ObjectId::Named).collect();
        ids.iter().for_each(|id| self.tell_before_deletion(id));
        self.requests.prune_these(request, &ids, &mut self.world);
    }

    /// The owner says that a copy is void: deleted, failed, or replaced by another instance.
    pub(super) fn drop_copy(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Option<Error>,
    ) {
        if let Some(full @ Error::NoMemory { .. }) = &error
            && self.puts.phase(instance) == Some(Phase::Name)
        {
            // The owner of the name has no entry left for this node.
            return self.fail_create(instance, full.clone());
        }
        if let Some(error) = &error
            && let Some(key) = self.reservations.reduce_of(instance)
        {
            self.reservation_dropped(from, key, id, error);
        }
        if matches!(error, Some(Error::ObjectDeleted { .. })) {
            self.puts.deleted(instance);
        }
        let was_current = self.copies.current(id) == Some(instance);
        // An attempt that was given up may still be read.
        let state = self.copies.get(instance).filter(|copy| !copy.doomed).map(|copy| copy.state);
        if state == Some(State::Folding) {
            let error = error.clone().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() });
            self.fail_reduce_of(id, &error);
        }
        let was_told = was_current || self.pull_without_room(id) == Some(instance);
        if !planted::has(Bug::KeepsDroppedCopies) {
            self.doom(instance);
        }
        if was_current {
            self.coordinator.forget_folded(id);
        }
        if error.is_some() {
            self.world.send(from, Message::Dropped { id: id.clone(), instance });
        }
        if was_told {
            // The other owner may have heard of the deletion before it heard of this copy, or not at all: it would keep the
            // name for what is gone. So would this one, of what it is still to hear and does not remember as deleted.
            let owners = self.world.members().owners(id).iter();
            let misled = owners.filter(|owner| *owner != from || error.is_none());
            for owner in misled.collect::<Vec<_>>() {
                self.world.send(owner, Message::Withdraw { id: id.clone(), instance });
            }
            // A name may have been put again meanwhile: who waits for that instance waits on.
            match &error {
                Some(error) => self.pull_failed(id, error),
                None => {
                    self.end_pull(id);
                    self.pull_if_wanted(id);
                }
            }
        }
    }

    /// The owner knows of no node that has all of an object.
    pub(super) fn stranded(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Error,
    ) {
        let copy = self.copies.get(instance).filter(|copy| !copy.doomed);
        if copy.is_some_and(|copy| !matches!(copy.state, State::Flowing(_))) {
            // For a while nothing came through to it from here.
            self.announce(instance);
        } else {
            self.drop_copy(from, id, instance, Some(error));
        }
    }

    /// An owner does not know whether this copy is still here. If it is, the owners of now are told.
    pub(super) fn doubted(&mut self, id: &ObjectId, instance: Instance) {
        if self.copies.current(id) == Some(instance) {
            self.announce(instance);
        } else if self.pull_without_room(id) == Some(instance)
            && let Some(announce) = self.room_announcement(id)
        {
            self.world.send_owners(id, &Message::Announce(announce));
        }
    }

    /// The owner says that an object can't come.
    pub(super) fn gone(&mut self, from: NodeId, id: &ObjectId, error: &Error) {
        // The second owner, asked while the first was slow to answer, may not have heard of the next put of the name.
        let is_first = self.world.members().owners(id).first == from;
        let is_located = self.pulls.contains(id) && !self.pulls.is_asking(id);
        self.watches.answered(id);
        if is_first || !is_located {
            self.pull_failed(id, error);
        }
        self.input_gone(id, error);
        self.several_settled(id);
        self.watches.ended(id);
    }
}
