//! Short rings: three edges are exchanged for others as long as that gains, again and again from a ring with two pieces
//! exchanged.
//!
//! Knows numbers between nodes and no network. The search goes from an end of an edge to a near node, and on from a
//! neighbour of that: what an exchange gains is known before the ring is touched, so that most of the time goes into
//! additions.

use crate::random::Random;

/// So many of the near nodes are looked at.
const NEAR: usize = 8;
/// A kick exchanges pieces of up to so many nodes, so that what has to be mended is near.
const PIECE: usize = 50;
/// A kick cuts edges the likelier the more they cost, up to so many times the mean of the ring.
const DEAR: f64 = 6.0;
/// So many edges at most are looked at for a dear one.
const LOOKS: usize = 50;
/// The search goes on from a ring that is longer than the shortest by this part of the mean edge.
const SLACK: f64 = 0.3;
/// The clock is asked once in so many kicks.
const GLANCE: u64 = 64;

/// A symmetric matrix of costs, and for each node the others that are worth an edge.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'a> {
    /// How many nodes there are.
    pub len: usize,
    /// The costs, row by row.
    pub costs: &'a [f64],
    /// For each node the likely neighbours, the likeliest first.
    pub near: &'a [Vec<u32>],
}

impl Graph<'_> {
    #[inline]
    fn at(&self, a: u32, b: u32) -> f64 {
        self.costs[a as usize * self.len + b as usize]
    }

    /// The cost of a ring.
    pub fn cost(&self, order: &[u32]) -> f64 {
        let next = order.iter().cycle().skip(1);
        order.iter().zip(next).map(|(&a, &b)| self.at(a, b)).sum()
    }
}

/// How the edges of a step are exchanged. `home` and `end` are neighbours, and the way leads from `end` once around.
///
/// The step takes out (`home`, `end`), puts (`end`, `near`) in, takes (`near`, `out`) out, and so on, until (the last,
/// `home`) closes the ring. Each kind says what becomes of the way, in pieces.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `end..out` is turned.
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

/// A step that gains.
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
    /// For each node its near ones, [`NEAR`] each, with the cost; fewer are filled up with infinite costs.
    near: Vec<(f64, u32)>,
    order: Vec<u32>,
    place: Vec<u32>,
    /// The reversals since the last checkpoint, to be taken back.
    journal: Vec<(u32, u32)>,
    queue: Vec<u32>,
    is_queued: Vec<bool>,
    /// Costs below this are no gain.
    least: f64,
}

impl<'a> Tour<'a> {
    /// Begins with a ring of all nodes.
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

    /// The nodes in their order.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Looks at nodes, and at those around what changes, until no step from any of them gains.
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

    /// Kicks and mends, until so many kicks were made or the time is up; the ring ends as short as it ever was.
    pub fn kick(&mut self, kicks: u64, random: &mut Random, is_over: &dyn Fn() -> bool) {
        let len = self.order.len();
        if len < 8 {
            return;
        }
        let mean = (self.graph.cost(&self.order) / len as f64).max(0.0);
        let mut best = self.order.clone();
        // How much longer the ring is than the shortest.
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

    /// A place, one of `count` from `begin` on, from which an edge leads to the next that likely costs much, compared to
    /// `dear`.
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

    /// Two pieces that follow each other change places; gives how much longer the ring is.
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

    /// Turns the part of the way from one node to another; gives whether the way leads forward from then on.
    fn turn(&mut self, is_forward: bool, from: u32, to: u32) -> bool {
        let [begin, end] = (if is_forward { [from, to] } else { [to, from] })
            .map(|node| self.place[node as usize]);
        self.journal.push((begin, end));
        is_forward != self.reverse_places(begin, end)
    }

    /// Reverses the nodes from one place to another, or the others, which makes the same ring: whether it was the others.
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

    /// Exchanges the edges, by turning parts of the way from `end` on.
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

    /// The first step found that gains, of those that take the edge of `home` and `end` out.
    fn find(&self, home: u32, end: u32, is_forward: bool) -> Option<Step> {
        let (len, begin) = (self.order.len() as u32, self.place[end as usize]);
        // How far from `end` a node is on the way, and the nodes before and after it.
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
            // The way is cut before the near node: what is left is one way again.
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
            // It is cut after the near node: what is before becomes a ring, into which the third exchange goes.
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

/// A short ring of all nodes, from a start; `kicks` says how hard it is tried.
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
    // A ring can begin anywhere and go either way: node 0 first, towards its smaller neighbour.
    let begin = order.iter().position(|&node| node == 0).unwrap_or(0);
    order.rotate_left(begin);
    if order.len() > 2 && order[1] > order[order.len() - 1] {
        order[1..].reverse();
    }
    order
}

/// From a node to the nearest that is left, and so on.
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
    fn what_the_steps_claim_is_what_the_ring_gained() {
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
