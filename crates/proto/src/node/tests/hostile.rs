//! What one member says to harm another, one message after the other: what it can't do, and what it can.

use super::*;
use crate::{
    limits::{FOLDS_MAX, INLINE_BYTES_MAX},
    message::{Announce, Found, Progress, Receives},
};

impl Cluster {
    /// A member says something to another one.
    fn say(&mut self, from: u64, to: u64, message: Message) {
        self.tell(to, Event::Message { from: NodeId(from), message });
    }

    /// A member says what is not listened to.
    fn assert_refused(&mut self, from: u64, to: u64, message: Message) {
        let words = format!("n{to} refuses {:?} of n{from}", Kind::of(&message));
        let before = self.done.len();
        self.say(from, to, message);
        assert!(self.done[before..].contains(&words), "{words}: {:?}", &self.done[before..]);
    }

    fn holders(&self, owner: u64, id: &ObjectId) -> Vec<u64> {
        let holders = self.nodes[&NodeId(owner)].directory().holders(id);
        holders.into_iter().map(|node| node.0).collect()
    }

    /// Four nodes, and a name that the nodes 1 and 2 own. Node 4 is the one to harm others.
    fn of_four(suffix: &str) -> (Self, String) {
        let cluster = Self::new(4);
        let name = cluster.owned_name(1, 2, suffix);
        (cluster, name)
    }
}

fn deleted(id: &ObjectId) -> Error {
    Error::ObjectDeleted { id: id.clone() }
}

fn instance(node: u64, serial: u64) -> Instance {
    Instance { node: NodeId(node), serial }
}

fn minted(node: u64, serial: u64) -> ObjectId {
    ObjectId::Minted { node: NodeId(node), serial }
}

fn announce(id: &ObjectId, instance: Instance, meta: Meta, progress: Progress) -> Message {
    let (id, origin, claim) = (id.clone(), true, false);
    Message::Announce(Announce { id, instance, meta, origin, progress, claim, lifetime: None })
}

fn ones(size: u64) -> Inline {
    vec![1; size as usize].into()
}

#[test]
fn the_next_instance_of_a_node_can_not_be_given_to_it() {
    let mut cluster = Cluster::new(3);
    for serial in 0..9 {
        let (id, inline, may_wait) = (minted(1, serial), Some(ones(8)), true);
        let instance = instance(1, serial + 1);
        cluster.say(
            2,
            1,
            Message::Adopt { id, instance, meta: array(8), inline, lifetime: None, may_wait },
        );
    }
    let id = cluster.put_small(1, None);
    assert!(cluster.has(1, &id));
}

/// Goal: two objects that are told to be one instance do not both get memory.
#[test]
fn one_instance_that_waits_for_room_under_two_names_comes_once() {
    let mut cluster = Cluster::with_capacity(3, 2 * (LARGE + 4096));
    let held = [(), ()].map(|()| cluster.put_large(1, None));
    let ids = [1, 2].map(|serial| minted(2, serial + 1000));
    let gets = ids.clone().map(|id| cluster.get(1, &id));
    for id in ids {
        let source = Source::Holder { node: NodeId(2), reason: Reason::OnlyHolder };
        let (instance, meta) = (instance(2, 7), Meta::bytes(LARGE));
        cluster.say(2, 1, Message::Located { id, instance, meta, source, lifetime: None });
    }
    assert!(!gets.iter().any(|request| cluster.replies.contains_key(request)));
    let request = cluster.ask(1, Ask::Delete { ids: held.to_vec() });
    assert_eq!(cluster.reply(request), &Ok(Answer::Done));
    // Which of them the instance is can't be told: the second is looked for again.
    assert!(!gets.iter().any(|request| cluster.replies.contains_key(request)));
    let copies = cluster.nodes[&NodeId(1)].table().iter().filter(|(it, _)| *it == instance(2, 7));
    assert_eq!(copies.count(), 1);
}

