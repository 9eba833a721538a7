//! Names of reduce results, and names that are pruned.

use super::*;

fn reduce(inputs: &[&ObjectId], name: &str) -> Request {
    let inputs: Vec<ObjectId> = inputs.iter().map(|id| (*id).clone()).collect();
    let (count, id) = (inputs.len() as u32, Some(name.parse().unwrap()));
    Request::Reduce { inputs, op: Op::Sum, count, id, ttl_ns: None }
}

fn reducing(name: &str) -> Result<Reply, Error> {
    Ok(Reply::Reducing { id: named(name) })
}

fn taken(name: &str, holder: u64) -> Result<Reply, Error> {
    Err(Error::NameTaken { id: named(name), holder: NodeId(holder) })
}

fn put(name: &str) -> Request {
    Request::Put {
        id: Some(name.parse().unwrap()),
        meta: array(8),
        bytes: vec![7; 8].into(),
        ttl_ns: None,
    }
}

fn inputs(name: &str) -> Request {
    Request::Inputs { id: named(name) }
}

fn delete(name: &str) -> Request {
    Request::Delete { ids: vec![named(name)] }
}

impl Cluster {
    fn is_open(&self, request: RequestId) -> bool {
        !self.replies.contains_key(&request)
    }

    pub(super) fn asks(&mut self, node: u64, ask: Request) -> Result<Reply, Error> {
        let request = self.ask(node, ask);
        self.reply(request).clone()
    }
}

#[test]
fn an_owner_has_entries_for_so_many_objects_of_a_member_and_refuses_names_beyond() {
    let mut cluster = Cluster::new(3);
    let [one, two] = ["one", "two"].map(|name| cluster.owned_name(1, 2, name));
    let owner = cluster.nodes.get_mut(&NodeId(1)).unwrap();
    owner.directory.limit_entries(2);
    assert!(cluster.asks(3, put(&one)).is_ok());
    let refused = cluster.asks(3, put(&two)).unwrap_err();
    assert!(matches!(&refused, Error::NoMemory { .. }), "{refused}");
    assert!(refused.to_string().contains("delete objects"), "{refused}");
    assert_eq!(cluster.nodes[&NodeId(3)].table().len(), 1, "the copy is gone");
    // Other members have their own share, and deletions free capacity.
    assert!(cluster.asks(2, put(&two)).is_ok());
    assert!(cluster.asks(2, delete(&two)).is_ok());
    assert!(cluster.asks(3, delete(&one)).is_ok());
    assert!(cluster.asks(3, put(&two)).is_ok());
}

/// Goal: a name reserved for a reduce counts like an object, but not in addition to its result.
#[test]
fn an_owner_limits_the_reserved_names_of_a_member() {
    let mut cluster = Cluster::new(3);
    let [one, two, three] = ["one", "two", "three"].map(|name| cluster.owned_name(1, 2, name));
    let owner = cluster.nodes.get_mut(&NodeId(1)).unwrap();
    owner.directory.limit_entries(2);
    let later = named("later");
    assert_eq!(cluster.asks(3, reduce(&[&later], &one)), reducing(&one));
    for ask in [reduce(&[&later], &two), put(&two)] {
        let refused = cluster.asks(3, ask).unwrap_err();
        assert!(matches!(&refused, Error::NoMemory { .. }), "{refused}");
        assert!(refused.to_string().contains("delete objects"), "{refused}");
    }
    // The owner's own reduces are not charged; other members have their own share.
    assert_eq!(cluster.asks(1, reduce(&[&later], &three)), reducing(&three));
    assert_eq!(cluster.asks(2, reduce(&[&later], &two)), reducing(&two));
    cluster.put_small(1, Some("later"));
    for name in [&one, &two, &three] {
        let request = cluster.get(3, &named(name));
        got(cluster.reply(request));
    }
    assert!(cluster.asks(3, put(&cluster.owned_name(1, 2, "four"))).is_err(), "the result counts");
    assert!(cluster.asks(3, delete(&one)).is_ok());
    assert!(cluster.asks(3, put(&one)).is_ok());
}

