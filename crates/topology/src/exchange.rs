//! Evaluates swaps in synchronized rounds, for halving-doubling and BCube.
//!
//! A swap changes only the pairs of two ranks, as many as they have partners. For each lane it maintains the sum of
//! powers of its pairs' times. The root of that sum is the smoothed maximum. The exact maximum is recomputed only if
//! the pair that had it changed.

use crate::{
    cost::{Lane, fan, times},
    network::{Model, Network},
    random::Random,
    search::Evaluate,
};

/// The exponent of the norm of pairs is 2 to this power. Links have the other constant, because their counts differ
/// more.
const SQUARINGS: u32 = 4;
const LINK_SQUARINGS: u32 = 2;
/// A sum that falls below this fraction of its peak is recomputed: the rounding error left by a large removed power
/// would exceed all the other terms.
const CANCELLED: f64 = 1e-5;
/// After this many swaps, the sums are recomputed to remove accumulated rounding errors.
const RENEWED: u32 = 1 << 14;

/// The cost of lanes in an order of machines.
#[derive(Debug)]
pub struct Exchange<'a> {
    network: &'a Network,
    model: Model,
    lanes: Vec<Lane>,
    weights: Vec<f64>,
    ranks: usize,
    order: Vec<u32>,
    /// For each rank: (lane, pair, rank at the other end) of its transfers.
    touching: Vec<Vec<(u32, u32, u32)>>,
    /// The time of each pair, by lane.
    values: Vec<Vec<f64>>,
    /// Approximate longest time; powers are taken of times divided by this.
    scale: f64,
    sums: Vec<f64>,
    /// The largest value of each sum since it was recomputed.
    peaks: Vec<f64>,
    worst: Vec<Worst>,
    links: Option<Links>,
    /// Changes of the swap that is being tried.
    tried: Tried,
    kept: u32,
}

#[derive(Clone, Copy, Debug)]
struct Worst {
    value: f64,
    pair: u32,
    is_stale: bool,
}

#[derive(Debug, Default)]
struct Tried {
    places: (usize, usize),
    values: Vec<(u32, u32, f64)>,
    sums: Vec<f64>,
    links: Vec<(u32, u32, i32)>,
    link_sums: Vec<f64>,
}

/// Number of transfers of each lane that leave and enter each cluster.
#[derive(Debug)]
struct Links {
    /// By lane; for each cluster, the number that leave and then the number that enter.
    counts: Vec<Vec<i32>>,
    /// Time that one transfer of a lane takes on each of these links.
    each: Vec<Vec<f64>>,
    /// Time on a machine's own link.
    own: Vec<f64>,
    scale: Vec<f64>,
    sums: Vec<f64>,
}

#[inline]
fn power<const TIMES: u32>(value: f64) -> f64 {
    (0..TIMES).fold(value, |value, _| value * value)
}

#[inline]
fn root<const TIMES: u32>(value: f64) -> f64 {
    (0..TIMES).fold(value.max(0.0), |value, _| value.sqrt())
}

impl<'a> Exchange<'a> {
    /// Creates the evaluator for lanes of `ranks` ranks in an order; machines after the first `ranks` are spare.
    pub fn new(
        network: &'a Network,
        model: Model,
        lanes: Vec<Lane>,
        ranks: usize,
        order: &[u32],
    ) -> Self {
        let mut touching = vec![Vec::new(); order.len()];
        for (lane, it) in lanes.iter().enumerate() {
            for (pair, &(a, b)) in it.pairs.iter().enumerate() {
                touching[a as usize].push((lane as u32, pair as u32, b));
                touching[b as usize].push((lane as u32, pair as u32, a));
            }
        }
        let longest = lanes.iter().map(|lane| lane.bytes).fold(0.0, f64::max);
        let slowest = network.uplinks.iter().copied().fold(network.nic, f64::min);
        let mut scale = network.rtt.max();
        if model == Model::AlphaBeta && slowest.is_finite() {
            scale += longest / slowest;
        }
        let links = (model == Model::Congestion).then(|| Links::new(network, &lanes));
        let mut made = Self {
            network,
            model,
            weights: lanes.iter().map(|lane| times(model, lane)).collect(),
            values: lanes.iter().map(|lane| vec![0.0; lane.pairs.len()]).collect(),
            sums: vec![0.0; lanes.len()],
            peaks: vec![0.0; lanes.len()],
            worst: vec![Worst { value: 0.0, pair: 0, is_stale: true }; lanes.len()],
            lanes,
            ranks,
            order: order.to_vec(),
            touching,
            scale: if scale > 0.0 { scale } else { 1.0 },
            links,
            tried: Tried::default(),
            kept: 0,
        };
        made.renew();
        made
    }

    #[inline]
    fn value(&self, lane: u32, a: u32, b: u32) -> f64 {
        self.network.transfer_us(
            self.model,
            a as usize,
            b as usize,
            self.lanes[lane as usize].bytes,
        )
    }

