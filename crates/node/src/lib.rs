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

mod attach;
mod blocks;
pub mod client;
mod config;
mod control;
mod counters;
mod describe;
pub mod descriptors;
mod detour;
mod driver;
mod error;
pub mod fold;
mod folding;
mod frame;
mod greet;
mod join;
mod lanes;
mod listen;
mod local;
mod node;
mod peer;
pub mod planted;
mod receive;
mod send;
mod socket;
mod store;
mod turns;
mod view;
mod wait;

pub use self::{
    client::{Client, Value, describe_listed, describe_objects},
    config::NodeConfig,
    counters::CounterValues,
    error::Error,
    node::Node,
    view::{Growing, Space, View, Writer},
    wait::{Wait, Waker},
};
pub use hoplite_proto as proto;

const _: () = assert!(hoplite_proto::limits::BLOCK_BYTES == hoplite_shm::BLOCK_BYTES);
