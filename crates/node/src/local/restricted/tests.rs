//! Tests of a raw process with a capability: the memory that it gets, and the greetings that are
//! accepted.

use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    thread,
    time::{Duration, Instant},
};

use hoplite_proto::meta::Meta;

use super::super::{
    client::Client,
    limits,
    protocol::{FromNode, LOCAL_VERSION, ToNode},
    put::Value,
    tests::hostile::{LEN, RawClient, SOON, name},
};
use super::*;
use crate::{capability::Bounds, config::NodeConfig, node::Node};

const TOKEN: &str = "the token";

fn node(require_capability: bool) -> Node {
    let number = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let socket = std::env::temp_dir().join(format!("hoplite-confined-{number}"));
    let tokens = vec![TOKEN.into()];
    let config =
        NodeConfig { socket: Some(socket), tokens, require_capability, ..NodeConfig::default() };
    Node::start(config).unwrap()
}

fn granted(prefix: &str, until: Option<u64>) -> String {
    let bounds = Bounds { prefix: Some(prefix.into()), verbs: None, until };
    capability::grant(TOKEN, &bounds).unwrap()
}

/// The node's reply to a greeting.
fn greeted(node: &Node, greeting: &ToNode) -> FromNode {
    let mut raw = RawClient::silent(node);
    raw.send(greeting);
    raw.receive().unwrap()
}

fn restricted(capability: String) -> ToNode {
    ToNode::HelloRestricted { version: LOCAL_VERSION, capability }
}

#[test]
fn confined_process_maps_no_memory_of_other_objects() {
    let node = node(false);
    let writer = Client::attach(node.socket().unwrap(), SOON).unwrap();
    // Small objects of one writer share an extent.
    for (text, byte) in [("team-a/1", 1), ("team-b/1", 2), ("team-a/2", 3)] {
        let bytes = vec![byte; LEN as usize];
        writer.put(Some(name(text)), Value::bytes(&bytes), SOON).unwrap();
    }
    let mut raw = RawClient::silent(&node);
    raw.send(&restricted(granted("team-a/", None)));
    assert!(matches!(raw.receive(), Some(FromNode::Welcome { .. })));
    let get = raw.ask(Request::Get { id: name("team-a/1") });
    let (reply, memory) = raw.answer(get);
    let Ok(Reply::Got { instance, .. }) = reply else { panic!("{reply:?}") };
    let (region, descriptor) = memory.unwrap();
    let mut all = vec![0; region.extent_len as usize];
    let file = File::from(descriptor);
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), region.extent_len);
    assert!(!all.contains(&2) && !all.contains(&3), "it holds other objects");
    assert_eq!(all.iter().filter(|byte| **byte == 1).count() as u64 / LEN, 1);
    assert!(file.write_at(&[7], 0).is_err());

    // A second read gives the same memory, which is removed after both releases; the next read
    // gives new memory.
    let get = raw.ask(Request::Get { id: name("team-a/1") });
    match raw.receive() {
        Some(FromNode::Reply { request, region: Some(again), .. }) if request == get => {
            assert!(again.extent == region.extent && !again.has_descriptor);
        }
        other => panic!("{other:?}"),
    }
    raw.send(&ToNode::Notify { body: Request::Release { instance } });
    raw.pause();
    raw.send(&ToNode::Notify { body: Request::Release { instance } });
    match raw.receive() {
        Some(FromNode::Unmap { extents }) => assert_eq!(extents, [region.extent]),
        other => panic!("{other:?}"),
    }
    let get = raw.ask(Request::Get { id: name("team-a/1") });
    let (reply, memory) = raw.answer(get);
    assert!(reply.is_ok() && memory.unwrap().0.extent != region.extent);

    // A growing object is not followed.
    let get = raw.ask(Request::Get { id: name("team-a/3") });
    let follow = raw.ask(Request::Follow { id: name("team-a/3") });
    let space = writer.start_create(Some(name("team-a/3")), Meta::bytes(LEN), None, SOON);
    let space = space.join().unwrap();
    assert!(matches!(raw.answer(follow), (Ok(Reply::Done), None)));
    space.write_all(&vec![9; LEN as usize]).unwrap();
    space.seal(SOON).unwrap().join().unwrap();
    assert!(matches!(raw.answer(get), (Ok(Reply::Got { .. }), Some(_))));
    node.close(SOON);
}

