//! The copies of one node: capacity accounts, readers and eviction.
//!
//! Charges bytes to the capacity and chooses the copies to evict. The shell owns the memory.
//!
//! ```text
//!   growing --------> complete --------> (evicted: unpinned, cached)
//!      |                  |
//!      +--- doomed -------+   deleted or replaced while in use: removed with its last reader
//! ```
//!
//! [`copy`] defines where the bytes of a copy are and what it costs, [`eviction`] the order of
//! eviction. [`census`] counts copies by state, and [`listing`] lists them.

mod census;
mod copy;
mod eviction;
mod listing;
#[cfg(test)]
mod tests;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::ops::Bound;

pub use self::census::Census;
pub use self::copy::{COPY_OVERHEAD_BYTES, Copy, FileState, Residency, State, file_bytes};
use self::eviction::Evictable;
use crate::{
    id::{Instance, ObjectId},
    inline::Inline,
    lifetime::Terms,
    meta::Meta,
    time::Instant,
};

/// A copy in a listing: its object and its instance.
pub type CopyKey = (ObjectId, Instance);

/// A removed copy, whose memory may be freed.
#[derive(Debug, PartialEq, Eq)]
pub struct Removed {
    /// The object.
    pub id: ObjectId,
    /// The instance.
    pub instance: Instance,
    /// Whether the shell has a slot for it.
    pub has_slot: bool,
    /// Whether the shell has a file for it, or is writing one.
    pub has_file: bool,
}

/// Copies that left memory to make room for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Copies that were removed.
    pub evicted: Vec<Removed>,
    /// Pinned copies that are now on disk only.
    pub spilled: Vec<Instance>,
}

impl Evictions {
    /// Whether no copy left memory.
    pub fn is_empty(&self) -> bool {
        self.evicted.is_empty() && self.spilled.is_empty()
    }
}

/// All copies of one node.
#[derive(Debug)]
pub struct Table {
    copies: BTreeMap<Instance, Copy>,
    current: BTreeMap<ObjectId, Instance>,
    /// All other copies: not revealed yet, doomed, or replaced.
    others: BTreeSet<(ObjectId, Instance)>,
    used: u64,
    capacity: u64,
    uses: u64,
    /// Number of copies that were passed over.
    passed: u64,
    /// Bytes of files that exist or are being written.
    on_disk: u64,
    evictable: Evictable,
    census: Census,
}

/// Numbers of uses begin here; copies that were passed over get lower numbers.
const FIRST_USE: u64 = 1 << 63;

/// Precedes the names of the largest copies in an error about a full store.
pub(crate) const LARGEST: &str = "the largest are ";

