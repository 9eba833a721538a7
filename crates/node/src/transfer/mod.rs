//! Transfers payload between nodes: copies of objects, and streams of partial results.
//!
//! Knows ranges of bytes, not why a node requests them.

pub(crate) mod blocks;
pub(crate) mod congestion;
mod connection;
mod copy;
mod limiter;
mod path;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod shared;
pub(crate) mod streams;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
mod timeout;
mod turns;
