//! Clients of this host: in the process of the node, or attached to its Unix socket.
//!
//! Knows requests and replies, not how the node handles them.

mod attach;
pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod describe;
pub(crate) mod get;
mod greeting;
mod limits;
mod open_requests;
pub(crate) mod programs;
pub(crate) mod protocol;
pub(crate) mod put;
mod quota;
pub(crate) mod reply_cell;
mod reply_writer;
mod request_reader;
mod restricted;
mod retired_extents;
pub(crate) mod server;
mod session;
pub(crate) mod socket;
#[cfg(test)]
mod tests;
pub(crate) mod wait;

use crate::{latch, shared_epoll, sync};
