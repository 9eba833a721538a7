//! The life of every local copy, from the wish for it to its end: room, memory, eviction, the way to disk and back.
//!
//! ```text
//!   want --> room --> memory --> (whoever makes it fills it) --> complete --> evicted, or doomed and let go of
//!                                                                  |    ^
//!                                           written, then on disk alone |
//!                                                                  |    |
//!                                           want_back --> room --> memory, read from its file
//! ```
//! The accounts and the order of eviction are in [`crate::table`]; what waits for room in [`queue`], for memory in
//! [`shortage`]; what goes to disk in [`spills`] and [`disk`]. What follows for others is a [`Fact`], which the node takes
//! from here. Does not know readers, pulls, puts or reduces.

mod disk;
mod queue;
mod shortage;
mod sizes;
mod spills;

use alloc::{collections::VecDeque, format, string::String};

pub(crate) use self::queue::Wanted;
use self::{queue::Queue, shortage::Shortage, spills::Spills};
use crate::{
    error::Error,
    event::{Action, Note},
    id::{ClientId, Instance, NodeId, ObjectId},
    lifetime::Terms,
    machines::world::World,
    message::Message,
    planted::{self, Bug},
    table::{Copy, Place, Removed, Shed, State, Table, file_bytes},
    time::Instant,
};

/// All local copies.
#[derive(Debug)]
pub(crate) struct Copies {
    table: Table,
    queue: Queue,
    shortage: Shortage,
    spills: Spills,
    facts: VecDeque<Fact>,
    /// Whether some that wait for room may have it since they were last looked at.
    has_changed: bool,
}

/// What concerns others.
#[derive(Debug)]
pub(crate) enum Fact {
    /// There is room for a copy that was wanted, and the shell makes its memory if it needs any.
    Admitted {
        /// Which.
        instance: Instance,
        /// Whether there was none at first.
        has_waited: bool,
    },
    /// A copy takes more or less of the capacity than before.
    Weighs(Instance),
    /// What was on disk alone went, since other nodes have it.
    Left(ObjectId),
}

impl Copies {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            table: Table::new(capacity),
            queue: Queue::default(),
            shortage: Shortage::default(),
            spills: Spills::default(),
            facts: VecDeque::new(),
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

    /// Which object an instance is of that is here, or is to be.
    pub(crate) fn id_of(&self, instance: Instance) -> Option<&ObjectId> {
        let wanted = || self.queue.wanted(instance).map(|wanted| &wanted.id);
        self.table.get(instance).map(|copy| &copy.id).or_else(wanted)
    }

    /// What a copy will be that waits for room.
    pub(crate) fn wanted(&self, instance: Instance) -> Option<&Wanted> {
        self.queue.wanted(instance)
    }

    /// Those that wait for room, from the largest on of those that `size` bytes are enough for.
    pub(crate) fn largest_within(&self, size: u64) -> impl Iterator<Item = (Instance, u64)> {
        self.queue.largest_within(size)
    }

