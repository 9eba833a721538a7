//! The life of every local copy, from its request to its removal: capacity, memory, eviction,
//! spilling to disk.
//!
//! ```text
//!   want --> capacity --> memory --> (its maker fills it) --> complete --> evicted, or doomed
//!                                                               |    ^
//!                                         written, then only on disk |
//!                                                               |    |
//!                                        restore --> capacity --> memory, read from its file
//! ```
//! [`crate::table`] has the capacity accounts and the order of eviction. Copies wait for capacity
//! in [`capacity_queue`], and for memory in [`memory_queue`]; [`spill_files`] and [`disk`] spill
//! them. Consequences for other machines are [`CopyEvent`]s, which the node fetches. Does not know
//! readers, pulls, puts or reduces.

mod capacity_queue;
mod disk;
mod memory_queue;
mod sizes;
mod spill_files;

use alloc::{collections::VecDeque, format, string::String};

pub(crate) use self::capacity_queue::PendingCopy;
use self::{capacity_queue::CapacityQueue, memory_queue::MemoryQueue, spill_files::SpillFiles};
use crate::{
    error::Error,
    event::{Action, LogEvent},
    id::{ClientId, Instance, ObjectId},
    lifetime::Terms,
    machines::world::World,
    message::Message,
    mutants::{self, Mutant},
    table::{Copy, Evictions, Removed, Residency, State, Table, file_bytes},
    time::Instant,
};

/// All local copies.
#[derive(Debug)]
pub(crate) struct Copies {
    table: Table,
    capacity_queue: CapacityQueue,
    memory_queue: MemoryQueue,
    spill_files: SpillFiles,
    events: VecDeque<CopyEvent>,
    /// Whether waiting copies may fit since they were last checked.
    has_changed: bool,
}

/// A change that concerns other machines.
#[derive(Debug)]
pub(crate) enum CopyEvent {
    /// A requested copy was admitted, and the shell allocates its memory if it needs any.
    Admitted {
        /// The instance.
        instance: Instance,
        /// Whether it had to wait.
        has_waited: bool,
    },
    /// A copy takes more or less of the capacity than before.
    Resized(Instance),
    /// A copy that was only on disk was removed, because other nodes have the object.
    Removed(ObjectId),
}

