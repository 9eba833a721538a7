//! Order of the holders of an object that has many, by how likely each is the best source.
//!
//! Each place has its own order: the least loaded first, then the nearest to a root. The depth
//! dates from when a holder was last ranked; changes above it do not update it. Knows no rates;
//! does not choose.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound;

use crate::{
    id::{NodeId, mix},
    members::Members,
    place::Place,
};

/// Rank of a holder among those of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) load: u32,
    pub(super) depth: u32,
    pub(super) partial: bool,
    pub(super) pinned: bool,
    /// Orders equal holders differently for each object, so that readers of many objects do not all
    /// use the same few holders.
    pub(super) tie: u32,
    pub(super) at: u32,
}

impl Rank {
    /// A rank after all holders with the same load.
    pub(super) const fn behind(self) -> Self {
        Self { depth: u32::MAX, partial: true, pinned: true, tie: u32::MAX, at: u32::MAX, ..self }
    }
}

#[derive(Debug, Default)]
pub(super) struct Ranking {
    /// The version of the members' places that this order uses.
    pub(super) places: u64,
    salt: u64,
    all: BTreeMap<Option<Place>, BTreeSet<Rank>>,
    spots: Vec<RankedNode>,
    /// Spots whose place must be looked up.
    later: Vec<u32>,
    /// The number of transfers that leave each group of places.
    crossings: BTreeMap<Place, u64>,
}

#[derive(Clone, Debug, Default)]
struct RankedNode {
    place: Option<Place>,
    rank: Option<Rank>,
    /// The groups that the transfer to it leaves.
    left: Vec<Place>,
    is_later: bool,
}

impl Ranking {
    pub(super) fn new(places: u64, salt: u64) -> Self {
        Self { places, salt, ..Self::default() }
    }

    pub(super) fn tie(&self, node: NodeId) -> u32 {
        mix(node.0 ^ self.salt) as u32
    }

    /// The places of holders, each with its distance from `place`, nearest first.
    pub(super) fn around(&self, place: Option<Place>) -> Vec<(u8, Option<Place>)> {
        let far = |other: &Option<Place>| place.zip(*other).map_or(0, |(a, b)| a.distance(&b));
        let mut places: Vec<_> = self.all.keys().map(|other| (far(other), *other)).collect();
        places.sort_unstable_by_key(|(distance, _)| *distance);
        places
    }

    /// The next holder of a place, in order.
    pub(super) fn next(&self, place: &Option<Place>, after: Option<Rank>) -> Option<Rank> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.get(place)?.range((begin, Bound::Unbounded)).next().copied()
    }

    pub(super) const fn crossings(&self) -> &BTreeMap<Place, u64> {
        &self.crossings
    }

    /// Marks a spot that is new or has another source.
    pub(super) fn place_later(&mut self, at: u32) {
        if !core::mem::replace(&mut self.spot(at).is_later, true) {
            self.later.push(at);
        }
    }

    pub(super) fn take_later(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.later)
    }

    /// Looks up the place of a node, and counts the transfer to it.
    pub(super) fn place(
        &mut self,
        at: u32,
        node: NodeId,
        source: Option<NodeId>,
        members: &Members,
    ) {
        let rank = self.spot(at).rank;
        self.set(at, None);
        (self.spot(at).place, self.spot(at).is_later) = (members.place(node), false);
        self.set(at, rank);
        self.stop_crossing(at);
        let left = source.map_or_else(Vec::new, |source| groups_left(source, node, members));
        for group in &left {
            *self.crossings.entry(*group).or_default() += 1;
        }
        self.spot(at).left = left;
    }

    /// Stops counting the transfer to a spot.
    pub(super) fn stop_crossing(&mut self, at: u32) {
        for group in core::mem::take(&mut self.spot(at).left) {
            if let Some(count) = self.crossings.get_mut(&group) {
                *count -= 1;
            }
        }
    }

    pub(super) fn forget(&mut self, at: u32) {
        self.stop_crossing(at);
        self.set(at, None);
        self.spot(at).place = None;
    }

    /// Sets the rank of a spot; `None` if it is not a holder.
    pub(super) fn set(&mut self, at: u32, rank: Option<Rank>) {
        let RankedNode { place, rank: before, .. } = *self.spot(at);
        if before == rank {
            return;
        }
        if let Some(before) = before
            && let Some(ranks) = self.all.get_mut(&place)
        {
            ranks.remove(&before);
            if ranks.is_empty() {
                self.all.remove(&place);
            }
        }
        if let Some(rank) = rank {
            self.all.entry(place).or_default().insert(rank);
        }
        self.spot(at).rank = rank;
    }

    fn spot(&mut self, at: u32) -> &mut RankedNode {
        let len = self.spots.len().max(at as usize + 1);
        self.spots.resize_with(len, RankedNode::default);
        &mut self.spots[at as usize]
    }
}

/// The groups of places that a transfer leaves.
pub(super) fn groups_left(from: NodeId, to: NodeId, members: &Members) -> Vec<Place> {
    let places = members.place(from).zip(members.place(to));
    let Some((from, to)) = places else { return Vec::new() };
    let levels = from.parts_at(&to).map_or(0..0, |level| level..from.depth());
    levels.map(|level| from.outer(level)).collect()
}