/// Goal: an owner that gives another object the instance of an honest one does not keep that from a node.
#[test]
fn what_an_owner_said_to_be_an_instance_makes_way_for_what_it_is() {
    let (mut cluster, name) = Cluster::of_four("honest");
    let false_name: ObjectId = cluster.owned_name(4, 2, "false").parse().unwrap();
    let id = cluster.put_large(2, Some(&name));
    let real = cluster.nodes[&NodeId(2)].table().current(&id).unwrap();
    let lied_to = cluster.get(3, &false_name);
    let source = Source::Holder { node: NodeId(4), reason: Reason::OnlyHolder };
    let (of, meta) = (false_name.clone(), array(LARGE));
    cluster.say(4, 3, Message::Located { id: of, instance: real, meta, source, lifetime: None });
    let told = |cluster: &Cluster| cluster.nodes[&NodeId(3)].table().get(real).unwrap().id.clone();
    assert_eq!(told(&cluster), false_name);
    let get = cluster.get(3, &id);
    assert!(matches!(cluster.reply(get), Ok(Answer::Got { id: got, .. }) if *got == id));
    assert_eq!(told(&cluster), id);
    assert!(!cluster.replies.contains_key(&lied_to));
}

/// Goal: an owner that gives another object the instance of an honest one keeps no node from finding that.
#[test]
fn what_an_owner_said_to_be_an_instance_is_found_as_what_it_is() {
    let (mut cluster, name) = Cluster::of_four("found");
    let false_name: ObjectId = cluster.owned_name(4, 2, "false").parse().unwrap();
    let id = cluster.put_large(2, Some(&name));
    let real = cluster.nodes[&NodeId(2)].table().current(&id).unwrap();
    cluster.get(3, &false_name);
    let source = Source::Holder { node: NodeId(2), reason: Reason::OnlyHolder };
    let (of, meta) = (false_name.clone(), array(LARGE));
    cluster.say(4, 3, Message::Located { id: of, instance: real, meta, source, lifetime: None });
    assert_eq!(cluster.nodes[&NodeId(3)].table().get(real).unwrap().id, false_name);
    let found = cluster.ask(3, Ask::Wait { ids: vec![id.clone()], count: 1 });
    assert!(cluster.reply(found).is_ok());
    let other = cluster.put_large(3, None);
    let (inputs, op, count) = (vec![id, other], Op::Sum, 2);
    let reduce = cluster.ask(3, Ask::Reduce { inputs, op, count, id: None, ttl_ns: None });
    let Ok(Answer::Reducing { id: sum }) = cluster.reply(reduce).clone() else { panic!() };
    let get = cluster.get(3, &sum);
    assert!(matches!(cluster.reply(get), Ok(Answer::Got { id: got, .. }) if *got == sum));
}

/// Goal: a node that was told a lie of an instance does not say that it keeps that for its maker.
#[test]
fn the_maker_of_an_instance_is_believed_before_an_owner_of_another_object() {
    let mut cluster = Cluster::new(4);
    let false_name: ObjectId = cluster.owned_name(4, 2, "false").parse().unwrap();
    let id = cluster.put_small(1, None);
    let real = cluster.nodes[&NodeId(1)].table().current(&id).unwrap();
    let (of, inline, may_wait) = (false_name.clone(), Some(ones(8)), true);
    cluster.say(
        4,
        3,
        Message::Adopt { id: of, instance: real, meta: array(8), inline, may_wait, lifetime: None },
    );
    let (of, source) = (false_name.clone(), Source::Inline(ones(8)));
    cluster.say(
        4,
        3,
        Message::Located { id: of, instance: real, meta: array(8), source, lifetime: None },
    );
    assert!(cluster.has(3, &false_name));
    let bytes = cluster.nodes[&NodeId(1)].table().get(real).unwrap().inline.clone();
    let (of, may_wait) = (id.clone(), false);
    cluster.say(
        1,
        3,
        Message::Adopt {
            id: of,
            instance: real,
            meta: array(8),
            inline: bytes,
            may_wait,
            lifetime: None,
        },
    );
    assert!(cluster.has(3, &id) && !cluster.has(3, &false_name));
}

