//! The choice of a source for each receiver. A broadcast consists of these choices.
//!
//! Computes with numbers about holders. It does not depend on how they were measured.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{id::NodeId, pipeline::frame_bytes, reduce::cost::Link, time::Instant};

/// A holder that could send, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The holder.
    pub node: NodeId,
    /// Relays between the holder and a copy that needs none; zero for complete copies, and for
    /// copies that a client or reduce is producing.
    pub depth: u32,
    /// Number of receivers that it feeds; slow ones count less.
    pub load: u32,
    /// Whether its copy is complete.
    pub complete: bool,
    /// Whether its copy is pinned. Such a holder gets more requests than others.
    pub pinned: bool,
    /// Whether it failed this requester before. It is chosen only if no other node has the object.
    pub avoided: bool,
    /// Distance from the requester, as [`crate::place::Place::distance`].
    pub distance: u8,
    /// One of its receivers that is further from it than the requester is.
    pub serves_remote: Option<NodeId>,
    /// Its known rate.
    pub speed: SourceSpeed,
    /// Predicted end of all transfers, of all objects, that the owner has assigned to it.
    pub busy_until: Instant,
}

impl Candidate {
    /// A candidate with a complete copy that feeds no node.
    pub fn idle(node: NodeId) -> Self {
        Self {
            node,
            depth: 0,
            load: 0,
            complete: true,
            pinned: false,
            avoided: false,
            distance: 0,
            serves_remote: None,
            speed: SourceSpeed::default(),
            busy_until: Instant::default(),
        }
    }
}

/// Sending rate of a node compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceSpeed {
    /// Factor by which it is slower than others; 1 if unknown.
    pub slowness: u64,
    /// Whether it currently sends nothing to its receivers.
    pub is_stalled: bool,
}

impl Default for SourceSpeed {
    fn default() -> Self {
        Self { slowness: 1, is_stalled: false }
    }
}

/// The source of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The source.
    pub node: NodeId,
    /// Why it was chosen.
    pub reason: Reason,
    /// The receiver of the source that the requester must feed from now on.
    pub insert_before: Option<NodeId>,
    /// Predicted nanoseconds until the requester has the whole object.
    pub predicted_ns: u64,
    /// Whether it failed the requester before or is stalled, and no other holder is left.
    pub is_last_resort: bool,
}

/// Why a source was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No other node has the object.
    OnlyHolder,
    /// Its copy is complete and it feeds no node.
    IdleComplete,
    /// It is a relay that feeds no node yet. This is cheaper than a second receiver of a complete
    /// copy.
    IdleRelay {
        /// Number of relays between it and a complete copy.
        depth: u32,
    },
    /// Every holder feeds another node; this one is predicted to finish first.
    LeastLoaded {
        /// Number of receivers that it feeds already.
        load: u32,
        /// Predicted nanoseconds until the requester has the whole object.
        predicted_ns: u64,
    },
    /// It feeds a node further away, which from now on receives the object from the requester.
    Insert {
        /// The node that the requester will feed.
        receiver: NodeId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyHolder => f.write_str("only holder"),
            Self::IdleComplete => f.write_str("complete and idle"),
            Self::IdleRelay { depth } => write!(f, "idle relay at depth {depth}"),
            Self::LeastLoaded { load, predicted_ns } => {
                write!(f, "least loaded: {load} receivers, predicted {predicted_ns} ns")
            }
            Self::Insert { receiver } => {
                write!(f, "near: hands over its more distant receiver {receiver}")
            }
        }
    }
}

/// The part of a transfer that a pinned copy is predicted to take longer.
const PINNED_PART: u64 = 4;

/// Chooses the source that is predicted to deliver `bytes` soonest; `None` without candidates.
///
/// A receiver behind `depth` relays begins that many hops late, and a source that feeds `load`
/// others divides its link. The prediction is `(depth + 1) * (L + frame / B) + (load + 1) * S / B`,
/// and a quarter of `S / B` more for a pinned copy: without it, a reader that is an object behind
/// the others finds the maker idle for that object, and the maker sends every object twice.
/// Large objects therefore form a chain, small ones a shallow tree. Some holder is always chosen.
///
/// Ties are broken in this order: complete copies, smaller depth, cached before pinned copies, the
/// holder whose assigned transfers of all objects end first, the lower id. Without the last but
/// one, readers of many objects would all choose the same holder each time and queue there.
///
/// Places come first. While a node in the requester's rack has some of the object, no node outside
/// is chosen, and next comes the requester's pod. An object therefore enters each group once,
/// whatever the number of readers. If that node already feeds a node further away, the requester is
/// inserted between the two when the prediction is better. Otherwise the order of requests would
/// determine how often an object crosses between groups.
///
/// A source that is known to be slow is predicted to take that many times longer, and counts as the
/// most distant: it becomes a leaf. A stalled source comes last, with the sources that failed the
/// requester.
///
/// Source: the receiver-driven broadcast of Hoplite, SIGCOMM 2021, section 3.3, in which a sending
/// holder is locked. Here load is a cost instead, so that a late receiver never waits for a source
/// to become free.
pub fn choose_source(candidates: &[Candidate], bytes: u64, link: Link) -> Option<Choice> {
    let rank = |(candidate, predicted): &(Candidate, Predicted)| {
        (
            candidate.avoided || candidate.speed.is_stalled,
            candidate.distance.max(if candidate.speed.slowness > 1 { u8::MAX } else { 0 }),
            predicted.ns,
            predicted.insert_before,
            !candidate.complete,
            candidate.depth,
            candidate.pinned,
            candidate.busy_until,
            candidate.node,
        )
    };
    let predicted =
        candidates.iter().map(|candidate| (*candidate, predict(candidate, bytes, link)));
    let (best, Predicted { ns, insert_before }) = predicted.min_by_key(rank)?;
    let reason = match (insert_before, candidates.len(), best.load, best.complete) {
        (Some(receiver), ..) => Reason::Insert { receiver },
        (_, 1, ..) => Reason::OnlyHolder,
        (_, _, 0, true) => Reason::IdleComplete,
        (_, _, 0, false) => Reason::IdleRelay { depth: best.depth },
        (_, _, load, _) => Reason::LeastLoaded { load, predicted_ns: ns },
    };
    let is_last_resort = best.avoided || best.speed.is_stalled;
    Some(Choice { node: best.node, reason, insert_before, predicted_ns: ns, is_last_resort })
}

