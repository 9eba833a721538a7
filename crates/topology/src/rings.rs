//! Finds a short ring, and proves how short rings can be.
//!
//! The steps: a quick ring, then prices ([`crate::onetree`]), then a better ring from the edges that the prices make
//! likely, then a proof ([`crate::branch`]) on the edges that remain.

use crate::{
    branch::{self, Scratch, Sparse},
    matrix::Matrix,
    onetree::{self, Ascent},
    random::Random,
    tour::{self, Graph},
};

/// With more edges per node than this, branch and bound proves nothing, and a step on the edges is slower than on the
/// matrix.
const EDGES_EACH: usize = 40;
/// This many steps on a whole matrix take about as long as one case.
const STEPS_A_CASE: usize = 20;

/// Limits of the effort to find a ring.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Kicks of the local search.
    pub kicks: u64,
    /// Ascent steps of the bound on the whole matrix.
    pub steps: usize,
    /// Cases of the proof.
    pub cases: usize,
    /// The search ends when the ring is within this fraction of the bound.
    pub gap: f64,
}

/// A ring with its cost and lower bound.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The nodes in order.
    pub order: Vec<u32>,
    /// Cost of the ring.
    pub cost: f64,
    /// Lower bound of every ring.
    pub bound: f64,
}

/// Finds a short ring through all nodes of a matrix.
pub fn solve(
    matrix: &Matrix,
    effort: &Effort,
    random: &mut Random,
    is_over: &dyn Fn() -> bool,
) -> Ring {
    let len = matrix.len();
    let costs = matrix.cells();
    let start = tour::nearest_neighbours(len, costs);
    let near = matrix.nearest(8);
    let graph = Graph { len, costs, near: &near };
    if len <= 3 {
        let cost = graph.cost(&start);
        return Ring { order: start, cost, bound: cost };
    }
    let order = tour::shorten(graph, &start, 0, random, is_over);
    let cost = graph.cost(&order);
    let mut ring = Ring { order, cost, bound: 0.0 };

    let mut prices = climb(matrix, &mut ring, effort.steps, is_over);
    let mut proof_cases = 0;
    let mut left = effort.kicks;
    let mut portion = 8 * len as u64;
    let mut is_anew = false;
    while !is_near(&ring, effort) {
        let kicks = portion.min(left);
        left -= kicks;
        portion = portion.saturating_mul(3).min(1 << 40);
        if kicks > 0 {
            let tree = onetree::cheapest(len, costs, &prices);
            let edges = onetree::worthwhile(len, costs, &prices, &tree, f64::INFINITY);
            let (priced, near) = priced(matrix, &prices, onetree::likely(len, &edges, 8), 1.0);
            let graph = Graph { len, costs: &priced, near: &near };
            // A ring that kicks do not improve is sometimes not the shortest: every other search starts from the
            // initial ring.
            let from = if is_anew { &start } else { &ring.order };
            let order = tour::shorten(graph, from, kicks, random, is_over);
            take(matrix, &mut ring, order);
            is_anew = !is_anew;
        }
        if is_over() {
            break;
        }
        if proof_cases < effort.cases {
            let cases = (50 * portion as usize / len).min(effort.cases - proof_cases);
            proof_cases += prove(matrix, &mut prices, &mut ring, (cases, effort.gap), is_over);
            proof_cases += 1;
        }
        if kicks == 0 && proof_cases >= effort.cases {
            break;
        }
    }
    ring
}

fn is_near(ring: &Ring, effort: &Effort) -> bool {
    ring.cost - ring.bound <= effort.gap.max(1e-9) * ring.bound
}

fn take(matrix: &Matrix, ring: &mut Ring, order: Vec<u32>) {
    let cost = Graph { len: matrix.len(), costs: matrix.cells(), near: &[] }.cost(&order);
    if cost < ring.cost {
        (ring.cost, ring.order) = (cost, order);
    }
}

