//! Shortens rings by exchanging three edges (3-opt moves) while that gains. Then it repeatedly exchanges two pieces
//! (kicks) and shortens again.
//!
//! This module takes a matrix of numbers; it does not depend on a network. A move starts at one end of an edge, goes to
//! a near node and on to a neighbor of that node. The gain is known before the ring is changed, so most of the time is
//! spent on additions.

use crate::random::Random;

/// Number of near nodes examined.
const NEAR: usize = 8;
/// A kick exchanges pieces of up to this many nodes, so the ring only needs local repairs.
const PIECE: usize = 50;
/// A kick prefers expensive edges, up to this multiple of the mean cost.
const DEAR: f64 = 6.0;
/// Maximum number of edges examined to find an expensive one.
const LOOKS: usize = 50;
/// The search may continue from a ring that is longer than the best one by this fraction of the mean edge.
const SLACK: f64 = 0.3;
/// The time is checked once in this many kicks.
const GLANCE: u64 = 64;

/// A symmetric matrix of costs, and candidate neighbors for each node.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'a> {
    /// Number of nodes.
    pub len: usize,
    /// The costs, row by row.
    pub costs: &'a [f64],
    /// For each node, the likely neighbors, likeliest first.
    pub near: &'a [Vec<u32>],
}

impl Graph<'_> {
    #[inline]
    fn at(&self, a: u32, b: u32) -> f64 {
        self.costs[a as usize * self.len + b as usize]
    }

    /// Returns the cost of a ring.
    pub fn cost(&self, order: &[u32]) -> f64 {
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(&a, &b)| self.at(a, b)).sum()
    }
}

/// How a move exchanges edges. `home` and `end` are neighbors, and the path leads from `end` once around the ring.
///
/// The move removes (`home`, `end`), adds (`end`, `near`), removes (`near`, `out`) and so on, until (`last`, `home`)
/// closes the ring. Each kind states how the pieces of the path are rearranged.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `end..out` is reversed.
    Turn,
    /// `end..out`, `near..last` become `last..near`, `end..out`.
    TurnSecond,
    /// `end..other`, `last..out` become `last..out`, `other..end`.
    TurnFirst,
    /// `end..other`, `last..near` become `last..near`, `end..other`.
    Exchange,
    /// `end..last`, `other..near` become `last..end`, `near..other`.
    TurnBoth,
}

/// A move that shortens the ring.
#[derive(Clone, Copy, Debug)]
struct Step {
    gain: f64,
    kind: Kind,
    near: u32,
    out: u32,
    other: u32,
    last: u32,
}

/// A ring that is being shortened.
#[derive(Debug)]
pub struct Tour<'a> {
    graph: Graph<'a>,
    /// The near nodes of each node with their costs, [`NEAR`] each. Missing entries have infinite cost.
    near: Vec<(f64, u32)>,
    order: Vec<u32>,
    place: Vec<u32>,
    /// Reversals since the last checkpoint, for undoing them.
    journal: Vec<(u32, u32)>,
    queue: Vec<u32>,
    is_queued: Vec<bool>,
    /// Gains up to this value are ignored.
    least: f64,
}

impl<'a> Tour<'a> {
    /// Starts with a ring of all nodes.
    pub fn new(graph: Graph<'a>, order: &[u32]) -> Self {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &node)| place[node as usize] = at as u32);
        let mut near = vec![(f64::INFINITY, 0); NEAR * order.len()];
        for (node, (own, ends)) in near.chunks_mut(NEAR).zip(graph.near).enumerate() {
            for (entry, &end) in own.iter_mut().zip(ends) {
                *entry = (graph.at(node as u32, end), end);
            }
        }
        let largest = graph.costs.iter().copied().fold(0.0, f64::max);
        Self {
            graph,
            near,
            order: order.to_vec(),
            place,
            journal: Vec::new(),
            queue: Vec::new(),
            is_queued: vec![false; order.len()],
            least: 1e-10 * largest,
        }
    }

