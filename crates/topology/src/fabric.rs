//! Simulates flows over links of machines and racks with max-min fair rates, to judge the cost models.
//!
//! Each rack has several uplinks to a core that is never saturated. A hash of the flow chooses its uplink in each rack
//! (ECMP), and other tenants use a part of each uplink. Rates are max-min fair: no flow can get more without reducing a
//! flow that has no more. Loss, queues and TCP dynamics are not simulated.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap},
};

use crate::{matrix::Matrix, random::Random, schedule::Schedule};

/// Parameters of a fabric; rates are in bytes per microsecond.
#[derive(Clone, Debug)]
pub struct Links {
    /// Rate of each machine's link, in each direction.
    pub nic: f64,
    /// Number of uplinks per rack.
    pub uplinks: usize,
    /// Rate of each uplink, in each direction.
    pub uplink: f64,
    /// Other tenants use up to this fraction of each uplink.
    pub background: f64,
}

/// Machines in racks, and their links.
#[derive(Clone, Debug)]
pub struct Fabric {
    rack: Vec<u32>,
    rtt: Matrix,
    uplinks: usize,
    /// Rates of machine links, out and in, then of uplinks, out and in.
    rates: Vec<f64>,
    salt: u64,
}

/// The fair share of a link per flow, and the link's number, which breaks ties.
#[derive(PartialEq)]
struct Share(f64, u32);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl Fabric {
    /// Creates a fabric. The seed determines the background traffic and the uplink of each flow.
    pub fn new(links: &Links, rack: Vec<u32>, rtt: Matrix, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let racks = rack.iter().max().map_or(0, |&last| last as usize + 1);
        let mut rates = vec![links.nic; 2 * rack.len()];
        for _ in 0..2 * racks * links.uplinks {
            rates.push(links.uplink * (1.0 - links.background * random.unit()));
        }
        Self { rack, rtt, uplinks: links.uplinks, rates, salt: random.bits() }
    }

    /// Returns the links of a flow between two machines.
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

    /// Computes the max-min fair rate of each flow, given its links; the most congested link is settled first.
    fn fair(&self, ways: &[Vec<u32>]) -> Vec<f64> {
        let mut left = self.rates.clone();
        let mut open = vec![0_u32; left.len()];
        ways.iter().flatten().for_each(|&link| open[link as usize] += 1);
        // Flows grouped by link in one array; each link's range ends where the next one's begins.
        let mut ends: Vec<usize> = Vec::with_capacity(open.len());
        open.iter().for_each(|&count| ends.push(ends.last().unwrap_or(&0) + count as usize));
        let mut begins = ends.clone();
        let mut flows = vec![0_u32; ends.last().copied().unwrap_or(0)];
        for (flow, way) in ways.iter().enumerate() {
            for &link in way {
                begins[link as usize] -= 1;
                flows[begins[link as usize]] = flow as u32;
            }
        }
        // A link's share per flow only grows. A recorded share is therefore checked again when it reaches the top.
        let mut shares: BinaryHeap<Reverse<Share>> = (0..left.len() as u32)
            .filter(|&link| open[link as usize] > 0)
            .map(|link| Reverse(Share(left[link as usize] / f64::from(open[link as usize]), link)))
            .collect();
        let mut rates = vec![0.0; ways.len()];
        let mut is_set = vec![false; ways.len()];
        while let Some(Reverse(Share(noted, fullest))) = shares.pop() {
            let fullest = fullest as usize;
            if open[fullest] == 0 {
                continue;
            }
            let share = left[fullest] / f64::from(open[fullest]);
            if share > noted {
                shares.push(Reverse(Share(share, fullest as u32)));
                continue;
            }
            let rate = share.max(1e-9);
            for &flow in &flows[begins[fullest]..ends[fullest]] {
                let flow = flow as usize;
                if !is_set[flow] {
                    is_set[flow] = true;
                    rates[flow] = rate;
                    for &link in &ways[flow] {
                        left[link as usize] -= rate;
                        open[link as usize] -= 1;
                    }
                }
            }
        }
        rates
    }

    /// Time of an allreduce around a ring, in microseconds: all flows run at once, and the slowest delays the others.
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

