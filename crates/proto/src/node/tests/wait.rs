//! Clients that wait for several objects, follow an arriving object, watch holders, or request an
//! explanation.

use super::*;
use crate::limits::ORPHAN_GRACE_NS;

fn ready(places: &[u32]) -> Result<Reply, Error> {
    Ok(Reply::Waited { ready: places.to_vec() })
}

fn wait(ids: &[&ObjectId], count: u32) -> Request {
    Request::Wait { ids: ids.iter().map(|id| (*id).clone()).collect(), count }
}

fn locations(id: &ObjectId, known: Option<Vec<Holding>>) -> Request {
    Request::Locations { id: id.clone(), known }
}

fn holdings(reply: &Result<Reply, Error>) -> Vec<(u64, bool)> {
    let Ok(Reply::Locations(all)) = reply else { panic!("{reply:?}") };
    all.iter().map(|location| (location.member.id.0, location.complete)).collect()
}

fn holding(node: u64, complete: bool) -> Holding {
    Holding { node: NodeId(node), complete }
}

#[test]
fn a_wait_names_the_first_to_come_in_their_order() {
    let mut cluster = Cluster::new(3);
    let ids = ["a/1", "b/1", "c/1", "d/1"].map(named);
    let request = cluster.ask(2, wait(&[&ids[0], &ids[1], &ids[2], &ids[3]], 3));
    cluster.put_small(1, Some("d/1"));
    cluster.put_large(3, Some("b/1"));
    assert!(!cluster.replies.contains_key(&request), "two of three");
    cluster.put_small(2, Some("a/1"));
    assert_eq!(cluster.reply(request), &ready(&[3, 1, 0]));
    cluster.assert_at_rest();
}

#[test]
fn a_wait_for_existing_objects_ends_at_once_with_the_requested_number() {
    let mut cluster = Cluster::new(2);
    let ids = [0; 3].map(|_| cluster.put_large(1, None));
    let all = [&ids[0], &ids[1], &ids[2]];
    for node in 1..=2 {
        for count in 0..=3 {
            let request = cluster.ask(node, wait(&all, count));
            let Ok(Reply::Waited { ready }) = cluster.reply(request) else { panic!() };
            assert_eq!(ready.len(), count as usize, "of {count} at {node}");
        }
    }
    cluster.assert_at_rest();
}

#[test]
fn time_that_is_over_is_an_answer_of_a_wait() {
    let mut cluster = Cluster::new(2);
    let (there, never) = (cluster.put_large(1, None), named("never"));
    let request = cluster.ask_until(2, wait(&[&never, &there], 2), Some(cluster.now + SECOND));
    cluster.wait(SECOND);
    assert_eq!(cluster.reply(request), &ready(&[1]));
    cluster.assert_ends(2, &wait(&[&never], 1), |reply| *reply == ready(&[]));
}

#[test]
fn a_part_of_a_copy_is_not_ready() {
    let mut cluster = Cluster::new(3);
    let (id, instance) = cluster.create(1, None);
    let reader = cluster.get(3, &id);
    let request = cluster.ask(2, wait(&[&id], 1));
    assert!(!cluster.replies.contains_key(&request), "it grows at two nodes");
    cluster.ask(1, Request::Seal { instance });
    assert_eq!(cluster.reply(request), &ready(&[0]));
    cluster.ask(3, Request::Release { instance: got(cluster.reply(reader)) });
    cluster.assert_at_rest();
}

