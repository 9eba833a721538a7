//! Spill: what the way of a copy to disk and back means for those who wait for it.
//!
//! The way itself is in [`crate::machines::copies`].

use alloc::{format, string::String, vec::Vec};

use super::Node;
use crate::{
    error::Error,
    event::{Action, Kept},
    id::{Instance, ObjectId, ServeId},
    lifetime::Terms,
    message::Message,
    planted::{self, Bug},
};

impl Node {
    /// Lets originals go to disk, to files of so many bytes; and whether they are left there when this node ends. Said before
    /// the first event.
    pub fn spill(&mut self, limit: u64, is_keeping: bool) {
        self.copies.set_up_disk(limit, is_keeping);
    }

    /// A node of before has left originals in files: they are this one's from now on.
    pub(super) fn adopt_kept(&mut self, all: Vec<Kept>) {
        for mut kept in all {
            let (instance, lifetime) = (kept.instance, kept.lifetime.take());
            if !self.copies.insert_kept(kept, &mut self.world) {
                continue;
            }
            if let Some(told) = lifetime {
                self.copies.add_terms(instance, &Terms::told(&told, self.world.now()));
            }
            self.reveal(instance);
            self.announce(instance);
        }
    }

    pub(super) fn spill_failed(&mut self, instance: Instance, said: String) {
        if planted::has(Bug::BelievesFailedWrites) {
            return self.copies.spilled(instance, &self.world);
        }
        self.copies.spill_failed(instance, said, &self.world);
    }

    /// Keeps a receiver waiting until there is memory for what it is to be sent.
    pub(super) fn park_at_disk(&mut self, serve: ServeId, instance: Instance) {
        self.want_back(instance);
        if let Some(copy) = self.copies.get(instance) {
            self.readers.park(&copy.id, serve, instance);
        }
    }

    pub(super) fn unspilled(&mut self, instance: Instance) {
        if self.copies.unspilled(instance, &mut self.world) {
            self.completed(instance);
        }
    }

    /// The file of a copy can't be read, or is not what was written: a copy that is not in memory is lost. Other nodes may have
    /// the object.
    pub(super) fn unspill_failed(&mut self, instance: Instance, said: String) {
        let Some(id) = self.copies.unspill_failed(instance, said, &mut self.world) else { return };
        self.doom(instance);
        // Of what it has minted, others would wait for it as long as it lives.
        self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance });
        self.world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
        self.pull_if_wanted(&id);
    }

    /// There is no memory for a copy, and there can't be any: those who wait for it are told.
    pub(super) fn unspill_without_memory(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        error: &Error,
    ) {
        self.leave_on_disk(id, instance);
        for request in self.readers.take_waiting(id) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// Leaves a copy on disk that no client and no receiver waits for any more, unless it is being read.
    pub(super) fn leave_on_disk_if_unwanted(&mut self, id: &ObjectId) {
        let Some(instance) = self.copies.current(id) else { return };
        let is_wanted = self.readers.are_waiting(id) || self.readers.have_parked(id);
        if !is_wanted && self.copies.is_coming_back(instance) {
            self.leave_on_disk(id, instance);
        }
    }

    /// A copy does not come back for now; receivers that wait for it are refused.
    fn leave_on_disk(&mut self, id: &ObjectId, instance: Instance) {
        self.end_following(id);
        self.refuse_parked(id);
        self.copies.stay_on_disk(instance, &mut self.world);
    }

    pub(super) fn refuse_parked(&mut self, id: &ObjectId) {
        for serve in self.readers.take_parked(id).into_keys() {
            self.world.act(Action::Refuse { serve });
        }
    }

    /// The reason that an owner has for the loss of an object, with what was wrong with its file here.
    pub(super) fn with_file(&mut self, id: &ObjectId, error: &Error) -> Error {
        let broken = self.copies.what_broke(id);
        match (error, broken) {
            (Error::ObjectLost { id, detail }, Some(said)) => {
                Error::ObjectLost { id: id.clone(), detail: format!("{said}; {detail}") }
            }
            _ => error.clone(),
        }
    }
}
