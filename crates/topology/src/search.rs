//! Searches by swaps: annealing on a smoothed cost first, then on the exact cost with the smoothed cost as tie-breaker.
//!
//! Most swaps do not change a cost that is a sum of maxima, so a search on that cost alone gets no guidance. The
//! smoothed cost replaces maxima by norms: every pair counts, and long ones count more. An [`Evaluate`] computes both
//! costs.

use crate::random::Random;

/// Share of the tries spent on the smoothed cost.
const SMOOTH: f64 = 0.75;
/// Weight of the smoothed cost, added to the exact cost.
const TIE: f64 = 0.05;
/// Number of near machines from which a targeted swap chooses.
const NEAR: usize = 12;
/// The time is checked once in this many tries.
const GLANCE: u64 = 1 << 10;

/// An evaluator: the cost of an order that changes by swaps.
pub trait Evaluate {
    /// Number of places at the front that take part; machines after them are spare.
    fn ranks(&self) -> usize;
    /// The machine of each place.
    fn order(&self) -> &[u32];
    /// Replaces the order.
    fn set_order(&mut self, order: &[u32]);
    /// The exact cost.
    fn hard(&mut self) -> f64;
    /// The smoothed cost.
    fn soft(&self) -> f64;
    /// Returns the smoothed cost after two places exchange their machines. A call of `keep` or `undo` must follow.
    fn try_swap(&mut self, a: usize, b: usize) -> f64;
    /// Keeps the swap of `try_swap`.
    fn keep(&mut self);
    /// Undoes the swap of `try_swap`.
    fn undo(&mut self);
    /// Returns a random rank that exchanges data with this one.
    fn partner(&self, rank: usize, random: &mut Random) -> usize;
    /// Returns two ranks whose transfer is among the slowest.
    fn critical(&mut self, random: &mut Random) -> (usize, usize);
}

/// Whether to minimize or maximize the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Minimize.
    Best,
    /// Maximize.
    Worst,
}

/// Parameters of a search.
#[expect(missing_debug_implementations, reason = "a closure has none")]
pub struct Search<'a> {
    /// For each machine, the nearest ones.
    pub near: &'a [Vec<u32>],
    /// Whether to minimize or maximize the cost.
    pub aim: Aim,
    /// Number of swaps to try.
    pub tries: u64,
    /// Whether the time is up.
    pub is_over: &'a dyn Fn() -> bool,
}

/// Improves the order of an evaluator. The evaluator ends with the best order found; returns its cost.
pub fn improve(costs: &mut dyn Evaluate, search: &Search<'_>, random: &mut Random) -> f64 {
    let mut walk = Walk::new(costs, search, random);
    if walk.costs.ranks() < 2 || walk.costs.order().len() < 2 {
        return walk.best.0 * walk.sign;
    }
    let smooth = (search.tries as f64 * SMOOTH) as u64;
    walk.anneal(smooth, false);
    walk.restore();
    walk.anneal(search.tries - smooth, true);
    walk.restore();
    walk.best.0 * walk.sign
}

/// Improves an order that is nearly right, with few swaps and none uphill.
pub fn mend(costs: &mut dyn Evaluate, search: &Search<'_>, random: &mut Random) -> f64 {
    let mut walk = Walk::new(costs, search, random);
    if walk.costs.order().len() >= 2 && walk.costs.ranks() >= 2 {
        walk.run(search.tries, (1e-12, 1e-12), true);
        walk.restore();
    }
    walk.best.0 * walk.sign
}

/// The paper's annealing: permutes random pairs and random short ranges, and accepts by the exact cost.
pub fn as_the_paper(costs: &mut dyn Evaluate, search: &Search<'_>, random: &mut Random) -> f64 {
    let mut best = (costs.hard(), costs.order().to_vec());
    let (places, mut now) = (costs.order().len(), best.0);
    if places < 2 {
        return now;
    }
    // The best temperatures tried for 512 machines: from 0.1 % of the cost down to a twentieth of that.
    let heat = ((0.001 * now).max(1e-12), 0.00005 * now);
    for count in 0..search.tries {
        if count % GLANCE == 0 && (search.is_over)() {
            break;
        }
        let heat = heat.0 * (heat.1.max(1e-12) / heat.0).powf(count as f64 / search.tries as f64);
        let mut swaps = vec![(random.below(places), random.below(places))];
        if random.below(4) == 0 {
            // Shuffle a range of a few places.
            let begin = random.below(places);
            let end = places.min(begin + 2 + random.below(7));
            swaps = (begin + 1..end)
                .rev()
                .map(|at| (at, begin + random.below(at + 1 - begin)))
                .collect();
        }
        swaps.retain(|swap| swap.0 != swap.1);
        let swap = |costs: &mut dyn Evaluate, (a, b): (usize, usize)| {
            costs.try_swap(a, b);
            costs.keep();
        };
        swaps.iter().for_each(|&pair| swap(costs, pair));
        let next = costs.hard();
        if next <= now || random.unit() < ((now - next) / heat).exp() {
            now = next;
            if now < best.0 {
                best = (now, costs.order().to_vec());
            }
        } else {
            swaps.iter().rev().for_each(|&pair| swap(costs, pair));
        }
    }
    costs.set_order(&best.1);
    best.0
}

