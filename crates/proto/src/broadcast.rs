//! Which node a receiver takes an object from: the whole of a broadcast follows from these answers.
//!
//! Knows numbers about holders; does not know how they were learned or that there is a network.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{id::NodeId, pipeline::frame_bytes, reduce::cost::Link, time::Instant};

/// A holder that could send, and what it would cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The holder.
    pub node: NodeId,
    /// Relays between the holder and a copy that needs none; zero for complete and for growing original copies.
    pub depth: u32,
    /// Receivers that it feeds now; those that are known to be slow count for less.
    pub load: u32,
    /// Whether all of it is there.
    pub complete: bool,
    /// Whether it is where the object was made, which is asked more than others.
    pub origin: bool,
    /// Whether it failed this asker before: taken only if no other node has the object.
    pub avoided: bool,
    /// How far from the asker it is, as [`crate::place::Place::distance`].
    pub distance: u8,
    /// A receiver further from it than the asker is, among those that it feeds.
    pub feeds_far: Option<NodeId>,
    /// How fast it is known to be.
    pub pace: Pace,
    /// Predicted end of the transfers that the chooser has assigned to it, of all objects.
    pub busy_until: Instant,
}

impl Candidate {
    /// A complete copy that feeds no node.
    pub fn idle(node: NodeId) -> Self {
        Self {
            node,
            depth: 0,
            load: 0,
            complete: true,
            origin: false,
            avoided: false,
            distance: 0,
            feeds_far: None,
            pace: Pace::default(),
            busy_until: Instant::default(),
        }
    }
}

/// How fast a node is known to send, beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How many times slower than others it is; 1 if it is not known to be slow.
    pub slowness: u64,
    /// Whether it sends nothing at all to its receivers at present.
    pub is_stalled: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { slowness: 1, is_stalled: false }
    }
}

/// Which node a receiver takes an object from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The sender.
    pub node: NodeId,
    /// Why this one.
    pub reason: Reason,
    /// Which node the receiver is to feed from now on in the sender's stead.
    pub takes_over: Option<NodeId>,
    /// Predicted nanoseconds until the asker has it all.
    pub predicted_ns: u64,
    /// Whether it failed the asker before or is stalled: no other holder is left.
    pub is_last_resort: bool,
}

/// Why a sender was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// No other node has it.
    OnlyHolder,
    /// It has everything and feeds no node.
    IdleComplete,
    /// It relays what it receives and feeds no node yet: cheaper than a second receiver at a complete copy.
    IdleRelay {
        /// Relays between it and a complete copy.
        depth: u32,
    },
    /// Every holder feeds another node; this one is predicted to finish first.
    LeastLoaded {
        /// Receivers it feeds already.
        load: u32,
        /// Predicted nanoseconds until the asker has it all.
        predicted_ns: u64,
    },
    /// It feeds a node further away, which from now on takes the object from the asker.
    TakesOver {
        /// Which node the asker will feed.
        receiver: NodeId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyHolder => f.write_str("only holder"),
            Self::IdleComplete => f.write_str("complete and idle"),
            Self::IdleRelay { depth } => write!(f, "idle relay {depth} deep"),
            Self::LeastLoaded { load, predicted_ns } => {
                write!(f, "least loaded: feeds {load}, predicted {predicted_ns} ns")
            }
            Self::TakesOver { receiver } => {
                write!(f, "near: hands over its receiver {receiver} that is further away")
            }
        }
    }
}

/// Chooses the sender that is predicted to serve `bytes` soonest; none if there is no candidate.
///
/// A receiver behind `depth` relays begins that many hops late, and a sender that feeds `load` others divides its
/// link: the prediction is `(depth + 1) * (L + frame / B) + (load + 1) * S / B`. Large objects therefore form a
/// chain, small ones a bush. It is a preference, never a lock: some holder is always chosen. On a tie complete
/// copies come before partial ones, then the shallower, then those that were received rather than made, then the holder whose
/// assigned transfers of all objects end first, then the lower id. Without the last but one, readers of many objects would all
/// choose the same holder each time, and fall behind it.
///
/// Places come first: as long as a node of the asker's own rack has some of it, no other is taken, and then one of its own
/// pod, so that an object comes into a group once however many want it there. Where that one feeds a node further away
/// already, the asker steps in between, if that is predicted to be sooner: otherwise the order in which receivers ask would
/// decide how often an object goes from group to group.
///
/// A sender that is known to be slow is predicted to take so many times longer, and its place near the asker counts for
/// nothing: it becomes a leaf. One that is stalled comes last, with those that failed the asker.
///
/// Source: the receiver-driven broadcast of Hoplite, SIGCOMM 2021, section 3.3, in which a holder that serves is
/// locked; here load is a cost instead, so that a late receiver never waits for a sender to become free.
pub fn choose_source(candidates: &[Candidate], bytes: u64, link: Link) -> Option<Choice> {
    let rank = |(candidate, predicted): &(Candidate, Predicted)| {
        (
            candidate.avoided || candidate.pace.is_stalled,
            candidate.distance.max(if candidate.pace.slowness > 1 { u8::MAX } else { 0 }),
            predicted.ns,
            predicted.takes_over,
            !candidate.complete,
            candidate.depth,
            candidate.origin,
            candidate.busy_until,
            candidate.node,
        )
    };
    let predicted =
        candidates.iter().map(|candidate| (*candidate, predict(candidate, bytes, link)));
    let (best, Predicted { ns, takes_over }) = predicted.min_by_key(rank)?;
    let reason = match (takes_over, candidates.len(), best.load, best.complete) {
        (Some(receiver), ..) => Reason::TakesOver { receiver },
        (_, 1, ..) => Reason::OnlyHolder,
        (_, _, 0, true) => Reason::IdleComplete,
        (_, _, 0, false) => Reason::IdleRelay { depth: best.depth },
        (_, _, load, _) => Reason::LeastLoaded { load, predicted_ns: ns },
    };
    let is_last_resort = best.avoided || best.pace.is_stalled;
    Some(Choice { node: best.node, reason, takes_over, predicted_ns: ns, is_last_resort })
}

