//! The arithmetic of a reduce: kernels for each element type, and the task that folds one position.
//!
//! Knows streams and copies, not the shape of the tree.

mod input;
pub mod kernels;
pub(crate) mod worker;
