//! Cutting planes: inequalities that every ring satisfies and that a fractional ring, the solution of an LP, may
//! violate.
//!
//! A ring crosses the boundary of each set of nodes at least twice (subtour elimination). It crosses each boundary an
//! even number of times, so an odd set of edges, the teeth, cannot be the only ones (comb inequalities). This module
//! takes the fractions of edges. It depends neither on costs nor on an LP solver.

use std::{cmp::Ordering, collections::BinaryHeap};

/// Fractions this near to 0 or 1 count as 0 or 1.
const NOTHING: f64 = 1e-6;
/// A cut is reported when it is violated by more than this.
const BROKEN: f64 = 1e-4;
/// Thresholds for the first heuristic: sets of nodes connected by edges of at least these fractions.
const FIRM: [f64; 5] = [1.0 - NOTHING, 0.8, 0.6, 0.4, 0.2];
/// Thresholds for combs. Teeth are edges with a fraction near 1. Handles are connected by edges with fractions near
/// neither 0 nor 1.
const LOOSE: [f64; 3] = [NOTHING, 0.1, 0.3];

/// The inequality: the edges that leave a set, with those of `teeth` counted negative, sum to at least [`Cut::least`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    inside: Vec<u32>,
    teeth: Vec<(u32, u32)>,
}

impl Cut {
    /// Creates a cut of a graph with `len` nodes; `None` if some ring would violate it.
    pub fn new(len: usize, mut inside: Vec<u32>, mut teeth: Vec<(u32, u32)>) -> Option<Self> {
        inside.sort_unstable();
        let is_set = inside.windows(2).all(|pair| pair[0] < pair[1])
            && inside.last().is_some_and(|&last| (last as usize) < len)
            && inside.len() < len;
        teeth.iter_mut().for_each(|edge| *edge = (edge.0.min(edge.1), edge.0.max(edge.1)));
        teeth.sort_unstable();
        let holds = |node: u32| inside.binary_search(&node).is_ok();
        let is_odd = teeth.len() % 2 == 1 || teeth.is_empty();
        let are_teeth = teeth.windows(2).all(|pair| pair[0] < pair[1])
            && teeth.iter().all(|&(a, b)| (b as usize) < len && holds(a) != holds(b));
        (is_set && is_odd && are_teeth).then_some(Self { inside, teeth })
    }

    /// The nodes of the set.
    pub fn inside(&self) -> &[u32] {
        &self.inside
    }

    /// The edges that count negative: none, or an odd number.
    pub fn teeth(&self) -> &[(u32, u32)] {
        &self.teeth
    }

    /// The right-hand side: no ring is below it.
    pub fn least(&self) -> i64 {
        if self.teeth.is_empty() { 2 } else { 1 - self.teeth.len() as i64 }
    }
}

/// Union-find over nodes.
struct Groups(Vec<u32>);

impl Groups {
    fn new(len: usize) -> Self {
        Self((0..len as u32).collect())
    }

    fn root(&mut self, mut node: u32) -> u32 {
        while self.0[node as usize] != node {
            let above = self.0[self.0[node as usize] as usize];
            self.0[node as usize] = above;
            node = above;
        }
        node
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a as usize] = b;
    }

    /// Returns the groups, indexed by root.
    fn sets(&mut self) -> Vec<Vec<u32>> {
        let mut sets = vec![Vec::new(); self.0.len()];
        for node in 0..self.0.len() as u32 {
            let root = self.root(node);
            sets[root as usize].push(node);
        }
        sets
    }
}

/// Finds cuts that these fractions violate, without duplicates: sets first, and combs only if no set is violated.
pub fn broken(len: usize, edges: &[(u32, u32)], parts: &[f64]) -> Vec<Cut> {
    let mut sets = firm_sets(len, edges, parts, NOTHING);
    if sets.is_empty() {
        sets = FIRM.iter().flat_map(|&part| firm_sets(len, edges, parts, part)).collect();
        sets.extend(small_sets(len, edges, parts));
    }
    // A set and its complement are the same cut: keep the smaller one.
    for set in &mut sets {
        set.sort_unstable();
        if 2 * set.len() > len {
            *set = (0..len as u32).filter(|node| set.binary_search(node).is_err()).collect();
        }
    }
    sets.sort();
    sets.dedup();
    let mut cuts: Vec<Cut> =
        sets.into_iter().filter_map(|set| Cut::new(len, set, Vec::new())).collect();
    // Combs are expensive, and many violated combs disappear once the sets are satisfied.
    if cuts.is_empty() {
        for part in LOOSE {
            for cut in combs(len, edges, parts, part) {
                if !cuts.contains(&cut) {
                    cuts.push(cut);
                }
            }
        }
    }
    cuts
}

