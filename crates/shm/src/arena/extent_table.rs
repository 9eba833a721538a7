//! Decides which extent serves an object, and which free extents are unmapped. It handles lengths and writers, and
//! never touches memory.
//!
//! An extent serves one writer or the node. It is either shared by several small objects or belongs to one large
//! object. A free extent stays as warm memory until it has been idle for a while, or until another extent needs its
//! bytes within the bound.

use std::collections::{BTreeMap, BTreeSet};

use super::sizes::Sizes;
use crate::alloc::Allocator;
use crate::extent::{ArenaStats, ExtentId, WriterId};
use crate::units::PAGE_BYTES;

/// A free extent lasts this many rounds beyond the one in which it became free, unless its bytes are needed.
const IDLE_ROUNDS: u64 = 5;

/// The memory of an unmapped extent counts for at most this many rounds beyond the one in which it was unmapped: a
/// frozen process unmaps nothing, and must not keep memory from others.
const LEAVING_ROUNDS: u64 = 2;

/// Maximum bytes of extents created ahead: 8 MiB, a quarter of what stays warm when idle. Creating them takes 4 ms.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// All extents of an arena, and the free space in them.
#[derive(Debug)]
pub(super) struct ExtentTable {
    sizes: Sizes,
    last_id: u64,
    extents: BTreeMap<ExtentId, Extent>,
    owners: BTreeMap<Option<WriterId>, Owner>,
    /// Wholly free extents, ordered by when they became free.
    idle: BTreeMap<u64, ExtentId>,
    /// Number of times an extent became free.
    frees: u64,
    /// Number of calls of [`ExtentTable::take_idle_for_long`].
    rounds: u64,
    /// Bytes of unmapped extents that processes may still map, with the round in which they were unmapped.
    leaving: BTreeMap<ExtentId, (u64, u64)>,
    leaving_bytes: u64,
    /// Number of extents that no process maps any more.
    lefts: u64,
    mapped: u64,
    /// Bytes of extents that are being created.
    reserved: u64,
    used: u64,
    idle_bytes: u64,
    /// Bytes of large objects' extents that exceed those objects.
    wasted: u64,
    /// Bytes of the node's next extent that should be created ahead.
    ahead: Option<u64>,
    /// Whether a thread creates such an extent.
    is_making_ahead: bool,
    /// Bytes of extents created ahead that have not served an object yet.
    fresh_bytes: u64,
}

#[derive(Debug)]
struct Extent {
    len: u64,
    /// `None` for the node.
    writer: Option<WriterId>,
    /// Whether it serves one object at a time.
    is_own: bool,
    allocator: Allocator,
    /// Whether it is removed with its last object.
    is_retired: bool,
    /// Whether it was created ahead and has not served an object yet.
    is_fresh: bool,
    /// While it is free: its position among the idle extents, and the round in which it became free.
    idle: Option<(u64, u64)>,
}

/// The extents of one writer, or of the node.
#[derive(Debug, Default)]
struct Owner {
    /// Extents shared by several objects, by their longest free range.
    shared: BTreeSet<(u64, ExtentId)>,
    /// Bytes of objects in the shared extents.
    shared_used: u64,
    /// Free extents of single objects, by length.
    free: BTreeSet<(u64, ExtentId)>,
    /// Bytes of the last single-object extent that was created while its object waited.
    made: u64,
    extents: u64,
}

/// An extent to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewExtent {
    pub(super) len: u64,
    pub(super) is_own: bool,
}

