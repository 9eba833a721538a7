//! Messages that a node drops: malformed messages, and messages of a stale owner. Also limits on
//! the messages that it handles.

use super::*;
use crate::{
    id::ReduceId,
    limits::{FOLDS_MAX, INLINE_BYTES_MAX, MEMBERS_MAX},
    message::{Announce, Found, Located, Progress, ReceiveRate, RingOrder},
    question::Locate,
};

impl Cluster {
    /// A member sends a message to another member.
    fn say(&mut self, from: u64, to: u64, message: Message) {
        self.tell(to, Event::Message { from: NodeId(from), message });
    }

    /// A member sends a message that is dropped.
    fn assert_refused(&mut self, from: u64, to: u64, message: Message) {
        let words = format!("n{to} refuses {message:?} of n{from}");
        let before = self.done.len();
        self.say(from, to, message);
        assert!(self.done[before..].contains(&words), "{words}: {:?}", &self.done[before..]);
    }

    /// An owner assigns a source.
    fn say_located(&mut self, from: u64, to: u64, located: Located) {
        let number = self.nodes[&NodeId(to)].questions.about(&located.id);
        let (number, answer) = (number.expect("it asked"), Answer::Located(Box::new(located)));
        self.say(from, to, Message::Answer { number, answer });
    }

    fn holders(&self, owner: u64, id: &ObjectId) -> Vec<u64> {
        let holders = self.nodes[&NodeId(owner)].directory().holders(id);
        holders.into_iter().map(|node| node.0).collect()
    }

    /// Four nodes, and a name with the owners 1 and 2.
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
    let (id, pinned, claim) = (id.clone(), true, false);
    Message::Announce(Announce { id, instance, meta, pinned, progress, claim, lifetime: None })
}

fn locate(id: &ObjectId, not_here: Option<(NodeId, Instance)>) -> Message {
    let (id, avoid, receives, seen_at) = (id.clone(), Vec::new(), ReceiveRate::default(), None);
    let locate = Locate { id, avoid, not_here, receives, seen_at };
    Message::Ask { number: QuestionId(1 << 40), question: Question::Locate(Box::new(locate)) }
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
            Message::StoreReplica {
                id,
                instance,
                meta: array(8),
                inline,
                lifetime: None,
                may_wait,
            },
        );
    }
    let id = cluster.put_small(1, None);
    assert!(cluster.has(1, &id));
}

/// Goal: of two objects announced as the same instance, the second is refused while the first waits
/// for capacity.
#[test]
fn one_instance_that_waits_for_room_under_two_names_comes_once() {
    let mut cluster = Cluster::with_capacity(3, 2 * (LARGE + 4096));
    let held = [(), ()].map(|()| cluster.put_large(1, None));
    let ids = [1, 2].map(|serial| minted(2, serial + 1000));
    let gets = ids.clone().map(|id| cluster.get(1, &id));
    for id in ids {
        let source = Source::Holder { node: NodeId(2), reason: Reason::OnlyHolder };
        let (instance, meta) = (instance(2, 7), Meta::bytes(LARGE));
        cluster.say_located(2, 1, Located { id, instance, meta, source, lifetime: None });
    }
    assert!(!gets.iter().any(|request| cluster.replies.contains_key(request)));
    let request = cluster.ask(1, Request::Delete { ids: held.to_vec() });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    let table = cluster.nodes[&NodeId(1)].table();
    let copies = table.iter().filter(|(it, _)| *it == instance(2, 7));
    assert_eq!(copies.map(|(_, copy)| copy.id.clone()).collect::<Vec<_>>(), [minted(2, 1001)]);
}