/// Raises the bound on the whole matrix. Returns the prices.
fn climb(matrix: &Matrix, ring: &mut Ring, steps: usize, is_over: &dyn Fn() -> bool) -> Vec<f64> {
    let len = matrix.len();
    let mut ascent = Ascent::new(vec![0.0; len], 1.0);
    for step in 0..steps.max(1) {
        if step > 0 && is_over() {
            break;
        }
        let tree = onetree::cheapest(len, matrix.cells(), ascent.now());
        ascent.hear(&tree, ring.cost, 8);
        if ascent.is_done() || ring.cost - ascent.bound <= 1e-9 * ring.cost {
            break;
        }
    }
    ring.bound = ring.bound.max(ascent.bound);
    ascent.prices
}

/// Runs the proof on fewer and fewer edges. Returns the number of cases used.
fn prove(
    matrix: &Matrix,
    prices: &mut Vec<f64>,
    ring: &mut Ring,
    (cases, gap): (usize, f64),
    is_over: &dyn Fn() -> bool,
) -> usize {
    let len = matrix.len();
    let mut scratch = Scratch::default();
    let mut graph = None;
    let mut used = 0;
    for _ in 0..4 {
        // A bound on the whole matrix with these prices allows edges to be dropped for good.
        let tree = onetree::cheapest(len, matrix.cells(), prices);
        ring.bound = ring.bound.max(tree.bound.min(ring.cost));
        let room = (ring.cost - tree.bound) + 1e-9 * ring.cost;
        let edges = onetree::worthwhile(len, matrix.cells(), prices, &tree, room);
        let is_whole = edges.len() > EDGES_EACH * len;
        let sparse = (!is_whole).then(|| Sparse::new(len, matrix.cells(), &edges));
        let steps = if is_whole { STEPS_A_CASE * (cases - used).min(STEPS_A_CASE) } else { 2000 };
        let mut climb = Ascent::new(prices.clone(), 0.5);
        for _ in 0..steps {
            let tree = match &sparse {
                Some(sparse) => sparse.cheapest(climb.now(), &mut scratch),
                None => Some(onetree::cheapest(len, matrix.cells(), climb.now())),
            };
            let Some(tree) = tree else { break };
            climb.hear(&tree, ring.cost, 20);
            if climb.is_done() || is_over() {
                break;
            }
        }
        if is_whole {
            used += steps / STEPS_A_CASE;
            ring.bound = ring.bound.max(climb.bound.min(ring.cost));
        }
        let is_better = climb.bound > tree.bound + 1e-7 * tree.bound;
        *prices = climb.prices;
        graph = sparse;
        if !is_better || used >= cases || is_over() {
            break;
        }
    }
    let Some(graph) = graph else { return used };
    let proof = branch::prove(&graph, prices, ring.cost, gap, cases - used, is_over);
    ring.bound = ring.bound.max(proof.bound.min(proof.cost));
    if let Some(order) = proof.order {
        take(matrix, ring, order);
    }
    used + proof.cases
}

/// Shortens a known ring with the edges that are likely in the shortest one. Each edge comes with its reduced cost for
/// `prices`.
pub fn shorten_among(
    matrix: &Matrix,
    (order, prices): (&[u32], &[f64]),
    edges: &[(f64, u32, u32)],
    kicks: u64,
    random: &mut Random,
    is_over: &dyn Fn() -> bool,
) -> Vec<u32> {
    let len = matrix.len();
    let near = onetree::likely(len, edges, 8);
    let (priced, near) = priced(matrix, prices, near, -1.0);
    let graph = Graph { len, costs: &priced, near: &near };
    tour::shorten(graph, order, kicks, random, is_over)
}

/// Returns costs plus or minus the prices of both nodes, and the likely neighbors sorted by these costs.
fn priced(
    matrix: &Matrix,
    prices: &[f64],
    mut near: Vec<Vec<u32>>,
    sign: f64,
) -> (Vec<f64>, Vec<Vec<u32>>) {
    let len = matrix.len();
    let costs = matrix.cells();
    let priced: Vec<f64> =
        (0..len * len).map(|at| costs[at] + sign * (prices[at / len] + prices[at % len])).collect();
    for (node, near) in near.iter_mut().enumerate() {
        near.sort_by(|&a, &b| {
            priced[node * len + a as usize].total_cmp(&priced[node * len + b as usize])
        });
    }
    (priced, near)
}