#[test]
fn an_object_that_can_no_longer_appear_is_ready() {
    let mut cluster = Cluster::new(3);
    let deleted = cluster.put_large(1, None);
    cluster.ask(1, Request::Delete { ids: vec![deleted.clone()] });
    let request = cluster.ask(2, wait(&[&deleted], 1));
    assert_eq!(cluster.reply(request), &ready(&[0]), "deleted before");

    let ((filling, _), (aborted, instance)) = (cluster.create(1, None), cluster.create(1, None));
    let request = cluster.ask(2, wait(&[&filling, &aborted], 2));
    cluster.ask(1, Request::Abort { instance });
    cluster.ask(3, Request::Delete { ids: vec![filling.clone()] });
    assert_eq!(cluster.reply(request), &ready(&[1, 0]), "given up, and deleted meanwhile");

    let (lost, _) = cluster.create(3, None);
    let request = cluster.ask(2, wait(&[&lost], 1));
    cluster.kill(3);
    assert!(!cluster.replies.contains_key(&request), "somebody may have a copy");
    cluster.wait(2 * SECOND);
    assert_eq!(cluster.reply(request), &ready(&[0]), "lost");
}

#[test]
fn a_wait_goes_on_with_the_next_owner() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "x");
    let request = cluster.ask(1, wait(&[&named(&name)], 1));
    cluster.kill(3);
    cluster.put_large(2, Some(&name));
    assert_eq!(cluster.reply(request), &ready(&[0]));
    cluster.assert_at_rest();
}

#[test]
fn a_wait_that_can_not_be_meant_is_refused() {
    let mut cluster = Cluster::new(1);
    let id = named("x");
    for ask in [wait(&[&id, &id], 1), wait(&[&id], 2)] {
        let request = cluster.ask(1, ask);
        assert!(matches!(cluster.reply(request), Err(Error::InvalidArgument(_))));
    }
    cluster.assert_at_rest();
}

#[test]
fn an_input_of_a_reduce_is_still_listened_to_when_a_wait_for_it_ends() {
    let mut cluster = Cluster::new(2);
    let input = named("later/1");
    let reduce = Request::Reduce {
        inputs: vec![input.clone()],
        op: Op::Sum,
        count: 1,
        id: None,
        ttl_ns: None,
    };
    let request = cluster.ask(2, reduce);
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let waiting = cluster.ask(2, wait(&[&input], 1));
    cluster.tell(2, Event::Cancelled { client: CLIENT, request: waiting });
    cluster.put_small(1, Some("later/1"));
    let request = cluster.get(2, &id);
    got(cluster.reply(request));
    cluster.assert_at_rest();
}

#[test]
fn a_copy_is_followed_from_its_first_byte_on() {
    let mut cluster = Cluster::new(2);
    let id = named("x/1");
    let follow = || Request::Follow { id: id.clone() };
    let (reader, early) = (cluster.get(2, &id), cluster.ask(2, follow()));
    assert!(!cluster.replies.contains_key(&early));
    let (_, instance) = cluster.create(1, Some("x/1"));
    let growing = Ok(Reply::Growing { meta: array(LARGE), instance });
    for request in [cluster.ask(2, follow()), early] {
        assert_eq!(cluster.reply(request), &growing);
    }
    let own = cluster.ask(1, follow());
    assert_eq!(
        cluster.reply(own),
        &Ok(Reply::Done),
        "a client does not follow what it fills itself"
    );
    cluster.ask(1, Request::Seal { instance });
    let request = cluster.ask(2, follow());
    assert_eq!(cluster.reply(request), &Ok(Reply::Done), "there is nothing to follow");
    cluster.ask(2, Request::Release { instance: got(cluster.reply(reader)) });
    cluster.assert_at_rest();
}

#[test]
fn followers_are_notified_when_nothing_will_arrive() {
    let mut cluster = Cluster::new(2);
    let follow = |cluster: &mut Cluster, id: &ObjectId| {
        cluster.get(2, id);
        cluster.ask(2, Request::Follow { id: id.clone() })
    };
    let small = follow(&mut cluster, &named("small/1"));
    cluster.put_small(1, Some("small/1"));
    assert_eq!(cluster.reply(small), &Ok(Reply::Done), "it came inside a message");

    let inputs = vec![named("never")];
    let reduce = Request::Reduce { inputs, op: Op::Sum, count: 1, id: None, ttl_ns: None };
    let request = cluster.ask(1, reduce);
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let deleted = follow(&mut cluster, &id);
    cluster.ask(1, Request::Delete { ids: vec![id] });
    assert_eq!(cluster.reply(deleted), &Ok(Reply::Done), "the get says why");
    let alone = cluster.ask(2, Request::Follow { id: named("never") });
    assert_eq!(cluster.reply(alone), &Ok(Reply::Done), "there is no get that would bring it");
}

