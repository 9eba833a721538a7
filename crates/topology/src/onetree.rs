//! Held-Karp lower bound of rings: 1-trees with prices on nodes.
//!
//! A 1-tree is a spanning tree of all nodes but one, plus the two cheapest edges of that node. Every ring is a 1-tree,
//! so the cheapest 1-tree costs no more than the shortest ring. A price on a node counts twice in every ring.
//! Subgradient ascent moves the prices until each node of the cheapest 1-tree has about two edges, which raises the
//! bound.

/// A spanning tree of nodes 1 and up, plus two edges of node 0.
#[derive(Clone, Debug)]
pub struct OneTree {
    /// Lower bound of every ring: the cost including prices, minus twice the sum of the prices.
    pub bound: f64,
    /// Degree of each node, minus 2.
    pub excess: Vec<i32>,
    /// The edges; those of node 0 are last.
    pub edges: Vec<(u32, u32)>,
}

/// Finds the cheapest 1-tree of a whole matrix with Prim's algorithm.
pub fn cheapest(len: usize, costs: &[f64], prices: &[f64]) -> OneTree {
    let mut excess = vec![-2; len];
    let mut edges = Vec::with_capacity(len);
    let mut bound = -2.0 * prices.iter().sum::<f64>();
    // Nodes not in the tree, with the cost and origin of their cheapest edge; plain arrays keep the loops short.
    let mut left: Vec<u32> = (2..len as u32).collect();
    let mut key: Vec<f64> = vec![f64::INFINITY; left.len()];
    let mut from: Vec<u32> = vec![1; left.len()];
    let mut last = 1;
    while !left.is_empty() {
        let row = &costs[last * len..(last + 1) * len];
        let price = prices[last];
        let (mut least, mut best) = (f64::INFINITY, 0);
        for at in 0..left.len() {
            let node = left[at] as usize;
            let cost = row[node] + prices[node] + price;
            if cost < key[at] {
                key[at] = cost;
                from[at] = last as u32;
            }
            if key[at] < least {
                (least, best) = (key[at], at);
            }
        }
        bound += least;
        let (node, parent) = (left.swap_remove(best), from.swap_remove(best));
        key.swap_remove(best);
        edges.push((parent, node));
        excess[node as usize] += 1;
        excess[parent as usize] += 1;
        last = node as usize;
    }
    let mut first = [(f64::INFINITY, 0); 2];
    for node in 1..len {
        let cost = costs[node] + prices[node] + prices[0];
        if cost < first[0].0 {
            first = [(cost, node), first[0]];
        } else if cost < first[1].0 {
            first[1] = (cost, node);
        }
    }
    for (cost, node) in first {
        bound += cost;
        edges.push((0, node as u32));
        excess[0] += 1;
        excess[node] += 1;
    }
    OneTree { bound, excess, edges }
}

/// Subgradient ascent of the prices.
#[derive(Clone, Debug)]
pub struct Ascent {
    /// Prices of the best bound.
    pub prices: Vec<f64>,
    /// Best bound so far.
    pub bound: f64,
    now: Vec<f64>,
    /// Excess degrees at the best prices (`best`), the previous ones (`last`) and the current ones (`way`).
    best: Vec<i32>,
    last: Vec<i32>,
    way: Vec<i32>,
    eagerness: f64,
    idle: u32,
}

impl Ascent {
    /// Starts from prices whose bound is unknown.
    pub fn new(prices: Vec<f64>, eagerness: f64) -> Self {
        Self {
            now: prices.clone(),
            best: vec![0; prices.len()],
            last: vec![0; prices.len()],
            way: vec![0; prices.len()],
            prices,
            bound: f64::NEG_INFINITY,
            eagerness,
            idle: 0,
        }
    }

    /// Prices for the next 1-tree.
    pub fn now(&self) -> &[f64] {
        &self.now
    }

    /// Whether steps have become too small to matter.
    pub fn is_done(&self) -> bool {
        self.eagerness < 1e-3
    }