    fn renew(&mut self) {
        for lane in 0..self.lanes.len() {
            for pair in 0..self.lanes[lane].pairs.len() {
                let (a, b) = self.lanes[lane].pairs[pair];
                self.values[lane][pair] =
                    self.value(lane as u32, self.order[a as usize], self.order[b as usize]);
            }
            self.sums[lane] = self.sum_with(lane, &[]);
            self.peaks[lane] = self.sums[lane];
            self.worst[lane].is_stale = true;
        }
        if let Some(links) = &mut self.links {
            links.count(self.network, &self.lanes, &self.order);
        }
    }

    fn smoothed(&self, sums: &[f64], link_sums: &[f64]) -> f64 {
        let pairs: f64 = sums
            .iter()
            .zip(&self.weights)
            .map(|(&sum, weight)| weight * root::<SQUARINGS>(sum))
            .sum();
        let links: f64 = match &self.links {
            None => 0.0,
            Some(links) => link_sums
                .iter()
                .zip(&self.weights)
                .zip(&links.scale)
                .map(|((&sum, weight), scale)| weight * scale * root::<LINK_SQUARINGS>(sum))
                .sum(),
        };
        self.scale * pairs + links
    }

    /// Computes the sum of a lane's powers with changed times for some pairs.
    fn sum_with(&self, lane: usize, changes: &[(u32, u32, f64)]) -> f64 {
        let now = |(pair, &value): (usize, &f64)| {
            let is_own = |it: &&(u32, u32, f64)| (it.0 as usize, it.1 as usize) == (lane, pair);
            let value = changes.iter().find(is_own).map_or(value, |change| change.2);
            power::<SQUARINGS>(value / self.scale)
        };
        self.values[lane].iter().enumerate().map(now).sum()
    }

    fn worst(&mut self, lane: usize) -> Worst {
        if self.worst[lane].is_stale {
            let mut found = Worst { value: f64::NEG_INFINITY, pair: 0, is_stale: false };
            for (pair, &value) in self.values[lane].iter().enumerate() {
                if value > found.value {
                    found = Worst { value, pair: pair as u32, is_stale: false };
                }
            }
            self.worst[lane] = found;
        }
        self.worst[lane]
    }
}

impl Evaluate for Exchange<'_> {
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
        (0..self.lanes.len())
            .map(|lane| {
                let links = self.links.as_ref().map_or(0.0, |links| links.busiest(lane));
                self.weights[lane] * (self.worst(lane).value + links)
            })
            .sum()
    }

    fn soft(&self) -> f64 {
        self.smoothed(&self.sums, self.links.as_ref().map_or(&[], |links| &links.sums))
    }

    fn try_swap(&mut self, a: usize, b: usize) -> f64 {
        let mut tried = std::mem::take(&mut self.tried);
        tried.places = (a, b);
        tried.values.clear();
        tried.links.clear();
        tried.sums.clone_from(&self.sums);
        if let Some(links) = &self.links {
            tried.link_sums.clone_from(&links.sums);
        }
        let is_across = self.network.crosses(self.order[a] as usize, self.order[b] as usize);
        let touching = std::mem::take(&mut self.touching);
        for (place, machine, other_place) in [(a, self.order[b], b), (b, self.order[a], a)] {
            for &(lane, pair, partner) in &touching[place] {
                if partner as usize == other_place {
                    // Both ends change places: the pair stays. Only for one-way transfers does the direction change.
                    if is_across && place == a && !self.lanes[lane as usize].both {
                        self.turn(&mut tried, lane, pair);
                    }
                    continue;
                }
                let far = self.order[partner as usize];
                let value = self.value(lane, machine, far);
                let old = self.values[lane as usize][pair as usize];
                tried.sums[lane as usize] +=
                    power::<SQUARINGS>(value / self.scale) - power::<SQUARINGS>(old / self.scale);
                tried.values.push((lane, pair, value));
                if is_across && self.links.is_some() {
                    let is_first = self.lanes[lane as usize].pairs[pair as usize].0 == place as u32;
                    self.reroute(&mut tried, lane, (self.order[place], machine), far, is_first);
                }
            }
        }
        self.touching = touching;
        for lane in 0..self.lanes.len() {
            if tried.sums[lane] < CANCELLED * self.peaks[lane] {
                tried.sums[lane] = self.sum_with(lane, &tried.values);
            }
        }
        self.tried = tried;
        self.smoothed(&self.tried.sums, &self.tried.link_sums)
    }

    fn keep(&mut self) {
        let (a, b) = self.tried.places;
        self.order.swap(a, b);
        for &(lane, pair, value) in &self.tried.values {
            let lane = lane as usize;
            self.values[lane][pair as usize] = value;
            let worst = &mut self.worst[lane];
            if !worst.is_stale {
                if value >= worst.value {
                    (worst.value, worst.pair) = (value, pair);
                } else if worst.pair == pair {
                    worst.is_stale = true;
                }
            }
        }
        for (peak, &sum) in self.peaks.iter_mut().zip(&self.tried.sums) {
            *peak = if sum < CANCELLED * *peak { sum } else { sum.max(*peak) };
        }
        self.sums.clone_from(&self.tried.sums);
        if let Some(links) = &mut self.links {
            links.sums.clone_from(&self.tried.link_sums);
        }
        self.kept += 1;
        if self.kept.is_multiple_of(RENEWED) {
            self.renew();
        }
    }

    fn undo(&mut self) {
        if let Some(links) = &mut self.links {
            for &(lane, link, change) in &self.tried.links {
                links.counts[lane as usize][link as usize] -= change;
            }
        }
    }

    fn partner(&self, rank: usize, random: &mut Random) -> usize {
        let own = &self.touching[rank];
        if own.is_empty() { rank } else { own[random.below(own.len())].2 as usize }
    }

    fn critical(&mut self, random: &mut Random) -> (usize, usize) {
        if self.lanes.is_empty() {
            return (0, 0);
        }
        let lane = random.below(self.lanes.len());
        let pair = self.worst(lane).pair as usize;
        let (a, b) = self.lanes[lane].pairs[pair];
        (a as usize, b as usize)
    }
}

