//! One survey: which measurements to take between hosts, and which hosts share a link according to the results.
//!
//! Two hosts of one rack reach each other at the full rate of a host, however much traffic leaves the rack at the same
//! time. Two hosts in different racks share the links of their racks with all other traffic that crosses them.
//! Therefore, in each round of a survey, each node exchanges a burst with one other node, all at once. The pairs are
//! drawn from a pool ([`crate::pool`]). On an even network a survey finds no groups.
//!
//! Racks may be in pods that share a link too, and the first groups found may be racks or pods. Each group is then
//! surveyed on its own until none contains groups: these are the innermost groups. Finally, such groups meet as
//! wholes, with the same number of nodes at once; only the links of outer groups can slow them down.
//!
//! Knows nodes and times; does not know messages, or when a survey is held.

use alloc::{collections::BTreeMap, vec, vec::Vec};

use hoplite_proto::{id::NodeId, place::LEVELS_MAX};

use crate::pool::{Outcome, Pool, Times, UNITS_MIN};

/// Minimum number of nodes: fewer cannot form two groups of two.
pub const NODES_MIN: usize = UNITS_MIN;

/// Maximum number of nodes: with more, each pair meets too rarely, and places must be configured by a file.
pub const NODES_MAX: usize = 64;

/// Bytes of a burst in the first round, after which the rate is known.
pub(crate) const BURST_BYTES_MIN: u64 = 256 * 1024;

/// Bytes of one message of a burst.
pub const FILLING_BYTES: u64 = 64 * 1024;

/// Bytes of the longest burst.
pub(crate) const BURST_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// How long an unhindered burst takes: several times as long as a busy host delays a process.
const BURST_NS: u64 = 16_000_000;

/// Initial rounds that only measure the rate, each better than the one before.
const WARMING: usize = 2;

/// The pairs of a round; both nodes of a pair send a burst to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Pairs of nodes; each node is in at most one.
    pub(crate) pairs: Vec<(NodeId, NodeId)>,
    /// The size of each burst.
    pub(crate) bytes: u64,
}

/// A group that a survey has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundGroup {
    /// Nodes that share a link to all others; at least two.
    pub(crate) nodes: Vec<NodeId>,
    /// How many transfers at the full rate of a host the link carries at once.
    pub(crate) carries: u8,
}

/// Groups that together contain all nodes.
type Level = Vec<Vec<NodeId>>;

/// A survey of a few nodes.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    nodes: Vec<NodeId>,
    bytes: u64,
    /// Remaining rounds that only measure the rate.
    warming: usize,
    /// The pools that meet at the same time.
    pools: Vec<Pool>,
    /// The levels found so far, the outermost first. Only the last one may still be divided, or all may be part of
    /// larger groups.
    levels: Vec<Level>,
    /// Outer levels, found by letting groups meet as wholes; the innermost of these first.
    outer: Vec<Level>,
    is_outward: bool,
    /// The largest rate at which bursts left a group together, in bytes per millisecond.
    leaving: BTreeMap<Vec<NodeId>, f64>,
    /// The rate of an unhindered burst, in bytes per millisecond.
    fast: f64,
}

impl Survey {
    /// Creates a survey of these nodes, in any order.
    pub(crate) fn new(mut nodes: Vec<NodeId>) -> Self {
        nodes.sort_unstable();
        nodes.dedup();
        let is_asked = (NODES_MIN..=NODES_MAX).contains(&nodes.len());
        let pools = if is_asked {
            vec![Pool::new(nodes.iter().map(|node| vec![*node]))]
        } else {
            Vec::new()
        };
        Self {
            nodes,
            bytes: BURST_BYTES_MIN,
            warming: WARMING,
            pools,
            levels: Vec::new(),
            outer: Vec::new(),
            is_outward: false,
            leaving: BTreeMap::new(),
            fast: 0.0,
        }
    }

    /// The surveyed nodes.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The next round; `None` when the survey is over.
    pub(crate) fn next(&self) -> Option<Round> {
        let pairs: Vec<_> = self.pools.iter().flat_map(Pool::pairs).collect();
        (!pairs.is_empty()).then_some(Round { pairs, bytes: self.bytes })
    }