#[test]
fn a_named_result_is_got_before_during_and_after_its_reduce() {
    for first in [1, 2, 3] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, first % 3 + 1, "sum");
        let (there, later) = (cluster.put_large(1, None), named("later"));
        let before = cluster.get(3, &named(&name));
        assert_eq!(cluster.asks(2, reduce(&[&there, &later], &name)), reducing(&name));
        let during = [cluster.get(1, &named(&name)), cluster.get(2, &named(&name))];
        let list = cluster.ask(2, inputs(&name));
        assert!([before, during[0], during[1], list].iter().all(|r| cluster.is_open(*r)));
        cluster.put_large(3, Some("later"));
        assert_eq!(cluster.reply(list), &Ok(Reply::Inputs { ids: vec![there, later] }));
        let after = cluster.get(1, &named(&name));
        for (node, request) in [(3, before), (1, during[0]), (2, during[1]), (1, after)] {
            let instance = got(cluster.reply(request));
            cluster.ask(node, Request::Release { instance });
        }
        cluster.assert_at_rest();
    }
}

#[test]
fn a_small_named_result_ends_its_reservation() {
    let mut cluster = Cluster::new(3);
    let input = cluster.put_small(1, None);
    assert_eq!(cluster.asks(2, reduce(&[&input], "sum")), reducing("sum"));
    let request = cluster.get(3, &named("sum"));
    got(cluster.reply(request));
    assert_eq!(cluster.asks(3, put("sum")), taken("sum", 2), "now by the result");
    assert_eq!(cluster.asks(3, delete("sum")), Ok(Reply::Done));
    cluster.put_small(3, Some("sum"));
    cluster.assert_at_rest();
}

#[test]
fn a_name_that_lives_is_refused_to_a_reduce() {
    let mut cluster = Cluster::new(3);
    let input = cluster.put_small(1, None);
    cluster.put_large(1, Some("sum"));
    for node in 1..=3 {
        assert_eq!(cluster.asks(node, reduce(&[&input], "sum")), taken("sum", 1), "at {node}");
        let request = cluster.ask(node, inputs("sum"));
        assert!(matches!(cluster.reply(request), Err(Error::InvalidArgument(_))));
    }
    let request = cluster.get(3, &named("sum"));
    cluster.ask(3, Request::Release { instance: got(cluster.reply(request)) });
    cluster.assert_at_rest();
}

#[test]
fn a_result_can_not_have_the_name_of_an_input() {
    let mut cluster = Cluster::new(1);
    let reply = cluster.asks(1, reduce(&[&named("x")], "x"));
    assert!(matches!(reply, Err(Error::InvalidArgument(_))));
    cluster.assert_at_rest();
}

#[test]
fn a_name_is_kept_for_a_reduce_against_puts_and_other_reduces() {
    let mut cluster = Cluster::new(3);
    let later = named("later");
    assert_eq!(cluster.asks(2, reduce(&[&later], "sum")), reducing("sum"));
    for node in 1..=3 {
        assert_eq!(cluster.asks(node, reduce(&[&later], "sum")), taken("sum", 2), "at {node}");
        assert_eq!(cluster.asks(node, put("sum")), taken("sum", 2), "at {node}");
        let create =
            Request::Create { id: Some("sum".parse().unwrap()), meta: array(LARGE), ttl_ns: None };
        assert_eq!(cluster.asks(node, create), taken("sum", 2), "at {node}");
    }
    cluster.put_small(1, Some("later"));
    let request = cluster.get(3, &named("sum"));
    got(cluster.reply(request));
    cluster.assert_at_rest();
}

#[test]
fn a_name_is_free_when_its_reduce_failed() {
    let mut cluster = Cluster::new(3);
    let until = Some(cluster.now + SECOND);
    let request = cluster.ask_until(2, reduce(&[&named("never")], "sum"), until);
    assert_eq!(cluster.reply(request), &reducing("sum"));
    let (reader, list) = (cluster.get(3, &named("sum")), cluster.ask(2, inputs("sum")));
    cluster.wait(SECOND);
    assert!(is_timeout(cluster.reply(reader)) && is_timeout(cluster.reply(list)));
    cluster.put_small(1, Some("sum"));
    let request = cluster.get(3, &named("sum"));
    got(cluster.reply(request));
    cluster.assert_at_rest();
}

#[test]
fn a_name_that_is_deleted_ends_its_reduce() {
    for first in [1, 2, 3] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, first % 3 + 1, "sum");
        assert_eq!(cluster.asks(2, reduce(&[&named("never")], &name)), reducing(&name));
        let readers = [1, 2, 3].map(|node| cluster.get(node, &named(&name)));
        let list = cluster.ask(2, inputs(&name));
        assert_eq!(cluster.asks(3, delete(&name)), Ok(Reply::Done));
        let deleted = Err(Error::ObjectDeleted { id: named(&name) });
        for request in readers.into_iter().chain([list]) {
            assert_eq!(cluster.reply(request), &deleted, "owned by {first}");
        }
        cluster.assert_at_rest();
        cluster.put_small(2, Some(&name));
    }
}

