//! Which hosts share a link to the others: what is asked of the network, and what the answers say.
//!
//! Two hosts of a rack reach each other as fast as one does alone, however much leaves the rack at the same time; two of
//! different racks share the links of these with all others that cross them. So in each round of a survey all nodes exchange
//! a burst with one other, at once, and those that do so are drawn from a pool ([`pool`]). On an even network nothing is found.
//!
//! Racks may be in pods that share a link too. The groups that are found first may be either. So each is asked again, for itself, until none has
//! groups of its own: these are the innermost. Then such groups meet as wholes, each with as many nodes at once, and what keeps
//! them from each other are the links of outer groups alone.
//!
//! Knows nodes and times; does not know messages, or when a survey is held.

mod groups;
mod pool;
mod rounds;
#[cfg(test)]
mod tests;

use alloc::{collections::BTreeMap, vec, vec::Vec};

use serde::{Deserialize, Serialize};

use self::pool::{Outcome, Pool, Times, UNITS_MIN};
use crate::{id::NodeId, place::LEVELS_MAX};

/// Fewer nodes have no two groups of two.
pub const NODES_MIN: usize = UNITS_MIN;

/// With more nodes pairs meet too seldom, and are told by a file where they stand.
pub const NODES_MAX: usize = 64;

/// Bytes of a burst in the first round, from which on the rate is known.
pub const BURST_BYTES_MIN: u64 = 256 * 1024;

/// Bytes of one message of a burst.
pub const FILLING_BYTES: u64 = 64 * 1024;

/// Bytes of the longest burst.
pub const BURST_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// How long a burst takes where nothing is in its way: several times what a busy host keeps a process waiting.
const BURST_NS: u64 = 16_000_000;

/// Rounds before these, of which each shows the rate better than the one before.
const WARMING: usize = 2;

/// What became of a burst, as its sender tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Burst {
    /// It took so many nanoseconds.
    Took(u64),
    /// One of both nodes moved objects, or the sender can't send a burst now.
    Void,
    /// The sender takes no part in surveys.
    Refused,
}

/// Pairs of a round, each of which sends a burst both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// No node is in two.
    pub pairs: Vec<(NodeId, NodeId)>,
    /// Of each burst.
    pub bytes: u64,
}

/// A group that a survey has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Nodes that share a link to all others; none of them alone.
    pub nodes: Vec<NodeId>,
    /// How many transfers at the full rate of a host that link carries at once.
    pub carries: u8,
}

/// Groups that make up the nodes between them.
type Level = Vec<Vec<NodeId>>;

/// One survey of a few nodes.
#[derive(Clone, Debug)]
pub struct Survey {
    nodes: Vec<NodeId>,
    bytes: u64,
    /// Rounds that only show the rate, and are to come.
    warming: usize,
    /// Those that are asked at the same time.
    pools: Vec<Pool>,
    /// What is known, the outermost first. Only the last may still be parted, or all are part of something larger.
    levels: Vec<Level>,
    /// Outer levels, which were found by having groups meet: the innermost of these first.
    outer: Vec<Level>,
    is_outward: bool,
    /// Bytes per millisecond that have left a group at once.
    leaving: BTreeMap<Vec<NodeId>, f64>,
    /// Bytes per millisecond of a burst that nothing hindered.
    fast: f64,
}

impl Survey {
    /// Of these nodes, in any order.
    pub fn new(mut nodes: Vec<NodeId>) -> Self {
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

    /// Which nodes are asked.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The next round; none when the survey is over.
    pub fn next(&self) -> Option<Round> {
        let pairs: Vec<_> = self.pools.iter().flat_map(Pool::pairs).collect();
        (!pairs.is_empty()).then_some(Round { pairs, bytes: self.bytes })
    }

    /// How long each burst of the last round took, in nanoseconds, by its sender and receiver.
    pub fn took(&mut self, round: &Round, times: &Times) {
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

    /// All pools are over: the next ones.
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

    /// These groups meet as wholes.
    fn go_out(&mut self, level: &Level) {
        self.is_outward = true;
        let several = level.iter().filter(|group| group.len() > 1).cloned();
        self.pools = Vec::from([Pool::new(several)]);
        self.pools.retain(|pool| !pool.is_over());
    }

    /// The groups that have none within.
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

    /// The groups that share a link, by level, the outermost first; empty while the survey goes on, and of an even network.
    pub fn found(&self) -> Vec<Vec<Found>> {
        if !self.pools.is_empty() {
            return Vec::new();
        }
        // Of groups that met as wholes more is known than of those that were parted.
        let levels: Vec<Level> = if self.outer.is_empty() {
            self.levels.clone()
        } else {
            let outer = self.outer.iter().rev().cloned();
            outer.chain([self.innermost()]).collect()
        };
        let several = |level: Level| -> Vec<Found> {
            let groups = level.into_iter().filter(|group| group.len() > 1);
            groups.map(|nodes| Found { carries: self.carries(&nodes), nodes }).collect()
        };
        levels.into_iter().map(several).collect()
    }

    fn carries(&self, group: &[NodeId]) -> u8 {
        let leaving = self.leaving.get(group).copied().unwrap_or_default();
        (leaving / self.fast.max(f64::MIN_POSITIVE) + 0.5).clamp(1.0, 255.0) as u8
    }

    /// Has further bursts take [`BURST_NS`] where nothing is in their way, as the fastest had it; no shorter than before, since
    /// in some rounds all share links. Of many small racks one pair of a round in thirty is in one rack.
    fn size(&mut self, speeds: impl Iterator<Item = f64>) {
        let bytes = speeds.fold(0.0, f64::max) * BURST_NS as f64 / 1e6;
        self.bytes = self.bytes.max(bytes as u64).min(BURST_BYTES_MAX);
    }
}
