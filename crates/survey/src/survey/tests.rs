//! Surveys of networks whose racks and pods share links, with the noise of busy hosts.

use hoplite_proto::id::mix;
use proptest::prelude::*;

use super::*;
use crate::pool;

/// A network: groups within groups. For each level, the group number of each node, and how many bursts at once the
/// link of a group carries.
#[derive(Debug)]
struct Network {
    levels: Vec<(Vec<u8>, f64)>,
    noise: Vec<f64>,
}

impl Network {
    fn of_racks(racks: Vec<u8>, carries: f64, noise: Vec<f64>) -> Self {
        Self { levels: Vec::from([(racks, carries)]), noise }
    }

    fn nodes(&self) -> usize {
        self.levels[0].0.len()
    }

    /// The durations of the bursts of a round. An unhindered burst has 125 000 bytes per millisecond.
    fn times(&mut self, round: &Round) -> BTreeMap<(NodeId, NodeId), u64> {
        let ways: Vec<_> = round.pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
        let mut times = BTreeMap::new();
        for (number, (from, to)) in ways.iter().enumerate() {
            let share = |(groups, carries): &(Vec<u8>, f64)| {
                let group = |node: NodeId| groups[node.0 as usize];
                let crossing =
                    |of: u8, (a, b): &&(NodeId, NodeId)| group(*a) == of && group(*b) != of;
                // Traffic that leaves one group enters another, so both directions count.
                let most = |of: u8| ways.iter().filter(|way| crossing(of, way)).count() as f64;
                if group(*from) == group(*to) {
                    1.0
                } else {
                    most(group(*from)).max(most(group(*to))) / carries
                }
            };
            let share = self.levels.iter().map(share).fold(1.0, f64::max);
            let noise = self.noise[(number + times.len()) % self.noise.len()];
            let ms = round.bytes as f64 / 125_000.0 * share + noise;
            times.insert((*from, *to), (ms * 1e6) as u64);
        }
        self.noise.rotate_left(1);
        times
    }

    fn survey(&mut self) -> (Vec<Vec<FoundGroup>>, usize, u64) {
        let nodes = (0..self.nodes() as u64).map(NodeId).collect();
        let (mut survey, mut rounds, mut bytes) = (Survey::new(nodes), 0, 0);
        while let Some(round) = survey.next() {
            (rounds, bytes) = (rounds + 1, bytes + round.bytes);
            let times = self.times(&round);
            survey.took(&round, &times);
        }
        (survey.found(), rounds, bytes)
    }

    /// The groups that a survey should find.
    fn groups(&self) -> Vec<Vec<Vec<NodeId>>> {
        let level = |(groups, _): &(Vec<u8>, f64)| {
            let of = |number: u8| -> Vec<NodeId> {
                (0..groups.len())
                    .filter(|node| groups[*node] == number)
                    .map(|node| NodeId(node as u64))
                    .collect()
            };
            let mut all: Vec<_> = (0..64).map(of).filter(|group| group.len() > 1).collect();
            all.sort();
            all
        };
        self.levels.iter().map(level).filter(|groups| !groups.is_empty()).collect()
    }
}

fn nodes_of(found: &[Vec<FoundGroup>]) -> Vec<Vec<Vec<NodeId>>> {
    let level = |level: &Vec<FoundGroup>| {
        let mut groups: Vec<_> = level.iter().map(|found| found.nodes.clone()).collect();
        groups.sort();
        groups
    };
    found.iter().map(level).collect()
}

/// Surveys per network. A debug build has time for the first few.
const NETWORKS: usize = if cfg!(debug_assertions) { 4 } else { 60 };

/// The limit of misses that corresponds to one of 60.
const fn of_60(misses: usize) -> usize {
    (misses * NETWORKS).div_ceil(60)
}

/// How many surveys miss groups of a network of such groups, outermost first, with hosts in random order and
/// the noise of busy hosts.
fn misses(nodes: usize, levels: &[(usize, f64)]) -> usize {
    misses_amid(nodes, levels, 4.0, 0.0)
}