#[test]
fn a_question_for_a_name_ends_whatever_happens_to_it() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "sum");
    cluster.slow_down(3);
    cluster.assert_ends_while_slow(2, &reduce(&[&named("never")], &name));
    cluster.catch_up();
    cluster.assert_at_rest();
    cluster.put_small(1, Some(&name));
}

impl Cluster {
    /// Like `assert_ends`, for a request that waits for a slow node.
    fn assert_ends_while_slow(&mut self, node: u64, ask: &Request) {
        let cancelled = self.ask(node, ask.clone());
        assert!(self.is_open(cancelled));
        self.tell(node, Event::Cancelled { client: CLIENT, request: cancelled });
        let orphaned = self.ask(node, ask.clone());
        self.tell(node, Event::ClientDisconnected { client: CLIENT, process: None });
        let late = self.ask_until(node, ask.clone(), Some(self.now + SECOND));
        self.now = self.now + SECOND;
        self.tell(node, Event::DeadlinePassed);
        for request in [cancelled, orphaned, late] {
            assert!(is_timeout(self.reply(request)));
        }
    }
}

#[test]
fn a_request_for_the_inputs_during_a_reservation_gets_a_reply() {
    for is_given_up in [false, true] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(3, 1, "sum");
        cluster.put_small(1, Some(&name));
        cluster.slow_down(3);
        let request = cluster.ask(2, reduce(&[&named("never")], &name));
        let list = cluster.ask(2, inputs(&name));
        if is_given_up {
            cluster.tell(2, Event::Cancelled { client: CLIENT, request });
            assert!(matches!(cluster.reply(list), Err(Error::ObjectLost { .. })));
        }
        cluster.catch_up();
        if !is_given_up {
            assert_eq!(cluster.reply(request), &taken(&name, 1));
            assert_eq!(cluster.reply(list), &taken(&name, 1));
        }
        cluster.assert_at_rest();
    }
}

/// The caller is the backup owner: the deletion of the previous object of the name arrives while it
/// reserves the name.
#[test]
fn deleting_the_previous_object_of_a_name_does_not_end_a_reduce() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "sum");
    cluster.put_small(1, Some(&name));
    cluster.slow_down(3);
    let deletion = cluster.ask(1, delete(&name));
    let request = cluster.ask(2, reduce(&[&named("later")], &name));
    cluster.catch_up();
    assert_eq!(cluster.reply(deletion), &Ok(Reply::Done));
    assert_eq!(cluster.reply(request), &reducing(&name));
    cluster.put_small(1, Some("later"));
    let reader = cluster.get(1, &named(&name));
    got(cluster.reply(reader));
    cluster.assert_at_rest();
}

#[test]
fn a_deletion_during_a_reservation_leaves_no_request_open() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "sum");
    cluster.slow_down(3);
    let request = cluster.ask(2, reduce(&[&named("never")], &name));
    let deletion = cluster.ask(1, delete(&name));
    cluster.catch_up();
    assert_eq!(cluster.reply(deletion), &Ok(Reply::Done));
    assert!(!cluster.is_open(request));
    let reader = cluster.get(1, &named(&name));
    assert!(!cluster.replies.contains_key(&reader), "it asked after the deletion");
    cluster.put_small(2, Some(&name));
    got(cluster.reply(reader));
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_of_a_name_that_an_earlier_one_saw_deleted_waits_for_its_next_put() {
    let mut cluster = Cluster::new(3);
    let [a, b] = ["x/a", "x/b"].map(named);
    let Request::Reduce { inputs, op, id, ttl_ns, .. } =
        reduce(&[&a, &b, &named("x/c")], "sum/first")
    else {
        unreachable!()
    };
    let first = Request::Reduce { inputs, op, count: 2, id, ttl_ns };
    assert_eq!(cluster.asks(3, first), reducing("sum/first"));
    cluster.put_small(1, Some("x/a"));
    cluster.ask(1, delete("x/a"));
    assert_eq!(cluster.asks(3, reduce(&[&a, &b], "sum/second")), reducing("sum/second"));
    let get = cluster.get(2, &named("sum/second"));
    assert!(!cluster.replies.contains_key(&get), "{:?}", cluster.replies[&get]);
}

