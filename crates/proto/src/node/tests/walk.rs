//! What new owners get again, in slices, and what happens before they have all of it.

use super::*;
use crate::{
    id::Name,
    lifetime::Lease,
    machines::{membership::DepartureReason, walk::Part},
};

/// Six objects on node 2 whose owners, 1 and 3, have failed. Node 4 is the primary owner now, and
/// has the announcements of some.
fn with_new_owners() -> (Cluster, Vec<ObjectId>) {
    let slice = Slice { entries: 1, pause_ns: 1 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let is_first = |id: &ObjectId| {
        let mut members = cluster.nodes[&NodeId(2)].members().clone();
        let was_owned =
            members.owners(id).contains(NodeId(1)) && members.owners(id).contains(NodeId(3));
        members.remove(NodeId(1));
        members.remove(NodeId(3));
        was_owned && members.owners(id).primary == NodeId(4)
    };
    let ids = (0..).map(|group| named(&format!("group{group}/x")));
    let mut ids: Vec<ObjectId> = ids.filter(is_first).take(6).collect();
    ids.sort();
    for id in &ids {
        cluster.put_large(2, Some(&id.to_string()));
    }
    cluster.kill(1);
    cluster.kill(3);
    assert!(cluster.knows(4, &ids[0]) && !cluster.knows(4, &ids[5]));
    (cluster, ids)
}

impl Cluster {
    /// Whether an owner has a holder of the object.
    fn knows(&self, owner: u64, id: &ObjectId) -> bool {
        !self.nodes[&NodeId(owner)].directory().holders(id).is_empty()
    }

    /// Another node requests that a node keep an object, which does not exist yet.
    fn expect_replica(&mut self, at: u64, id: ObjectId, instance: Instance) {
        let (inline, lifetime, may_wait) = (None, None, false);
        let meta = array(LARGE);
        let message = Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait };
        self.tell(at, Event::Message { from: instance.node, message });
    }

    fn work_off_all(&mut self) {
        while let Some(at) = self.nodes[&NodeId(2)].walk.deadline() {
            self.now = self.now.max(at);
            self.wait(0);
        }
    }
}

#[test]
fn new_owners_get_every_copy_and_serve_waiting_readers() {
    let (mut cluster, ids) = with_new_owners();
    let waits = cluster.get(4, &ids[5]);
    assert!(!cluster.replies.contains_key(&waits));
    cluster.work_off_all();
    assert!(ids.iter().all(|id| cluster.knows(4, id)));
    got(cluster.reply(waits));
}

