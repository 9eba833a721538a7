//! A program that resets the progress of its own object after the seal: it has the memory mapped writable.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::FileExt,
};

use hoplite_node::{Node, NodeConfig, SpillConfig, Value, proto::id::ObjectId};

mod support;
use support::SOON;

const MIB: usize = 1 << 20;
const PAGE: [u8; 4096] = [0; 4096];

/// Clears the first page of all memory that this process shares: the header of each large object.
fn reset_headers() -> usize {
    let memory = File::options().write(true).open("/proc/self/mem").unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared =
        maps.lines().filter(|line| line.contains("memfd:hoplite") && line.contains("rw-s"));
    let starts =
        shared.map(|line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
    starts.map(|start| memory.write_all_at(&PAGE, start).unwrap()).count()
}

/// Goal: the object stays complete for the node and its readers, and others still go to disk.
#[test]
fn a_writer_that_resets_its_progress_takes_nothing_back() {
    let folder = env::temp_dir().join(format!("hoplite-reset-header-{}", std::process::id()));
    let node = Node::start(NodeConfig {
        listen: None,
        capacity: Some(32 << 20),
        spill: Some(SpillConfig { folder: folder.clone(), limit: None, persistent: false }),
        ..NodeConfig::default()
    })
    .unwrap();
    let client = node.client();
    let put = |value: u8| client.put(None, Value::bytes(&vec![value; 9 * MIB]), SOON).unwrap();
    let bytes =
        |value: u8, id: &ObjectId| client.get(id, SOON).unwrap().as_bytes() == vec![value; 9 * MIB];
    let mut ids = vec![put(1)];
    assert!(reset_headers() > 0);
    assert!(bytes(1, &ids[0]), "for a reader");
    for value in 2..8 {
        ids.push(put(value));
    }
    for (id, value) in ids.iter().zip(1..) {
        assert!(bytes(value, id), "object {value}");
    }
    let status: serde_json::Value =
        serde_json::from_str(&client.start_describe(None).join().unwrap()).unwrap();
    assert_eq!(status["counters"]["spill_failures"], 0);
    assert!(status["counters"]["spills"].as_u64().unwrap() >= 3);
    drop((client, node));
    let _ = fs::remove_dir_all(&folder);
}
