//! Objects that are deleted automatically: by their time to live, with their job, with their last
//! lease.

use super::*;
use crate::limits::{LEASE_GRACE_NS, MERGE_NS};

const TTL: u64 = 60 * SECOND;
const JOB: &str = "run-7";

impl Cluster {
    /// A client of a node puts an object.
    fn put_as(
        &mut self,
        (node, client): (u64, u64),
        name: Option<&str>,
        size: u64,
        ttl_ns: Option<u64>,
    ) -> ObjectId {
        let (id, meta) = (name.map(|name| name.parse().unwrap()), array(size));
        if size < LARGE {
            let bytes: Inline = vec![7; size as usize].into();
            let put = self.ask_as(node, client, Request::Put { id, meta, bytes, ttl_ns });
            let Ok(Reply::Put { id }) = self.reply(put) else { panic!("{:?}", self.replies) };
            return id.clone();
        }
        let create = self.ask_as(node, client, Request::Create { id, meta, ttl_ns });
        let Ok(Reply::Created { id, instance }) = self.reply(create).clone() else {
            panic!("{:?}", self.replies)
        };
        let seal = self.ask_as(node, client, Request::Seal { instance });
        assert_eq!(self.reply(seal), &Ok(Reply::Put { id: id.clone() }));
        id
    }

    fn ask_as(&mut self, node: u64, client: u64, ask: Request) -> RequestId {
        self.counted += 1;
        let (request, client) = (RequestId(self.counted), ClientId(client));
        self.tell(node, Event::Request { client, request, body: ask, deadline: None });
        request
    }

    fn done_as(&mut self, node: u64, client: u64, ask: Request) {
        let request = self.ask_as(node, client, ask);
        assert_eq!(self.reply(request), &Ok(Reply::Done));
    }

    fn keep_as(&mut self, node: u64, client: u64, id: &ObjectId, copies: u32) {
        let request =
            self.ask_as(node, client, Request::Replicate { id: id.clone(), replicas: copies });
        assert_eq!(self.reply(request), &Ok(Reply::Replicated { replicas: copies }));
    }

    fn join_as(&mut self, node: u64, client: u64) {
        let job = JOB.parse().unwrap();
        self.done_as(node, client, Request::JoinJob { job });
    }

    fn client_goes(&mut self, node: u64, client: u64) {
        self.tell(node, Event::ClientDisconnected { client: ClientId(client), process: None });
    }

    /// Whether a node can get an object, which is then released.
    fn gets(&mut self, node: u64, id: &ObjectId) -> bool {
        let request = self.get(node, id);
        match self.replies.get(&request) {
            Some(Ok(Reply::Got { instance, .. })) => {
                let instance = *instance;
                self.ask(node, Request::Release { instance });
                true
            }
            Some(Err(Error::ObjectDeleted { id: deleted })) => {
                assert_eq!((deleted, id.minter().is_some()), (id, true), "a deleted name is free");
                false
            }
            None => {
                assert_eq!(id.minter(), None, "a name may be put again, an id may not");
                self.tell(node, Event::Cancelled { client: CLIENT, request });
                false
            }
            other => panic!("{other:?}"),
        }
    }

    fn assert_gone(&mut self, id: &ObjectId) {
        for node in self.nodes.keys().map(|node| node.0).collect::<Vec<u64>>() {
            assert!(!self.has(node, id), "node {node} has {id}");
            assert!(!self.gets(node, id), "node {node} gets {id}");
        }
    }

    /// Advances the time in steps no longer than any deadline.
    fn pass(&mut self, ns: u64) {
        (0..ns / SECOND).for_each(|_| self.wait(SECOND));
    }
}

#[test]
fn an_object_ends_when_its_time_is_over_and_not_before() {
    for (size, name) in [(8, None), (8, Some("a/1")), (LARGE, None), (LARGE, Some("b/1"))] {
        let mut cluster = Cluster::new(4);
        let id = cluster.put_as((1, 1), name, size, Some(TTL));
        assert!(cluster.gets(3, &id));
        cluster.wait(TTL - 1);
        assert!(cluster.gets(2, &id) && cluster.gets(4, &id));
        let waits = cluster.ask(4, Request::Wait { ids: vec![named("never")], count: 1 });
        cluster.wait(1);
        cluster.assert_gone(&id);
        cluster.tell(4, Event::Cancelled { client: CLIENT, request: waits });
        cluster.assert_at_rest();
    }
}