struct Walk<'a, 'b> {
    costs: &'a mut dyn Evaluate,
    search: &'a Search<'b>,
    random: &'a mut Random,
    /// 1 to minimize, -1 to maximize.
    sign: f64,
    /// The place of each machine.
    place: Vec<usize>,
    best: (f64, Vec<u32>),
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(costs: &'a mut dyn Evaluate, search: &'a Search<'b>, random: &'a mut Random) -> Self {
        let sign = if search.aim == Aim::Best { 1.0 } else { -1.0 };
        let best = (sign * costs.hard(), costs.order().to_vec());
        let place = vec![0; costs.order().len()];
        let mut walk = Self { costs, search, random, sign, place, best };
        walk.find_places();
        walk
    }

    fn find_places(&mut self) {
        for (place, &machine) in self.costs.order().iter().enumerate() {
            self.place[machine as usize] = place;
        }
    }

    /// Returns to the best order.
    fn restore(&mut self) {
        self.costs.set_order(&self.best.1);
        self.find_places();
    }

    /// Anneals from a temperature that accepts typical swaps down to one that accepts only improvements.
    fn anneal(&mut self, tries: u64, is_hard: bool) {
        let mut rises = Vec::new();
        let now = self.costs.soft();
        for _ in 0..200 {
            let (a, b) = self.swap(false);
            if a != b {
                rises.push((self.costs.try_swap(a, b) - now).abs());
                self.costs.undo();
            }
        }
        rises.sort_by(f64::total_cmp);
        let typical = rises.get(rises.len() / 2).copied().unwrap_or(0.0).max(1e-12);
        let heat = if is_hard {
            (0.003 * self.best.0.abs(), 0.0002 * self.best.0.abs())
        } else {
            (0.3 * typical, 0.01 * typical)
        };
        self.run(tries, (heat.0.max(1e-12), heat.1.max(1e-12)), is_hard);
    }

    fn run(&mut self, tries: u64, heat: (f64, f64), is_hard: bool) {
        let mut soft = self.sign * self.costs.soft();
        let mut hard = self.sign * self.costs.hard();
        let mut warmth = heat.0;
        for count in 0..tries {
            if count % GLANCE == 0 {
                if (self.search.is_over)() {
                    return;
                }
                warmth = heat.0 * (heat.1 / heat.0).powf(count as f64 / tries as f64);
            }
            let (a, b) = self.swap(is_hard);
            if a == b {
                continue;
            }
            let next = self.sign * self.costs.try_swap(a, b);
            if !is_hard {
                let rise = next - soft;
                if rise > 0.0 && self.random.unit() >= (-rise / warmth).exp() {
                    self.costs.undo();
                    continue;
                }
                self.commit(a, b);
                soft = next;
                // The exact cost follows the smoothed one: it is computed only in the second half, when that is low.
                if 2 * count > tries {
                    hard = self.sign * self.costs.hard();
                    self.remember(hard);
                }
                continue;
            }
            // If the smoothed cost is far worse, so is the exact cost.
            let room = -(self.random.unit().max(1e-300)).ln() * warmth;
            if TIE * (next - soft) > room + 0.02 * hard.abs() {
                self.costs.undo();
                continue;
            }
            self.commit(a, b);
            let true_next = self.sign * self.costs.hard();
            if true_next - hard + TIE * (next - soft) <= room {
                (hard, soft) = (true_next, next);
                self.remember(hard);
            } else {
                self.costs.try_swap(a, b);
                self.commit(a, b);
            }
        }
    }

    fn commit(&mut self, a: usize, b: usize) {
        self.costs.keep();
        let order = self.costs.order();
        self.place[order[a] as usize] = a;
        self.place[order[b] as usize] = b;
    }

    fn remember(&mut self, hard: f64) {
        if hard < self.best.0 - 1e-9 * self.best.0.abs() {
            self.best.0 = hard;
            self.best.1.copy_from_slice(self.costs.order());
        }
    }

    /// Chooses two places to exchange; the first takes part. Either any two, or so that a near machine becomes the
    /// partner of a rank.
    fn swap(&mut self, is_hard: bool) -> (usize, usize) {
        let ranks = self.costs.ranks();
        let kind = self.random.below(8);
        let a = self.random.below(ranks);
        if kind < 3 || self.search.aim == Aim::Worst {
            return (a, self.random.below(self.place.len()));
        }
        let (a, partner) = if is_hard && kind < 7 {
            let (a, b) = self.costs.critical(self.random);
            if self.random.below(2) == 0 { (a, b) } else { (b, a) }
        } else {
            (a, self.costs.partner(a, self.random))
        };
        let near = &self.search.near[self.costs.order()[partner] as usize];
        if near.is_empty() || (is_hard && kind == 6) {
            return (a, self.random.below(self.place.len()));
        }
        let machine = near[self.random.below(near.len().min(NEAR))];
        (a, self.place[machine as usize])
    }
}
