//! Tests of real nodes on loopback: transfers, relays, folds, deletions, joins and leaves.

use std::{
    io,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    thread,
    time::Duration,
};

use hoplite_node::{
    Client, Node, NodeConfig, Value,
    proto::{
        id::ObjectId,
        limits::INLINE_BYTES_MAX,
        meta::{Dtype, Meta, Op},
    },
};

mod support;
use support::{SOON, cluster};

fn name(text: &str) -> ObjectId {
    text.parse().unwrap()
}

fn floats(value: f32, count: usize) -> Vec<u8> {
    std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect()
}

fn put_floats(client: &Client, value: f32, count: usize) -> ObjectId {
    let bytes = floats(value, count);
    let meta = Meta::array(Dtype::Float32, vec![count as u64]).unwrap();
    client.put(None, Value::with_meta(&bytes, meta).unwrap(), SOON).unwrap()
}

fn counters(client: &Client) -> serde_json::Value {
    serde_json::from_str::<serde_json::Value>(&client.start_describe(None).join().unwrap()).unwrap()
        ["counters"]
        .clone()
}

#[test]
fn objects_of_every_size_arrive_unchanged() {
    let nodes = cluster(2);
    let (one, two) = (nodes[0].client(), nodes[1].client());
    for size in [0, 1, 32_767, 32_768, 32_769, 65_536, 131_072, 1_000_003, 9_000_001] {
        let bytes: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        let id = one.put(None, Value::bytes(&bytes), SOON).unwrap();
        assert!(two.get(&id, SOON).unwrap().as_bytes() == bytes, "{size} bytes");
        assert!(one.get(&id, SOON).unwrap().as_bytes() == bytes, "{size} bytes at home");
    }
}

/// Large objects are requested in segments, perhaps on several connections.
#[test]
fn large_objects_arrive_and_are_relayed_unchanged() {
    let token = || vec!["a token of at least sixteen bytes".into()];
    for tokens in [Vec::new(), token()] {
        let config = || NodeConfig { tokens: tokens.clone(), ..NodeConfig::default() };
        let mut nodes = vec![Node::start(config()).unwrap()];
        let join = vec![nodes[0].address().unwrap().to_string()];
        let more = || Node::start(NodeConfig { join: join.clone(), ..config() }).unwrap();
        nodes.extend([more(), more()]);
        let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
        let bytes: Vec<u8> = (0..100_000_007_u32).map(|index| (index % 251) as u8).collect();
        let id = clients[0].put(None, Value::bytes(&bytes), SOON).unwrap();
        let getters = clients[1..].iter().map(|client| client.start_get(&id, SOON));
        for getter in getters.collect::<Vec<_>>() {
            assert!(getter.join().unwrap().as_bytes() == bytes);
        }
        let total = |name| clients.iter().map(|it| counters(it)[name].as_u64().unwrap()).sum();
        let totals: [u64; 3] = ["fetches", "serves", "fetches_failed"].map(total);
        assert_eq!(totals, [2, 2, 0]);
    }
}

#[test]
fn smallest_streamed_object_measures_the_link() {
    let nodes = cluster(2);
    let (one, two) = (nodes[0].client(), nodes[1].client());
    let rate = || {
        let told: serde_json::Value =
            serde_json::from_str(&two.start_describe(None).join().unwrap()).unwrap();
        told["link"]["bytes_per_second"].as_u64().unwrap()
    };
    let assumed = rate();
    for (size, is_streamed) in [(INLINE_BYTES_MAX, false), (INLINE_BYTES_MAX + 1, true)] {
        let bytes = vec![1; size as usize];
        let id = one.put(None, Value::bytes(&bytes), SOON).unwrap();
        assert!(two.get(&id, SOON).unwrap().as_bytes() == bytes);
        assert_eq!(rate() != assumed, is_streamed, "{size} bytes");
    }
}

#[test]
fn get_waits_for_a_name_that_is_put_later() {
    let nodes = cluster(3);
    let getters: Vec<_> = nodes
        .iter()
        .map(|node| node.client().start_get(&"late/1".parse().unwrap(), SOON))
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    let bytes = vec![9; 500_000];
    nodes[1].client().put(Some(name("late/1")), Value::bytes(&bytes), SOON).unwrap();
    for getter in getters {
        assert!(getter.join().unwrap().as_bytes() == bytes);
    }
}

#[test]
fn broadcast_is_relayed() {
    let nodes = cluster(5);
    let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    let bytes = vec![5; 32 << 20];
    let id = clients[0].put(None, Value::bytes(&bytes), SOON).unwrap();
    let getters: Vec<_> = clients[1..].iter().map(|client| client.start_get(&id, SOON)).collect();
    for getter in getters {
        assert!(getter.join().unwrap().as_bytes() == bytes);
    }
    let relayed: u64 =
        clients.iter().map(|client| counters(client)["bytes_relayed"].as_u64().unwrap()).sum();
    assert!(relayed > 0, "a node relayed its copy");
}

