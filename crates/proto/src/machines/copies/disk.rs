//! Spilling: writes pinned copies to disk when others need their memory, and reads them back.
//!
//! [`crate::table`] decides which copies go first. A copy that is only on disk counts as complete,
//! so its owners are not notified. A fold reads it from the file. Clients and other nodes read it
//! in memory, for which it is admitted like any copy.

use alloc::{boxed::Box, string::String, vec, vec::Vec};

use super::{Copies, CopyEvent};
use crate::{
    event::{Action, SpilledCopy},
    id::{Instance, ObjectId},
    limits::INLINE_BYTES_MAX,
    machines::world::World,
    table::{Evictions, FileState, Residency, file_bytes},
};

/// The maximum number of copies that are considered, and written, at a time.
const AT_ONCE: usize = 256;

impl Copies {
    /// Enables spilling, with a limit for the bytes of files; `is_persistent` leaves the files on
    /// disk when this node ends.
    pub(crate) const fn set_up_disk(&mut self, limit: u64, is_persistent: bool) {
        self.spill_files.set_up(limit, is_persistent);
    }

    pub(crate) const fn spill_limit(&self) -> u64 {
        self.spill_files.limit()
    }

    /// Whether files are left for the next node.
    pub(crate) fn is_persistent(&self) -> bool {
        self.spill_files.is_persistent()
    }

    /// Takes over a copy that an earlier node has left in a file. If it is not valid or does not
    /// fit, removes the file and returns false.
    pub(crate) fn insert_recovered(&mut self, kept: SpilledCopy, world: &mut World) -> bool {
        let SpilledCopy { id, instance, meta, inline, .. } = kept;
        let is_small = meta.size <= INLINE_BYTES_MAX;
        let is_wrong = !meta.is_consistent()
            || is_small != inline.is_some()
            || inline.as_ref().is_some_and(|bytes| bytes.len() != meta.size)
            || instance.node == world.me()
            || self.table.get(instance).is_some()
            || !self.table.could_hold(meta.size);
        let has_no_room = is_small && self.table.missing_for(meta.size) > 0;
        if is_wrong || has_no_room {
            world.act(Action::DropSpilled { instance });
            return false;
        }
        self.spill_files.found(file_bytes(meta.size));
        self.table.insert_recovered(instance, id, meta, inline);
        true
    }

    /// Writes pinned copies to disk, as the disk has capacity, until all waiting copies that could
    /// fit have capacity.
    pub(crate) fn spill_for_capacity(&mut self, world: &mut World) {
        if self.spill_files.limit() == 0 || self.capacity_queue.len() == 0 {
            return;
        }
        let left = self.spill_files.left(self.table.on_disk());
        let left = left.saturating_sub(self.spill_files.reserve(0));
        let possible =
            self.table.unfiled().min(left).saturating_add(self.spill_files.writing_bytes());
        if let Some(room) = self.table.room_with(possible) {
            let pending = self.capacity_queue.bytes_within(room);
            if pending > 0 {
                self.spill_bytes(self.table.missing_for(pending), true, world);
            }
        }
        // Copies that come back from disk are swapped with copies in memory.
        let returning = self.capacity_queue.returning_bytes();
        if returning > 0 {
            self.spill_bytes(self.table.missing_for(returning), false, world);
        }
    }

    /// Writes pinned copies of `bytes` bytes to disk, less those that are being written already, as
    /// the disk has capacity. With `has_reserve`, the reserve stays free. Skips copies that are
    /// being read; starts with the least recently used.
    pub(crate) fn spill_bytes(&mut self, bytes: u64, has_reserve: bool, world: &mut World) {
        let bytes = bytes.saturating_sub(self.spill_files.writing_bytes());
        let mut left = self.spill_files.left(self.table.on_disk());
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for (instance, copy) in self.table.to_file().take(AT_ONCE) {
            if covered >= bytes {
                break;
            }
            let taken = file_bytes(copy.meta.size);
            let reserve = if has_reserve { self.spill_files.reserve(taken) } else { 0 };
            if taken.saturating_add(reserve) <= left {
                left -= taken;
                covered += copy.cost();
                chosen.push(instance);
            }
        }
        chosen.into_iter().for_each(|instance| self.write(instance, world));
    }

    /// Writes a copy that no other node has, if the disk has capacity for it.
    pub(crate) fn write_if_capacity(&mut self, instance: Instance, world: &mut World) {
        let copy = self.table.get(instance);
        let Some(copy) = copy.filter(|copy| copy.file_state == FileState::No && !copy.doomed)
        else {
            return;
        };
        if file_bytes(copy.meta.size) <= self.spill_files.left(self.table.on_disk()) {
            self.write(instance, world);
        }
    }

    /// Orders the shell to write a copy to a file.
    fn write(&mut self, instance: Instance, world: &mut World) {
        let Some(copy) = self.table.get(instance) else { return };
        let (id, meta, inline) = (copy.id.clone(), copy.meta.clone(), copy.inline.clone());
        let (bytes, lifetime) = (copy.cost(), copy.lifetime(world.now()));
        self.table.set_file_state(instance, FileState::Writing(world.now()));
        self.spill_files.begin_to_write(instance, bytes, file_bytes(meta.size));
        let kept = SpilledCopy { id, instance, meta, lifetime, inline };
        world.act(Action::Spill { kept: Box::new(kept) });
    }