/// Goal: a node looks again for an object that it was receiving when the maker said that it made another one.
#[test]
fn what_its_maker_says_to_be_another_object_is_looked_for_again() {
    let (mut cluster, name) = Cluster::of_four("late");
    let (id, made) = cluster.create(4, Some(&name));
    let get = cluster.get(3, &id);
    assert!(cluster.nodes[&NodeId(3)].pulls.is_receiving(&id));
    let (of, meta, inline, may_wait) = (id.clone(), array(8), Some(ones(8)), true);
    cluster.say(
        4,
        3,
        Message::Adopt { id: of, instance: made, meta, inline, lifetime: None, may_wait },
    );
    assert!(!cluster.nodes[&NodeId(3)].pulls.is_arriving(&id));
    cluster.ask(4, Ask::Seal { instance: made });
    cluster.wait(SECOND);
    assert!(matches!(cluster.reply(get), Ok(Answer::Got { id: got, .. }) if *got == id));
}

/// Goal: an adoption that its asker takes back ends the search for the object.
#[test]
fn an_adoption_that_is_taken_back_is_sought_no_more() {
    let (mut cluster, name) = Cluster::of_four("never");
    let (id, inline): (ObjectId, _) = (name.parse().unwrap(), Some(ones(8)));
    let (instance, may_wait, meta) = (instance(4, 1000), false, array(8));
    cluster.say(
        4,
        3,
        Message::Adopt { id: id.clone(), instance, meta, inline, may_wait, lifetime: None },
    );
    assert_eq!(cluster.nodes[&NodeId(3)].adoptions.coming(), 1);
    cluster.say(2, 3, Message::Unkeep { id: id.clone(), instance });
    assert_eq!(cluster.nodes[&NodeId(3)].adoptions.coming(), 1, "another did not ask for it");
    cluster.say(4, 3, Message::Unkeep { id, instance });
    cluster.assert_at_rest();
}

#[test]
fn what_is_too_long_or_of_another_maker_is_not_sound() {
    let (mine, other) = (minted(1, 1), instance(2, 1));
    let size = INLINE_BYTES_MAX + 1;
    let long = Progress::Inline(ones(size));
    let sound = Progress::Inline(ones(8));
    let down = |length| {
        let reason = "x".repeat(length);
        Message::Down { node: NodeId(3), incarnation: 1, reason }
    };
    let source = Source::Inline(ones(size));
    let (id, meta) = (mine.clone(), Meta::bytes(size));
    for message in [
        announce(&mine, instance(1, 1), Meta::bytes(size), long),
        announce(&mine, other, Meta::bytes(8), sound.clone()),
        Message::Located { id: id.clone(), instance: instance(1, 1), meta, source, lifetime: None },
        Message::Remember { id: id.clone(), instances: vec![other], error: None, pruned: false },
        Message::Locate {
            id,
            avoid: vec![],
            not_here: Some((NodeId(2), other)),
            receives: Receives::default(),
            seen: false,
        },
        down(1000),
    ] {
        assert!(!message.is_sound(), "{message:?}");
    }
    assert!(announce(&mine, instance(1, 1), Meta::bytes(8), sound).is_sound());
    assert!(down(100).is_sound());
}

/// Goal: an owner that holds a copy of what it was told wrongly says nothing unsound to itself either.
#[test]
fn what_a_node_says_to_itself_is_looked_at_too() {
    let mut cluster = Cluster::new(1);
    let (id, meta) = (minted(1, 1000), Meta::bytes(8));
    let found = Found {
        instance: instance(1, 1000),
        meta,
        holder: NodeId(1),
        inline: Some(ones(16)),
        complete: true,
    };
    let inputs = vec![id.clone()];
    cluster.ask(1, Ask::Reduce { inputs, op: Op::Sum, count: 1, id: None, ttl_ns: None });
    cluster.say(1, 1, Message::Found { id, found: Some(found) });
    assert_eq!(
        cluster.nodes[&NodeId(1)].unfinished().filter(|it| it.contains("reduces")).count(),
        1
    );
}

