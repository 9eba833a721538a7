//! Lower bound of the double tree, from paths of a given number of hops.
//!
//! In NCCL's tree it is known how many ranks are at least a given number of hops below the root. Whichever machine is
//! the root, that many machines are at the ends of paths with at least that many hops. If these are the nearest ones,
//! the distance of the farthest of them is a lower bound. Paths may visit a machine twice here, which makes the bound
//! lower, never too high.

use crate::{
    cost::fan,
    network::{Model, Network},
    schedule,
};

/// With more machines than this, path computation takes too long; the bound then uses the depth times the shortest hop.
const MACHINES_MAX: usize = 1024;

/// Computes a lower bound of the double tree of `ranks` machines.
pub fn bound(network: &Network, model: Model, ranks: usize, bytes: f64) -> f64 {
    if ranks < 2 {
        return 0.0;
    }
    let parents = schedule::double_tree_parents(ranks);
    let depths = schedule::depths(&parents[0]);
    let deepest = depths.iter().copied().max().unwrap_or(0);
    // Number of ranks that are at least this deep.
    let at_least: Vec<usize> =
        (0..=deepest).map(|depth| depths.iter().filter(|&&at| at >= depth).count()).collect();
    let len = network.rtt.len();
    let hop = |a: usize, b: usize| network.transfer_us(model, a, b, bytes / 2.0);
    let hops: Vec<f64> = (0..len * len).map(|at| hop(at / len, at % len)).collect();
    let longest = if len <= MACHINES_MAX {
        (0..len).map(|root| reach(&hops, len, root, &at_least)).fold(f64::INFINITY, f64::min)
    } else {
        let apart = (0..len * len).filter(|at| at / len != at % len).map(|at| hops[at]);
        deepest as f64 * apart.fold(f64::INFINITY, f64::min)
    };
    match model {
        Model::Paper => longest,
        Model::AlphaBeta => 2.0 * longest,
        Model::Congestion => {
            let pairs: Vec<(u32, u32)> = parents
                .iter()
                .flat_map(|tree| tree.iter().enumerate())
                .filter_map(|(rank, up)| up.map(|up| (rank as u32, up as u32)))
                .collect();
            2.0 * (longest + fan(&pairs, false) as f64 * bytes / 2.0 / network.nic)
        }
    }
}

/// Lower bound of the longest path in a tree with this root.
fn reach(hops: &[f64], len: usize, root: usize, at_least: &[usize]) -> f64 {
    // The cheapest paths of exactly `depth` hops to each machine; below, of at least `depth` hops, from the deepest up.
    let mut exact = vec![vec![f64::INFINITY; len]];
    exact[0][root] = 0.0;
    for depth in 1..at_least.len() {
        let mut next = vec![f64::INFINITY; len];
        for (from, &way) in exact[depth - 1].iter().enumerate() {
            if way.is_finite() {
                let row = &hops[from * len..(from + 1) * len];
                for (to, (next, hop)) in next.iter_mut().zip(row).enumerate() {
                    if to != from {
                        *next = next.min(way + hop);
                    }
                }
            }
        }
        exact.push(next);
    }
    let mut found = 0.0_f64;
    let mut ways = vec![f64::INFINITY; len];
    for depth in (1..at_least.len()).rev() {
        ways.iter_mut().zip(&exact[depth]).for_each(|(way, exact)| *way = way.min(*exact));
        let mut others: Vec<f64> = (0..len).filter(|&to| to != root).map(|to| ways[to]).collect();
        let (_, &mut nth, _) = others.select_nth_unstable_by(at_least[depth] - 1, f64::total_cmp);
        found = found.max(nth);
    }
    found
}
