//! Guesses which nodes share a link, from the rates of pairs: nodes whose pairs were fast form groups. It chooses the
//! grouping that explains most of the variation of rates. Knows only rates.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};

use hoplite_proto::id::NodeId;

/// How much faster pairs within groups must be than pairs across them, if there are groups.
const GAP: f64 = 1.25;

/// Which burst of a pair counts: a rate that four of five bursts exceed, or that one of two exceeds. The first reveals
/// links that few share at a time, the second tolerates more noise. The groups that explain more are chosen.
const COUNTED: [usize; 2] = [5, 2];

/// How often each node is reassigned: moves of other nodes may change the best group.
const SETTLINGS: usize = 8;

/// Rates of bursts between pairs, in any unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairSpeeds {
    /// By pair, the lower node first.
    pairs: BTreeMap<(NodeId, NodeId), Vec<f64>>,
}

/// Groups of nodes, by their indexes.
type Groups = Vec<Vec<usize>>;

impl PairSpeeds {
    pub(crate) fn add(&mut self, one: NodeId, other: NodeId, speed: f64) {
        self.pairs.entry((one.min(other), one.max(other))).or_default().push(speed);
    }

    /// At least two groups; `None` if there is no clear gap.
    pub(crate) fn groups(&self, nodes: &[NodeId]) -> Option<Guess> {
        let guesses = COUNTED.map(|part| self.groups_by(nodes, part));
        let best = guesses.into_iter().flatten();
        best.max_by(|one, other| one.explained.total_cmp(&other.explained))
    }

    /// Like [`PairSpeeds::groups`]; of each pair, the burst counts than which one of `part` was slower.
    fn groups_by(&self, nodes: &[NodeId], part: usize) -> Option<Guess> {
        let table = Table::of(self, nodes, part);
        let all: BTreeSet<Groups> =
            table.steps().into_iter().map(|step| table.settled(step)).collect();
        let rated = all.into_iter().filter_map(|groups| Some((table.parted(&groups)?, groups)));
        let (parted, groups) =
            rated.max_by(|one, other| one.0.explained().total_cmp(&other.0.explained()))?;
        let named = |group: Vec<usize>| group.into_iter().map(|number| nodes[number]).collect();
        let mut groups: Vec<Vec<NodeId>> = groups.into_iter().map(named).collect();
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        let explained = parted.explained() / table.spread().max(f64::MIN_POSITIVE);
        (parted.gap() >= GAP).then_some(Guess { groups, explained })
    }
}

/// Groups of nodes that may share links.
#[derive(Clone, Debug)]
pub(crate) struct Guess {
    pub(crate) groups: Vec<Vec<NodeId>>,
    /// The share of the variation of rates that they explain, from 0 to 1.
    pub(crate) explained: f64,
}

/// The rate that counts for each pair; `None` for pairs that have not met.
struct Table(Vec<Vec<Option<f64>>>);

impl Table {
    fn of(speeds: &PairSpeeds, nodes: &[NodeId], part: usize) -> Self {
        let count = |one: &NodeId, other: &NodeId| {
            speeds.pairs.get(&(*one.min(other), *one.max(other))).map(|speeds| low(speeds, part))
        };
        Self(
            nodes.iter().map(|one| nodes.iter().map(|other| count(one, other)).collect()).collect(),
        )
    }