/// Improves a ring that was good before a few machines changed.
pub fn mend(matrix: &Matrix, order: &[u32], kicks: u64, random: &mut Random) -> Vec<u32> {
    let near = matrix.nearest(8);
    let graph = Graph { len: matrix.len(), costs: matrix.cells(), near: &near };
    tour::shorten(graph, order, kicks, random, &|| false)
}

/// Finds a long ring through all nodes.
pub fn longest(matrix: &Matrix, random: &mut Random, is_over: &dyn Fn() -> bool) -> Vec<u32> {
    let most = matrix.max();
    let turned = Matrix::of(matrix.len(), |a, b| most - matrix.at(a, b));
    let near = turned.nearest(8);
    let graph = Graph { len: turned.len(), costs: turned.cells(), near: &near };
    let start = tour::nearest_neighbours(turned.len(), turned.cells());
    tour::shorten(graph, &start, turned.len() as u64, random, is_over)
}

/// Cost of the shortest ring, by brute force; for tests.
pub fn brute_force(matrix: &Matrix) -> f64 {
    fn visit(matrix: &Matrix, order: &mut Vec<usize>, cost: f64, best: &mut f64) {
        let last = order[order.len() - 1];
        if order.len() == matrix.len() {
            *best = best.min(cost + matrix.at(last, 0));
            return;
        }
        for next in 1..matrix.len() {
            if !order.contains(&next) {
                order.push(next);
                visit(matrix, order, cost + matrix.at(last, next), best);
                order.pop();
            }
        }
    }
    let mut best = f64::INFINITY;
    visit(matrix, &mut vec![0], 0.0, &mut best);
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{DataCentre, data_centre};

    const EFFORT: Effort = Effort { kicks: 20_000, steps: 300, cases: 2000, gap: 0.0 };

    #[test]
    fn small_rings_are_the_shortest_and_proven() {
        let mut random = Random::new(5);
        for round in 0..60 {
            let len = 1 + round % 8;
            let matrix = match round % 2 {
                0 => Matrix::of(len, |_, _| random.unit()),
                _ => Matrix::of(len, |_, _| 1.0 + random.below(3) as f64),
            };
            let shortest = if len == 1 { 0.0 } else { brute_force(&matrix) };
            let ring = solve(&matrix, &EFFORT, &mut random, &|| false);
            assert!((ring.cost - shortest).abs() < 1e-9, "{len}: {} not {shortest}", ring.cost);
            assert!((ring.bound - shortest).abs() < 1e-6, "{len}: {} not {shortest}", ring.bound);
        }
    }

    #[test]
    fn a_ring_of_64_is_proven_and_the_seed_decides() {
        let (matrix, _) = data_centre(&DataCentre { machines: 64, ..DataCentre::default() }, 1);
        let one = solve(&matrix, &EFFORT, &mut Random::new(1), &|| false);
        assert!(one.cost - one.bound <= 1e-6 * one.cost, "{} above {}", one.cost, one.bound);
        assert_eq!(solve(&matrix, &EFFORT, &mut Random::new(1), &|| false).order, one.order);
    }

    #[test]
    fn an_improved_ring_is_as_good_as_a_new_one() {
        let (matrix, _) = data_centre(&DataCentre { machines: 96, ..DataCentre::default() }, 2);
        let before =
            solve(&matrix, &Effort { cases: 20, ..EFFORT }, &mut Random::new(1), &|| false);
        // Machine 5 moves to the place of machine 80.
        let moved = Matrix::of(96, |a, b| {
            let [a, b] = [a, b].map(|machine| if machine == 5 { 80 } else { machine });
            if a == b { 10.0 } else { matrix.at(a, b) }
        });
        // Two machines in one place cause many equally short rings; do not try to prove the optimum.
        let effort = Effort { cases: 20, ..EFFORT };
        let fresh = solve(&moved, &effort, &mut Random::new(1), &|| false);
        let mended = mend(&moved, &before.order, 2000, &mut Random::new(1));
        let graph = Graph { len: 96, costs: moved.cells(), near: &[] };
        assert!(graph.cost(&mended) <= 1.01 * fresh.cost);
    }
}
