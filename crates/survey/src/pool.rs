//! A pool: units that meet each other, and the groups of them that share a link. A unit is a node, or a set of nodes
//! known to share a link. Of each set, as many nodes send at once as the smallest unit has.
//!
//! First, pairs are drawn until each has met a few times ([`crate::rounds`]), and units whose pairs were fast form
//! groups ([`crate::groups`]). If these groups explain little of the variation of rates, more pairs are drawn. Then
//! this guess is tested: rounds within groups alternate with rounds across them. The guess is accepted if all
//! measurements so far lead to the same guess, and rounds across groups are much slower. Otherwise the new guess is
//! tested, a few times at most.
//!
//! Knows its own units; does not know what others exchange at the same time.

use alloc::{collections::BTreeMap, vec::Vec};

use hoplite_proto::id::NodeId;

use crate::{groups::PairSpeeds, rounds};

/// Minimum number of units: fewer cannot form two groups of two.
pub(crate) const UNITS_MIN: usize = 4;

/// Rounds of drawn pairs: every pair meets three times; with four units five times, in the largest clusters once.
const TOURNAMENTS: usize = 3;
const DRAWN: core::ops::RangeInclusive<usize> = 15..=64;

/// Share of the variation that the first guess must explain. If it explains less, hosts are busy or the network has
/// levels. Then as many pairs are drawn again, so that the noise of single bursts counts less.
const CLEAR: f64 = 0.8;

/// How often pairs are drawn at most, up to the number of rounds that the largest clusters use.
const LOOKS: usize = 3;

/// Rounds within the groups of a guess, and the same number across them.
const TRIED: usize = 2;

/// Maximum number of guesses that are tested.
const GUESSES: usize = 6;

/// Maximum number of rounds of a pool.
#[cfg(test)]
pub(crate) const ROUNDS_MAX: usize = 2 * *DRAWN.end() + 2 * TRIED * GUESSES;

/// How much slower rounds across groups must be than rounds within groups for a guess to be accepted.
const SLOWER: f64 = 1.3;

/// The duration of each burst in nanoseconds, by sender and receiver.
pub(crate) type Times = BTreeMap<(NodeId, NodeId), u64>;

#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// The nodes of each unit, by its first node, which identifies the unit.
    units: BTreeMap<NodeId, Vec<NodeId>>,
    /// The number of nodes of a unit that send at once.
    width: usize,
    /// Completed rounds of the current phase: of drawn pairs, or of one guess.
    turn: usize,
    speeds: PairSpeeds,
    guess: Option<Vec<Vec<NodeId>>>,
    guesses: usize,
    /// Rates between two units, one way, in bytes per millisecond: within the guessed groups, and across them.
    within: Vec<(NodeId, f64)>,
    across: Vec<(NodeId, f64)>,
    is_over: bool,
}

/// The groups of a pool, which share a link.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) groups: Vec<Vec<NodeId>>,
    /// Bytes per millisecond that left a group or a unit in a round.
    pub(crate) leaving: Vec<(Vec<NodeId>, f64)>,
    /// Bytes per millisecond of a burst within a group.
    pub(crate) fast: f64,
}

