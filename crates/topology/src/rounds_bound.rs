//! Lower bounds of halving-doubling and BCube, from bounds of the round maxima.
//!
//! The rounds whose slowest pair takes at most t form cubes of machines that reach each other within t. If there are k
//! such rounds with sides s1 to sk, each machine is in a cube of s1·…·sk machines. Every group of machines that reach
//! each other within t therefore consists of whole cubes, and each machine has (s1 - 1) + … + (sk - 1) others within t.
//! It is unknown which k rounds these are. The common divisor of all products of k sides, and the smallest number of
//! others for any k sides, are valid for all.

use crate::{
    clusters::{self, Sets},
    cost::{Lane, fan, times},
    matrix::Matrix,
    network::{Model, Network},
};

/// Computes a lower bound of the cost of `ranks` machines that exchange in cubes of these sides.
///
/// `lanes` are the lanes of the schedule in which all ranks exchange, one per side.
pub fn bound(
    network: &Network,
    model: Model,
    lanes: &[Lane],
    sides: &[usize],
    ranks: usize,
) -> f64 {
    let maxima = maxima(&network.rtt, sides, ranks);
    let half = if model == Model::Paper { 1.0 } else { 0.5 };
    // The heaviest round may have the smallest maximum: pair weights and maxima in the cheapest way.
    let mut weights: Vec<f64> = lanes.iter().map(|lane| half * times(model, lane)).collect();
    weights.sort_by(|a, b| b.total_cmp(a));
    let times_us: f64 = weights.iter().zip(&maxima).map(|(weight, us)| weight * us).sum();
    times_us + bytes_us(network, model, lanes)
}

/// Computes a lower bound of lanes in which only some ranks send: no pair is nearer than the nearest.
pub fn bound_of_others(network: &Network, model: Model, lanes: &[Lane]) -> f64 {
    let half = if model == Model::Paper { 1.0 } else { 0.5 };
    let len = network.rtt.len();
    let apart = (0..len * len).filter(|at| at / len != at % len);
    let least = apart.map(|at| network.rtt.cells()[at]).fold(f64::INFINITY, f64::min);
    let times_us: f64 = lanes.iter().map(|lane| half * times(model, lane) * least).sum();
    if lanes.is_empty() { 0.0 } else { times_us + bytes_us(network, model, lanes) }
}

/// Minimum time for the bytes: in every order, each machine's own link carries them.
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

/// Lower bounds of the round maxima, smallest first.
fn maxima(rtt: &Matrix, sides: &[usize], ranks: usize) -> Vec<f64> {
    // All sides are equal except one, which may be smaller.
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

/// Greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}

/// The shortest time within which groups hold whole cubes of this size for all ranks.
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

/// The shortest time within which `ranks` machines have this many others.
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
        // Of nine machines, eight can be chosen with four in each rack.
        let spare = Matrix::of(9, |a, b| if (a < 5) == (b < 5) { 10.0 } else { 50.0 });
        assert_eq!(maxima(&spare, &[2, 2, 2], 8), [10.0, 10.0, 50.0]);
    }
}
