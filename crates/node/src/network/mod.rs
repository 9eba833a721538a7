//! Connections between nodes: who may have one, how two nodes meet, and the control messages that they exchange.
//!
//! Knows addresses and members; not what an object is.

mod admission;
pub(crate) mod barred;
pub(crate) mod certificates;
pub(crate) mod control;
pub(crate) mod handshake;
pub(crate) mod join;
pub(crate) mod listen;
pub(crate) mod outbox;
pub(crate) mod payload;
pub(crate) mod peers;
pub(crate) mod places;
pub(crate) mod proofs;
pub(crate) mod redial;
mod relay;
pub(crate) mod revocation;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod tls;
