//! Machines, the links between them, and models of transfer times.

use crate::matrix::Matrix;

/// A model of how long a transfer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// The paper's model: a transfer takes the round-trip time, whatever its size. Only one of the two mirrored halves
    /// of an allreduce counts.
    Paper,
    /// A transfer takes half the round-trip time, plus its bytes at the rate of the slowest link on its path.
    AlphaBeta,
    /// Transfers of a round share links: the uplink of a cluster carries everything that crosses it.
    Congestion,
}

/// Machines and their links.
#[derive(Clone, Debug)]
pub struct Network {
    /// Round-trip times.
    pub rtt: Matrix,
    /// The cluster of each machine.
    pub cluster: Vec<u32>,
    /// Rate of each machine's link in each direction, in bytes per microsecond.
    pub nic: f64,
    /// Rate of each cluster's uplink in each direction.
    pub uplinks: Vec<f64>,
}

impl Network {
    /// Creates a network from round-trip times alone: one cluster, links without a limit.
    pub fn of_times(rtt: Matrix) -> Self {
        let cluster = vec![0; rtt.len()];
        Self { rtt, cluster, nic: f64::INFINITY, uplinks: vec![f64::INFINITY] }
    }

    /// Whether two machines are in different clusters.
    #[inline]
    pub fn crosses(&self, a: usize, b: usize) -> bool {
        self.cluster[a] != self.cluster[b]
    }

    /// Microseconds per byte between two machines if no other transfer uses their links.
    #[inline]
    pub fn byte_us(&self, a: usize, b: usize) -> f64 {
        let own = 1.0 / self.nic;
        if !self.crosses(a, b) {
            return own;
        }
        let up = |machine: usize| 1.0 / self.uplinks[self.cluster[machine] as usize];
        own.max(up(a)).max(up(b))
    }

    /// Cost of a single transfer. In the congestion model, the time on the links is not included.
    #[inline]
    pub fn transfer_us(&self, model: Model, a: usize, b: usize, bytes: f64) -> f64 {
        match model {
            Model::Paper => self.rtt.at(a, b),
            Model::AlphaBeta => self.rtt.at(a, b) / 2.0 + bytes * self.byte_us(a, b),
            Model::Congestion => self.rtt.at(a, b) / 2.0,
        }
    }
}
