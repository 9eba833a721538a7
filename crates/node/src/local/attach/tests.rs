//! Tests of an attaching process against a node played by the test.

use std::{
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    sync::{
        atomic::AtomicUsize,
        mpsc::{Receiver, channel},
    },
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    meta::Meta,
};
use hoplite_shm::Arena;

use super::*;
use crate::local::protocol::{LOCAL_VERSION, take_message};

const SOON: Duration = Duration::from_secs(20);
const LEN: u64 = 100_000;
const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

/// A socket whose file is removed with it.
struct Served {
    path: PathBuf,
    listener: UnixListener,
}

impl Served {
    fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("hoplite-attach-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        Self { listener: UnixListener::bind(&path).unwrap(), path }
    }

    /// Attaches a process, to which the node replies with these bytes.
    fn greet(&self, answer: &[u8]) -> (Result<Attached, Error>, Node) {
        std::thread::scope(|scope| {
            let attaching = scope.spawn(|| Attached::connect(&self.path, None, Some(SOON)));
            let (stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(SOON)).unwrap();
            let mut node = Node { stream, bytes: Vec::new() };
            assert!(matches!(node.receive(), ToNode::Hello { version: LOCAL_VERSION }));
            (&node.stream).write_all(answer).unwrap();
            if answer.is_empty() {
                node.stream.shutdown(std::net::Shutdown::Both).unwrap();
            }
            (attaching.join().unwrap(), node)
        })
    }