    /// The nodes in order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Examines these nodes, and nodes near each change, until no move from any of them shortens the ring. Returns the
    /// total gain.
    pub fn shorten(&mut self, nodes: &[u32]) -> f64 {
        if self.order.len() < 5 {
            return 0.0;
        }
        nodes.iter().for_each(|&node| self.look_at(node));
        let mut gained = 0.0;
        while let Some(node) = self.queue.pop() {
            self.is_queued[node as usize] = false;
            while let Some(gain) = self.step_from(node) {
                gained += gain;
            }
        }
        gained
    }

    /// Kicks and shortens, until `kicks` are done or the time is up. Ends with the shortest ring found.
    pub fn kick(&mut self, kicks: u64, random: &mut Random, is_over: &dyn Fn() -> bool) {
        let len = self.order.len();
        if len < 8 {
            return;
        }
        let mean = (self.graph.cost(&self.order) / len as f64).max(0.0);
        let mut best = self.order.clone();
        // How much longer the current ring is than the shortest.
        let mut above = 0.0;
        for count in 0..kicks {
            if count % GLANCE == 0 && is_over() {
                break;
            }
            self.journal.clear();
            let piece = PIECE.min(len / 3);
            let before = self.dear_edge(0, len, DEAR * mean, random);
            let first = self.dear_edge(before + 1, piece, DEAR * mean, random) - before;
            let second =
                self.dear_edge(before + first + 1, piece, DEAR * mean, random) - before - first;
            let longer = self.exchange_pieces(before + 1, first, second);
            let longer = longer - self.shorten(&[]);
            if longer > self.least && above + longer > SLACK * mean {
                while let Some((begin, end)) = self.journal.pop() {
                    self.reverse_places(begin, end);
                }
                continue;
            }
            above += longer;
            if above < -self.least {
                above = 0.0;
                best.copy_from_slice(&self.order);
            }
        }
        if above > 0.0 {
            best.iter().enumerate().for_each(|(at, &node)| self.place[node as usize] = at as u32);
            self.order = best;
        }
    }

    /// Chooses one of `count` places from `begin` on, preferring those whose edge to the next place costs much compared
    /// with `dear`.
    fn dear_edge(&self, begin: usize, count: usize, dear: f64, random: &mut Random) -> usize {
        let node = |place: usize| self.order[place % self.order.len()];
        let mut place = begin;
        for _ in 0..LOOKS {
            place = begin + random.below(count);
            if self.graph.at(node(place), node(place + 1)) > dear * random.unit() {
                break;
            }
        }
        place
    }

    /// Exchanges two adjacent pieces. Returns the increase of the cost.
    fn exchange_pieces(&mut self, begin: usize, first: usize, second: usize) -> f64 {
        let len = self.order.len();
        let ends = [len - 1, 0, first - 1, first, first + second - 1, first + second]
            .map(|place| self.order[(begin + place) % len]);
        let [before, a, b, c, d, after] = ends;
        let graph = self.graph;
        let change = graph.at(before, c) + graph.at(d, a) + graph.at(b, after)
            - graph.at(before, a)
            - graph.at(b, c)
            - graph.at(d, after);
        self.apply(a, true, Kind::Exchange, [d, after, b, c]);
        ends.into_iter().for_each(|node| self.look_at(node));
        change
    }

    fn look_at(&mut self, node: u32) {
        if !self.is_queued[node as usize] {
            self.is_queued[node as usize] = true;
            self.queue.push(node);
        }
    }

    #[inline]
    fn next(&self, node: u32) -> u32 {
        let place = self.place[node as usize] as usize + 1;
        self.order[if place == self.order.len() { 0 } else { place }]
    }

    #[inline]
    fn previous(&self, node: u32) -> u32 {
        let place = self.place[node as usize] as usize;
        self.order[if place == 0 { self.order.len() - 1 } else { place - 1 }]
    }

    /// Reverses the path from one node to another. Returns whether the path leads forward from then on.
    fn turn(&mut self, is_forward: bool, from: u32, to: u32) -> bool {
        let [begin, end] = (if is_forward { [from, to] } else { [to, from] })
            .map(|node| self.place[node as usize]);
        self.journal.push((begin, end));
        is_forward != self.reverse_places(begin, end)
    }