#[test]
fn a_request_with_an_expired_deadline_still_gets_its_reply() {
    let mut cluster = Cluster::new(3);
    // An owner is not sure that there is no name until the others have announced theirs.
    cluster.wait(ORPHAN_GRACE_NS);
    for owner in 1..=3 {
        let name = cluster.owned_name(owner, owner % 3 + 1, "1");
        cluster.put_large(1, Some(&name));
        let id = named(&name);
        let until = Some(cluster.now);
        let (prefix, _) = name.rsplit_once('/').unwrap();
        let latest = |after| Request::Latest { prefix: format!("{prefix}/"), after };
        let never = named(&format!("{prefix}/2"));
        let waited = cluster.ask_until(2, wait(&[&never, &id], 2), until);
        assert_eq!(cluster.reply(waited), &Ok(Reply::Waited { ready: vec![1] }));
        let newest = cluster.ask_until(2, latest(None), until);
        assert!(matches!(cluster.reply(newest), Ok(Reply::Latest { .. })));
        for ask in [latest(Some(1)), locations(&id, Some(vec![holding(1, true)]))] {
            let nothing = cluster.ask_until(2, ask, until);
            assert!(is_timeout(cluster.reply(nothing)));
        }
        let (id, bytes) = (Some(format!("{prefix}/3").parse().unwrap()), vec![7; 8].into());
        let put =
            cluster.ask_until(3, Request::Put { id, meta: array(8), bytes, ttl_ns: None }, until);
        assert!(matches!(cluster.reply(put), Ok(Reply::Put { .. })));
    }
    cluster.assert_at_rest();
}

#[test]
fn locations_without_a_known_list_are_returned_at_once() {
    let mut cluster = Cluster::new(3);
    let id = named("x/1");
    let request = cluster.ask(2, locations(&id, None));
    assert_eq!(holdings(cluster.reply(request)), [], "no client has put it");
    cluster.put_large(1, Some("x/1"));
    let reader = cluster.get(3, &id);
    cluster.ask(3, Request::Release { instance: got(cluster.reply(reader)) });
    let request = cluster.ask(2, locations(&id, None));
    assert_eq!(holdings(cluster.reply(request)), [(1, true), (3, true)]);
    cluster.ask(1, Request::Delete { ids: vec![id.clone()] });
    let request = cluster.ask(2, locations(&id, None));
    assert_eq!(holdings(cluster.reply(request)), [], "as of a name that no client has put");
    cluster.assert_at_rest();
}

#[test]
fn location_watchers_are_notified_of_each_change() {
    let mut cluster = Cluster::new(4);
    let name = cluster.owned_name(1, 2, "1");
    let id = named(&name);
    let request = cluster.ask(2, locations(&id, Some(vec![])));
    assert!(!cluster.replies.contains_key(&request), "it is known that nobody has it");
    let (_, instance) = cluster.create(3, Some(&name));
    assert_eq!(holdings(cluster.reply(request)), [(3, false)]);

    let request = cluster.ask(2, locations(&id, Some(vec![holding(3, false)])));
    assert!(!cluster.replies.contains_key(&request));
    cluster.ask(3, Request::Seal { instance });
    assert_eq!(holdings(cluster.reply(request)), [(3, true)]);

    let request = cluster.ask(2, locations(&id, Some(vec![holding(3, true)])));
    let reader = cluster.get(4, &id);
    assert_eq!(holdings(cluster.reply(request)), [(3, true), (4, false)], "it will have it");
    cluster.ask(4, Request::Release { instance: got(cluster.reply(reader)) });

    let known = || Some(vec![holding(3, true), holding(4, true)]);
    let request = cluster.ask(2, locations(&id, known()));
    assert!(!cluster.replies.contains_key(&request));
    cluster.kill(3);
    assert_eq!(holdings(cluster.reply(request)), [(4, true)], "a holder is lost");

    let request = cluster.ask(2, locations(&id, Some(vec![holding(4, true)])));
    cluster.ask(4, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(request), &Err(Error::ObjectDeleted { id }));
    cluster.assert_at_rest();
}

