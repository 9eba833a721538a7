//! Lower bounds of halving-doubling and BCube: what the maxima of the rounds can't be below.
//!
//! The rounds whose slowest pair takes at most t make cubes of machines that reach each other within t: if there are k
//! such rounds of sides s1 to sk, each machine is in a cube of s1·…·sk. So every group of machines that reach each other
//! within t holds whole cubes only, and each machine has (s1 - 1) + … + (sk - 1) others within t. Which k rounds these are
//! isn't known: what divides every product of k sides, and the fewest others of any k sides, hold for all.

use crate::{
    clusters::{self, Sets},
    cost::{Lane, fan, times},
    matrix::Matrix,
    network::{Model, Network},
};

/// A bound of the cost of `ranks` machines of a network that exchange in cubes of these sides.
///
/// `lanes` are those of the schedule in which all exchange, one for each side.
pub fn bound(
    network: &Network,
    model: Model,
    lanes: &[Lane],
    sides: &[usize],
    ranks: usize,
) -> f64 {
    let maxima = maxima(&network.rtt, sides, ranks);
    let half = if model == Model::Paper { 1.0 } else { 0.5 };
    // The heaviest round may have the smallest maximum: weights and maxima are paired the cheapest way.
    let mut weights: Vec<f64> = lanes.iter().map(|lane| half * times(model, lane)).collect();
    weights.sort_by(|a, b| b.total_cmp(a));
    let times_us: f64 = weights.iter().zip(&maxima).map(|(weight, us)| weight * us).sum();
    times_us + bytes_us(network, model, lanes)
}

/// A bound of lanes in which some send to others: no pair is nearer than the nearest.
pub fn bound_of_others(network: &Network, model: Model, lanes: &[Lane]) -> f64 {
    let half = if model == Model::Paper { 1.0 } else { 0.5 };
    let len = network.rtt.len();
    let apart = (0..len * len).filter(|at| at / len != at % len);
    let least = apart.map(|at| network.rtt.cells()[at]).fold(f64::INFINITY, f64::min);
    let times_us: f64 = lanes.iter().map(|lane| half * times(model, lane) * least).sum();
    if lanes.is_empty() { 0.0 } else { times_us + bytes_us(network, model, lanes) }
}

/// What the bytes take at least: each machine's own link carries them in every order.
fn bytes_us(network: &Network, model: Model, lanes: &[Lane]) -> f64 {
    let own = |lane: &Lane| {
        let at_once = match model {
            Model::Paper => 0.0,
            Model::AlphaBeta => 1.0,
            Model::Congestion => fan(&lane.pairs, lane.both) as f64,
        };
        lane.times * at_once * lane.bytes / network.nic
    };
    lanes.iter().map(own).sum()
}

/// Bounds of the round maxima, the smallest first.
fn maxima(rtt: &Matrix, sides: &[usize], ranks: usize) -> Vec<f64> {
    // All sides are equal but one, which may be smaller.
    let most = sides.iter().copied().max().unwrap_or(1);
    let least = sides.iter().copied().min().unwrap_or(1);
    let (mut cube, mut others) = (common(least, most), least - 1);
    let mut found: Vec<f64> = Vec::new();
    for round in 1..=sides.len() {
        if round > 1 {
            cube *= most;
            others += most - 1;
        }
        if round == sides.len() {
            cube = ranks;
        }
        let time = by_groups(rtt, cube, ranks).max(by_degrees(rtt, others, ranks));
        found.push(time.max(found.last().copied().unwrap_or(0.0)));
    }
    found
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

/// The least time within which groups hold whole cubes of this size for all ranks.
fn by_groups(rtt: &Matrix, cube: usize, ranks: usize) -> f64 {
    let mut sets = Sets::new(rtt.len());
    let mut held = if cube == 1 { rtt.len() } else { 0 };
    for (time, a, b) in clusters::joins(rtt) {
        if held >= ranks {
            break;
        }
        let whole = |sets: &mut Sets, machine: u32| {
            let root = sets.root(machine);
            sets.size(root) / cube * cube
        };
        let before = whole(&mut sets, a) + whole(&mut sets, b);
        sets.join(a, b);
        held += whole(&mut sets, a) - before;
        if held >= ranks {
            return time;
        }
    }
    0.0
}

/// The least time within which as many machines as there are ranks have so many others.
fn by_degrees(rtt: &Matrix, others: usize, ranks: usize) -> f64 {
    let mut times: Vec<f64> = (0..rtt.len())
        .map(|machine| {
            let mut row: Vec<f64> = rtt.row(machine).to_vec();
            row.swap_remove(machine);
            row.sort_by(f64::total_cmp);
            if others == 0 { 0.0 } else { row[others - 1] }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[ranks - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn racks_of_odd_sizes_make_every_round_cross() {
        let rtt = Matrix::of(8, |a, b| if (a < 5) == (b < 5) { 10.0 } else { 50.0 });
        assert_eq!(maxima(&rtt, &[2, 2, 2], 8), [50.0, 50.0, 50.0]);
        let even = Matrix::of(8, |a, b| if (a < 6) == (b < 6) { 10.0 } else { 50.0 });
        assert_eq!(maxima(&even, &[2, 2, 2], 8), [10.0, 50.0, 50.0]);
        let whole = Matrix::of(8, |a, b| if (a < 4) == (b < 4) { 10.0 } else { 50.0 });
        assert_eq!(maxima(&whole, &[2, 2, 2], 8), [10.0, 10.0, 50.0]);
        // Of nine machines eight can be chosen such that one rack has four of them, the other four.
        let spare = Matrix::of(9, |a, b| if (a < 5) == (b < 5) { 10.0 } else { 50.0 });
        assert_eq!(maxima(&spare, &[2, 2, 2], 8), [10.0, 10.0, 50.0]);
    }
}