#[test]
fn the_backup_owner_ends_an_object_that_the_primary_owner_does_not_end() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(1, 2, "x");
    let id = cluster.put_as((3, 1), Some(&name), 8, Some(TTL));
    cluster.slow_down(1);
    cluster.wait(TTL);
    assert!(cluster.has(3, &id));
    cluster.wait(OWNER_TIMEOUT_NS);
    assert!(!cluster.has(3, &id));
    cluster.catch_up();
    cluster.assert_gone(&id);
}

#[test]
fn its_time_runs_from_when_it_is_complete() {
    let mut cluster = Cluster::new(3);
    let ask = Request::Create { id: None, meta: array(LARGE), ttl_ns: Some(TTL) };
    let create = cluster.ask(1, ask);
    let Ok(Reply::Created { id, instance }) = cluster.reply(create).clone() else { panic!() };
    cluster.pass(2 * TTL);
    cluster.ask(1, Request::Seal { instance });
    cluster.wait(TTL - 1);
    assert!(cluster.gets(2, &id));
    cluster.wait(1);
    cluster.assert_gone(&id);
}

#[test]
fn a_reader_keeps_an_expired_object() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_as((1, 1), None, LARGE, Some(TTL));
    let request = cluster.get(2, &id);
    let instance = got(cluster.reply(request));
    cluster.wait(TTL);
    cluster.assert_gone(&id);
    assert!(cluster.nodes[&NodeId(2)].table().get(instance).is_some_and(|copy| copy.doomed));
    cluster.ask(2, Request::Release { instance });
    assert!(cluster.nodes[&NodeId(2)].table().get(instance).is_none());
}

/// Goal: whichever nodes fail, the remaining copies of an object are deleted on time. Method: the
/// creating node fails, then one owner after the other. A node with a replica, a node with a
/// reader, or only the directory entries of the owners remain.
#[test]
fn it_ends_in_time_though_its_putter_and_its_owners_die() {
    for (size, copies) in [(8, 1), (LARGE, 1), (LARGE, 2)] {
        let mut cluster = Cluster::new(6);
        let name = cluster.owned_name(3, 2, "x/1");
        let id = cluster.put_as((1, 1), Some(&name), size, Some(TTL));
        cluster.keep_as(1, 1, &id, copies);
        assert!(cluster.gets(5, &id));
        cluster.pass(TTL / 2);
        cluster.kill(1);
        cluster.pass(2 * SECOND);
        cluster.kill(3);
        cluster.pass(2 * SECOND);
        assert!(cluster.gets(6, &id), "{size} bytes, {copies} copies");
        if size == LARGE {
            cluster.kill(2);
            cluster.pass(2 * SECOND);
            assert!(cluster.gets(6, &id), "{copies} copies");
        }
        cluster.pass(TTL / 2);
        cluster.assert_gone(&id);
    }
}

#[test]
fn an_original_that_is_handed_over_takes_its_time_along() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_as((3, 1), None, LARGE, Some(TTL));
    cluster.pass(TTL / 2);
    cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    assert!(cluster.has_left(3) && cluster.gets(1, &id));
    cluster.pass(TTL / 2 - SECOND);
    assert!(cluster.gets(2, &id));
    cluster.pass(SECOND);
    cluster.assert_gone(&id);
}

#[test]
fn a_result_ends_in_its_time() {
    for size in [8, LARGE] {
        let mut cluster = Cluster::new(4);
        let inputs: Vec<ObjectId> =
            (2..=3).map(|node| cluster.put_as((node, 1), None, size, None)).collect();
        let id = Some(named("sum/1"));
        let reduce = Request::Reduce { inputs, op: Op::Sum, count: 2, id, ttl_ns: Some(TTL) };
        let answer = cluster.asks(1, reduce);
        let Ok(Reply::Reducing { id }) = answer else { panic!("{answer:?}") };
        assert!(cluster.gets(4, &id));
        cluster.wait(TTL - 1);
        assert!(cluster.gets(2, &id));
        cluster.wait(1);
        cluster.assert_gone(&id);
    }
}