    /// Reverses the nodes between two places, or all the others if that is shorter and gives the same ring. Returns
    /// whether it reversed the others.
    fn reverse_places(&mut self, begin: u32, end: u32) -> bool {
        let len = self.order.len();
        let (mut begin, mut end) = (begin as usize, end as usize);
        let mut count = if end >= begin { end - begin + 1 } else { end + len - begin + 1 };
        let are_others = 2 * count > len;
        if are_others {
            (begin, end) = (
                if end + 1 == len { 0 } else { end + 1 },
                if begin == 0 { len - 1 } else { begin - 1 },
            );
            count = len - count;
        }
        for _ in 0..count / 2 {
            self.order.swap(begin, end);
            self.place[self.order[begin] as usize] = begin as u32;
            self.place[self.order[end] as usize] = end as u32;
            begin = if begin + 1 == len { 0 } else { begin + 1 };
            end = if end == 0 { len - 1 } else { end - 1 };
        }
        are_others
    }

    fn step_from(&mut self, home: u32) -> Option<f64> {
        for is_forward in [true, false] {
            let end = if is_forward { self.next(home) } else { self.previous(home) };
            if let Some(step) = self.find(home, end, is_forward) {
                let ends = [step.near, step.out, step.other, step.last];
                self.apply(end, is_forward, step.kind, ends);
                [home, end].into_iter().chain(ends).for_each(|node| self.look_at(node));
                return Some(step.gain);
            }
        }
        None
    }

    /// Exchanges the edges by reversing parts of the path from `end` on.
    fn apply(&mut self, end: u32, is_forward: bool, kind: Kind, ends: [u32; 4]) {
        let [near, out, other, last] = ends;
        match kind {
            Kind::Turn => {
                self.turn(is_forward, end, out);
            }
            Kind::TurnSecond => {
                let is_forward = self.turn(is_forward, end, last);
                self.turn(is_forward, out, end);
            }
            Kind::TurnFirst => {
                let is_forward = self.turn(is_forward, end, out);
                self.turn(is_forward, out, last);
            }
            Kind::Exchange => {
                let is_forward = self.turn(is_forward, end, near);
                let is_forward = self.turn(is_forward, near, last);
                self.turn(is_forward, other, end);
            }
            Kind::TurnBoth => {
                let is_forward = self.turn(is_forward, end, last);
                self.turn(is_forward, other, near);
            }
        }
    }

    /// Finds the first move that gains, among those that remove the edge between `home` and `end`.
    fn find(&self, home: u32, end: u32, is_forward: bool) -> Option<Step> {
        let (len, begin) = (self.order.len() as u32, self.place[end as usize]);
        // The distance of a node from `end` along the path, and the nodes before and after it.
        let far = |node: u32| {
            let place = self.place[node as usize];
            let (from, to) = if is_forward { (begin, place) } else { (place, begin) };
            if to >= from { to - from } else { to + len - from }
        };
        let after = |node: u32| if is_forward { self.next(node) } else { self.previous(node) };
        let before = |node: u32| if is_forward { self.previous(node) } else { self.next(node) };
        let whole = self.graph.at(home, end);
        for &(cost, near) in self.near_of(end) {
            let gain = whole - cost;
            if gain <= self.least {
                break;
            }
            let near_far = far(near);
            if near == home || near_far == 1 {
                continue;
            }
            let closed = |gain: f64, kind: Kind, [out, other, last]: [u32; 3]| {
                let gain = gain - self.graph.at(last, home);
                (gain > self.least).then_some(Step { gain, kind, near, out, other, last })
            };
            // Cut before the near node: what remains is one path.
            let out = before(near);
            let open = gain + self.graph.at(near, out);
            if let Some(step) = closed(open, Kind::Turn, [out, out, out]) {
                return Some(step);
            }
            for &(cost, other) in self.near_of(out) {
                let gain = open - cost;
                if gain <= self.least {
                    break;
                }
                let other_far = far(other);
                let (last, kind) = if other_far > near_far {
                    (before(other), Kind::TurnSecond)
                } else if other_far + 2 < near_far {
                    (after(other), Kind::TurnFirst)
                } else {
                    continue;
                };
                let gain = gain + self.graph.at(other, last);
                if let Some(step) = closed(gain, kind, [out, other, last]) {
                    return Some(step);
                }
            }
            // Cut after the near node: the part before becomes a ring, and the third exchange must open it.
            let out = after(near);
            let open = gain + self.graph.at(near, out);
            for &(cost, other) in self.near_of(out) {
                let gain = open - cost;
                if gain <= self.least {
                    break;
                }
                let other_far = far(other);
                if other_far >= near_far {
                    continue;
                }
                let last = after(other);
                let exchanged = gain + self.graph.at(other, last);
                if let Some(step) = closed(exchanged, Kind::Exchange, [out, other, last]) {
                    return Some(step);
                }
                if other_far > 0 {
                    let last = before(other);
                    let turned = gain + self.graph.at(other, last);
                    if let Some(step) = closed(turned, Kind::TurnBoth, [out, other, last]) {
                        return Some(step);
                    }
                }
            }
        }
        None
    }