impl Exchange<'_> {
    /// Moves a transfer from the links of its old machine to those of the new one.
    fn reroute(
        &mut self,
        tried: &mut Tried,
        lane: u32,
        (old, new): (u32, u32),
        far: u32,
        is_first: bool,
    ) {
        let both = self.lanes[lane as usize].both;
        let cluster = |machine: u32| self.network.cluster[machine as usize];
        let (old, new, far) = (cluster(old), cluster(new), cluster(far));
        let Some(links) = &mut self.links else { return };
        for (near, change) in [(old, -1), (new, 1)] {
            if near == far {
                continue;
            }
            let (from, to) = if is_first { (near, far) } else { (far, near) };
            links.change(tried, lane, 2 * from, change);
            links.change(tried, lane, 2 * to + 1, change);
            if both {
                links.change(tried, lane, 2 * to, change);
                links.change(tried, lane, 2 * from + 1, change);
            }
        }
    }

    /// Reverses a one-way transfer whose two ends change places.
    fn turn(&mut self, tried: &mut Tried, lane: u32, pair: u32) {
        let (a, b) = self.lanes[lane as usize].pairs[pair as usize];
        let cluster = |rank: u32| self.network.cluster[self.order[rank as usize] as usize];
        let (from, to) = (cluster(a), cluster(b));
        let Some(links) = &mut self.links else { return };
        links.change(tried, lane, 2 * from, -1);
        links.change(tried, lane, 2 * to + 1, -1);
        links.change(tried, lane, 2 * to, 1);
        links.change(tried, lane, 2 * from + 1, 1);
    }
}

impl Links {
    fn new(network: &Network, lanes: &[Lane]) -> Self {
        let clusters = network.uplinks.len();
        let own: Vec<f64> = lanes
            .iter()
            .map(|lane| fan(&lane.pairs, lane.both) as f64 * lane.bytes / network.nic)
            .collect();
        let each: Vec<Vec<f64>> = lanes
            .iter()
            .map(|lane| network.uplinks.iter().flat_map(|up| [lane.bytes / up; 2]).collect())
            .collect();
        let scale = each
            .iter()
            .zip(lanes)
            .zip(&own)
            .map(|((each, lane), own)| {
                let most = each.iter().copied().fold(0.0, f64::max) * lane.pairs.len() as f64;
                if most.max(*own) > 0.0 { most.max(*own) } else { 1.0 }
            })
            .collect();
        let counts = vec![vec![0; 2 * clusters]; lanes.len()];
        Self { counts, each, own, scale, sums: vec![0.0; lanes.len()] }
    }

    fn count(&mut self, network: &Network, lanes: &[Lane], order: &[u32]) {
        for (at, lane) in lanes.iter().enumerate() {
            let counts = &mut self.counts[at];
            counts.fill(0);
            for &(a, b) in &lane.pairs {
                let [a, b] = [a, b].map(|rank| order[rank as usize] as usize);
                if network.crosses(a, b) {
                    let [from, to] = [a, b].map(|machine| 2 * network.cluster[machine] as usize);
                    counts[from] += 1;
                    counts[to + 1] += 1;
                    if lane.both {
                        counts[to] += 1;
                        counts[from + 1] += 1;
                    }
                }
            }
            self.sums[at] =
                (0..self.counts[at].len()).map(|link| self.power(at, link)).sum::<f64>()
                    + power::<LINK_SQUARINGS>(self.own[at] / self.scale[at]);
        }
    }

    #[inline]
    fn power(&self, lane: usize, link: usize) -> f64 {
        power::<LINK_SQUARINGS>(
            f64::from(self.counts[lane][link]) * self.each[lane][link] / self.scale[lane],
        )
    }

    fn change(&mut self, tried: &mut Tried, lane: u32, link: u32, change: i32) {
        let (at, to) = (lane as usize, link as usize);
        tried.link_sums[at] -= self.power(at, to);
        self.counts[at][to] += change;
        tried.link_sums[at] += self.power(at, to);
        tried.links.push((lane, link, change));
    }

    fn busiest(&self, lane: usize) -> f64 {
        let times = self.counts[lane].iter().zip(&self.each[lane]);
        times.map(|(&count, each)| f64::from(count) * each).fold(self.own[lane], f64::max)
    }
}
