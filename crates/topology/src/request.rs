//! Input and output of a plan.

use crate::{
    network::Model,
    schedule::{self, Algorithm},
};

/// Method for finding the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Search from packed clusters, with a smoothed cost.
    Search,
    /// The paper's method: simulated annealing of the exact cost, from the given order.
    Paper,
}

/// A request for a plan.
#[derive(Clone, Debug)]
pub struct Request {
    /// Cost model of transfers.
    pub model: Model,
    /// The collective algorithm.
    pub algorithm: Algorithm,
    /// Number of machines that take part.
    pub ranks: usize,
    /// Size of the array in bytes.
    pub bytes: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Approximate time limit of the search on one core, in seconds.
    pub seconds: f64,
    /// The search for a ring stops when its cost is within this fraction of the bound.
    pub gap: f64,
    /// Method for finding the order.
    pub method: Method,
    /// An order that was good before a few machines changed. It is improved instead of a new search.
    pub start: Option<Vec<u32>>,
}

/// An order with its cost and bounds; costs are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The machine of each rank.
    pub order: Vec<u32>,
    /// Cost of the order.
    pub cost: f64,
    /// Cost of the machines in the order in which they were given.
    pub cost_given: f64,
    /// Highest cost found for any order.
    pub cost_worst: f64,
    /// Lower bound of every order.
    pub bound: f64,
    /// Whether all arrangements were tried.
    pub is_exhaustive: bool,
}

/// Reason why a request has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The algorithm has no schedule for this number of ranks.
    #[error(transparent)]
    Schedule(#[from] schedule::Error),
    /// There are more ranks than machines, or none.
    #[error("cannot choose {ranks} of {machines} machines: set ranks from 1 to {machines}")]
    Ranks {
        /// Number of ranks requested.
        ranks: usize,
        /// Number of machines.
        machines: usize,
    },
    /// The initial order does not consist of these machines.
    #[error("the initial order is not valid: pass {ranks} different machines of the {machines}")]
    Start {
        /// Number of ranks.
        ranks: usize,
        /// Number of machines.
        machines: usize,
    },
}
