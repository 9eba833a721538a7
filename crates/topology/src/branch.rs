//! Branch and bound over rings: proves that a ring is the shortest, or how far from the shortest it can be.
//!
//! It considers only the few edges that a shortest ring can use ([`crate::onetree::worthwhile`]). If the cheapest
//! 1-tree has three edges at a node, a ring omits one of them. Each case (subproblem) forces or forbids such edges and
//! has a higher bound. The lowest bound of all open cases is a lower bound of every ring.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::onetree::{Ascent, OneTree};

/// Ascent steps per case.
const STEPS: usize = 40;

/// A sparse graph: some edges with their costs.
#[derive(Clone, Debug)]
pub struct Sparse {
    len: usize,
    edges: Vec<(u32, u32)>,
    costs: Vec<f64>,
    /// Edges of each node.
    beside: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Must,
    Not,
}

/// An open case: its bound holds for all rings with these forced and forbidden edges.
struct Case {
    bound: f64,
    prices: Vec<f64>,
    uses: Vec<Use>,
}

impl PartialEq for Case {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Case {}

impl PartialOrd for Case {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Case {
    /// Orders by bound, lowest first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.bound.total_cmp(&self.bound)
    }
}

/// Buffers that are reused for every 1-tree.
#[derive(Debug, Default)]
pub struct Scratch {
    sorted: Vec<(f64, u32)>,
    roots: Vec<u32>,
}

impl Scratch {
    fn root(&mut self, mut node: u32) -> u32 {
        while self.roots[node as usize] != node {
            let above = self.roots[self.roots[node as usize] as usize];
            self.roots[node as usize] = above;
            node = above;
        }
        node
    }

    fn join(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.roots[a as usize] = b;
        a != b
    }
}

impl Sparse {
    /// Creates a graph of these edges, with costs from the matrix `costs`.
    pub fn new(len: usize, costs: &[f64], edges: &[(f64, u32, u32)]) -> Self {
        let mut beside = vec![Vec::new(); len];
        for (at, &(_, a, b)) in edges.iter().enumerate() {
            beside[a as usize].push(at as u32);
            beside[b as usize].push(at as u32);
        }
        let cost = |&(_, a, b): &(f64, u32, u32)| costs[a as usize * len + b as usize];
        Self {
            len,
            costs: edges.iter().map(cost).collect(),
            edges: edges.iter().map(|&(_, a, b)| (a, b)).collect(),
            beside,
        }
    }

    /// Number of edges.
    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Finds the cheapest 1-tree with Kruskal's algorithm; `None` if the edges contain no 1-tree.
    pub fn cheapest(&self, prices: &[f64], scratch: &mut Scratch) -> Option<OneTree> {
        self.tree(prices, &vec![Use::Free; self.edges.len()], scratch).map(|found| found.0)
    }

    /// Finds the cheapest 1-tree and its edges, given forced and forbidden ones.
    fn tree(
        &self,
        prices: &[f64],
        uses: &[Use],
        scratch: &mut Scratch,
    ) -> Option<(OneTree, Vec<u32>)> {
        scratch.roots.clear();
        scratch.roots.extend(0..self.len as u32);
        scratch.sorted.clear();
        let mut taken = Vec::with_capacity(self.len);
        let mut own = Vec::new();
        let price = |at: usize| {
            let (a, b) = self.edges[at];
            self.costs[at] + prices[a as usize] + prices[b as usize]
        };
        for (at, (&(a, b), &kind)) in self.edges.iter().zip(uses).enumerate() {
            match kind {
                Use::Not => {}
                _ if a == 0 || b == 0 => {
                    let is_free = kind == Use::Free;
                    own.push((is_free, price(at), at as u32));
                }
                Use::Must => {
                    if !scratch.join(a, b) {
                        return None;
                    }
                    taken.push(at as u32);
                }
                Use::Free => scratch.sorted.push((price(at), at as u32)),
            }
        }
        if own.len() < 2 || own.iter().filter(|edge| !edge.0).count() > 2 {
            return None;
        }
        scratch.sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        for index in 0..scratch.sorted.len() {
            if taken.len() + 2 == self.len {
                break;
            }
            let at = scratch.sorted[index].1;
            let (a, b) = self.edges[at as usize];
            if scratch.join(a, b) {
                taken.push(at);
            }
        }
        if taken.len() + 2 != self.len {
            return None;
        }
        own.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        taken.extend(own[..2].iter().map(|edge| edge.2));
        let mut excess = vec![-2; self.len];
        let mut bound = -2.0 * prices.iter().sum::<f64>();
        for &at in &taken {
            let (a, b) = self.edges[at as usize];
            excess[a as usize] += 1;
            excess[b as usize] += 1;
            bound += price(at as usize);
        }
        let edges = taken.iter().map(|&at| self.edges[at as usize]).collect();
        Some((OneTree { bound, excess, edges }, taken))
    }

    /// Propagates forced and forbidden edges: two forced edges at a node forbid its others, and if only two are left,
    /// they are forced. Returns false if no ring is possible.
    fn settle(&self, uses: &mut [Use], nodes: &mut Vec<u32>) -> bool {
        while let Some(node) = nodes.pop() {
            let own = &self.beside[node as usize];
            let count = |kind: Use| own.iter().filter(|&&at| uses[at as usize] == kind).count();
            let (must, free) = (count(Use::Must), count(Use::Free));
            if must > 2 || must + free < 2 {
                return false;
            }
            let then = match must {
                2 if free > 0 => Use::Not,
                _ if must + free == 2 && free > 0 => Use::Must,
                _ => continue,
            };
            for &at in own {
                if uses[at as usize] == Use::Free {
                    uses[at as usize] = then;
                    let (a, b) = self.edges[at as usize];
                    nodes.push(if a == node { b } else { a });
                }
            }
        }
        true
    }

