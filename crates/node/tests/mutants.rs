//! Mutation tests with real bytes: a program detects each mutant, and nodes repair what they can.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_node::{
    Client, Error, Node, NodeConfig, Value, digest,
    mutants::{Mutant, activate},
    proto::{
        error::Error as CallError,
        id::ObjectId,
        meta::{Dtype, Meta, Op},
    },
};

mod support;
use support::{SOON, cluster};

const COUNT: usize = 1_000_003;

/// A mutant is active in the whole process: run one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct ActiveMutant<'a>(#[allow(dead_code)] MutexGuard<'a, ()>);

impl ActiveMutant<'_> {
    fn none() -> Self {
        Self(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ActiveMutant<'_> {
    fn drop(&mut self) {
        activate(None);
    }
}

/// Elements that identify their positions.
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
    let sum = clients[0].start_reduce(inputs, Op::Sum, None, None, None, SOON).join().unwrap();
    let view = clients[0].get(&sum, SOON).unwrap();
    let sums = (0..COUNT as i64).flat_map(|place| (3 * place + (6 << 32)).to_le_bytes());
    sums.eq(view.as_bytes().iter().copied())
}

/// Whether a view of another process stays unchanged, whatever is put meanwhile.
fn is_view_left_alone() -> bool {
    let folder = std::env::temp_dir().join(format!("hoplite-mutants-{}", std::process::id()));
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
fn every_mutant_is_detected() {
    let _alone = ActiveMutant::none();
    let checks: [(Mutant, fn() -> bool); 3] = [
        (Mutant::SwapsBlocks, is_broadcast_right),
        (Mutant::FoldsTwice, is_sum_right),
        (Mutant::ReleasesTooEarly, is_view_left_alone),
    ];
    for (bug, is_right) in checks {
        assert!(is_right(), "without {bug:?}");
        activate(Some(bug));
        assert!(!is_right(), "with {bug:?}");
        activate(None);
    }
}

/// Goal: corrupt blocks only cost time, and their sender is identified.
#[test]
fn corrupt_blocks_are_refetched_and_their_sender_identified() {
    let _alone = ActiveMutant::none();
    let nodes = cluster(2);
    let id = put(&nodes[0].client(), 1);
    let reader = nodes[1].client();
    activate(Some(Mutant::CorruptsBlocks));
    assert!(reader.get(&id, SOON).unwrap().as_bytes() == numbers(1));
    let status: serde_json::Value =
        serde_json::from_str(&reader.start_describe(None).join().unwrap()).unwrap();
    assert_eq!(status["counters"]["blocks_corrupt"], 3);
    let members = status["members"].as_array().unwrap();
    let sender = nodes[0].id().to_string();
    let of = |member: &&serde_json::Value| member["id"] == sender.as_str();
    assert_eq!(members.iter().find(of).unwrap()["blocks_corrupt"], 3);
}

/// Starts a node in a rack, as the first of a cluster or joining one.
fn in_rack(rack: &str, join: Option<&Node>) -> Node {
    let join =
        join.and_then(Node::address).map(|address| address.to_string()).into_iter().collect();
    let place = Some(rack.parse().unwrap());
    Node::start(NodeConfig { place, join, ..NodeConfig::default() }).unwrap()
}

fn put_with_digest(client: &Client, bytes: &[u8]) -> ObjectId {
    let meta = Meta::bytes(bytes.len() as u64).with_digest(digest(&[bytes]));
    client.put(None, Value::with_meta(bytes, meta).unwrap(), SOON).unwrap()
}

fn counters(node: &Node) -> serde_json::Value {
    let status: serde_json::Value =
        serde_json::from_str(&node.client().start_describe(None).join().unwrap()).unwrap();
    status["counters"].clone()
}

/// Goal: the digest detects a relay that corrupts a copy, if the object has one; the copy is fetched again. Method: a
/// reader prefers a relay in its rack to the source in another rack.
#[test]
fn corrupt_relay_is_detected_by_the_digest() {
    let _alone = ActiveMutant::none();
    let maker = in_rack("far", None);
    let relay = in_rack("near", Some(&maker));
    let reader = in_rack("near", Some(&maker));
    let bytes = numbers(1);
    let plain = maker.client().put(None, Value::bytes(&bytes), SOON).unwrap();
    let safe = put_with_digest(&maker.client(), &bytes);
    for id in [&plain, &safe] {
        assert!(relay.client().get(id, SOON).unwrap().as_bytes() == bytes);
    }
    activate(Some(Mutant::CorruptsRelayedCopies));
    assert!(reader.client().get(&plain, SOON).unwrap().as_bytes() != bytes, "no relay was used");
    assert_eq!(counters(&reader)["copies_corrupt"], 0);
    assert!(reader.client().get(&safe, SOON).unwrap().as_bytes() == bytes);
    assert_eq!(counters(&reader)["copies_corrupt"], 1);
}

/// Goal: the get ends, and names the senders of the corrupt copies.
#[test]
fn get_fails_if_the_only_copy_is_corrupt() {
    let _alone = ActiveMutant::none();
    let nodes = cluster(2);
    let id = put_with_digest(&nodes[0].client(), &numbers(1));
    activate(Some(Mutant::CorruptsCopies));
    let reader = nodes[1].client();
    let told = reader.get(&id, SOON).unwrap_err();
    let Error::Call(CallError::ObjectCorrupt { senders, .. }) = told else { panic!("{told}") };
    assert_eq!(senders, [nodes[0].id()]);
    activate(None);
    assert!(reader.get(&id, SOON).unwrap().as_bytes() == numbers(1), "it is requested again");
}

/// Goal: a small object that arrives with another digest is requested from the other owner.
#[test]
fn small_objects_are_verified_too() {
    let _alone = ActiveMutant::none();
    let nodes = cluster(3);
    let (plain, safe) = (vec![1; 1000], vec![2; 1000]);
    let put = nodes[0].client().put(None, Value::bytes(&plain), SOON).unwrap();
    let digested = put_with_digest(&nodes[0].client(), &safe);
    let read = |id: &ObjectId| -> Vec<Vec<u8>> {
        let readers = nodes[1..].iter().map(Node::client);
        readers.map(|reader| reader.get(id, SOON).unwrap().as_bytes().to_vec()).collect()
    };
    activate(Some(Mutant::CorruptsInline));
    assert_eq!(
        read(&put).iter().filter(|bytes| **bytes != plain).count(),
        1,
        "one reader accepts it"
    );
    activate(Some(Mutant::CorruptsInline));
    assert_eq!(read(&digested).iter().filter(|bytes| **bytes != safe).count(), 0);
    let corrupt = nodes.iter().map(|node| counters(node)["copies_corrupt"].as_u64().unwrap());
    assert_eq!(corrupt.sum::<u64>(), 1);
}

/// A put whose bytes do not match its digest fails, even on the local node.
#[test]
fn put_with_wrong_digest_fails() {
    let nodes = cluster(1);
    let meta = Meta::bytes(3).with_digest(digest(&[b"abc"]));
    let value = Value::with_meta(b"abd", meta).unwrap();
    let told = nodes[0].client().put(None, value, SOON).unwrap_err();
    assert!(told.to_string().contains("value changed during the put"), "{told}");
}
