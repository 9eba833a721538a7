//! The event loop around the state machine, and the handles by which everything else reaches it.
//!
//! Knows facts and orders; not how they come about, nor how they are carried out.

pub(crate) mod door;
pub(crate) mod facts;
mod inbox;
pub(crate) mod requests;
pub(crate) mod task;
pub(crate) mod tasks;
