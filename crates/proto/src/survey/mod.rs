//! Which hosts share a link to the others: what is asked of the network, and what the answers say.
//!
//! Two hosts of a rack reach each other as fast as one does alone, however much leaves the rack at the same time; two of
//! different racks share the links of these with all others that cross them. So in each round of a survey all nodes exchange
//! a burst with one other, at once ([`rounds`]). First, pairs are drawn until each has met in a few of them, and nodes whose pairs were
//! fast are put together ([`groups`]). Then this guess is tried: rounds within groups and rounds across them take turns. It holds if all
//! that is known by then leads to the same guess, and those across are much slower; else the new guess is tried, a few times. On an
//! even network no guess holds, and nothing is found.
//!
//! Knows nodes and times; does not know messages, or when a survey is held.

mod groups;
mod rounds;

use alloc::{collections::BTreeMap, vec::Vec};

use self::groups::Speeds;
use crate::id::NodeId;

/// Fewer nodes have no two groups of two.
pub const NODES_MIN: usize = 4;

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

/// Rounds of drawn pairs: every pair meets three times, or in two of three rounds of the largest clusters.
const TOURNAMENTS: usize = 3;
const DRAWN: core::ops::RangeInclusive<usize> = 9..=40;

/// Rounds within the groups of a guess, and as many across them.
const TRIED: usize = 2;

/// Guesses that are tried.
const GUESSES: usize = 4;

/// How much slower than rounds within groups those across are at least, if groups are to be believed.
const SLOWER: f64 = 1.3;

/// Pairs of a round, each of which sends a burst both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// No node is in two.
    pub pairs: Vec<(NodeId, NodeId)>,
    /// Of each burst.
    pub bytes: u64,
}

/// What a survey has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Nodes that share a link to all others; none of them alone.
    pub nodes: Vec<NodeId>,
    /// How many transfers at the full rate of a host that link carries at once.
    pub carries: u8,
}

/// One survey of a few nodes.
#[derive(Clone, Debug)]
pub struct Survey {
    nodes: Vec<NodeId>,
    bytes: u64,
    /// Rounds that only show the rate, and are to come.
    warming: usize,
    /// Rounds that are over, of those that are drawn, or of a guess.
    turn: usize,
    speeds: Speeds,
    guess: Option<Vec<Vec<NodeId>>>,
    guesses: usize,
    /// Bytes per millisecond of each burst within the groups that were guessed, and across.
    within: Vec<f64>,
    across: Vec<(NodeId, f64)>,
    is_over: bool,
}

impl Survey {
    /// Of these nodes, in any order.
    pub fn new(mut nodes: Vec<NodeId>) -> Self {
        nodes.sort_unstable();
        nodes.dedup();
        let is_over = !(NODES_MIN..=NODES_MAX).contains(&nodes.len());
        Self {
            nodes,
            bytes: BURST_BYTES_MIN,
            warming: WARMING,
            turn: 0,
            speeds: Speeds::default(),
            guess: None,
            guesses: 0,
            within: Vec::new(),
            across: Vec::new(),
            is_over,
        }
    }

    /// Which nodes are asked.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The next round; none when the survey is over.
    pub fn next(&self) -> Option<Round> {
        if self.is_over {
            return None;
        }
        let number = self.guesses * TRIED + self.turn / 2;
        let pairs = match &self.guess {
            None => rounds::drawn(&self.nodes, self.turn),
            Some(groups) if self.turn.is_multiple_of(2) => rounds::within(groups, number),
            Some(groups) => rounds::across(groups, number),
        };
        Some(Round { pairs, bytes: self.bytes })
    }

    /// How long each burst of the last round took, in nanoseconds, by its sender and receiver.
    pub fn took(&mut self, round: &Round, times: &BTreeMap<(NodeId, NodeId), u64>) {
        let speed = |ns: u64| round.bytes as f64 * 1e6 / ns.max(1) as f64;
        self.size(times.values().map(|ns| speed(*ns)).collect());
        if self.warming > 0 {
            self.warming -= 1;
            return;
        }
        for ((from, to), ns) in times {
            self.speeds.add(*from, *to, speed(*ns));
            match &self.guess {
                None => {}
                Some(_) if self.turn.is_multiple_of(2) => self.within.push(speed(*ns)),
                Some(_) => self.across.push((*from, speed(*ns))),
            }
        }
        self.turn += 1;
        let rounds = if self.guess.is_some() { 2 * TRIED } else { self.draws() };
        if self.turn == rounds {
            self.try_next();
        }
    }

