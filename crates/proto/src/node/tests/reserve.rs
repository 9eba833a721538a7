//! Ids that are reserved before their objects exist.

use super::*;

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
