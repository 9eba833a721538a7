//! Evaluates swaps in NCCL's double tree.
//!
//! The distance of a rank is the largest distance of its children plus the hop to that child. A swap changes it for two
//! ranks and their ancestors, in each tree. The smoothed cost also includes a fraction of the nearer child.

use crate::{
    cost::{busiest, fan},
    network::{Model, Network},
    random::Random,
    schedule,
    search::Evaluate,
};

/// Weight of the nearer child, and of the cheaper tree, in the smoothed cost.
const REST: f64 = 0.1;

/// The cost of the two trees in an order.
#[derive(Debug)]
pub struct Trees<'a> {
    network: &'a Network,
    model: Model,
    half_bytes: f64,
    ranks: usize,
    order: Vec<u32>,
    trees: [Tree; 2],
    /// Bytes that leave and enter each cluster, in the congestion model.
    leaving: Vec<f64>,
    entering: Vec<f64>,
    own: f64,
    tried: (usize, usize),
}

#[derive(Debug)]
struct Tree {
    root: usize,
    parents: Vec<Option<usize>>,
    children: Vec<Vec<usize>>,
    /// Ranks from the leaves to the root.
    upwards: Vec<usize>,
    hard: Vec<f64>,
    soft: Vec<f64>,
}

impl Tree {
    fn new(parents: Vec<Option<usize>>) -> Self {
        let mut children = vec![Vec::new(); parents.len()];
        for (rank, parent) in parents.iter().enumerate() {
            if let Some(up) = parent {
                children[*up].push(rank);
            }
        }
        let depths = schedule::depths(&parents);
        let mut upwards: Vec<usize> = (0..parents.len()).collect();
        upwards.sort_by_key(|&rank| std::cmp::Reverse(depths[rank]));
        let root = parents.iter().position(Option::is_none).unwrap_or(0);
        let zeros = vec![0.0; parents.len()];
        Self { root, parents, children, upwards, hard: zeros.clone(), soft: zeros }
    }

    #[inline]
    fn look(&mut self, rank: usize, hop: &impl Fn(usize, usize) -> f64) {
        let (mut hard, mut far, mut near) = (0.0_f64, 0.0_f64, 0.0_f64);
        for &child in &self.children[rank] {
            let step = hop(child, rank);
            hard = hard.max(step + self.hard[child]);
            let soft = step + self.soft[child];
            (far, near) = if soft > far { (soft, far) } else { (far, near.max(soft)) };
        }
        self.hard[rank] = hard;
        self.soft[rank] = far + REST * near;
    }

    fn look_above(&mut self, rank: usize, hop: &impl Fn(usize, usize) -> f64) {
        let mut at = Some(rank);
        while let Some(rank) = at {
            self.look(rank, hop);
            at = self.parents[rank];
        }
    }
}

impl<'a> Trees<'a> {
    /// Creates the evaluator for trees of `ranks` ranks; machines after them are spare.
    pub fn new(
        network: &'a Network,
        model: Model,
        bytes: f64,
        ranks: usize,
        order: &[u32],
    ) -> Self {
        let parents = schedule::double_tree_parents(ranks);
        let pairs: Vec<(u32, u32)> = parents
            .iter()
            .flat_map(|tree| tree.iter().enumerate())
            .filter_map(|(rank, up)| up.map(|up| (rank as u32, up as u32)))
            .collect();
        let half_bytes = bytes / 2.0;
        let mut made = Self {
            network,
            model,
            half_bytes,
            ranks,
            order: order.to_vec(),
            trees: parents.map(Tree::new),
            leaving: vec![0.0; network.uplinks.len()],
            entering: vec![0.0; network.uplinks.len()],
            own: fan(&pairs, false) as f64 * half_bytes / network.nic,
            tried: (0, 0),
        };
        made.renew();
        made
    }

    fn renew(&mut self) {
        let Self { network, model, half_bytes, order, .. } = self;
        let hop = |a: usize, b: usize| {
            network.transfer_us(*model, order[a] as usize, order[b] as usize, *half_bytes)
        };
        for tree in &mut self.trees {
            for at in 0..tree.upwards.len() {
                tree.look(tree.upwards[at], &hop);
            }
        }
        self.leaving.fill(0.0);
        self.entering.fill(0.0);
        for rank in 0..self.ranks {
            (0..2).for_each(|tree| self.load(tree, rank, 1.0));
        }
    }