#[test]
fn location_watchers_are_notified_of_a_loss() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(3, None);
    let request = cluster.ask(2, locations(&id, Some(vec![holding(3, true)])));
    cluster.kill(3);
    let request = match cluster.replies.get(&request) {
        Some(reply) => {
            assert_eq!(holdings(reply), []);
            cluster.ask(2, locations(&id, Some(vec![])))
        }
        None => request,
    };
    cluster.wait(2 * SECOND);
    assert!(matches!(cluster.reply(request), Ok(_) | Err(Error::ObjectLost { .. })));
    let request = cluster.ask(2, locations(&id, Some(vec![])));
    cluster.wait(2 * SECOND);
    assert!(matches!(cluster.reply(request), Err(Error::ObjectLost { .. })));
}

#[test]
fn a_question_for_locations_goes_on_with_the_next_owner_and_ends_with_its_deadline() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "1");
    let ask = locations(&named(&name), Some(vec![]));
    let request = cluster.ask(1, ask);
    cluster.kill(3);
    assert!(!cluster.replies.contains_key(&request));
    cluster.put_small(2, Some(&name));
    assert_eq!(holdings(cluster.reply(request)), [(2, true)]);
    cluster.assert_ends(1, &locations(&named("never"), Some(vec![])), is_timeout);
}

#[test]
fn explain_describes_why_an_object_is_missing() {
    let mut cluster = Cluster::new(2);
    let (id, _) = cluster.create(1, None);
    let mut explain = |node, id: &ObjectId| {
        let request = cluster.ask(node, Request::Explain { id: id.clone() });
        let Ok(Reply::Explained { state, .. }) = cluster.reply(request) else { panic!() };
        state.clone()
    };
    assert_eq!(explain(1, &id), "a client of this node is still writing it");
    assert_eq!(explain(2, &named("never")), "no client has put it");
}

/// What a request waits for, as its client sees it.
fn explained(cluster: &mut Cluster, node: u64, request: RequestId) -> String {
    let explain = cluster.ask(node, Request::ExplainRequest { request });
    let Ok(Reply::Explained { what, state, .. }) = cluster.reply(explain) else { panic!() };
    format!("{what}: {state}")
}

#[test]
fn every_request_that_waits_is_explained() {
    let mut cluster = Cluster::with_capacity(2, LARGE + LARGE / 2);
    let full = cluster.put_large(1, None);
    // Owners report that a prefix has no name only some time after a membership change.
    cluster.wait(SECOND);
    let create = || Request::Create { id: None, meta: array(LARGE), ttl_ns: None };
    let (never, late) = (named("never/1"), named("never/2"));
    let latest = || Request::Latest { prefix: "never/".into(), after: Some(7) };
    let reduce = Request::Reduce {
        inputs: vec![never.clone()],
        op: Op::Sum,
        count: 1,
        id: None,
        ttl_ns: None,
    };
    let reducing = cluster.ask(1, reduce);
    let Ok(Reply::Reducing { id: sum }) = cluster.reply(reducing).clone() else { panic!() };
    for (ask, expected) in [
        (Request::Get { id: never.clone() }, "object never/1: no client has put it"),
        (create(), &format!("can't fit {LARGE} bytes")),
        (create(), &format!("{full} of ")),
        (
            wait(&[&never, &late], 2),
            "2 of the objects never/1, never/2: no node has a complete copy",
        ),
        (latest(), "a name under \"never/\" newer than 7: no client has put one"),
        (
            locations(&never, Some(vec![])),
            "a change of the holders of never/1: they have not changed",
        ),
        (Request::Inputs { id: sum.clone() }, "never/1"),
    ] {
        let request = cluster.ask(1, ask.clone());
        let text = explained(&mut cluster, 1, request);
        assert!(text.contains(expected), "{ask:?}: {text}");
    }
}

