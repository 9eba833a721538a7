//! Names that were created and deleted leave no memory behind, whatever their number.

use hoplite_proto::{
    id::{ClientId, NodeId, ObjectId, RequestId},
    limits::REMEMBERED_MAX,
    members::Member,
    meta::Meta,
    node::{Action, Config, Event, Node},
    reduce::cost::Link,
    request::Request,
    time::Instant,
};

/// Many times what an owner remembers, in a debug build too.
const NAMES: u64 = if cfg!(debug_assertions) { 60_000 } else { 600_000 };

#[test]
fn very_many_names_made_and_deleted_leave_nothing() {
    let address = ([127, 0, 0, 1], 1).into();
    let me = Member { id: NodeId(1), address, place: None };
    let link = Link { latency_ns: 50_000, bytes_per_second: 1 << 30 };
    let mut node = Node::new(me, Config::new(1 << 20, link));
    let (mut actions, mut answers) = (Vec::new(), 0);
    let id = |number: u64| -> ObjectId { format!("of-{}/{number}", number % 7).parse().unwrap() };
    let client = ClientId(1);
    for number in 0..NAMES {
        let name = id(number);
        let put = Request::Put {
            id: Some(name.clone()),
            meta: Meta::bytes(1),
            bytes: vec![7].into(),
            ttl_ns: None,
        };
        for (step, body) in [put, Request::Delete { ids: vec![name] }].into_iter().enumerate() {
            let request = RequestId(2 * number + step as u64 + 1);
            let now = Instant(number * 100_000);
            node.handle(
                now,
                Event::Request { client, request, body, deadline: None },
                &mut actions,
            );
            let is_answer = |action: &Action| matches!(action, Action::Reply { reply: Ok(_), .. });
            answers += actions.drain(..).filter(is_answer).count();
        }
    }
    assert_eq!(answers as u64, 2 * NAMES);
    let remembered = (0..NAMES).filter(|number| node.directory().why_gone(&id(*number)).is_some());
    let remembered = remembered.count();
    assert!((1..=REMEMBERED_MAX).contains(&remembered), "{remembered} tombstones remain");
    assert!(node.directory().is_empty());
    assert!(node.table().is_empty() && node.unfinished().next().is_none());
}
