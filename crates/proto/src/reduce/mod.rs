//! A reduce at its coordinator: arrived and chosen inputs, and the folds on each node.
//!
//! [`Reduce`] gets the directory's reports about each input, and returns [`Step`]s for the node. It
//! does not depend on messages, memory or other reduces. [`step`] defines what it requests from the
//! node, [`plan`] decides which nodes fold.
//!
//! ```text
//!   Gathering --------------------> Folding ----------------> over (the node drops it)
//!      ^   every owner has            |    count inputs chosen, the caller's own fold began
//!      |   replied once; and if       |
//!      |   others want the result, a  |
//!      |   moment for late inputs     |
//!      +------------------------------+  an input or a position was lost: the next epoch begins,
//!             after a pause              requests all inputs again, keeps nothing of the old one
//! ```
//!
//! Source: Hoplite, SIGCOMM 2021, section 3.4 (the tree is built in order of arrival) and section 4
//! (the degree).

pub mod assign;
pub mod cost;
mod inputs;
mod plan;
pub mod ring;
pub mod shape;
mod stalled;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use self::inputs::MISSING;
pub use self::{
    inputs::{Candidates, Reduce, ReduceShape},
    step::{PlanContext, Step},
};
