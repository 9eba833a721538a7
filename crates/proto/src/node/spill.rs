//! Spill: originals that were not used for long go to disk when others need their room, and come back when they are used.
//!
//! What is written, and what comes back, is in [`super::spills`]; which originals go first in [`crate::table`]. A copy that is
//! on disk counts as complete here, and so its owners are told nothing of where it is. A fold reads it from there; clients and
//! other nodes read it in memory, for which it gets room as any object does.

use alloc::{boxed::Box, format, string::String, vec, vec::Vec};

use super::{Action, Node, room::SpaceFor, spills::Phase};
use crate::{
    error::Error,
    id::{Instance, ObjectId, ServeId},
    inline::Inline,
    lifetime::{Lifetime, Terms},
    limits::INLINE_BYTES_MAX,
    message::Message,
    meta::Meta,
    planted::{self, Bug},
    table::{Copy, Filed, Place, Shed, file_bytes},
};

/// What a file says of the original that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of which object.
    pub id: ObjectId,
    /// Which instance.
    pub instance: Instance,
    /// What it is.
    pub meta: Meta,
    /// How long the object lives, if not until it is deleted.
    pub lifetime: Option<Box<Lifetime>>,
    /// Its bytes if they are few; otherwise they are in its slot, or in the file.
    pub inline: Option<Inline>,
}

/// How many originals are looked at, and written, in one go.
const AT_ONCE: usize = 256;

impl Node {
    /// Lets originals go to disk, to files of so many bytes; and whether they are left there when this node ends. Said before
    /// the first event.
    pub fn spill(&mut self, limit: u64, is_keeping: bool) {
        self.spills.set_up(limit, is_keeping);
    }

    /// A node of before has left originals in files: they are this one's from now on.
    pub(super) fn adopt_kept(&mut self, all: Vec<Kept>) {
        for Kept { id, instance, meta, lifetime, inline } in all {
            let is_small = meta.size <= INLINE_BYTES_MAX;
            let is_wrong = !meta.is_consistent()
                || is_small != inline.is_some()
                || inline.as_ref().is_some_and(|bytes| bytes.len() != meta.size)
                || instance.node == self.world.me()
                || self.table.get(instance).is_some()
                || !self.table.could_hold(meta.size);
            let has_no_room = is_small && self.table.missing_for(meta.size) > 0;
            if is_wrong || has_no_room {
                self.world.act(Action::DropSpilled { instance });
                continue;
            }
            self.spills.found(file_bytes(meta.size));
            self.table.insert_returned(instance, id, meta, inline);
            if let Some(told) = lifetime {
                self.table.add_terms(instance, &Terms::told(&told, self.world.now()));
            }
            self.reveal(instance);
            self.announce(instance);
        }
    }

    /// Objects wait for room: has so many originals written that all of them have some, as far as the disk has room.
    pub(super) fn spill_for_room(&mut self) {
        if self.spills.limit() == 0 || self.space.len() == 0 {
            return;
        }
        let left = self.spills.left(self.table.on_disk());
        let left = left.saturating_sub(self.spills.reserve(0));
        let possible = self.table.unfiled().min(left).saturating_add(self.spills.writing_bytes());
        if let Some(room) = self.table.room_with(possible) {
            let wanted = self.space.bytes_within(room);
            if wanted > 0 {
                self.spill_bytes(self.table.missing_for(wanted), true);
            }
        }
        // What comes back changes places with what is in memory.
        let returning = self.space.returning_bytes();
        if returning > 0 {
            self.spill_bytes(self.table.missing_for(returning), false);
        }
    }

    /// Has originals of `bytes` written, as far as the disk has room, but for what is being written already; whether it is to
    /// have its reserve left. None that is read; the least recently used first.
    pub(super) fn spill_bytes(&mut self, bytes: u64, has_reserve: bool) {
        let bytes = bytes.saturating_sub(self.spills.writing_bytes());
        let mut left = self.spills.left(self.table.on_disk());
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for (instance, copy) in self.table.to_file().take(AT_ONCE) {
            if covered >= bytes {
                break;
            }
            let taken = file_bytes(copy.meta.size);
            let reserve = if has_reserve { self.spills.reserve(taken) } else { 0 };
            if taken.saturating_add(reserve) <= left {
                left -= taken;
                covered += copy.cost();
                chosen.push(instance);
            }
        }
        chosen.into_iter().for_each(|instance| self.write(instance));
    }