    /// Time of a schedule's rounds, in microseconds. Each round starts when the previous one is complete.
    pub fn rounds_us(&self, schedule: &Schedule, order: &[u32], bytes: f64) -> f64 {
        // The second half of many schedules repeats the transfers of the first, with the same durations.
        let mut known: HashMap<Vec<(u32, u32, u64)>, f64> = HashMap::new();
        let mut total = 0.0;
        for round in &schedule.rounds {
            let transfer = |it: &crate::schedule::Transfer| {
                let (a, b) = (order[it.source as usize], order[it.destination as usize]);
                (a, b, schedule.bytes(it, bytes).to_bits())
            };
            let mut transfers: Vec<(u32, u32, u64)> = round.iter().map(transfer).collect();
            transfers.sort_unstable();
            let least = 1e-6 * bytes / schedule.parts as f64;
            total += match known.get(&transfers) {
                Some(&time) => time,
                None => {
                    let time = self.round_us(&transfers, least);
                    known.insert(transfers, time);
                    time
                }
            };
        }
        total
    }

    /// Time in microseconds until each transfer has at most `least` bytes left. Sizes are the bits of an `f64`.
    fn round_us(&self, transfers: &[(u32, u32, u64)], least: f64) -> f64 {
        let late = transfers.iter().map(|it| self.rtt.at(it.0 as usize, it.1 as usize) / 2.0);
        let mut time = late.fold(0.0, f64::max);
        let mut ways: Vec<Vec<u32>> = transfers.iter().map(|it| self.way(it.0, it.1)).collect();
        let mut left: Vec<f64> = transfers.iter().map(|it| f64::from_bits(it.2)).collect();
        while !left.is_empty() {
            let rates = self.fair(&ways);
            let step = left.iter().zip(&rates).map(|(left, rate)| left / rate);
            let step = step.fold(f64::INFINITY, f64::min);
            time += step;
            left.iter_mut().zip(&rates).for_each(|(left, rate)| *left -= rate * step);
            let mut goes_on = left.iter().map(|&left| left > least);
            ways.retain(|_| goes_on.next().unwrap_or(false));
            left.retain(|&left| left > least);
        }
        time
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
        // Two flows leave machine 0. One of them, and one more, leave the rack.
        let ways = [fabric.way(0, 1), fabric.way(0, 4), fabric.way(2, 5)];
        assert_eq!(fabric.fair(&ways), [6.25, 6.25, 6.25]);
        let ways = [fabric.way(0, 4), fabric.way(1, 4), fabric.way(2, 3)];
        assert_eq!(fabric.fair(&ways), [6.25, 6.25, 12.5]);
    }

    #[test]
    fn rates_are_max_min_fair() {
        let rack: Vec<u32> = (0..60).map(|machine| machine / 7).collect();
        let links = Links { nic: 12.5, uplinks: 3, uplink: 20.0, background: 0.95 };
        let fabric = Fabric::new(&links, rack, Matrix::of(60, |_, _| 0.0), 3);
        let mut random = Random::new(4);
        for _ in 0..20 {
            let ends = |_| {
                let a = random.below(60);
                (a as u32, ((a + 1 + random.below(59)) % 60) as u32)
            };
            let pairs: Vec<(u32, u32)> = (0..100).map(ends).collect();
            let ways: Vec<Vec<u32>> = pairs.iter().map(|&(a, b)| fabric.way(a, b)).collect();
            let rates = fabric.fair(&ways);
            for (way, &rate) in ways.iter().zip(&rates) {
                // On one of its links, which is saturated, no flow has a higher rate.
                assert!(way.iter().any(|link| {
                    let shared = ways.iter().zip(&rates).filter(|(other, _)| other.contains(link));
                    let (sum, most) = shared.fold((0.0, 0.0_f64), |(sum, most), (_, &rate)| {
                        (sum + rate, most.max(rate))
                    });
                    sum > fabric.rates[*link as usize] * (1.0 - 1e-9) && most <= rate * (1.0 + 1e-9)
                }));
            }
            for (link, &rate) in fabric.rates.iter().enumerate() {
                let shared =
                    ways.iter().zip(&rates).filter(|(way, _)| way.contains(&(link as u32)));
                assert!(shared.map(|(_, rate)| rate).sum::<f64>() <= rate * (1.0 + 1e-9));
            }
        }
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
