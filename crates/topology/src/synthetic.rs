//! Made-up data centres: round-trip times as a probe of virtual machines in racks and pods would find them.
//!
//! The figures of docs/topology are of these, and marked so. Racks have 4 to 16 of the machines and pods 4 to 8 racks,
//! as a cloud gives them out; the numbers of the machines say nothing of where they are.

use crate::{matrix::Matrix, random::Random};

/// What a data centre is like; times in microseconds.
#[derive(Clone, Debug)]
pub struct DataCentre {
    /// How many machines.
    pub machines: usize,
    /// The least and the most machines of a rack.
    pub rack: (usize, usize),
    /// The least and the most racks of a pod.
    pub pod: (usize, usize),
    /// The times inside a rack lie between these.
    pub inside_us: (f64, f64),
    /// The times between racks of a pod.
    pub between_racks_us: (f64, f64),
    /// The times between pods.
    pub between_pods_us: (f64, f64),
    /// The standard deviation of each pair's time, as a part of it.
    pub noise: f64,
    /// The share of pairs that a probe found slower by half, up to three times.
    pub outliers: f64,
}

impl Default for DataCentre {
    fn default() -> Self {
        Self {
            machines: 512,
            rack: (4, 16),
            pod: (4, 8),
            inside_us: (9.0, 14.0),
            between_racks_us: (50.0, 90.0),
            between_pods_us: (130.0, 230.0),
            noise: 0.08,
            outliers: 0.01,
        }
    }
}

/// Round-trip times of a data centre, and the rack of each machine.
pub fn data_centre(it: &DataCentre, seed: u64) -> (Matrix, Vec<u32>) {
    let mut random = Random::new(seed);
    let within =
        |random: &mut Random, (least, most): (usize, usize)| least + random.below(most - least + 1);
    let (mut racks, mut pod_of_rack) = (Vec::new(), Vec::new());
    let (mut left_in_pod, mut pods) = (0, 0);
    while racks.len() < it.machines {
        if left_in_pod == 0 {
            left_in_pod = within(&mut random, it.pod);
            pods += 1;
        }
        left_in_pod -= 1;
        let size = within(&mut random, it.rack).min(it.machines - racks.len());
        racks.extend(std::iter::repeat_n(pod_of_rack.len() as u32, size));
        pod_of_rack.push(pods - 1);
    }
    random.shuffle(&mut racks);
    let count = pod_of_rack.len();
    let spread =
        |random: &mut Random, (least, most): (f64, f64)| least + (most - least) * random.unit();
    let mut of_racks = vec![0.0; count * count];
    let mut of_pods = vec![0.0; pods * pods];
    for a in 0..pods {
        for b in 0..a {
            of_pods[a * pods + b] = spread(&mut random, it.between_pods_us);
            of_pods[b * pods + a] = of_pods[a * pods + b];
        }
    }
    for a in 0..count {
        for b in 0..=a {
            let (one, other) = (pod_of_rack[a], pod_of_rack[b]);
            let time = if a == b {
                spread(&mut random, it.inside_us)
            } else if one == other {
                spread(&mut random, it.between_racks_us)
            } else {
                of_pods[one * pods + other]
            };
            of_racks[a * count + b] = time;
            of_racks[b * count + a] = time;
        }
    }
    let matrix = Matrix::of(it.machines, |a, b| {
        let time = of_racks[racks[a] as usize * count + racks[b] as usize];
        let noise = (1.0 + it.noise * random.normal()).max(0.5);
        let is_slow = random.unit() < it.outliers;
        time * noise * if is_slow { 1.5 + 1.5 * random.unit() } else { 1.0 }
    });
    (matrix, racks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters;

    #[test]
    fn a_seed_makes_one_data_centre_of_uneven_racks() {
        let (matrix, racks) = data_centre(&DataCentre::default(), 7);
        assert_eq!(matrix.len(), 512);
        assert_eq!(matrix, data_centre(&DataCentre::default(), 7).0);
        assert_ne!(matrix, data_centre(&DataCentre::default(), 8).0);
        let sizes = clusters::sizes(&clusters::numbered(&racks));
        assert!(sizes.iter().min() < sizes.iter().max());
    }

    #[test]
    fn its_racks_are_found_from_the_times() {
        let (matrix, racks) =
            data_centre(&DataCentre { outliers: 0.0, ..DataCentre::default() }, 7);
        assert_eq!(clusters::by_gaps(&matrix).first(), Some(&clusters::numbered(&racks)));
    }
}
