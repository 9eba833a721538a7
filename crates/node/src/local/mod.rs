//! Clients of this host: in the process of the node, or attached to its Unix socket.
//!
//! Knows requests and replies, not how the node handles them.

mod answers;
mod arriving;
mod asked;
mod attach;
pub(crate) mod client;
mod confined;
mod connection;
mod describe;
pub(crate) mod fork;
mod incoming;
mod leaving;
mod limits;
pub(crate) mod programs;
pub(crate) mod protocol;
mod question;
pub(crate) mod rows;
pub(crate) mod server;
mod session;
mod shares;
pub(crate) mod socket;
#[cfg(test)]
mod tests;
pub(crate) mod view;
pub(crate) mod wait;
pub(crate) mod writer;