#[test]
fn an_object_deleted_before_its_re_announcement_does_not_return() {
    let (mut cluster, ids) = with_new_owners();
    let request = cluster.ask(2, Request::Delete { ids: vec![ids[5].clone()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    assert!(!cluster.has(2, &ids[5]));
    cluster.work_off_all();
    assert!(!cluster.has(2, &ids[5]) && !cluster.knows(4, &ids[5]));
    assert!(ids[..5].iter().all(|id| cluster.has(2, id) && cluster.knows(4, id)));
}

#[test]
fn a_copy_created_between_two_slices_is_announced_once() {
    let (mut cluster, ids) = with_new_owners();
    let id = cluster.put_large(4, None);
    let reading = cluster.get(2, &id);
    let instance = got(cluster.reply(reading));
    cluster.ask(2, Request::Release { instance });
    cluster.work_off_all();
    assert_eq!(cluster.nodes[&NodeId(4)].directory().holders(&id), [NodeId(2), NodeId(4)]);
    assert!(ids.iter().all(|id| cluster.knows(4, id)));
}

/// Goal: a small object outlives its maker at its owners, and they pass it on to a new primary
/// owner, whether that joins before or after the failure is noticed. It can be deleted there.
#[test]
fn a_new_owner_gets_a_small_object_that_no_node_holds() {
    for joins_first in [false, true] {
        let mut cluster = Cluster::new(3);
        let mut later = cluster.nodes[&NodeId(1)].members().clone();
        let former = later.clone();
        later.remove(NodeId(3));
        later.insert(member(4));
        let moves = |id: &ObjectId| {
            !former.owners(id).contains(NodeId(3)) && later.owners(id).primary == NodeId(4)
        };
        let id = (0..).map(|group| named(&format!("group{group}/1"))).find(moves).unwrap();
        cluster.put_small(3, Some(&id.to_string()));
        cluster.nodes.remove(&NodeId(3));
        if !joins_first {
            cluster.notice_failure(3);
        }
        let config = *cluster.nodes[&NodeId(1)].world.config();
        cluster.join(4, config);
        cluster.notice_failure(3);
        for node in [1, 2, 4] {
            let request = cluster.get(node, &id);
            got(cluster.reply(request));
        }
        let name = id.to_string().replace("/1", "/2");
        cluster.put_small(1, Some(&name));
        let prune = Request::Prune { name: name.parse().unwrap(), retain: 1 };
        let request = cluster.ask(1, prune);
        assert_eq!(cluster.reply(request), &Ok(Reply::Done));
        let is_kept =
            |node: &Node| node.directory().without_copies(node.members()).next().is_some();
        assert!(!cluster.nodes.values().any(is_kept), "it was pruned");
    }
}

/// How many messages the longest of these events sends, and of those after them until the walk is
/// over.
fn longest(node: &mut Node, now: &mut Instant, events: impl IntoIterator<Item = Event>) -> usize {
    let mut longest = 0;
    let mut handle = |node: &mut Node, event: Event, now: Instant| {
        let mut actions = Vec::new();
        node.handle(now, event, &mut actions);
        let is_walk = |action: &&Action| match action {
            Action::Send { message, .. } => {
                !matches!(message, Message::Members(_) | Message::Down { .. } | Message::Swim(_))
            }
            _ => false,
        };
        longest = longest.max(actions.iter().filter(is_walk).count());
    };
    // Each comes while the walk for the one before is under way.
    events.into_iter().for_each(|event| handle(node, event, *now));
    while let Some(at) = node.walk.deadline() {
        *now = at.max(*now);
        handle(node, Event::DeadlinePassed, *now);
    }
    longest
}

/// Goal: no event of a membership change handles more than a slice, whatever is held here and
/// elsewhere. Method: count the messages of each event, instead of its time.
#[test]
fn no_event_sends_more_than_a_slice_again() {
    const EACH: u64 = 50;
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let name = |kind: &str, number: u64| named(&format!("{kind}{number}/1"));
    for number in 0..EACH {
        cluster.put_large(1, Some(&name("copy", number).to_string()));
        cluster.ask(1, Request::AcquireLease { id: name("lease", number) });
        cluster.ask(1, Request::Get { id: name("read", number) });
        let reserved = Request::Reserve { name: format!("reserved{number}/1").parse().ok() };
        cluster.ask(1, reserved);
        let id = cluster.put_large(1, None);
        cluster.ask(1, Request::Replicate { id, replicas: 3 });
    }
    let ids = (0..EACH).map(|number| name("watched", number)).collect();
    cluster.ask(1, Request::Wait { ids, count: 1 });
    for serial in 0..EACH {
        // Nothing is left to do for a node that fails.
        cluster.expect_replica(1, name("hosted", serial), Instance { node: NodeId(2), serial });
    }
    let (mut node, mut now) = (cluster.nodes.remove(&NodeId(1)).expect("node 1"), cluster.now);
    // Both owners of an object, and what one object may need: an announcement, a lookup and a
    // replica.
    let most = 3 * 2 * slice.entries;
    let events = [
        Event::PeerUnreachable { node: NodeId(2), is_dead: true },
        Event::PeerUp { member: member(5) },
        Event::PeerReconnected { member: member(3) },
    ];
    let sent = longest(&mut node, &mut now, events);
    assert!(sent > 0 && sent <= most, "{sent} messages, at most {most} expected");
    assert_eq!(node.replicas.incoming(), 0);
}

/// Goal: an owner that does not reply holds up no node that waits for very many of its objects.
#[test]
fn an_event_sends_a_slice_of_what_waits_for_an_unresponsive_owner() {
    const EACH: u64 = 50;
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let absent = |kind: u64, number: u64| {
        let serial = 1000 * kind + number;
        ObjectId::Minted { node: NodeId(2), serial }
    };
    cluster.slow_down(2);
    for number in 0..EACH {
        cluster.ask(1, Request::Get { id: absent(1, number) });
    }
    let ids = (0..EACH).map(|number| absent(2, number)).collect();
    cluster.ask(1, Request::Wait { ids, count: 1 });
    let mut node = cluster.nodes.remove(&NodeId(1)).expect("node 1");
    let (mut longest, mut all) = (0, 0);
    let mut now = node.world.deadline().expect("node 2 owes a reply");
    while node.world.deadline() == Some(now) || node.walk.deadline().is_some() {
        let mut actions = Vec::new();
        node.handle(now, Event::DeadlinePassed, &mut actions);
        let is_repeated =
            |action: &&Action| matches!(action, Action::Send { message: Message::Ask { .. }, .. });
        let sent = actions.iter().filter(is_repeated).count();
        (longest, all) = (longest.max(sent), all + sent);
        now = node.walk.deadline().unwrap_or(now).max(now);
    }
    // Questions that were not sent yet go to both owners. This node is the backup owner of some.
    assert!(longest <= 3 * slice.entries && all as u64 > EACH, "{longest}, {all}");
}

/// Goal: changes that never stop don't keep an owner from what it owns.
/// Method: each is followed by one slice. The walk through everything else takes more than one.
#[test]
fn objects_are_announced_while_members_change_without_end() {
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    for number in 0..50 {
        cluster.put_large(1, Some(&format!("copy{number}/1")));
        cluster.ask(1, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
    }
    let mut node = cluster.nodes.remove(&NodeId(1)).expect("node 1");
    let ids = (0..50).map(|number| named(&format!("copy{number}/1")));
    let is_owner = |id: &ObjectId| node.members().owners(id).contains(NodeId(3));
    let mut left: BTreeSet<ObjectId> = ids.filter(is_owner).collect();
    assert!(left.len() > 10);
    let mut now = cluster.now;
    for _ in 0..200 {
        let mut actions = Vec::new();
        node.handle(now, Event::PeerReconnected { member: member(3) }, &mut actions);
        now = node.walk.deadline().expect("leases are left").max(now);
        node.handle(now, Event::DeadlinePassed, &mut actions);
        for action in actions {
            if let Action::Send { to: NodeId(3), message: Message::Announce(announce) } = action {
                left.remove(&announce.id);
            }
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

/// Goal: several losses in one event are one change.
#[test]
fn an_event_with_several_losses_sends_one_slice_again() {
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(8, 1 << 30, slice);
    (0..50).for_each(|_| drop(cluster.put_large(1, None)));
    let (mut node, mut actions) = (cluster.nodes.remove(&NodeId(1)).unwrap(), Vec::new());
    node.world.begin(cluster.now, &mut actions);
    (2..=6).for_each(|lost| node.remove_member(NodeId(lost), DepartureReason::Left));
    node.walk_after_changes();
    node.world.end(&mut actions);
    let is_announcement = |action: &&Action| match action {
        Action::Send { message, .. } => matches!(message, Message::Announce(_)),
        _ => false,
    };
    let sent = actions.iter().filter(is_announcement).count();
    assert!((1..=2 * slice.entries).contains(&sent), "{sent} announcements");
}

/// Goal: a lease does not end, and no request stalls, because a node with very many objects repeats
/// those first. Method: the owners of a lease fail one after the other, the second one while
/// objects are announced again.
#[test]
fn a_later_change_does_not_wait_for_the_objects_of_an_earlier_one() {
    let slice = Slice { entries: 2, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(5, 1 << 30, slice);
    (0..50).for_each(|_| drop(cluster.put_large(2, None)));
    let mut members = cluster.nodes[&NodeId(2)].members().clone();
    let is_both = |members: &Members, id: &ObjectId, nodes: [u64; 2]| {
        nodes.iter().all(|node| members.owners(id).contains(NodeId(*node)))
    };
    let mut leases: Vec<ObjectId> = (0..200).map(|group| named(&format!("g{group}/x"))).collect();
    leases.retain(|id| is_both(&members, id, [1, 3]));
    for node in [1, 3] {
        members.remove(NodeId(node));
    }
    let lease = leases.into_iter().find(|id| is_both(&members, id, [4, 5])).expect("a name");
    cluster.ask(2, Request::AcquireLease { id: lease });
    let mut node = cluster.nodes.remove(&NodeId(2)).expect("node 2");
    let (mut now, mut actions) = (cluster.now, Vec::new());
    for lost in [1, 3] {
        actions.clear();
        node.handle(
            now,
            Event::PeerUnreachable { node: NodeId(lost), is_dead: true },
            &mut actions,
        );
        for _ in 0..4 {
            now = node.walk.deadline().expect("objects are left").max(now);
            node.handle(now, Event::DeadlinePassed, &mut actions);
        }
        let is_lease = |action: &Action| match action {
            Action::Send { message, .. } => matches!(message, Message::LeaseUpdate { .. }),
            _ => false,
        };
        assert!(actions.iter().any(is_lease), "after node {lost}: {actions:?}");
    }
    // All objects are announced for both changes, and none is left.
    while let Some(at) = node.walk.deadline() {
        now = at.max(now);
        node.handle(now, Event::DeadlinePassed, &mut actions);
    }
}

/// Goal: a client that waits for very many objects and has very many leases holds up its node by a
/// slice at a time, also when it ends. Method: count the messages of each event.
#[test]
fn what_a_client_with_very_much_needs_and_leaves_is_sent_in_slices() {
    const EACH: u64 = 50;
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    for number in 0..EACH {
        cluster.ask(1, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
    }
    let mut node = cluster.nodes.remove(&NodeId(1)).expect("node 1");
    let ids = (0..EACH).map(|number| named(&format!("watched{number}/1"))).collect();
    let (client, request, body) = (CLIENT, RequestId(1000), Request::Wait { ids, count: 1 });
    let mut now = cluster.now;
    let events = [
        Event::Request { client, request, body, deadline: None },
        Event::ClientDisconnected { client, process: None },
    ];
    for event in events {
        let (mut next, mut sent) = (Some(event), 0);
        while let Some(event) = next.take() {
            let mut actions = Vec::new();
            node.handle(now, event, &mut actions);
            let is_sent = |action: &&Action| matches!(action, Action::Send { .. });
            let count = actions.iter().filter(is_sent).count();
            // A question and its cancellation go to two owners, and so does the end of a lease.
            assert!(count <= 4 * slice.entries, "{count} messages");
            sent += count as u64;
            let is_due = |at: &Instant| *at <= now + slice.pause_ns;
            next = node.deadline().filter(is_due).map(|_| Event::DeadlinePassed);
            now = now + slice.pause_ns;
        }
        // This node owns some of them.
        assert!(sent > EACH / 2, "{sent} messages");
    }
    assert_eq!((node.questions.len(), node.client_leases.len()), (0, 0));
}

/// Goal: a wait without a timeout gets the present state of its objects, however long it takes to
/// watch them.
#[test]
fn a_wait_without_a_timeout_watches_all_its_objects() {
    let slice = Slice { entries: 1, pause_ns: SECOND / 2 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let ids: Vec<ObjectId> = (0..8).map(|_| cluster.put_large(2, None)).collect();
    let now = Some(cluster.now);
    let request = cluster.ask_until(1, Request::Wait { ids, count: 8 }, now);
    while !cluster.replies.contains_key(&request) {
        cluster.wait(SECOND / 4);
    }
    assert_eq!(cluster.reply(request), &Ok(Reply::Waited { ready: (0..8).collect() }));
}

/// Goal: what waits for an unresponsive owner waits for nothing else.
/// Method: the node has many reserved names, or repeats many leases, when it finds the owner
/// unresponsive.
#[test]
fn a_backup_owner_gets_the_questions_for_an_unresponsive_owner_at_once() {
    for members_change in [false, true] {
        let slice = Slice { entries: 4, pause_ns: 1000 };
        let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
        for number in 0..50 {
            let name = format!("reserved{number}/1").parse().ok();
            cluster.ask(1, Request::Reserve { name });
            cluster.ask(1, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
        }
        let mut members = cluster.nodes[&NodeId(1)].members().clone();
        members.insert(member(5));
        let ids = (0..).map(|number| named(&format!("absent{number}/1")));
        let owners = [NodeId(2), NodeId(3)];
        let id = ids.into_iter().find(|id| members.owners(id).iter().eq(owners)).expect("a name");
        cluster.slow_down(2);
        cluster.ask(1, Request::Wait { ids: vec![id], count: 1 });
        let mut node = cluster.nodes.remove(&NodeId(1)).expect("node 1");
        let (now, mut actions) = (node.world.deadline().expect("a reply is due"), Vec::new());
        if members_change {
            node.handle(now, Event::PeerUp { member: member(5) }, &mut actions);
            assert!(node.walk.deadline().is_some(), "leases are left");
            actions.clear();
        }
        node.handle(now, Event::DeadlinePassed, &mut actions);
        let is_repeated = |action: &Action| {
            matches!(action, Action::Send { to: NodeId(3), message: Message::Ask { .. } })
        };
        assert!(actions.iter().any(is_repeated), "{members_change}: {actions:?}");
    }
}

/// Goal: a poll gets no outdated state because its node first repeats everything else to the owner.
#[test]
fn a_new_owner_gets_the_questions_before_very_many_leases() {
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    for number in 0..50 {
        cluster.ask(1, Request::AcquireLease { id: named(&format!("lease{number}/1")) });
    }
    cluster.ask(1, Request::Wait { ids: vec![name_of_new_owner(&cluster)], count: 1 });
    let (mut node, mut actions) = (cluster.nodes.remove(&NodeId(1)).unwrap(), Vec::new());
    node.handle(cluster.now, Event::PeerUp { member: member(5) }, &mut actions);
    let is_question = |action: &Action| {
        matches!(action, Action::Send { to: NodeId(5), message: Message::Ask { .. } })
    };
    assert!(actions.iter().any(is_question), "{actions:?}");
}

/// A name whose primary owner is node 5 once that joins.
fn name_of_new_owner(cluster: &Cluster) -> ObjectId {
    let mut members = cluster.nodes[&NodeId(1)].members().clone();
    members.insert(member(5));
    let mut names = (0..).map(|number| named(&format!("reserved{number}/1")));
    names.find(|id| members.owners(id).primary == NodeId(5)).expect("a name")
}

/// Goal: a deleted reservation stays deleted at an owner that is new.
#[test]
fn a_new_owner_gets_the_reservation_of_a_name_before_its_deletion() {
    let slice = Slice { entries: 4, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    for number in 0..50 {
        let name = format!("earlier{number}/1").parse().ok();
        cluster.ask(1, Request::Reserve { name });
    }
    let id = name_of_new_owner(&cluster);
    cluster.ask(1, Request::Reserve { name: id.to_string().parse().ok() });
    let (mut node, mut actions) = (cluster.nodes.remove(&NodeId(1)).unwrap(), Vec::new());
    node.handle(cluster.now, Event::PeerUp { member: member(5) }, &mut actions);
    let (client, request) = (ClientId(1000), RequestId(1000));
    let body = Request::Delete { ids: vec![id.clone()] };
    node.handle(
        cluster.now,
        Event::Request { client, request, body, deadline: None },
        &mut actions,
    );
    let sent = actions.iter().filter_map(|action| match action {
        Action::Send { to: NodeId(5), message: Message::Reserve { id: of, .. } } => {
            Some((of.clone(), true))
        }
        Action::Send { to: NodeId(5), message: Message::Ask { question, .. } } => {
            Some((question.subject()?, false))
        }
        _ => None,
    });
    let sent: Vec<bool> = sent.filter(|(of, _)| *of == id).map(|(_, is_name)| is_name).collect();
    assert_eq!(sent, [true, false]);
}

/// Goal: an owner that gets the objects of a job knows that the job goes on.
/// Method: a node joins while objects are announced for an earlier change, and leases of other jobs
/// come first.
#[test]
fn a_new_owner_gets_the_lease_of_a_job_before_its_objects() {
    let slice = Slice { entries: 2, pause_ns: 1000 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let mut members = cluster.nodes[&NodeId(2)].members().clone();
    members.insert(member(5));
    let names = (0..).map(|number| format!("run{number}"));
    let is_of_new = |name: &String| members.owners(&named(name)).contains(NodeId(5));
    let job: Name = names.into_iter().find(is_of_new).expect("a name").parse().expect("a name");
    for number in 0..100 {
        let (client, request) = (ClientId(1000 + number), RequestId(1000 + number));
        let body = Request::JoinJob { job: format!("other{number}").parse().expect("a name") };
        cluster.tell(2, Event::Request { client, request, body, deadline: None });
    }
    cluster.ask(2, Request::JoinJob { job: job.clone() });
    (0..50).for_each(|_| drop(cluster.put_large(2, None)));
    let mut node = cluster.nodes.remove(&NodeId(2)).expect("node 2");
    let mut now = cluster.now;
    node.handle(now, Event::PeerUnreachable { node: NodeId(1), is_dead: true }, &mut Vec::new());
    while node.walk.current(Part::Objects).is_none() {
        now = node.walk.deadline().expect("objects are left").max(now);
        node.handle(now, Event::DeadlinePassed, &mut Vec::new());
    }
    let mut actions = Vec::new();
    node.handle(now, Event::PeerUp { member: member(5) }, &mut actions);
    while let Some(at) = node.walk.deadline() {
        now = at.max(now);
        node.handle(now, Event::DeadlinePassed, &mut actions);
    }
    let sent = actions.iter().filter_map(|action| match action {
        Action::Send { to: NodeId(5), message } => Some(message),
        _ => None,
    });
    let is_of_it = |message: &&Message| match message {
        Message::LeaseUpdate { lease: Lease::Job(of), .. } => *of == job,
        Message::Announce(announce) => announce.lifetime.is_some(),
        _ => false,
    };
    let first: Vec<&Message> = sent.filter(is_of_it).take(2).collect();
    assert!(
        matches!(first[..], [Message::LeaseUpdate { is_held: true, .. }, _]),
        "the lease comes first: {first:?}"
    );
}
