//! Names that a client reserves before their objects exist.

use super::*;
use crate::limits::ORPHAN_GRACE_NS;

fn reserve(name: &str) -> Request {
    Request::Reserve { name: Some(name.parse().unwrap()) }
}

fn reserved(name: &str) -> Result<Reply, Error> {
    Ok(Reply::Reserved { id: named(name) })
}

fn put(name: &str) -> Request {
    Request::Put { id: Some(named(name)), meta: array(8), bytes: vec![7; 8].into(), ttl_ns: None }
}

fn create(name: &str) -> Request {
    Request::Create { id: Some(named(name)), meta: array(LARGE), ttl_ns: None }
}

fn reduce(inputs: &[&str], count: u32, name: Option<&str>) -> Request {
    let inputs = inputs.iter().map(|name| named(name)).collect();
    Request::Reduce { inputs, op: Op::Sum, count, id: name.map(named), ttl_ns: None }
}

fn delete(name: &str) -> Request {
    Request::Delete { ids: vec![named(name)] }
}

fn taken(name: &str, holder: u64) -> Result<Reply, Error> {
    Err(Error::NameTaken { id: named(name), holder: NodeId(holder) })
}

/// The text of the loss that a reader got.
fn lost(reply: &Result<Reply, Error>) -> String {
    match reply {
        Err(error @ Error::ObjectLost { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

impl Cluster {
    fn ends(&mut self, node: u64, process: u32) {
        self.tell(node, Event::ClientDisconnected { client: CLIENT, process: Some(process) });
    }

    /// Another client of a node than the one of all other requests.
    fn asks_of_another(&mut self, node: u64, body: Request) -> Result<Reply, Error> {
        let (client, request) = (ClientId(99), RequestId(1 << 40 | self.replies.len() as u64));
        self.tell(node, Event::Request { client, request, body, deadline: None });
        self.reply(request).clone()
    }
}

/// Which requests hold nothing more, in the order of their ends.
fn ended(actions: &[Action]) -> Vec<RequestId> {
    let ended = |action: &Action| match action {
        Action::WorkEnded { request } => Some(*request),
        _ => None,
    };
    actions.iter().filter_map(ended).collect()
}

#[test]
fn unfinished_reduces_end_with_the_client_that_started_them() {
    for name in [None, Some("sum")] {
        let mut cluster = Cluster::new(3);
        let start = |cluster: &mut Cluster, inputs: &[&str]| {
            let request = cluster.ask(1, reduce(inputs, 1, name));
            match cluster.reply(request) {
                Ok(Reply::Reducing { id }) => id.clone(),
                other => panic!("{other:?}"),
            }
        };
        let sum = start(&mut cluster, &["a/1", "a/2"]);
        let get = cluster.ask(2, Request::Get { id: sum.clone() });
        let other = cluster.asks_of_another(1, reduce(&["a/1", "a/3"], 1, Some("of another")));
        cluster.ends(1, 4711);
        let said = lost(cluster.reply(get));
        let why = "process 4711 on node 0000000000000001 (127.0.0.1:1) started its reduce and ended or detached \
                   before the result was complete";
        assert!(said.contains(why), "{said}");
        // The reduce of another client goes on, and the name is free again.
        cluster.put_small(2, Some("a/1"));
        let Ok(Reply::Reducing { id }) = other else { panic!("{other:?}") };
        let get = cluster.ask(3, Request::Get { id });
        assert!(matches!(cluster.reply(get), Ok(Reply::Got { .. })));
        if let Some(name) = name {
            cluster.put_small(3, Some(name));
        }
        cluster.ends(1, 4711);
        cluster.assert_at_rest();
    }
}

#[test]
fn every_end_of_a_reduce_is_reported_once() {
    let mut actions = Vec::new();
    let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
    let mut node = Node::new(member(1), Config::new(1 << 30, link));
    let mut ended_by = |event: Event| {
        actions.clear();
        node.handle(Instant(1), event, &mut actions);
        ended(&actions)
    };
    let request = |number: u64, body: Request| {
        let (client, request) = (CLIENT, RequestId(number));
        Event::Request { client, request, body, deadline: None }
    };
    assert_eq!(ended_by(request(1, reduce(&["a/1"], 1, None))), []);
    assert_eq!(ended_by(request(2, reduce(&["a/1", "a/2"], 2, Some("sum")))), []);
    assert_eq!(ended_by(request(3, reduce(&["a/2"], 1, None))), []);
    assert_eq!(ended_by(request(4, delete("sum"))), [RequestId(2)]);
    let gone = Event::ClientDisconnected { client: CLIENT, process: None };
    assert_eq!(ended_by(gone.clone()), [RequestId(1), RequestId(3)]);
    assert_eq!(ended_by(gone), []);
}

#[test]
fn every_end_of_a_reservation_or_slot_is_reported_once() {
    let mut actions = Vec::new();
    let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
    let mut node = Node::new(member(1), Config::new(1 << 30, link));
    let mut number = 0;
    let mut minted = Vec::new();
    let mut ended_by = |body: Option<Request>| {
        actions.clear();
        number += 1;
        let (client, request) = (CLIENT, RequestId(number));
        let event = match body {
            Some(body) => Event::Request { client, request, body, deadline: None },
            None => Event::ClientDisconnected { client, process: None },
        };
        node.handle(Instant(1), event, &mut actions);
        for action in &actions {
            match action {
                Action::Reply { reply: Ok(Reply::Reserved { id }), .. } => {
                    minted = vec![id.clone()]
                }
                Action::Reply { reply: Ok(Reply::Slots { ids }), .. } => minted.clone_from(ids),
                _ => {}
            }
        }
        (ended(&actions).iter().map(|request| request.0).collect::<Vec<u64>>(), minted.clone())
    };
    let with_id = |id: &ObjectId| Request::Put {
        id: Some(id.clone()),
        meta: array(8),
        bytes: vec![7; 8].into(),
        ttl_ns: None,
    };
    // Names: put, reduced, deleted, and reserved twice.
    assert_eq!(ended_by(Some(reserve("a/1"))).0, []);
    assert_eq!(ended_by(Some(put("a/1"))).0, [1]);
    assert_eq!(ended_by(Some(reserve("a/2"))).0, []);
    assert_eq!(ended_by(Some(reduce(&["b/1"], 1, Some("a/2")))).0, [3]);
    assert_eq!(ended_by(Some(reserve("a/3"))).0, []);
    assert_eq!(ended_by(Some(reserve("a/3"))).0, [6]);
    assert_eq!(ended_by(Some(delete("a/3"))).0, [5]);
    // Ids: put, reduced, deleted.
    let reserve_id = || Some(Request::Reserve { name: None });
    let (none, ids) = ended_by(reserve_id());
    assert_eq!((none, ended_by(Some(with_id(&ids[0]))).0), (vec![], vec![8]));
    let (none, ids) = ended_by(reserve_id());
    let sum = Request::Reduce {
        inputs: vec![named("b/2")],
        op: Op::Sum,
        count: 1,
        id: Some(ids[0].clone()),
        ttl_ns: None,
    };
    assert_eq!((none, ended_by(Some(sum)).0), (vec![], vec![10]));
    let (none, ids) = ended_by(reserve_id());
    assert_eq!((none, ended_by(Some(Request::Delete { ids })).0), (vec![], vec![12]));
    // Slots, one by one.
    let (none, ids) = ended_by(Some(Request::Slots { count: 3 }));
    assert_eq!((none, ended_by(Some(with_id(&ids[0]))).0), (vec![], vec![14]));
    assert_eq!(ended_by(Some(Request::Delete { ids: vec![ids[1].clone()] })).0, [14]);
    // A failed put leaves the reservation.
    assert_eq!(ended_by(reserve_id()).0, []);
    let (_, ids) = ended_by(Some(reserve("a/4")));
    assert_eq!(ids, [named("a/4")]);
    assert_eq!(ended_by(Some(create("a/4"))).0, []);
    // All others end with their client.
    let mut last = ended_by(None).0;
    last.sort_unstable();
    assert_eq!((last, ended_by(None).0), (vec![4, 11, 14, 17, 18], vec![]));
}

/// The primary and the backup owner of a name that node 1 reserves.
const OWNERS: [(u64, u64); 3] = [(1, 2), (2, 1), (2, 3)];

#[test]
fn readers_of_a_reserved_name_get_its_object_whenever_they_ask() {
    for (first, second) in OWNERS {
        for is_large in [false, true] {
            let mut cluster = Cluster::new(3);
            let name = cluster.owned_name(first, second, "grad");
            let before = [1, 2, 3].map(|node| cluster.get(node, &named(&name)));
            assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
            assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name), "it may ask again");
            let after = [1, 2, 3].map(|node| cluster.get(node, &named(&name)));
            let gets: Vec<RequestId> = before.into_iter().chain(after).collect();
            assert!(gets.iter().all(|get| !cluster.replies.contains_key(get)));
            if is_large {
                let Ok(Reply::Created { instance, .. }) = cluster.asks(1, create(&name)) else {
                    panic!("{:?}", cluster.replies)
                };
                cluster.ask(1, Request::Seal { instance });
            } else {
                assert_eq!(cluster.asks(1, put(&name)), Ok(Reply::Put { id: named(&name) }));
            }
            // The end of its client does not end the object.
            cluster.ask(1, Request::CancelReservations);
            for (get, node) in gets.into_iter().zip([1, 2, 3].into_iter().cycle()) {
                let instance = got(cluster.reply(get));
                cluster.ask(node, Request::Release { instance });
            }
            assert_eq!(cluster.asks(2, reserve(&name)), taken(&name, 1), "now by the object");
            assert_eq!(cluster.asks(3, delete(&name)), Ok(Reply::Done));
            assert_eq!(cluster.asks(2, reserve(&name)), reserved(&name), "it is free");
            assert_eq!(cluster.asks(2, delete(&name)), Ok(Reply::Done));
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn a_reserved_name_is_refused_to_all_other_clients() {
    for (first, second) in OWNERS {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, second, "grad");
        assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
        let others = || [reserve(&name), put(&name), create(&name), reduce(&["x"], 1, Some(&name))];
        for ask in others() {
            assert_eq!(cluster.asks(2, ask.clone()), taken(&name, 1), "{ask:?}");
            assert_eq!(cluster.asks(3, ask.clone()), taken(&name, 1), "{ask:?}");
            assert_eq!(cluster.asks_of_another(1, ask.clone()), taken(&name, 1), "{ask:?}");
        }
        assert_eq!(cluster.asks(1, put(&name)), Ok(Reply::Put { id: named(&name) }));
        assert_eq!(cluster.asks(1, put(&name)), taken(&name, 1), "a second time");
        cluster.assert_at_rest();
    }
}

#[test]
fn a_name_that_lives_can_not_be_reserved() {
    let mut cluster = Cluster::new(3);
    cluster.put_small(2, Some("grad"));
    for node in 1..=3 {
        assert_eq!(cluster.asks(node, reserve("grad")), taken("grad", 2), "at {node}");
    }
    assert_eq!(cluster.asks(1, reduce(&["later"], 1, Some("sum"))), {
        Ok(Reply::Reducing { id: named("sum") })
    });
    assert_eq!(cluster.asks(3, reserve("sum")), taken("sum", 1), "by a reduce");
    cluster.put_small(1, Some("later"));
    let get = cluster.get(1, &named("sum"));
    got(cluster.reply(get));
    cluster.assert_at_rest();
}

/// Reserves a name at node 1, whose client or node then ends: readers at the `others` get an error
/// that has all `words`, and the name is free.
fn assert_readers_learn(end: impl Fn(&mut Cluster), others: &[u64], words: &[&str]) {
    for (first, second) in OWNERS {
        for is_filling in [false, true] {
            let mut cluster = Cluster::new(3);
            let name = cluster.owned_name(first, second, "grad");
            let before = cluster.get(2, &named(&name));
            assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
            let after = cluster.get(3, &named(&name));
            if is_filling {
                assert!(cluster.asks(1, create(&name)).is_ok());
            }
            end(&mut cluster);
            let late: Vec<RequestId> =
                others.iter().map(|node| cluster.get(*node, &named(&name))).collect();
            for request in [before, after].into_iter().chain(late) {
                let said = lost(cluster.reply(request));
                assert!(words.iter().all(|word| said.contains(word)), "{said}");
            }
            assert_eq!(cluster.asks(2, reserve(&name)), reserved(&name), "the name is free");
            let get = cluster.get(3, &named(&name));
            assert!(!cluster.replies.contains_key(&get), "it waits again");
            assert_eq!(cluster.asks(2, put(&name)), Ok(Reply::Put { id: named(&name) }));
            got(cluster.reply(get));
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn readers_learn_at_once_that_the_client_of_a_name_ended() {
    let words = ["0001 (127.0.0.1:1)", "process 4242"];
    assert_readers_learn(|cluster| cluster.ends(1, 4242), &[1, 2, 3], &words);
}

#[test]
fn readers_learn_that_the_node_of_a_name_is_gone() {
    let end = |cluster: &mut Cluster| {
        cluster.kill(1);
        cluster.wait(ORPHAN_GRACE_NS);
    };
    assert_readers_learn(end, &[2, 3], &["0001 (127.0.0.1:1)", "left or failed"]);
}

#[test]
fn a_client_that_closes_gives_its_names_up() {
    let mut cluster = Cluster::new(3);
    assert_eq!(cluster.asks(1, reserve("grad")), reserved("grad"));
    let get = cluster.get(2, &named("grad"));
    cluster.ask(1, Request::CancelReservations);
    let said = lost(cluster.reply(get));
    assert!(said.contains("0001 (127.0.0.1:1)") && said.contains("closed"), "{said}");
    assert_eq!(cluster.asks(3, put("grad")), Ok(Reply::Put { id: named("grad") }));
    cluster.assert_at_rest();
}

#[test]
fn a_name_can_be_taken_over_before_its_loss_is_reported() {
    for ask in [reserve, put, delete] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(2, 3, "grad");
        assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
        let get = cluster.get(3, &named(&name));
        cluster.kill(1);
        assert!(cluster.asks(2, ask(&name)).is_ok());
        cluster.wait(2 * ORPHAN_GRACE_NS);
        match cluster.replies.get(&get).cloned() {
            // Reserved by another: its readers wait for that.
            None => drop(cluster.asks(2, put(&name)).unwrap()),
            Some(Ok(_)) | Some(Err(Error::ObjectDeleted { .. })) => {}
            other => panic!("{other:?}"),
        }
        cluster.assert_at_rest();
    }
}

#[test]
fn a_reduce_of_the_first_goes_on_without_a_name_whose_producer_died() {
    for is_killed in [false, true] {
        let mut cluster = Cluster::new(4);
        let names: Vec<String> =
            (1..=3).map(|at| cluster.owned_name(4, 2, &format!("grad{at}"))).collect();
        for (node, name) in (1..=3).zip(&names) {
            assert_eq!(cluster.asks(node, reserve(name)), reserved(name));
        }
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(cluster.asks(4, reduce(&all, 2, Some("first"))).is_ok());
        assert!(cluster.asks(4, reduce(&all, 3, Some("all"))).is_ok());
        let [first, whole] = ["first", "all"].map(|name| cluster.get(4, &named(name)));
        assert!(cluster.asks(2, put(&names[1])).is_ok());
        if is_killed {
            cluster.kill(1);
            cluster.wait(ORPHAN_GRACE_NS);
        } else {
            cluster.ends(1, 4242);
        }
        let listed = cluster.asks(4, Request::LostInputs { id: named("first") });
        assert_eq!(listed, Ok(Reply::Inputs { ids: vec![named(&names[0])] }));
        match cluster.reply(whole) {
            Err(Error::ObjectLost { id, .. }) => assert_eq!(id, &named(&names[0])),
            other => panic!("{other:?}"),
        }
        assert!(cluster.asks(3, put(&names[2])).is_ok());
        got(cluster.reply(first));
        cluster.assert_at_rest();
    }
}

#[test]
fn a_reserved_name_that_is_deleted_is_free() {
    for (first, second) in OWNERS {
        for is_large in [false, true] {
            let mut cluster = Cluster::new(3);
            let name = cluster.owned_name(first, second, "grad");
            assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
            let gets = [1, 2, 3].map(|node| cluster.get(node, &named(&name)));
            let created = is_large.then(|| cluster.asks(1, create(&name)));
            assert_eq!(cluster.asks(3, delete(&name)), Ok(Reply::Done));
            for get in gets {
                let reply = cluster.reply(get);
                let is_ended = matches!(reply, Err(Error::ObjectDeleted { .. }))
                    || is_large && matches!(reply, Ok(Reply::Growing { .. }));
                assert!(is_ended, "{reply:?}");
            }
            if let Some(Ok(Reply::Created { instance, .. })) = created {
                cluster.ask(1, Request::Seal { instance });
            }
            assert_eq!(cluster.asks(2, reserve(&name)), reserved(&name));
            assert_eq!(cluster.asks(1, put(&name)), taken(&name, 2));
            assert_eq!(cluster.asks(2, put(&name)), Ok(Reply::Put { id: named(&name) }));
            cluster.wait(ORPHAN_GRACE_NS);
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn a_name_stays_reserved_when_its_put_is_canceled() {
    for (first, second) in OWNERS {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, second, "grad");
        assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
        let Ok(Reply::Created { instance, .. }) = cluster.asks(1, create(&name)) else {
            panic!("{:?}", cluster.replies)
        };
        let get = cluster.get(3, &named(&name));
        assert_eq!(cluster.asks(1, put(&name)), taken(&name, 1), "it makes one already");
        cluster.ask(1, Request::Abort { instance });
        assert_eq!(cluster.asks(2, put(&name)), taken(&name, 1));
        assert_eq!(cluster.asks(1, put(&name)), Ok(Reply::Put { id: named(&name) }));
        let instance = got(cluster.reply(get));
        cluster.ask(3, Request::Release { instance });
        cluster.assert_at_rest();
    }
}

#[test]
fn a_reservation_outlives_its_owners() {
    let mut cluster = Cluster::new(4);
    let name = cluster.owned_name(2, 3, "grad");
    assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
    let get = cluster.get(4, &named(&name));
    for owner in [2, 3] {
        cluster.kill(owner);
        cluster.wait(ORPHAN_GRACE_NS);
        assert_eq!(cluster.asks(4, put(&name)), taken(&name, 1), "without {owner}");
    }
    assert!(!cluster.replies.contains_key(&get));
    cluster.ends(1, 7);
    lost(cluster.reply(get));
    cluster.assert_at_rest();
}

#[test]
fn a_request_for_a_name_ends_whatever_happens_to_it() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "grad");
    cluster.slow_down(3);
    cluster.assert_ends(
        1,
        &reserve(&name),
        |reply| matches!(reply, Err(Error::Timeout { what, .. }) if what.contains("the name")),
    );
    cluster.catch_up();
    assert_eq!(cluster.asks(2, put(&name)), Ok(Reply::Put { id: named(&name) }));
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_can_have_a_name_that_its_client_reserved() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(2, 3, "sum");
    assert_eq!(cluster.asks(1, reserve(&name)), reserved(&name));
    let get = cluster.get(3, &named(&name));
    let reply = cluster.asks(1, reduce(&["x"], 1, Some(&name)));
    assert_eq!(reply, Ok(Reply::Reducing { id: named(&name) }));
    assert_eq!(cluster.asks(2, put(&name)), taken(&name, 1));
    cluster.put_small(2, Some("x"));
    got(cluster.reply(get));
    cluster.assert_at_rest();
}

#[test]
fn an_owner_limits_the_names_that_a_member_reserves() {
    let mut cluster = Cluster::new(3);
    let [one, two] = ["one", "two"].map(|name| cluster.owned_name(1, 2, name));
    cluster.nodes.get_mut(&NodeId(1)).unwrap().directory.limit_entries(2);
    assert_eq!(cluster.asks(3, reserve(&one)), reserved(&one));
    let refused = cluster.asks(3, reserve(&two)).unwrap_err();
    assert!(matches!(&refused, Error::NoMemory { .. }), "{refused}");
    assert!(cluster.asks(3, put(&one)).is_ok(), "the object takes its place");
    assert_eq!(cluster.asks(3, delete(&one)), Ok(Reply::Done));
    assert_eq!(cluster.asks(3, reserve(&two)), reserved(&two));
}
