//! Tests of a session: how the node handles each message of a raw process.

use std::os::fd::OwnedFd;

use hoplite_proto::{ask::Answer, id::Instance, meta::Meta};
use hoplite_shm::Mapping;

use super::*;
use crate::{
    local::{
        client::{Client, Value},
        protocol::Place,
        tests::hostile::{LEN, Raw, SOON, eventually, name, node},
    },
    node::Node,
};

/// A node with an object in shared memory.
fn with_object() -> (Node, Client) {
    let node = node();
    let client = node.client();
    client.put(Some(name("some/1")), Value::bytes(&[7; LEN as usize]), SOON).unwrap();
    (node, client)
}

/// Gets that object: its place, and the descriptor if one came.
fn get(process: &mut Raw) -> (Place, Option<OwnedFd>, Instance) {
    let asked = process.ask(Ask::Get { id: name("some/1") });
    let (answer, place, descriptor) = process.answered(asked);
    let Ok(Answer::Got { instance, .. }) = answer else { panic!("{answer:?}") };
    (place.unwrap(), descriptor, instance)
}

#[test]
fn greeting_of_this_version_must_come_first() {
    let node = node();
    let mut early = Raw::silent(&node);
    early.say(&ToNode::Hold);
    assert!(early.refused().contains("must be a greeting"));
    let mut other = Raw::silent(&node);
    other.say(&ToNode::Hello { version: LOCAL_VERSION + 1 });
    let said = other.refused();
    assert!(said.contains(&format!("version {LOCAL_VERSION} of the local protocol")), "{said}");
    let mut twice = Raw::attach(&node);
    twice.say(&ToNode::Hello { version: LOCAL_VERSION });
    twice.pause();
    node.close(SOON);
}

#[test]
fn descriptor_is_sent_once_and_again_after_unmapping() {
    let (node, _client) = with_object();
    let mut process = Raw::attach(&node);
    let (place, descriptor, _) = get(&mut process);
    let mapping = Mapping::map_readonly(descriptor.unwrap(), place.extent_len);
    assert!(place.has_descriptor && mapping.is_ok());
    let (again, descriptor, _) = get(&mut process);
    assert!(!again.has_descriptor && descriptor.is_none());
    assert_eq!((again.extent, again.offset, again.len), (place.extent, place.offset, LEN));
    process.say(&ToNode::Unmapped { extent: place.extent });
    let (again, descriptor, _) = get(&mut process);
    assert!(again.has_descriptor && descriptor.is_some());
    // Another process gets its own descriptor.
    assert!(get(&mut Raw::attach(&node)).1.is_some());
    node.close(SOON);
}

#[test]
fn reads_are_pinned_until_release_or_end() {
    let (node, client) = with_object();
    let pins = || client.start_objects(SOON).join().unwrap()[0].pins;
    let idle = pins();
    let mut process = Raw::attach(&node);
    let (_, _, instance) = get(&mut process);
    get(&mut process);
    assert_eq!(pins(), idle + 2);
    process.say(&ToNode::Tell { ask: Ask::Release { instance } });
    process.pause();
    assert_eq!(pins(), idle + 1);
    // A release has no reply, even if sent as a request.
    process.ask(Ask::Release { instance });
    process.pause();
    assert_eq!(pins(), idle);
    get(&mut process);
    drop(process);
    eventually(|| pins() == idle);
    node.close(SOON);
}

#[test]
fn tell_accepts_only_requests_without_reply() {
    let (node, client) = with_object();
    let mut process = Raw::attach(&node);
    process.say(&ToNode::Tell { ask: Ask::Delete { ids: vec![name("some/1")] } });
    process.say(&ToNode::Cancel { request: 99 });
    process.say(&ToNode::LetGo { request: 99 });
    process.say(&ToNode::Advanced { instance: Instance { node: node.id(), serial: 99 } });
    process.pause();
    assert_eq!(client.get(&name("some/1"), SOON).unwrap().as_bytes(), [7; LEN as usize]);
    node.close(SOON);
}

#[test]
fn incomplete_space_can_not_be_sealed() {
    let node = node();
    let mut process = Raw::attach(&node);
    let asked = process.ask(Ask::Create { id: None, meta: Meta::bytes(LEN), ttl_ns: None });
    let (answer, place, _) = process.answered(asked);
    let Ok(Answer::Created { instance, .. }) = answer else { panic!("{answer:?}") };
    process.say(&ToNode::Mapped { extent: place.unwrap().extent });
    let asked = process.ask(Ask::Seal { instance });
    let refused = process.answered(asked).0.unwrap_err().to_string();
    assert!(refused.contains("before all bytes were written"), "{refused}");
    process.say(&ToNode::Tell { ask: Ask::Abort { instance } });
    process.pause();
    assert!(node.client().start_objects(SOON).join().unwrap().is_empty());
    node.close(SOON);
}