#[test]
fn reduce_folds_small_and_large_inputs_on_any_node() {
    let nodes = cluster(4);
    let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    for count in [1, 100, 1_000_000] {
        for op in [Op::Sum, Op::Mean, Op::Max] {
            let inputs: Vec<ObjectId> =
                (0..8).map(|index| put_floats(&clients[index % 4], index as f32, count)).collect();
            let total =
                clients[1].start_reduce(inputs.clone(), op, None, None, None, SOON).join().unwrap();
            let expected = match op {
                Op::Sum => 28.0,
                Op::Mean => 3.5,
                _ => 7.0,
            };
            for client in &clients {
                let view = client.get(&total, SOON).unwrap();
                assert!(view.as_bytes() == floats(expected, count), "{op} of 8 x {count}");
            }
            let mut folded = clients[1].start_inputs(&total, SOON).join().unwrap();
            folded.sort();
            let mut inputs = inputs;
            inputs.sort();
            assert_eq!(folded, inputs);
        }
    }
}

#[test]
fn first_k_inputs_are_folded() {
    let nodes = cluster(3);
    let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    let candidates: Vec<ObjectId> = (0..5).map(|n| format!("grad/{n}").parse().unwrap()).collect();
    let total =
        clients[0].start_reduce(candidates, Op::Sum, Some(3), None, None, SOON).join().unwrap();
    let meta = Meta::array(Dtype::Float32, vec![100_000]).unwrap();
    for (index, value) in [(4, 1.0), (0, 2.0), (2, 4.0)] {
        let bytes = floats(value, 100_000);
        let value = Value::with_meta(&bytes, meta.clone()).unwrap();
        clients[index % 3].put(Some(name(&format!("grad/{index}"))), value, SOON).unwrap();
    }
    assert!(clients[2].get(&total, SOON).unwrap().as_bytes() == floats(7.0, 100_000));
}

#[test]
fn deleted_object_is_gone_except_for_its_readers() {
    let nodes = cluster(3);
    let (one, two, three) = (nodes[0].client(), nodes[1].client(), nodes[2].client());
    let bytes = vec![3; 1 << 20];
    let id = one.put(None, Value::bytes(&bytes), SOON).unwrap();
    let view = two.get(&id, SOON).unwrap();
    three.start_delete(vec![id.clone()], SOON).join().unwrap();
    for client in [&one, &two, &three] {
        let error = client.get(&id, SOON).unwrap_err().to_string();
        assert!(error.contains("deleted"), "{error}");
    }
    assert!(view.as_bytes() == bytes);
}

#[test]
fn leaving_node_hands_over_its_objects() {
    let mut nodes = cluster(3);
    let leaver = nodes.pop().unwrap();
    let client = leaver.client();
    let bytes = vec![8; 3 << 20];
    let large = client.put(None, Value::bytes(&bytes), SOON).unwrap();
    let small = client.put(Some(name("kept/1")), Value::bytes(b"small"), SOON).unwrap();
    assert!(leaver.close(SOON), "everything was handed over");
    for node in &nodes {
        assert!(node.client().get(&large, SOON).unwrap().as_bytes() == bytes);
        assert_eq!(node.client().get(&small, SOON).unwrap().as_bytes(), b"small");
    }
    assert!(client.get(&large, SOON).unwrap_err().to_string().contains("node"));
}

#[test]
fn attached_process_shares_memory() {
    let socket = temporary("attached");
    let config = NodeConfig { socket: Some(socket.clone()), ..NodeConfig::default() };
    let node = Node::start(config).unwrap();
    let (inside, outside) = (node.client(), Client::attach(&socket, SOON).unwrap());
    let bytes: Vec<u8> = (0..10_000_000).map(|index| (index % 253) as u8).collect();
    for (putter, getter) in [(&inside, &outside), (&outside, &inside), (&outside, &outside)] {
        let id = putter.put(None, Value::bytes(&bytes), SOON).unwrap();
        assert!(getter.get(&id, SOON).unwrap().as_bytes() == bytes);
        let id = putter.put(None, Value::bytes(b"small"), SOON).unwrap();
        assert_eq!(getter.get(&id, SOON).unwrap().as_bytes(), b"small");
    }
    node.close(SOON);
    let error = outside.put(None, Value::bytes(b"x"), SOON).unwrap_err().to_string();
    assert!(error.contains("node"), "{error}");
}

/// Goal: a program that continues from the newest version does not begin anew because its node has
/// just restarted. Method: the node reaches its cluster through a relay, which opens late.
#[test]
fn a_process_of_a_node_that_joins_waits_for_the_cluster() {
    let (nodes, socket) = (cluster(1), temporary("joins"));
    nodes[0].client().put(Some(name("version/7")), Value::bytes(b"x"), SOON).unwrap();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let join = vec![relay.local_addr().unwrap().to_string()];
    let config = NodeConfig { join, socket: Some(socket.clone()), ..NodeConfig::default() };
    let joining = thread::spawn(|| Node::start(config).unwrap());
    let near = relay.accept().unwrap().0;
    let polling = thread::spawn(move || {
        let client = Client::attach(&socket, SOON).unwrap();
        client.start_latest("version/", None, Some(Duration::ZERO)).join()
    });
    thread::sleep(Duration::from_millis(200));
    assert!(!polling.is_finished(), "the node is alone: {:?}", polling.join());
    let far = TcpStream::connect(nodes[0].address().unwrap()).unwrap();
    for (from, to) in [(&near, &far), (&far, &near)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut from, &mut to));
    }
    assert_eq!(polling.join().unwrap().unwrap().as_str(), "version/7");
    joining.join().unwrap();
}

fn temporary(text: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hoplite-test-{text}-{}", std::process::id()))
}
