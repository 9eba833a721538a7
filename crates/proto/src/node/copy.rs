//! What the life of a copy means for others: readers, owners, reduces, and nodes that keep it.
//!
//! The copies themselves are in [`crate::machines::copies`]; how each comes to be in [`super::put`], [`super::get`], [`super::reduce`] and
//! [`super::adopt`].

use alloc::string::String;

use super::Node;
use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::copies::{Fact, Wanted},
    message::{Announce, Message, Progress},
    table::State,
};

impl Node {
    /// Gives room to a copy, now or when there is some.
    pub(super) fn want(&mut self, instance: Instance, wanted: Wanted) {
        self.copies.want(instance, wanted, &mut self.world);
        self.follow_copies();
    }

    /// Brings a copy back into memory that is on disk alone.
    pub(super) fn want_back(&mut self, instance: Instance) {
        self.copies.want_back(instance, &mut self.world);
        self.follow_copies();
    }

    /// Does what follows from what has become of copies.
    pub(super) fn follow_copies(&mut self) {
        while let Some(fact) = self.copies.next_fact() {
            match fact {
                Fact::Admitted { instance, has_waited } => self.admitted(instance, has_waited),
                Fact::Weighs(instance) => self.weigh_adoption(instance),
                Fact::Left(id) => {
                    // Those who waited until it came back look elsewhere.
                    self.serve_parked(&id);
                    self.pull_if_wanted(&id);
                }
            }
        }
    }

    fn admitted(&mut self, instance: Instance, has_waited: bool) {
        let Some(copy) = self.copies.get(instance) else { return };
        match copy.state {
            State::Filling(_) => self.create_in_room(instance),
            // Its pull has ended since.
            State::Flowing(_) if self.pulls.located(&copy.id) != Some(instance) => {
                self.doom(instance);
            }
            State::Flowing(_) => {
                self.reveal(instance);
                if has_waited {
                    self.announce(instance);
                }
            }
            State::Complete => self.small_result_in_room(instance),
            State::Folding => {}
        }
    }

    pub(super) fn slot_ready(&mut self, instance: Instance) {
        match self.copies.slot_ready(instance, &mut self.world) {
            Some(State::Filling(_)) => self.claim_or_go_on(instance),
            Some(State::Flowing(source)) => self.pull_in_memory(instance, source),
            Some(State::Folding) => self.result_in_memory(instance),
            Some(State::Complete) => {
                // Those who read it follow it while it is read.
                let Some(id) = self.copies.id_of(instance).cloned() else { return };
                self.growing(instance);
                self.serve_parked(&id);
            }
            None => {}
        }
    }

    pub(super) fn slot_failed(&mut self, instance: Instance, detail: String) {
        let failed = self.copies.slot_failed(instance, detail, &mut self.world);
        let Some((id, state, error)) = failed else { return };
        match state {
            State::Filling(_) => self.fail_create(instance, error),
            State::Flowing(_) => self.pull_failed(&id, &error),
            State::Folding => self.fail_reduce_of(&id, &error),
            State::Complete => self.unspill_without_memory(&id, instance, &error),
        }
    }

    /// Makes a copy the one that gets use. What is here of another instance is not current any more.
    pub(super) fn reveal(&mut self, instance: Instance) {
        let Some(id) = self.copies.get(instance).map(|copy| copy.id.clone()) else { return };
        if let Some(before) = self.copies.current(&id).filter(|before| *before != instance) {
            self.doom(before);
        }
        self.copies.reveal(instance);
    }

    /// Takes a copy out of use. A client that fills it may go on; readers of any other that grows are told that the rest will
    /// not come.
    pub(super) fn doom(&mut self, instance: Instance) {
        self.parts_doomed(instance);
        self.adoptions.forget(instance);
        self.replicas.end(instance, &mut self.requests, &mut self.world);
        let id = self.copies.get(instance).map(|copy| copy.id.clone());
        let was_coming_back = self.copies.doom(instance, &mut self.world);
        if let Some(id) = id.filter(|_| was_coming_back) {
            self.refuse_parked(&id);
        }
        self.leaving.forget(instance);
    }

    /// Takes a copy out of use, and tells the owners of its object that it is here no more.
    pub(super) fn withdraw(&mut self, id: &ObjectId, instance: Instance) {
        self.doom(instance);
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
    }

    pub(super) fn unpin(&mut self, instance: Instance) {
        self.copies.unpin(instance, &mut self.world);
    }

    /// What the owners have to know of a copy.
    pub(super) fn announcement(&self, instance: Instance) -> Option<Announce> {
        let copy = self.copies.get(instance).filter(|copy| !copy.doomed)?;
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
        self.copies.begin_time(instance, self.world.now());
        let Some(announce) = self.announcement(instance) else { return };
        let owners = self.world.members().owners(&announce.id).iter();
        for owner in owners.filter(|owner| Some(*owner) != knows_it) {
            self.world.send(owner, Message::Announce(announce.clone()));
        }
    }
}
