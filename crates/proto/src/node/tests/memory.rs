//! A shell with less memory than the capacity.

use super::*;

impl Cluster {
    pub(super) fn lack_memory(&mut self, node: u64) {
        self.without_memory.insert(NodeId(node));
    }

    /// Gives a node memory again, and waits until pending allocations are retried.
    pub(super) fn has_memory_again(&mut self, node: u64) {
        self.without_memory.remove(&NodeId(node));
        self.wait(SECOND);
    }
}

#[test]
fn copies_that_may_go_make_way_when_the_system_has_no_memory() {
    let mut cluster = Cluster::new(2);
    let ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    for id in &ids {
        let request = cluster.get(2, id);
        let instance = got(cluster.reply(request));
        cluster.ask(2, Request::Release { instance });
    }
    // Each evicted copy frees enough for one.
    cluster.refusals = 2;
    let (id, instance) = cluster.create(2, None);
    cluster.ask(2, Request::Seal { instance });
    let left: Vec<bool> = ids.iter().map(|id| cluster.has(2, id)).collect();
    assert_eq!(left, [false, false, true], "least recently used first");
    assert!(cluster.has(2, &id) && cluster.has(1, &ids[0]));
}

#[test]
fn a_copy_that_its_reader_has_copied_is_evicted_first() {
    let mut cluster = Cluster::new(2);
    let ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    for (number, id) in ids.iter().enumerate() {
        let request = cluster.get(2, id);
        let instance = got(cluster.reply(request));
        let release = if number == 1 {
            Request::ReleaseCopied { instance }
        } else {
            Request::Release { instance }
        };
        cluster.ask(2, release);
    }
    cluster.refusals = 1;
    let (_, instance) = cluster.create(2, None);
    cluster.ask(2, Request::Seal { instance });
    let left: Vec<bool> = ids.iter().map(|id| cluster.has(2, id)).collect();
    assert_eq!(left, [true, false, true]);
}

#[test]
fn puts_gets_and_results_wait_for_memory_and_go_on_when_there_is_some() {
    let mut cluster = Cluster::new(2);
    let there = cluster.put_large(2, None);
    cluster.lack_memory(1);
    let put = cluster.ask(1, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    let get = cluster.get(1, &there);
    let reduce = Request::Reduce {
        inputs: vec![there.clone()],
        op: Op::Sum,
        count: 1,
        id: None,
        ttl_ns: None,
    };
    let reduce = cluster.ask(1, reduce);
    let Ok(Reply::Reducing { id }) = cluster.reply(reduce).clone() else { panic!() };
    let sum = cluster.get(1, &id);
    for _ in 0..10 {
        cluster.wait(SECOND);
    }
    assert!([put, get, sum].iter().all(|request| !cluster.replies.contains_key(request)));
    cluster.has_memory_again(1);
    assert!(matches!(cluster.reply(put), Ok(Reply::Created { .. })));
    assert!(cluster.fetches.values().any(|(to, _, from)| (to.0, from.0) == (1, 2)));
    assert!(cluster.has(1, &id));
}

#[test]
fn waiting_allocations_are_retried_when_memory_is_freed() {
    let mut cluster = Cluster::new(1);
    let first = cluster.put_large(1, None);
    cluster.lack_memory(1);
    let put = cluster.ask(1, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    cluster.without_memory.clear();
    assert!(!cluster.replies.contains_key(&put));
    cluster.ask(1, Request::Delete { ids: vec![first] });
    cluster.wait(2_000_000);
    assert!(matches!(cluster.reply(put), Ok(Reply::Created { .. })));
}

#[test]
fn an_allocation_timeout_names_the_limit_and_the_largest_copies() {
    let mut cluster = Cluster::new(2);
    let there = cluster.put_large(2, None);
    let here = cluster.put_large(1, None);
    cluster.lack_memory(1);
    let until = Some(cluster.now + SECOND);
    let put =
        cluster.ask_until(1, Request::Create { id: None, meta: array(LARGE), ttl_ns: None }, until);
    let get = cluster.ask_until(1, Request::Get { id: there }, until);
    cluster.wait(SECOND);
    for request in [put, get] {
        let Err(Error::NoMemory { needed: LARGE, detail }) = cluster.reply(request) else {
            panic!("{:?}", cluster.reply(request));
        };
        let kept = format!("{here} of {LARGE} bytes (pinned until it is deleted)");
        assert!(detail.contains("/a/group") && detail.contains(&kept), "{detail}");
    }
    cluster.ask(1, Request::Delete { ids: vec![here] });
    cluster.has_memory_again(1);
    cluster.assert_at_rest();
}

#[test]
fn one_that_is_taken_back_while_it_waits_holds_up_no_other() {
    let mut cluster = Cluster::new(1);
    cluster.lack_memory(1);
    let create = || Request::Create { id: None, meta: array(LARGE), ttl_ns: None };
    let requests: Vec<RequestId> = (0..4).map(|_| cluster.ask(1, create())).collect();
    cluster.tell(1, Event::Cancelled { client: CLIENT, request: requests[0] });
    cluster.tell(1, Event::Cancelled { client: CLIENT, request: requests[2] });
    cluster.has_memory_again(1);
    for at in [1, 3] {
        assert!(matches!(cluster.reply(requests[at]), Ok(Reply::Created { .. })));
    }
}
