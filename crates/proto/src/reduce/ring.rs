//! A reduce whose result its contributors also want: reduce-scatter, then all-gather, in a ring.
//!
//! Each contributor has a seat in the ring and receives from the next seat. Part 0 of four, from
//! left to right; the other parts take the same path, shifted by one seat each:
//!
//! ```text
//!   seat 3 --------> seat 2 --------> seat 1 --------> seat 0 -------> seat 3 ------> seat 2 ...
//!   sends inputs     folds its own    folds its own    completes it    receives it    receives it
//! ```
//!
//! A seat first folds for the part of the next seat, for which it receives no stream. Then it folds
//! for the seat after that, and so on around the ring; its own part comes last. Large objects have
//! more parts than seats, and the ring completes them in rounds. A seat therefore buffers partial
//! sums of only the few parts in progress.
//!
//! With n seats every link carries 2 (n - 1) / n of the object, while a chain to one node and a
//! broadcast from there carry it twice. Every seat has only a few incoming and outgoing streams at
//! a time: more would each be slow, and cost more processor time. If the coordinator has inputs
//! itself, it has a seat. Otherwise it is between the last and the first seat when parts circulate.
//! In both cases its copy is the pinned one.
//!
//! If a seat fails, the whole attempt fails, and the next one is a tree. Does not depend on
//! messages or time.
//!
//! Source: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, JPDC 2009. Here the ring
//! consists of the nodes that happen to have the inputs, and a relay forwards frames instead of
//! parts.

use alloc::{collections::BTreeSet, vec::Vec};
use core::ops::{Range, RangeInclusive};

use super::cost::Link;
use crate::{
    error::is_reducible,
    id::{Instance, NodeId},
    limits::{BLOCK_BYTES, FRAME_BYTES_MAX},
    message::{FoldKey, FoldOrder, RingOrder},
    pipeline::{self, is_frame_length},
};

/// Parts begin at multiples of this size in bytes: a whole number of blocks, and of elements of any
/// type.
pub const PART_ALIGN_BYTES: u64 = 64 * 1024;

/// Minimum size of a part: 2 ms at 1 Gbit/s. The streams of a smaller part cost more than its
/// bytes.
const PART_BYTES_MIN: u64 = 256 * 1024;

/// Number of seats. Two gain nothing, since a link carries one object in each direction in any
/// case. The maximum keeps orders short.
const SEATS: RangeInclusive<usize> = 3..=1024;

/// Maximum number of inputs of a ring reduce: every seat gets the list of all.
pub const INPUTS_MAX: usize = 1024;

/// Time to begin a fold and its stream: a message inside the node, a request and its reply.
const STEP_NS: u128 = 40_000;

/// Concurrent folds of one seat: one whose sums are fetched, and the next, which fetches from
/// another seat. With only one, every seat would wait until the next seat begins another.
pub const LANES: usize = 2;

/// Maximum size of a part in bytes. Each fold in progress buffers partial sums of this size. It
/// takes 34 ms at 1 Gbit/s, long compared with the start of a fold.
pub const PART_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Approximate number of frames of a part. Shorter frames cost more processor time. The delay until
/// a frame is complete matters only at the end, since a seat has other parts to forward meanwhile.
const FRAMES: u64 = 16;

/// Whether a ring over `contributors` nodes is faster for objects of `size` bytes.
///
/// A chain and an overlapping broadcast along another chain take about `2 S / B + n (L + f / B)`,
/// where f is a frame. The ring takes `2 S / B (n - 1) / n + 2 (n - 1) (L + o)`, where o is the
/// time to begin a fold and its stream.
pub fn is_gain(size: u64, contributors: usize, link: Link) -> bool {
    let (steps, contributors) =
        (2 * (contributors as u128).saturating_sub(1), contributors as u128);
    let hop = u128::from(link.latency_ns) + link.transfer_ns(pipeline::frame_bytes(size, link));
    let saved = 2 * link.transfer_ns(size) / contributors.max(1) + contributors * hop;
    SEATS.contains(&(contributors as usize))
        && u128::from(size) >= contributors * u128::from(PART_BYTES_MIN)
        && saved > steps * (u128::from(link.latency_ns) + STEP_NS)
}

