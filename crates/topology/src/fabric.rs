//! The judge of the models: flows over links of machines and racks, at rates that are fair.
//!
//! Each rack has several uplinks to a core that never is full. A flow's hash says which of them it takes in each rack
//! (ECMP), and other tenants take a part of each. Flows share links max-min fairly: no flow can have more without one
//! that has no more than it having less. Loss, queues and TCP's dynamics are not simulated.

use crate::{matrix::Matrix, random::Random, schedule::Schedule};

/// What a fabric is like; rates in bytes per microsecond.
#[derive(Clone, Debug)]
pub struct Links {
    /// Of each machine, in each direction.
    pub nic: f64,
    /// How many uplinks each rack has.
    pub uplinks: usize,
    /// Of each of them, in each direction.
    pub uplink: f64,
    /// Other tenants take up to this part of each uplink.
    pub background: f64,
}

/// Machines in racks, with links.
#[derive(Clone, Debug)]
pub struct Fabric {
    rack: Vec<u32>,
    rtt: Matrix,
    uplinks: usize,
    /// The links of machines out and in, then the uplinks out and in.
    rates: Vec<f64>,
    salt: u64,
}

impl Fabric {
    /// A fabric; the seed says what other tenants take, and which uplink a flow gets.
    pub fn new(links: &Links, rack: Vec<u32>, rtt: Matrix, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let racks = rack.iter().max().map_or(0, |&last| last as usize + 1);
        let mut rates = vec![links.nic; 2 * rack.len()];
        for _ in 0..2 * racks * links.uplinks {
            rates.push(links.uplink * (1.0 - links.background * random.unit()));
        }
        Self { rack, rtt, uplinks: links.uplinks, rates, salt: random.bits() }
    }

    /// The links of a flow between two machines.
    fn way(&self, a: u32, b: u32) -> Vec<u32> {
        let machines = self.rack.len();
        let mut way = vec![a, machines as u32 + b];
        let (from, to) = (self.rack[a as usize], self.rack[b as usize]);
        if from != to {
            let mut hash = Random::new(self.salt ^ (u64::from(a) << 32 | u64::from(b)));
            for (rack, direction) in [(from as usize, 0), (to as usize, 1)] {
                let first = 2 * machines + (2 * rack + direction) * self.uplinks;
                way.push((first + hash.below(self.uplinks)) as u32);
            }
        }
        way
    }

    /// The fair rate of each flow, given its links: the fullest link decides first.
    fn fair(&self, ways: &[Vec<u32>]) -> Vec<f64> {
        let mut left = self.rates.clone();
        let mut flows: Vec<Vec<u32>> = vec![Vec::new(); left.len()];
        for (flow, way) in ways.iter().enumerate() {
            way.iter().for_each(|&link| flows[link as usize].push(flow as u32));
        }
        let mut open: Vec<usize> = flows.iter().map(Vec::len).collect();
        let mut used: Vec<u32> =
            (0..left.len() as u32).filter(|&link| open[link as usize] > 0).collect();
        let mut rates = vec![0.0; ways.len()];
        let mut is_set = vec![false; ways.len()];
        loop {
            used.retain(|&link| open[link as usize] > 0);
            let share = |link: u32| left[link as usize] / open[link as usize] as f64;
            let fullest = used.iter().copied().min_by(|&a, &b| share(a).total_cmp(&share(b)));
            let Some(fullest) = fullest else { return rates };
            let rate = share(fullest).max(1e-9);
            for &flow in &flows[fullest as usize] {
                if !is_set[flow as usize] {
                    is_set[flow as usize] = true;
                    rates[flow as usize] = rate;
                    for &link in &ways[flow as usize] {
                        left[link as usize] -= rate;
                        open[link as usize] -= 1;
                    }
                }
            }
        }
    }

