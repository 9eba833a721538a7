//! The event loop around the state machine, and the handles through which all other parts reach it.
//!
//! Knows events and actions, not how they arise or are executed.

pub(crate) mod door;
pub(crate) mod facts;
mod inbox;
pub(crate) mod requests;
pub(crate) mod task;
pub(crate) mod tasks;
