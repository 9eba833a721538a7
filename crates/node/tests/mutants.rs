//! Mistakes on purpose, with real bytes: each is found by what a program would look at, and what can be mended is.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_node::{
    Client, Node, NodeConfig, Value,
    mutants::{Bug, plant},
    proto::{
        id::ObjectId,
        meta::{Dtype, Meta, Op},
    },
};

mod support;
use support::{SOON, cluster};

const COUNT: usize = 1_000_003;

/// They are planted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Planted<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

impl Planted<'_> {
    fn none() -> Self {
        Self(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Planted<'_> {
    fn drop(&mut self) {
        plant(None);
    }
}

/// Elements that tell of their places.
fn numbers(seed: i64) -> Vec<u8> {
    (0..COUNT as i64).flat_map(|place| (place + (seed << 32)).to_le_bytes()).collect()
}

fn put(client: &Client, seed: i64) -> ObjectId {
    let meta = Meta::array(Dtype::Int64, vec![COUNT as u64]).unwrap();
    let bytes = numbers(seed);
    client.put(None, Value::with_meta(&bytes, meta).unwrap(), SOON).unwrap()
}

fn is_broadcast_right() -> bool {
    let nodes = cluster(2);
    let id = put(&nodes[0].client(), 1);
    nodes[1].client().get(&id, SOON).unwrap().as_bytes() == numbers(1)
}

fn is_sum_right() -> bool {
    let nodes = cluster(3);
    let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    let inputs = clients.iter().zip(1..).map(|(client, seed)| put(client, seed)).collect();
    let sum = clients[0].reduce(inputs, Op::Sum, None, SOON).unwrap();
    let view = clients[0].get(&sum, SOON).unwrap();
    let sums = (0..COUNT as i64).flat_map(|place| (3 * place + (6 << 32)).to_le_bytes());
    sums.eq(view.as_bytes().iter().copied())
}

/// Whether what another process reads stays what it is, whatever is put meanwhile.
fn is_view_left_alone() -> bool {
    let folder = std::env::temp_dir().join(format!("hoplite-planted-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("node.sock");
    let config = NodeConfig { socket: Some(socket.clone()), ..NodeConfig::default() };
    let node = Node::start(config).unwrap();
    let reader = Client::attach(&socket, SOON).unwrap();
    let id = put(&node.client(), 1);
    let view = reader.get(&id, SOON).unwrap();
    node.client().start_delete(vec![id], SOON).join().unwrap();
    for seed in 2..6 {
        put(&node.client(), seed);
    }
    let is_same = view.as_bytes() == numbers(1);
    drop((view, reader, node));
    std::fs::remove_dir_all(&folder).unwrap();
    is_same
}

#[test]
fn what_is_planted_is_found() {
    let _alone = Planted::none();
    let checks: [(Bug, fn() -> bool); 3] = [
        (Bug::SwapsBlocks, is_broadcast_right),
        (Bug::FoldsTwice, is_sum_right),
        (Bug::ReleasesAtOnce, is_view_left_alone),
    ];
    for (bug, is_right) in checks {
        assert!(is_right(), "without {bug:?}");
        plant(Some(bug));
        assert!(!is_right(), "with {bug:?}");
        plant(None);
    }
}

/// Goal: changed bytes cost time, and their sender is known.
#[test]
fn changed_bytes_are_fetched_again_and_their_sender_is_told() {
    let _alone = Planted::none();
    let nodes = cluster(2);
    let id = put(&nodes[0].client(), 1);
    let reader = nodes[1].client();
    plant(Some(Bug::ChangesBytes));
    assert!(reader.get(&id, SOON).unwrap().as_bytes() == numbers(1));
    let status: serde_json::Value = serde_json::from_str(&reader.describe().unwrap()).unwrap();
    assert_eq!(status["counters"]["blocks_corrupt"], 3);
    let members = status["members"].as_array().unwrap();
    let sender = nodes[0].id().to_string();
    let of = |member: &&serde_json::Value| member["id"] == sender.as_str();
    assert_eq!(members.iter().find(of).unwrap()["blocks_corrupt"], 3);
}
