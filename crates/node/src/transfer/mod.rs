//! Payload between nodes: copies of objects and streams of partial results.
//!
//! Knows ranges of bytes; not why a node wants them.

pub(crate) mod blocks;
pub(crate) mod limiter;
pub(crate) mod receive;
pub(crate) mod send;