/// Whether a reduce of `size` bytes at these `contributors`, called on `me`, runs as a ring rather
/// than as a tree.
///
/// It does if at least half of the other contributors want the result. The others will probably
/// request it soon, and then have it.
pub fn is_best(
    size: u64,
    contributors: &[NodeId],
    me: NodeId,
    link: Link,
    wants: &dyn Fn(NodeId) -> bool,
) -> bool {
    let (wanting, others) = askers(contributors, me, wants);
    is_gain(size, contributors.len(), link) && 2 * wanting >= others
}

/// Number of contributors except `me` that want the result, and number of all contributors except
/// `me`.
pub fn askers(
    contributors: &[NodeId],
    me: NodeId,
    wants: &dyn Fn(NodeId) -> bool,
) -> (usize, usize) {
    let others = contributors.iter().filter(|node| **node != me);
    (others.clone().filter(|node| wants(**node)).count(), others.count())
}

/// Frame size in bytes for an object of `size` bytes at so many seats.
pub fn frame_bytes(size: u64, contributors: usize) -> u64 {
    let part = size / contributors as u64;
    let frame = part.min(PART_BYTES_MAX) / FRAMES;
    1 << frame.clamp(BLOCK_BYTES, FRAME_BYTES_MAX).ilog2()
}

impl RingOrder {
    /// The seat of `node`.
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        self.contributors.iter().position(|(assigned, _)| *assigned == node)
    }

    /// Number of inputs.
    pub fn count(&self) -> u64 {
        self.contributors.iter().map(|(_, inputs)| inputs.len() as u64).sum()
    }

    /// The inputs of a seat.
    pub fn inputs(&self, rank: usize) -> &[Instance] {
        self.contributors.get(rank).map_or(&[], |(_, inputs)| inputs)
    }

    /// The fold that a seat begins as number `step`, counted from 0; `None` after the last.
    pub fn fold(&self, rank: usize, step: usize) -> Option<FoldOrder> {
        let contributors = self.contributors.len();
        let (round, turn) = (step / contributors, step % contributors);
        if round >= self.rounds() {
            return None;
        }
        let (next, maker) = ((rank + 1) % contributors, (rank + 1 + turn) % contributors);
        let part = round * contributors + maker;
        let position = if maker == rank { FoldKey::RESULT } else { rank as u32 };
        let (reduce, epoch, op) = (self.reduce, self.epoch, self.op);
        let key = FoldKey { reduce, epoch, segment: part as u32, position };
        // The first fold of a part has no child.
        let children = if turn == 0 {
            Vec::new()
        } else {
            Vec::from([(self.contributors[next].0, next as u32)])
        };
        let (dtype, inputs) = (self.meta.dtype()?, self.inputs(rank).to_vec());
        let (size, part, frame) = (self.meta.size, self.part(part), self.frame);
        let result = self.id.clone();
        Some(FoldOrder { key, result, inputs, children, op, dtype, size, part, frame })
    }

    /// The node that sends `node` the parts that it does not fold itself.
    pub fn source(&self, node: NodeId) -> NodeId {
        let (first, coordinator) = (self.contributors[0].0, self.reduce.node);
        let Some(rank) = self.rank(node) else { return first };
        let last = if self.rank(coordinator).is_some() { first } else { coordinator };
        self.contributors.get(rank + 1).map_or(last, |(next, _)| *next)
    }

    /// The byte ranges that `node` does not fold itself, in the order in which its source gets
    /// them.
    pub fn rest(&self, node: NodeId) -> Vec<Range<u64>> {
        let contributors = self.contributors.len();
        let (first, turns) =
            self.rank(node).map_or((0, contributors), |rank| (rank + 1, contributors - 1));
        let turns = move |round| {
            (0..turns).map(move |turn| round * contributors + (first + turn) % contributors)
        };
        (0..self.rounds()).flat_map(turns).map(|part| self.part(part)).collect()
    }

    /// Number of parts that each seat completes.
    fn rounds(&self) -> usize {
        let round = PART_BYTES_MAX * self.contributors.len() as u64;
        self.meta.size.div_ceil(round) as usize
    }

    fn part(&self, part: usize) -> Range<u64> {
        let size = self.meta.size;
        let (units, parts) =
            (size.div_ceil(PART_ALIGN_BYTES), (self.rounds() * self.contributors.len()) as u64);
        let start = |part: u64| (units * part / parts * PART_ALIGN_BYTES).min(size);
        start(part as u64)..start(part as u64 + 1)
    }

    /// Whether the order is well-formed, checked without any input.
    pub(crate) fn is_valid(&self) -> bool {
        let nodes: BTreeSet<NodeId> = self.contributors.iter().map(|(node, _)| *node).collect();
        let inputs: BTreeSet<Instance> =
            self.contributors.iter().flat_map(|(_, inputs)| inputs).copied().collect();
        let is_distinct =
            nodes.len() == self.contributors.len() && inputs.len() as u64 == self.count();
        self.meta.is_valid()
            && SEATS.contains(&self.contributors.len())
            && inputs.len() <= INPUTS_MAX
            && self.meta.size >= PART_BYTES_MIN * self.contributors.len() as u64
            && is_distinct
            && self.contributors.iter().all(|(_, inputs)| !inputs.is_empty())
            && self.instance.node == self.reduce.node
            && self.id.minter() == Some(self.reduce.node)
            && is_frame_length(self.frame)
            && self.meta.dtype().is_some_and(|dtype| is_reducible(self.op, dtype))
    }
}