    pub(crate) fn spilled(&mut self, instance: Instance, world: &World) {
        if self.spill_files.written(instance) {
            self.table.set_file_state(instance, FileState::Written);
            // It leaves memory when the memory is needed and the copy is not being read.
            self.freed(world);
        }
    }

    /// Handles a write that failed. A disk that fails is tried again later, with other copies
    /// first: a full disk may have space for smaller ones. A copy that can't be written is never
    /// tried again, and others are written at once.
    pub(crate) fn spill_failed(
        &mut self,
        instance: Instance,
        reason: String,
        is_disk_failing: bool,
        world: &World,
    ) {
        let retry_from = is_disk_failing.then_some(world.now());
        if self.spill_files.failed(instance, reason, retry_from) {
            let state = if is_disk_failing { FileState::No } else { FileState::Unwritable };
            self.table.set_file_state(instance, state);
            self.table.touch(instance);
            self.freed(world);
        }
    }

    /// Requests capacity in memory for a copy that is only on disk.
    pub(crate) fn restore(&mut self, instance: Instance, world: &mut World) {
        let copy = self.table.get(instance).filter(|copy| copy.residency == Residency::Disk);
        let Some(size) = copy.map(|copy| copy.meta.size) else { return };
        if !self.capacity_queue.contains(instance) {
            self.capacity_queue.push(instance, size, None);
            self.grant(None, world);
            self.has_changed = true;
        }
    }

    pub(crate) fn admit_restore(&mut self, instance: Instance, world: &mut World) {
        self.table.set_residency(instance, Residency::Pending);
        self.events.push_back(CopyEvent::Resized(instance));
        self.order_slot(instance, world);
    }

    /// Whether a copy on disk waits for capacity or memory to come back.
    pub(crate) fn is_restoring(&self, instance: Instance) -> bool {
        self.table.get(instance).is_some_and(|copy| {
            copy.is_complete()
                && (copy.residency == Residency::Pending || self.capacity_queue.contains(instance))
        })
    }

    /// Cancels the return of a copy from disk.
    pub(crate) fn stay_on_disk(&mut self, instance: Instance, world: &mut World) {
        self.capacity_queue.remove(instance);
        if self.table.get(instance).is_some_and(|copy| copy.is_complete() && copy.is_growing()) {
            world.act(Action::FreeSlot { instance });
            self.table.set_residency(instance, Residency::Disk);
            self.events.push_back(CopyEvent::Resized(instance));
            self.settled(instance, world);
            self.freed(world);
        }
    }

    /// Records that a copy is completely in memory again. Returns false if that was known.
    pub(crate) fn unspilled(&mut self, instance: Instance, world: &mut World) -> bool {
        let residency = self.table.get(instance).map(|copy| copy.residency);
        if !matches!(residency, Some(Residency::Restoring(_))) {
            return false;
        }
        self.table.set_residency(instance, Residency::Memory);
        self.has_changed = true;
        let left = self.spill_files.left(self.table.on_disk());
        if left < self.spill_files.reserve(0) && !self.spill_files.is_failing() {
            // The next copy that comes back needs the disk space.
            self.drop_file(instance, world);
        }
        true
    }

    /// Handles a file that cannot be read or has changed. Returns the object, if its copy is lost
    /// with the file.
    pub(crate) fn unspill_failed(
        &mut self,
        instance: Instance,
        reason: String,
        world: &mut World,
    ) -> Option<ObjectId> {
        let copy = self.table.get(instance).filter(|copy| copy.file_state == FileState::Written);
        let copy = copy.filter(|copy| !copy.doomed)?;
        let id = copy.id.clone();
        if copy.residency == Residency::Memory {
            // It has come back since a fold began to read the file.
            self.drop_file(instance, world);
            return None;
        }
        self.spill_files.note_file_error(&id, reason);
        Some(id)
    }

    /// Removes the file of a copy in memory that nobody needs any more, also if it is still being
    /// written.
    pub(crate) fn abandon_file(&mut self, instance: Instance, world: &mut World) {
        self.spill_files.forget(instance);
        self.drop_file(instance, world);
    }

    fn drop_file(&mut self, instance: Instance, world: &mut World) {
        self.table.set_file_state(instance, FileState::No);
        world.act(Action::DropSpilled { instance });
    }

    /// Removes and returns the error of a lost object's file; it is reported once, to the requests
    /// that waited.
    pub(crate) fn take_file_error(&mut self, id: &ObjectId) -> Option<String> {
        self.spill_files.take_file_error(id)
    }

    /// Removes a copy from disk that is no longer pinned: other nodes have the object.
    pub(crate) fn leave_disk(&mut self, instance: Instance, world: &mut World) {
        if let Some(removed) = self.table.evict_from_disk(instance) {
            let id = removed.id.clone();
            self.evict(Evictions { evicted: vec![removed], spilled: Vec::new() }, world);
            // It may have been about to come back.
            self.capacity_queue.remove(instance);
            self.events.push_back(CopyEvent::Removed(id));
        }
    }
}
