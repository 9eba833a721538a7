//! A guess which nodes share a link, from how fast pairs of them were: those that were fast together are put together, the
//! fastest first, until the next would be much slower. Knows speeds alone.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::id::NodeId;

/// How much slower the next two groups are to each other than the last that were put together, if they are to stay apart.
const GAP: f64 = 1.25;

/// How fast bursts of pairs were, in any unit.
#[derive(Clone, Debug, Default)]
pub(super) struct Speeds {
    /// By the pair, the lower node first.
    pairs: BTreeMap<(NodeId, NodeId), Vec<f64>>,
}

impl Speeds {
    pub(super) fn add(&mut self, one: NodeId, other: NodeId, speed: f64) {
        self.pairs.entry((one.min(other), one.max(other))).or_default().push(speed);
    }

    /// Two or more groups; none if no gap shows any.
    pub(super) fn groups(&self, nodes: &[NodeId]) -> Option<Vec<Vec<NodeId>>> {
        let mut groups: Vec<Vec<NodeId>> = nodes.iter().map(|node| Vec::from([*node])).collect();
        let mut steps: Vec<(f64, Vec<Vec<NodeId>>)> = Vec::new();
        while groups.len() > 1 {
            let (speed, one, other) = self.fastest(&groups)?;
            steps.push((speed, groups.clone()));
            let joined = groups.remove(other);
            groups[one].extend(joined);
        }
        let gaps =
            steps.windows(2).map(|two| (two[0].0 / two[1].0.max(f64::MIN_POSITIVE), &two[1].1));
        let (gap, groups) = gaps.max_by(|one, other| one.0.total_cmp(&other.0))?;
        let mut groups = groups.clone();
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_unstable();
        (gap >= GAP).then_some(groups)
    }

    /// The two groups that are fastest to each other, and how fast they are on average.
    fn fastest(&self, groups: &[Vec<NodeId>]) -> Option<(f64, usize, usize)> {
        let pairs = (0..groups.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
        let speeds = pairs.filter_map(|(one, other)| {
            Some((self.between(&groups[one], &groups[other])?, one, other))
        });
        speeds.max_by(|one, other| one.0.total_cmp(&other.0))
    }

    fn between(&self, one: &[NodeId], other: &[NodeId]) -> Option<f64> {
        let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (*a.min(b), *a.max(b))));
        let (mut sum, mut count) = (0.0, 0);
        for speeds in pairs.filter_map(|pair| self.pairs.get(&pair)) {
            (sum, count) = (sum + low(speeds), count + 1);
        }
        (count > 0).then(|| sum / f64::from(count))
    }
}

/// What four of five were faster than. A pair that shares a link is fast when few others cross it; one that doesn't is slow
/// only when a host is busy, which is seldom.
fn low(speeds: &[f64]) -> f64 {
    let mut all = speeds.to_vec();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 5).copied().unwrap_or_default()
}