    /// Adds or subtracts the load of the transfers that a swap of two ranks affects.
    fn load_around(&mut self, a: usize, b: usize, sign: f64) {
        if self.model != Model::Congestion {
            return;
        }
        let ranks = self.ranks;
        for rank in [a, b].into_iter().filter(|&rank| rank < ranks) {
            for tree in 0..2 {
                self.load(tree, rank, sign);
                for at in 0..self.trees[tree].children[rank].len() {
                    let child = self.trees[tree].children[rank][at];
                    if child != a && child != b {
                        self.load(tree, child, sign);
                    }
                }
            }
        }
    }

    /// Adds the bytes that a rank sends to its parent to the links that they cross.
    fn load(&mut self, tree: usize, rank: usize, sign: f64) {
        if let Some(up) = self.trees[tree].parents[rank] {
            let [a, b] = [rank, up].map(|rank| self.order[rank] as usize);
            if self.network.crosses(a, b) {
                self.leaving[self.network.cluster[a] as usize] += sign * self.half_bytes;
                self.entering[self.network.cluster[b] as usize] += sign * self.half_bytes;
            }
        }
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.load_around(a, b, -1.0);
        self.order.swap(a, b);
        self.load_around(a, b, 1.0);
        let Self { network, model, half_bytes, order, trees, ranks, .. } = self;
        let hop = |a: usize, b: usize| {
            network.transfer_us(*model, order[a] as usize, order[b] as usize, *half_bytes)
        };
        for tree in trees {
            for rank in [a, b].into_iter().filter(|rank| rank < ranks) {
                tree.look_above(rank, &hop);
            }
        }
    }

    fn of(&self, first: f64, second: f64) -> f64 {
        match self.model {
            Model::Paper => first + second,
            Model::AlphaBeta => 2.0 * (first + second),
            Model::Congestion => {
                let links = busiest(self.network, &self.leaving, &self.entering);
                2.0 * (first + second + links.max(self.own))
            }
        }
    }
}

impl Evaluate for Trees<'_> {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn order(&self) -> &[u32] {
        &self.order
    }

    fn set_order(&mut self, order: &[u32]) {
        self.order.copy_from_slice(order);
        self.renew();
    }

    fn hard(&mut self) -> f64 {
        let [first, second] = &self.trees;
        self.of(first.hard[first.root].max(second.hard[second.root]), 0.0)
    }

    fn soft(&self) -> f64 {
        let [a, b] = [&self.trees[0], &self.trees[1]].map(|tree| tree.soft[tree.root]);
        let links: f64 = match self.model {
            // Fewer transfers over the core are better, even if they are not on the busiest link.
            Model::Congestion => {
                let sum: f64 =
                    self.leaving.iter().zip(&self.network.uplinks).map(|(b, up)| b / up).sum();
                REST * sum / self.leaving.len() as f64
            }
            _ => 0.0,
        };
        self.of(a.max(b), REST * a.min(b) + links)
    }

    fn try_swap(&mut self, a: usize, b: usize) -> f64 {
        self.tried = (a, b);
        self.exchange(a, b);
        self.soft()
    }

    fn keep(&mut self) {}

    fn undo(&mut self) {
        let (a, b) = self.tried;
        self.exchange(a, b);
    }

    fn partner(&self, rank: usize, random: &mut Random) -> usize {
        let tree = &self.trees[random.below(2)];
        let children = &tree.children[rank];
        match random.below(children.len() + 1) {
            0 => tree.parents[rank].unwrap_or(rank),
            at => children[at - 1],
        }
    }

    fn critical(&mut self, random: &mut Random) -> (usize, usize) {
        // Follow the longest path from the root and choose one of its hops.
        let [first, second] = &self.trees;
        let tree = if first.hard[first.root] >= second.hard[second.root] { first } else { second };
        let mut hops = Vec::new();
        let mut rank = tree.root;
        while let Some(&far) = tree.children[rank].iter().max_by(|&&a, &&b| {
            let reach = |child: usize| {
                let [from, to] = [child, rank].map(|rank| self.order[rank] as usize);
                tree.hard[child] + self.network.transfer_us(self.model, from, to, self.half_bytes)
            };
            reach(a).total_cmp(&reach(b))
        }) {
            hops.push((far, rank));
            rank = far;
        }
        if hops.is_empty() { (0, 0) } else { hops[random.below(hops.len())] }
    }
}
