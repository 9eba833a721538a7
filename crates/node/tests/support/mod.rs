//! Fixtures of tests with real nodes.

use std::time::Duration;

use hoplite_node::{Node, NodeConfig};

pub(crate) const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// Starts a cluster of nodes on loopback.
#[allow(dead_code)] // Not every test file uses it.
pub(crate) fn cluster(size: usize) -> Vec<Node> {
    let first = Node::start(NodeConfig::default()).unwrap();
    let join = vec![first.address().unwrap().to_string()];
    let mut nodes = vec![first];
    for _ in 1..size {
        let config = NodeConfig { join: join.clone(), ..NodeConfig::default() };
        nodes.push(Node::start(config).unwrap());
    }
    nodes
}
