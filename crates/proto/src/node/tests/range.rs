//! Range reads between whole nodes: their sources, their memory, and what ends them.

use super::*;
use crate::selection::Selection;

const ROWS: Selection = Selection { start: Some(100), stop: Some(200) };

/// Size of the selected rows, of 4 bytes each.
const SIZE: u64 = 400;

fn get_range(id: &ObjectId) -> Request {
    Request::GetRange { id: id.clone(), selection: ROWS }
}

/// The private copy with the selected rows.
fn got_range(reply: &Result<Reply, Error>) -> Instance {
    let Ok(Reply::Got { meta, instance, inline: None, is_range: true, .. }) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(meta, &array(SIZE));
    *instance
}

/// Bytes that a node has charged.
fn used(cluster: &Cluster, node: u64) -> u64 {
    cluster.nodes[&NodeId(node)].table().used()
}

#[test]
fn a_range_is_fetched_alone_and_removed_with_its_release() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(1, None);
    let request = cluster.ask(2, get_range(&id));
    let instance = got_range(cluster.reply(request));
    assert_eq!(instance.node, NodeId(2), "it is an instance of its own");
    assert!(!cluster.has(2, &id));
    assert_eq!(used(&cluster, 2), SIZE + crate::table::COPY_OVERHEAD_BYTES);
    let locations = cluster.ask(3, Request::Locations { id: id.clone(), known: None });
    let Ok(Reply::Locations(holders)) = cluster.reply(locations) else { panic!() };
    assert_eq!(holders.len(), 1, "it is no copy of the object");
    // Deleting the object does not change what the client reads.
    cluster.ask(3, Request::Delete { ids: vec![id] });
    assert_eq!(used(&cluster, 2), SIZE + crate::table::COPY_OVERHEAD_BYTES);
    cluster.ask(2, Request::Release { instance });
    assert_eq!(used(&cluster, 2), 0);
    cluster.assert_at_rest();
}

#[test]
fn an_object_that_is_here_or_arrives_is_not_fetched_twice() {
    let mut cluster = Cluster::new(2);
    let (id, instance) = cluster.create(1, None);
    let whole = cluster.get(2, &id);
    let ranges = [1, 2].map(|node| cluster.ask(node, get_range(&id)));
    cluster.ask(1, Request::Seal { instance });
    let fetched: Vec<_> = cluster.fetches.values().collect();
    assert_eq!(fetched, [&(NodeId(2), instance, NodeId(1))]);
    for request in ranges.into_iter().chain([whole]) {
        let reply = cluster.reply(request).clone();
        assert!(matches!(reply, Ok(Reply::Got { is_range: false, .. })), "{reply:?}");
        assert_eq!(got(&reply), instance);
    }
}

#[test]
fn small_objects_come_whole_and_empty_ranges_without_a_transfer() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_small(1, None);
    for node in 1..=3 {
        let request = cluster.ask(node, get_range(&id));
        let reply = cluster.reply(request);
        assert!(matches!(reply, Ok(Reply::Got { is_range: false, inline: Some(_), .. })));
    }
    let id = cluster.put_large(1, None);
    let selection = Selection { start: Some(-1), stop: Some(5) };
    let request = cluster.ask(2, Request::GetRange { id, selection });
    let Ok(Reply::Got { meta, inline: Some(bytes), is_range: true, .. }) = cluster.reply(request)
    else {
        panic!("{:?}", cluster.reply(request))
    };
    assert_eq!((meta, bytes.len()), (&array(0), 0));
    assert!(cluster.fetches.is_empty());
    cluster.assert_at_rest();
}

#[test]
fn concurrent_ranges_come_from_all_complete_copies() {
    let mut cluster = Cluster::new(4);
    let id = cluster.put_large(1, None);
    let copied = cluster.get(2, &id);
    got(cluster.reply(copied));
    cluster.done.clear();
    // The transfer of the whole ended long ago.
    cluster.wait(2 * SECOND);
    for node in [3, 4, 3, 4] {
        let request = cluster.ask(node, get_range(&id));
        got_range(cluster.reply(request));
    }
    for source in ["n1", "n2"] {
        let sent = cluster.done.iter().filter(|done| done.starts_with(source));
        assert_eq!(sent.count(), 2, "{:?}", cluster.done);
    }
}