#[cfg(test)]
mod tests {
    use alloc::{collections::BTreeMap, vec};

    use proptest::prelude::*;

    use super::*;
    use crate::{
        id::{ObjectId, ReduceId},
        message::Message,
        meta::{Dtype, Meta, Op},
    };

    const ME: NodeId = NodeId(1);
    const GIGABIT: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

    /// A ring of the nodes 1, 2, ... for `coordinator`.
    fn order(size: u64, contributors: usize, coordinator: u64) -> RingOrder {
        let coordinator = NodeId(coordinator);
        let rank = |number: u64| {
            let inputs = (0..=number % 3).map(|serial| Instance { node: NodeId(number), serial });
            (NodeId(number), inputs.collect())
        };
        RingOrder {
            reduce: ReduceId { node: coordinator, serial: 7 },
            epoch: 0,
            id: ObjectId::Minted { node: coordinator, serial: 8 },
            instance: Instance { node: coordinator, serial: 9 },
            meta: Meta::array(Dtype::Float32, vec![size / 4]).unwrap(),
            op: Op::Sum,
            frame: 64 * 1024,
            contributors: (1..=contributors as u64).map(rank).collect(),
        }
    }

    proptest! {
        #[test]
        fn parts_are_all_bytes_once_and_about_equal(units in 1..1_u64 << 20, contributors in 3..200_usize) {
            let size = units * 40_004;
            prop_assume!(size >= PART_BYTES_MIN * contributors as u64);
            let order = order(size, contributors, 0);
            // A node without a seat receives all parts.
            let parts = order.rest(NodeId(0));
            prop_assert!(parts.len().is_multiple_of(contributors));
            prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, size));
            prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(parts.iter().all(|part| part.start.is_multiple_of(PART_ALIGN_BYTES)));
            let length = |part: &Range<u64>| part.end - part.start;
            let most = parts.iter().map(length).max().unwrap();
            prop_assert!(most <= PART_BYTES_MAX + PART_ALIGN_BYTES);
            prop_assert!(parts.iter().all(|part| length(part) + 2 * PART_ALIGN_BYTES > most));
        }

        /// Goal: every byte of every input is in the result once, and every node gets the whole
        /// result.
        #[test]
        fn every_part_is_made_of_all_inputs_and_goes_round(
            units in 12..500_u64,
            contributors in 3..=20_usize,
            coordinator in 0..=20_u64,
        ) {
            let size = units * contributors as u64 * 40_000 / 4 * 4;
            prop_assume!(size >= PART_BYTES_MIN * contributors as u64);
            let order = order(size, contributors, coordinator);
            prop_assert!(order.is_valid());
            let steps = contributors * order.rounds();
            let folds = (0..contributors).flat_map(|rank| {
                let node = order.contributors[rank].0;
                (0..steps).map(move |step| (node, rank, step))
            });
            let mut all: BTreeMap<(NodeId, FoldKey), FoldOrder> = BTreeMap::new();
            for (node, rank, step) in folds {
                let fold = order.fold(rank, step).unwrap();
                prop_assert!(Message::Fold(fold.clone()).is_valid());
                prop_assert_eq!(fold.key.position == FoldKey::RESULT, step % contributors == contributors - 1);
                prop_assert_eq!(&fold.inputs, order.inputs(rank));
                prop_assert!(all.insert((node, fold.key), fold).is_none());
            }
            prop_assert!((0..contributors).all(|rank| order.fold(rank, steps).is_none()));
            let makes = all.extract_if(.., |(_, key), _| key.position == FoldKey::RESULT);
            let mut made: BTreeMap<NodeId, Vec<Range<u64>>> = BTreeMap::new();
            for ((node, key), mut fold) in makes.collect::<Vec<_>>() {
                let mut inputs: Vec<Instance> = fold.inputs.clone();
                let part = fold.part.clone();
                made.entry(node).or_default().push(part.clone());
                while let [(child, position)] = fold.children[..] {
                    let key = FoldKey { position, ..key };
                    fold = all.remove(&(child, key)).expect("a seat sends it");
                    prop_assert_eq!(&fold.part, &part);
                    inputs.extend(&fold.inputs);
                }
                let distinct: BTreeSet<Instance> = inputs.iter().copied().collect();
                prop_assert_eq!((inputs.len() as u64, distinct.len()), (order.count(), inputs.len()));
            }
            prop_assert!(all.is_empty(), "no seat wants {all:?}");
            // The path from source to source visits every seat before it returns.
            let (start, mut met) = (NodeId(coordinator), BTreeSet::new());
            let mut at = start;
            while met.insert(at) {
                let mut has = made.remove(&at).unwrap_or_default();
                has.extend(order.rest(at));
                has.sort_by_key(|part| part.start);
                prop_assert_eq!(&has, &order.rest(NodeId(u64::MAX)), "all, and each once");
                at = order.source(at);
            }
            prop_assert_eq!(at, start);
            let is_seat = order.rank(start).is_some();
            prop_assert_eq!(met.len(), contributors + usize::from(!is_seat));
        }
    }

    #[test]
    fn many_on_fast_links_are_better_off_with_a_tree() {
        let link = |latency_ns, gigabits: u64| Link {
            latency_ns,
            bytes_per_second: gigabits * 125_000_000,
        };
        let cases = [
            (8, 32, GIGABIT, true),
            (32, 256, GIGABIT, true),
            (8, 1, GIGABIT, false),
            (2, 32, GIGABIT, false),
            (8, 32, link(50_000, 10), true),
            (64, 32, link(50_000, 10), true),
            (64, 32, link(10_000, 100), false),
            (8, 32, link(10_000, 100), true),
            (8, 32, link(5_000, 400), false),
            (64, 32, link(5_000, 400), false),
        ];
        for (contributors, mebibytes, link, expected) in cases {
            assert_eq!(
                is_gain(mebibytes << 20, contributors, link),
                expected,
                "{contributors}, {mebibytes} MiB, {link}"
            );
        }
    }

    #[test]
    fn a_ring_needs_most_contributors_to_want_the_result() {
        let contributors = [1, 2, 3, 4, 5].map(NodeId);
        let best = |size: u64, contributors: &[NodeId], askers: &[u64]| {
            is_best(size, contributors, ME, GIGABIT, &|node| askers.contains(&node.0))
        };
        assert!(best(32 << 20, &contributors, &[2, 3, 4, 5]));
        assert!(best(32 << 20, &contributors, &[2, 3]), "half of the others");
        assert!(!best(32 << 20, &contributors, &[1, 2]), "the caller's own wish does not count");
        assert!(!best(1 << 20, &contributors, &[2, 3, 4, 5]), "too small");
        assert!(!best(32 << 20, &contributors[..2], &[2]), "two have nothing to divide");
        assert!(best(32 << 20, &contributors[1..], &[2, 3, 4, 5]), "the caller holds none itself");
    }

    #[test]
    fn a_broken_order_is_not_sound() {
        let sound = order(32 << 20, 4, 1);
        assert!(sound.is_valid());
        let mut orders = vec![sound.clone(); 6];
        orders[0].contributors[1].0 = orders[0].contributors[0].0;
        orders[1].contributors[1].1 = orders[1].contributors[0].1.clone();
        orders[2].contributors[0].1.clear();
        orders[3].instance.node = NodeId(2);
        orders[4].meta = Meta::bytes(32 << 20);
        orders[5].frame = 1;
        orders.push(RingOrder { contributors: sound.contributors[..2].to_vec(), ..sound.clone() });
        orders.push(order(1 << 20, 5, 1));
        for order in orders {
            assert!(!order.is_valid(), "{order:?}");
        }
    }
}
