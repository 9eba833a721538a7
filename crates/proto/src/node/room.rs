//! Room: who waits for it, and who gets it when there is some.
//!
//! In order of asking, but none waits behind one that does not fit. Those who wait are kept by their size, so that a
//! change of what is free costs the same however many wait.

use alloc::{collections::BTreeMap, format, string::String};

use super::{
    Node,
    sizes::{Sizes, Sum},
};
use crate::{
    error::Error,
    id::{Instance, ObjectId, ReduceId},
    table::{COPY_OVERHEAD_BYTES, file_bytes},
};

/// Who waits for room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpaceFor {
    Create(Instance),
    Pull(ObjectId),
    /// An original that is on disk alone.
    Unspill(Instance),
    Result(Instance),
    SmallResult(ReduceId),
}

/// Those that wait for room, and for how much.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By size, and those of one size by their tickets.
    by_size: BTreeMap<u64, BTreeMap<u64, SpaceFor>>,
    sums: Sizes,
    /// The size and the ticket of each.
    places: BTreeMap<SpaceFor, (u64, u64)>,
    last_ticket: u64,
    /// What those take that are on disk alone.
    returning: u64,
    /// Whether room is being given to them.
    is_granting: bool,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn contains(&self, who: &SpaceFor) -> bool {
        self.places.contains_key(who)
    }

    fn push(&mut self, who: SpaceFor, size: u64) {
        self.remove(&who);
        self.last_ticket += 1;
        if let SpaceFor::Unspill(_) = who {
            self.returning += size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        self.places.insert(who.clone(), (size, self.last_ticket));
        self.by_size.entry(size).or_default().insert(self.last_ticket, who);
        self.sum(size);
    }

    pub(super) fn remove(&mut self, who: &SpaceFor) {
        let Some((size, ticket)) = self.places.remove(who) else { return };
        if let SpaceFor::Unspill(_) = who {
            self.returning -= size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        let Some(same) = self.by_size.get_mut(&size) else { return };
        same.remove(&ticket);
        if same.is_empty() {
            self.by_size.remove(&size);
        }
        self.sum(size);
    }

    /// Who waits for a size has changed.
    fn sum(&mut self, size: u64) {
        let same = self.by_size.get(&size);
        let sum = same.and_then(|same| {
            let (ticket, _) = same.first_key_value()?;
            let each = size.saturating_add(COPY_OVERHEAD_BYTES);
            Some(Sum { first: (*ticket, size), bytes: each.saturating_mul(same.len() as u64) })
        });
        self.sums.set(size, sum);
    }

    /// The first of those that `size` bytes are enough for.
    fn first_within(&self, size: u64) -> Option<(SpaceFor, u64)> {
        let (ticket, size) = self.sums.within(size)?.first;
        let who = self.by_size.get(&size)?.get(&ticket)?;
        Some((who.clone(), size))
    }

    /// What all those would take that `size` bytes are enough for, each alone, less what one copy costs beside its bytes.
    pub(super) fn bytes_within(&self, size: u64) -> u64 {
        let bytes = self.sums.within(size).map_or(0, |sum| sum.bytes);
        bytes.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// The same of all that are on disk alone and are to come back.
    pub(super) const fn returning_bytes(&self) -> u64 {
        self.returning.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// From the largest on of those that `size` bytes are enough for.
    pub(super) fn largest_within(&self, size: u64) -> impl Iterator<Item = (&SpaceFor, u64)> {
        let sizes = self.by_size.range(..=size).rev();
        sizes.flat_map(|(size, same)| same.values().map(|who| (who, *size)))
    }
}

impl Node {
    /// Gives room to an object, now or when there is some.
    pub(super) fn ask_for_room(&mut self, who: SpaceFor, size: u64) {
        // Others wait only for what does not fit: for one that does there is no queue.
        let is_free = !self.space.is_granting && self.table.missing_to_add(size) == 0;
        if !is_free || self.space.contains(&who) {
            self.space.push(who, size);
            return self.grant_space();
        }
        self.space.is_granting = true;
        self.room_granted(who);
        self.space.is_granting = false;
        self.grant_space();
    }

    fn room_granted(&mut self, who: SpaceFor) {
        match who {
            SpaceFor::Create(instance) => self.create_in_room(instance),
            SpaceFor::Pull(id) => self.pull_in_room(&id),
            SpaceFor::Unspill(instance) => self.unspill_in_room(instance),
            SpaceFor::Result(instance) => self.result_in_room(instance),
            SpaceFor::SmallResult(key) => self.small_result_in_room(key),
        }
    }

    /// Gives room to those who wait for it: in order, but none waits behind one that does not fit, for that may
    /// never fit, and room for the others may be what lets a client delete.
    pub(super) fn grant_space(&mut self) {
        // An object that gets room may let go of some: that is granted in its turn, not from within.
        if core::mem::replace(&mut self.space.is_granting, true) {
            return;
        }
        while let Some((who, size)) =
            self.table.room().and_then(|room| self.space.first_within(room))
        {
            self.space.remove(&who);
            let shed = self.table.make_room(size).unwrap_or_default();
            self.evicted(shed);
            self.room_granted(who);
        }
        self.space.is_granting = false;
        self.spill_for_room();
        // What other nodes want kept here goes when this node can make no room by itself.
        if !self.spills.is_writing() {
            self.give_back();
        }
    }

    pub(super) fn store_full(&self, needed: u64) -> Error {
        let (capacity, pinned) = (self.table.capacity(), self.table.pinned());
        Error::StoreFull { needed, capacity, pinned, largest: self.what_is_held(needed) }
    }

    /// What keeps an object of `needed` bytes out, in words: the largest copies that can't go, and why they don't go to disk.
    pub(super) fn what_is_held(&self, needed: u64) -> String {
        let largest = self.table.largest_held();
        match self.spills.problem(self.table.on_disk(), file_bytes(needed)) {
            Some(problem) => format!("{largest}; {problem}"),
            None => largest,
        }
    }
}