/// Goal: a range does not wait for a source that sends nothing while another node has the object,
/// and goes on if no other node has it.
#[test]
fn a_range_leaves_a_source_that_sends_nothing() {
    let mut cluster = Cluster::new(5);
    let id = named(&cluster.owned_name(3, 4, "1"));
    cluster.put_large(1, Some(&id.to_string()));
    cluster.slow_down(1);
    let request = cluster.ask(5, get_range(&id));
    cluster.wait(SECOND / 2);
    assert!(!cluster.replies.contains_key(&request));
    assert_eq!(cluster.fetches.len(), 1, "it is the only one");
    cluster.catch_up();
    got_range(cluster.reply(request));
    let copied = cluster.get(2, &id);
    got(cluster.reply(copied));
    cluster.wait(SECOND);
    cluster.slow_down(2);
    let both = [(); 2].map(|()| cluster.ask(5, get_range(&id)));
    assert_eq!(both.iter().filter(|it| cluster.replies.contains_key(it)).count(), 1);
    cluster.wait(SECOND / 2);
    both.iter().for_each(|request| _ = got_range(cluster.reply(*request)));
    cluster.catch_up();
}

#[test]
fn a_range_waits_for_the_object_or_until_its_end() {
    let mut cluster = Cluster::new(3);
    let id = named("policy/1");
    let request = cluster.ask(3, get_range(&id));
    let (_, instance) = cluster.create(2, Some("policy/1"));
    assert!(!cluster.replies.contains_key(&request), "a client still writes it");
    cluster.ask(2, Request::Seal { instance });
    let instance = got_range(cluster.reply(request));
    cluster.ask(3, Request::Release { instance });
    cluster.assert_ends(1, &get_range(&named("never")), is_timeout);
}

/// A range is requested from node 1, which dies before it has sent anything. Returns the request of
/// node 3.
fn interrupted(has_other_copy: bool) -> (Cluster, RequestId) {
    let mut cluster = Cluster::new(5);
    let id = named(&cluster.owned_name(4, 5, "1"));
    cluster.put_large(1, Some(&id.to_string()));
    cluster.slow_down(1);
    let request = cluster.ask(3, get_range(&id));
    assert!(!cluster.replies.contains_key(&request));
    cluster.slow = None;
    if has_other_copy {
        let copied = cluster.get(2, &id);
        got(cluster.reply(copied));
    }
    cluster.kill(1);
    for _ in 0..4 {
        cluster.wait(2 * SECOND);
    }
    (cluster, request)
}

#[test]
fn another_copy_replaces_a_source_that_dies() {
    let (cluster, request) = interrupted(true);
    got_range(cluster.reply(request));
    let is_it = |done: &String| done.starts_with("n2 sends") && done.ends_with("to n3");
    assert!(cluster.done.iter().any(is_it), "{:?}", cluster.done);
}

#[test]
fn a_range_of_a_lost_object_fails() {
    let (cluster, request) = interrupted(false);
    assert!(matches!(cluster.reply(request), Err(Error::ObjectLost { .. })));
    assert_eq!(used(&cluster, 3), 0);
}

#[test]
fn a_deletion_ends_ranges_in_transfer() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(3, 4, "1"));
    cluster.put_large(1, Some(&id.to_string()));
    cluster.slow_down(1);
    let request = cluster.ask(2, get_range(&id));
    assert!(!cluster.replies.contains_key(&request));
    cluster.ask(4, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(request), &Err(Error::ObjectDeleted { id }));
    assert_eq!(used(&cluster, 2), 0);
    cluster.catch_up();
    cluster.assert_at_rest();
}