/// Goal: what owners say is heard from owners only.
#[test]
fn only_an_owner_ends_an_object_or_says_where_it_is() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let missing = named(&cluster.owned_name(1, 2, "missing"));
    let get = cluster.get(3, &missing);
    let (error, meta) = (deleted(&missing), array(8));
    let found = Found {
        instance: instance(4, 1),
        meta: meta.clone(),
        holder: NodeId(4),
        inline: Some(ones(8)),
        complete: true,
    };
    let source = Source::Inline(ones(8));
    for message in [
        Message::Drop { id: id.clone(), instance: copy, error: Some(deleted(&id)) },
        Message::Stranded { id: id.clone(), instance: copy, error: deleted(&id) },
        Message::Redirect { id: id.clone(), instance: copy, source: NodeId(4) },
        Message::Gone { id: missing.clone(), error },
        Message::Waiting { id: missing.clone() },
        Message::Located {
            id: missing.clone(),
            instance: instance(4, 1),
            meta,
            source,
            lifetime: None,
        },
        Message::Found { id: missing.clone(), found: Some(found) },
        Message::Deleted { id: missing, request: get },
    ] {
        cluster.assert_refused(4, 3, message);
    }
    assert!(cluster.has(3, &id) && !cluster.replies.contains_key(&get));
}

/// Goal: what one member orders here has an end.
#[test]
fn a_coordinator_has_so_many_folds_at_a_node() {
    let mut cluster = Cluster::new(2);
    cluster.keeps_folding = true;
    let id = cluster.put_large(1, None);
    let input = cluster.nodes[&NodeId(1)].table().current(&id).unwrap();
    for position in 0..2 * FOLDS_MAX as u32 {
        let reduce = crate::id::ReduceId { node: NodeId(2), serial: 1 };
        let key = crate::message::FoldKey { reduce, epoch: 0, segment: 0, position };
        let (inputs, children) = (vec![input], Vec::new());
        let (op, dtype, size, part, frame) = (Op::Sum, Dtype::Float32, LARGE, 0..LARGE, 1 << 16);
        let order = FoldOrder { key, inputs, children, op, dtype, size, part, frame };
        cluster.say(2, 1, Message::Fold(order));
    }
    assert_eq!(cluster.folds.len(), FOLDS_MAX);
}

/// Goal: an owner whose view of the members differs does not wait for ever for what is not there.
#[test]
fn what_is_not_here_any_more_is_dropped_for_any_member() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let drop = Message::Drop { id: id.clone(), instance: copy, error: Some(deleted(&id)) };
    cluster.assert_refused(4, 3, drop.clone());
    cluster.ask(1, Ask::Delete { ids: vec![id] });
    let before = cluster.done.len();
    cluster.say(4, 3, drop);
    assert_eq!(cluster.done.len(), before, "it is not refused");
}

/// Goal: an owner of one object says nothing of another by its instance.
#[test]
fn an_instance_is_of_the_object_that_it_is_known_as() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let its = named(&cluster.owned_name(4, 1, "y"));
    let error = Some(deleted(&its));
    cluster.assert_refused(4, 3, Message::Drop { id: its.clone(), instance: copy, error: None });
    cluster.assert_refused(4, 3, Message::Adopted { id: its.clone(), instance: copy, kept: true });
    let sum = named(&cluster.owned_name(1, 2, "sum"));
    let (inputs, op) = (vec![named("input")], Op::Sum);
    let reduce =
        cluster.ask(3, Ask::Reduce { inputs, op, count: 1, id: Some(sum.clone()), ttl_ns: None });
    for serial in 0..20 {
        let instance = instance(3, serial);
        cluster.say(4, 3, Message::Drop { id: its.clone(), instance, error: error.clone() });
    }
    assert!(cluster.has(3, &id));
    assert_eq!(cluster.reply(reduce), &Ok(Answer::Reducing { id: sum }));
    let unfinished = cluster.nodes[&NodeId(3)].unfinished().filter(|it| it.contains("reduces"));
    assert_eq!(unfinished.count(), 1);
}

