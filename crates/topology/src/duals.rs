//! Computes exact lower bounds of rings from the dual prices of an LP. The bound is valid for any prices.
//!
//! Each node has two edges, and each [`Cut`] has a minimum. A price on a node or cut counts the same or more in every
//! ring. A ring therefore costs at least the sum of the prices, plus the negative reduced costs of edges. Costs and
//! prices are first converted to integers, with costs rounded down, so the sum is exact. This module does not depend on
//! an LP solver: good prices give a high bound, bad ones a low bound.

use crate::{cuts::Cut, matrix::Matrix};

/// The largest cost is scaled to about 2 to this power, so rounding loses less than a billionth of it per edge.
const BITS: i32 = 36;
/// The sum of prices on one edge stays below 2 to this power, whatever the prices are.
const ROOM: i32 = 60;

/// Dual prices, and constraints on edges.
#[derive(Clone, Copy, Debug)]
pub struct Duals<'a> {
    /// The price of each node.
    pub nodes: &'a [f64],
    /// Cuts with their prices; a price below 0 counts as 0.
    pub cuts: &'a [(Cut, f64)],
    /// Edges that the rings must contain (true) or must not contain (false).
    pub fixed: &'a [(u32, u32, bool)],
    /// Edges that the rings may use; `None` means all.
    pub among: Option<&'a [(u32, u32)]>,
}

/// A lower bound, and the edges relevant to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// No ring that meets the constraints costs less.
    pub bound: f64,
    /// Edges with their reduced costs, lowest first.
    pub edges: Vec<(f64, u32, u32)>,
}

/// Prices as integers.
struct Whole<'a> {
    costs: &'a Matrix,
    scale: f64,
    /// Price of each node, including the prices of the cuts that contain it.
    nodes: Vec<i64>,
    /// For each node, a bit set of the cuts that contain it.
    inside: Vec<Vec<u64>>,
    prices: Vec<i64>,
    /// For each node, the teeth to nodes with higher numbers.
    teeth: Vec<Vec<(u32, i64)>>,
    sum: i128,
}

/// Computes a lower bound of all rings that meet the constraints, with the edges whose reduced cost is negative. If the
/// cost of a ring is `known`, returns all edges that a shorter ring can use instead.
pub fn bound(costs: &Matrix, duals: &Duals<'_>, known: Option<f64>) -> Bound {
    let whole = Whole::new(costs, duals);
    let mut sum = whole.sum;
    whole.visit(duals.among, |_, _, beyond| sum += i128::from(beyond.min(0)));
    let order = |&(a, b, is_in): &(u32, u32, bool)| (a.min(b), a.max(b), is_in);
    let mut fixed: Vec<(u32, u32, bool)> = duals.fixed.iter().map(order).collect();
    fixed.sort_unstable();
    fixed.dedup_by_key(|edge| (edge.0, edge.1));
    for (a, b, is_in) in fixed {
        let is_among =
            duals.among.is_none_or(|among| among.contains(&(a, b)) || among.contains(&(b, a)));
        if is_among {
            // A forced edge always counts, a forbidden one never.
            let beyond = whole.beyond(a, b);
            sum += i128::from(if is_in { beyond.max(0) } else { -beyond.min(0) });
        }
    }
    let room = known.map_or(0, |known| (known * whole.scale).ceil() as i128 - sum);
    let mut edges = Vec::new();
    whole.visit(duals.among, |a, b, beyond| {
        if i128::from(beyond) < room {
            edges.push((beyond, a, b));
        }
    });
    edges.sort_unstable();
    let edges = edges.into_iter().map(|(beyond, a, b)| (beyond as f64 / whole.scale, a, b));
    let mut rounded = sum as f64;
    if rounded as i128 > sum {
        rounded = rounded.next_down();
    }
    Bound { bound: rounded / whole.scale, edges: edges.collect() }
}

impl<'a> Whole<'a> {
    fn new(costs: &'a Matrix, duals: &Duals<'_>) -> Self {
        let len = costs.len();
        let largest = costs.max().max(f64::MIN_POSITIVE);
        let scale = 2.0_f64.powi((BITS - largest.log2().ceil() as i32).min(1000));
        let most = 2.0_f64.powi(ROOM) / (duals.cuts.len() as f64 + 2.0);
        let round = |price: f64| (price * scale).clamp(-most, most).floor() as i64;
        let mut nodes: Vec<i64> = duals.nodes.iter().map(|&price| round(price)).collect();
        nodes.resize(len, 0);
        let mut sum = 2 * nodes.iter().map(|&price| i128::from(price)).sum::<i128>();
        let priced = duals.cuts.iter().map(|(cut, price)| (cut, round(*price)));
        let priced: Vec<(&Cut, i64)> = priced.filter(|priced| priced.1 > 0).collect();
        let mut inside = vec![vec![0; priced.len().div_ceil(64)]; len];
        let mut teeth: Vec<Vec<(u32, i64)>> = vec![Vec::new(); len];
        for (at, &(cut, price)) in priced.iter().enumerate() {
            sum += i128::from(cut.least()) * i128::from(price);
            for &node in cut.inside() {
                nodes[node as usize] += price;
                inside[node as usize][at / 64] |= 1 << (at % 64);
            }
            cut.teeth().iter().for_each(|&(a, b)| teeth[a as usize].push((b, price)));
        }
        let prices = priced.into_iter().map(|priced| priced.1).collect();
        Self { costs, scale, nodes, inside, prices, teeth, sum }
    }