    /// What is guessed now is tried, unless it is what was tried.
    fn try_next(&mut self) {
        let next = self.speeds.groups(&self.nodes).filter(|groups| are_several(groups));
        if next == self.guess {
            self.is_over = true;
            return;
        }
        self.guesses += 1;
        self.guess = next.filter(|_| self.guesses <= GUESSES);
        self.is_over = self.guess.is_none();
        (self.turn, self.within, self.across) = (0, Vec::new(), Vec::new());
    }

    /// The groups that share a link; empty while the survey goes on, and of an even network.
    pub fn found(&self) -> Vec<Found> {
        let Some(groups) = self.guess.as_ref().filter(|_| self.is_over) else {
            return Vec::new();
        };
        let fast = median(self.within.clone());
        let slow = median(self.across.iter().map(|(_, speed)| *speed).collect());
        if slow * SLOWER >= fast {
            return Vec::new();
        }
        let several = groups.iter().filter(|group| group.len() > 1);
        let found = several.map(|group| {
            let left = self.across.iter().filter(|(from, _)| group.contains(from));
            let sum: f64 = left.map(|(_, speed)| *speed).sum();
            let carries = (sum / TRIED as f64 / fast + 0.5).clamp(1.0, 255.0) as u8;
            Found { nodes: group.clone(), carries }
        });
        found.collect()
    }

    fn draws(&self) -> usize {
        let all = TOURNAMENTS * (self.nodes.len() - 1);
        all.clamp(*DRAWN.start(), *DRAWN.end())
    }

    /// Has further bursts take [`BURST_NS`] where nothing is in their way, as in one of ten; no shorter than before, since
    /// in some rounds all share links.
    fn size(&mut self, mut speeds: Vec<f64>) {
        speeds.sort_by(f64::total_cmp);
        let fast = speeds.get(speeds.len() * 9 / 10).copied().unwrap_or_default();
        let bytes = fast * BURST_NS as f64 / 1e6;
        self.bytes = self.bytes.max(bytes as u64).min(BURST_BYTES_MAX);
    }
}

/// Whether two groups have several nodes: one beside single nodes are hosts of which some are slow.
fn are_several(groups: &[Vec<NodeId>]) -> bool {
    groups.iter().filter(|group| group.len() > 1).count() > 1
}