#[test]
fn a_client_learns_nothing_of_requests_of_others() {
    let mut cluster = Cluster::new(1);
    cluster.counted += 1;
    let request = RequestId(cluster.counted);
    let body = Request::Get { id: named("secret/1") };
    cluster.tell(1, Event::Request { client: ClientId(9), request, body, deadline: None });
    assert!(!explained(&mut cluster, 1, request).contains("secret"));
}

#[test]
fn a_long_wait_is_reported_once() {
    let mut cluster = Cluster::new(1);
    let long_waits = |cluster: &mut Cluster, ns: u64| {
        cluster.now = cluster.now + ns;
        let (node, now) = (cluster.nodes.get_mut(&NodeId(1)).unwrap(), cluster.now);
        let mut actions = Vec::new();
        node.handle(now, Event::DeadlinePassed, &mut actions);
        let reported = actions.into_iter().filter_map(|action| match action {
            Action::Log(LogEvent::LongWait { what, state, waited_ns, .. }) => {
                Some(format!("{what}: {state} ({} s)", waited_ns / SECOND))
            }
            _ => None,
        });
        (reported.collect::<Vec<_>>(), node.deadline())
    };
    cluster.get(1, &named("a/1"));
    let (reported, deadline) = long_waits(&mut cluster, 10 * SECOND);
    assert_eq!(reported, [""; 0]);
    assert_eq!(deadline, Some(cluster.now + 20 * SECOND));
    cluster.get(1, &named("b/1"));
    let (reported, _) = long_waits(&mut cluster, 20 * SECOND);
    assert_eq!(reported, ["object a/1: no client has put it (30 s)"]);
    let (reported, _) = long_waits(&mut cluster, 10 * SECOND);
    assert_eq!(reported, ["object b/1: no client has put it (30 s)"]);
    let (reported, deadline) = long_waits(&mut cluster, 100 * SECOND);
    assert_eq!((reported, deadline), (vec![], None));
}

/// Goal: an owner that only some nodes can't reach delays no watcher.
#[test]
fn the_backup_owner_replies_if_the_primary_does_not() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(1, 2, "x/1"));
    cluster.put_large(3, Some(&id.to_string()));
    cluster.slow_down(1);
    let waits = cluster.ask(4, wait(&[&id], 1));
    let folds = cluster.ask(
        4,
        Request::Reduce { inputs: vec![id.clone()], op: Op::Sum, count: 1, id: None, ttl_ns: None },
    );
    let Ok(Reply::Reducing { id: sum }) = cluster.reply(folds).clone() else { panic!() };
    let got = cluster.ask(4, Request::Get { id: sum.clone() });
    cluster.wait(OWNER_TIMEOUT_NS / 2);
    assert!(!cluster.replies.contains_key(&waits), "the first may still answer");
    cluster.wait(OWNER_TIMEOUT_NS);
    assert_eq!(cluster.reply(waits), &Ok(Reply::Waited { ready: vec![0] }));
    let Ok(Reply::Got { instance, .. }) = cluster.reply(got).clone() else { panic!() };
    cluster.ask(4, Request::Release { instance });
    cluster.catch_up();
    cluster.ask(4, Request::Delete { ids: vec![id, sum] });
    cluster.assert_at_rest();
}
