//! Tests of processes that exceed limits: each gets an error, and only that process.

use std::{
    thread,
    time::{Duration, Instant},
};

use hoplite_proto::{
    error::Error as CallError,
    id::ObjectId,
    limits::INLINE_BYTES_MAX,
    meta::{Meta, Op},
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
    serde_json::from_str(&node.client().start_describe(None).join().unwrap()).unwrap()
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

/// Ends a test: the node still serves others, refused no copy, and reports the limits that this
/// process exceeded.
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

/// Long names, of about 1000 bytes each.
fn long_names(count: u64) -> Vec<ObjectId> {
    (0..count).map(|number| name(&format!("{}/{number}", "x".repeat(1000)))).collect()
}

/// Reads the refusal of a request beyond the limit of bytes, before any other reply.
fn refused(process: &mut RawClient) -> u64 {
    match process.receive() {
        Some(FromNode::Reply { request, reply: Err(error), .. }) => {
            let said = error.to_string();
            let most = limits::REQUEST_BYTES_TOTAL_MAX;
            assert!(said.contains("bytes of open requests and unfinished reduces"), "{said}");
            assert!(said.contains(&format!("of at most {most}")), "{said}");
            request
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_of_open_requests_are_limited() {
    let node = node();
    let mut greedy = RawClient::attach(&node);
    let ids = long_names(100);
    let wait = || Request::Wait { ids: ids.clone(), count: 1 };
    let each = 100 * (1000 + limits::ID_COST_BYTES);
    for _ in 0..limits::REQUEST_BYTES_TOTAL_MAX / 2 / each - 1 {
        greedy.ask(wait());
    }
    greedy.pause();
    let last = (0..3).map(|_| greedy.ask(wait())).last().unwrap();
    assert!(refused(&mut greedy) + 1 >= last);
    end(&node, &["REQUEST_BYTES_TOTAL_MAX"]);
}

#[test]
fn inputs_of_unfinished_reduces_are_limited_until_they_end() {
    let node = node();
    let mut greedy = RawClient::attach(&node);
    let inputs = |first: u64| (first..first + 100).map(|number| name(&format!("a/{number}")));
    let reduce = |first, count, id: Option<&str>| {
        let (inputs, op, id) = (inputs(first).collect(), Op::Sum, id.map(name));
        Request::Reduce { inputs, op, count, id, ttl_ns: None }
    };
    let most = limits::REQUEST_BYTES_TOTAL_MAX / 2 / (101 * limits::ID_COST_BYTES);
    let mut started = Vec::new();
    for _ in 0..most {
        let asked = greedy.ask(reduce(0, 1, None));
        let (Ok(Reply::Reducing { id }), _) = greedy.answer(asked) else { panic!("refused") };
        started.push(id);
    }
    let one_more = |process: &mut RawClient| {
        let asked = process.ask(reduce(0, 1, None));
        process.answer(asked).0
    };
    assert!(one_more(&mut greedy).is_err());
    // Another connection of the process shares the limit.
    assert!(one_more(&mut RawClient::attach(&node)).is_err());
    // A deleted reduce has ended, and one that could not begin takes nothing.
    let asked = greedy.ask(Request::Delete { ids: vec![started[0].clone()] });
    assert!(greedy.answer(asked).0.is_ok());
    let client = node.client();
    client.put(Some(name("taken")), crate::Value::bytes(&[1]), SOON).unwrap();
    for _ in 0..3 {
        let asked = greedy.ask(reduce(0, 1, Some("taken")));
        assert!(matches!(greedy.answer(asked).0, Err(CallError::NameTaken { .. })));
        let asked = greedy.ask(reduce(0, 200, None));
        assert!(matches!(greedy.answer(asked).0, Err(CallError::InvalidArgument(_))));
    }
    assert!(one_more(&mut greedy).is_ok() && one_more(&mut greedy).is_err());
    // The others end with their client.
    drop(greedy);
    let mut next = RawClient::attach(&node);
    eventually(|| status(&node)["reduces"] == 0);
    for _ in 0..most {
        assert!(one_more(&mut next).is_ok());
    }
    end(&node, &["REQUEST_BYTES_TOTAL_MAX"]);
}

/// Whether a process may reserve a name, or the error.
fn reserve(process: &mut RawClient, text: &str) -> Result<Reply, CallError> {
    let asked = process.ask(Request::Reserve { name: Some(text.parse().unwrap()) });
    process.answer(asked).0
}

#[test]
fn open_reservations_slots_and_leases_are_limited_until_they_end() {
    let node = node();
    let mut greedy = RawClient::attach(&node);
    let most = limits::REQUEST_BYTES_TOTAL_MAX / 2 / limits::ID_COST_BYTES;
    let long = "x".repeat(1000);
    let reserved =
        (0..).take_while(|number| reserve(&mut greedy, &format!("{long}/{number}")).is_ok());
    let count = reserved.count() as u64;
    assert!(most / 3 < count && count < most * 2 / 3, "{count} of names of 1000 bytes");
    let mut short = (0..3).map(|number| reserve(&mut greedy, &format!("short/{number}")));
    let said = short.find_map(Result::err).unwrap().to_string();
    assert!(said.contains("reservations") && said.contains("(REQUEST_BYTES_TOTAL_MAX)"), "{said}");
    let begin = |process: &mut RawClient, body: Request| {
        let asked = process.ask(body);
        process.answer(asked).0
    };
    let lease = |number: u64| Request::AcquireLease { id: name(&format!("lease/{number}")) };
    // Another connection of the process shares the limit, for all kinds.
    let mut other = RawClient::attach(&node);
    assert!(begin(&mut other, Request::Slots { count: 3 }).is_err());
    assert!(begin(&mut other, Request::AcquireLease { id: name(&long) }).is_err());
    assert!(begin(&mut other, Request::Reserve { name: None }).is_err());
    // What was put makes room for as much.
    for number in 0..10 {
        let id = Some(name(&format!("{long}/{number}")));
        let (meta, bytes) = (Meta::bytes(1), vec![1].into());
        assert!(begin(&mut greedy, Request::Put { id, meta, bytes, ttl_ns: None }).is_ok());
    }
    assert!(begin(&mut other, Request::Slots { count: 19 }).is_ok());
    assert!(begin(&mut other, Request::Slots { count: 19 }).is_err());
    // All end with their clients.
    drop((greedy, other));
    let mut next = RawClient::attach(&node);
    let slots = Request::Slots { count: u32::try_from(most / 2).unwrap() };
    let until = Instant::now() + SOON.unwrap();
    let ids = loop {
        if let Ok(Reply::Slots { ids }) = begin(&mut next, slots.clone()) {
            break ids;
        }
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    };
    let leased = (0..).take_while(|number| begin(&mut next, lease(*number)).is_ok()).count() as u64;
    assert!(most / 3 < leased && leased < most * 2 / 3, "{leased} leases");
    assert!(begin(&mut next, Request::Delete { ids: ids[..50].to_vec() }).is_ok());
    assert!(begin(&mut next, Request::Slots { count: 50 }).is_ok());
    end(&node, &["REQUEST_BYTES_TOTAL_MAX"]);
}

#[test]
fn reservations_that_are_put_do_not_accumulate() {
    let node = node();
    let mut trainer = RawClient::attach(&node);
    let most = limits::REQUEST_BYTES_TOTAL_MAX / limits::ID_COST_BYTES;
    let put = |process: &mut RawClient, id: ObjectId| {
        let (meta, bytes, id) = (Meta::bytes(1), vec![1].into(), Some(id));
        let asked = process.ask(Request::Put { id, meta, bytes, ttl_ns: None });
        process.answer(asked).0.unwrap();
    };
    for step in 0..most {
        let text = format!("step/{step}");
        reserve(&mut trainer, &text).unwrap();
        reserve(&mut trainer, &text).unwrap();
        put(&mut trainer, name(&text));
        for body in [Request::Reserve { name: None }, Request::Slots { count: 2 }] {
            let asked = trainer.ask(body);
            match trainer.answer(asked).0 {
                Ok(Reply::Reserved { id }) => put(&mut trainer, id),
                Ok(Reply::Slots { ids }) => ids.into_iter().for_each(|id| put(&mut trainer, id)),
                other => panic!("{other:?}"),
            }
        }
        let id = name("lease/1");
        for body in [Request::AcquireLease { id: id.clone() }, Request::ReleaseLease { id }] {
            let asked = trainer.ask(body);
            assert_eq!(trainer.answer(asked).0, Ok(Reply::Done));
        }
    }
    end(&node, &[]);
}

#[test]
fn open_requests_of_all_connections_are_limited_with_a_share_each() {
    let node = node();
    let ids = long_names(100);
    let wait = |count: usize| Request::Wait { ids: ids[..count].to_vec(), count: 1 };
    let mut greedy: Vec<RawClient> = (0..2).map(|_| RawClient::attach(&node)).collect();
    // Cancelled at once, so that only a refused request gets this error.
    let is_refused = |process: &mut RawClient, count| {
        let asked = process.ask(wait(count));
        process.send(&ToNode::Cancel { request: asked });
        let refusal = "bytes of open requests and unfinished reduces";
        process.answer(asked).0.is_err_and(|error| error.to_string().contains(refusal))
    };
    while !is_refused(&mut greedy[0], 100) {
        greedy[0].ask(wait(100));
        greedy[1].ask(wait(100));
    }
    let mut modest = RawClient::attach(&node);
    assert!(is_refused(&mut modest, 100));
    let each = 2 * (limits::REQUEST_COST_BYTES + limits::ID_COST_BYTES);
    for _ in 0..limits::REQUEST_SHARE_BYTES / each {
        modest.ask(never());
    }
    modest.pause();
    // The requests of an ended process free their bytes.
    greedy.clear();
    let until = Instant::now() + SOON.unwrap();
    while is_refused(&mut modest, 50) {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(5));
    }
    end(&node, &["REQUEST_BYTES_TOTAL_MAX"]);
}

#[test]
fn calls_of_latest_that_wait_are_limited() {
    let node = node();
    let client = node.client();
    client.put(Some(name("there/3")), crate::Value::bytes(&[1]), SOON).unwrap();
    let mut greedy = RawClient::attach(&node);
    let latest = |prefix: &str| Request::Latest { prefix: prefix.into(), after: None };
    for _ in 0..limits::LATEST_MAX / 2 {
        greedy.ask(latest("never/"));
    }
    let asked = greedy.ask(latest("never/"));
    let said = greedy.answer(asked).0.unwrap_err().to_string();
    assert!(said.contains("calls of latest that wait") && said.contains("(LATEST_MAX)"), "{said}");
    let asked = greedy.ask(latest("there/"));
    assert_eq!(greedy.answer(asked).0, Ok(Reply::Latest { name: "there/3".parse().unwrap() }));
    greedy.send(&ToNode::Cancel { request: 1 });
    assert!(greedy.answer(1).0.is_err());
    greedy.ask(latest("never/"));
    greedy.pause();
    end(&node, &["LATEST_MAX"]);
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
fn unread_replies_of_all_connections_are_limited_with_a_share_each() {
    let node = node();
    // Too small to be shared with the store.
    let id = node.client().put(None, crate::Value::bytes(&[1; 1000]), SOON).unwrap();
    let gets = limits::REQUESTS_MAX / 2;
    let ask = |process: &mut RawClient| {
        for _ in 0..gets {
            process.ask(Request::Get { id: id.clone() });
        }
    };
    // Its replies until the last one, or until the node has cut it. Also returns the reason, if it
    // came in time.
    let read = |process: &mut RawClient| {
        for count in 0..gets {
            match process.try_hear() {
                Ok(Some(FromNode::Reply { reply: Ok(_), .. })) => {}
                Ok(Some(FromNode::Refused { said })) => return (count, Some(said)),
                Ok(None) | Err(_) => return (count, None),
                other => panic!("{other:?}"),
            }
        }
        (gets, None)
    };
    // Each leaves less than the limit of one process unread.
    let most = 2 * limits::UNREAD_BYTES_TOTAL_MAX / 1000 / gets as u64;
    let mut deaf: Vec<RawClient> = (0..most).map(|_| RawClient::attach(&node)).collect();
    deaf.iter_mut().for_each(ask);
    eventually(|| !limits_met(&node).is_empty());
    let results: Vec<_> = deaf.iter_mut().map(read).collect();
    let (all, cut): (Vec<_>, Vec<_>) = results.into_iter().partition(|(count, _)| *count == gets);
    assert!(!all.is_empty() && !cut.is_empty(), "{} read all, {} were cut", all.len(), cut.len());
    let reasons = cut.iter().filter_map(|(_, said)| said.as_ref());
    for said in reasons {
        assert!(said.contains("(UNREAD_BYTES_TOTAL_MAX)"), "{said}");
    }
    // What was read is free again.
    drop(deaf);
    let mut late = RawClient::attach(&node);
    for _ in 0..most {
        ask(&mut late);
        assert_eq!(read(&mut late), (gets, None));
    }
    end(&node, &["UNREAD_BYTES_TOTAL_MAX"]);
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
