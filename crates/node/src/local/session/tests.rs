//! Tests of a session: how the node handles each message of a raw process.

use std::os::fd::OwnedFd;

use hoplite_proto::{id::Instance, meta::Meta, request::Reply};
use hoplite_shm::Mapping;

use super::*;
use crate::{
    local::{
        client::Client,
        protocol::Region,
        put::Value,
        tests::hostile::{LEN, RawClient, SOON, eventually, name, node},
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
fn get(process: &mut RawClient) -> (Region, Option<OwnedFd>, Instance) {
    let asked = process.ask(Request::Get { id: name("some/1") });
    let (reply, region, descriptor) = process.answered(asked);
    let Ok(Reply::Got { instance, .. }) = reply else { panic!("{reply:?}") };
    (region.unwrap(), descriptor, instance)
}

#[test]
fn greeting_of_this_version_must_come_first() {
    let node = node();
    let mut early = RawClient::silent(&node);
    early.send(&ToNode::PinForFork);
    assert!(early.refused().contains("must be a greeting"));
    let mut other = RawClient::silent(&node);
    other.send(&ToNode::Hello { version: LOCAL_VERSION + 1 });
    let said = other.refused();
    assert!(said.contains(&format!("version {LOCAL_VERSION} of the local protocol")), "{said}");
    let mut twice = RawClient::attach(&node);
    twice.send(&ToNode::Hello { version: LOCAL_VERSION });
    twice.pause();
    node.close(SOON);
}

#[test]
fn descriptor_is_sent_once_and_again_after_unmapping() {
    let (node, _client) = with_object();
    let mut process = RawClient::attach(&node);
    let (region, descriptor, _) = get(&mut process);
    let mapping = Mapping::map_readonly(descriptor.unwrap(), region.extent_len);
    assert!(region.has_descriptor && mapping.is_ok());
    let (again, descriptor, _) = get(&mut process);
    assert!(!again.has_descriptor && descriptor.is_none());
    assert_eq!((again.extent, again.offset, again.len), (region.extent, region.offset, LEN));
    process.send(&ToNode::Unmapped { extent: region.extent });
    let (again, descriptor, _) = get(&mut process);
    assert!(again.has_descriptor && descriptor.is_some());
    // Another process gets its own descriptor.
    assert!(get(&mut RawClient::attach(&node)).1.is_some());
    node.close(SOON);
}

#[test]
fn reads_are_pinned_until_release_or_end() {
    let (node, client) = with_object();
    let readers = || client.start_objects("", None, SOON).join().unwrap().0[0].readers;
    let idle = readers();
    let mut process = RawClient::attach(&node);
    let (_, _, instance) = get(&mut process);
    get(&mut process);
    assert_eq!(readers(), idle + 2);
    process.send(&ToNode::Notify { body: Request::Release { instance } });
    process.pause();
    assert_eq!(readers(), idle + 1);
    // A release has no reply, even if sent as a request.
    process.ask(Request::Release { instance });
    process.pause();
    assert_eq!(readers(), idle);
    get(&mut process);
    drop(process);
    eventually(|| readers() == idle);
    node.close(SOON);
}

#[test]
fn tell_accepts_only_requests_without_reply() {
    let (node, client) = with_object();
    let mut process = RawClient::attach(&node);
    process.send(&ToNode::Notify { body: Request::Delete { ids: vec![name("some/1")] } });
    process.send(&ToNode::Cancel { request: 99 });
    process.send(&ToNode::StopFollowing { request: 99 });
    process.send(&ToNode::Advanced { instance: Instance { node: node.id(), serial: 99 } });
    process.pause();
    assert_eq!(client.get(&name("some/1"), SOON).unwrap().as_bytes(), [7; LEN as usize]);
    node.close(SOON);
}

#[test]
fn incomplete_space_can_not_be_sealed() {
    let node = node();
    let mut process = RawClient::attach(&node);
    let asked = process.ask(Request::Create { id: None, meta: Meta::bytes(LEN), ttl_ns: None });
    let (reply, region, _) = process.answered(asked);
    let Ok(Reply::Created { instance, .. }) = reply else { panic!("{reply:?}") };
    process.send(&ToNode::Mapped { extent: region.unwrap().extent });
    let asked = process.ask(Request::Seal { instance });
    let refused = process.answered(asked).0.unwrap_err().to_string();
    assert!(refused.contains("before all bytes were written"), "{refused}");
    process.send(&ToNode::Notify { body: Request::Abort { instance } });
    process.pause();
    assert!(node.client().start_objects("", None, SOON).join().unwrap().0.is_empty());
    node.close(SOON);
}
