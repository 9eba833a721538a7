//! Groups machines that are near each other (racks, pods, zones) by round-trip times alone.
//!
//! [`by_gaps`] uses single linkage: the nearest groups are joined first. If the next join is much more expensive than
//! the last one, the current groups form a level. [`by_means`] runs K-means on the rows of the matrix and chooses the
//! number of groups by silhouette.

use crate::{matrix::Matrix, random::Random};

/// A join that costs this many times the previous one starts a new level.
const GAP: f64 = 1.6;
/// Maximum number of K-means iterations; it converges long before.
const ROUNDS: usize = 30;

/// One level of groups: the group of each machine. Groups are numbered from 0 in the order of their first machine.
pub type Level = Vec<u32>;

/// Returns the levels of groups, the smallest groups first. The list is empty if there are no gaps between the times.
pub fn by_gaps(rtt: &Matrix) -> Vec<Level> {
    let joins = joins(rtt);
    let mut levels: Vec<Level> = Vec::new();
    for at in 1..joins.len() {
        if joins[at].0 > GAP * joins[at - 1].0 && joins[at - 1].0 > 0.0 {
            let level = groups_after(rtt.len(), &joins[..at]);
            let count = count(&level);
            // A level with almost as many groups as machines is not informative, nor is a single outlier.
            let is_new = levels.last().is_none_or(|last| self::count(last) != count);
            if is_new && count <= rtt.len().div_ceil(2) {
                levels.push(level);
            }
        }
    }
    levels
}

/// Groups machines connected by round-trip times of at most `rtt_us`.
pub fn within(rtt: &Matrix, rtt_us: f64) -> Level {
    let joins = joins(rtt);
    let end = joins.partition_point(|join| join.0 <= rtt_us);
    groups_after(rtt.len(), &joins[..end])
}

/// Number of groups of a level.
pub fn count(level: &[u32]) -> usize {
    level.iter().max().map_or(0, |&last| last as usize + 1)
}

/// Number of machines of each group.
pub fn sizes(level: &[u32]) -> Vec<usize> {
    let mut sizes = vec![0; count(level)];
    level.iter().for_each(|&group| sizes[group as usize] += 1);
    sizes
}

/// Edges of a minimum spanning tree, shortest first, as (time, machine, machine). Each edge joins two groups.
pub fn joins(rtt: &Matrix) -> Vec<(f64, u32, u32)> {
    let len = rtt.len();
    let mut joins = Vec::with_capacity(len.saturating_sub(1));
    let mut nearest: Vec<(f64, u32)> = vec![(f64::INFINITY, 0); len];
    let mut is_in = vec![false; len];
    let mut last = 0;
    for _ in 1..len {
        is_in[last] = true;
        let mut next = (f64::INFINITY, 0);
        for (other, &time) in rtt.row(last).iter().enumerate() {
            if is_in[other] {
                continue;
            }
            if time < nearest[other].0 {
                nearest[other] = (time, last as u32);
            }
            if nearest[other].0 < next.0 {
                next = (nearest[other].0, other);
            }
        }
        joins.push((next.0, nearest[next.1].1, next.1 as u32));
        last = next.1;
    }
    joins.sort_by(|a, b| a.0.total_cmp(&b.0));
    joins
}

/// Disjoint sets (union-find).
#[derive(Clone, Debug)]
pub struct Sets {
    parent: Vec<u32>,
    size: Vec<u32>,
}

impl Sets {
    /// Creates `len` sets of one member each.
    pub fn new(len: usize) -> Self {
        Self { parent: (0..len as u32).collect(), size: vec![1; len] }
    }

    /// Returns the root of a member's set.
    pub fn root(&mut self, mut member: u32) -> u32 {
        while self.parent[member as usize] != member {
            let above = self.parent[self.parent[member as usize] as usize];
            self.parent[member as usize] = above;
            member = above;
        }
        member
    }

    /// Number of members in the set of a root.
    pub fn size(&self, root: u32) -> usize {
        self.size[root as usize] as usize
    }

    /// Joins the sets of two members. Returns whether they were different sets.
    pub fn join(&mut self, a: u32, b: u32) -> bool {
        let (mut a, mut b) = (self.root(a), self.root(b));
        if a == b {
            return false;
        }
        if self.size[a as usize] < self.size[b as usize] {
            (a, b) = (b, a);
        }
        self.parent[b as usize] = a;
        self.size[a as usize] += self.size[b as usize];
        true
    }
}

fn groups_after(len: usize, joins: &[(f64, u32, u32)]) -> Level {
    let mut sets = Sets::new(len);
    for &(_, a, b) in joins {
        sets.join(a, b);
    }
    let roots: Vec<u32> = (0..len as u32).map(|machine| sets.root(machine)).collect();
    numbered(&roots)
}

