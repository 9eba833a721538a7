//! Connections between nodes: admission, handshakes, and the control messages that nodes exchange.
//!
//! Knows addresses and members, not objects.

pub(crate) mod certificates;
pub(crate) mod connect;
pub(crate) mod connection_limit;
pub(crate) mod control;
pub(crate) mod handshake;
pub(crate) mod join;
pub(crate) mod listen;
pub(crate) mod outbox;
pub(crate) mod own_cluster;
pub(crate) mod own_revocation;
pub(crate) mod peers;
pub(crate) mod proofs;
pub(crate) mod relay;
pub(crate) mod revocation;
pub(crate) mod shared;
pub(crate) mod survey;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