/// A process with a capability for `team-a/`.
fn tenant(node: &Node) -> RawClient {
    let mut raw = RawClient::silent(node);
    raw.send(&restricted(granted("team-a/", None)));
    assert!(matches!(raw.receive(), Some(FromNode::Welcome { .. })));
    raw
}

/// Gets an object that it has no copy of.
fn read(raw: &mut RawClient, id: &str) -> (Instance, File) {
    let get = raw.ask(Request::Get { id: name(id) });
    let (reply, memory) = raw.answer(get);
    let Ok(Reply::Got { instance, .. }) = reply else { panic!("{reply:?}") };
    (instance, File::from(memory.unwrap().1))
}

fn release(raw: &mut RawClient, instance: Instance) {
    raw.send(&ToNode::Notify { body: Request::Release { instance } });
    assert!(matches!(raw.receive(), Some(FromNode::Unmap { .. })));
}

fn bytes_of(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

fn eventually(what: impl Fn() -> bool) {
    let until = Instant::now() + SOON.unwrap();
    while !what() {
        assert!(Instant::now() < until, "not so after {SOON:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn released_copy_is_taken_back() {
    let node = node(false);
    let writer = Client::attach(node.socket().unwrap(), SOON).unwrap();
    writer.put(Some(name("team-a/1")), Value::bytes(&[1; LEN as usize]), SOON).unwrap();
    let mut raw = tenant(&node);
    let mut kept = Vec::new();
    for _ in 0..20 {
        let (instance, file) = read(&mut raw, "team-a/1");
        assert!(bytes_of(&file) >= LEN);
        release(&mut raw, instance);
        kept.push(file);
    }
    assert_eq!(kept.iter().map(bytes_of).sum::<u64>(), 0);

    // Its forked child continues to read.
    let (instance, file) = read(&mut raw, "team-a/1");
    let lifeline = raw.hold();
    release(&mut raw, instance);
    raw.pause();
    assert!(bytes_of(&file) >= LEN);
    drop(lifeline);
    eventually(|| bytes_of(&file) == 0);

    // An ended process reads nothing.
    let (_, file) = read(&mut raw, "team-a/1");
    assert!(bytes_of(&file) >= LEN);
    drop(raw);
    eventually(|| bytes_of(&file) == 0);

    // Readers keep their copies when the node ends.
    let (_, file) = read(&mut tenant(&node), "team-a/1");
    let mut raw = tenant(&node);
    let (_, other) = read(&mut raw, "team-a/1");
    eventually(|| bytes_of(&file) == 0);
    node.close(SOON);
    while raw.try_hear().is_ok_and(|said| said.is_some()) {}
    assert!(bytes_of(&other) >= LEN);
}

#[test]
fn copies_of_one_grant_are_limited() {
    let node = node(false);
    let writer = Client::attach(node.socket().unwrap(), SOON).unwrap();
    let (mut raw, most) = (tenant(&node), limits::COPIES_MAX / 2);
    let mut reading = Vec::new();
    for number in 0..most {
        let id = format!("team-a/{number}");
        writer.put(Some(name(&id)), Value::bytes(&[1; LEN as usize]), SOON).unwrap();
        reading.push(read(&mut raw, &id));
    }
    writer.put(Some(name("team-a/more")), Value::bytes(&[1; LEN as usize]), SOON).unwrap();
    // Another process with a capability of the same grant is limited too, and no other.
    for raw in [&mut raw, &mut tenant(&node)] {
        let get = raw.ask(Request::Get { id: name("team-a/more") });
        let (reply, memory) = raw.answer(get);
        let Err(CallError::NoMemory { detail, .. }) = reply else { panic!("{reply:?}") };
        assert!(detail.contains("8 of at most 16 copies") && memory.is_none(), "{detail}");
    }
    release(&mut raw, reading[0].0);
    read(&mut raw, "team-a/more");
    node.close(SOON);
}

#[test]
fn capability_restricts_every_request() {
    let node = node(true);
    let full = node.client();
    full.put(Some(name("team-b/1")), Value::bytes(b"theirs"), SOON).unwrap();
    let minted = full.put(None, Value::bytes(b"minted"), SOON).unwrap();
    let mut raw = RawClient::silent(&node);
    raw.send(&restricted(granted("team-a/", None)));
    assert!(matches!(raw.receive(), Some(FromNode::Welcome { .. })));
    for id in [name("team-b/1"), minted.clone(), name("team-a")] {
        let inside = name("team-a/1");
        for ask in [
            Request::Get { id: id.clone() },
            Request::Delete { ids: vec![inside.clone(), id.clone()] },
            Request::Wait { ids: vec![inside, id.clone()], count: 1 },
            Request::AcquireLease { id: id.clone() },
            Request::Explain { id: id.clone() },
        ] {
            let asked = raw.ask(ask.clone());
            let (reply, memory) = raw.answer(asked);
            assert!(matches!(reply, Err(CallError::NotAllowed(_))), "{ask:?}: {reply:?}");
            assert!(memory.is_none());
        }
        // Without a reply: of these requests, only releases and aborts have an effect.
        raw.send(&ToNode::Notify { body: Request::Delete { ids: vec![id] } });
    }
    let asked = raw.ask(Request::Reserve { name: Some("team-b/1".parse().unwrap()) });
    assert!(matches!(raw.answer(asked).0, Err(CallError::NotAllowed(_))));
    // A second greeting changes nothing.
    raw.send(&restricted(granted("team-b/", None)));
    raw.send(&ToNode::Hello { version: LOCAL_VERSION });
    let asked = raw.ask(Request::Get { id: name("team-b/1") });
    assert!(matches!(raw.answer(asked).0, Err(CallError::NotAllowed(_))));
    assert_eq!(full.get(&name("team-b/1"), SOON).unwrap().as_bytes(), b"theirs");
    assert_eq!(full.get(&minted, SOON).unwrap().as_bytes(), b"minted");
    node.close(SOON);
}

#[test]
fn valid_greetings_are_accepted_and_others_refused() {
    let (free, strict) = (node(false), node(true));
    let hello = || ToNode::Hello { version: LOCAL_VERSION };
    assert!(matches!(greeted(&free, &hello()), FromNode::Welcome { .. }));
    let said = |node: &Node, greeting: &ToNode| match greeted(node, greeting) {
        FromNode::NotAllowed { said } => said,
        other => panic!("{other:?}"),
    };
    assert!(said(&strict, &hello()).contains("requires a capability"));
    for node in [&free, &strict] {
        let good = restricted(granted("team-a/", Some(now() + 100)));
        assert!(matches!(greeted(node, &good), FromNode::Welcome { .. }));
        let expired = restricted(granted("team-a/", Some(now())));
        assert!(said(node, &expired).contains("has expired"));
        let bounds = Bounds { prefix: Some("a/".into()), ..Bounds::default() };
        let other = capability::grant("another token", &bounds).unwrap();
        assert!(
            said(node, &restricted(other)).contains("derived from the token of another cluster")
        );
        assert!(said(node, &restricted("x".repeat(100_000))).contains("too long"));
        let old = ToNode::HelloRestricted { version: 1, capability: granted("a/", None) };
        assert!(matches!(greeted(node, &old), FromNode::Refused { .. }));
    }
    free.close(SOON);
    strict.close(SOON);
}