/// Goal: an adoption that the requester cancels ends the search for the object.
#[test]
fn an_adoption_that_is_taken_back_is_sought_no_more() {
    let (mut cluster, name) = Cluster::of_four("never");
    let (id, inline): (ObjectId, _) = (name.parse().unwrap(), Some(ones(8)));
    let (instance, may_wait, meta) = (instance(4, 1000), false, array(8));
    cluster.say(
        4,
        3,
        Message::StoreReplica { id: id.clone(), instance, meta, inline, may_wait, lifetime: None },
    );
    assert_eq!(cluster.nodes[&NodeId(3)].replicas.incoming(), 1);
    cluster.say(2, 3, Message::ReleaseReplica { id: id.clone(), instance });
    assert_eq!(cluster.nodes[&NodeId(3)].replicas.incoming(), 1, "another did not ask for it");
    cluster.say(4, 3, Message::ReleaseReplica { id, instance });
    cluster.assert_at_rest();
}

#[test]
fn oversized_messages_and_foreign_instances_are_malformed() {
    let (mine, other) = (minted(1, 1), instance(2, 1));
    let size = INLINE_BYTES_MAX + 1;
    let long = Progress::Inline(ones(size));
    let sound = Progress::Inline(ones(8));
    let down = |length| {
        let reason = "x".repeat(length);
        Message::Down { node: NodeId(3), incarnation: 1, reason }
    };
    let source = Source::Inline(ones(size));
    let (id, meta, number) = (mine.clone(), Meta::bytes(size), QuestionId(1));
    let located =
        Located { id: id.clone(), instance: instance(1, 1), meta, source, lifetime: None };
    for message in [
        announce(&mine, instance(1, 1), Meta::bytes(size), long),
        announce(&mine, other, Meta::bytes(8), sound.clone()),
        Message::Answer { number, answer: Answer::Located(Box::new(located)) },
        Message::Tombstone { id: id.clone(), instances: vec![other], error: None, pruned: false },
        locate(&id, Some((NodeId(2), other))),
        down(1000),
    ] {
        assert!(!message.is_valid(), "{message:?}");
    }
    assert!(announce(&mine, instance(1, 1), Meta::bytes(8), sound).is_valid());
    assert!(down(100).is_valid());
}

/// Goal: an owner that has a copy with wrong metadata sends no malformed message to itself either.
#[test]
fn messages_of_a_node_to_itself_are_validated_too() {
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
    cluster.ask(1, Request::Reduce { inputs, op: Op::Sum, count: 1, id: None, ttl_ns: None });
    let number = cluster.question_of(1);
    let answer = Answer::Found(Box::new(found));
    cluster.say(1, 1, Message::Answer { number, answer });
    assert_eq!(
        cluster.nodes[&NodeId(1)].unfinished().filter(|it| it.contains("reduces")).count(),
        1
    );
}

/// Goal: a node that counts itself as an owner because of a stale membership view deletes no object
/// and assigns no source.
#[test]
fn only_an_owner_ends_an_object_or_assigns_a_source() {
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
    let (id_of_it, source, lifetime) = (missing.clone(), Source::Inline(ones(8)), None);
    let located = Located { id: id_of_it, instance: instance(4, 1), meta, source, lifetime };
    let number = cluster.question_of(3);
    let answered = |answer| Message::Answer { number, answer };
    for message in [
        Message::Drop { id: id.clone(), instance: copy, error: Some(deleted(&id)) },
        Message::DropPartial { id: id.clone(), instance: copy, error: deleted(&id) },
        Message::Redirect { id: id.clone(), instance: copy, source: NodeId(4) },
        answered(Answer::Gone(error)),
        answered(Answer::NoSource),
        answered(Answer::Located(Box::new(located.clone()))),
        // Even the answer to no question.
        Message::Answer {
            number: QuestionId(999),
            answer: Answer::Located(Box::new(located.clone())),
        },
    ] {
        cluster.assert_refused(4, 3, message);
    }
    let wait = cluster.ask(3, Request::Wait { ids: vec![missing.clone()], count: 1 });
    let number = cluster.question_of(3);
    for answer in [Answer::Found(Box::new(found)), Answer::Pending, Answer::Gone(deleted(&missing))]
    {
        cluster.assert_refused(4, 3, Message::Answer { number, answer });
    }
    cluster.assert_refused(1, 3, Message::Answer { number, answer: Answer::Deleted });
    let other = Located { id: named(&cluster.owned_name(1, 2, "other")), ..located };
    let number = cluster.nodes[&NodeId(3)].questions.about(&missing).unwrap();
    let answer = Answer::Located(Box::new(other));
    cluster.assert_refused(1, 3, Message::Answer { number, answer });
    assert!(!cluster.replies.contains_key(&wait));
    assert!(cluster.has(3, &id) && !cluster.replies.contains_key(&get));
}