    fn attach(&self) -> (Attached, Node) {
        let member = Member { id: NodeId(1), address: ([127, 0, 0, 1], 1).into(), place: None };
        let (attached, node) =
            self.greet(&frame(&FromNode::Welcome { member, is_authenticated: true }));
        (attached.unwrap(), node)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The node's end of the socket.
struct Node {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Node {
    fn receive(&mut self) -> ToNode {
        let mut buffer = [0; 65536];
        loop {
            if let Some((message, _)) = take_message(&mut self.bytes).unwrap() {
                return message;
            }
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the process closed the connection");
            self.bytes.extend_from_slice(&buffer[..count]);
        }
    }

    fn send(&self, message: &FromNode, descriptor: Option<BorrowedFd<'_>>) {
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        let bytes = frame(message);
        let sent = send_with_fds(&self.stream, &bytes, &descriptors).unwrap();
        assert_eq!(sent, bytes.len());
    }

    fn answer(&self, request: u64, answer: Result<Reply, CallError>) {
        self.send(&FromNode::Reply { request, reply: answer, region: None }, None);
    }
}

type Answered = Result<(Reply, Option<Slot>), CallError>;

fn ask(attached: &Attached, body: Request) -> (u64, Receiver<Answered>) {
    let (sender, receiver) = channel();
    let request = attached.next_request();
    attached.ask(request, body, None, Box::new(move |answer| drop(sender.send(answer))));
    (request, receiver)
}

fn get() -> Request {
    Request::Get { id: "some/1".parse().unwrap() }
}

/// The reply to a get with memory at a place.
fn got(request: u64, place: Region) -> FromNode {
    let (id, meta) = ("some/1".parse::<ObjectId>().unwrap(), Meta::bytes(LEN));
    let answer = Ok(Reply::Got { id, meta, instance: INSTANCE, inline: None, is_range: false });
    FromNode::Reply { request, reply: answer, region: Some(place) }
}

#[test]
fn refusals_and_other_replies_are_reported() {
    let served = Served::new();
    let said = || "go away".to_string();
    for (answer, words) in [
        (frame(&FromNode::Refused { said: said() }), "go away"),
        (frame(&FromNode::Down { said: said() }), "replied without a greeting"),
        (Vec::new(), "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "uses another protocol"),
    ] {
        let error = served.greet(&answer).0.err().unwrap();
        assert!(
            matches!(error, Error::Attach { .. }) && error.to_string().contains(words),
            "{error}"
        );
    }
    let refused = served.greet(&frame(&FromNode::NotAllowed { said: said() })).0;
    assert!(matches!(refused, Err(Error::Call(CallError::NotAllowed(said))) if said == "go away"));
    let gone = served.path.with_extension("gone");
    let error = Attached::connect(&gone, None, Some(SOON)).err().unwrap().to_string();
    assert!(error.contains("there is no socket"), "{error}");
}

#[test]
fn replies_match_requests_in_any_order() {
    let served = Served::new();
    let (attached, mut node) = served.attach();
    let asked: Vec<_> = (0..3).map(|_| ask(&attached, get())).collect();
    for (request, _) in &asked {
        let received = node.receive();
        assert!(matches!(received, ToNode::Request { request: it, .. } if it == *request));
    }
    for (request, _) in asked.iter().rev() {
        node.answer(*request, Ok(Reply::Put { id: format!("n/{request}").parse().unwrap() }));
    }
    // A reply to an unknown request.
    node.answer(99, Ok(Reply::Done));
    for (request, answer) in asked {
        let id = format!("n/{request}").parse().unwrap();
        let reply = answer.recv_timeout(SOON).unwrap();
        assert!(matches!(&reply, Ok((Reply::Put { id: put }, None)) if *put == id));
    }
    assert!(!attached.is_closed());
}

#[test]
fn end_of_node_fails_every_request_with_its_reason() {
    let served = Served::new();
    let (attached, node) = served.attach();
    let asked = [ask(&attached, get()), ask(&attached, get())];
    node.send(&FromNode::Down { said: "it panicked".into() }, None);
    drop(node);
    for (_, answer) in asked {
        let error = answer.recv_timeout(SOON).unwrap().err().unwrap();
        assert!(
            matches!(&error, CallError::NodeDown(said) if said.contains("it panicked")),
            "{error}"
        );
    }
    assert!(attached.is_closed());
    let (_, late) = ask(&attached, get());
    assert!(matches!(late.recv_timeout(SOON), Ok(Err(CallError::NodeDown(_)))));
    assert_eq!(attached.hold().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// Goal: a node that reads nothing blocks no sending thread, and later gets all requests, whole and
/// in order.
#[test]
fn unsent_frames_are_sent_later() {
    let served = Served::new();
    let (attached, mut node) = served.attach();
    let ids: Vec<ObjectId> =
        (0..1000).map(|number| format!("long/{number}").parse().unwrap()).collect();
    let asked: Vec<_> =
        (0..200).map(|count| ask(&attached, Request::Wait { ids: ids.clone(), count })).collect();
    for (request, _) in &asked {
        let ToNode::Request { request: heard, body: Request::Wait { ids: all, count }, .. } =
            node.receive()
        else {
            panic!("another message")
        };
        assert_eq!((heard, all.len(), u64::from(count) + 1), (*request, 1000, *request));
    }
    let (request, answer) = ask(&attached, get());
    assert!(matches!(node.receive(), ToNode::Request { .. }));
    node.answer(request, Ok(Reply::Done));
    assert!(answer.recv_timeout(SOON).unwrap().is_ok());
}

#[test]
fn request_longer_than_a_frame_is_not_sent() {
    let served = Served::new();
    let (attached, mut node) = served.attach();
    let name = "x".repeat(1000);
    let count = 1 + FRAME_BYTES_MAX / 1000;
    let ids = (0..count).map(|number| format!("{name}/{number}").parse().unwrap()).collect();
    let (_, answer) = ask(&attached, Request::Wait { ids, count: 1 });
    let error = answer.recv_timeout(SOON).unwrap().err().unwrap().to_string();
    assert!(error.contains("but one call can have"), "{error}");
    let (request, _) = ask(&attached, get());
    assert!(
        matches!(node.receive(), ToNode::Request { request: received, .. } if received == request)
    );
}

/// Goal: an extent is mapped once, used by all replies that refer to it, and unmapped when the node
/// requests it.
#[test]
fn memory_is_mapped_once_and_unmapped_on_request() {
    let served = Served::new();
    let (attached, mut node) = served.attach();
    let arena = Arena::new(1 << 20);
    let slot = arena.allocate(LEN, None).unwrap();
    slot.copy_from(&[7; LEN as usize], |_| {}).unwrap();
    let (extent, client) = (slot.extent(), hoplite_shm::WriterId(1));
    let (descriptor, extent_len) = arena.descriptor(extent, client).unwrap();
    let place = |has_descriptor| Region {
        extent: extent.0,
        extent_len,
        offset: slot.offset(),
        len: LEN,
        has_descriptor,
    };
    let get = |node: &mut Node, place: Region| {
        let (request, answer) = ask(&attached, get());
        assert!(matches!(node.receive(), ToNode::Request { .. }));
        let descriptor = place.has_descriptor.then_some(descriptor.as_fd());
        node.send(&got(request, place), descriptor);
        answer.recv_timeout(SOON).unwrap()
    };
    for has_descriptor in [true, false] {
        let Ok((_, Some(slot))) = get(&mut node, place(has_descriptor)) else { panic!() };
        assert_eq!(slot.bytes().unwrap().to_vec(), [7; LEN as usize]);
    }
    node.send(&FromNode::Unmap { extents: vec![extent.0] }, None);
    assert!(
        matches!(node.receive(), ToNode::Unmapped { extent: unmapped } if unmapped == extent.0)
    );
    // The process can't read memory that it has not mapped, and releases it.
    let answer = get(&mut node, place(false));
    assert!(matches!(answer, Err(CallError::NoMemory { needed: LEN, .. })));
    let released = ToNode::Notify { body: Request::Release { instance: INSTANCE } };
    assert_eq!(format!("{:?}", node.receive()), format!("{released:?}"));
}