    /// Has a copy written to a file.
    pub(super) fn write(&mut self, instance: Instance) {
        let Some(copy) = self.table.get(instance) else { return };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let (bytes, lifetime) = (copy.cost(), copy.lifetime(self.world.now()));
        self.table.set_filed(instance, Filed::Writing);
        self.spills.begin_to_write(instance, bytes, file_bytes(meta.size));
        let kept = Kept { id, instance, meta, lifetime, inline };
        self.world.act(Action::Spill { kept: Box::new(kept) });
    }

    pub(super) fn spilled(&mut self, instance: Instance) {
        if self.spills.written(instance) {
            self.table.set_filed(instance, Filed::Written);
            // It leaves memory when that is needed, if it is not read by then.
            self.memory_freed();
            self.grant_space();
        }
    }

    pub(super) fn spill_failed(&mut self, instance: Instance, said: String) {
        if planted::has(Bug::BelievesFailedWrites) {
            return self.spilled(instance);
        }
        if self.spills.failed(instance, said, self.world.now()) {
            self.table.set_filed(instance, Filed::No);
            self.memory_freed();
            self.grant_space();
        }
    }

    /// Writing is tried again, if it failed before and is needed still.
    pub(super) fn expire_spills(&mut self) {
        if self.spills.expire(self.world.now()) {
            self.memory_freed();
            self.grant_space();
        }
    }

    /// A client or a receiver needs a copy in memory that may be on disk alone.
    pub(super) fn bring_back(&mut self, instance: Instance) {
        let Some(copy) = self.table.get(instance).filter(|copy| copy.place == Place::Disk) else {
            return;
        };
        let size = copy.meta.size;
        if self.spills.begin_to_return(instance) {
            self.ask_for_room(SpaceFor::Unspill(instance), size);
        }
    }

    /// Keeps a receiver waiting until there is memory for what it is to be sent.
    pub(super) fn park_at_disk(&mut self, serve: ServeId, instance: Instance) {
        self.bring_back(instance);
        if let Some(copy) = self.table.get(instance) {
            self.readers.park(&copy.id, serve, instance);
        }
    }

    /// Whether the bytes of a copy are neither in memory nor on their way there.
    pub(super) fn lacks_slot(&self, instance: Instance, copy: &Copy) -> bool {
        match copy.place {
            Place::Memory => false,
            Place::Disk => true,
            Place::Returning => self.spills.phase(instance) != Some(Phase::Bytes),
        }
    }

    pub(super) fn unspill_in_room(&mut self, instance: Instance) {
        let Some(copy) = self.table.get(instance).filter(|copy| copy.place == Place::Disk) else {
            return;
        };
        let size = copy.meta.size;
        self.table.set_place(instance, Place::Returning);
        self.weigh_adoption(instance);
        self.spills.set_phase(instance, Phase::Memory);
        self.world.act(Action::CreateSlot { instance, size, writer: None });
    }

    /// There is memory for a copy that comes back: those who read it follow it while it is read.
    pub(super) fn unspill_in_memory(&mut self, instance: Instance) {
        let Some(copy) = self.table.get(instance) else { return };
        let id = copy.id.clone();
        match copy.place {
            Place::Returning if self.spills.phase(instance) == Some(Phase::Memory) => {}
            // It was given up while its memory was being made.
            Place::Disk => return self.world.act(Action::FreeSlot { instance }),
            _ => return,
        }
        self.spills.set_phase(instance, Phase::Bytes);
        self.world.act(Action::Unspill { instance });
        self.growing(instance);
        self.serve_parked(&id);
    }

    pub(super) fn unspilled(&mut self, instance: Instance) {
        if self.spills.phase(instance) == Some(Phase::Bytes) {
            self.spills.end_return(instance);
            self.table.set_place(instance, Place::Memory);
            let left = self.spills.left(self.table.on_disk());
            if left < self.spills.reserve(0) && !self.spills.is_failing() {
                // The next that comes back needs the room on the disk.
                self.table.set_filed(instance, Filed::No);
                self.world.act(Action::DropSpilled { instance });
            }
            self.completed(instance);
        }
    }

