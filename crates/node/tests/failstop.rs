//! Tests that a panic in any thread or task of a node ends the node but not the process, and that its clients get the
//! reason.

use std::{
    fs::OpenOptions,
    io::Write,
    net::TcpStream,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use hoplite_certs::{Authority, Subject};
use hoplite_node::{
    CertificateFiles, Client, Node, NodeConfig, SpillConfig, Task, Value, Writer,
    proto::{
        id::ObjectId,
        meta::{Dtype, Meta, Op},
    },
};

mod support;
use support::SOON;

const LARGE: usize = 1 << 20;

/// Timeout of requests that may never get a reply.
const PAUSE: Duration = Duration::from_millis(200);

/// Validity of certificates, before and after now.
const HOUR: Duration = Duration::from_secs(3600);

/// Two nodes, one of which will fail.
struct Scene {
    failing: Node,
    other: Node,
    socket: PathBuf,
}

fn put(client: &Client, bytes: usize) -> Option<ObjectId> {
    let meta = Meta::array(Dtype::UInt8, vec![bytes as u64]).unwrap();
    let value = vec![1; bytes];
    client.put(None, Value::with_meta(&value, meta).unwrap(), SOON).ok()
}

fn get(client: &Client, id: Option<ObjectId>) {
    drop(id.map(|id| client.start_get(&id, SOON).wait_for(PAUSE)));
}

fn join(node: &Node) -> NodeConfig {
    NodeConfig { join: vec![node.address().unwrap().to_string()], ..NodeConfig::default() }
}

/// Creates the certificate files of a node next to a path.
fn certificates(beside: &Path) -> CertificateFiles {
    let (begin, end) = (SystemTime::now() - HOUR, SystemTime::now() + HOUR);
    let subject = Subject { name: "ca", serial: &[1], begin, end };
    let ca = Authority::make(&subject).unwrap();
    let issuer = Authority::new("ca", &ca.key).unwrap();
    let own = issuer.issue(&Subject { name: "node", serial: &[2], ..subject }).unwrap();
    let crl = issuer.revoke(1, &[], begin, end).unwrap();
    let write = |what: &str, text: String| {
        let path = beside.with_extension(what);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        path
    };
    CertificateFiles {
        certificate: write("crt", own.certificate),
        key: write("key", own.key),
        ca: write("ca", ca.certificate),
        crl: Some(write("crl", crl)),
    }
}

impl Scene {
    fn new(task: Task) -> Self {
        let name = format!("hoplite-failstop-{task}-{}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        // Only a node with certificates reads a revocation list.
        let certificates = (task == Task::Revocation).then(|| certificates(&socket));
        let with = |config| NodeConfig { certificates: certificates.clone(), ..config };
        let other = Node::start(with(NodeConfig::default())).unwrap();
        // Only a node short of capacity writes to disk.
        let spill = (task == Task::Disk).then(|| SpillConfig {
            folder: socket.with_extension("spill"),
            limit: None,
            persistent: false,
        });
        let capacity = spill.as_ref().map(|_| 4 << 20);
        let (socket_path, surveys) = (Some(socket.clone()), task == Task::Survey);
        let failing = NodeConfig { socket: socket_path, capacity, spill, surveys, ..join(&other) };
        let failing = with(failing);
        Self { failing: Node::start(failing).unwrap(), other, socket }
    }

    /// Triggers a task of the failing node.
    fn provoke(&self, task: Task) {
        let (mine, theirs) = (self.failing.client(), self.other.client());
        match task {
            // These run by themselves.
            Task::Timer | Task::SeedRetry | Task::Revocation => {}
            // More memory than a node keeps.
            Task::Trim => {
                let id = put(&mine, 64 * LARGE).unwrap();
                drop(mine.start_delete(vec![id], SOON).join());
            }
            Task::Machine => drop(mine.start_objects("", None, None).wait_for(PAUSE)),
            Task::SlowActions => drop(put(&mine, 200 * LARGE)),
            Task::Listen | Task::Handshake => {
                drop(TcpStream::connect(self.failing.address().unwrap()))
            }
            // Both connect to a node that joins, and surveys consider it.
            Task::Connection | Task::Survey => drop(Node::start(join(&self.other))),
            // Puts of one node are announced to the other.
            Task::Control => {
                get(&mine, put(&theirs, LARGE));
                get(&theirs, put(&mine, LARGE));
            }
            // Cancelled requests: the other node owns some of these names.
            Task::DeferredWrites => {
                let names = (0..20).map(|number| format!("{number}/never").parse().unwrap());
                let gets: Vec<_> = names.map(|id: ObjectId| mine.start_get(&id, None)).collect();
                thread::sleep(PAUSE);
                drop(gets);
            }
            Task::Send => get(&theirs, put(&mine, LARGE)),
            Task::Receive => get(&mine, put(&theirs, LARGE)),
            // More than the limit of concurrent transfers from one source.
            Task::Limiter => {
                let meta = Meta::array(Dtype::UInt8, vec![LARGE as u64]).unwrap();
                let create = |_| theirs.start_create(None, meta.clone(), None, SOON).join().ok();
                // They stay empty, so that no transfer ends before another starts.
                let growing: Vec<_> = (0..100).filter_map(create).collect();
                let get = |writer: &Writer| mine.start_get(writer.id(), SOON);
                let gets: Vec<_> = growing.iter().map(get).collect();
                gets.into_iter().for_each(|mut get| drop(get.wait_for(PAUSE)));
            }
            Task::Stream | Task::Fold => {
                let inputs = [put(&mine, LARGE), put(&theirs, LARGE), put(&theirs, LARGE)];
                let inputs = inputs.into_iter().flatten().collect();
                get(&mine, mine.start_reduce(inputs, Op::Sum, None, None, None, SOON).join().ok());
            }
            Task::Attach | Task::Session | Task::ReplyWriter => {
                let attached = Client::attach(&self.socket, Some(PAUSE));
                drop(attached.map(|client| client.start_objects("", None, None).wait_for(PAUSE)));
            }
            Task::Disk => (0..6).for_each(|_| {
                let meta = Meta::array(Dtype::UInt8, vec![LARGE as u64]).unwrap();
                let value = vec![1; LARGE];
                let value = Value::with_meta(&value, meta).unwrap();
                drop(mine.put(None, value, Some(PAUSE)));
            }),
            Task::Fork => {
                let view = put(&mine, LARGE).map(|id| mine.get(&id, SOON));
                drop((Client::pin_for_fork(), view));
            }
            Task::Reconnect | Task::Relay => unreachable!("they have tests in node.rs"),
        }
    }
}

/// Method: a client in the process and an attached one wait for an object that never comes; then the task panics.
fn end_by(task: Task) {
    let scene = Scene::new(task);
    let never: ObjectId = "never".parse().unwrap();
    let inside = scene.failing.client();
    let outside = Client::attach(&scene.socket, SOON).unwrap();
    let gets = [inside.start_get(&never, None), outside.start_get(&never, None)];
    // After the get, which the session must handle before its task panics.
    outside.start_objects("", None, None).join().unwrap();
    let address = scene.failing.address().unwrap();
    scene.failing.inject_panic(task);
    scene.provoke(task);
    wait_until(|| scene.failing.failure().is_some(), "it panics");
    let reason = scene.failing.failure().unwrap();
    assert!(reason.contains(&format!("task {task} panicked")), "{reason}");
    for get in gets {
        let error = get.join().unwrap_err().to_string();
        assert!(error.contains(&reason), "{error}");
    }
    // Later requests fail too, and nothing listens any more.
    let error = inside.start_objects("", None, None).join().unwrap_err().to_string();
    assert!(error.contains(&reason), "{error}");
    let error = outside.start_objects("", None, None).join().unwrap_err().to_string();
    assert!(error.contains(&reason), "{error}");
    assert!(inside.is_closed() && scene.failing.is_closed());
    wait_until(|| TcpStream::connect(address).is_err(), "it stops listening");
    wait_until(|| !scene.socket.exists(), "its socket is removed");
    assert!(!scene.failing.close(SOON), "it hands nothing over");
    // The other node continues.
    let id = put(&scene.other.client(), LARGE).unwrap();
    assert!(scene.other.client().get(&id, SOON).is_ok());
}

fn wait_until(is_so: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON.unwrap(), "not within {SOON:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

macro_rules! tests {
    ($($name:ident: $task:ident,)*) => {
        mod a_panic_ends_the_node_in {
            use super::{Task, end_by};

            $(#[test] fn $name() { end_by(Task::$task) })*

            #[test]
            fn every_task() {
                let beside = [Task::Reconnect, Task::Relay];
                let tested = [$(Task::$task),*];
                assert!(Task::ALL.iter().all(|task| tested.contains(task) || beside.contains(task)));
            }
        }
    };
}

tests! {
    the_machine: Machine,
    slow_orders: SlowActions,
    the_timer: Timer,
    the_control_thread: Control,
    accepting_nodes: Listen,
    a_handshake: Handshake,
    a_connection_to_a_member: Connection,
    messages_that_wait: DeferredWrites,
    the_search_for_members: SeedRetry,
    the_list_of_revocations: Revocation,
    surveys: Survey,
    a_sender: Send,
    a_receiver: Receive,
    the_stream_of_a_child: Stream,
    a_fold: Fold,
    the_limiter: Limiter,
    spare_memory: Trim,
    accepting_processes: Attach,
    a_session: Session,
    the_writer_of_answers: ReplyWriter,
    the_pins_of_a_fork: Fork,
    the_disk: Disk,
}
