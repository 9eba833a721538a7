//! What is asked of a plan, and what it answers.

use crate::{
    network::Model,
    schedule::{self, Algorithm},
};

/// How the order is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Search from packed clusters, with a smoothed cost.
    Search,
    /// Annealing on the cost alone from the given order, as the paper does.
    Paper,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// What a transfer costs.
    pub model: Model,
    /// What is run on the machines.
    pub algorithm: Algorithm,
    /// How many of the machines take part.
    pub ranks: usize,
    /// The bytes of the array.
    pub bytes: f64,
    /// What chance does.
    pub seed: u64,
    /// About how many seconds the search takes on one core.
    pub seconds: f64,
    /// A ring is good enough within this of its bound.
    pub gap: f64,
    /// How the order is found.
    pub method: Method,
    /// An order that was good before a few machines changed: it is mended, not sought anew.
    pub start: Option<Vec<u32>>,
}

/// An order and what is known of it; costs in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The machine of each rank.
    pub order: Vec<u32>,
    /// What it costs.
    pub cost: f64,
    /// What the machines cost in the order in which they were given.
    pub cost_given: f64,
    /// The most that an order was found to cost.
    pub cost_worst: f64,
    /// No order costs less.
    pub bound: f64,
    /// Whether all arrangements were tried.
    pub is_exhaustive: bool,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The algorithm has no schedule for this count.
    #[error(transparent)]
    Schedule(#[from] schedule::Error),
    /// More ranks than machines, or none.
    #[error("{ranks} ranks can't be chosen of {machines} machines")]
    Ranks {
        /// How many were asked for.
        ranks: usize,
        /// How many machines there are.
        machines: usize,
    },
    /// The order to begin with is none of these machines.
    #[error("the order to begin with is not one of {machines} machines of which {ranks} take part")]
    Start {
        /// How many take part.
        ranks: usize,
        /// How many machines there are.
        machines: usize,
    },
}