/// Like [`misses`], but each burst takes up to `most_ms` longer, and one of ten `seldom_ms` more than that.
fn misses_amid(nodes: usize, levels: &[(usize, f64)], most_ms: f64, seldom_ms: f64) -> usize {
    let mut state = nodes as u64;
    let mut below = |count: usize| {
        state = mix(state + 1);
        (state % count as u64) as usize
    };
    let mut is_right = |_: &usize| {
        let mut order: Vec<usize> = (0..nodes).collect();
        (1..nodes).rev().for_each(|at| order.swap(at, below(at + 1)));
        let groups = |size: usize| order.iter().map(|at| (at / size) as u8).collect();
        let levels = levels.iter().map(|(size, carries)| (groups(*size), *carries)).collect();
        let mut noise_ms = || {
            let often_ms = 0.2 + below(3800) as f64 / 3800.0 * (most_ms - 0.2);
            if seldom_ms > 0.0 && below(10) == 0 { often_ms + seldom_ms } else { often_ms }
        };
        let noise = (0..61).map(|_| noise_ms()).collect();
        let mut network = Network { levels, noise };
        let (found, ..) = network.survey();
        nodes_of(&found) == network.groups()
    };
    (0..NETWORKS).filter(|number| !is_right(number)).count()
}

#[test]
fn racks_whose_links_carry_several_are_found() {
    for (nodes, rack, carries) in
        [(8, 4, 1.0), (8, 4, 2.0), (9, 3, 1.0), (16, 4, 2.0), (32, 4, 2.0), (40, 10, 4.0)]
    {
        let missed = misses(nodes, &[(rack, carries)]);
        assert!(
            missed <= of_60(2),
            "{missed} of {NETWORKS}: {nodes} nodes, racks of {rack}, links carry {carries}"
        );
    }
}

/// Goal: racks are found although each pair of 64 nodes meets once, and only one pair in thirty is in one rack.
#[test]
fn many_small_racks_are_found() {
    let networks: [&[(usize, f64)]; 6] = [
        &[(2, 1.0)],
        &[(4, 1.0)],
        &[(4, 2.0)],
        &[(8, 4.0)],
        &[(16, 1.0), (4, 1.0)],
        &[(16, 4.0), (4, 2.0)],
    ];
    for levels in networks {
        let missed = misses(NODES_MAX, levels);
        assert!(missed <= of_60(2), "{missed} of {NETWORKS}: {levels:?}");
    }
}

#[test]
fn racks_in_pods_are_found() {
    let networks: [(usize, &[(usize, f64)]); 6] = [
        (8, &[(4, 1.0), (2, 1.0)]),
        (16, &[(8, 1.0), (4, 1.0)]),
        (16, &[(8, 1.0), (4, 2.0)]),
        (24, &[(12, 1.0), (4, 1.0)]),
        (32, &[(16, 2.0), (8, 2.0)]),
        (32, &[(16, 1.0), (8, 1.0), (4, 1.0)]),
    ];
    for (nodes, levels) in networks {
        let missed = misses(nodes, levels);
        assert!(missed <= of_60(3), "{missed} of {NETWORKS}: {nodes} nodes, {levels:?}");
    }
}

/// For each level, the number of nodes of a group, and how many transfers its link carries.
type Levels = &'static [(usize, f64)];

/// Goal: hosts that delay a burst by more than its duration hide few links, and cause no groups on an even network.
#[test]
fn links_are_found_despite_heavy_noise() {
    let networks: [(usize, Levels, usize); 9] = [
        (8, &[(4, 1.0), (2, 1.0)], 5),
        (8, &[(4, 1.0)], 2),
        (8, &[(2, 1.0)], 12),
        (16, &[(8, 1.0), (4, 1.0)], 3),
        (4, &[(1, 100.0)], 0),
        (6, &[(1, 100.0)], 0),
        (8, &[(1, 100.0)], 0),
        (16, &[(1, 100.0)], 1),
        (64, &[(1, 100.0)], 0),
    ];
    for (nodes, levels, most) in networks {
        for (most_ms, seldom_ms) in [(20.0, 0.0), (4.0, 24.0)] {
            let missed = misses_amid(nodes, levels, most_ms, seldom_ms);
            assert!(
                missed <= of_60(most),
                "{missed} of {NETWORKS}: {nodes} nodes, {levels:?}, {most_ms} ms, seldom {seldom_ms} ms more"
            );
        }
    }
}