/// Predicted nanoseconds until a receiver of a candidate has all `bytes`, as [`choose_source`] compares them.
pub fn predicted_ns(candidate: &Candidate, bytes: u64, link: Link) -> u64 {
    predict(candidate, bytes, link).ns
}

struct Predicted {
    ns: u64,
    takes_over: Option<NodeId>,
}

fn predict(candidate: &Candidate, bytes: u64, link: Link) -> Predicted {
    let transfer = |bytes: u64| u64::try_from(link.transfer_ns(bytes)).unwrap_or(u64::MAX);
    let hop = link.latency_ns.saturating_add(transfer(bytes.min(frame_bytes(bytes, link))));
    let hops = u64::from(candidate.depth).saturating_add(1);
    let load = u64::from(candidate.load);
    let alone = transfer(bytes).saturating_mul(candidate.pace.slowness);
    let divided_by = |shares: u64| alone.saturating_mul(shares);
    let beside = hop.saturating_mul(hops).saturating_add(divided_by(load.saturating_add(1)));
    // Told by the owner, the receiver ends one transfer and begins another: two round trips.
    let told = hops.saturating_add(4);
    let instead = hop.saturating_mul(told).saturating_add(divided_by(load.max(1)));
    match candidate.feeds_far.filter(|_| !candidate.avoided) {
        Some(receiver) if instead < beside => Predicted { ns: instead, takes_over: Some(receiver) },
        _ => Predicted { ns: beside, takes_over: None },
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

    /// The sender and why.
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
        let source = Candidate { origin: true, ..complete(1, 0) };
        let (node, _) = choose(&[source, complete(2, 0)], 1 << 20).unwrap();
        assert_eq!(node, NodeId(2));
    }

    #[test]
    fn a_large_object_rather_comes_through_a_relay_than_from_a_busy_copy() {
        let chosen = choose(&[complete(1, 1), relay(2, 1, 0)], 256 << 20);
        assert_eq!(chosen, Some((NodeId(2), Reason::IdleRelay { depth: 1 })));
    }

    #[test]
    fn a_small_object_rather_comes_from_a_busy_copy_than_through_many_relays() {
        let (node, reason) = choose(&[complete(1, 1), relay(2, 9, 0)], 128 << 10).unwrap();
        assert_eq!(node, NodeId(1));
        assert!(matches!(reason, Reason::LeastLoaded { load: 1, .. }));
    }

    #[test]
    fn who_failed_the_asker_is_the_last_resort() {
        let failed = Candidate { avoided: true, ..complete(1, 0) };
        assert_eq!(choose(&[failed], 1), Some((NodeId(1), Reason::OnlyHolder)));
        let (node, _) = choose(&[failed, relay(2, 30, 9)], 1).unwrap();
        assert_eq!(node, NodeId(2));
    }

    #[test]
    fn a_slow_node_is_a_leaf_and_a_stalled_one_the_last_resort() {
        let slow = Candidate { pace: Pace { slowness: 10, is_stalled: false }, ..complete(1, 0) };
        let stalled = Candidate { pace: Pace { slowness: 1, is_stalled: true }, ..complete(3, 0) };
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

    /// Receivers that ask one after the other while nothing finishes: the depth of the tree they form.
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
        // A relay costs 0.6 ms and a second receiver of the same sender 268 ms: the chain ends where they are equal.
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
        let busy = Candidate { feeds_far: Some(receiver), ..relay(2, 1, 1) };
        let choice = choose_source(&[complete(1, 1), busy], 32 << 20, GIGABIT).unwrap();
        assert_eq!((choice.node, choice.takes_over), (NodeId(2), Some(receiver)));
        assert_eq!(choice.reason, Reason::TakesOver { receiver });

        let idle = choose_source(&[relay(3, 4, 0), busy], 32 << 20, GIGABIT).unwrap();
        assert_eq!(
            (idle.node, idle.takes_over),
            (NodeId(3), None),
            "without need no receiver is moved"
        );
        let small = choose_source(&[busy], 32 << 10, GIGABIT).unwrap();
        assert_eq!(small.takes_over, None, "a small object is there before its receiver is told");
        let avoided = Candidate { avoided: true, ..busy };
        assert_eq!(choose_source(&[avoided], 32 << 20, GIGABIT).unwrap().takes_over, None);
        let rack = Candidate { distance: 1, ..busy };
        let choice =
            choose_source(&[Candidate { distance: 2, ..complete(1, 0) }, rack], 32 << 20, GIGABIT);
        let choice = choice.unwrap();
        assert_eq!(
            (choice.node, choice.takes_over),
            (NodeId(2), Some(receiver)),
            "as between pods"
        );
    }
}
