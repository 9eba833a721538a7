//! The life of a copy, however it came to be: its slot, what owners are told of it, the pins of those that use it, its end.
//!
//! What a copy is, and which may be evicted, is in [`crate::table`]; how it comes to be in [`super::put`], [`super::get`],
//! [`super::reduce`] and [`super::adopt`]; how it goes to disk and comes back in [`super::spill`].

use alloc::string::String;

use super::{Action, Node, Note};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    message::{Announce, Message, Progress},
    planted::{self, Bug},
    table::{Removed, Shed, State},
};

impl Node {
    pub(super) fn slot_ready(&mut self, instance: Instance) {
        self.has_memory(instance);
        match self.table.get(instance).map(|copy| copy.state) {
            Some(State::Filling(_)) => self.create_in_memory(instance),
            Some(State::Flowing(_)) => self.pull_in_memory(instance),
            Some(State::Folding) => self.result_in_memory(instance),
            Some(State::Complete) => self.unspill_in_memory(instance),
            // The copy went while its memory was being made.
            None => self.world.act(Action::FreeSlot { instance }),
        }
    }

    pub(super) fn slot_failed(&mut self, instance: Instance, detail: String) {
        self.has_memory(instance);
        let Some(copy) = self.table.get(instance) else { return };
        let (id, needed) = (copy.id.clone(), copy.meta.size);
        let error = Error::NoMemory { needed, detail };
        match copy.state {
            State::Filling(_) => self.fail_create(instance, error),
            State::Flowing(_) => self.pull_failed(&id, &error),
            State::Folding => self.result_failed(instance, error),
            State::Complete => self.unspill_without_memory(instance, &error),
        }
    }

    /// Makes a copy the one that gets use. What is here of another instance is not current any more.
    pub(super) fn reveal(&mut self, instance: Instance) {
        let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) else { return };
        if let Some(before) = self.table.current(&id).filter(|before| *before != instance) {
            self.doom(before);
        }
        self.table.reveal(instance);
    }

    /// Takes a copy out of use. A client that fills it may go on; readers of any other that grows are told that the rest will
    /// not come.
    pub(super) fn doom(&mut self, instance: Instance) {
        self.parts_doomed(instance);
        self.adoptions.forget(instance);
        self.replicas.end(instance, &mut self.requests, &mut self.world);
        let state = self.table.get(instance).map(|copy| copy.state);
        if matches!(state, Some(State::Flowing(_) | State::Folding)) {
            self.world.act(Action::FreeSlot { instance });
        }
        self.doom_at_disk(instance);
        if let Some(removed) = self.table.doom(instance) {
            self.removed(&removed);
        }
        self.leaving.forget(instance);
    }

    /// Takes a copy out of use, and tells the owners of its object that it is here no more.
    pub(super) fn withdraw(&mut self, id: &ObjectId, instance: Instance) {
        self.doom(instance);
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
    }

    pub(super) fn unpin(&mut self, instance: Instance) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unpin(instance) {
            Some(removed) => self.removed(&removed),
            // What is unpinned may be evicted for an object that waits for room.
            None if planted::has(Bug::GrantsNoRoomLater) => {}
            None => {
                self.leave_disk(instance);
                self.memory_freed();
                self.grant_space();
            }
        }
    }

    /// A copy that was to be pinned later is not any more.
    pub(super) fn unhold(&mut self, instance: Instance) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unhold(instance) {
            Some(removed) => self.removed(&removed),
            None => {
                self.leave_disk(instance);
                self.memory_freed();
                self.grant_space();
            }
        }
    }

    fn removed(&mut self, removed: &Removed) {
        self.free(removed);
        if removed.has_slot {
            self.has_memory(removed.instance);
            self.memory_freed();
        }
        self.grant_space();
    }

    /// Lets go of the memory and of the file of a copy that is no more.
    fn free(&mut self, removed: &Removed) {
        let Removed { instance, has_slot, has_file, .. } = *removed;
        if has_slot {
            self.world.act(Action::FreeSlot { instance });
        }
        if has_file {
            self.spills.forget(instance);
            self.world.act(Action::DropSpilled { instance });
        }
    }

    /// Carries out what others need room for.
    pub(super) fn evicted(&mut self, Shed { evicted, spilled }: Shed) {
        for instance in spilled {
            self.world.act(Action::FreeSlot { instance });
            self.weigh_adoption(instance);
        }
        if evicted.is_empty() {
            return;
        }
        self.world.note(Note::Evicted { copies: evicted.len() });
        for removed in evicted {
            self.free(&removed);
            let Removed { id, instance, .. } = removed;
            self.world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
        }
    }

    /// What the owners have to know of a copy.
    pub(super) fn announcement(&self, instance: Instance) -> Option<Announce> {
        let copy = self.table.get(instance).filter(|copy| !copy.doomed)?;
        // Of a result that is made in parts only the coordinator tells, until it is complete.
        if matches!(copy.state, State::Flowing(_)) && self.scatters.contains(instance) {
            return None;
        }
        let source = match copy.state {
            State::Flowing(source) => source,
            State::Filling(_) | State::Folding | State::Complete => None,
        };
        let progress = match &copy.inline {
            Some(bytes) => Progress::Inline(bytes.clone()),
            None if copy.is_complete() => Progress::Complete,
            None if self.scatters.contains(instance) => Progress::Parts,
            None => Progress::Partial { source },
        };
        let (id, meta, origin) =
            (copy.id.clone(), copy.meta.clone(), copy.origin && !copy.returned);
        let (claim, lifetime) = (false, copy.lifetime(self.world.now()));
        Some(Announce { id, instance, meta, origin, progress, claim, lifetime })
    }

    pub(super) fn announce(&mut self, instance: Instance) {
        self.announce_but(instance, None);
    }

    /// Tells the owners of a copy, but for one that knows all of it.
    pub(super) fn announce_but(&mut self, instance: Instance, knows_it: Option<NodeId>) {
        self.table.begin_time(instance, self.world.now());
        let Some(announce) = self.announcement(instance) else { return };
        let owners = self.world.members().owners(&announce.id).iter();
        for owner in owners.filter(|owner| Some(*owner) != knows_it) {
            self.world.send(owner, Message::Announce(announce.clone()));
        }
    }
}