#[test]
fn a_new_object_does_not_inherit_the_time_of_the_previous_one() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_as((1, 1), Some("x/1"), LARGE, Some(TTL));
    cluster.pass(SECOND);
    cluster.done_as(2, 1, Request::Delete { ids: vec![id.clone()] });
    cluster.put_as((2, 1), Some("x/1"), LARGE, None);
    cluster.pass(2 * TTL);
    assert!(cluster.gets(3, &id));
}

#[test]
fn no_time_is_no_ttl() {
    let mut cluster = Cluster::new(1);
    let asks = [
        Request::Put { id: None, meta: array(8), bytes: vec![7; 8].into(), ttl_ns: Some(0) },
        Request::Create { id: None, meta: array(LARGE), ttl_ns: Some(0) },
        Request::Reduce {
            inputs: vec![named("x")],
            op: Op::Sum,
            count: 1,
            id: None,
            ttl_ns: Some(0),
        },
    ];
    for ask in asks {
        let answer = cluster.asks(1, ask);
        assert!(matches!(answer, Err(Error::InvalidArgument(said)) if said.contains("ttl")));
    }
    cluster.assert_at_rest();
}

#[test]
fn the_objects_of_a_job_end_with_its_last_client_and_no_others() {
    let mut cluster = Cluster::new(4);
    cluster.join_as(1, 11);
    cluster.join_as(2, 12);
    let of_job: Vec<ObjectId> = [(1, 11, 8), (1, 11, LARGE), (2, 12, 8), (2, 12, LARGE)]
        .map(|(node, client, size)| cluster.put_as((node, client), None, size, None))
        .into();
    let named = cluster.put_as((1, 11), Some("job/1"), 8, None);
    let other = cluster.put_as((1, 1), None, LARGE, None);
    cluster.client_goes(1, 11);
    cluster.pass(4 * LEASE_GRACE_NS);
    assert!(of_job.iter().all(|id| cluster.gets(3, id)), "a client of the job lives");
    cluster.client_goes(2, 12);
    cluster.pass(LEASE_GRACE_NS - SECOND);
    assert!(of_job.iter().all(|id| cluster.gets(4, id)), "one may come back");
    cluster.pass(2 * SECOND);
    of_job.iter().chain([&named]).for_each(|id| cluster.assert_gone(id));
    assert!(cluster.gets(4, &other));
    cluster.pass(2 * LEASE_GRACE_NS);
    cluster.assert_at_rest();
}

#[test]
fn a_job_whose_client_comes_back_goes_on() {
    let mut cluster = Cluster::new(3);
    cluster.join_as(1, 11);
    let id = cluster.put_as((1, 11), None, LARGE, None);
    cluster.client_goes(1, 11);
    cluster.pass(LEASE_GRACE_NS - SECOND);
    cluster.join_as(2, 12);
    cluster.pass(4 * LEASE_GRACE_NS);
    assert!(cluster.gets(3, &id));
    cluster.client_goes(2, 12);
    cluster.pass(2 * LEASE_GRACE_NS);
    cluster.assert_gone(&id);
}

/// Goal: a job ends when the node of its last client fails, whichever nodes own its objects and the
/// job, and even if these failed before.
#[test]
fn a_job_ends_with_the_node_of_its_last_client() {
    let mut cluster = Cluster::new(6);
    let owners = cluster.nodes[&NodeId(1)].members().owners(&named(JOB));
    let at = (1..=6).find(|node| !owners.contains(NodeId(*node))).unwrap();
    let keeper = (1..=6).rfind(|node| !owners.contains(NodeId(*node)) && *node != at).unwrap();
    cluster.join_as(at, 11);
    let name = cluster.owned_name(keeper, owners.primary.0, "x/1");
    let id = cluster.put_as((at, 11), Some(&name), LARGE, None);
    cluster.keep_as(at, 11, &id, 3);
    cluster.kill(owners.primary.0);
    cluster.pass(4 * LEASE_GRACE_NS);
    assert!(cluster.gets(keeper, &id));
    cluster.kill(owners.backup.unwrap().0);
    cluster.pass(4 * LEASE_GRACE_NS);
    assert!(cluster.gets(keeper, &id));
    cluster.kill(at);
    assert!(cluster.gets(keeper, &id));
    cluster.pass(2 * LEASE_GRACE_NS + 2 * SECOND);
    cluster.assert_gone(&id);
    cluster.pass(2 * LEASE_GRACE_NS);
    cluster.assert_at_rest();
}

