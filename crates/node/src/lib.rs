//! A Hoplite node: the shell that executes the decisions of `hoplite-proto`. It decides nothing
//! itself.
//!
//! [`local`] has the client API, and [`capability`] restricts clients. [`network`] connects nodes.
//! [`transfer`] moves copies between them. [`folding`] runs the positions of a reduce. [`store`]
//! has the memory and [`disk`] the files. They report events to the state machine through the
//! handles of [`engine`], and [`shell`] dispatches its actions to them. [`observe`] records what
//! happens. [`node`] assembles a node.
//!
//! ```no_run
//! use hoplite_node::{Node, NodeConfig, Value};
//! use std::time::Duration;
//!
//! let node = Node::start(NodeConfig::default())?;
//! let client = node.client();
//! let id = client.put(None, Value::bytes(b"hello"), None)?;
//! let view = client.get(&id, Some(Duration::from_secs(1)))?;
//! assert_eq!(view.as_bytes(), b"hello");
//! # Ok::<(), hoplite_node::Error>(())
//! ```

mod backing;
pub mod capability;
mod channel;
mod config;
mod counters;
mod digest;
mod disk;
mod engine;
mod error;
mod event_set;
pub mod folding;
mod fork_safe;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzzed;
mod latch;
mod limited;
mod link;
mod local;
pub mod mutants;
mod network;
mod node;
mod observe;
mod repeats;
mod sealing;
mod shared_epoll;
mod shell;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod transfer;
mod trim;

pub use self::{
    config::{CertificateFiles, NodeConfig, SpillConfig},
    counters::CounterValues,
    digest::digest,
    engine::tasks::Task,
    error::Error,
    latch::Latch,
    local::{
        client::Client,
        connection::{after_fork, before_fork},
        describe::{describe_listed, describe_objects},
        get::{PartialView, View},
        put::{Space, Value, Writer},
        wait::{PendingReply, WaitQuery, Waker},
    },
    network::handshake::address_of,
    node::{Node, check_peer},
};
pub use hoplite_proto as proto;
pub use hoplite_shm::fill_standard_descriptors;

const _: () = assert!(hoplite_proto::limits::BLOCK_BYTES == hoplite_shm::BLOCK_BYTES);