#[test]
fn an_end_that_the_second_owner_remembers_does_not_stop_a_transfer() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(1, 2, "x");
    let id = named(&name);
    let (_, instance) = cluster.create(1, Some(&name));
    let get = cluster.get(3, &id);
    let error = Error::ObjectDeleted { id: id.clone() };
    // The first owner's answer has closed the question.
    let message = Message::Answer { number: QuestionId(1), answer: Answer::Gone(error) };
    cluster.tell(3, Event::Message { from: NodeId(2), message });
    assert!(!cluster.replies.contains_key(&get), "the first owner knows what lives");
    cluster.ask(1, Request::Seal { instance });
    cluster.ask(3, Request::Release { instance: got(cluster.reply(get)) });
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_that_is_late_for_its_name_leaves_a_put_of_the_same_node_alone() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 1, "sum");
    cluster.put_small(2, Some(&name));
    cluster.slow_down(3);
    let until = Some(cluster.now + SECOND);
    let request = cluster.ask_until(2, reduce(&[&named("never")], &name), until);
    cluster.now = cluster.now + SECOND;
    cluster.tell(2, Event::DeadlinePassed);
    assert!(is_timeout(cluster.reply(request)));
    cluster.catch_up();
    let reader = cluster.get(1, &named(&name));
    got(cluster.reply(reader));
    cluster.assert_at_rest();
}

#[test]
fn a_name_is_free_when_the_node_that_folds_it_died() {
    for (first, second) in [(1, 2), (1, 3), (2, 1), (3, 1)] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, second, "sum");
        assert_eq!(cluster.asks(3, reduce(&[&named("never")], &name)), reducing(&name));
        let readers = [1, 2].map(|node| cluster.get(node, &named(&name)));
        cluster.kill(3);
        cluster.wait(2 * SECOND);
        for request in readers {
            let reply = cluster.replies.get(&request);
            let is_lost = matches!(reply, Some(Err(Error::ObjectLost { .. })));
            assert!(is_lost, "{reply:?}, owned by {first}");
        }
        cluster.assert_at_rest();
        cluster.put_small(2, Some(&name));
        let request = cluster.get(1, &named(&name));
        got(cluster.reply(request));
    }
}

#[test]
fn a_name_is_kept_by_the_next_owner() {
    let mut cluster = Cluster::new(4);
    let name = cluster.owned_name(4, 3, "sum");
    assert_eq!(cluster.asks(2, reduce(&[&named("later")], &name)), reducing(&name));
    cluster.kill(4);
    assert_eq!(cluster.asks(1, put(&name)), taken(&name, 2));
    cluster.kill(3);
    assert_eq!(cluster.asks(1, put(&name)), taken(&name, 2));
    cluster.put_small(1, Some("later"));
    let request = cluster.get(1, &named(&name));
    got(cluster.reply(request));
    cluster.assert_at_rest();
}

#[test]
fn a_reservation_is_repeated_when_its_owner_fails() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 1, "sum");
    cluster.slow_down(3);
    let request = cluster.ask(2, reduce(&[&named("later")], &name));
    assert!(cluster.is_open(request));
    cluster.slow = None;
    cluster.kill(3);
    assert_eq!(cluster.reply(request), &reducing(&name));
    assert_eq!(cluster.asks(1, put(&name)), taken(&name, 2));
}

#[test]
fn a_leaving_node_releases_its_names() {
    for (first, second) in [(1, 2), (3, 1), (2, 3)] {
        let mut cluster = Cluster::new(3);
        let name = cluster.owned_name(first, second, "sum");
        assert_eq!(cluster.asks(3, reduce(&[&named("never")], &name)), reducing(&name));
        let readers = [1, 2].map(|node| cluster.get(node, &named(&name)));
        let list = cluster.ask(3, inputs(&name));
        cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
        cluster.wait(2 * SECOND);
        for request in readers.into_iter().chain([list]) {
            let reply = cluster.replies.get(&request);
            let is_told = matches!(reply, Some(Err(Error::NodeDown(_) | Error::ObjectLost { .. })));
            assert!(is_told, "{reply:?}, owned by {first}");
        }
        cluster.put_small(2, Some(&name));
        cluster.assert_at_rest();
    }
}