impl ExtentTable {
    pub(super) fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            last_id: 0,
            extents: BTreeMap::new(),
            owners: BTreeMap::new(),
            idle: BTreeMap::new(),
            frees: 0,
            rounds: 0,
            leaving: BTreeMap::new(),
            leaving_bytes: 0,
            lefts: 0,
            mapped: 0,
            reserved: 0,
            used: 0,
            idle_bytes: 0,
            wasted: 0,
            ahead: None,
            is_making_ahead: false,
            fresh_bytes: 0,
        }
    }

    pub(super) fn stats(&self) -> ArenaStats {
        ArenaStats {
            extents: self.extents.len() as u64,
            mapped_bytes: self.mapped + self.leaving_bytes,
            used_bytes: self.used,
            warm_bytes: self.idle_bytes,
        }
    }

    /// Maximum bytes of all extents together.
    pub(super) const fn bound(&self) -> u64 {
        self.sizes.bound
    }

    /// Whether a new extent for an object of this size would be shared with other objects of its writer.
    pub(super) fn is_shared(&self, bytes: u64, writer: Option<WriterId>) -> bool {
        let wanted = self.wanted(bytes, writer);
        !wanted.is_own && bytes < wanted.len
    }

    /// Allocates space in the tightest existing extent, so that long free ranges remain for long objects.
    pub(super) fn place(
        &mut self,
        bytes: u64,
        writer: Option<WriterId>,
    ) -> Option<(ExtentId, u64)> {
        let is_own = bytes >= self.sizes.own_bytes();
        let owner = self.owners.get(&writer)?;
        let from = (bytes, ExtentId(0));
        let id = if is_own {
            let longest = (Sizes::longest_for(bytes), ExtentId(u64::MAX));
            let tightest = owner.free.range(from..=longest).next().copied();
            let serves = |(len, _): &(u64, _)| self.sizes.may_serve(*len, bytes, self.wasted);
            let Some((_, id)) = tightest.filter(serves) else {
                // The second object in a row that has to wait: create an extent ahead for the third.
                if owner.made == bytes && writer.is_none() && !self.is_making_ahead {
                    self.ahead = Some(bytes);
                }
                return None;
            };
            id
        } else {
            owner.shared.range(from..).next()?.1
        };
        let is_fresh = self.extents.get(&id).is_some_and(|extent| extent.is_fresh);
        if is_fresh {
            self.ahead = self.extents.get(&id).map(|extent| extent.len);
        }
        Some((id, self.place_in(id, bytes)?))
    }

    /// Returns true if an extent should be created ahead and no thread is doing so. The caller is then that thread,
    /// until [`Self::reserve_ahead`] returns `None`.
    pub(super) fn begin_ahead(&mut self) -> bool {
        let begins = self.ahead.is_some() && !self.is_making_ahead;
        self.is_making_ahead |= begins;
        begins
    }

    /// Reserves bytes of the bound for the extent to be created ahead, if there is one and no extent must be unmapped
    /// for it.
    pub(super) fn reserve_ahead(&mut self) -> Option<NewExtent> {
        let ahead = self.ahead.take();
        let has_room = |len: u64| {
            let taken = [self.mapped, self.reserved, self.leaving_bytes, len];
            let all = taken.into_iter().try_fold(len, u64::checked_add);
            // The same amount stays free, so that the next object of another size does not cause an eviction either.
            all.is_some_and(|all| all <= self.sizes.bound)
                && self.fresh_bytes + len <= AHEAD_BYTES_MAX
        };
        let ahead = ahead.filter(|len| has_room(*len));
        self.is_making_ahead = ahead.is_some();
        let wanted = NewExtent { len: ahead?, is_own: true };
        self.reserved += wanted.len;
        Some(wanted)
    }

    /// Registers an extent created ahead.
    pub(super) fn add_ahead(&mut self, wanted: NewExtent) -> ExtentId {
        let id = self.add(wanted, None);
        if let Some(extent) = self.extents.get_mut(&id) {
            extent.is_fresh = true;
            self.fresh_bytes += extent.len;
        }
        id
    }

    /// Allocates space in an extent. Returns the offset.
    pub(super) fn place_in(&mut self, id: ExtentId, bytes: u64) -> Option<u64> {
        self.change(id, |extent| extent.allocator.allocate(bytes, PAGE_BYTES))
    }

    /// Reserves bytes of the bound for a new extent, and removes idle extents into `gone` if necessary. Returns `None`
    /// if that does not suffice, or not yet. With `is_tight`, the extent is exactly as long as the object.
    pub(super) fn reserve(
        &mut self,
        bytes: u64,
        writer: Option<WriterId>,
        is_tight: bool,
        gone: &mut Vec<ExtentId>,
    ) -> Option<NewExtent> {
        let mut wanted = self.wanted(bytes, writer);
        let in_use = self.mapped.saturating_add(self.reserved) - self.idle_bytes;
        let room = self.sizes.bound.saturating_sub(in_use);
        if is_tight || wanted.len > room {
            wanted.len = bytes;
        }
        if wanted.len > room {
            return None;
        }
        while self.mapped + self.reserved > self.sizes.bound - wanted.len {
            let (_, &id) = self.idle.first_key_value()?;
            self.remove(id);
            gone.push(id);
        }
        // Unmapped memory is free only when the processes that map it have unmapped it.
        if self.mapped + self.reserved + self.leaving_bytes > self.sizes.bound - wanted.len {
            return None;
        }
        self.reserved += wanted.len;
        Some(wanted)
    }

    /// Releases the reservation of an extent that was not created.
    pub(super) fn give_up(&mut self, wanted: NewExtent) {
        self.reserved -= wanted.len;
    }

    /// Registers an extent for which bytes were reserved.
    pub(super) fn add(&mut self, wanted: NewExtent, writer: Option<WriterId>) -> ExtentId {
        let NewExtent { len, is_own } = wanted;
        self.reserved -= len;
        self.last_id += 1;
        let id = ExtentId(self.last_id);
        let (allocator, is_retired, idle) = (Allocator::new(len), false, None);
        let is_fresh = false;
        let extent = Extent { len, writer, is_own, allocator, is_retired, is_fresh, idle };
        let owner = self.owners.entry(writer).or_default();
        owner.extents += 1;
        owner.made = if is_own { len } else { owner.made };
        self.mapped += len;
        self.extents.insert(id, extent);
        self.list(id);
        id
    }

    /// Frees what [`ExtentTable::place`] allocated. Returns whether the extent was removed with it.
    pub(super) fn free(&mut self, id: ExtentId, offset: u64) -> bool {
        let is_over = self.change(id, |extent| {
            extent.allocator.free(offset);
            Some(extent.is_retired && extent.allocator.is_empty())
        });
        let is_over = is_over == Some(true);
        if is_over {
            self.remove(id);
        }
        is_over
    }

    /// Retires a writer: no other object uses its extents. Removes and returns the free ones.
    pub(super) fn retire(&mut self, writer: WriterId) -> Vec<ExtentId> {
        let its = self.extents.iter_mut().filter(|(_, extent)| extent.writer == Some(writer));
        let mut free = Vec::new();
        for (id, extent) in its {
            extent.is_retired = true;
            if extent.allocator.is_empty() {
                free.push(*id);
            }
        }
        free.iter().for_each(|id| self.remove(*id));
        free
    }

    /// Removes and returns all free extents.
    pub(super) fn take_idle(&mut self) -> Vec<ExtentId> {
        let idle: Vec<ExtentId> = self.idle.values().copied().collect();
        idle.iter().for_each(|id| self.remove(*id));
        idle
    }

    /// Ends a round. Removes the extents that have been free for [`IDLE_ROUNDS`], except for the amount that stays
    /// warm.
    pub(super) fn take_idle_for_long(&mut self) -> Vec<ExtentId> {
        self.rounds += 1;
        let is_old = |since: u64| self.rounds - since > LEAVING_ROUNDS;
        let old: Vec<ExtentId> =
            self.leaving.iter().filter(|(_, it)| is_old(it.1)).map(|(id, _)| *id).collect();
        old.iter().for_each(|id| self.left(*id));
        let mut gone = Vec::new();
        while let Some((_, &id)) = self.idle.first_key_value() {
            let since =
                self.extents.get(&id).and_then(|extent| extent.idle).map_or(0, |idle| idle.1);
            let is_new = self.rounds - since <= IDLE_ROUNDS;
            if is_new || self.idle_bytes <= Sizes::warm_bytes(self.used) {
                break;
            }
            self.remove(id);
            gone.push(id);
        }
        gone
    }

    /// Whether [`ExtentTable::take_idle_for_long`] has extents to remove, now or in later rounds.
    pub(super) fn has_spare(&self) -> bool {
        !self.leaving.is_empty() || self.idle_bytes > Sizes::warm_bytes(self.used)
    }

    /// Records that no process maps an unmapped extent any more.
    pub(super) fn left(&mut self, id: ExtentId) {
        if let Some((bytes, _)) = self.leaving.remove(&id) {
            self.leaving_bytes -= bytes;
            self.lefts += 1;
        }
    }

    /// Number of extents that no process maps any more, and whether others are still leaving.
    pub(super) fn lefts(&self) -> (u64, bool) {
        (self.lefts, !self.leaving.is_empty())
    }

    fn wanted(&self, bytes: u64, writer: Option<WriterId>) -> NewExtent {
        if bytes >= self.sizes.own_bytes() {
            return NewExtent { len: bytes, is_own: true };
        }
        let used = self.owners.get(&writer).map_or(0, |owner| owner.shared_used);
        NewExtent { len: self.sizes.shared_bytes(used, bytes).max(bytes), is_own: false }
    }

    /// Changes the allocations of an extent, and updates the indexes.
    fn change<R>(
        &mut self,
        id: ExtentId,
        change: impl FnOnce(&mut Extent) -> Option<R>,
    ) -> Option<R> {
        self.unlist(id);
        let result = self.extents.get_mut(&id).and_then(change);
        self.list(id);
        result
    }

    fn list(&mut self, id: ExtentId) {
        let Some(extent) = self.extents.get_mut(&id) else { return };
        let owner = self.owners.entry(extent.writer).or_default();
        let is_free = extent.allocator.is_empty();
        if !extent.is_own {
            owner.shared.insert((extent.allocator.largest_free(), id));
            owner.shared_used += extent.allocator.used();
        } else if is_free {
            owner.free.insert((extent.len, id));
        } else {
            self.wasted += extent.len - extent.allocator.used();
        }
        self.used += extent.allocator.used();
        if is_free {
            self.frees += 1;
            extent.idle = Some((self.frees, self.rounds));
            self.idle.insert(self.frees, id);
            self.idle_bytes += extent.len;
        }
    }

    fn unlist(&mut self, id: ExtentId) {
        let Some(extent) = self.extents.get_mut(&id) else { return };
        let owner = self.owners.entry(extent.writer).or_default();
        let is_free = extent.allocator.is_empty();
        if !extent.is_own {
            owner.shared.remove(&(extent.allocator.largest_free(), id));
            owner.shared_used -= extent.allocator.used();
        } else if is_free {
            owner.free.remove(&(extent.len, id));
        } else {
            self.wasted -= extent.len - extent.allocator.used();
        }
        self.used -= extent.allocator.used();
        if std::mem::take(&mut extent.is_fresh) {
            self.fresh_bytes -= extent.len;
        }
        if let Some((place, _)) = extent.idle.take() {
            self.idle.remove(&place);
            self.idle_bytes -= extent.len;
        }
    }

    fn remove(&mut self, id: ExtentId) {
        self.unlist(id);
        let Some(Extent { len, writer, .. }) = self.extents.remove(&id) else { return };
        self.mapped -= len;
        self.leaving.insert(id, (len, self.rounds));
        self.leaving_bytes += len;
        if let Some(owner) = self.owners.get_mut(&writer) {
            owner.extents -= 1;
            if owner.extents == 0 {
                self.owners.remove(&writer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn places(bound: u64) -> ExtentTable {
        ExtentTable::new(Sizes { extent_bytes: 64 * MIB, bound, extents_max: 4096 })
    }

    /// Allocates space for an object in an existing extent or a new one. Also returns the number of extents removed for
    /// it.
    fn take(places: &mut ExtentTable, bytes: u64, writer: u64) -> Option<((ExtentId, u64), usize)> {
        let writer = (writer > 0).then_some(WriterId(writer));
        if let Some(place) = places.place(bytes, writer) {
            return Some((place, 0));
        }
        let mut gone = Vec::new();
        let mut wanted = places.reserve(bytes, writer, false, &mut gone);
        gone.iter().for_each(|id| places.left(*id));
        if !gone.is_empty() {
            assert_eq!(wanted, None, "what has gone is free when it has left");
            wanted = places.reserve(bytes, writer, false, &mut Vec::new());
        }
        let wanted = wanted?;
        let id = places.add(wanted, writer);
        let offset = places.place_in(id, bytes).expect("an extent serves what it was made for");
        Some(((id, offset), gone.len()))
    }

    #[test]
    fn free_extents_are_removed_for_other_writers_within_the_bound() {
        let mut places = places(64 * MIB);
        for writer in 1..200 {
            let taken: Vec<_> =
                (0..15).filter_map(|_| take(&mut places, 4 * MIB, writer)).collect();
            assert!(places.stats().mapped_bytes <= 64 * MIB);
            assert_eq!(taken.len(), 15, "writer {writer}");
            taken.into_iter().for_each(|((id, offset), _)| assert!(!places.free(id, offset)));
        }
        assert_eq!(places.stats().used_bytes, 0);
        let more = places.stats();
        assert_eq!(more.warm_bytes, more.mapped_bytes);
    }

    #[test]
    fn the_third_large_object_in_a_row_finds_memory_created_ahead() {
        let mut places = places(64 * MIB);
        take(&mut places, MIB, 0).unwrap();
        assert!(!places.begin_ahead(), "one object is no row");
        take(&mut places, MIB, 0).unwrap();
        assert!(places.begin_ahead());
        assert!(!places.begin_ahead(), "a thread is at it");
        let wanted = places.reserve_ahead().unwrap();
        let id = places.add_ahead(wanted);
        assert_eq!(places.reserve_ahead(), None);
        let stats = places.stats();
        assert_eq!((stats.mapped_bytes, stats.warm_bytes), (3 * MIB, MIB), "it counts as free");
        assert_eq!(places.place(MIB, Some(WriterId(1))), None, "it serves no other");
        assert_eq!(places.place(MIB, None).map(|(extent, _)| extent), Some(id));
        assert!(places.begin_ahead(), "the row goes on");
        let wanted = places.reserve_ahead().unwrap();
        places.add_ahead(wanted);
        assert_eq!(places.reserve_ahead(), None);
        take(&mut places, 2 * MIB, 0).unwrap();
        assert!(!places.begin_ahead(), "an object of another size");
        assert_eq!((places.take_idle().len(), places.fresh_bytes), (1, 0));
    }

    #[test]
    fn creating_ahead_removes_no_extent() {
        let ahead_of = |bound: u64, bytes: u64| {
            let mut places = places(bound);
            take(&mut places, bytes, 0).unwrap();
            take(&mut places, bytes, 0).unwrap();
            assert!(places.begin_ahead());
            let is_made = places.reserve_ahead().is_some();
            assert_eq!(places.is_making_ahead, is_made);
            is_made
        };
        assert!(ahead_of(4 * MIB, MIB));
        assert!(!ahead_of(4 * MIB - 1, MIB), "room for one more is left");
        assert!(ahead_of(1024 * MIB, AHEAD_BYTES_MAX));
        assert!(!ahead_of(1024 * MIB, AHEAD_BYTES_MAX + 1));
    }

    #[test]
    fn small_objects_of_many_writers_waste_little_memory() {
        let mut places = places(80 * MIB);
        for writer in 1..=200 {
            assert!(take(&mut places, 40 << 10, writer).is_some());
        }
        let stats = places.stats();
        assert!(stats.mapped_bytes < 2 * stats.used_bytes, "{} MiB", stats.mapped_bytes / MIB);
    }

    #[test]
    fn extents_grow_with_used_memory() {
        let mut places = places(8192 * MIB);
        let mut lengths = vec![0];
        while *lengths.last().unwrap() < 4 * MIB {
            take(&mut places, 64 << 10, 1).unwrap();
            lengths.push(places.stats().mapped_bytes);
        }
        lengths.dedup();
        let doubled: Vec<u64> = (0..7).map(|power| (64 << 10) << power).collect();
        assert_eq!(lengths[1..], doubled, "each time as much again");
        take(&mut places, 64 << 10, 2).unwrap();
        assert_eq!(places.stats().mapped_bytes, (4 * MIB) + (64 << 10), "each writer begins anew");
    }

    #[test]
    fn the_longest_idle_extents_are_removed_first_and_some_stay_warm() {
        let mut places = places(1024 * MIB);
        let taken: Vec<_> = (0..10).map(|_| take(&mut places, 10 * MIB, 0).unwrap().0).collect();
        assert_eq!(places.take_idle_for_long(), []);
        for (id, offset) in &taken {
            places.free(*id, *offset);
        }
        for _ in 0..IDLE_ROUNDS {
            assert_eq!(places.take_idle_for_long(), []);
        }
        let gone = places.take_idle_for_long();
        let ids: Vec<ExtentId> = taken.iter().map(|(id, _)| *id).collect();
        assert_eq!(gone, ids[..7], "32 MiB stay");
        assert_eq!(places.take_idle_for_long(), []);
        gone.iter().for_each(|id| places.left(*id));
        assert_eq!(places.take_idle().len(), 3);
        assert_eq!(places.stats().mapped_bytes, 30 * MIB);
        (0..=LEAVING_ROUNDS).for_each(|_| drop(places.take_idle_for_long()));
        assert_eq!(places.stats(), ArenaStats::default());
    }

    /// Goal: the next version of an object that is replaced now and then needs no new memory.
    #[test]
    fn as_much_stays_warm_as_is_used() {
        let mut places = places(1024 * MIB);
        let mut last = take(&mut places, 100 * MIB, 0).unwrap().0;
        for version in 0..5 {
            let next = take(&mut places, 100 * MIB, 0).unwrap().0;
            places.free(last.0, last.1);
            (0..10 * IDLE_ROUNDS).for_each(|_| assert_eq!(places.take_idle_for_long(), []));
            assert_eq!(places.stats().mapped_bytes, 200 * MIB, "version {version}");
            last = next;
        }
        places.free(last.0, last.1);
        (0..=IDLE_ROUNDS).for_each(|_| drop(places.take_idle_for_long()));
        assert_eq!(places.stats().warm_bytes, 0);
    }

    #[test]
    fn memory_in_use_is_not_idle() {
        let mut places = places(1024 * MIB);
        for _ in 0..50 {
            // In each round, an object of 100 MiB is created and freed.
            let ((id, offset), gone) = take(&mut places, 100 * MIB, 1).unwrap();
            assert_eq!((id, gone), (ExtentId(1), 0));
            places.free(id, offset);
            assert_eq!(places.take_idle_for_long(), []);
        }
    }

    #[test]
    fn an_object_near_the_bound_gets_all_free_memory() {
        let mut places = places(100 * MIB);
        let small = take(&mut places, 50 << 10, 1).unwrap().0;
        let ((id, offset), _) = take(&mut places, 60 * MIB, 2).unwrap();
        assert!(take(&mut places, 60 * MIB, 3).is_none());
        places.free(id, offset);
        assert!(take(&mut places, 60 * MIB, 3).is_some());
        places.free(small.0, small.1);
        assert!(take(&mut places, 40 * MIB, 4).is_some());
        assert_eq!(places.stats().mapped_bytes, 100 * MIB);
        assert!(take(&mut places, 1, 0).is_none());
    }

    #[test]
    fn a_retired_writer_keeps_its_extent_until_its_last_object() {
        let mut places = places(1024 * MIB);
        let kept = take(&mut places, 50 << 10, 1).unwrap().0;
        let large = take(&mut places, 5 * MIB, 1).unwrap().0;
        places.free(large.0, large.1);
        assert_eq!(places.retire(WriterId(1)), [large.0]);
        assert!(places.free(kept.0, kept.1));
        [kept.0, large.0].iter().for_each(|id| places.left(*id));
        assert_eq!(places.stats(), ArenaStats::default());
    }
}