/// Goal: the folds of one coordinator on a node are limited.
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
        let result = named("sum");
        let order = FoldOrder { key, result, inputs, children, op, dtype, size, part, frame };
        cluster.say(2, 1, Message::Fold(order));
    }
    assert_eq!(cluster.folds.len(), FOLDS_MAX);
}

/// Goal: an owner with a different membership view does not wait forever for a copy that does not
/// exist.
#[test]
fn a_missing_copy_is_dropped_for_any_member() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let drop = Message::Drop { id: id.clone(), instance: copy, error: Some(deleted(&id)) };
    cluster.assert_refused(4, 3, drop.clone());
    cluster.ask(1, Request::Delete { ids: vec![id] });
    let before = cluster.done.len();
    cluster.say(4, 3, drop);
    assert_eq!(cluster.done.len(), before, "it is not refused");
}

/// Goal: a message that pairs an instance with another id than this node does is dropped.
#[test]
fn an_instance_is_of_the_object_that_it_is_known_as() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let its = named(&cluster.owned_name(4, 1, "y"));
    cluster.assert_refused(4, 3, Message::Drop { id: its.clone(), instance: copy, error: None });
    cluster.assert_refused(
        4,
        3,
        Message::ReplicaReply { id: its.clone(), instance: copy, accepted: true },
    );
    assert!(cluster.has(3, &id));
}

#[test]
fn an_answer_counts_from_an_owner() {
    let (mut cluster, _) = Cluster::of_four("x");
    let prefix = cluster.owned_name(1, 2, "").to_string();
    let latest = Request::Latest { prefix: prefix.clone(), after: Some(3) };
    let request = cluster.ask(3, latest);
    let name = |text: &str| format!("{prefix}{text}").parse().unwrap();
    let number = cluster.question_of(3);
    let newest = || Message::Answer { number, answer: Answer::Latest(name("9")) };
    cluster.assert_refused(4, 3, newest());
    cluster.assert_refused(4, 3, Message::Answer { number, answer: Answer::Pending });
    assert!(!cluster.replies.contains_key(&request));
    cluster.say(1, 3, newest());
    assert_eq!(cluster.reply(request), &Ok(Reply::Latest { name: name("9") }));

    let id = named(&cluster.owned_name(1, 2, "y"));
    cluster.put_large(1, Some(&id.to_string()));
    let holding = Holding { node: NodeId(1), complete: true };
    // A longer list would be malformed at the owner, which would close the connection of the node.
    let known = vec![holding; MEMBERS_MAX + 1];
    let request = cluster.ask(3, Request::Locations { id: id.clone(), known: Some(known) });
    assert!(matches!(cluster.reply(request), Err(Error::InvalidArgument(_))));

    let known = vec![holding];
    cluster.ask(3, Request::Locations { id: id.clone(), known: Some(known) });
    let number = cluster.question_of(3);
    let nowhere = Answer::Locations(vec![]);
    cluster.assert_refused(4, 3, Message::Answer { number, answer: nowhere });
}

/// Goal: a copy is gone when its holder reports it.
#[test]
fn a_member_withdraws_no_copy_of_another() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_large(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    cluster.say(4, 1, Message::Withdraw { id: id.clone(), instance: copy });
    cluster.say(4, 1, locate(&id, None));
    cluster.say(4, 1, locate(&id, Some((NodeId(3), copy))));
    assert!(cluster.holders(1, &id).contains(&3));
    let request = cluster.get(2, &id);
    assert_eq!(got(cluster.reply(request)), copy);
}

