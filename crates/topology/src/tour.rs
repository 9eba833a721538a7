//! Short rings: Lin and Kernighan's search by reversals, started again and again from a ring with a piece moved.
//!
//! Knows numbers between nodes and no network. A step takes an edge out of the ring, puts a shorter one to its end and
//! closes the ring anew, to a small depth; what gains nothing is taken back.

use crate::random::Random;

/// How many edges are tried at each depth of a step.
const BREADTH: [usize; 6] = [5, 3, 2, 1, 1, 1];
/// A kick moves pieces of up to so many nodes, so that what has to be mended is near.
const PIECE: usize = 30;
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

/// A ring that is being shortened.
#[derive(Debug)]
pub struct Tour<'a> {
    graph: Graph<'a>,
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
        let largest = graph.costs.iter().copied().fold(0.0, f64::max);
        Self {
            graph,
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
        for count in 0..kicks {
            if count % GLANCE == 0 && is_over() {
                return;
            }
            self.journal.clear();
            let piece = PIECE.min(len / 3);
            let begin = random.below(len);
            let (first, second) = (1 + random.below(piece), 1 + random.below(piece));
            let change = self.exchange_pieces(begin, first, second);
            let gained = self.shorten(&[]);
            if gained < change - self.least {
                while let Some((begin, end)) = self.journal.pop() {
                    self.reverse_places(begin, end);
                }
            }
        }
    }

    /// Two pieces that follow each other change places; gives how much longer the ring is.
    fn exchange_pieces(&mut self, begin: usize, first: usize, second: usize) -> f64 {
        let len = self.order.len();
        let at = |place: usize| (begin + place) % len;
        let node = |tour: &Self, place: usize| tour.order[at(place)];
        let ends = [len - 1, 0, first - 1, first, first + second - 1, first + second]
            .map(|place| node(self, place));
        let [before, a, b, c, d, after] = ends;
        let graph = self.graph;
        let change = graph.at(before, c) + graph.at(d, a) + graph.at(b, after)
            - graph.at(before, a)
            - graph.at(b, c)
            - graph.at(d, after);
        let place = |place: usize| at(place) as u32;
        self.flip(place(0), place(first - 1));
        self.flip(place(first), place(first + second - 1));
        self.flip(place(0), place(first + second - 1));
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

    fn flip(&mut self, begin: u32, end: u32) {
        self.journal.push((begin, end));
        self.reverse_places(begin, end);
    }

    /// Reverses the nodes from one place to another, or the others, which makes the same ring.
    fn reverse_places(&mut self, begin: u32, end: u32) {
        let len = self.order.len();
        let (mut begin, mut end) = (begin as usize, end as usize);
        let mut count = if end >= begin { end - begin + 1 } else { end + len - begin + 1 };
        if 2 * count > len {
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
    }

    fn step_from(&mut self, node: u32) -> Option<f64> {
        for is_next in [true, false] {
            let other = if is_next { self.next(node) } else { self.previous(node) };
            if let Some(gain) = self.step(0, node, other, self.graph.at(node, other)) {
                self.look_at(node);
                return Some(gain);
            }
        }
        None
    }

    /// Goes on from a ring that is closed by the edge of `home` and `end`, which isn't wanted: `gain` is what the edges
    /// that are out, this one too, cost more than those that are in.
    fn step(&mut self, depth: usize, home: u32, end: u32, gain: f64) -> Option<f64> {
        let breadth = *BREADTH.get(depth)?;
        let graph = self.graph;
        let is_forward = self.next(home) == end;
        // What an edge from the end to a near node gains, with the edge that has to go for it.
        let mut found = [(f64::NEG_INFINITY, 0, 0); BREADTH[0]];
        let mut count = 0;
        for &near in &graph.near[end as usize] {
            let rest = gain - graph.at(end, near);
            if rest <= self.least {
                break;
            }
            if near == home || near == self.next(end) || near == self.previous(end) {
                continue;
            }
            let out = if is_forward { self.previous(near) } else { self.next(near) };
            let worth = rest + graph.at(near, out);
            let mut at = count.min(breadth - 1);
            if count == breadth && found[at].0 >= worth {
                continue;
            }
            while at > 0 && found[at - 1].0 < worth {
                found[at] = found[at - 1];
                at -= 1;
            }
            found[at] = (worth, near, out);
            count = (count + 1).min(breadth);
        }
        for &(worth, near, out) in &found[..count] {
            let closed = worth - graph.at(out, home);
            if closed <= self.least && depth + 1 == BREADTH.len() {
                continue;
            }
            let [begin, stop] = if is_forward { [end, out] } else { [out, end] };
            self.flip(self.place[begin as usize], self.place[stop as usize]);
            let gained = if closed > self.least {
                Some(closed)
            } else {
                self.step(depth + 1, home, out, worth)
            };
            if gained.is_some() {
                [end, near, out].into_iter().for_each(|node| self.look_at(node));
                return gained;
            }
            let (begin, stop) = self.journal.pop().unwrap_or((0, 0));
            self.reverse_places(begin, stop);
        }
        None
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