#[test]
fn an_answer_counts_from_the_node_that_was_asked() {
    let (mut cluster, _) = Cluster::of_four("x");
    let prefix = cluster.owned_name(1, 2, "").to_string();
    let latest = Ask::Latest { prefix: prefix.clone(), after: Some(3) };
    let request = cluster.ask(3, latest);
    let name = |text: &str| format!("{prefix}{text}").parse().unwrap();
    cluster.assert_refused(4, 3, Message::LatestIs { name: name("9"), request });
    cluster.assert_refused(4, 3, Message::NothingYet { request, id: None });
    cluster.assert_refused(1, 3, Message::LatestIs { name: name("2"), request });
    let other = "other/9".parse().unwrap();
    cluster.assert_refused(1, 3, Message::LatestIs { name: other, request });
    assert!(!cluster.replies.contains_key(&request));
    cluster.say(1, 3, Message::LatestIs { name: name("9"), request });
    assert_eq!(cluster.reply(request), &Ok(Answer::Latest { name: name("9") }));

    let id = named(&cluster.owned_name(1, 2, "y"));
    cluster.put_large(1, Some(&id.to_string()));
    let known = vec![Holding { node: NodeId(1), complete: true }];
    let request = cluster.ask(3, Ask::Locations { id: id.clone(), known: Some(known) });
    cluster.assert_refused(4, 3, Message::LocationsAre { request, holdings: Ok(vec![]) });
    let request =
        cluster.ask(3, Ask::List { owner: NodeId(1), prefix: String::new(), after: None });
    assert!(cluster.reply(request).is_ok());
}

/// Goal: an owner of one name has no other name deleted.
#[test]
fn only_older_names_of_the_same_group_are_pruned() {
    let (mut cluster, _) = Cluster::of_four("x");
    let other = cluster.put_small(3, Some("other/1"));
    let name: crate::id::Name = cluster.owned_name(1, 2, "7").parse().unwrap();
    cluster.slow_down(1);
    let request = cluster.ask(3, Ask::Prune { name: name.clone(), keep: 1 });
    let ObjectId::Named(victim) = other.clone() else { panic!("it has a name") };
    let newer = format!("{}/8", name.group()).parse().unwrap();
    for names in [vec![victim], vec![newer]] {
        cluster.assert_refused(1, 3, Message::OlderAre { names, request });
    }
    cluster.catch_up();
    assert_eq!(cluster.reply(request), &Ok(Answer::Done));
    assert!(cluster.has(3, &other));
}

/// Goal: a copy is gone when its holder says so.
#[test]
fn a_member_withdraws_no_copy_of_another() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    cluster.say(4, 1, Message::Withdraw { id: id.clone(), instance: copy });
    let locate = |not_here| Message::Locate {
        id: id.clone(),
        avoid: vec![],
        not_here,
        receives: Receives::default(),
        seen: false,
    };
    cluster.say(4, 1, locate(None));
    cluster.say(4, 1, locate(Some((NodeId(3), copy))));
    assert!(cluster.holders(1, &id).contains(&3));
    let request = cluster.get(2, &id);
    assert_eq!(got(cluster.reply(request)), copy);
}

#[test]
fn a_name_that_is_kept_for_a_reduce_is_given_up_by_its_coordinator_only() {
    let (mut cluster, name) = Cluster::of_four("x");
    let (id, inputs) = (named(&name), vec![named("input")]);
    let ask = Ask::Reduce { inputs, op: Op::Sum, count: 1, id: Some(id.clone()), ttl_ns: None };
    cluster.ask(3, ask);
    assert_eq!(cluster.nodes[&NodeId(1)].directory().reservations(), 1);
    // Whatever serial it has.
    for serial in 0..20 {
        let withdraw = Message::Withdraw { id: id.clone(), instance: instance(3, serial) };
        cluster.say(4, 1, withdraw);
    }
    cluster.say(4, 1, Message::Fail { id: id.clone(), error: deleted(&id), reserved: None });
    assert_eq!(cluster.nodes[&NodeId(1)].directory().reservations(), 1);
    let reserve = Message::Reserve { id: id.clone(), instance: instance(3, 99) };
    cluster.assert_refused(4, 1, reserve);
    let promised = cluster.ask(3, Ask::Promise { name: None });
    let Ok(Answer::Promised { id }) = cluster.reply(promised).clone() else { panic!("it is") };
    cluster.assert_refused(
        4,
        3,
        Message::Fail { id: id.clone(), error: deleted(&id), reserved: None },
    );
}

