//! Ids that are reserved before their objects exist, and slots.

use super::*;
use crate::limits::ORPHAN_GRACE_NS;

fn promised(cluster: &mut Cluster, node: u64) -> ObjectId {
    let request = cluster.ask(node, Request::Reserve { name: None });
    let Ok(Reply::Reserved { id }) = cluster.reply(request) else {
        panic!("{:?}", cluster.replies)
    };
    assert_eq!(id.minter(), Some(NodeId(node)));
    id.clone()
}

fn put(id: &ObjectId) -> Request {
    Request::Put { id: Some(id.clone()), meta: array(8), bytes: vec![7; 8].into(), ttl_ns: None }
}

fn is_invalid(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Err(Error::InvalidArgument(said)) if said.contains("is not reserved"))
}

#[test]
fn readers_of_a_reservation_get_its_object() {
    for is_large in [false, true] {
        let mut cluster = Cluster::new(3);
        let id = promised(&mut cluster, 1);
        let gets = [1, 2, 3].map(|node| (node, cluster.get(node, &id)));
        assert!(gets.iter().all(|(_, get)| !cluster.replies.contains_key(get)));
        if is_large {
            let request = cluster
                .ask(1, Request::Create { id: Some(id.clone()), meta: array(LARGE), ttl_ns: None });
            let Ok(Reply::Created { id: created, instance }) = cluster.reply(request).clone()
            else {
                panic!("{:?}", cluster.replies)
            };
            assert_eq!(created, id);
            cluster.ask(1, Request::Seal { instance });
        } else {
            let request = cluster.ask(1, put(&id));
            assert_eq!(cluster.reply(request), &Ok(Reply::Put { id: id.clone() }));
        }
        for (node, get) in gets {
            let instance = got(cluster.reply(get));
            cluster.ask(node, Request::Release { instance });
        }
        cluster.assert_at_rest();
    }
}

#[test]
fn a_reduce_keeps_a_promise_too() {
    let mut cluster = Cluster::new(2);
    let inputs: Vec<ObjectId> = (1..=2).map(|node| cluster.put_small(node, None)).collect();
    let id = promised(&mut cluster, 2);
    let get = cluster.get(1, &id);
    let reduce =
        Request::Reduce { inputs, op: Op::Sum, count: 2, id: Some(id.clone()), ttl_ns: None };
    let request = cluster.ask(2, reduce);
    assert_eq!(cluster.reply(request), &Ok(Reply::Reducing { id }));
    got(cluster.reply(get));
    cluster.assert_at_rest();
}

#[test]
fn only_its_client_can_put_a_reserved_id_once() {
    let mut cluster = Cluster::new(2);
    let id = promised(&mut cluster, 1);
    let elsewhere = cluster.ask(2, put(&id));
    assert!(is_invalid(cluster.reply(elsewhere)));
    let (client, request) = (ClientId(2), RequestId(1 << 40));
    cluster.tell(1, Event::Request { client, request, body: put(&id), deadline: None });
    assert!(is_invalid(cluster.reply(request)));
    let first = cluster.ask(1, put(&id));
    assert!(cluster.reply(first).is_ok());
    let again = cluster.ask(1, put(&id));
    assert!(is_invalid(cluster.reply(again)));
    cluster.assert_at_rest();
}

#[test]
fn a_reservation_fails_when_its_client_ends() {
    let mut cluster = Cluster::new(2);
    let id = promised(&mut cluster, 1);
    let before = cluster.get(2, &id);
    cluster.tell(1, Event::ClientDisconnected { client: CLIENT, process: None });
    let after = cluster.get(2, &id);
    for request in [before, after] {
        assert!(matches!(cluster.reply(request), Err(Error::ObjectLost { .. })));
    }
    cluster.assert_at_rest();
}

#[test]
fn a_put_and_the_inputs_of_an_id_whose_node_is_gone_fail_as_lost() {
    let mut cluster = Cluster::new(3);
    let id = promised(&mut cluster, 1);
    cluster.kill(1);
    let create = Request::Create { id: Some(id.clone()), meta: array(LARGE), ttl_ns: None };
    let (inputs, lost) =
        (Request::Inputs { id: id.clone() }, Request::LostInputs { id: id.clone() });
    for ask in [put(&id), create, inputs, lost] {
        let request = cluster.ask(2, ask);
        let reply = cluster.reply(request);
        assert!(matches!(reply, Err(Error::ObjectLost { .. })), "{reply:?}");
    }
    cluster.assert_at_rest();
}

#[test]
fn a_promise_that_is_deleted_can_not_be_kept() {
    let mut cluster = Cluster::new(2);
    let id = promised(&mut cluster, 1);
    let get = cluster.get(2, &id);
    cluster.ask(2, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(get), &Err(Error::ObjectDeleted { id: id.clone() }));
    let late = cluster.ask(1, put(&id));
    assert_eq!(cluster.reply(late), &Err(Error::ObjectDeleted { id }));
    cluster.assert_at_rest();
}