    /// Records how long each burst of the last round took, in nanoseconds, by sender and receiver.
    pub(crate) fn took(&mut self, round: &Round, times: &Times) {
        let speed = |ns: &u64| round.bytes as f64 * 1e6 / (*ns).max(1) as f64;
        self.size(times.values().map(speed));
        if self.warming > 0 {
            self.warming -= 1;
            return;
        }
        self.pools
            .iter_mut()
            .for_each(|pool| pool.took(|from, to| times.get(&(from, to)).map(speed)));
        if self.pools.iter().all(Pool::is_over) {
            self.go_on();
        }
    }

    /// Starts the next pools after all current ones are over.
    fn go_on(&mut self) {
        let outcomes: Vec<Outcome> = self.pools.iter().filter_map(Pool::outcome).collect();
        self.pools.clear();
        for outcome in &outcomes {
            for (group, bytes) in &outcome.leaving {
                let most = self.leaving.entry(group.clone()).or_default();
                *most = most.max(*bytes);
            }
            self.fast = self.fast.max(outcome.fast);
        }
        let found: Level = outcomes.into_iter().flat_map(|outcome| outcome.groups).collect();
        let is_room = self.levels.len() + 1 < LEVELS_MAX && self.outer.len() + 1 < LEVELS_MAX;
        if self.is_outward {
            if found.is_empty() {
                return;
            }
            self.outer.push(found.clone());
            return if is_room {
                self.go_out(&found)
            };
        }
        if !found.is_empty() {
            self.levels.push(found.clone());
            if is_room {
                let large = found.into_iter().filter(|group| group.len() >= UNITS_MIN);
                self.pools = large
                    .map(|group| Pool::new(group.into_iter().map(|node| vec![node])))
                    .collect();
            }
        }
        if self.pools.is_empty() && !self.levels.is_empty() {
            self.go_out(&self.innermost());
        }
    }

    /// Lets these groups meet as wholes.
    fn go_out(&mut self, level: &Level) {
        self.is_outward = true;
        let several = level.iter().filter(|group| group.len() > 1).cloned();
        self.pools = Vec::from([Pool::new(several)]);
        self.pools.retain(|pool| !pool.is_over());
    }

    /// The groups that contain no other groups.
    fn innermost(&self) -> Level {
        let mut inner: Level = Vec::new();
        for group in self.levels.iter().rev().flatten() {
            if !inner.iter().flatten().any(|node| group.contains(node)) {
                inner.push(group.clone());
            }
        }
        inner.sort_unstable();
        inner
    }

    /// The groups that share a link, by level, the outermost first. Empty while the survey runs, and for an even
    /// network.
    pub(crate) fn found(&self) -> Vec<Vec<FoundGroup>> {
        if !self.pools.is_empty() {
            return Vec::new();
        }
        // Meetings of whole groups show more than dividing groups does.
        let levels: Vec<Level> = if self.outer.is_empty() {
            self.levels.clone()
        } else {
            let outer = self.outer.iter().rev().cloned();
            outer.chain([self.innermost()]).collect()
        };
        let several = |level: Level| -> Vec<FoundGroup> {
            let groups = level.into_iter().filter(|group| group.len() > 1);
            groups.map(|nodes| FoundGroup { carries: self.carries(&nodes), nodes }).collect()
        };
        levels.into_iter().map(several).collect()
    }

    fn carries(&self, group: &[NodeId]) -> u8 {
        let leaving = self.leaving.get(group).copied().unwrap_or_default();
        (leaving / self.fast.max(f64::MIN_POSITIVE) + 0.5).clamp(1.0, 255.0) as u8
    }

    /// Makes further bursts take [`BURST_NS`] if unhindered, by the rate of the fastest burst. Bursts never become
    /// shorter, because in some rounds all pairs share links: with many small racks, only one pair in thirty is inside
    /// a rack.
    fn size(&mut self, speeds: impl Iterator<Item = f64>) {
        let bytes = speeds.fold(0.0, f64::max) * BURST_NS as f64 / 1e6;
        self.bytes = self.bytes.max(bytes as u64).min(BURST_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests;