impl Table {
    /// An empty store with a capacity in bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            copies: BTreeMap::new(),
            current: BTreeMap::new(),
            others: BTreeSet::new(),
            used: 0,
            capacity,
            uses: FIRST_USE,
            passed: 0,
            on_disk: 0,
            evictable: Evictable::default(),
            census: Census::default(),
        }
    }

    /// Capacity in bytes.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes charged to the capacity.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that can't be evicted.
    pub const fn pinned(&self) -> u64 {
        self.used - self.evictable.bytes
    }

    /// Bytes of files that exist or are being written.
    pub const fn on_disk(&self) -> u64 {
        self.on_disk
    }

    /// Bytes in memory of pinned copies that could be written to a file.
    pub const fn unfiled(&self) -> u64 {
        self.evictable.unfiled_bytes
    }

    /// Pinned copies that could be written to a file, least recently used first.
    pub fn to_file(&self) -> impl Iterator<Item = (Instance, &Copy)> {
        let all = self.evictable.unfiled.values();
        all.filter_map(|instance| Some((*instance, self.copies.get(instance)?)))
    }

    /// Number of copies.
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// The copies in each state.
    pub const fn census(&self) -> &Census {
        &self.census
    }

    /// Whether there are no copies.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The copy of an instance.
    pub fn get(&self, instance: Instance) -> Option<&Copy> {
        self.copies.get(&instance)
    }

    /// Whether there is a copy of an instance that is not doomed.
    pub fn holds(&self, instance: Instance) -> bool {
        self.get(instance).is_some_and(|copy| !copy.doomed)
    }

    /// Sets the progress of a copy.
    pub fn set_state(&mut self, instance: Instance, state: State) {
        self.change(instance, |copy| copy.state = state);
    }

    /// Sets where the bytes of a copy are.
    pub fn set_residency(&mut self, instance: Instance, residency: Residency) {
        self.change(instance, |copy| copy.residency = residency);
    }

    /// Sets whether the bytes of a copy are in a file.
    pub fn set_file_state(&mut self, instance: Instance, file_state: FileState) {
        let before = self.get(instance).map_or(0, Copy::file_bytes);
        self.change(instance, |copy| copy.file_state = file_state);
        self.on_disk += self.get(instance).map_or(0, Copy::file_bytes);
        self.on_disk -= before;
    }

    /// Sets whether a copy is pinned until deletion. Returns whether it was before; `None` if there
    /// is no such copy.
    pub fn set_pinned(&mut self, instance: Instance, pinned: bool) -> Option<bool> {
        self.change(instance, |copy| core::mem::replace(&mut copy.pinned, pinned))
    }

    /// Merges the lifetime of a copy's object with a reported one.
    pub fn add_terms(&mut self, instance: Instance, added: &Terms) {
        let Some(copy) = self.copies.get_mut(&instance) else { return };
        match &mut copy.terms {
            Some(terms) => terms.join(added),
            none => *none = Some(Box::new(added.clone())),
        }
    }

    /// Starts the time to live of a copy's object, if the copy is complete.
    pub fn begin_time(&mut self, instance: Instance, now: Instant) {
        let complete = self.copies.get_mut(&instance).filter(|copy| copy.is_complete());
        if let Some(terms) = complete.and_then(|copy| copy.terms.as_mut()) {
            terms.begin(now);
        }
    }

    /// The instance that a get of `id` uses.
    pub fn current(&self, id: &ObjectId) -> Option<Instance> {
        self.current.get(id).copied()
    }

    /// The object after another one, or the first, of those that a get would find.
    pub fn next_current(&self, after: Option<&ObjectId>) -> Option<&ObjectId> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.current.range::<ObjectId, _>((begin, Bound::Unbounded)).next().map(|(id, _)| id)
    }

    /// All copies, sorted by instance.
    pub fn iter(&self) -> impl Iterator<Item = (Instance, &Copy)> {
        self.copies.iter().map(|(instance, copy)| (*instance, copy))
    }

    /// The copies after one instance, or all, sorted by instance.
    pub fn following(&self, after: Option<Instance>) -> impl Iterator<Item = Instance> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.copies.range((begin, Bound::Unbounded)).map(|(instance, _)| *instance)
    }

    /// Makes room for `size` more bytes. Evicts cached copies first, then pinned copies that are
    /// also on disk, least recently used first within each. Returns what left memory; `None` if
    /// that would not suffice.
    pub fn make_room(&mut self, size: u64) -> Option<Evictions> {
        if self.missing_for(size) > 0 {
            return None;
        }
        let needed = size.saturating_add(COPY_OVERHEAD_BYTES);
        Some(self.shed(self.used.saturating_add(needed).saturating_sub(self.capacity)))
    }

    /// The same for at least `bytes` bytes, or as much as can be evicted.
    pub fn shed(&mut self, bytes: u64) -> Evictions {
        let enough = self.used.saturating_sub(bytes);
        let mut shed = Evictions::default();
        while self.used > enough {
            if let Some(victim) = self.evictable.least_recently_used() {
                shed.evicted.extend(self.remove(victim));
            } else if let Some(victim) = self.evictable.least_recently_used_on_disk() {
                self.set_residency(victim, Residency::Disk);
                shed.spilled.push(victim);
            } else {
                break;
            }
        }
        shed
    }

    /// Removes a copy that is on disk only, no longer pinned and not in use. Other nodes have the
    /// object.
    pub fn evict_from_disk(&mut self, instance: Instance) -> Option<Removed> {
        let copy = self.get(instance)?;
        let is_spare = copy.residency == Residency::Disk && !copy.pinned && !copy.is_used();
        if is_spare { self.remove(instance) } else { None }
    }

    /// The three largest copies that can't be evicted, and why, as text.
    pub fn largest_held(&self) -> String {
        let largest = self.evictable.held.iter().rev().take(3);
        let named: Vec<String> = largest
            .filter_map(|(_, instance)| {
                let Copy { id, meta, state, pinned, readers, expected_readers, residency, .. } =
                    self.copies.get(instance)?;
                let why = match (state, pinned) {
                    (State::Filling(_), _) => "being put".into(),
                    (State::Arriving, _) => "arriving".into(),
                    (State::Folding, _) => "being reduced".into(),
                    (State::Complete, _)
                        if matches!(residency, Residency::Pending | Residency::Restoring(_)) =>
                    {
                        "read from disk".into()
                    }
                    (State::Complete, true) if *readers == 0 => "pinned until it is deleted".into(),
                    (State::Complete, _) => format!("readers: {}", readers + expected_readers),
                };
                Some(format!("{id} of {} bytes ({why})", meta.size))
            })
            .collect();
        match named[..] {
            [] => "none of its copies is pinned".into(),
            _ => format!("{LARGEST}{}", named.join(", ")),
        }
    }

    /// Bytes of the largest copy that fits after all possible evictions; `None` if not even an
    /// empty one fits.
    pub fn room(&self) -> Option<u64> {
        self.room_with(0)
    }

    /// The same if `more` bytes were evicted in addition.
    pub fn room_with(&self, more: u64) -> Option<u64> {
        let free = self.capacity.saturating_sub(self.pinned()).saturating_add(more);
        free.checked_sub(COPY_OVERHEAD_BYTES)
    }

    /// Bytes that `size` more bytes lack after all possible evictions.
    pub const fn missing_for(&self, size: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.pinned());
        size.saturating_add(COPY_OVERHEAD_BYTES).saturating_sub(free)
    }

    /// Bytes to evict for `size` more bytes.
    pub const fn missing_to_add(&self, size: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.used);
        size.saturating_add(COPY_OVERHEAD_BYTES).saturating_sub(free)
    }

    /// Whether `size` bytes fit into an empty store.
    pub const fn could_hold(&self, size: u64) -> bool {
        size.saturating_add(COPY_OVERHEAD_BYTES) <= self.capacity
    }

    /// Adds a copy. It has no memory yet unless it is complete or inline. A get finds it after
    /// `reveal`.
    ///
    /// # Panics
    /// If the instance is already in the table.
    pub fn insert(
        &mut self,
        instance: Instance,
        id: ObjectId,
        meta: Meta,
        inline: Option<Inline>,
        state: State,
        pinned: bool,
    ) {
        self.uses += 1;
        let last_use = self.uses;
        let (readers, expected_readers, doomed, terms) = (0, 0, false, None);
        let has_bytes = inline.is_some() || state == State::Complete;
        let residency = if has_bytes { Residency::Memory } else { Residency::Pending };
        let (file_state, recovered) = (FileState::No, false);
        let copy = Copy {
            id,
            meta,
            inline,
            state,
            pinned,
            readers,
            expected_readers,
            doomed,
            residency,
            file_state,
            recovered,
            terms,
            last_use,
        };
        self.used += copy.cost();
        self.census.add(copy.counted());
        self.evictable.insert(instance, &copy);
        self.others.insert((copy.id.clone(), instance));
        let before = self.copies.insert(instance, copy);
        assert!(before.is_none(), "instance {instance} was put into the table twice");
    }

    /// Adds a complete pinned copy that an earlier node left in a file.
    ///
    /// # Panics
    /// If the instance is already in the table.
    pub fn insert_recovered(
        &mut self,
        instance: Instance,
        id: ObjectId,
        meta: Meta,
        inline: Option<Inline>,
    ) {
        let place = if inline.is_some() { Residency::Memory } else { Residency::Disk };
        // The capacity charged here is returned by `set_residency`.
        self.insert(instance, id, meta, inline, State::Complete, true);
        self.set_file_state(instance, FileState::Written);
        self.set_residency(instance, place);
        if let Some(copy) = self.copies.get_mut(&instance) {
            copy.recovered = true;
        }
    }

    /// Makes a copy the current one of its object, which a get uses.
    pub fn reveal(&mut self, instance: Instance) {
        let Some(copy) = self.copies.get(&instance).filter(|copy| !copy.doomed) else { return };
        let id = copy.id.clone();
        self.others.remove(&(id.clone(), instance));
        if let Some(before) = self.current.insert(id.clone(), instance)
            && before != instance
        {
            self.others.insert((id, before));
        }
    }

    /// Pins a copy.
    pub fn add_reader(&mut self, instance: Instance) {
        self.uses += 1;
        let last_use = self.uses;
        self.change(instance, |copy| {
            copy.readers += 1;
            copy.last_use = last_use;
        });
    }

    /// Makes a copy the most recently used one.
    pub fn touch(&mut self, instance: Instance) {
        self.uses += 1;
        let last_use = self.uses;
        self.change(instance, |copy| copy.last_use = last_use);
    }

    /// Marks a copy whose only user has copied the bytes. Once unpinned it is evicted before all
    /// copies that were not passed over. It has no effect if the copy has several readers.
    pub fn pass_over(&mut self, instance: Instance) {
        self.passed += 1;
        let passed = self.passed;
        self.change(instance, |copy| {
            if copy.readers == 1 {
                copy.last_use = passed;
            }
        });
    }

    /// Removes a reader. Returns the copy if it was doomed and this was its last use.
    pub fn remove_reader(&mut self, instance: Instance) -> Option<Removed> {
        let is_over = self.change(instance, |copy| {
            assert!(
                copy.readers > 0,
                "instance {instance} was released by more readers than it had"
            );
            copy.readers -= 1;
            !copy.is_used() && copy.doomed
        })?;
        if is_over { self.remove(instance) } else { None }
    }

    /// Expects a later reader: the copy is not removed until then.
    pub fn expect_reader(&mut self, instance: Instance) {
        self.change(instance, |copy| copy.expected_readers += 1);
    }

    /// Expects the reader no longer. Returns the copy if it was doomed and this was its last use.
    pub fn unexpect_reader(&mut self, instance: Instance) -> Option<Removed> {
        let is_over = self.change(instance, |copy| {
            assert!(
                copy.expected_readers > 0,
                "instance {instance} was released by more expected readers than it had"
            );
            copy.expected_readers -= 1;
            !copy.is_used() && copy.doomed
        })?;
        if is_over { self.remove(instance) } else { None }
    }

    /// Takes a copy out of use. Removes it at once if nothing uses it, otherwise with its last
    /// reader.
    pub fn doom(&mut self, instance: Instance) -> Option<Removed> {
        self.change(instance, |copy| copy.doomed = true)?;
        let copy = self.copies.get(&instance)?;
        if self.current.get(&copy.id) == Some(&instance) {
            self.current.remove(&copy.id);
            self.others.insert((copy.id.clone(), instance));
        }
        if copy.is_used() { None } else { self.remove(instance) }
    }

    fn remove(&mut self, instance: Instance) -> Option<Removed> {
        let copy = self.copies.remove(&instance)?;
        self.used -= copy.cost();
        self.census.remove(copy.counted());
        self.on_disk -= copy.file_bytes();
        self.evictable.remove(instance, copy.eviction_rank(), copy.cost());
        if self.current.get(&copy.id) == Some(&instance) {
            self.current.remove(&copy.id);
        } else {
            self.others.remove(&(copy.id.clone(), instance));
        }
        let has_slot = copy.inline.is_none() && copy.residency != Residency::Disk;
        Some(Removed { id: copy.id, instance, has_slot, has_file: copy.file_state.has_file() })
    }

    /// Changes a copy, and updates its cost, its place in the order of eviction and the counts.
    fn change<R>(&mut self, instance: Instance, change: impl FnOnce(&mut Copy) -> R) -> Option<R> {
        let copy = self.copies.get_mut(&instance)?;
        let (turn, cost, counted) = (copy.eviction_rank(), copy.cost(), copy.counted());
        let result = change(copy);
        if copy.counted() != counted {
            self.census.remove(counted);
            self.census.add(copy.counted());
        }
        if (copy.eviction_rank(), copy.cost()) != (turn, cost) {
            self.used = self.used - cost + copy.cost();
            self.evictable.remove(instance, turn, cost);
            self.evictable.insert(instance, copy);
        }
        Some(result)
    }
}