/// Finds sets connected by edges of at least this fraction, whose boundary sums to less than 2.
fn firm_sets(len: usize, edges: &[(u32, u32)], parts: &[f64], least: f64) -> Vec<Vec<u32>> {
    let mut groups = Groups::new(len);
    for (&(a, b), _) in edges.iter().zip(parts).filter(|edge| *edge.1 >= least) {
        groups.join(a, b);
    }
    let mut leaving = vec![0.0; len];
    for (&(a, b), part) in edges.iter().zip(parts) {
        let (a, b) = (groups.root(a), groups.root(b));
        if a != b {
            leaving[a as usize] += part;
            leaving[b as usize] += part;
        }
    }
    let sets = groups.sets().into_iter().zip(leaving);
    sets.filter(|(set, leaving)| !set.is_empty() && set.len() < len && *leaving < 2.0 - BROKEN)
        .map(|found| found.0)
        .collect()
}

/// A node with the sum of its edges to the nodes taken so far.
struct Joined(f64, u32);

impl PartialEq for Joined {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Joined {}

impl PartialOrd for Joined {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Joined {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(other.1.cmp(&self.1))
    }
}

/// Finds sets whose boundary sums to less than 2, including a minimum cut (Stoer and Wagner).
///
/// Each step takes the node with the largest sum to the nodes taken before. The last node is one candidate set, and is
/// then merged with the node before it. Consecutive nodes with a sum of 2 or more are never separated by a cut below 2
/// (Nagamochi and Ibaraki), so they are merged too.
fn small_sets(len: usize, edges: &[(u32, u32)], parts: &[f64]) -> Vec<Vec<u32>> {
    let mut groups = Groups::new(len);
    let mut beside: Vec<Vec<(u32, f64)>> = vec![Vec::new(); len];
    for (&(a, b), &part) in edges.iter().zip(parts).filter(|edge| *edge.1 > NOTHING) {
        beside[a as usize].push((b, part));
        beside[b as usize].push((a, part));
    }
    let mut members: Vec<Vec<u32>> = (0..len as u32).map(|node| vec![node]).collect();
    let mut left: Vec<u32> = (0..len as u32).collect();
    let mut found = Vec::new();
    let mut joined = vec![0.0; len];
    let mut is_taken = vec![false; len];
    while left.len() > 1 {
        for &node in &left {
            (joined[node as usize], is_taken[node as usize]) = (0.0, false);
        }
        let mut queue: BinaryHeap<Joined> = left.iter().map(|&node| Joined(0.0, node)).collect();
        let mut order = Vec::with_capacity(left.len());
        while let Some(Joined(by, node)) = queue.pop() {
            if is_taken[node as usize] || by < joined[node as usize] {
                continue;
            }
            is_taken[node as usize] = true;
            order.push(node);
            for &(next, part) in &beside[node as usize] {
                let next = groups.root(next);
                if !is_taken[next as usize] {
                    joined[next as usize] += part;
                    queue.push(Joined(joined[next as usize], next));
                }
            }
        }
        let last = order[order.len() - 1];
        if joined[last as usize] < 2.0 - BROKEN {
            found.push(members[last as usize].clone());
        }
        for at in (1..order.len()).rev() {
            let (into, node) = (order[at - 1], order[at]);
            if node != last && joined[node as usize] < 2.0 - NOTHING {
                continue;
            }
            groups.0[node as usize] = into;
            let (more, nodes) = (
                std::mem::take(&mut beside[node as usize]),
                std::mem::take(&mut members[node as usize]),
            );
            beside[into as usize].extend(more);
            members[into as usize].extend(nodes);
        }
        left.retain(|&node| groups.0[node as usize] == node);
        for &node in &left {
            let own = std::mem::take(&mut beside[node as usize]);
            beside[node as usize] =
                own.into_iter().filter(|&(next, _)| groups.root(next) != node).collect();
        }
    }
    found
}

/// Finds combs: handles connected by loose edges, with the firm edges that leave them as teeth.
fn combs(len: usize, edges: &[(u32, u32)], parts: &[f64], loose: f64) -> Vec<Cut> {
    let mut groups = Groups::new(len);
    for (&(a, b), &part) in edges.iter().zip(parts) {
        if part >= loose && part <= 1.0 - loose {
            groups.join(a, b);
        }
    }
    // For each handle: the sum of the leaving edges that are not teeth, plus what the teeth lack to 1.
    let mut rest = vec![0.0; len];
    let mut teeth: Vec<Vec<(u32, u32)>> = vec![Vec::new(); len];
    for (&(a, b), &part) in edges.iter().zip(parts) {
        let roots = [groups.root(a), groups.root(b)];
        if roots[0] == roots[1] {
            continue;
        }
        for root in roots {
            if part > 1.0 - loose {
                teeth[root as usize].push((a, b));
                rest[root as usize] += 1.0 - part;
            } else {
                rest[root as usize] += part;
            }
        }
    }
    let handles = groups.sets().into_iter().zip(teeth).zip(rest);
    handles
        .filter(|((_, teeth), rest)| {
            teeth.len() >= 3 && teeth.len() % 2 == 1 && *rest < 1.0 - BROKEN
        })
        .filter_map(|((handle, teeth), _)| Cut::new(len, handle, teeth))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Left-hand side of a cut for these fractions.
    fn sum(cut: &Cut, edges: &[(u32, u32)], parts: &[f64]) -> f64 {
        let holds = |node: &u32| cut.inside().contains(node);
        let leaves = edges.iter().zip(parts).filter(|edge| holds(&edge.0.0) != holds(&edge.0.1));
        leaves.map(|(edge, part)| if cut.teeth().contains(edge) { -part } else { *part }).sum()
    }

    /// The smallest boundary of any set, by brute force.
    fn least(len: usize, edges: &[(u32, u32)], parts: &[f64]) -> f64 {
        let leaving = |set: u32| {
            let leaves = |edge: &(u32, u32)| (set >> edge.0 & 1) != (set >> edge.1 & 1);
            edges.iter().zip(parts).filter(|edge| leaves(edge.0)).map(|edge| edge.1).sum::<f64>()
        };
        (1..1u32 << (len - 1)).map(leaving).fold(f64::INFINITY, f64::min)
    }

    fn ring(order: &[u32]) -> Vec<(u32, u32)> {
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(&a, &b)| (a.min(b), a.max(b))).collect()
    }