#[test]
fn a_job_of_more_objects_than_a_slice_ends_too() {
    let slice = Slice { entries: 3, pause_ns: 1 };
    let mut cluster = Cluster::in_slices(3, 1 << 30, slice);
    cluster.join_as(1, 11);
    let ids: Vec<ObjectId> = (0..20).map(|_| cluster.put_as((1, 11), None, 8, None)).collect();
    cluster.client_goes(1, 11);
    cluster.pass(20 * SECOND);
    ids.iter().for_each(|id| cluster.assert_gone(id));
}

#[test]
fn a_listing_has_the_job_and_the_age_of_an_object() {
    let mut cluster = Cluster::new(2);
    cluster.join_as(1, 11);
    cluster.put_as((1, 11), None, 8, None);
    cluster.pass(4 * LEASE_GRACE_NS);
    let ask = Request::List { owner: NodeId(1), prefix: String::new(), after: None };
    let Ok(Reply::List { rows, .. }) = cluster.asks(1, ask) else { panic!() };
    let job = rows[0].lifetime.as_ref().and_then(|lifetime| lifetime.job.clone());
    assert_eq!(job, Some(JOB.parse().unwrap()));
    assert_eq!(rows[0].age_ns, 4 * LEASE_GRACE_NS);
}

#[test]
fn a_held_object_ends_with_its_last_lease() {
    for (name, size) in [(None, 8), (Some("x/1"), LARGE)] {
        let mut cluster = Cluster::new(4);
        let id = cluster.put_as((1, 1), name, size, None);
        let other = cluster.put_as((1, 1), None, LARGE, None);
        let (take, give) =
            (Request::AcquireLease { id: id.clone() }, Request::ReleaseLease { id: id.clone() });
        cluster.done_as(2, 21, take.clone());
        cluster.done_as(2, 21, take.clone());
        cluster.done_as(3, 31, take);
        cluster.done_as(2, 21, give.clone());
        cluster.client_goes(3, 31);
        cluster.client_goes(1, 1);
        cluster.pass(4 * LEASE_GRACE_NS);
        assert!(cluster.gets(4, &id), "one lease is left");
        cluster.done_as(2, 21, give.clone());
        cluster.done_as(2, 21, give);
        cluster.pass(LEASE_GRACE_NS - SECOND);
        assert!(cluster.gets(4, &id));
        cluster.pass(2 * SECOND);
        cluster.assert_gone(&id);
        assert!(cluster.gets(4, &other), "of this no lease was taken");
        cluster.pass(2 * LEASE_GRACE_NS);
        cluster.assert_at_rest();
    }
}

/// Goal: the lease of a client ends when its node fails, even if the object has new owners.
#[test]
fn a_held_object_ends_with_the_node_of_its_last_lease() {
    let mut cluster = Cluster::new(6);
    let name = cluster.owned_name(2, 3, "x/1");
    let id = cluster.put_as((1, 1), Some(&name), LARGE, None);
    for node in [5, 6] {
        cluster.done_as(node, 1, Request::AcquireLease { id: id.clone() });
    }
    cluster.kill(2);
    cluster.pass(2 * LEASE_GRACE_NS);
    cluster.kill(5);
    cluster.kill(3);
    cluster.pass(4 * LEASE_GRACE_NS);
    assert!(cluster.gets(4, &id));
    cluster.kill(6);
    cluster.pass(2 * LEASE_GRACE_NS);
    cluster.assert_gone(&id);
}