/// Predicted nanoseconds until a receiver of the candidate has all `bytes`, as compared by
/// [`choose_source`].
pub fn predicted_ns(candidate: &Candidate, bytes: u64, link: Link) -> u64 {
    predict(candidate, bytes, link).ns
}

struct Predicted {
    ns: u64,
    insert_before: Option<NodeId>,
}

fn predict(candidate: &Candidate, bytes: u64, link: Link) -> Predicted {
    let transfer = |bytes: u64| u64::try_from(link.transfer_ns(bytes)).unwrap_or(u64::MAX);
    let hop = link.latency_ns.saturating_add(transfer(bytes.min(frame_bytes(bytes, link))));
    let hops = u64::from(candidate.depth).saturating_add(1);
    let load = u64::from(candidate.load);
    let alone = transfer(bytes).saturating_mul(candidate.speed.slowness);
    // The holder of a pinned copy serves the readers of its other objects too. A relay that has a
    // copy of this one spares it, for a few hops more.
    let spared = if candidate.pinned { alone / PINNED_PART } else { 0 };
    let divided_by = |shares: u64| alone.saturating_mul(shares).saturating_add(spared);
    let beside = hop.saturating_mul(hops).saturating_add(divided_by(load.saturating_add(1)));
    // On a request from the owner, the receiver ends one transfer and begins another: two round
    // trips.
    let told = hops.saturating_add(4);
    let instead = hop.saturating_mul(told).saturating_add(divided_by(load.max(1)));
    match candidate.serves_remote.filter(|_| !candidate.avoided) {
        Some(receiver) if instead < beside => {
            Predicted { ns: instead, insert_before: Some(receiver) }
        }
        _ => Predicted { ns: beside, insert_before: None },
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;

    const GIGABIT: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

    fn complete(node: u64, load: u32) -> Candidate {
        Candidate { load, ..Candidate::idle(NodeId(node)) }
    }

    fn relay(node: u64, depth: u32, load: u32) -> Candidate {
        Candidate { depth, complete: false, ..complete(node, load) }
    }

    /// The source and the reason.
    fn choose(candidates: &[Candidate], bytes: u64) -> Option<(NodeId, Reason)> {
        choose_source(candidates, bytes, GIGABIT).map(|choice| (choice.node, choice.reason))
    }

    #[test]
    fn nobody_has_it() {
        assert_eq!(choose(&[], 1), None);
    }

    #[test]
    fn an_idle_complete_copy_comes_first() {
        let chosen = choose(&[relay(1, 1, 0), complete(2, 0)], 1 << 20);
        assert_eq!(chosen, Some((NodeId(2), Reason::IdleComplete)));
    }

    #[test]
    fn of_two_idle_copies_the_received_one_spares_the_source() {
        let source = Candidate { pinned: true, ..complete(1, 0) };
        let (node, _) = choose(&[source, complete(2, 0)], 1 << 20).unwrap();
        assert_eq!(node, NodeId(2));
    }

    #[test]
    fn a_large_object_rather_comes_through_a_relay_than_from_a_busy_copy() {
        let chosen = choose(&[complete(1, 1), relay(2, 1, 0)], 256 << 20);
        assert_eq!(chosen, Some((NodeId(2), Reason::IdleRelay { depth: 1 })));
    }

    /// The first reader has it all and feeds one, and the last one still receives. The maker feeds
    /// nobody, but sends other objects.
    #[test]
    fn a_reader_that_is_behind_receives_from_the_last_of_the_others() {
        let maker = Candidate { pinned: true, ..complete(1, 0) };
        let (node, reason) = choose(&[maker, complete(2, 1), relay(3, 3, 0)], 8 << 20).unwrap();
        assert_eq!((node, reason), (NodeId(3), Reason::IdleRelay { depth: 3 }));
        // Many relays take longer than they spare.
        let (node, _) = choose(&[maker, complete(2, 1), relay(3, 3, 0)], 64 << 10).unwrap();
        assert_eq!(node, NodeId(1));
    }

    #[test]
    fn a_small_object_rather_comes_from_a_busy_copy_than_through_many_relays() {
        let (node, reason) = choose(&[complete(1, 1), relay(2, 9, 0)], 128 << 10).unwrap();
        assert_eq!(node, NodeId(1));
        assert!(matches!(reason, Reason::LeastLoaded { load: 1, .. }));
    }

    #[test]
    fn a_source_that_failed_the_requester_is_the_last_resort() {
        let failed = Candidate { avoided: true, ..complete(1, 0) };
        assert_eq!(choose(&[failed], 1), Some((NodeId(1), Reason::OnlyHolder)));
        let (node, _) = choose(&[failed, relay(2, 30, 9)], 1).unwrap();
        assert_eq!(node, NodeId(2));
    }

    #[test]
    fn a_slow_node_is_a_leaf_and_a_stalled_one_the_last_resort() {
        let slow =
            Candidate { speed: SourceSpeed { slowness: 10, is_stalled: false }, ..complete(1, 0) };
        let stalled =
            Candidate { speed: SourceSpeed { slowness: 1, is_stalled: true }, ..complete(3, 0) };
        let (node, _) = choose(&[slow, relay(2, 3, 4)], 16 << 20).unwrap();
        assert_eq!(node, NodeId(2), "a relay that feeds four others is sooner");
        let (node, _) = choose(&[stalled, slow], 16 << 20).unwrap();
        assert_eq!(node, NodeId(1));
        let only = choose_source(&[stalled], 16 << 20, GIGABIT).unwrap();
        assert!(only.is_last_resort);
        let far = Candidate { distance: 1, ..complete(4, 0) };
        let (node, _) = choose(&[slow, far], 16 << 20).unwrap();
        assert_eq!(node, NodeId(4), "a slow neighbour is no reason to stay in the rack");
    }

    /// Receivers that request one after another while no transfer ends; returns the depth of their
    /// tree.
    fn depth_of_broadcast(receivers: u64, bytes: u64) -> u32 {
        let mut holders: Vec<Candidate> = vec![complete(0, 0)];
        for receiver in 1..=receivers {
            let (source, _) = choose(&holders, bytes).unwrap();
            let source = holders.iter_mut().find(|holder| holder.node == source).unwrap();
            source.load += 1;
            let depth = source.depth + 1;
            holders.push(relay(receiver, depth, 0));
        }
        holders.iter().map(|holder| holder.depth).max().unwrap()
    }

    #[test]
    fn everybody_at_once_forms_a_chain_of_large_and_a_bush_of_small_objects() {
        assert_eq!(depth_of_broadcast(7, 256 << 20), 7);
        assert!(depth_of_broadcast(7, 66 << 10) <= 4);
        // A relay costs 0.6 ms, and a second receiver of the same source 268 ms: the chain ends
        // where they are equal.
        assert!((400..450).contains(&depth_of_broadcast(1000, 32 << 20)));
    }

    #[test]
    fn somebody_of_the_same_rack_comes_before_an_idle_copy_in_another() {
        let elsewhere = Candidate { distance: 1, ..complete(1, 0) };
        let (node, _) = choose(&[elsewhere, relay(2, 5, 3)], 32 << 20).unwrap();
        assert_eq!(node, NodeId(2));
        let failed = Candidate { avoided: true, ..relay(2, 1, 0) };
        let (node, _) = choose(&[elsewhere, failed], 32 << 20).unwrap();
        assert_eq!(node, NodeId(1), "who failed the asker is the last resort in its rack too");
    }

    #[test]
    fn a_receiver_steps_between_its_rack_and_the_next() {
        let receiver = NodeId(9);
        let busy = Candidate { serves_remote: Some(receiver), ..relay(2, 1, 1) };
        let choice = choose_source(&[complete(1, 1), busy], 32 << 20, GIGABIT).unwrap();
        assert_eq!((choice.node, choice.insert_before), (NodeId(2), Some(receiver)));
        assert_eq!(choice.reason, Reason::Insert { receiver });

        let idle = choose_source(&[relay(3, 4, 0), busy], 32 << 20, GIGABIT).unwrap();
        assert_eq!(
            (idle.node, idle.insert_before),
            (NodeId(3), None),
            "without need no receiver is moved"
        );
        let small = choose_source(&[busy], 32 << 10, GIGABIT).unwrap();
        assert_eq!(small.insert_before, None, "a small object arrives before a redirect would");
        let avoided = Candidate { avoided: true, ..busy };
        assert_eq!(choose_source(&[avoided], 32 << 20, GIGABIT).unwrap().insert_before, None);
        let rack = Candidate { distance: 1, ..busy };
        let choice =
            choose_source(&[Candidate { distance: 2, ..complete(1, 0) }, rack], 32 << 20, GIGABIT);
        let choice = choice.unwrap();
        assert_eq!(
            (choice.node, choice.insert_before),
            (NodeId(2), Some(receiver)),
            "as between pods"
        );
    }
}
