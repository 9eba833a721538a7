//! A reduce as its coordinator sees it: which inputs have arrived, which were chosen, who folds what.
//!
//! Pure: [`Reduce`] takes what the directory says of each input and answers with [`Step`]s for the node. It does not
//! know messages, memory or other reduces. What it tells the node is in [`step`], who folds what in [`plan`].
//!
//! ```text
//!   Gathering --------------------> Folding ----------------> over (the node drops it)
//!      ^   every owner has            |    count inputs chosen, the caller's own fold began
//!      |   answered once; and if      |
//!      |   others want the result, a  |
//!      |   moment for late inputs     |
//!      +------------------------------+  an input or a position was lost: the next epoch begins with all
//!             after a pause              inputs asked for again, and nothing of the old epoch is kept
//! ```
//!
//! Source: Hoplite, SIGCOMM 2021, section 3.4 (the tree is built in order of arrival) and section 4 (the degree).

pub mod assign;
pub mod cost;
mod inputs;
mod plan;
pub mod scatter;
pub mod shape;
mod starved;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use self::inputs::MISSING;
pub use self::{
    inputs::Reduce,
    step::{Around, Step},
};
