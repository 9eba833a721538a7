//! Room: who waits for it, and who gets it when there is some.
//!
//! In order of asking, but none waits behind one that does not fit. Those who wait are kept by their size, so that a
//! change of what is free costs the same however many wait.

use alloc::collections::BTreeMap;

use super::Node;
use crate::{
    error::Error,
    id::{Instance, ObjectId, ReduceId},
};

/// Who waits for room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SpaceFor {
    Create(Instance),
    Pull(ObjectId),
    Result(Instance),
    SmallResult(ReduceId),
}

/// Those that wait for room, and for how much.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By size, and those of one size by their tickets.
    by_size: BTreeMap<u64, BTreeMap<u64, SpaceFor>>,
    /// The size and the ticket of each.
    places: BTreeMap<SpaceFor, (u64, u64)>,
    last_ticket: u64,
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
        self.places.insert(who.clone(), (size, self.last_ticket));
        self.by_size.entry(size).or_default().insert(self.last_ticket, who);
    }

    pub(super) fn remove(&mut self, who: &SpaceFor) {
        let Some((size, ticket)) = self.places.remove(who) else { return };
        let Some(same) = self.by_size.get_mut(&size) else { return };
        same.remove(&ticket);
        if same.is_empty() {
            self.by_size.remove(&size);
        }
    }

    /// The first of those that `size` bytes are enough for. As many are compared as there are sizes.
    fn first_within(&self, size: u64) -> Option<(SpaceFor, u64)> {
        let firsts = self.by_size.range(..=size);
        let firsts = firsts.filter_map(|(size, same)| Some((same.first_key_value()?, *size)));
        let first = firsts.min_by_key(|((ticket, _), _)| **ticket);
        first.map(|((_, who), size)| (who.clone(), size))
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
        self.space.push(who, size);
        self.grant_space();
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
            let evicted = self.table.make_room(size).unwrap_or_default();
            self.evicted(evicted);
            match who {
                SpaceFor::Create(instance) => self.create_in_room(instance),
                SpaceFor::Pull(id) => self.pull_in_room(&id),
                SpaceFor::Result(instance) => self.result_in_room(instance),
                SpaceFor::SmallResult(key) => self.small_result_in_room(key),
            }
        }
        self.space.is_granting = false;
        self.give_back();
    }

    pub(super) fn store_full(&self, needed: u64) -> Error {
        let (capacity, pinned) = (self.table.capacity(), self.table.pinned());
        Error::StoreFull { needed, capacity, pinned, largest: self.table.largest_held() }
    }
}
