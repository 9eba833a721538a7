//! What is known of the machines and the links between them.

use crate::matrix::Matrix;

/// How long a transfer is taken to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// As in the paper: a transfer costs the round-trip time, whatever its size; of the two mirrored halves of an
    /// allreduce one is counted.
    Paper,
    /// A transfer costs half the round-trip time, and its bytes at the rate of the slowest link on its way.
    AlphaBeta,
    /// The transfers of a round share links: the uplink of a cluster carries all that crosses it.
    Congestion,
}

/// Machines, and their links.
#[derive(Clone, Debug)]
pub struct Network {
    /// Round-trip times.
    pub rtt: Matrix,
    /// The cluster of each machine.
    pub cluster: Vec<u32>,
    /// The rate of each machine's own link, in each direction, in bytes per microsecond.
    pub nic: f64,
    /// The rate of each cluster's link to the others, in each direction.
    pub uplinks: Vec<f64>,
}

impl Network {
    /// A network of which only round-trip times are known: one cluster, links without a limit.
    pub fn of_times(rtt: Matrix) -> Self {
        let cluster = vec![0; rtt.len()];
        Self { rtt, cluster, nic: f64::INFINITY, uplinks: vec![f64::INFINITY] }
    }

    /// Whether the way between two machines leaves their cluster.
    #[inline]
    pub fn crosses(&self, a: usize, b: usize) -> bool {
        self.cluster[a] != self.cluster[b]
    }

    /// The microseconds that a byte takes between two machines that have all links to themselves.
    #[inline]
    pub fn byte_us(&self, a: usize, b: usize) -> f64 {
        let own = 1.0 / self.nic;
        if !self.crosses(a, b) {
            return own;
        }
        let up = |machine: usize| 1.0 / self.uplinks[self.cluster[machine] as usize];
        own.max(up(a)).max(up(b))
    }

    /// What a transfer of some bytes costs by itself; with congestion, without the time on the links.
    #[inline]
    pub fn transfer_us(&self, model: Model, a: usize, b: usize, bytes: f64) -> f64 {
        match model {
            Model::Paper => self.rtt.at(a, b),
            Model::AlphaBeta => self.rtt.at(a, b) / 2.0 + bytes * self.byte_us(a, b),
            Model::Congestion => self.rtt.at(a, b) / 2.0,
        }
    }
}