#[test]
fn a_node_that_leaves_during_a_reservation_replies_first() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(2, 1, "sum");
    cluster.slow_down(2);
    let request = cluster.ask(3, reduce(&[&named("never")], &name));
    cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    assert!(matches!(cluster.reply(request), Err(Error::NodeDown(_))));
    cluster.catch_up();
    cluster.put_small(1, Some(&name));
    cluster.assert_at_rest();
}

#[test]
fn a_small_put_canceled_during_its_claim_leaves_nothing() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 1, "x");
    cluster.slow_down(3);
    let request = cluster.ask(2, put(&name));
    cluster.tell(2, Event::Cancelled { client: CLIENT, request });
    cluster.catch_up();
    cluster.wait(2 * SECOND);
    let until = Some(cluster.now);
    let reader = cluster.ask_until(1, Request::Get { id: named(&name) }, until);
    assert!(is_timeout(cluster.reply(reader)), "{:?}", cluster.reply(reader));
    cluster.put_large(1, Some(&name));
    cluster.assert_at_rest();
}

fn prune(name: &str, keep: u64) -> Request {
    Request::Prune { name: name.parse().unwrap(), retain: keep }
}

impl Cluster {
    /// The numbers of the existing names under `policy/`.
    fn versions(&self) -> Vec<u64> {
        let copies = self.nodes.values().flat_map(|node| node.table().iter());
        let names = copies.filter_map(|(_, copy)| match &copy.id {
            ObjectId::Named(name) => name.version(),
            ObjectId::Minted { .. } => None,
        });
        let mut versions: Vec<u64> = names.collect();
        versions.sort_unstable();
        versions
    }
}

#[test]
fn a_prune_keeps_the_newest() {
    let cases: [(u64, u64, &[u64]); 7] = [
        (12, 1, &[12]),
        (12, 2, &[9, 12]),
        (12, 4, &[3, 4, 9, 12]),
        (12, 5, &[1, 3, 4, 9, 12]),
        (12, u64::MAX, &[1, 3, 4, 9, 12]),
        // Newer names remain, whatever the order of arrival.
        (4, 1, &[4, 9, 12]),
        // A name that does not exist yet, or no longer exists.
        (10, 2, &[9, 12]),
    ];
    for (version, keep, left) in cases {
        let mut cluster = Cluster::new(3);
        for (node, version) in [(1, 9), (2, 1), (3, 12), (1, 3), (2, 4)] {
            cluster.put_small(node, Some(&format!("policy/{version}")));
        }
        assert_eq!(cluster.asks(2, prune(&format!("policy/{version}"), keep)), Ok(Reply::Done));
        assert_eq!(cluster.versions(), left, "of {version}, {keep}");
        let latest = Request::Latest { prefix: "policy/".into(), after: None };
        let name = "policy/12".parse().unwrap();
        assert_eq!(cluster.asks(1, latest), Ok(Reply::Latest { name }));
        cluster.assert_at_rest();
    }
}

#[test]
fn a_prune_leaves_other_names_alone() {
    let mut cluster = Cluster::new(2);
    for name in ["policy/best", "policy/old/1", "policy", "policyx/1"] {
        cluster.put_small(1, Some(name));
    }
    assert_eq!(cluster.asks(2, prune("policy/9", 1)), Ok(Reply::Done));
    assert_eq!(cluster.nodes[&NodeId(1)].table().iter().count(), 4);
    for ask in [prune("policy/best", 1), prune("policy", 1), prune("policy/9", 0)] {
        assert!(matches!(cluster.asks(1, ask), Err(Error::InvalidArgument(_))));
    }
    cluster.assert_at_rest();
}

#[test]
fn a_prune_ends_puts_in_progress_and_times_out() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(3, 2, "1");
    let newer = name.replace("/1", "/2");
    let (_, instance) = cluster.create(1, Some(&name));
    assert_eq!(cluster.asks(1, prune(&newer, 1)), Ok(Reply::Done));
    let sealed = cluster.asks(1, Request::Seal { instance });
    assert_eq!(sealed, Ok(Reply::Put { id: named(&name) }), "it has been put, and deleted");
    cluster.slow_down(3);
    cluster.assert_ends_while_slow(1, &prune(&newer, 1));
    let request = cluster.ask(1, prune(&newer, 1));
    assert!(cluster.is_open(request));
    cluster.slow = None;
    cluster.kill(3);
    assert_eq!(cluster.reply(request), &Ok(Reply::Done), "the next owner has answered");
    cluster.assert_at_rest();
}