    /// Agglomerative clustering: starts with single nodes and merges the two fastest groups repeatedly; returns each
    /// step.
    fn steps(&self) -> Vec<Groups> {
        let mut groups: Groups = (0..self.0.len()).map(|node| vec![node]).collect();
        let mut steps = Vec::new();
        while groups.len() > 2 {
            let pairs = (0..groups.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
            let speeds = pairs.filter_map(|(one, other)| {
                Some((self.mean(&groups[one], &groups[other])?, one, other))
            });
            let fastest = speeds.max_by(|one, other| one.0.total_cmp(&other.0));
            let Some((_, one, other)) = fastest else { return steps };
            let joined = groups.remove(other);
            groups[one].extend(joined);
            steps.push(groups.clone());
        }
        steps
    }

    /// Moves each node to the group with which its mean rate is highest, which corrects early merges by chance.
    fn settled(&self, mut groups: Groups) -> Groups {
        for _ in 0..SETTLINGS {
            let mut has_moved = false;
            for node in 0..self.0.len() {
                let Some(own) = groups.iter().position(|group| group.contains(&node)) else {
                    continue;
                };
                let means = groups.iter().enumerate().filter(|(number, _)| *number != own);
                let means =
                    means.filter_map(|(number, group)| Some((self.mean(&[node], group)?, number)));
                let Some((best, to)) = means.max_by(|one, other| one.0.total_cmp(&other.0)) else {
                    continue;
                };
                // A single node may be one that is slow with all others.
                let least = match self.mean(&[node], &groups[own]) {
                    Some(mean) => mean,
                    None => self.mean(&groups[to], &groups[to]).unwrap_or(f64::INFINITY) / GAP,
                };
                if best > least {
                    groups[own].retain(|other| *other != node);
                    groups[to].push(node);
                    groups.retain(|group| !group.is_empty());
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        groups
    }

    /// Divides the pairs into those within groups and those across them.
    fn parted(&self, groups: &Groups) -> Option<PairMeans> {
        let mut group_of = vec![0; self.0.len()];
        for (number, group) in groups.iter().enumerate() {
            group.iter().for_each(|node| group_of[*node] = number);
        }
        let (mut within, mut across) = (Mean::default(), Mean::default());
        for (one, row) in self.0.iter().enumerate() {
            for (other, speed) in row.iter().enumerate().take(one) {
                let mean = if group_of[one] == group_of[other] { &mut within } else { &mut across };
                speed.iter().for_each(|speed| mean.add(*speed));
            }
        }
        (within.count > 0 && across.count > 0).then_some(PairMeans { within, across })
    }

    /// The variation of rates: the sum of squared deviations.
    fn spread(&self) -> f64 {
        let pairs = self.0.iter().enumerate().flat_map(|(one, row)| row.iter().take(one));
        let (mut mean, mut squares) = (Mean::default(), 0.0);
        for speed in pairs.flatten() {
            mean.add(*speed);
            squares += speed * speed;
        }
        squares - mean.get().unwrap_or_default() * mean.sum
    }

    fn mean(&self, one: &[usize], other: &[usize]) -> Option<f64> {
        let mut mean = Mean::default();
        for a in one {
            other
                .iter()
                .filter(|b| *b != a)
                .filter_map(|b| self.0[*a][*b])
                .for_each(|speed| mean.add(speed));
        }
        mean.get()
    }
}

/// The mean rates of pairs within groups and across groups.
struct PairMeans {
    within: Mean,
    across: Mean,
}

impl PairMeans {
    /// How much faster pairs within groups are than pairs across groups.
    fn gap(&self) -> f64 {
        let mean = |mean: &Mean| mean.get().unwrap_or_default();
        mean(&self.within) / mean(&self.across).max(f64::MIN_POSITIVE)
    }

    /// The variation that the difference of the two means explains: the sum of squares between the two kinds of pairs.
    /// Groups that leave out a fast pair explain less, however fast their own pairs are. The gap does not show that:
    /// with many small racks, few pairs are within groups, and the gap is largest for groups of the fastest pairs
    /// only.
    fn explained(&self) -> f64 {
        let [within, across] = [&self.within, &self.across]
            .map(|mean| (mean.get().unwrap_or_default(), f64::from(mean.count)));
        // Pairs that are slower within groups than across them explain nothing.
        let apart = (within.0 - across.0).max(0.0);
        within.1 * across.1 / (within.1 + across.1).max(1.0) * apart * apart
    }
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        (self.sum, self.count) = (self.sum + value, self.count + 1);
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// The rate that all but one of `part` bursts exceed. A pair that shares a link with others is fast when few of them use
/// it; a pair that shares none is slow only when a host is busy.
fn low(speeds: &[f64], part: usize) -> f64 {
    let mut all = speeds.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / part).copied().unwrap_or_default()
}
