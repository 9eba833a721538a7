//! The event loop around the state machine, and the handles through which all other parts reach it.
//!
//! Knows events and actions, not how they arise or are executed.

mod door;
pub(crate) mod event_loop;
mod event_queue;
pub(crate) mod event_sender;
mod fair_queue;
pub(crate) mod tasks;

use crate::sync;