#[test]
fn a_promise_for_which_there_was_no_room_can_be_kept_later() {
    let mut cluster = Cluster::with_capacity(1, LARGE + LARGE / 2);
    let pinned = cluster.put_large(1, None);
    let id = promised(&mut cluster, 1);
    let create = Request::Create { id: Some(id.clone()), meta: array(LARGE), ttl_ns: None };
    let full = cluster.ask_until(1, create.clone(), Some(cluster.now + SECOND));
    cluster.wait(SECOND);
    assert!(matches!(cluster.reply(full), Err(Error::StoreFull { .. })));
    cluster.ask(1, Request::Delete { ids: vec![pinned] });
    let request = cluster.ask(1, create);
    assert!(
        matches!(cluster.reply(request), Ok(Reply::Created { id: created, .. }) if *created == id)
    );
}

fn slots(cluster: &mut Cluster, node: u64, count: u32) -> Vec<ObjectId> {
    let request = cluster.ask(node, Request::Slots { count });
    let Ok(Reply::Slots { ids }) = cluster.reply(request) else { panic!("{:?}", cluster.replies) };
    assert!(ids.iter().all(|id| id.is_slot() && id.minter() == Some(NodeId(node))));
    ids.clone()
}

fn slot(cluster: &mut Cluster, node: u64) -> ObjectId {
    slots(cluster, node, 1).remove(0)
}

fn create(cluster: &mut Cluster, node: u64, id: &ObjectId) -> Instance {
    let body = Request::Create { id: Some(id.clone()), meta: array(LARGE), ttl_ns: None };
    let request = cluster.ask(node, body);
    match cluster.reply(request) {
        Ok(Reply::Created { instance, .. }) => *instance,
        other => panic!("{other:?}"),
    }
}

fn is_lost(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Err(Error::ObjectLost { .. }))
}

fn end_client(cluster: &mut Cluster, node: u64) {
    cluster.tell(node, Event::ClientDisconnected { client: CLIENT, process: None });
}

