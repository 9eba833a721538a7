//! Programs of this host: the client that they use, in the process of the node or attached to its Unix socket.
//!
//! Knows questions and answers; not what the node does for them.

pub(crate) mod attach;
pub(crate) mod client;
mod describe;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod view;
pub(crate) mod wait;