/// Goal: an owner keeps the size and shape of an instance, since with others it would send
/// malformed messages.
#[test]
fn an_announcement_that_describes_an_instance_anew_is_refused() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_small(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    cluster.say(4, 1, announce(&id, copy, array(16), Progress::Inline(ones(16))));
    let request = cluster.get(2, &id);
    let Ok(Reply::Got { instance, inline, .. }) = cluster.reply(request) else { panic!("it is") };
    assert_eq!((*instance, inline), (copy, &Some(vec![7; 8].into())));
}

/// Goal: an adopted object has the metadata of its owner, not of the requester.
#[test]
fn a_small_object_of_another_maker_is_kept_as_its_owner_has_it() {
    let (mut cluster, name) = Cluster::of_four("x");
    let id = cluster.put_small(3, Some(&name));
    let copy = cluster.nodes[&NodeId(3)].table().current(&id).unwrap();
    let adopt = |instance| {
        let (id, meta, inline) = (id.clone(), array(8), Some(ones(8)));
        Message::StoreReplica { id, instance, meta, inline, lifetime: None, may_wait: false }
    };
    cluster.say(4, 2, adopt(instance(4, 1)));
    assert!(!cluster.has(2, &id), "no owner knows of that");
    cluster.say(4, 2, adopt(copy));
    assert!(cluster.has(2, &id));
    let held = cluster.nodes[&NodeId(2)].table().get(copy).unwrap();
    assert_eq!(held.inline, Some(vec![7; 8].into()));
}

/// Goal: a part of a reduce is refused if its instance already waits for capacity under another
/// name.
#[test]
fn a_part_with_the_instance_of_a_waiting_object_is_refused() {
    let mut cluster = Cluster::with_capacity(4, 2 * (LARGE + 4096));
    let held = [(), ()].map(|()| cluster.put_large(1, None));
    let input = cluster.nodes[&NodeId(1)].table().current(&held[0]).unwrap();
    let (waiting, other, shared) = (minted(2, 1001), minted(2, 2002), instance(2, 7));
    cluster.get(1, &waiting);
    let source = Source::Holder { node: NodeId(2), reason: Reason::OnlyHolder };
    let (id, meta) = (waiting.clone(), array(LARGE));
    cluster.say_located(2, 1, Located { id, instance: shared, meta, source, lifetime: None });
    let contributors = [(1, input), (3, instance(3, 9)), (4, instance(4, 9))];
    let order = RingOrder {
        reduce: ReduceId { node: NodeId(2), serial: 1 },
        epoch: 0,
        id: other,
        instance: shared,
        meta: array(LARGE),
        op: Op::Sum,
        frame: 1 << 16,
        contributors: contributors.map(|(node, input)| (NodeId(node), vec![input])).into(),
    };
    cluster.say(2, 1, Message::RingReduce(order.into()));
    cluster.ask(1, Request::Delete { ids: held.to_vec() });
    let copy = cluster.nodes[&NodeId(1)].table().get(shared);
    assert_eq!(copy.map(|copy| &copy.id), Some(&waiting));
}

/// Goal: an owner that assigns a source for the instance of a put that waits for capacity does not
/// cause a second copy.
#[test]
fn a_put_that_waits_for_room_is_not_received_from_elsewhere() {
    let mut cluster = Cluster::with_capacity(3, 2 * (LARGE + 4096));
    let name = cluster.owned_name(2, 3, "x");
    let id = named(&name);
    let held = [(), ()].map(|()| cluster.put_large(1, None));
    let put =
        cluster.ask(1, Request::Create { id: Some(id.clone()), meta: array(LARGE), ttl_ns: None });
    cluster.get(1, &id);
    let is_it = |serial: &u64| cluster.nodes[&NodeId(1)].claims.put(instance(1, *serial)).is_some();
    let instance = instance(1, (1..100).find(is_it).expect("it waits"));
    let source = Source::Holder { node: NodeId(2), reason: Reason::OnlyHolder };
    let meta = array(LARGE);
    cluster.say_located(2, 1, Located { id, instance, meta, source, lifetime: None });
    cluster.ask(1, Request::Delete { ids: held.to_vec() });
    assert!(matches!(cluster.reply(put), Ok(Reply::Created { .. })));
}