impl Pool {
    pub(crate) fn new(units: impl IntoIterator<Item = Vec<NodeId>>) -> Self {
        let units: BTreeMap<_, _> =
            units.into_iter().filter_map(|unit| Some((*unit.first()?, unit))).collect();
        let width = units.values().map(Vec::len).min().unwrap_or_default();
        let is_over = units.len() < UNITS_MIN;
        let (within, across) = (Vec::new(), Vec::new());
        let (turn, guesses, guess) = (0, 0, None);
        Self {
            units,
            width,
            turn,
            speeds: PairSpeeds::default(),
            guess,
            guesses,
            within,
            across,
            is_over,
        }
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// The pairs of nodes that exchange bursts next.
    pub(crate) fn pairs(&self) -> Vec<(NodeId, NodeId)> {
        self.meetings().into_iter().flat_map(|(one, other)| self.between(one, other)).collect()
    }

    /// The pairs of units of the next round.
    fn meetings(&self) -> Vec<(NodeId, NodeId)> {
        if self.is_over {
            return Vec::new();
        }
        let number = self.guesses * TRIED + self.turn / 2;
        match &self.guess {
            None => rounds::drawn(&self.names(), self.turn),
            Some(groups) if self.turn.is_multiple_of(2) => rounds::within(groups, number),
            Some(groups) => rounds::across(groups, number),
        }
    }

    fn names(&self) -> Vec<NodeId> {
        self.units.keys().copied().collect()
    }

    fn between(&self, one: NodeId, other: NodeId) -> impl Iterator<Item = (NodeId, NodeId)> {
        let nodes = |unit| self.units.get(&unit).into_iter().flatten().copied().take(self.width);
        nodes(one).zip(nodes(other))
    }

    /// Records the rates of the last round.
    pub(crate) fn took(&mut self, speed: impl Fn(NodeId, NodeId) -> Option<f64>) {
        if self.is_over {
            return;
        }
        for (one, other) in self.meetings() {
            for (from, to) in [(one, other), (other, one)] {
                let speeds = self.between(from, to).filter_map(|(a, b)| speed(a, b));
                let speeds: Vec<f64> = speeds.collect();
                // The transfer of a whole unit ends with its slowest burst.
                let Some(slowest) = speeds.iter().copied().reduce(f64::min) else { continue };
                let sum = slowest * self.width as f64;
                // A shared link slows all of them down, a busy host only one.
                self.speeds.add(from, to, speeds.iter().sum::<f64>() / speeds.len() as f64);
                match &self.guess {
                    None => {}
                    Some(_) if self.turn.is_multiple_of(2) => self.within.push((from, sum)),
                    Some(_) => self.across.push((from, sum)),
                }
            }
        }
        self.turn += 1;
        let rounds = if self.guess.is_some() { 2 * TRIED } else { self.draws() };
        if self.turn.is_multiple_of(rounds) {
            self.try_next();
        }
    }

    /// Tests the current guess, or ends if it is the guess that was just tested.
    fn try_next(&mut self) {
        let next = self.speeds.groups(&self.names());
        let is_clear = next.as_ref().is_none_or(|guess| guess.explained >= CLEAR);
        let drawn = (LOOKS * self.draws()).min(*DRAWN.end());
        if self.guess.is_none() && !is_clear && self.turn < drawn {
            return;
        }
        let next = next.map(|guess| guess.groups).filter(|groups| are_several(groups));
        if next == self.guess {
            self.is_over = true;
            return;
        }
        self.guesses += 1;
        self.guess = next.filter(|_| self.guesses <= GUESSES);
        self.is_over = self.guess.is_none();
        (self.turn, self.within, self.across) = (0, Vec::new(), Vec::new());
    }

    /// The groups that share a link; `None` for an even network.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        let groups = self.guess.as_ref().filter(|_| self.is_over)?;
        let sums = |all: &[(NodeId, f64)]| median(all.iter().map(|(_, sum)| *sum).collect());
        let (fast, slow) = (sums(&self.within), sums(&self.across));
        if slow * SLOWER >= fast {
            return None;
        }
        let nodes = |units: &[NodeId]| {
            let mut nodes: Vec<_> =
                units.iter().filter_map(|unit| self.units.get(unit)).flatten().copied().collect();
            nodes.sort_unstable();
            nodes
        };
        let of = |units: &[NodeId], bursts: &[(NodeId, f64)]| -> Vec<f64> {
            bursts.iter().filter(|(from, _)| units.contains(from)).map(|(_, sum)| *sum).collect()
        };
        let of_groups = groups.iter().map(|group| {
            (nodes(group), of(group, &self.across).iter().sum::<f64>() / TRIED as f64)
        });
        // Traffic between units of one group uses the link of each unit, but not that of the group. A unit may rest in
        // some rounds.
        let wide = self.units.keys().filter(|_| self.width > 1);
        let of_units = wide.map(|unit| (nodes(&[*unit]), median(of(&[*unit], &self.within))));
        let leaving = of_groups.chain(of_units).collect();
        let groups = groups.iter().map(|group| nodes(group)).collect();
        Some(Outcome { groups, leaving, fast: fast / self.width.max(1) as f64 })
    }

    fn draws(&self) -> usize {
        let all = TOURNAMENTS * (self.units.len() - 1);
        all.clamp(*DRAWN.start(), *DRAWN.end())
    }
}

/// Whether at least two groups have several units. One such group next to single units means that some hosts are slow.
fn are_several(groups: &[Vec<NodeId>]) -> bool {
    groups.iter().filter(|group| group.len() > 1).count() > 1
}

/// The median, or the smaller of the two middle values; 0 if there are none.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}