#[test]
fn a_leaving_node_reports_copies_that_no_member_adopted() {
    // Capacity for three objects.
    let mut cluster = Cluster::with_capacity(3, 3 * (LARGE + 256) + 1000);
    let kept: Vec<ObjectId> = [1, 1, 2, 2].map(|node| cluster.put_large(node, None)).into();
    let name = cluster.owned_name(1, 2, "lost/1");
    let ids: Vec<ObjectId> =
        [Some(name.as_str()), None, None].map(|name| cluster.put_large(3, name)).into();
    let small = cluster.put_small(1, None);
    cluster.tell(3, Event::LeaveRequested { timeout_ns: 3 * SECOND });
    assert!(!cluster.has_left(3), "there may be room later");
    cluster.wait(3 * SECOND);
    assert!(cluster.has_left(3));
    let lost = cluster.lost[&NodeId(3)].clone();
    assert_eq!((lost.count, lost.ids.len()), (1, 1), "two found room");
    cluster.pass(2 * SECOND);
    for id in &ids {
        let held = cluster.asks(2, Request::Locations { id: id.clone(), known: None });
        let is_lost = matches!(held, Err(Error::ObjectLost { .. }));
        assert_eq!(is_lost, lost.ids.contains(id), "{id}: {held:?}");
    }
    let held = |id: &ObjectId| Request::Locations { id: id.clone(), known: None };
    for id in kept.iter().chain([&small]) {
        assert!(matches!(cluster.asks(2, held(id)), Ok(Reply::Locations(all)) if !all.is_empty()));
    }
}

#[test]
fn a_name_that_was_lost_with_a_node_that_left_can_be_put_again() {
    let mut cluster = Cluster::with_capacity(3, LARGE + 1000);
    (1..=2).for_each(|node| drop(cluster.put_large(node, None)));
    let name = cluster.owned_name(1, 2, "lost/1");
    let id = cluster.put_large(3, Some(&name));
    cluster.tell(3, Event::LeaveRequested { timeout_ns: 3 * SECOND });
    cluster.wait(3 * SECOND);
    assert_eq!(cluster.lost[&NodeId(3)], LostObjects { ids: vec![id.clone()], count: 1 });
    cluster.pass(2 * SECOND);
    let request = cluster.get(2, &id);
    let reply = cluster.reply(request);
    assert!(
        matches!(reply, Err(Error::ObjectLost { detail, .. }) if detail.contains("no other node")),
        "{reply:?}"
    );
    assert_eq!(cluster.put_small(2, Some(&name)), id);
    assert!(cluster.gets(1, &id));
}

#[test]
fn the_last_node_that_stays_loses_nothing_to_another() {
    let mut cluster = Cluster::new(2);
    cluster.put_large(1, None);
    cluster.put_large(2, None);
    cluster.slow_down(1);
    cluster.tell(2, Event::LeaveRequested { timeout_ns: SECOND });
    let (_, waiting) = cluster.slow.as_mut().expect("node 1 is slow");
    waiting.push_back(Event::LeaveRequested { timeout_ns: SECOND });
    cluster.catch_up();
    cluster.wait(SECOND);
    assert!(cluster.has_left(1) && cluster.has_left(2));
    assert!(cluster.lost.values().all(|lost| lost.count == 0), "{:?}", cluster.lost);
}

/// Goal: no wait for a name hangs when its holder and both owners end at once. Only the waiting
/// nodes know then that it existed.
#[test]
fn a_name_is_lost_when_its_holder_and_its_owners_end_at_once() {
    let mut cluster = Cluster::new(5);
    let (name, growing) = (cluster.owned_name(4, 5, "x"), cluster.owned_name(4, 5, "y"));
    let id = cluster.put_large(5, Some(&name));
    let (growing, _) = cluster.create(5, Some(&growing));
    let get = cluster.get(1, &growing);
    let inputs = vec![id, named("late")];
    let reduce = Request::Reduce { inputs, op: Op::Sum, count: 2, id: None, ttl_ns: None };
    let Ok(Reply::Reducing { id: sum }) = cluster.asks(2, reduce) else { panic!() };
    let sum = cluster.get(2, &sum);
    let first = cluster.get(3, &named("group/first"));
    [4, 5].iter().for_each(|node| drop(cluster.nodes.remove(&NodeId(*node))));
    [4, 5].iter().for_each(|node| cluster.notice_failure(*node));
    cluster.pass(2 * MERGE_NS);
    for request in [get, sum] {
        let reply = cluster.reply(request);
        assert!(matches!(reply, Err(Error::ObjectLost { .. })), "{reply:?}");
    }
    assert!(!cluster.replies.contains_key(&first), "nobody has put it yet");
}