/// Numbers groups from 0 in the order of their first machine, given any labels.
pub fn numbered(labels: &[u32]) -> Level {
    let mut known: Vec<u32> = Vec::new();
    labels
        .iter()
        .map(|label| {
            known.iter().position(|other| other == label).unwrap_or_else(|| {
                known.push(*label);
                known.len() - 1
            }) as u32
        })
        .collect()
}

/// Groups machines by K-means on the rows of the matrix: each machine is near the mean row of its group.
///
/// The number of groups is between 2 and the square root of the number of machines; the largest silhouette decides. A
/// large silhouette means that machines are near their own group and far from the next one.
pub fn by_means(rtt: &Matrix, seed: u64) -> Level {
    let len = rtt.len();
    let most = (len as f64).sqrt().ceil() as usize;
    let mut random = Random::new(seed);
    let mut best = (f64::NEG_INFINITY, vec![0; len]);
    for count in 2..=most.min(len.saturating_sub(1)) {
        let level = numbered(&means(rtt, count, &mut random));
        let shape = silhouette(rtt, &level);
        if shape > best.0 {
            best = (shape, level);
        }
    }
    best.1
}

fn means(rtt: &Matrix, count: usize, random: &mut Random) -> Vec<u32> {
    let len = rtt.len();
    // K-means++ initialization: each new center is far from the existing ones.
    let mut centres = vec![rtt.row(random.below(len)).to_vec()];
    let mut far: Vec<f64> = (0..len).map(|at| distance(rtt.row(at), &centres[0])).collect();
    while centres.len() < count {
        let mut rest = random.unit() * far.iter().sum::<f64>();
        let at = far.iter().position(|&part| {
            rest -= part;
            rest <= 0.0
        });
        centres.push(rtt.row(at.unwrap_or(len - 1)).to_vec());
        for (at, part) in far.iter_mut().enumerate() {
            *part = part.min(distance(rtt.row(at), &centres[centres.len() - 1]));
        }
    }
    let mut level = vec![0; len];
    for _ in 0..ROUNDS {
        let next: Vec<u32> = (0..len)
            .map(|at| {
                let to = |centre: &Vec<f64>| distance(rtt.row(at), centre);
                let nearest =
                    (0..count).min_by(|&a, &b| to(&centres[a]).total_cmp(&to(&centres[b])));
                nearest.unwrap_or(0) as u32
            })
            .collect();
        if next == level {
            break;
        }
        level = next;
        for (group, centre) in centres.iter_mut().enumerate() {
            let members: Vec<usize> = (0..len).filter(|&at| level[at] as usize == group).collect();
            if !members.is_empty() {
                for (column, mean) in centre.iter_mut().enumerate() {
                    let sum: f64 = members.iter().map(|&at| rtt.at(at, column)).sum();
                    *mean = sum / members.len() as f64;
                }
            }
        }
    }
    level
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Mean over all machines of (b - a) / max(a, b): a is the mean time to the machine's own group, b to the nearest other
/// group.
fn silhouette(rtt: &Matrix, level: &[u32]) -> f64 {
    let sizes = sizes(level);
    let mut sum = 0.0;
    for machine in 0..rtt.len() {
        let own = level[machine] as usize;
        if sizes[own] < 2 {
            continue;
        }
        let mut times = vec![0.0; sizes.len()];
        for (other, &time) in rtt.row(machine).iter().enumerate() {
            times[level[other] as usize] += time;
        }
        let inside = times[own] / (sizes[own] - 1) as f64;
        let outside = (0..sizes.len())
            .filter(|&group| group != own)
            .map(|group| times[group] / sizes[group] as f64)
            .fold(f64::INFINITY, f64::min);
        if outside.is_finite() && inside.max(outside) > 0.0 {
            sum += (outside - inside) / inside.max(outside);
        }
    }
    sum / rtt.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(machine: usize) -> u32 {
        u32::from(machine >= 5) + u32::from(machine >= 8)
    }

    fn three() -> Matrix {
        Matrix::of(16, |a, b| {
            let noise = ((a * 7 + b * 3) % 5) as f64;
            if racks(a) == racks(b) { 10.0 + noise } else { 60.0 + 2.0 * noise }
        })
    }

    #[test]
    fn both_methods_find_uneven_racks() {
        let expected: Vec<u32> = (0..16).map(racks).collect();
        assert_eq!(by_gaps(&three()), std::slice::from_ref(&expected));
        assert_eq!(by_means(&three(), 1), expected);
        assert_eq!(within(&three(), 20.0), expected);
    }

    #[test]
    fn equal_times_have_no_groups() {
        let flat = Matrix::of(8, |_, _| 20.0);
        assert!(by_gaps(&flat).is_empty());
        assert_eq!(count(&within(&flat, 20.0)), 1);
        assert_eq!(by_means(&Matrix::of(1, |_, _| 0.0), 1), [0]);
    }
}