/// The middle one, of several; 0 of none.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A network: the rack of each node, and how many bursts at once the link of a rack carries.
    struct Network {
        racks: Vec<u8>,
        carries: f64,
        noise: Vec<f64>,
    }

    impl Network {
        /// What bursts of a round take, each at 125 000 bytes per millisecond where nothing is in its way.
        fn times(&mut self, round: &Round) -> BTreeMap<(NodeId, NodeId), u64> {
            let ways: Vec<_> = round.pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
            let rack = |node: NodeId| self.racks[node.0 as usize];
            let leaving = |from: NodeId| {
                let crossing =
                    |(a, b): &&(NodeId, NodeId)| rack(*a) == rack(from) && rack(*b) != rack(from);
                ways.iter().filter(crossing).count() as f64
            };
            let mut times = BTreeMap::new();
            for (number, (from, to)) in ways.iter().enumerate() {
                let share = if rack(*from) == rack(*to) {
                    1.0
                } else {
                    // What one rack sends another is received by that.
                    (leaving(*from).max(leaving(*to)) / self.carries).max(1.0)
                };
                let noise = self.noise[(number + times.len()) % self.noise.len()];
                let ms = round.bytes as f64 / 125_000.0 * share + noise;
                times.insert((*from, *to), (ms * 1e6) as u64);
            }
            self.noise.rotate_left(1);
            times
        }

        fn survey(&mut self) -> (Vec<Found>, usize, u64) {
            let nodes = (0..self.racks.len() as u64).map(NodeId).collect();
            let (mut survey, mut rounds, mut bytes) = (Survey::new(nodes), 0, 0);
            while let Some(round) = survey.next() {
                (rounds, bytes) = (rounds + 1, bytes + round.bytes);
                let times = self.times(&round);
                survey.took(&round, &times);
            }
            (survey.found(), rounds, bytes)
        }
    }

    fn noise() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(0.2..4.0f64, 61)
    }

    fn by_rack(found: &[Found], racks: &[u8]) -> bool {
        let of = |rack: u8| -> Vec<NodeId> {
            (0..racks.len())
                .filter(|node| racks[*node] == rack)
                .map(|node| NodeId(node as u64))
                .collect()
        };
        let mut groups: Vec<_> = found.iter().map(|found| found.nodes.clone()).collect();
        groups.sort();
        let mut expected: Vec<_> = (0..8).map(of).filter(|group| group.len() > 1).collect();
        expected.sort();
        groups == expected
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Goal: racks are found whatever the order of nodes, with the noise of a busy host.
        #[test]
        fn racks_that_share_a_link_are_found(
            racks in prop_oneof![
                Just([0, 0, 0, 0, 1, 1, 1, 1].to_vec()),
                Just((0..16).map(|node| node / 4).collect::<Vec<u8>>()),
                Just((0..40).map(|node| node / 10).collect::<Vec<u8>>()),
            ].prop_flat_map(|racks| Just(racks).prop_shuffle()),
            noise in noise(),
        ) {
            let mut network = Network { racks, carries: 1.0, noise };
            let (found, rounds, bytes) = network.survey();
            prop_assert!(by_rack(&found, &network.racks), "{:?} of {:?}", found, network.racks);
            prop_assert!(found.iter().all(|found| found.carries == 1), "{:?}", found);
            prop_assert!(rounds <= WARMING + 40 + 2 * TRIED * GUESSES && bytes <= rounds as u64 * BURST_BYTES_MAX);
        }

        /// Goal: where few cross a link at a time, which is then fast, no rack is taken for a part of another.
        #[test]
        fn no_group_is_of_two_racks(
            racks in prop_oneof![
                Just([0, 0, 0, 0, 0, 1, 1, 1].to_vec()),
                Just([0, 0, 0, 1, 1, 1, 2, 2, 2].to_vec()),
            ].prop_flat_map(|racks| Just(racks).prop_shuffle()),
            noise in noise(),
        ) {
            let mut network = Network { racks, carries: 1.0, noise };
            let (found, ..) = network.survey();
            for Found { nodes, .. } in &found {
                let rack = |node: &NodeId| network.racks[node.0 as usize];
                prop_assert!(nodes.iter().all(|node| rack(node) == rack(&nodes[0])), "{:?}", found);
            }
        }

        /// Goal: a network that carries all at once has no groups, and neither has one host that is slow.
        #[test]
        fn an_even_network_has_no_groups(
            nodes in 4..40usize,
            noise in noise(),
            is_one_slow in any::<bool>(),
        ) {
            let mut racks: Vec<u8> = (0..nodes).map(|node| (node % 3) as u8).collect();
            let mut network = if is_one_slow {
                racks.fill(0);
                racks[1] = 1;
                Network { racks, carries: 0.2, noise }
            } else {
                Network { racks, carries: 100.0, noise }
            };
            let (found, ..) = network.survey();
            prop_assert!(found.is_empty(), "{:?}", found);
        }
    }

    #[test]
    fn a_link_that_carries_two_is_crossed_by_two() {
        let racks = (0..16).map(|node| node % 2).collect();
        let mut network = Network { racks, carries: 2.0, noise: [0.5].to_vec() };
        let (found, ..) = network.survey();
        assert_eq!(
            found.iter().map(|found| found.carries).collect::<Vec<_>>(),
            [2, 2],
            "{found:?}"
        );
    }

    #[test]
    fn few_and_many_nodes_are_not_asked() {
        for count in [1, 3, NODES_MAX + 1] {
            let survey = Survey::new((0..count as u64).map(NodeId).collect());
            assert_eq!((survey.next(), survey.found()), (None, Vec::new()));
        }
    }
}
