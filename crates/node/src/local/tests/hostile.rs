//! Tests of hostile processes, which follow only the framing of the protocol: they affect no other
//! process.
//!
//! `RawClient` sends arbitrary messages, like a program written to break a node, without the client
//! of this crate.

use std::{
    io::{self, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use hoplite_proto::{
    error::Error as CallError,
    id::{NodeId, ObjectId},
    members::Member,
    meta::Meta,
    request::{Reply, Request},
};
use hoplite_shm::{Mapping, Slot, recv_with_fds, refuse_descriptors, send_with_fds};
use socket2::SockRef;

use crate::{
    config::NodeConfig,
    local::{
        client::Client,
        protocol::{FromNode, LOCAL_VERSION, Region, ReplyReader, ToNode, frame},
    },
    node::Node,
};

pub(crate) const SOON: Option<Duration> = Some(Duration::from_secs(20));
pub(crate) const LEN: u64 = 100_000;

/// A node with a socket of its own.
pub(crate) fn node() -> Node {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("hoplite-hostile-{}-{number}", std::process::id());
    let socket: PathBuf = std::env::temp_dir().join(name);
    Node::start(NodeConfig { socket: Some(socket), ..NodeConfig::default() }).unwrap()
}

/// A process that sends arbitrary messages.
pub(crate) struct RawClient {
    stream: UnixStream,
    incoming: ReplyReader,
    asked: u64,
}

impl RawClient {
    /// A connection on which nothing has been sent.
    pub(crate) fn silent(node: &Node) -> Self {
        let stream = UnixStream::connect(node.socket().unwrap()).unwrap();
        stream.set_read_timeout(SOON).unwrap();
        Self { stream, incoming: ReplyReader::default(), asked: 0 }
    }

    pub(crate) fn attach(node: &Node) -> Self {
        let mut raw = Self::silent(node);
        raw.send(&ToNode::Hello { version: LOCAL_VERSION });
        assert!(matches!(raw.receive(), Some(FromNode::Welcome { .. })));
        raw
    }

    pub(crate) fn send(&self, message: &ToNode) {
        (&self.stream).write_all(&frame(message)).unwrap();
    }

    /// Sends a message without its last byte.
    pub(crate) fn say_half(&self, message: &ToNode) {
        let bytes = frame(message);
        (&self.stream).write_all(&bytes[..bytes.len() - 1]).unwrap();
    }

    /// Sends a message with a descriptor, which no node accepts.
    fn say_with(&self, message: &ToNode, descriptor: impl AsFd) -> io::Result<usize> {
        send_with_fds(&self.stream, &frame(message), &[descriptor.as_fd()])
    }

    /// Requests the descriptor that pins this process's views for a fork.
    pub(crate) fn hold(&mut self) -> OwnedFd {
        self.send(&ToNode::PinForFork);
        assert!(matches!(self.receive(), Some(FromNode::Lifeline)));
        self.incoming.descriptor().unwrap()
    }

    /// Sends a request and returns its number.
    pub(crate) fn ask(&mut self, body: Request) -> u64 {
        self.asked += 1;
        self.send(&ToNode::Request { request: self.asked, body, timeout_ns: None });
        self.asked
    }

    /// Reads the node's next message; None once it has closed the connection.
    pub(crate) fn receive(&mut self) -> Option<FromNode> {
        self.try_hear().unwrap()
    }

    /// Reads the node's next message, or the error of the connection.
    pub(crate) fn try_hear(&mut self) -> io::Result<Option<FromNode>> {
        self.incoming.next(&self.stream, recv_with_fds)
    }

    /// Reads the reply to a request, and its memory. No other reply may come before.
    pub(crate) fn answer(
        &mut self,
        asked: u64,
    ) -> (Result<Reply, CallError>, Option<(Region, OwnedFd)>) {
        let (reply, place, descriptor) = self.answered(asked);
        (reply, place.zip(descriptor))
    }

    /// Reads the reply to a request, and its place, even if its descriptor came before.
    pub(crate) fn answered(
        &mut self,
        asked: u64,
    ) -> (Result<Reply, CallError>, Option<Region>, Option<OwnedFd>) {
        match self.receive() {
            Some(FromNode::Reply { request, reply, region: place }) if request == asked => {
                let descriptor = self.incoming.descriptor();
                (reply, place, descriptor)
            }
            other => panic!("no reply to request {asked}: {other:?}"),
        }
    }

    /// Waits until the node has handled everything sent so far. No other message may come before.
    pub(crate) fn pause(&mut self) {
        let asked = self.ask(Request::Status);
        match self.receive() {
            Some(FromNode::Reply { request, reply: Ok(_), .. }) if request == asked => {}
            other => panic!("{other:?}"),
        }
    }

    /// Reads why the node closes the connection.
    pub(crate) fn refused(&mut self) -> String {
        let said = match self.receive() {
            Some(FromNode::Refused { said }) => said,
            other => panic!("it was not refused: {other:?}"),
        };
        assert!(self.receive().is_none());
        said
    }

    /// Creates an object of [`LEN`] bytes, without filling it.
    fn create(&mut self, id: &ObjectId) -> (Reply, Region, OwnedFd) {
        let asked = self.ask(Request::Create {
            id: Some(id.clone()),
            meta: Meta::bytes(LEN),
            ttl_ns: None,
        });
        let (reply, memory) = self.answer(asked);
        let (place, descriptor) = memory.unwrap();
        (reply.unwrap(), place, descriptor)
    }
}

pub(crate) fn name(text: &str) -> ObjectId {
    text.parse().unwrap()
}

/// Waits until a condition is true.
pub(crate) fn eventually(what: impl Fn() -> bool) {
    let until = Instant::now() + SOON.unwrap();
    while !what() {
        assert!(Instant::now() < until, "not so after {SOON:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a descriptor, or one reopened from it, can be mapped writable.
fn can_write(descriptor: &OwnedFd, place: &Region) -> bool {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    Mapping::map_writable(descriptor, place.extent_len).is_ok()
        || Mapping::map_writable(&again, place.extent_len).is_ok()
}

#[test]
fn readers_get_memory_only_after_writer_mapped_it() {
    let node = node();
    let (mut writer, mut reader) = (RawClient::attach(&node), RawClient::attach(&node));
    let id = name("grows/1");
    let _get = reader.ask(Request::Get { id: id.clone() });
    let follow = reader.ask(Request::Follow { id: id.clone() });
    reader.pause();
    let (created, place, descriptor) = writer.create(&id);
    let Reply::Created { instance, .. } = created else { panic!("{created:?}") };
    // The object has started to grow, and the follower has not been notified.
    reader.pause();
    let mapping = Mapping::map_writable(&descriptor, place.extent_len).unwrap();
    writer.send(&ToNode::Mapped { extent: place.extent });
    writer.send(&ToNode::Advanced { instance });
    let (reply, memory) = reader.answer(follow);
    assert!(matches!(reply, Ok(Reply::Growing { .. })), "{reply:?}");
    let (lent, read) = memory.unwrap();
    assert!(!can_write(&read, &lent));
    // Nor can the writer map its descriptor writable again.
    assert!(!can_write(&descriptor, &place));
    let slot = Slot::open(Arc::new(mapping), place.offset, place.len).unwrap();
    slot.copy_from(&[7; LEN as usize], |_| {}).unwrap();
    writer.ask(Request::Seal { instance });
    let got = reader.receive();
    assert!(matches!(&got, Some(FromNode::Reply { reply: Ok(Reply::Got { .. }), .. })), "{got:?}");
    node.close(SOON);
}

#[test]
fn process_sending_descriptors_stalls_no_other() {
    let node = node();
    let client = Client::attach(node.socket().unwrap(), SOON).unwrap();
    let hello = ToNode::Hello { version: LOCAL_VERSION };
    // More than the node has threads. Each close blocks for longer than a call below waits.
    for _ in 0..16 {
        let (_listener, descriptor) = lingering(3 * SOON.unwrap());
        let greeted = RawClient::silent(&node);
        let greets = greeted.say_with(&hello, &descriptor);
        let attached = RawClient::attach(&node);
        let holds = attached.say_with(&ToNode::PinForFork, &descriptor);
        // Since Linux 6.16 the descriptor stays here, and its close must not block this test.
        assert!([greets, holds].iter().all(|sent| sent.is_err() == refuses_descriptors()));
        if refuses_descriptors() {
            SockRef::from(&descriptor).set_linger(None).unwrap();
        }
    }
    let id = client.put(None, crate::Value::bytes(&[7; LEN as usize]), SOON).unwrap();
    assert_eq!(client.get(&id, SOON).unwrap().as_bytes(), [7; LEN as usize]);
    node.close(SOON);
}

/// Whether this kernel lets a socket refuse descriptors.
fn refuses_descriptors() -> bool {
    refuse_descriptors(UnixStream::pair().unwrap().0.as_fd()).is_ok()
}

/// A TCP socket whose last close blocks for `time`: nobody reads its queued bytes.
pub(crate) fn lingering(time: Duration) -> (TcpListener, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65536]).is_ok() {}
    stream.set_nonblocking(false).unwrap();
    SockRef::from(&stream).set_linger(Some(time)).unwrap();
    (listener, stream)
}

#[test]
fn follower_gets_reply_if_object_is_aborted_before_mapping() {
    let node = node();
    let (mut writer, mut reader) = (RawClient::attach(&node), RawClient::attach(&node));
    let id = name("given/up");
    reader.ask(Request::Get { id: id.clone() });
    let follow = reader.ask(Request::Follow { id: id.clone() });
    reader.pause();
    writer.create(&id);
    reader.pause();
    drop(writer);
    let (reply, memory) = reader.answer(follow);
    assert!(matches!(reply, Ok(Reply::Done)) && memory.is_none(), "{reply:?}");
    node.close(SOON);
}

#[test]
fn seal_of_object_seals_unreported_mapping() {
    let node = node();
    let (mut writer, mut reader) = (RawClient::attach(&node), RawClient::attach(&node));
    let id = name("silent/1");
    let (created, place, descriptor) = writer.create(&id);
    let Reply::Created { instance, .. } = created else { panic!("{created:?}") };
    let mapping = Mapping::map_writable(&descriptor, place.extent_len).unwrap();
    let slot = Slot::open(Arc::new(mapping), place.offset, place.len).unwrap();
    slot.copy_from(&[7; LEN as usize], |_| {}).unwrap();
    let seal = writer.ask(Request::Seal { instance });
    assert!(matches!(writer.answer(seal), (Ok(Reply::Put { .. }), None)));
    let get = reader.ask(Request::Get { id });
    let (lent, read) = reader.answer(get).1.unwrap();
    assert!(!can_write(&read, &lent));
    assert!(!can_write(&descriptor, &place));
    node.close(SOON);
}

#[test]
fn only_the_writer_can_report_a_mapping() {
    let node = node();
    let mut writer = RawClient::attach(&node);
    let (created, place, descriptor) = writer.create(&name("mine/1"));
    let Reply::Created { instance, .. } = created else { panic!("{created:?}") };
    let mut other = RawClient::attach(&node);
    other.send(&ToNode::Mapped { extent: place.extent });
    assert!(other.refused().contains("not an extent that this process may write"));
    // Nor by sealing an object that is not its own.
    let mut other = RawClient::attach(&node);
    let seal = other.ask(Request::Seal { instance });
    let (reply, _) = other.answer(seal);
    assert!(matches!(reply, Err(CallError::InvalidArgument(_))), "{reply:?}");
    // An extent that never existed belongs to no process.
    other.send(&ToNode::Mapped { extent: u64::MAX });
    other.pause();
    Mapping::map_writable(&descriptor, place.extent_len).unwrap();
    node.close(SOON);
}

#[test]
fn client_gets_reason_of_ended_attachment() {
    let path = std::env::temp_dir().join(format!("hoplite-ended-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let serving = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let member = Member { id: NodeId(1), address: "127.0.0.1:1".parse().unwrap(), place: None };
        (&stream).write_all(&frame(&FromNode::Welcome { member, is_authenticated: true })).unwrap();
        let said = "extent 3 is not yours".into();
        (&stream).write_all(&frame(&FromNode::Refused { said })).unwrap();
    });
    let client = Client::attach(&path, SOON).unwrap();
    let error = client.get(&name("never/1"), None).unwrap_err().to_string();
    assert!(error.contains("ended the attachment") && error.contains("not yours"), "{error}");
    serving.join().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn client_detects_end_of_node_at_once() {
    let path = std::env::temp_dir().join(format!("hoplite-gone-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let member = Member { id: NodeId(1), address: "127.0.0.1:1".parse().unwrap(), place: None };
    let welcome = frame(&FromNode::Welcome { member, is_authenticated: true });
    // In most rounds the receiving thread has not run yet.
    for _ in 0..200 {
        let (client, stream) = std::thread::scope(|scope| {
            let client = scope.spawn(|| Client::attach(&path, SOON).unwrap());
            let (stream, _) = listener.accept().unwrap();
            (&stream).write_all(&welcome).unwrap();
            (client.join().unwrap(), stream)
        });
        assert!(!client.is_closed());
        drop(stream);
        assert!(client.is_closed());
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn no_text_of_node_or_client_contains_the_token() {
    let token = "never-to-be-told";
    let config = NodeConfig { tokens: vec![token.into()], ..NodeConfig::default() };
    let node = Node::start(config).unwrap();
    let client = node.client();
    let wait = client.start_get(&name("never/1"), SOON);
    assert!(!format!("{node:?} {client:?} {wait:?}").contains(token));
    assert!(!client.start_describe(None).join().unwrap().contains(token));
    drop(wait);
    node.close(SOON);
}
