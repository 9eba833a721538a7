//! Generates artificial data centers: round-trip times as a probe of virtual machines in racks and pods would measure
//! them.
//!
//! The figures in docs/topology use them, and say so. As in a cloud, racks have 4 to 16 of the machines and pods have 4
//! to 8 racks. The numbers of machines do not depend on their location.

use crate::{matrix::Matrix, random::Random};

/// Parameters of a data center; times are in microseconds.
#[derive(Clone, Debug)]
pub struct DataCentre {
    /// Number of machines.
    pub machines: usize,
    /// Minimum and maximum number of machines per rack.
    pub rack: (usize, usize),
    /// Minimum and maximum number of racks per pod.
    pub pod: (usize, usize),
    /// Range of times inside a rack.
    pub inside_us: (f64, f64),
    /// Range of times between racks of a pod.
    pub between_racks_us: (f64, f64),
    /// Range of times between pods.
    pub between_pods_us: (f64, f64),
    /// Standard deviation of each pair's time, as a fraction of it.
    pub noise: f64,
    /// Fraction of pairs that the probe measured 1.5 to 3 times too slow.
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

/// Generates the round-trip times of a data center and the rack of each machine.
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