#[test]
fn the_backup_owner_replies_if_the_primary_does_not() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(1, 2, "1"));
    cluster.put_large(3, Some(&id.to_string()));
    cluster.slow_down(1);
    let request = cluster.ask(4, get_range(&id));
    assert!(!cluster.replies.contains_key(&request));
    cluster.wait(OWNER_TIMEOUT_NS);
    got_range(cluster.reply(request));
    cluster.catch_up();
    let copied = cluster.get(4, &id);
    got(cluster.reply(copied));
}

/// Goal: a read does not wait long for the owner that lacks the announcement of a copy.
#[test]
fn the_owner_that_reported_an_object_chooses_the_source() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(1, 2, "1"));
    let request = cluster.ask(4, get_range(&id));
    let (_, instance) = cluster.create(3, Some(&id.to_string()));
    cluster.break_path(3, 1);
    cluster.ask(3, Request::Seal { instance });
    cluster.wait(SECOND / 10);
    got_range(cluster.reply(request));
}

#[test]
fn a_late_reply_of_an_owner_has_no_effect() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(3, 4, "1"));
    cluster.put_large(1, Some(&id.to_string()));
    cluster.slow_down(1);
    let request = cluster.ask(2, get_range(&id));
    let begun = cluster.fetches.len();
    // The question about a source came right after the first one, whether the object exists.
    let number = QuestionId(cluster.question_of(2).0 + 1);
    for source in [Some(NodeId(1)), None] {
        let message = Message::Answer { number, answer: Answer::RangeLocated(source) };
        cluster.tell(2, Event::Message { from: NodeId(3), message });
    }
    assert_eq!(cluster.fetches.len(), begun, "it arrives already");
    cluster.catch_up();
    let instance = got_range(cluster.reply(request));
    cluster.ask(2, Request::Release { instance });
    cluster.assert_at_rest();
}

#[test]
fn a_range_waits_for_capacity() {
    let overhead = crate::table::COPY_OVERHEAD_BYTES;
    let mut cluster = Cluster::with_capacity(2, LARGE + overhead);
    let id = cluster.put_large(1, None);
    let full = cluster.put_large(2, None);
    let late = cluster.ask_until(2, get_range(&id), Some(cluster.now + SECOND));
    let request = cluster.ask(2, get_range(&id));
    cluster.wait(SECOND);
    assert!(matches!(cluster.reply(late), Err(Error::StoreFull { needed: SIZE, .. })));
    assert!(!cluster.replies.contains_key(&request));
    cluster.ask(2, Request::Delete { ids: vec![full] });
    got_range(cluster.reply(request));
    let selection = Selection::default();
    let mut small = Cluster::with_capacity(1, 2 * LARGE);
    let id = small.put_large(1, None);
    let request = small.ask(1, Request::GetRange { id, selection });
    got(small.reply(request));
}

#[test]
fn a_range_without_memory_is_fetched_once_there_is_some() {
    let mut cluster = Cluster::new(2);
    let id = cluster.put_large(1, None);
    cluster.refusals = 1;
    let request = cluster.ask(2, get_range(&id));
    for _ in 0..4 {
        cluster.wait(SECOND);
    }
    got_range(cluster.reply(request));
}

#[test]
fn the_end_of_a_client_releases_its_ranges() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(1, None);
    let request = cluster.ask(2, get_range(&id));
    got_range(cluster.reply(request));
    cluster.slow_down(1);
    cluster.ask(2, get_range(&id));
    cluster.tell(2, Event::ClientDisconnected { client: CLIENT, process: None });
    assert_eq!(used(&cluster, 2), 0);
    cluster.catch_up();
    cluster.assert_at_rest();
}

#[test]
fn objects_without_rows_are_refused() {
    let mut cluster = Cluster::new(2);
    let meta = Meta::bytes(LARGE).with_form(crate::meta::Form::Pickle);
    let created = cluster.ask(1, Request::Create { id: None, meta, ttl_ns: None });
    let Ok(Reply::Created { id, instance }) = cluster.reply(created).clone() else { panic!() };
    cluster.ask(1, Request::Seal { instance });
    let request = cluster.ask(2, get_range(&id));
    assert!(matches!(cluster.reply(request), Err(Error::InvalidArgument(_))));
    cluster.assert_at_rest();
}