    /// How many wait, for what.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 4] {
        let reads = self.table.iter().filter(|(_, copy)| copy.is_complete() && copy.is_growing());
        [
            ("that wait for room", self.queue.len()),
            ("that wait for memory", self.shortage.len()),
            ("that are being spilled", self.spills.count_writing()),
            ("that come back from disk", self.queue.count_returning() + reads.count()),
        ]
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.shortage.deadline().into_iter().chain(self.spills.deadline()).min()
    }

    pub(crate) fn expire(&mut self, world: &mut World) {
        let next = self.shortage.due(world.now());
        self.order_next(next, world);
        if self.spills.expire(world.now()) {
            self.freed(world);
        }
    }

    pub(crate) fn next_fact(&mut self) -> Option<Fact> {
        self.facts.pop_front()
    }

    /// Gives room to a copy, at once or when there is some; a [`Fact`] says so.
    pub(crate) fn want(&mut self, instance: Instance, wanted: Wanted, world: &mut World) {
        let size = wanted.meta.size;
        // What became free before is for those that have waited.
        self.settle(world);
        // Others wait only for what does not fit: one that does need not be queued.
        if self.table.missing_to_add(size) == 0 && !self.queue.contains(instance) {
            return self.admit(instance, wanted, false, world);
        }
        self.queue.push(instance, size, Some(wanted));
        self.grant(Some(instance), world);
        self.has_changed = true;
    }

    /// A copy is not wanted any more, if it still waits for room.
    pub(crate) fn cancel(&mut self, instance: Instance) {
        self.queue.remove(instance);
    }

    /// A copy that waits for room will come from another node; false if it does not wait.
    pub(crate) fn redirect(&mut self, instance: Instance, source: NodeId) -> bool {
        self.queue.redirect(instance, source)
    }

    /// Gives room to those that may have it now; false if none may have it that did not before.
    pub(crate) fn settle(&mut self, world: &mut World) -> bool {
        let has_changed = core::mem::take(&mut self.has_changed);
        if has_changed {
            self.grant(None, world);
        }
        has_changed
    }

    /// Whether some wait for room, and nothing is being written that would help.
    pub(crate) fn is_short(&self) -> bool {
        self.queue.len() > 0 && !self.spills.is_writing()
    }

    /// Gives room in order, but to each that fits. `new` has not waited before.
    fn grant(&mut self, new: Option<Instance>, world: &mut World) {
        while let Some((instance, size)) =
            self.table.room().and_then(|room| self.queue.first_within(room))
        {
            let Some(wanted) = self.queue.remove(instance) else { return };
            let shed = self.table.make_room(size).unwrap_or_default();
            self.evict(shed, world);
            match wanted {
                Some(wanted) => self.admit(instance, wanted, new != Some(instance), world),
                None => self.admit_back(instance, world),
            }
        }
        self.spill_for_room(world);
    }

    fn admit(&mut self, instance: Instance, wanted: Wanted, has_waited: bool, world: &mut World) {
        let is_filled = matches!(wanted.state, State::Filling(_));
        self.insert(instance, wanted);
        if is_filled {
            self.table.pin(instance);
        }
        self.order_slot(instance, world);
        self.facts.push_back(Fact::Admitted { instance, has_waited });
    }

    /// Adds a copy for which there is room. What does not come from another node is an original.
    fn insert(&mut self, instance: Instance, wanted: Wanted) {
        let Wanted { id, meta, inline, state, terms } = wanted;
        let origin = !matches!(state, State::Flowing(_));
        self.table.insert(instance, id, meta, inline, state, origin);
        if let Some(terms) = terms {
            self.table.add_terms(instance, &terms);
        }
    }

    /// Carries out what others need room for.
    fn evict(&mut self, Shed { evicted, spilled }: Shed, world: &mut World) {
        for instance in spilled {
            world.act(Action::FreeSlot { instance });
            self.facts.push_back(Fact::Weighs(instance));
        }
        if evicted.is_empty() {
            return;
        }
        world.note(Note::Evicted { copies: evicted.len() });
        for removed in evicted {
            self.free(&removed, world);
            let Removed { id, instance, .. } = removed;
            world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
        }
    }

    /// Lets go of the memory and of the file of a copy that is no more.
    fn free(&mut self, removed: &Removed, world: &mut World) {
        let Removed { instance, has_slot, has_file, .. } = *removed;
        if has_slot {
            world.act(Action::FreeSlot { instance });
        }
        if has_file {
            self.spills.forget(instance);
            world.act(Action::DropSpilled { instance });
        }
    }

    /// Adds a small complete copy at once; false if there is no room for it.
    pub(crate) fn insert_small(
        &mut self,
        instance: Instance,
        wanted: Wanted,
        world: &mut World,
    ) -> bool {
        let Some(shed) = self.table.make_room(wanted.meta.size) else { return false };
        self.evict(shed, world);
        self.insert(instance, wanted);
        true
    }

    /// More of a copy is there, or it comes from another node.
    pub(crate) fn set_state(&mut self, instance: Instance, state: State) {
        self.table.set_state(instance, state);
        self.has_changed = true;
    }

    /// Whether a copy is pinned until deletion from now on; whether it was before, none if there is no such copy.
    pub(crate) fn set_origin(&mut self, instance: Instance, origin: bool) -> Option<bool> {
        self.has_changed = true;
        self.table.set_origin(instance, origin)
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

    pub(crate) fn pin(&mut self, instance: Instance) {
        self.table.pin(instance);
    }

    pub(crate) fn hold(&mut self, instance: Instance) {
        self.table.hold(instance);
    }

    pub(crate) fn pass_over(&mut self, instance: Instance) {
        self.table.pass_over(instance);
    }

    pub(crate) fn unpin(&mut self, instance: Instance, world: &mut World) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unpin(instance) {
            Some(removed) => self.removed(&removed, world),
            // What is unpinned may be evicted for an object that waits for room.
            None if planted::has(Bug::GrantsNoRoomLater) => {}
            None => self.let_go(instance, world),
        }
    }

    /// A copy that was to be pinned later is not any more.
    pub(crate) fn unhold(&mut self, instance: Instance, world: &mut World) {
        if self.table.get(instance).is_none() {
            return;
        }
        match self.table.unhold(instance) {
            Some(removed) => self.removed(&removed, world),
            None => self.let_go(instance, world),
        }
    }

    /// A copy that was held is pinned now, which takes nothing away.
    pub(crate) fn pin_held(&mut self, instance: Instance) {
        self.table.pin(instance);
        self.table.unhold(instance);
    }

    fn let_go(&mut self, instance: Instance, world: &mut World) {
        self.leave_disk(instance, world);
        self.freed(world);
    }

    /// Takes a copy out of use; whether it was coming back from disk. A client that fills it may go on; readers of any other
    /// that grows are told that the rest will not come.
    pub(crate) fn doom(&mut self, instance: Instance, world: &mut World) -> bool {
        let Some(copy) = self.table.get(instance) else { return false };
        let is_read = copy.is_complete() && copy.is_growing();
        if is_read || matches!(copy.state, State::Flowing(_) | State::Folding) {
            world.act(Action::FreeSlot { instance });
        }
        let waited = self.queue.remove(instance).is_some();
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

    /// Memory was freed, or a copy may go that could not before.
    fn freed(&mut self, world: &World) {
        self.shortage.freed(world.now());
        self.has_changed = true;
    }

    /// There is memory for a copy; for what, unless it went meanwhile.
    pub(crate) fn slot_ready(&mut self, instance: Instance, world: &mut World) -> Option<State> {
        self.settled(instance, world);
        let copy = self.table.get(instance).filter(|copy| copy.place != Place::Disk);
        let Some(copy) = copy else {
            world.act(Action::FreeSlot { instance });
            return None;
        };
        if copy.place != Place::Awaited || copy.is_given_up() {
            return None;
        }
        let state = copy.state;
        if copy.is_complete() {
            self.table.set_place(instance, Place::Returning);
            world.act(Action::Unspill { instance });
        } else {
            self.table.set_place(instance, Place::Memory);
        }
        Some(state)
    }

    /// There can't be memory for a copy; what was to have it, and the error for those who wait.
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

    /// The shell has no memory for a copy now: what may go does, then the copy waits.
    pub(crate) fn slot_refused(&mut self, instance: Instance, said: String, world: &mut World) {
        let Some(copy) = self.awaited(instance) else { return self.settled(instance, world) };
        let bytes = copy.cost();
        let shed = self.table.shed(bytes);
        if shed.is_empty() {
            let next = self.shortage.refused(instance, said, world.now());
            // When some are written they may go.
            self.spill_bytes(bytes, true, world);
            return self.order_next(next, world);
        }
        self.evict(shed, world);
        self.order_next(Some(instance), world);
    }

    /// A copy that is to have memory.
    fn awaited(&self, instance: Instance) -> Option<&Copy> {
        let copy = self.table.get(instance)?;
        (copy.place == Place::Awaited && !copy.is_given_up()).then_some(copy)
    }

    /// A copy gets other memory, for what is in it turned out to be wrong.
    pub(crate) fn replace_memory(&mut self, instance: Instance, world: &mut World) {
        world.act(Action::FreeSlot { instance });
        self.table.set_place(instance, Place::Awaited);
        self.order_slot(instance, world);
    }

    /// A copy has memory, or needs none any more.
    fn settled(&mut self, instance: Instance, world: &mut World) {
        let next = self.shortage.settled(instance, world.now());
        self.order_next(next, world);
    }

    fn order_next(&mut self, next: Option<Instance>, world: &mut World) {
        let mut next = next;
        while let Some(instance) = next {
            if self.order_slot(instance, world) {
                return;
            }
            // It went while it waited.
            next = self.shortage.settled(instance, world.now());
        }
    }

    /// Has the shell make the memory of a copy; false if it needs none.
    fn order_slot(&self, instance: Instance, world: &mut World) -> bool {
        let copy = self.table.get(instance);
        let Some(copy) = copy.filter(|copy| copy.place == Place::Awaited && !copy.doomed) else {
            return false;
        };
        let writer: Option<ClientId> =
            if let State::Filling(client) = copy.state { Some(client) } else { None };
        world.act(Action::CreateSlot { instance, size: copy.meta.size, writer });
        true
    }

    /// Why a copy is not here yet, if it waits for room or memory.
    pub(crate) fn shortfall(&self, instance: Instance) -> Option<Error> {
        if let Some(needed) = self.queue.size(instance) {
            return Some(self.store_full(needed));
        }
        let said = self.shortage.reason(instance)?;
        let needed = self.table.get(instance)?.meta.size;
        let detail = format!("{said}; {}", self.what_is_held(needed));
        Some(Error::NoMemory { needed, detail })
    }

    /// How many bytes a copy waits for, without what it costs beside them.
    pub(crate) fn waits_for(&self, instance: Instance) -> Option<u64> {
        self.queue.size(instance)
    }

    pub(crate) fn store_full(&self, needed: u64) -> Error {
        let (capacity, pinned) = (self.table.capacity(), self.table.pinned());
        Error::StoreFull { needed, capacity, pinned, largest: self.what_is_held(needed) }
    }

    /// What keeps an object of `needed` bytes out, in words: the largest copies that can't go, and why they don't go to disk.
    fn what_is_held(&self, needed: u64) -> String {
        let largest = self.table.largest_held();
        match self.spills.problem(self.table.on_disk(), file_bytes(needed)) {
            Some(problem) => format!("{largest}; {problem}"),
            None => largest,
        }
    }
}