    #[test]
    fn rings_violate_no_cut_and_reported_cuts_are_violated() {
        let mut random = Random::new(11);
        let mut told = [0, 0];
        for round in 0..400 {
            let len = 5 + round % 6;
            // A mix of rings satisfies every cut; a mix that contains two smaller rings may not.
            let mut rings = Vec::new();
            for _ in 0..3 {
                let mut order: Vec<u32> = (0..len as u32).collect();
                random.shuffle(&mut order);
                rings.push(ring(&order));
            }
            let mut order: Vec<u32> = (0..len as u32).collect();
            random.shuffle(&mut order);
            let half = 3.min(len - 2);
            let mut apart = ring(&order[..half]);
            apart.extend(ring(&order[half..]));
            let is_apart = round % 2 == 1 && len >= 6;
            if is_apart {
                rings.push(apart);
            }
            let mut edges: Vec<(u32, u32)> = rings.iter().flatten().copied().collect();
            edges.sort_unstable();
            edges.dedup();
            let share = if is_apart { 0.7 / (rings.len() - 1) as f64 } else { 1.0 / 3.0 };
            let part = |edge: &(u32, u32)| {
                let of = |(at, ring): (usize, &Vec<(u32, u32)>)| {
                    let share = if is_apart && at == 3 { 0.3 } else { share };
                    if ring.contains(edge) { share } else { 0.0 }
                };
                rings.iter().enumerate().map(of).sum::<f64>()
            };
            let parts: Vec<f64> = edges.iter().map(part).collect();
            let cuts = broken(len, &edges, &parts);
            assert!(is_apart || cuts.is_empty(), "{cuts:?} of parts of rings");
            for cut in &cuts {
                assert!(sum(cut, &edges, &parts) < cut.least() as f64 - BROKEN / 2.0, "{cut:?}");
                // Every ring satisfies the cut.
                let whole: Vec<f64> = vec![1.0; len];
                assert!(sum(cut, &rings[0], &whole) >= cut.least() as f64, "{cut:?}");
                told[usize::from(!cut.teeth().is_empty())] += 1;
            }
            let is_small = least(len, &edges, &parts) < 2.0 - 2.0 * BROKEN;
            assert_eq!(is_small, cuts.iter().any(|cut| cut.teeth().is_empty()));
        }
        assert!(told[0] > 0, "{told:?}");
    }

    #[test]
    fn two_triangles_of_halves_with_three_edges_between_are_a_comb() {
        let edges = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (0, 3), (1, 4), (2, 5)];
        let parts = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0];
        let cuts = broken(6, &edges, &parts);
        assert!(!cuts.is_empty());
        for cut in cuts {
            assert_eq!(cut.teeth(), [(0, 3), (1, 4), (2, 5)]);
            assert_eq!(cut.least(), -2);
        }
    }

    #[test]
    fn a_cut_that_some_ring_violates_is_refused() {
        assert!(Cut::new(4, vec![0, 1], vec![]).is_some());
        assert!(Cut::new(4, vec![], vec![]).is_none());
        assert!(Cut::new(4, vec![0, 1, 2, 3], vec![]).is_none());
        assert!(Cut::new(4, vec![0, 4], vec![]).is_none());
        assert!(Cut::new(4, vec![1, 1], vec![]).is_none());
        assert!(Cut::new(4, vec![0, 1], vec![(0, 2)]).is_some());
        assert!(Cut::new(4, vec![0, 1], vec![(0, 1)]).is_none());
        assert!(Cut::new(4, vec![0, 1], vec![(0, 2), (1, 3)]).is_none());
        assert!(Cut::new(4, vec![0, 1], vec![(0, 2), (2, 0), (1, 3)]).is_none());
    }
}
