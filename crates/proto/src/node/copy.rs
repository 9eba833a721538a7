//! Effects of a copy's state on readers, owners, reduces and replicas.
//!
//! [`crate::machines::copies`] owns the copies. They are created in [`super::put`], [`super::get`],
//! [`super::reduce`] and [`super::replicate`].

use alloc::string::String;

use super::Node;
use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::{
        copies::{CopyEvent, PendingCopy},
        incoming::Arrival,
    },
    message::{Announce, Message, Progress},
    table::State,
};

impl Node {
    /// Admits a copy, now or when there is capacity.
    pub(super) fn want(&mut self, instance: Instance, wanted: PendingCopy) {
        self.copies.want(instance, wanted, &mut self.world);
        self.follow_copies();
    }

    /// Reads a copy that is only on disk back into memory.
    pub(super) fn restore(&mut self, instance: Instance) {
        self.copies.restore(instance, &mut self.world);
        self.follow_copies();
    }

    /// Handles the changes of copies.
    pub(super) fn follow_copies(&mut self) {
        while let Some(fact) = self.copies.next_event() {
            match fact {
                CopyEvent::Admitted { instance, has_waited } => self.admitted(instance, has_waited),
                CopyEvent::Resized(instance) => self.resize_replica(instance),
                CopyEvent::Removed(id) => {
                    // Nodes that waited for it to return look for another source.
                    self.serve_parked(&id);
                    self.pull_if_wanted(&id);
                }
            }
        }
    }

    fn admitted(&mut self, instance: Instance, has_waited: bool) {
        let Some(copy) = self.copies.get(instance) else { return };
        match copy.state {
            // A large object needs memory before it claims its name.
            State::Filling(_) if copy.inline.is_none() => {}
            State::Filling(_) => self.claim_name(instance),
            State::Arriving => match self.incoming.copy(instance) {
                // Its pull has ended since.
                None => self.doom(instance),
                // No other client reads it.
                Some(arrival) if arrival.range().is_some() => {}
                Some(_) => {
                    self.reveal(instance);
                    if has_waited {
                        self.announce(instance);
                    }
                }
            },
            State::Complete => self.small_result_in_room(instance),
            State::Folding => {}
        }
    }

    pub(super) fn slot_ready(&mut self, instance: Instance) {
        match self.copies.slot_ready(instance, &mut self.world) {
            Some(State::Filling(_)) => self.claim_name(instance),
            Some(State::Arriving) => self.in_memory(instance),
            Some(State::Folding) => self.result_in_memory(instance),
            Some(State::Complete) => {
                // Its readers follow it while it is read.
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
            State::Filling(_) => self.fail_put(instance, error),
            State::Arriving => match self.incoming.copy(instance).and_then(Arrival::range) {
                Some(range) => self.reply_range(range.request, Err(error)),
                None => self.pull_failed(&id, &error),
            },
            State::Folding => self.fail_reduce_of(&id, &error),
            State::Complete => self.unspill_without_memory(&id, instance, &error),
        }
    }

    /// Makes a copy the current one, which gets use. A copy of another instance is doomed.
    pub(super) fn reveal(&mut self, instance: Instance) {
        let Some(id) = self.copies.get(instance).map(|copy| copy.id.clone()) else { return };
        if let Some(before) = self.copies.current(&id).filter(|before| *before != instance) {
            self.doom(before);
        }
        self.copies.reveal(instance);
    }

    /// Takes a copy out of use. A client that fills it may continue. Readers of any other partial
    /// copy are notified that the rest will not arrive. The caller ends its arrival, or gives that
    /// another copy.
    pub(super) fn doom(&mut self, instance: Instance) {
        if self.copies.get(instance).is_some()
            && let Some(arrival) = self.incoming.of_copy(instance)
        {
            self.stop_fetches(arrival);
            self.parts_doomed(instance);
            self.incoming.release_copy(arrival);
        }
        self.replicas.end(instance, &mut self.requests, &mut self.world);
        let id = self.copies.get(instance).map(|copy| copy.id.clone());
        let was_coming_back = self.copies.doom(instance, &mut self.world);
        if let Some(id) = id.filter(|_| was_coming_back) {
            self.refuse_parked(&id);
        }
    }

    /// Takes a copy out of use, and withdraws it from the owners of its object.
    pub(super) fn withdraw(&mut self, id: &ObjectId, instance: Instance) {
        self.doom(instance);
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
    }

    pub(super) fn remove_reader(&mut self, instance: Instance) {
        self.copies.remove_reader(instance, &mut self.world);
    }

    /// The announcement of a copy, also of one that arrives and waits for capacity: as a holder
    /// without a source, this node still receives its deletion.
    pub(super) fn announcement(&self, instance: Instance) -> Option<Announce> {
        let arrival = self.incoming.copy(instance);
        let Some(copy) = self.copies.get(instance) else {
            let pending =
                self.copies.pending(instance).filter(|_| arrival.is_some_and(Arrival::is_whole))?;
            let (id, meta) = (pending.id.clone(), pending.meta.clone());
            let lifetime = pending.terms.as_ref().map(|terms| terms.to_lifetime(self.world.now()));
            let (progress, claim, pinned) = (Progress::Partial { source: None }, false, false);
            return Some(Announce { id, instance, meta, pinned, progress, claim, lifetime });
        };
        let progress = match (&copy.inline, copy.state) {
            _ if copy.doomed => return None,
            (Some(bytes), _) => Progress::Inline(bytes.clone()),
            (None, State::Complete) => Progress::Complete,
            // Nobody else reads a range. Only the coordinator announces a result that is produced
            // in parts, until it is complete.
            (None, State::Arriving) if arrival.is_some_and(|it| !it.is_whole()) => return None,
            (None, State::Arriving) => {
                Progress::Partial { source: arrival.and_then(Arrival::source) }
            }
            (None, _) if arrival.is_some_and(Arrival::is_parts) => Progress::Parts,
            (None, _) => Progress::Partial { source: None },
        };
        let (id, meta, pinned) =
            (copy.id.clone(), copy.meta.clone(), copy.pinned && !copy.recovered);
        let (claim, lifetime) = (false, copy.lifetime(self.world.now()));
        Some(Announce { id, instance, meta, pinned, progress, claim, lifetime })
    }

    pub(super) fn announce(&mut self, instance: Instance) {
        self.announce_but(instance, None);
    }

    /// Announces a copy to its owners, except one that has the same information.
    pub(super) fn announce_but(&mut self, instance: Instance, knows_it: Option<NodeId>) {
        self.copies.begin_time(instance, self.world.now());
        let Some(announce) = self.announcement(instance) else { return };
        self.resend_name(&announce.id);
        let owners = self.world.members().owners(&announce.id).iter();
        for owner in owners.filter(|owner| Some(*owner) != knows_it) {
            self.world.send(owner, Message::Announce(announce.clone()));
        }
    }
}