/// Goal: what an object is its maker says.
#[test]
fn no_other_says_what_a_member_makes() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_small(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let small = |bytes| Progress::Inline(bytes);
    cluster.say(4, 1, announce(&id, copy, array(8), small(ones(8))));
    cluster.say(4, 1, announce(&id, copy, array(16), small(ones(16))));
    let later = Instance { serial: copy.serial + 1, ..copy };
    cluster.say(4, 1, announce(&id, later, array(8), small(ones(8))));
    let request = cluster.get(2, &id);
    let Ok(Answer::Got { instance, inline, .. }) = cluster.reply(request) else { panic!("it is") };
    assert_eq!((*instance, inline), (copy, &Some(vec![7; 8].into())));

    // What it has not made yet.
    let id = minted(3, 1000);
    let message = announce(&id, self::instance(3, 1001), array(8), small(ones(8)));
    for owner in [1, 2] {
        cluster.say(4, owner, message.clone());
        assert!(cluster.holders(owner, &id).is_empty());
    }
    cluster.assert_refused(4, 3, message);

    // What it says itself goes before what another has said.
    let id = named(&cluster.owned_name(1, 2, "y"));
    let copy = self::instance(3, 1002);
    cluster.say(3, 1, announce(&id, copy, array(8), small(ones(8))));
    cluster.say(3, 1, announce(&id, copy, array(16), small(ones(16))));
    let request = cluster.get(2, &id);
    assert!(matches!(cluster.reply(request), Ok(Answer::Got { meta, .. }) if meta.size == 16));
}

/// Goal: what a node is asked to keep is what its owner says that it is.
#[test]
fn a_small_object_of_another_maker_is_kept_as_its_owner_has_it() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_small(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let adopt = |instance| {
        let (id, meta, inline) = (id.clone(), array(8), Some(ones(8)));
        Message::Adopt { id, instance, meta, inline, lifetime: None, may_wait: false }
    };
    cluster.say(4, 2, adopt(instance(4, 1)));
    assert!(!cluster.has(2, &id), "no owner knows of that");
    cluster.say(4, 2, adopt(copy));
    assert!(cluster.has(2, &id));
    let held = cluster.nodes[&NodeId(2)].table().get(copy).unwrap();
    assert_eq!(held.inline, Some(vec![7; 8].into()));
}

#[test]
fn a_reduce_is_ordered_by_its_coordinator_and_fails_by_its_seats() {
    let mut cluster = Cluster::new(4);
    cluster.keeps_folding = true;
    let inputs = [2, 3].map(|node| cluster.put_large(node, None)).to_vec();
    let ask = Ask::Reduce { inputs, op: Op::Sum, count: 2, id: None, ttl_ns: None };
    let request = cluster.ask(1, ask);
    let Ok(Answer::Reducing { id }) = cluster.reply(request).clone() else { panic!("it is") };
    let (_, order) = cluster.folds[0].clone();
    let (reduce, epoch) = (order.key.reduce, order.key.epoch);
    cluster.assert_refused(4, 2, Message::Fold(order));
    cluster.assert_refused(4, 2, Message::Unfold { reduce, epoch, is_void: true });
    cluster.assert_refused(4, 2, Message::FoldProbe { reduce, epoch });
    cluster.assert_refused(4, 1, Message::FoldAlive { reduce, epoch });
    cluster.assert_refused(4, 1, Message::FoldStarves { reduce, epoch, node: NodeId(2) });
    let (detail, is_lost) = ("why".into(), false);
    cluster.assert_refused(4, 1, Message::FoldFailed { reduce, epoch, detail, is_lost });
    cluster.end_folds();
    let request = cluster.get(4, &id);
    assert!(cluster.reply(request).is_ok());
    assert!(!cluster.done.iter().any(|done| done.contains("begins a reduce again")));
}
