//! Records what passes the event loop of a node, for `inspect`: recent events, what runs now,
//! counters and latencies.
//!
//! It sees each event before the state machine handles it, and each resulting action. It decides
//! nothing, and the state machine does not depend on it. [`recorder`] reads events and actions,
//! [`requests`] client requests; [`report`] writes the JSON.

pub(crate) mod clients;
mod events;
mod json;
pub(crate) mod recorder;
pub(crate) mod report;
mod requests;
mod running;
mod totals;

#[cfg(test)]
mod tests;