    /// Returns the ring that the edges form, if they form one.
    fn ring(&self, taken: &[u32]) -> Option<Vec<u32>> {
        let mut beside = vec![Vec::new(); self.len];
        for &at in taken {
            let (a, b) = self.edges[at as usize];
            beside[a as usize].push(b);
            beside[b as usize].push(a);
        }
        let mut order = vec![0u32];
        let mut last = 0;
        while order.len() < self.len {
            let node = order[order.len() - 1];
            let next = *beside[node as usize].iter().find(|&&next| next != last)?;
            (last, _) = (node, order.push(next));
        }
        Some(order)
    }
}

/// Result of a proof.
#[derive(Clone, Debug)]
pub struct Proof {
    /// Lower bound of every ring.
    pub bound: f64,
    /// A shorter ring than the given one, if one was found.
    pub order: Option<Vec<u32>>,
    /// Cost of the shortest known ring.
    pub cost: f64,
    /// Number of cases examined.
    pub cases: usize,
}

/// Examines cases until the bound is within `gap` of the shortest known ring, whose initial cost is `cost`.
///
/// `prices` must be the node prices of a good bound. Edges missing in `graph` must not be part of any ring shorter than
/// `cost`.
pub fn prove(
    graph: &Sparse,
    prices: &[f64],
    cost: f64,
    gap: f64,
    cases: usize,
    is_over: &dyn Fn() -> bool,
) -> Proof {
    let mut scratch = Scratch::default();
    let mut proof = Proof { bound: f64::NEG_INFINITY, order: None, cost, cases: 0 };
    let mut open = BinaryHeap::new();
    let mut first = vec![Use::Free; graph.edges.len()];
    if graph.settle(&mut first, &mut (0..graph.len as u32).collect()) {
        let case = Case { bound: f64::NEG_INFINITY, prices: prices.to_vec(), uses: first };
        open.extend(graph.look(case, &mut proof, &mut scratch, 8 * STEPS, is_over));
    }
    loop {
        let Some(case) = open.pop() else {
            proof.bound = proof.cost;
            return proof;
        };
        proof.bound = proof.bound.max(case.bound.min(proof.cost));
        let is_near = proof.cost - proof.bound <= gap * proof.bound;
        if is_near || proof.cases >= cases || is_over() {
            return proof;
        }
        for next in graph.split(case, &mut scratch) {
            proof.cases += 1;
            open.extend(graph.look(next, &mut proof, &mut scratch, STEPS, is_over));
        }
    }
}

impl Sparse {
    /// Raises the bound of a case; `None` if it contains no ring shorter than the known one.
    fn look(
        &self,
        case: Case,
        proof: &mut Proof,
        scratch: &mut Scratch,
        steps: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Case> {
        let mut ascent = Ascent::new(case.prices, if steps > STEPS { 1.0 } else { 0.5 });
        for _ in 0..steps {
            let (tree, taken) = self.tree(ascent.now(), &case.uses, scratch)?;
            if tree.excess.iter().all(|&excess| excess == 0)
                && let Some(order) = self.ring(&taken)
            {
                let cost: f64 = taken.iter().map(|&at| self.costs[at as usize]).sum();
                if cost < proof.cost - 1e-9 * cost {
                    (proof.cost, proof.order) = (cost, Some(order));
                }
            }
            ascent.hear(&tree, proof.cost, 6);
            if ascent.bound >= proof.cost * (1.0 - 1e-9) {
                return None;
            }
            if ascent.is_done() || is_over() {
                break;
            }
        }
        Some(Case { bound: ascent.bound.max(case.bound), prices: ascent.prices, uses: case.uses })
    }

    /// Splits a case into smaller ones.
    fn split(&self, case: Case, scratch: &mut Scratch) -> Vec<Case> {
        let Some((tree, taken)) = self.tree(&case.prices, &case.uses, scratch) else {
            return Vec::new();
        };
        let free = |node: u32| {
            let is_own = |at: &&u32| {
                let (a, b) = self.edges[**at as usize];
                (a == node || b == node) && case.uses[**at as usize] == Use::Free
            };
            taken.iter().filter(is_own).copied().collect::<Vec<u32>>()
        };
        // Among the nodes with too many edges, choose one with the fewest free edges: its cases differ most.
        let node = (0..self.len as u32)
            .filter(|&node| tree.excess[node as usize] > 0)
            .min_by_key(|&node| (free(node).len(), node));
        let Some(node) = node else { return Vec::new() };
        let edges = free(node);
        let must = self.beside[node as usize]
            .iter()
            .filter(|&&at| case.uses[at as usize] == Use::Must)
            .count();
        let mut found = Vec::new();
        let mut uses = case.uses;
        for &edge in edges.iter().take(2 - must.min(2)) {
            let mut without = uses.clone();
            without[edge as usize] = Use::Not;
            found.push((without, edge));
            uses[edge as usize] = Use::Must;
        }
        if let Some(&edge) = edges.first() {
            found.push((uses, edge));
        }
        found
            .into_iter()
            .filter_map(|(mut uses, edge)| {
                let (a, b) = self.edges[edge as usize];
                self.settle(&mut uses, &mut vec![node, a, b]).then(|| Case {
                    bound: case.bound,
                    prices: case.prices.clone(),
                    uses,
                })
            })
            .collect()
    }
}
