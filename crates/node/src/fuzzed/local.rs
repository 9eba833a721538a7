//! Fuzzes messages of a process on a node's Unix socket: whatever it sends, the node must serve
//! others afterwards.

use std::{
    fs::File,
    io::{Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_shm::send_with_fds;

use super::pieces::Pieces;
use crate::{
    config::NodeConfig,
    local::{
        client::Client,
        protocol::{LOCAL_VERSION, ToNode, frame},
        put::Value,
    },
    node::Node,
};

/// Cases run against one node: objects put by them stay, and would fill the store.
const CASES_MAX: u64 = 256;

/// Timeout of a call that hangs.
const SOON: Option<Duration> = Some(Duration::from_secs(20));

struct Victim {
    node: Node,
    honest: Client,
    cases: u64,
}

impl Victim {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hoplite-fuzzed-{}-{number}", std::process::id());
        let socket: PathBuf = std::env::temp_dir().join(name);
        let config =
            NodeConfig { socket: Some(socket), capacity: Some(1 << 26), ..NodeConfig::default() };
        let node = Node::start(config).unwrap();
        let honest = Client::attach(node.socket().unwrap(), SOON).unwrap();
        Self { node, honest, cases: 0 }
    }

    /// Checks that the node serves another process.
    fn check(&self) {
        let bytes = self.cases.to_le_bytes();
        let id = self.honest.put(None, Value::bytes(&bytes), SOON).unwrap();
        assert_eq!(self.honest.get(&id, SOON).unwrap().as_bytes(), bytes);
        self.honest.start_delete(vec![id], SOON).join().unwrap();
    }
}

/// Fuzzes the bytes of one process. If the lowest bit of the first byte is set, they are sent raw,
/// otherwise as frames after a greeting. A piece may carry descriptors.
pub fn local(bytes: &[u8]) {
    static VICTIM: Mutex<Option<Victim>> = Mutex::new(None);
    let Some((how, rest)) = bytes.split_first() else { return };
    let mut victim = VICTIM.lock().unwrap();
    let node = victim.get_or_insert_with(Victim::new);
    attack(node, how & 1 == 0, rest);
    node.cases += 1;
    node.check();
    if node.cases >= CASES_MAX
        && let Some(Victim { node, honest, .. }) = victim.take()
    {
        drop(honest);
        node.close(SOON);
    }
}

fn attack(victim: &Victim, is_framed: bool, bytes: &[u8]) {
    let mut stream = UnixStream::connect(victim.node.socket().unwrap()).unwrap();
    stream.set_read_timeout(SOON).unwrap();
    let nothing = File::open("/dev/null").unwrap();
    // The node may have closed the connection: failed writes do not matter.
    if is_framed {
        let _ = stream.write_all(&frame(&ToNode::Hello { version: LOCAL_VERSION }));
        for (what, body) in Pieces(bytes) {
            let framed = [&(body.len() as u32).to_le_bytes()[..], body].concat();
            // If the kernel refuses descriptors, send the frame without.
            let descriptors = vec![nothing.as_fd(); usize::from(what % 4)];
            if send_with_fds(&stream, &framed, &descriptors).is_err() {
                let _ = stream.write_all(&framed);
            }
        }
    } else {
        let _ = stream.write_all(bytes);
    }
    let _ = stream.shutdown(Shutdown::Write);
    // Read until the node closes the connection. The kernel closes received descriptors.
    let mut heard = [0; 4096];
    while matches!(stream.read(&mut heard), Ok(count) if count > 0) {}
}

/// Seeds: all messages that a process can send.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use hoplite_proto::{
        id::{Instance, NodeId, ObjectId},
        meta::{Dtype, Meta, Op},
        request::Request,
        wire,
    };
    let id: ObjectId = "a/1".parse().unwrap();
    let instance = Instance { node: NodeId(1), serial: 1 };
    let asks = [
        Request::Put {
            id: Some(id.clone()),
            meta: Meta::bytes(3),
            bytes: vec![1, 2, 3].into(),
            ttl_ns: None,
        },
        Request::Create { id: Some(id.clone()), meta: Meta::bytes(100_000), ttl_ns: None },
        Request::Create {
            id: None,
            meta: Meta::array(Dtype::Float32, vec![4]).unwrap(),
            ttl_ns: None,
        },
        Request::Create { id: None, meta: Meta::bytes(u64::MAX), ttl_ns: None },
        Request::Reserve { name: None },
        Request::Slots { count: 2 },
        Request::CancelReservations,
        Request::Seal { instance },
        Request::Abort { instance },
        Request::Release { instance },
        Request::ReleaseCopied { instance },
        Request::Get { id: id.clone() },
        Request::Follow { id: id.clone() },
        Request::Delete { ids: vec![id.clone()] },
        Request::Replicate { id: id.clone(), replicas: 2 },
        Request::Wait { ids: vec![id.clone()], count: 1 },
        Request::Latest { prefix: "a/".into(), after: None },
        Request::Locations { id: id.clone(), known: None },
        Request::Reduce {
            inputs: vec![id.clone(), "b/1".parse().unwrap()],
            op: Op::Sum,
            count: 2,
            id: None,
            ttl_ns: None,
        },
    ];
    let mut said: Vec<ToNode> = asks
        .into_iter()
        .enumerate()
        .map(|(at, body)| ToNode::Request { request: at as u64, body, timeout_ns: Some(1_000_000) })
        .collect();
    said.extend([
        ToNode::Hello { version: 1 },
        ToNode::HelloRestricted {
            version: LOCAL_VERSION,
            capability: "hoplite capability 1\n".into(),
        },
        ToNode::Cancel { request: 9 },
        ToNode::Notify { body: Request::CancelReservations },
        ToNode::Advanced { instance },
        ToNode::Mapped { extent: 1 },
        ToNode::Unmapped { extent: 1 },
        ToNode::Request { request: 40, body: Request::Status, timeout_ns: None },
        ToNode::StopFollowing { request: 10 },
        ToNode::PinForFork,
    ]);
    let pieces = said.iter().map(|said| {
        let body = wire::encode(said);
        [&[1][..], &(body.len() as u16).to_le_bytes(), &body].concat()
    });
    let pieces: Vec<Vec<u8>> = pieces.collect();
    let mut seeds: Vec<Vec<u8>> = pieces.iter().map(|piece| [&[0][..], piece].concat()).collect();
    seeds.push([vec![0], pieces.concat()].concat());
    seeds.push(b"\x01\xff\xff\xff\x7f".to_vec());
    seeds
}