    #[inline]
    fn near_of(&self, node: u32) -> &[(f64, u32)] {
        &self.near[node as usize * NEAR..(node as usize + 1) * NEAR]
    }
}

/// Finds a short ring of all nodes from a start; more `kicks` find a shorter one.
pub fn shorten(
    graph: Graph<'_>,
    start: &[u32],
    kicks: u64,
    random: &mut Random,
    is_over: &dyn Fn() -> bool,
) -> Vec<u32> {
    let mut tour = Tour::new(graph, start);
    let nodes: Vec<u32> = start.iter().rev().copied().collect();
    tour.shorten(&nodes);
    tour.kick(kicks, random, is_over);
    let mut order = tour.order;
    // Normalize the ring: node 0 first, then its smaller neighbor.
    let begin = order.iter().position(|&node| node == 0).unwrap_or(0);
    order.rotate_left(begin);
    if order.len() > 2 && order[1] > order[order.len() - 1] {
        order[1..].reverse();
    }
    order
}

/// Builds a ring: from each node to the nearest one that remains.
pub fn nearest_neighbours(len: usize, costs: &[f64]) -> Vec<u32> {
    let mut order = vec![0];
    let mut left: Vec<u32> = (1..len as u32).collect();
    let mut last = 0;
    while !left.is_empty() {
        let row = &costs[last * len..(last + 1) * len];
        let by_cost =
            |a: &usize, b: &usize| row[left[*a] as usize].total_cmp(&row[left[*b] as usize]);
        let at = (0..left.len()).min_by(by_cost).unwrap_or(0);
        let next = left.swap_remove(at);
        order.push(next);
        last = next as usize;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn points_on_a_circle_are_put_into_their_order() {
        let len = 60;
        let point = |at: usize| (at as f64 * 37.0 % 60.0 / 60.0 * std::f64::consts::TAU).sin_cos();
        let matrix = Matrix::of(len, |a, b| {
            let (a, b) = (point(a), point(b));
            (a.0 - b.0).hypot(a.1 - b.1)
        });
        let near = matrix.nearest(8);
        let graph = Graph { len, costs: matrix.cells(), near: &near };
        let mut random = Random::new(1);
        let mut start: Vec<u32> = (0..len as u32).collect();
        random.shuffle(&mut start);
        let order = shorten(graph, &start, 2000, &mut random, &|| false);
        let shortest = len as f64 * 2.0 * (std::f64::consts::PI / len as f64).sin();
        assert!((graph.cost(&order) - shortest).abs() < 1e-9, "{}", graph.cost(&order));
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..len as u32));
    }

    #[test]
    fn reported_gains_match_the_ring() {
        let mut random = Random::new(7);
        for len in 5..40 {
            let matrix = Matrix::of(len, |_, _| random.unit());
            let near = matrix.nearest(6);
            let graph = Graph { len, costs: matrix.cells(), near: &near };
            let start: Vec<u32> = (0..len as u32).collect();
            let mut tour = Tour::new(graph, &start);
            let gained = tour.shorten(&start);
            assert!((graph.cost(&start) - gained - graph.cost(tour.order())).abs() < 1e-9);
            let before = graph.cost(tour.order());
            tour.kick(50, &mut random, &|| false);
            assert!(graph.cost(tour.order()) <= before + 1e-9);
        }
    }
}