impl Copies {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            table: Table::new(capacity),
            capacity_queue: CapacityQueue::default(),
            memory_queue: MemoryQueue::default(),
            spill_files: SpillFiles::default(),
            events: VecDeque::new(),
            has_changed: false,
        }
    }

    pub(crate) const fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn get(&self, instance: Instance) -> Option<&Copy> {
        self.table.get(instance)
    }

    /// The instance that a get of `id` would use now.
    pub(crate) fn current(&self, id: &ObjectId) -> Option<Instance> {
        self.table.current(id)
    }

    /// The object of an instance that is here or waits for capacity.
    pub(crate) fn id_of(&self, instance: Instance) -> Option<&ObjectId> {
        let pending = || self.capacity_queue.pending(instance).map(|pending| &pending.id);
        self.table.get(instance).map(|copy| &copy.id).or_else(pending)
    }

    /// The description of a new copy that waits for capacity.
    pub(crate) fn pending(&self, instance: Instance) -> Option<&PendingCopy> {
        self.capacity_queue.pending(instance)
    }

    /// The waiting copies for which `size` bytes are enough, the largest first.
    pub(crate) fn largest_within(&self, size: u64) -> impl Iterator<Item = (Instance, u64)> {
        self.capacity_queue.largest_within(size)
    }

    /// The numbers of waiting copies, by what they wait for.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 4] {
        let reads = self.table.census().returning() as usize;
        [
            ("copies that wait for capacity", self.capacity_queue.len()),
            ("copies that wait for memory", self.memory_queue.len()),
            ("copies that are being spilled", self.spill_files.count_writing()),
            ("copies that come back from disk", self.capacity_queue.count_returning() + reads),
        ]
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.memory_queue.deadline().into_iter().chain(self.spill_files.deadline()).min()
    }

    pub(crate) fn expire(&mut self, world: &mut World) {
        let next = self.memory_queue.due(world.now());
        self.order_next(next, world);
        if self.spill_files.expire(world.now()) {
            self.freed(world);
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<CopyEvent> {
        self.events.pop_front()
    }

    /// Admits a copy, at once or when there is capacity; a [`CopyEvent`] reports it.
    pub(crate) fn want(&mut self, instance: Instance, pending: PendingCopy, world: &mut World) {
        let size = pending.meta.size;
        // Capacity that became free before is for copies that have waited.
        self.settle(world);
        // Waiting copies are those that do not fit, so one that fits need not be queued behind
        // them.
        if self.table.missing_to_add(size) == 0 && !self.capacity_queue.contains(instance) {
            return self.admit(instance, pending, false, world);
        }
        self.capacity_queue.push(instance, size, Some(pending));
        self.grant(Some(instance), world);
        self.has_changed = true;
    }

    /// Cancels a copy that still waits for capacity.
    pub(crate) fn cancel(&mut self, instance: Instance) {
        self.capacity_queue.remove(instance);
    }

    /// Admits the copies that fit now. Returns false if nothing has changed since the last call.
    pub(crate) fn settle(&mut self, world: &mut World) -> bool {
        let has_changed = core::mem::take(&mut self.has_changed);
        if has_changed {
            self.grant(None, world);
        }
        has_changed
    }

    /// Whether any copy is being written to disk.
    pub(crate) fn is_writing(&self) -> bool {
        self.spill_files.is_writing()
    }

    /// Whether copies wait for capacity, and nothing is being written that would help.
    pub(crate) fn is_short(&self) -> bool {
        self.capacity_queue.len() > 0 && !self.spill_files.is_writing()
    }

    /// Admits waiting copies in order, skipping those that do not fit. `new` has not waited before.
    fn grant(&mut self, new: Option<Instance>, world: &mut World) {
        while let Some((instance, size)) =
            self.table.room().and_then(|room| self.capacity_queue.first_within(room))
        {
            let Some(pending) = self.capacity_queue.remove(instance) else { return };
            let shed = self.table.make_room(size).unwrap_or_default();
            self.evict(shed, world);
            match pending {
                Some(pending) => self.admit(instance, pending, new != Some(instance), world),
                None => self.admit_restore(instance, world),
            }
        }
        self.spill_for_capacity(world);
    }

    fn admit(
        &mut self,
        instance: Instance,
        pending: PendingCopy,
        has_waited: bool,
        world: &mut World,
    ) {
        let is_filled = matches!(pending.state, State::Filling(_));
        self.insert(instance, pending);
        if is_filled {
            self.table.add_reader(instance);
        }
        self.order_slot(instance, world);
        self.events.push_back(CopyEvent::Admitted { instance, has_waited });
    }

    /// Adds a copy for which there is capacity. It is pinned unless it comes from another node.
    fn insert(&mut self, instance: Instance, pending: PendingCopy) {
        let PendingCopy { id, meta, inline, state, terms } = pending;
        let primary = state != State::Arriving;
        self.table.insert(instance, id, meta, inline, state, primary);
        if let Some(terms) = terms {
            self.table.add_terms(instance, &terms);
        }
    }

    /// Carries out evictions that other copies need.
    fn evict(&mut self, Evictions { evicted, spilled }: Evictions, world: &mut World) {
        for instance in spilled {
            world.act(Action::FreeSlot { instance });
            self.events.push_back(CopyEvent::Resized(instance));
        }
        if evicted.is_empty() {
            return;
        }
        world.note(LogEvent::Evicted { copies: evicted.len() });
        for removed in evicted {
            self.free(&removed, world);
            let Removed { id, instance, .. } = removed;
            world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
        }
    }

    /// Frees the memory and the file of a removed copy.
    fn free(&mut self, removed: &Removed, world: &mut World) {
        let Removed { instance, has_slot, has_file, .. } = *removed;
        if has_slot {
            world.act(Action::FreeSlot { instance });
        }
        if has_file {
            self.spill_files.forget(instance);
            world.act(Action::DropSpilled { instance });
        }
    }

    /// Adds a small complete copy at once. Returns false if there is no capacity for it.
    pub(crate) fn insert_small(
        &mut self,
        instance: Instance,
        pending: PendingCopy,
        world: &mut World,
    ) -> bool {
        let Some(shed) = self.table.make_room(pending.meta.size) else { return false };
        self.evict(shed, world);
        self.insert(instance, pending);
        true
    }

    /// Updates the state of a copy.
    pub(crate) fn set_state(&mut self, instance: Instance, state: State) {
        self.table.set_state(instance, state);
        self.has_changed = true;
    }

    /// Sets whether a copy is pinned until its deletion. Returns whether it was before, `None` if
    /// there is no such copy.
    pub(crate) fn set_pinned(&mut self, instance: Instance, pinned: bool) -> Option<bool> {
        self.has_changed = true;
        self.table.set_pinned(instance, pinned)
    }

    pub(crate) fn add_terms(&mut self, instance: Instance, added: &Terms) {
        self.table.add_terms(instance, added);
    }

    pub(crate) fn begin_time(&mut self, instance: Instance, now: Instant) {
        self.table.begin_time(instance, now);
    }

    pub(crate) fn reveal(&mut self, instance: Instance) {
        self.table.reveal(instance);
    }

    pub(crate) fn add_reader(&mut self, instance: Instance) {
        self.table.add_reader(instance);
    }

    pub(crate) fn expect_reader(&mut self, instance: Instance) {
        self.table.expect_reader(instance);
    }

    pub(crate) fn pass_over(&mut self, instance: Instance) {
        self.table.pass_over(instance);
    }

    pub(crate) fn remove_reader(&mut self, instance: Instance, world: &mut World) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.remove_reader(instance) {
            Some(removed) => self.removed(&removed, world),
            // An unpinned copy may be evicted for an object that waits for capacity.
            None if mutants::is_active(Mutant::NeverAdmitsWaiting) => {}
            None => self.let_go(instance, world),
        }
    }

    /// Releases a copy that was held in order to be pinned later.
    pub(crate) fn unexpect_reader(&mut self, instance: Instance, world: &mut World) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unexpect_reader(instance) {
            Some(removed) => self.removed(&removed, world),
            None => self.let_go(instance, world),
        }
    }

    /// Pins a copy that was held; it stays protected throughout.
    pub(crate) fn pin_reserved(&mut self, instance: Instance) {
        self.table.add_reader(instance);
        self.table.unexpect_reader(instance);
    }

    fn let_go(&mut self, instance: Instance, world: &mut World) {
        self.leave_disk(instance, world);
        self.freed(world);
    }

    /// Takes a copy out of use. Returns whether it was coming back from disk. A client that fills
    /// it may continue; readers of any other growing copy are notified that the rest will not
    /// arrive.
    pub(crate) fn doom(&mut self, instance: Instance, world: &mut World) -> bool {
        let Some(copy) = self.table.get(instance) else { return false };
        let is_read = copy.is_complete() && copy.is_growing();
        if is_read || matches!(copy.state, State::Arriving | State::Folding) {
            world.act(Action::FreeSlot { instance });
        }
        let waited = self.capacity_queue.remove(instance).is_some();
        if let Some(removed) = self.table.doom(instance) {
            self.removed(&removed, world);
        }
        is_read || waited
    }

    fn removed(&mut self, removed: &Removed, world: &mut World) {
        self.free(removed, world);
        if removed.has_slot {
            self.settled(removed.instance, world);
        }
        self.freed(world);
    }

    /// Records that memory was freed, or that a copy became evictable.
    fn freed(&mut self, world: &World) {
        self.memory_queue.freed(world.now());
        self.has_changed = true;
    }

    /// Handles that memory is available for a copy. Returns its state, unless the copy was removed
    /// meanwhile.
    pub(crate) fn slot_ready(&mut self, instance: Instance, world: &mut World) -> Option<State> {
        self.settled(instance, world);
        let copy = self.table.get(instance).filter(|copy| copy.residency != Residency::Disk);
        let Some(copy) = copy else {
            world.act(Action::FreeSlot { instance });
            return None;
        };
        if copy.residency != Residency::Pending || copy.is_given_up() {
            return None;
        }
        let state = copy.state;
        if copy.is_complete() {
            self.table.set_residency(instance, Residency::Restoring(world.now()));
            world.act(Action::Unspill { instance });
        } else {
            self.table.set_residency(instance, Residency::Memory);
        }
        Some(state)
    }

    /// Handles that memory cannot be allocated for a copy. Returns the object, its state, and the
    /// error for the waiting requests.
    pub(crate) fn slot_failed(
        &mut self,
        instance: Instance,
        detail: String,
        world: &mut World,
    ) -> Option<(ObjectId, State, Error)> {
        self.settled(instance, world);
        let copy = self.awaited(instance)?;
        let error = Error::NoMemory { needed: copy.meta.size, detail };
        Some((copy.id.clone(), copy.state, error))
    }

    /// Handles that the shell has no memory for a copy now: evicts copies, or else makes the copy
    /// wait.
    pub(crate) fn slot_refused(&mut self, instance: Instance, reason: String, world: &mut World) {
        let Some(copy) = self.awaited(instance) else { return self.settled(instance, world) };
        let bytes = copy.cost();
        let shed = self.table.shed(bytes);
        if shed.is_empty() {
            let next = self.memory_queue.refused(instance, reason, world.now());
            // Written copies may leave memory later.
            self.spill_bytes(bytes, true, world);
            return self.order_next(next, world);
        }
        self.evict(shed, world);
        self.order_next(Some(instance), world);
    }

    /// A copy that waits for its memory.
    fn awaited(&self, instance: Instance) -> Option<&Copy> {
        let copy = self.table.get(instance)?;
        (copy.residency == Residency::Pending && !copy.is_given_up()).then_some(copy)
    }

    /// Gives a copy new memory, because its content turned out to be corrupt.
    pub(crate) fn replace_memory(&mut self, instance: Instance, world: &mut World) {
        world.act(Action::FreeSlot { instance });
        self.table.set_residency(instance, Residency::Pending);
        self.order_slot(instance, world);
    }

    /// Ends the wait of a copy that has memory, or no longer needs any.
    fn settled(&mut self, instance: Instance, world: &mut World) {
        let next = self.memory_queue.settled(instance, world.now());
        self.order_next(next, world);
    }

    fn order_next(&mut self, next: Option<Instance>, world: &mut World) {
        let mut next = next;
        while let Some(instance) = next {
            if self.order_slot(instance, world) {
                return;
            }
            // It was removed while it waited.
            next = self.memory_queue.settled(instance, world.now());
        }
    }

    /// Orders the memory of a copy from the shell. Returns false if the copy needs none.
    fn order_slot(&self, instance: Instance, world: &mut World) -> bool {
        let copy = self.table.get(instance);
        let Some(copy) = copy.filter(|copy| copy.residency == Residency::Pending && !copy.doomed)
        else {
            return false;
        };
        let writer: Option<ClientId> =
            if let State::Filling(client) = copy.state { Some(client) } else { None };
        world.act(Action::CreateSlot { instance, size: copy.meta.size, writer });
        true
    }

    /// Why a copy is not here yet, if it waits for capacity or memory.
    pub(crate) fn shortfall(&self, instance: Instance) -> Option<Error> {
        if let Some(needed) = self.capacity_queue.size(instance) {
            return Some(self.store_full(needed));
        }
        let reason = self.memory_queue.reason(instance)?;
        let needed = self.table.get(instance)?.meta.size;
        let detail = format!("{reason}; {}", self.describe_pinned(needed));
        Some(Error::NoMemory { needed, detail })
    }

    /// The bytes that a copy waits for, without its overhead.
    pub(crate) fn waits_for(&self, instance: Instance) -> Option<u64> {
        self.capacity_queue.size(instance)
    }

    pub(crate) fn store_full(&self, needed: u64) -> Error {
        let (capacity, pinned) = (self.table.capacity(), self.table.pinned());
        Error::StoreFull { needed, capacity, pinned, largest: self.describe_pinned(needed) }
    }

    /// Describes what occupies the capacity that an object of `needed` bytes lacks: the largest
    /// copies that cannot be evicted, and why they are not spilled.
    fn describe_pinned(&self, needed: u64) -> String {
        let largest = self.table.largest_held();
        match self.spill_files.problem(self.table.on_disk(), file_bytes(needed)) {
            Some(problem) => format!("{largest}; {problem}"),
            None => largest,
        }
    }
}
