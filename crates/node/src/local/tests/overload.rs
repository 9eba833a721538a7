//! Tests of processes that exceed limits: each gets an error, and only that process.

use std::{
    thread,
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::ObjectId,
    limits::INLINE_BYTES_MAX,
    meta::Meta,
    request::{Reply, Request},
};

use crate::{
    local::{
        client::Client,
        limits,
        protocol::{FromNode, LOCAL_VERSION, ToNode},
        tests::hostile::{LEN, RawClient, SOON, eventually, name, node},
    },
    node::Node,
};

fn status(node: &Node) -> serde_json::Value {
    serde_json::from_str(&node.client().describe().unwrap()).unwrap()
}

/// A counter in a node's status.
fn counter(node: &Node, counter: &str) -> u64 {
    status(node)["counters"][counter].as_u64().unwrap()
}

/// The limits that this process has exceeded.
fn limits_met(node: &Node) -> Vec<String> {
    let status = status(node);
    let met = status["limits"].as_array().unwrap().iter().map(|row| {
        assert_eq!(row["process"].as_u64(), Some(u64::from(std::process::id())));
        assert!(row["count"].as_u64().unwrap() > 0);
        row["limit"].as_str().unwrap().to_string()
    });
    met.collect()
}

fn never() -> Request {
    Request::Get { id: name("never/1") }
}

/// Ends a test: the node still serves others, refused no copy, and reports the limits that this process exceeded.
fn end(node: &Node, met: &[&str]) {
    RawClient::attach(node).pause();
    assert_eq!(counter(node, "refusals"), 0);
    assert_eq!(limits_met(node), met);
    node.close(SOON);
}

#[test]
fn process_without_greeting_is_disconnected() {
    let node = node();
    let said = RawClient::silent(&node).refused();
    assert!(said.contains("sent no greeting for"), "{said}");
    // A partial greeting is no greeting.
    let mut half = RawClient::silent(&node);
    half.say_half(&ToNode::Hello { version: LOCAL_VERSION });
    half.refused();
    eventually(|| counter(&node, "strangers") == 2);
    end(&node, &["GREETING_MAX"]);
}

#[test]
fn open_requests_are_limited() {
    let node = node();
    let mut greedy = RawClient::attach(&node);
    for _ in 0..limits::REQUESTS_MAX {
        greedy.ask(never());
    }
    let one_more = greedy.ask(never());
    let (reply, _) = greedy.answer(one_more);
    let said = reply.unwrap_err().to_string();
    assert!(said.contains(&format!("has {} open requests", limits::REQUESTS_MAX)), "{said}");
    // Its earlier requests are still open, and cancelling one allows another.
    greedy.send(&ToNode::Cancel { request: 1 });
    assert!(greedy.answer(1).0.is_err());
    greedy.pause();
    end(&node, &["REQUESTS_MAX"]);
}

#[test]
fn bytes_of_open_requests_are_limited() {
    let node = node();
    let mut greedy = RawClient::attach(&node);
    let ids: Vec<ObjectId> =
        (0..1000).map(|number| name(&format!("{}/{number}", "x".repeat(1000)))).collect();
    let frames = limits::REQUEST_BYTES_MAX / (1000 * 1000);
    for _ in 0..frames - 1 {
        greedy.ask(Request::Wait { ids: ids.clone(), count: 1 });
    }
    greedy.pause();
    greedy.ask(Request::Wait { ids: ids.clone(), count: 1 });
    let one_more = greedy.ask(Request::Wait { ids, count: 1 });
    let refused = match greedy.receive() {
        Some(FromNode::Reply { request, reply: Err(error), .. }) => (request, error.to_string()),
        other => panic!("{other:?}"),
    };
    assert!(refused.0 + 1 >= one_more && refused.1.contains("wait for some calls to finish"));
    end(&node, &["REQUEST_BYTES_MAX"]);
}

