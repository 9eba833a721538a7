//! A Hoplite node: the shell that turns the decisions of `hoplite-proto` into bytes and back. It decides nothing.
//!
//! The files follow the journey of an object: [`client`] puts and gets, [`view`] is what comes back;
//! [`store`] has the memory; [`send`] and
//! [`receive`] move copies between nodes; [`folding`] runs the positions of a reduce with the arithmetic of [`fold`].
//! Around them: [`driver`] is the one door to the state machine, [`peer`], [`control`], [`listen`], [`greet`], [`frame`] and
//! [`blocks`] are the connections between nodes, [`turns`] who waits for them, [`local`] and [`attach`] the two ends of the socket between a node and the other
//! processes of its host; [`descriptors`] is what a fork has to close.
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

mod config;
mod counters;
mod engine;
mod error;
pub mod folding;
pub mod fork_safe;
mod frame;
mod local;
pub mod mutants;
mod network;
mod node;
mod shared_epoll;
mod store;
mod transfer;

pub use self::{
    config::NodeConfig,
    counters::CounterValues,
    error::Error,
    local::{
        client::{Client, Value, describe_listed, describe_objects},
        view::{Growing, Space, View, Writer},
        wait::{Wait, Waker},
    },
    node::Node,
};
pub use hoplite_proto as proto;

const _: () = assert!(hoplite_proto::limits::BLOCK_BYTES == hoplite_shm::BLOCK_BYTES);