    /// The file of a copy can't be read, or is not what was written: a copy that is not in memory is lost. Other nodes may have
    /// the object.
    pub(super) fn unspill_failed(&mut self, instance: Instance, said: String) {
        let copy = self.table.get(instance).filter(|copy| copy.filed == Filed::Written);
        let Some(copy) = copy.filter(|copy| !copy.doomed) else { return };
        let (id, place) = (copy.id.clone(), copy.place);
        if place == Place::Memory {
            // It has come back since a fold began to read the file.
            self.table.set_filed(instance, Filed::No);
            return self.world.act(Action::DropSpilled { instance });
        }
        self.spills.broke(&id, said);
        self.doom(instance);
        // Of what it has minted, others would wait for it as long as it lives.
        self.world.send_owners(&id, &Message::Abandon { id: id.clone(), instance });
        self.world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
        self.pull_if_wanted(&id);
    }

    /// There is no memory for a copy, and there can't be any: those who wait for it are told.
    pub(super) fn unspill_without_memory(&mut self, instance: Instance, error: &Error) {
        if self.spills.phase(instance) != Some(Phase::Memory) {
            return;
        }
        let Some(id) = self.table.get(instance).map(|copy| copy.id.clone()) else { return };
        self.end_return(instance);
        self.end_following(&id);
        for request in self.readers.take_waiting(&id) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// Leaves a copy on disk that no client and no receiver waits for any more, unless it is being read.
    pub(super) fn leave_on_disk_if_unwanted(&mut self, id: &ObjectId) {
        let Some(instance) = self.table.current(id) else { return };
        let is_coming = matches!(self.spills.phase(instance), Some(Phase::Room | Phase::Memory));
        let is_wanted = self.readers.are_waiting(id) || self.readers.have_parked(id);
        if is_coming && !is_wanted {
            self.end_following(id);
            self.end_return(instance);
        }
    }

    /// A copy does not come back for now; receivers that wait for it are refused.
    fn end_return(&mut self, instance: Instance) {
        if self.stop_return(instance) {
            self.world.act(Action::FreeSlot { instance });
            self.table.set_place(instance, Place::Disk);
            self.weigh_adoption(instance);
            self.has_memory(instance);
            self.memory_freed();
            self.grant_space();
        }
    }

    /// A copy is about to be taken out of use: it does not come back.
    pub(super) fn doom_at_disk(&mut self, instance: Instance) {
        if self.stop_return(instance) {
            // Its readers are told that the rest will not come.
            self.world.act(Action::FreeSlot { instance });
        }
    }

    /// A copy does not come back, if it was to: receivers that wait for it are refused. Whether memory was made for it.
    fn stop_return(&mut self, instance: Instance) -> bool {
        self.space.remove(&SpaceFor::Unspill(instance));
        let Some(copy) = self.table.get(instance).filter(|_| self.spills.phase(instance).is_some())
        else {
            return false;
        };
        for serve in self.readers.take_parked(&copy.id).into_keys() {
            self.world.act(Action::Refuse { serve });
        }
        self.spills.end_return(instance);
        copy.place == Place::Returning
    }

    /// A copy that is no original any more goes from the disk: it is had again elsewhere.
    pub(super) fn leave_disk(&mut self, instance: Instance) {
        if let Some(removed) = self.table.evict_from_disk(instance) {
            let id = removed.id.clone();
            self.evicted(Shed { evicted: vec![removed], spilled: Vec::new() });
            // It was about to come back, perhaps: those who wait for that look elsewhere.
            self.space.remove(&SpaceFor::Unspill(instance));
            self.serve_parked(&id);
            self.pull_if_wanted(&id);
        }
    }

    /// Bytes of an object on disk that waits for room here.
    pub(super) fn bytes_on_disk_without_room(&self, id: &ObjectId) -> Option<u64> {
        let instance = self.table.current(id)?;
        let waits = self.spills.phase(instance) == Some(Phase::Room);
        self.table.get(instance).filter(|_| waits).map(|copy| copy.meta.size)
    }

    /// The reason that an owner has for the loss of an object, with what was wrong with its file here.
    pub(super) fn with_file(&mut self, id: &ObjectId, error: &Error) -> Error {
        let broken = self.spills.what_broke(id);
        match (error, broken) {
            (Error::ObjectLost { id, detail }, Some(said)) => {
                Error::ObjectLost { id: id.clone(), detail: format!("{said}; {detail}") }
            }
            _ => error.clone(),
        }
    }
}