#[test]
fn open_requests_of_all_processes_are_limited_with_a_share_each() {
    let node = node();
    let ids: Vec<ObjectId> =
        (0..1000).map(|number| name(&format!("{}/{number}", "x".repeat(1000)))).collect();
    let wait = |count: usize| Request::Wait { ids: ids[..count].to_vec(), count: 1 };
    let mut greedy: Vec<RawClient> = (0..2).map(|_| RawClient::attach(&node)).collect();
    for number in 0..limits::REQUEST_BYTES_TOTAL_MAX / (1000 * 1010) {
        greedy[number % 2].ask(wait(1000));
    }
    greedy.iter_mut().for_each(RawClient::pause);
    // Cancelled at once, so that only a refused request gets this error.
    let is_refused = |process: &mut RawClient, count| {
        let asked = process.ask(wait(count));
        process.send(&ToNode::Cancel { request: asked });
        let refusal = "the open requests of all processes of this host";
        process.answer(asked).0.is_err_and(|error| error.to_string().contains(refusal))
    };
    assert!(is_refused(&mut greedy[0], 1000));
    while !is_refused(&mut greedy[0], 10) {
        greedy[0].ask(wait(10));
    }
    let mut modest = RawClient::attach(&node);
    assert!(is_refused(&mut modest, 100));
    for _ in 0..limits::REQUEST_SHARE_BYTES / (2 * limits::REQUEST_COST_BYTES) {
        modest.ask(never());
    }
    modest.pause();
    // The requests of an ended process free their bytes.
    greedy.pop();
    let until = Instant::now() + SOON.unwrap();
    while is_refused(&mut modest, 100) {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    end(&node, &["REQUEST_BYTES_TOTAL_MAX"]);
}

#[test]
fn number_of_an_open_request_can_not_be_reused() {
    let node = node();
    let mut broken = RawClient::attach(&node);
    for _ in 0..2 {
        broken.send(&ToNode::Request { request: 7, body: never(), timeout_ns: None });
    }
    assert!(broken.refused().contains("the number of open request 7"));
    end(&node, &[]);
}

#[test]
fn unread_replies_end_the_attachment() {
    let node = node();
    let value = vec![1; INLINE_BYTES_MAX as usize];
    let client = node.client();
    let id = client.put(None, crate::Value::bytes(&value), SOON).unwrap();
    let mut deaf = RawClient::attach(&node);
    let gets = 2 * limits::UNREAD_BYTES_MAX as u64 / INLINE_BYTES_MAX;
    for _ in 0..gets {
        deaf.ask(Request::Get { id: id.clone() });
    }
    eventually(|| counter(&node, "strangers") == 1);
    let mut read = 0;
    while let Ok(Some(FromNode::Reply { .. })) = deaf.try_hear() {
        read += 1;
    }
    assert!(read < gets, "all {read} were sent");
    end(&node, &["UNREAD_BYTES_MAX"]);
}

#[test]
fn followed_objects_are_limited() {
    let node = node();
    let (mut writer, mut reader) = (RawClient::attach(&node), RawClient::attach(&node));
    let ids: Vec<ObjectId> =
        (0..=limits::FOLLOWED_MAX).map(|number| name(&format!("grows/{number}"))).collect();
    for id in &ids {
        let asked = writer.ask(Request::Create {
            id: Some(id.clone()),
            meta: Meta::bytes(LEN),
            ttl_ns: None,
        });
        let (_, memory) = writer.answer(asked);
        if let Some((place, _)) = memory {
            writer.send(&ToNode::Mapped { extent: place.extent });
        }
    }
    writer.pause();
    let mut follow = |id: &ObjectId| {
        let asked = reader.ask(Request::Follow { id: id.clone() });
        (asked, matches!(reader.answer(asked).0.unwrap(), Reply::Growing { .. }))
    };
    let followed: Vec<(u64, bool)> = ids.iter().map(&mut follow).collect();
    assert!(followed[..limits::FOLLOWED_MAX].iter().all(|(_, is_growing)| *is_growing));
    let last = ids.last().unwrap();
    assert!(!followed[limits::FOLLOWED_MAX].1 && !follow(last).1);
    reader.send(&ToNode::StopFollowing { request: followed[0].0 });
    let asked = reader.ask(Request::Follow { id: last.clone() });
    assert!(matches!(reader.answer(asked).0, Ok(Reply::Growing { .. })));
    end(&node, &["FOLLOWED_MAX"]);
}

#[test]
fn forks_with_views_are_limited() {
    let node = node();
    let mut parent = RawClient::attach(&node);
    let mut children = Vec::new();
    for _ in 0..limits::FORK_PINS_MAX {
        children.push(parent.hold());
    }
    parent.pause();
    parent.send(&ToNode::PinForFork);
    assert!(parent.refused().contains("forks"));
    end(&node, &["FORK_PINS_MAX"]);
}

#[test]
fn process_gets_at_most_half_of_the_places() {
    let node = node();
    let most = limits::attached_max() / 2;
    let mut attached: Vec<RawClient> = (0..most).map(|_| RawClient::attach(&node)).collect();
    let refused = Client::attach(node.socket().unwrap(), SOON).unwrap_err().to_string();
    assert!(refused.contains(&format!("has {most} of at most")), "{refused}");
    attached[0].pause();
    // A process that gives up before the node refuses it gets the reason, too.
    let less = limits::ATTACH_WAIT_MAX / 2;
    let refused = Client::attach(node.socket().unwrap(), Some(less)).unwrap_err().to_string();
    assert!(refused.contains(&format!("has {most} of at most")), "{refused}");
    // The node has not detected yet that the others have left: a new process waits for that.
    attached.pop();
    drop(Client::attach(node.socket().unwrap(), SOON).unwrap());
    drop(attached);
    drop(Client::attach(node.socket().unwrap(), SOON).unwrap());
    assert!(counter(&node, "strangers") >= 1);
    assert_eq!(limits_met(&node), ["ATTACHED_MAX"]);
    node.close(SOON);
}