    /// Reduced cost of an edge without teeth.
    #[inline]
    fn beyond_sets(&self, a: u32, b: u32) -> i64 {
        let (a, b) = (a as usize, b as usize);
        let mut beyond = (self.costs.at(a, b) * self.scale) as i64 - self.nodes[a] - self.nodes[b];
        // An edge inside a set does not cross its boundary.
        for (at, (one, other)) in self.inside[a].iter().zip(&self.inside[b]).enumerate() {
            let mut both = one & other;
            while both != 0 {
                beyond += 2 * self.prices[64 * at + both.trailing_zeros() as usize];
                both &= both - 1;
            }
        }
        beyond
    }

    /// Reduced cost of an edge; `a` must be less than `b`.
    fn beyond(&self, a: u32, b: u32) -> i64 {
        let teeth = self.teeth[a as usize].iter().filter(|tooth| tooth.0 == b);
        self.beyond_sets(a, b) + 2 * teeth.map(|tooth| tooth.1).sum::<i64>()
    }

    fn visit(&self, among: Option<&[(u32, u32)]>, mut take: impl FnMut(u32, u32, i64)) {
        if let Some(among) = among {
            for &(a, b) in among {
                let (a, b) = (a.min(b), a.max(b));
                take(a, b, self.beyond(a, b));
            }
            return;
        }
        for a in 0..self.nodes.len() as u32 {
            let has_teeth = !self.teeth[a as usize].is_empty();
            for b in a + 1..self.nodes.len() as u32 {
                take(a, b, if has_teeth { self.beyond(a, b) } else { self.beyond_sets(a, b) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{random::Random, rings::brute_force};

    fn some_cuts(len: usize, random: &mut Random) -> Vec<(Cut, f64)> {
        let mut cuts = Vec::new();
        for _ in 0..6 {
            let mut nodes: Vec<u32> = (0..len as u32).collect();
            random.shuffle(&mut nodes);
            let (inside, rest) = nodes.split_at(1 + random.below(len - 2));
            let teeth: Vec<(u32, u32)> =
                inside.iter().copied().zip(rest.iter().copied()).take(3).collect();
            let teeth = if teeth.len() == 3 && random.below(2) == 0 { teeth } else { Vec::new() };
            let cut = Cut::new(len, inside.to_vec(), teeth).unwrap();
            cuts.push((cut, 0.3 * random.unit()));
        }
        cuts
    }

    #[test]
    fn bounds_never_exceed_the_shortest_ring() {
        let mut random = Random::new(4);
        for round in 0..300 {
            let len = 5 + round % 4;
            let scale = [1.0, 1e-6, 1e9][round % 3];
            let matrix = Matrix::of(len, |_, _| scale * random.unit());
            let shortest = brute_force(&matrix);
            let nodes: Vec<f64> = (0..len).map(|_| scale * (random.unit() - 0.3)).collect();
            let mut cuts = some_cuts(len, &mut random);
            cuts.iter_mut().for_each(|cut| cut.1 *= scale);
            let duals = Duals { nodes: &nodes, cuts: &cuts, fixed: &[], among: None };
            let found = bound(&matrix, &duals, None);
            assert!(found.bound <= shortest, "{} above {shortest}", found.bound);
            // Meaningless prices.
            for price in [f64::NAN, f64::INFINITY, -1e300] {
                let nodes = vec![price; len];
                let duals = Duals { nodes: &nodes, ..duals };
                assert!(bound(&matrix, &duals, None).bound <= shortest);
            }
        }
    }

    #[test]
    fn excluded_edges_are_in_no_shorter_ring_and_fixed_ones_raise_the_bound() {
        let mut random = Random::new(9);
        for round in 0..200 {
            let len = 5 + round % 3;
            let matrix = Matrix::of(len, |_, _| 0.2 + random.unit());
            let shortest = brute_force(&matrix);
            let nodes: Vec<f64> = (0..len).map(|_| 0.35 * random.unit()).collect();
            let cuts = some_cuts(len, &mut random);
            let duals = Duals { nodes: &nodes, cuts: &cuts, fixed: &[], among: None };
            let known = shortest * 1.001;
            let left: Vec<(u32, u32)> =
                bound(&matrix, &duals, Some(known)).edges.iter().map(|it| (it.1, it.2)).collect();
            // Without the other edges, the shortest ring has the same length.
            let few = |a: usize, b: usize| left.contains(&(b as u32, a as u32));
            let dear = Matrix::of(len, |a, b| if few(a, b) { matrix.at(a, b) } else { 1e3 });
            assert!((brute_force(&dear) - shortest).abs() < 1e-9);
            // Force one edge, or forbid it: rings without the edge cost at least the second bound.
            let (a, b) = left[random.below(left.len())];
            let kinds = [true, false].map(|is_in| {
                let fixed = [(b, a, is_in), (a, b, is_in)];
                bound(&matrix, &Duals { fixed: &fixed, among: Some(&left), ..duals }, None).bound
            });
            let without = Matrix::of(len, |row, column| {
                let is_edge = (row as u32, column as u32) == (b, a);
                if is_edge || !few(row, column) { 1e3 } else { matrix.at(row, column) }
            });
            assert!(kinds[1] <= brute_force(&without) + 1e-9);
            assert!(kinds[0].min(kinds[1]) <= shortest + 1e-9, "{kinds:?} above {shortest}");
            let free = bound(&matrix, &Duals { among: Some(&left), ..duals }, None).bound;
            assert!(free <= kinds[0] && free <= kinds[1]);
        }
    }
}