    /// Takes the cheapest 1-tree for the current prices and moves the prices. `goal` estimates the highest possible
    /// bound.
    pub fn hear(&mut self, tree: &OneTree, goal: f64, patience: u32) {
        let mut bound = tree.bound;
        self.way.copy_from_slice(&tree.excess);
        self.idle += 1;
        if bound > self.bound {
            if bound - self.bound > 1e-7 * bound.abs() {
                self.idle = 0;
            }
            self.bound = bound;
            self.prices.copy_from_slice(&self.now);
            self.best.copy_from_slice(&tree.excess);
        } else if self.idle >= patience {
            // The steps were too large: return to the best prices and use smaller steps.
            self.idle = 0;
            self.eagerness *= 0.7;
            bound = self.bound;
            self.now.copy_from_slice(&self.prices);
            self.way.copy_from_slice(&self.best);
            self.last.copy_from_slice(&self.best);
        }
        let norm: f64 = self.way.iter().map(|&excess| f64::from(excess * excess)).sum();
        if norm == 0.0 {
            self.eagerness = 0.0;
            return;
        }
        let step = self.eagerness * (goal - bound).max(1e-6 * goal.abs()) / norm;
        for ((price, &excess), &last) in self.now.iter_mut().zip(&self.way).zip(&self.last) {
            *price += step * (0.7 * f64::from(excess) + 0.3 * f64::from(last));
        }
        self.last.copy_from_slice(&self.way);
    }
}

/// Finds the edges that a ring below the bound plus `room` can use. Each edge comes with the difference to the tree
/// edge that it would replace, as (extra, node, node). A ring with the edge costs at least the bound plus that.
pub fn worthwhile(
    len: usize,
    costs: &[f64],
    prices: &[f64],
    tree: &OneTree,
    room: f64,
) -> Vec<(f64, u32, u32)> {
    let cost = |a: usize, b: usize| costs[a * len + b] + prices[a] + prices[b];
    let mut beside = vec![Vec::new(); len];
    for &(a, b) in &tree.edges[..len - 2] {
        beside[a as usize].push(b as usize);
        beside[b as usize].push(a as usize);
    }
    let mut found = Vec::new();
    // Walk the tree from each node, to find the longest edge on the path to every other node.
    let mut longest = vec![0.0; len];
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for start in 1..len {
        longest[start] = f64::NEG_INFINITY;
        stack.push((start, start));
        while let Some((node, parent)) = stack.pop() {
            for &next in beside[node].iter().filter(|&&next| next != parent) {
                longest[next] = longest[node].max(cost(node, next));
                stack.push((next, node));
            }
        }
        for (other, longest) in longest.iter().enumerate().skip(start + 1) {
            let extra = cost(start, other) - longest;
            if extra < room {
                found.push((extra, start as u32, other as u32));
            }
        }
    }
    let second = tree.edges[len - 2..].iter().map(|&(_, node)| cost(0, node as usize));
    let second = second.fold(f64::NEG_INFINITY, f64::max);
    for node in 1..len {
        let extra = (cost(0, node) - second).max(0.0);
        if extra < room {
            found.push((extra, 0, node as u32));
        }
    }
    found
}

/// For each node, the other ends of its `count` edges with the least extra cost.
pub fn likely(len: usize, edges: &[(f64, u32, u32)], count: usize) -> Vec<Vec<u32>> {
    let mut near: Vec<Vec<(f64, u32)>> = vec![Vec::new(); len];
    for &(extra, a, b) in edges {
        near[a as usize].push((extra, b));
        near[b as usize].push((extra, a));
    }
    near.into_iter()
        .map(|mut ends| {
            ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            ends.truncate(count);
            ends.into_iter().map(|end| end.1).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{matrix::Matrix, random::Random};

    #[test]
    fn prices_raise_the_bound_and_no_ring_is_below_it() {
        let mut random = Random::new(3);
        for _ in 0..20 {
            let points: Vec<_> = (0..8).map(|_| (random.unit(), random.unit())).collect();
            let matrix =
                Matrix::of(8, |a, b| (points[a].0 - points[b].0).hypot(points[a].1 - points[b].1));
            let shortest = crate::rings::brute_force(&matrix);
            let mut ascent = Ascent::new(vec![0.0; 8], 1.0);
            let mut first = f64::NAN;
            for _ in 0..300 {
                let tree = cheapest(8, matrix.cells(), ascent.now());
                assert!(tree.bound <= shortest + 1e-9);
                assert_eq!(tree.excess.iter().sum::<i32>(), 0);
                first = if first.is_nan() { tree.bound } else { first };
                ascent.hear(&tree, shortest, 20);
            }
            assert!(ascent.bound > first);
            assert!(ascent.bound > 0.97 * shortest, "{} of {shortest}", ascent.bound);
        }
    }
}