    /// The microseconds of an allreduce round a ring: all flows at once, and the slowest holds up the others.
    pub fn ring_us(&self, order: &[u32], bytes: f64) -> f64 {
        let ranks = order.len();
        if ranks < 2 {
            return 0.0;
        }
        let hop = |rank: usize| (order[rank], order[(rank + 1) % ranks]);
        let ways: Vec<Vec<u32>> =
            (0..ranks).map(|rank| self.way(hop(rank).0, hop(rank).1)).collect();
        let slowest = self.fair(&ways).into_iter().fold(f64::INFINITY, f64::min);
        let steps = 2.0 * (ranks - 1) as f64;
        let round: f64 = (0..ranks)
            .map(|rank| self.rtt.at(hop(rank).0 as usize, hop(rank).1 as usize) / 2.0)
            .sum();
        steps * bytes / ranks as f64 / slowest + steps / ranks as f64 * round
    }

    /// The microseconds of a schedule's rounds, each of which begins when the one before is over.
    pub fn rounds_us(&self, schedule: &Schedule, order: &[u32], bytes: f64) -> f64 {
        schedule
            .rounds
            .iter()
            .map(|round| {
                let pair = |it: &crate::schedule::Transfer| {
                    (order[it.source as usize], order[it.destination as usize])
                };
                let late = round.iter().map(|it| {
                    let (a, b) = pair(it);
                    self.rtt.at(a as usize, b as usize) / 2.0
                });
                let late = late.fold(0.0, f64::max);
                let mut flows: Vec<(f64, Vec<u32>)> = round
                    .iter()
                    .map(|it| (schedule.bytes(it, bytes), self.way(pair(it).0, pair(it).1)))
                    .collect();
                let mut time = late;
                while !flows.is_empty() {
                    let ways: Vec<Vec<u32>> = flows.iter().map(|flow| flow.1.clone()).collect();
                    let rates = self.fair(&ways);
                    let ends = flows.iter().zip(&rates).map(|(flow, rate)| flow.0 / rate);
                    let step = ends.fold(f64::INFINITY, f64::min);
                    time += step;
                    for (flow, rate) in flows.iter_mut().zip(&rates) {
                        flow.0 -= rate * step;
                    }
                    flows.retain(|flow| flow.0 > 1e-6 * bytes / schedule.parts as f64);
                }
                time
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Algorithm, Halving};

    fn two_racks(uplinks: usize, uplink: f64) -> Fabric {
        let rtt = Matrix::of(8, |_, _| 0.0);
        let links = Links { nic: 12.5, uplinks, uplink, background: 0.0 };
        Fabric::new(&links, (0..8).map(|machine| machine / 4).collect(), rtt, 1)
    }

    #[test]
    fn rates_are_fair_and_links_are_full() {
        let fabric = two_racks(1, 12.5);
        // Two flows leave machine 0, one of them and one more the rack.
        let ways = [fabric.way(0, 1), fabric.way(0, 4), fabric.way(2, 5)];
        assert_eq!(fabric.fair(&ways), [6.25, 6.25, 6.25]);
        let ways = [fabric.way(0, 4), fabric.way(1, 4), fabric.way(2, 3)];
        assert_eq!(fabric.fair(&ways), [6.25, 6.25, 12.5]);
    }

    #[test]
    fn a_full_uplink_makes_a_ring_slower_by_its_crossings() {
        let fabric = two_racks(1, 12.5);
        let sorted = fabric.ring_us(&[0, 1, 2, 3, 4, 5, 6, 7], 8e6);
        let mixed = fabric.ring_us(&[0, 4, 1, 5, 2, 6, 3, 7], 8e6);
        assert!((sorted / 1e6 - 1.12).abs() < 1e-6);
        assert!((mixed / sorted - 4.0).abs() < 1e-6);
        let wide = two_racks(1, 50.0);
        assert!((wide.ring_us(&[0, 4, 1, 5, 2, 6, 3, 7], 8e6) / sorted - 1.0).abs() < 1e-6);
    }

    #[test]
    fn rounds_take_what_their_busiest_link_takes() {
        let schedule = Schedule::new(Algorithm::HalvingDoubling(Halving::Gloo), 8).unwrap();
        let fabric = two_racks(1, 12.5);
        let sorted = fabric.rounds_us(&schedule, &[0, 1, 2, 3, 4, 5, 6, 7], 8e6);
        assert!((sorted / 1e6 - 1.60).abs() < 1e-3, "{sorted}");
    }
}