/// Goal: the capacity of outer links is found, and inner links are not taken for slower than they are.
#[test]
fn the_capacity_of_links_at_each_level_is_found() {
    let level = |size: usize| (0..16).map(|node| (node / size) as u8).collect::<Vec<u8>>();
    let levels = Vec::from([(level(8), 1.0), (level(4), 2.0)]);
    let mut network = Network { levels, noise: [0.5].to_vec() };
    let (found, ..) = network.survey();
    let carries =
        |level: &Vec<FoundGroup>| level.iter().map(|found| found.carries).collect::<Vec<_>>();
    assert_eq!(found.iter().map(carries).collect::<Vec<_>>(), [[1, 1].to_vec(), [2; 4].to_vec()]);
}

fn noise() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.2..4.0f64, 61)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Goal: racks are found in any order of nodes, with the noise of a busy host.
    #[test]
    fn racks_that_share_a_link_are_found(
        racks in prop_oneof![
            Just([0, 0, 0, 0, 1, 1, 1, 1].to_vec()),
            Just((0..16).map(|node| node / 4).collect::<Vec<u8>>()),
            Just((0..40).map(|node| node / 10).collect::<Vec<u8>>()),
        ].prop_flat_map(|racks| Just(racks).prop_shuffle()),
        noise in noise(),
    ) {
        let mut network = Network::of_racks(racks, 1.0, noise);
        let (found, rounds, bytes) = network.survey();
        prop_assert_eq!(nodes_of(&found), network.groups());
        prop_assert!(found.iter().flatten().all(|found| found.carries == 1), "{:?}", found);
        prop_assert!(rounds <= WARMING + 3 * pool::ROUNDS_MAX && bytes <= rounds as u64 * BURST_BYTES_MAX);
    }

    /// Goal: if few transfers cross a link at a time, so that it is fast, no rack is taken for a part of another.
    #[test]
    fn no_group_is_of_two_racks(
        racks in prop_oneof![
            Just([0, 0, 0, 0, 0, 1, 1, 1].to_vec()),
            Just([0, 0, 0, 1, 1, 1, 2, 2, 2].to_vec()),
        ].prop_flat_map(|racks| Just(racks).prop_shuffle()),
        noise in noise(),
    ) {
        let mut network = Network::of_racks(racks, 1.0, noise);
        let (found, ..) = network.survey();
        for FoundGroup { nodes, .. } in found.iter().flatten() {
            let rack = |node: &NodeId| network.levels[0].0[node.0 as usize];
            prop_assert!(nodes.iter().all(|node| rack(node) == rack(&nodes[0])), "{:?}", found);
        }
    }

    /// Goal: a network that carries all bursts at once has no groups, and neither has one with a single slow host.
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
            Network::of_racks(racks, 0.2, noise)
        } else {
            Network::of_racks(racks, 100.0, noise)
        };
        let (found, ..) = network.survey();
        prop_assert!(found.is_empty(), "{:?}", found);
    }
}

#[test]
fn a_link_that_carries_two_is_crossed_by_two() {
    let racks = (0..16).map(|node| node % 2).collect();
    let mut network = Network::of_racks(racks, 2.0, [0.5].to_vec());
    let (found, ..) = network.survey();
    assert_eq!(
        found.iter().flatten().map(|found| found.carries).collect::<Vec<_>>(),
        [2, 2],
        "{found:?}"
    );
}

#[test]
fn too_few_and_too_many_nodes_are_not_surveyed() {
    for count in [1, 3, NODES_MAX + 1] {
        let survey = Survey::new((0..count as u64).map(NodeId).collect());
        assert_eq!((survey.next(), survey.found()), (None, Vec::new()));
    }
}