#[test]
fn any_node_fills_a_slot_for_its_readers() {
    for filler in 1..=3 {
        for is_large in [false, true] {
            let mut cluster = Cluster::new(3);
            let id = slot(&mut cluster, 1);
            let gets = [1, 2, 3].map(|node| (node, cluster.get(node, &id)));
            if is_large {
                let instance = create(&mut cluster, filler, &id);
                cluster.ask(filler, Request::Seal { instance });
            } else {
                let request = cluster.ask(filler, put(&id));
                assert_eq!(cluster.reply(request), &Ok(Reply::Put { id: id.clone() }));
            }
            for (node, get) in gets {
                let instance = got(cluster.reply(get));
                cluster.ask(node, Request::Release { instance });
            }
            let open = cluster.nodes[&NodeId(1)].claims.reservations();
            assert_eq!(open, 0, "filled by {filler}, large: {is_large}");
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn a_slot_takes_the_first_put_alone() {
    for first in 1..=3 {
        for second in 1..=3 {
            let mut cluster = Cluster::new(3);
            let id = slot(&mut cluster, 1);
            let one = cluster.ask(first, put(&id));
            assert!(cluster.reply(one).is_ok());
            let other = cluster.ask(second, put(&id));
            let taken = cluster.reply(other);
            assert!(
                matches!(taken, Err(Error::NameTaken { holder, .. }) if *holder == NodeId(first))
            );
            end_client(&mut cluster, 1);
            let get = cluster.get(2, &id);
            let instance = got(cluster.reply(get));
            cluster.ask(2, Request::Release { instance });
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn another_client_fills_a_slot_whose_filler_failed() {
    for is_aborted in [false, true] {
        let mut cluster = Cluster::new(4);
        let id = slot(&mut cluster, 1);
        let get = cluster.get(2, &id);
        let instance = create(&mut cluster, 3, &id);
        let taken = cluster.ask(4, put(&id));
        assert!(matches!(cluster.reply(taken), Err(Error::NameTaken { .. })));
        if is_aborted {
            cluster.ask(3, Request::Abort { instance });
        } else {
            cluster.kill(3);
        }
        assert!(!cluster.replies.contains_key(&get));
        let other = cluster.ask(4, put(&id));
        assert!(cluster.reply(other).is_ok(), "{:?}", cluster.reply(other));
        let instance = got(cluster.reply(get));
        cluster.ask(2, Request::Release { instance });
        cluster.assert_at_rest();
    }
}

#[test]
fn unfilled_slots_end_with_their_client() {
    let mut cluster = Cluster::new(3);
    let ids = slots(&mut cluster, 1, 3);
    let before = cluster.get(2, &ids[0]);
    let filling = create(&mut cluster, 3, &ids[1]);
    end_client(&mut cluster, 1);
    assert!(is_lost(cluster.reply(before)));
    let seal = cluster.ask(3, Request::Seal { instance: filling });
    assert!(is_lost(cluster.reply(seal)));
    for id in &ids {
        for node in 1..=3 {
            let after = cluster.get(node, id);
            assert!(is_lost(cluster.reply(after)));
            let late = cluster.ask(node, put(id));
            assert!(is_lost(cluster.reply(late)));
        }
    }
    assert_eq!(cluster.nodes[&NodeId(1)].claims.reservations(), 0);
    cluster.assert_at_rest();
}

#[test]
fn slots_of_a_node_that_is_gone_are_lost() {
    let mut cluster = Cluster::new(3);
    let ids = slots(&mut cluster, 1, 2);
    let get = cluster.get(2, &ids[0]);
    let filling = create(&mut cluster, 3, &ids[1]);
    cluster.kill(1);
    cluster.wait(2 * ORPHAN_GRACE_NS);
    assert!(is_lost(cluster.reply(get)));
    let late = cluster.ask(3, put(&ids[0]));
    assert!(is_lost(cluster.reply(late)));
    let seal = cluster.ask(3, Request::Seal { instance: filling });
    assert!(is_lost(cluster.reply(seal)));
    cluster.assert_at_rest();
}

#[test]
fn the_object_of_a_slot_is_lost_with_its_only_copy() {
    let mut cluster = Cluster::new(3);
    let id = slot(&mut cluster, 1);
    let instance = create(&mut cluster, 3, &id);
    cluster.ask(3, Request::Seal { instance });
    cluster.kill(3);
    let get = cluster.get(2, &id);
    cluster.wait(2 * ORPHAN_GRACE_NS);
    assert!(is_lost(cluster.reply(get)));
    for node in 1..=2 {
        let late = cluster.get(node, &id);
        assert!(is_lost(cluster.reply(late)));
        let again = cluster.ask(node, put(&id));
        assert!(is_lost(cluster.reply(again)));
    }
    cluster.assert_at_rest();
}

#[test]
fn a_deleted_slot_takes_no_object() {
    for deleter in 1..=2 {
        let mut cluster = Cluster::new(3);
        let id = slot(&mut cluster, 1);
        let get = cluster.get(2, &id);
        let delete = cluster.ask(deleter, Request::Delete { ids: vec![id.clone()] });
        assert_eq!(cluster.reply(delete), &Ok(Reply::Done));
        assert!(matches!(cluster.reply(get), Err(Error::ObjectDeleted { .. })));
        for node in 1..=3 {
            let late = cluster.ask(node, put(&id));
            assert!(matches!(cluster.reply(late), Err(Error::ObjectDeleted { .. })));
        }
        end_client(&mut cluster, 1);
        assert_eq!(cluster.nodes[&NodeId(1)].claims.reservations(), 0);
        cluster.assert_at_rest();
    }
}

#[test]
fn slots_are_bounded() {
    let mut cluster = Cluster::new(2);
    let many = cluster.ask(1, Request::Slots { count: 65_537 });
    assert!(matches!(cluster.reply(many), Err(Error::InvalidArgument(_))));
    cluster.nodes.get_mut(&NodeId(1)).unwrap().directory.limit_entries(8);
    let full = cluster.ask(1, Request::Slots { count: 5 });
    assert!(matches!(cluster.reply(full), Err(Error::NoMemory { .. })));
    assert_eq!(cluster.nodes[&NodeId(1)].claims.reservations(), 0);
    slots(&mut cluster, 1, 4);
    end_client(&mut cluster, 1);
    slots(&mut cluster, 1, 4);
}

#[test]
fn a_reduce_folds_slots_as_they_are_filled() {
    let mut cluster = Cluster::new(3);
    let inputs = slots(&mut cluster, 1, 3);
    let reduce =
        Request::Reduce { inputs: inputs.clone(), op: Op::Sum, count: 2, id: None, ttl_ns: None };
    let request = cluster.ask(1, reduce);
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let get = cluster.get(1, &id);
    for (node, input) in [(2, &inputs[2]), (3, &inputs[0])] {
        let filled = cluster.ask(node, put(input));
        assert!(cluster.reply(filled).is_ok());
    }
    got(cluster.reply(get));
    let into = Request::Reduce {
        inputs: vec![inputs[0].clone()],
        op: Op::Sum,
        count: 1,
        id: Some(inputs[1].clone()),
        ttl_ns: None,
    };
    let wrong = cluster.ask(1, into);
    assert!(matches!(cluster.reply(wrong), Err(Error::InvalidArgument(_))));
}
