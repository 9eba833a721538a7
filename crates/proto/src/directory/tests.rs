//! Tests of the directory: messages in, messages out.

use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    format,
    string::ToString,
    vec,
    vec::Vec,
};

use proptest::prelude::*;

use super::{
    live::{LOOKED_AT, SourceRequest},
    *,
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, QuestionId},
    inline::Inline,
    limits::{MERGE_NS, ORPHAN_GRACE_NS, REMEMBERED_MAX, STRAY_NS, TOMBSTONE_NS},
    members::{Member, Members},
    message::{Announce, Located, Message, Progress, ReceiveRate, Source},
    meta::Meta,
    place::{Group, Place},
    question::{Answer, Locate, Question},
    reduce::cost::Link,
    time::Instant,
};

pub(super) const SIZE: u64 = 32 << 20;
const SECOND: u64 = 1_000_000_000;

const LINK: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

/// The directory of node 1 in a cluster of five.
pub(super) struct Owner {
    pub(super) directory: Directory,
    pub(super) members: Members,
    pub(super) now: Instant,
    pub(super) walk: Walk,
}

/// A walk through the entries after membership changes.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Whether it visits one entry at each change, and the others on demand.
    pub(super) is_slow: bool,
    /// The last change that it applies, if it is in progress, and the last entry that it has
    /// visited.
    pub(super) upto: Option<u32>,
    pub(super) after: Option<ObjectId>,
}

impl Owner {
    pub(super) fn new() -> Self {
        let member = |id: u64| Member {
            id: NodeId(id),
            address: core::net::SocketAddr::from(([127, 0, 0, 1], id as u16)),
            place: None,
        };
        let mut members = Members::new(member(1));
        (2..=5).for_each(|id| assert!(members.insert(member(id))));
        let (directory, walk) = (Directory::default(), Walk::default());
        Self { directory, members, now: Instant(SECOND), walk }
    }

    /// Handles a message of `from`; returns the messages that the directory sends.
    pub(super) fn receives(&mut self, from: u64, message: Message) -> Outbox {
        self.now = self.now + 1000;
        let handle = |directory: &mut Directory, context: &mut Context<'_>| {
            directory.handle(context, NodeId(from), &message)
        };
        let (taken, outbox) = self.run(handle);
        assert_ne!(taken, DirectoryOutcome::No);
        outbox
    }

    /// Runs a call of the directory; returns its result and the messages to send.
    pub(super) fn run<T>(
        &mut self,
        fact: impl FnOnce(&mut Directory, &mut Context<'_>) -> T,
    ) -> (T, Outbox) {
        let mut outbox = Vec::new();
        let (now, members, link) = (self.now, &self.members, LINK);
        let answer =
            fact(&mut self.directory, &mut Context { now, members, link, outbox: &mut outbox });
        (answer, outbox)
    }

    pub(super) fn loses(&mut self, node: u64) -> Outbox {
        self.members.remove(NodeId(node));
        self.run(|directory, context| directory.member_removed(context, NodeId(node)));
        self.members_changed(None)
    }

    /// Handles other owners, or a member that has lost everything.
    pub(super) fn members_changed(&mut self, rejoined: Option<NodeId>) -> Outbox {
        let number = self.run(|directory, context| directory.members_changed(context, rejoined)).0;
        self.walk.upto.get_or_insert(number);
        if self.walk.is_slow { self.walk_on() } else { self.walk_all() }
    }

    pub(super) fn walk_all(&mut self) -> Outbox {
        let mut outbox = Vec::new();
        while self.walk.upto.is_some() {
            outbox.extend(self.walk_on());
        }
        outbox
    }

    /// Visits one entry.
    pub(super) fn walk_on(&mut self) -> Outbox {
        self.walk.after = self.directory.next_entry(self.walk.after.as_ref()).cloned();
        let Some(id) = self.walk.after.clone() else {
            self.directory.changes_applied(self.walk.upto.take().unwrap());
            let last = self.directory.entries.last_change();
            self.walk.upto = Some(last).filter(|_| !self.directory.entries.is_settled());
            return Vec::new();
        };
        self.run(|directory, context| directory.settle(context, &id)).1
    }

    pub(super) fn waits(&mut self, ns: u64) -> Outbox {
        self.now = self.now + ns;
        let ((), mut outbox) = self.run(Directory::expire);
        while self.directory.deadline().is_some_and(|at| at <= self.now + 1) {
            self.now = self.now + 1;
            outbox.extend(self.run(Directory::expire).1);
        }
        outbox
    }

    /// The source that `requester` gets.
    pub(super) fn source_of(&mut self, requester: u64, id: &ObjectId) -> Option<u64> {
        let outbox = self.receives(requester, locate(id));
        if outbox == [no_source(requester, id)] {
            return None;
        }
        let (to, source) = assigned(&outbox);
        assert_eq!(to, requester);
        let Source::Holder { node, .. } = source else { panic!("{source:?}") };
        Some(node.0)
    }

    /// Each node that gets a source begins to receive and announces it. Returns how many receivers
    /// were redirected later. Messages to nodes in `unread` are appended there instead.
    fn begins_all(&mut self, id: &ObjectId, outbox: Outbox, unread: &mut Outbox) -> usize {
        let mut redirected = 0;
        let mut queue: VecDeque<_> = outbox.into();
        while let Some((to, message)) = queue.pop_front() {
            redirected += usize::from(matches!(message, Message::Redirect { .. }));
            if unread.iter().any(|(slow, _)| *slow == to) {
                unread.push((to, message));
                continue;
            }
            let later = queue.iter().rposition(|(other, _)| *other == to);
            let message = later.and_then(|at| queue.remove(at)).map_or(message, |(_, last)| last);
            queue.retain(|(other, _)| *other != to);
            let (source, instance) = match (located(&message), &message) {
                (Some(Located { source: Source::Holder { node, .. }, instance, .. }), _) => {
                    (*node, *instance)
                }
                (_, Message::Redirect { source, instance, .. }) => (*source, *instance),
                other => panic!("{other:?}"),
            };
            queue.extend(self.receives(to.0, announced(id, instance, false, fed_by(source.0))));
        }
        redirected
    }

    pub(super) fn holders(&self, id: &ObjectId) -> Vec<u64> {
        self.directory.holders(id).into_iter().map(|node| node.0).collect()
    }
}

/// An id generated by node 1, so that node 1 is its primary owner.
pub(super) fn minted() -> ObjectId {
    ObjectId::Minted { node: NodeId(1), serial: 7 }
}

/// A name in a group of its own whose primary owner is node 1.
pub(super) fn named(owner: &Owner, suffix: &str) -> ObjectId {
    let names = (0..).map(|group| format!("group{group}/{suffix}").parse().unwrap());
    let is_mine = |id: &ObjectId| owner.members.owners(id).primary == NodeId(1);
    names.into_iter().find(is_mine).unwrap()
}

pub(super) fn instance(node: u64, serial: u64) -> Instance {
    Instance { node: NodeId(node), serial }
}

pub(super) fn announced(
    id: &ObjectId,
    instance: Instance,
    pinned: bool,
    progress: Progress,
) -> Message {
    let (id, meta) = (id.clone(), Meta::bytes(SIZE));
    Message::Announce(Announce {
        id,
        instance,
        meta,
        pinned,
        progress,
        claim: false,
        lifetime: None,
    })
}

fn claim(id: &ObjectId, instance: Instance) -> Message {
    let progress = Progress::Partial { source: None };
    let Message::Announce(announce) = announced(id, instance, true, progress) else {
        unreachable!()
    };
    Message::Announce(Announce { claim: true, ..announce })
}

pub(super) fn locate(id: &ObjectId) -> Message {
    locate_with(id, |_| ())
}

/// A lookup that differs from a first one.
pub(super) fn locate_with(id: &ObjectId, change: impl FnOnce(&mut Locate)) -> Message {
    let (id, avoid, not_here, seen_at) = (id.clone(), Vec::new(), None, None);
    let mut locate = Locate { id, avoid, not_here, receives: ReceiveRate::default(), seen_at };
    change(&mut locate);
    ask(lookup(&locate.id), Question::Locate(Box::new(locate)))
}

/// The number of the lookups of an object.
pub(super) fn lookup(id: &ObjectId) -> u64 {
    (1 << 41) + number_of(id)
}

/// The reply to a lookup that waits.
pub(super) fn no_source(to: u64, id: &ObjectId) -> (NodeId, Message) {
    answered(to, lookup(id), Answer::NoSource)
}

/// The reply to a lookup that ends it.
fn gone(to: u64, id: &ObjectId, error: Error) -> (NodeId, Message) {
    answered(to, lookup(id), Answer::Gone(error))
}

/// The reply to a lookup, if a message is that.
pub(super) const fn located(message: &Message) -> Option<&Located> {
    match message {
        Message::Answer { answer: Answer::Located(located), .. } => Some(located),
        _ => None,
    }
}

/// Whether a message ends a question.
const fn is_gone(message: &Message) -> bool {
    matches!(message, Message::Answer { answer: Answer::Gone(_), .. })
}

/// The receiver of the only message, and the source that it assigns.
fn assigned(outbox: &Outbox) -> (u64, Source) {
    let [(to, message)] = &outbox[..] else { panic!("{outbox:?}") };
    (to.0, located(message).expect("a source").source.clone())
}

pub(super) fn fed_by(node: u64) -> Progress {
    Progress::Partial { source: Some(NodeId(node)) }
}

pub(super) const fn ask(number: u64, question: Question) -> Message {
    Message::Ask { number: QuestionId(number), question }
}

pub(super) const fn answered(to: u64, number: u64, answer: Answer) -> (NodeId, Message) {
    (NodeId(to), Message::Answer { number: QuestionId(number), answer })
}

/// A number for the deletion of an object.
fn number_of(id: &ObjectId) -> u64 {
    match id {
        ObjectId::Minted { serial, .. } => *serial,
        ObjectId::Named(name) => name.as_str().bytes().map(u64::from).sum(),
    }
}

pub(super) fn delete(id: &ObjectId) -> Message {
    ask(number_of(id), Question::Delete { id: id.clone(), pruned: false })
}

fn deleted(id: &ObjectId, to: u64) -> (NodeId, Message) {
    answered(to, number_of(id), Answer::Deleted)
}

/// The number of the questions of [`watch`].
const WATCH: u64 = 1 << 40;

pub(super) fn watch(id: &ObjectId) -> Message {
    ask(WATCH, Question::Watch { id: id.clone(), seen_at: None })
}

#[test]
fn a_lookup_before_the_put_gets_its_reply_after_it() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.source_of(2, &id), None);
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert!(matches!(assigned(&outbox), (2, Source::Holder { node: NodeId(3), .. })));
}

#[test]
fn a_new_owner_drops_copies_announced_after_their_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.receives(2, delete(&id)), [], "a holder may still announce it");
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    let [(NodeId(3), Message::Drop { instance: dropped, error, .. })] = &outbox[..] else {
        panic!("{outbox:?}")
    };
    assert_eq!(*dropped, instance(3, 1));
    assert!(matches!(error, Some(Error::ObjectDeleted { .. })));
    let dropped = Message::Dropped { id: id.clone(), instance: instance(3, 1) };
    assert_eq!(owner.receives(3, dropped), [], "other holders may announce it too");
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 2)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_drops_all_instances_of_a_deleted_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.receives(2, delete(&id)), []);
    for holder in [3, 4] {
        owner.receives(holder, announced(&id, instance(holder, 1), true, Progress::Complete));
        assert!(owner.holders(&id).is_empty(), "node {holder}");
    }
    owner.receives(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [], "node 4 may still send it to others");
    let dropped = Message::Dropped { id: id.clone(), instance: instance(4, 1) };
    assert_eq!(owner.receives(4, dropped), [deleted(&id, 2)]);
}

#[test]
fn a_deletion_holds_when_the_maker_fails_before_its_announcement() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    assert_eq!(owner.receives(3, announced(&id, instance(4, 1), false, Progress::Complete)), []);
    let outbox = owner.receives(2, delete(&id));
    assert!(matches!(&outbox[..], [(NodeId(3), Message::Drop { .. })]), "{outbox:?}");
    owner.loses(4);
    owner.waits(SECOND);
    assert!(owner.holders(&id).is_empty());
    let dropped = Message::Dropped { id: id.clone(), instance: instance(4, 1) };
    assert_eq!(owner.receives(3, dropped), [deleted(&id, 2)]);
}

#[test]
fn a_deletion_includes_parked_announcements() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete)), []);
    owner.receives(4, delete(&id));
    owner.receives(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    owner.waits(SECOND);
    assert!(owner.holders(&id).is_empty());
    let dropped = Message::Dropped { id: id.clone(), instance: instance(3, 1) };
    assert_eq!(owner.receives(3, dropped), [deleted(&id, 4)]);
}

/// Goal: a deletion applies to an instance that this owner has not seen, although it remembers an
/// earlier one.
#[test]
fn a_deletion_includes_a_later_put_that_this_owner_has_not_seen() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(2, delete(&id));
    owner.receives(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    owner.loses(5);
    assert_eq!(owner.receives(4, delete(&id)), [], "a holder may announce the current instance");
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert!(matches!(&outbox[..], [(NodeId(3), Message::Drop { .. })]), "{outbox:?}");
    owner.receives(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 4)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_without_announcements_confirms_a_deletion_after_the_grace_period() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.receives(2, delete(&id)), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [deleted(&id, 2)]);
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.holders(&id), [3], "it was put after the deletion");
}

#[test]
fn a_new_put_ends_the_deletion_of_its_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.receives(2, delete(&id)), []);
    let outbox = owner.receives(3, claim(&id, instance(3, 1)));
    assert!(outbox.contains(&deleted(&id, 2)), "{outbox:?}");
    assert!(outbox.contains(&claimed(3, &id, instance(3, 1), None)), "{outbox:?}");
}

#[test]
fn a_withdrawn_lookup_gets_no_reply() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.source_of(2, &id), None);
    assert_eq!(owner.receives(2, Message::Cancel { number: QuestionId(lookup(&id)) }), []);
    assert_eq!(owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete)), []);
}

#[test]
fn a_small_object_is_part_of_the_reply() {
    let mut owner = Owner::new();
    let id = minted();
    let bytes: Inline = vec![1, 2, 3].into();
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Inline(bytes.clone())));
    let outbox = owner.receives(2, locate(&id));
    assert_eq!(assigned(&outbox), (2, Source::Inline(bytes)));
    assert_eq!(owner.holders(&id), [3], "a reader of a small object is not a holder");
}

#[test]
fn receivers_of_a_large_object_form_a_chain() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let sources: Vec<_> = [3, 4, 5].map(|requester| owner.source_of(requester, &id)).into();
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
}

/// Goal: a lookup among very many holders considers few of them. A requester that feeds most of
/// them gets its bytes from none of these.
#[test]
fn a_lookup_among_a_thousand_holders_considers_few() {
    let (mut owner, id) = (Owner::new(), minted());
    for number in 6..=1003 {
        let address = ([127, 0, 0, 1], number as u16).into();
        owner.members.insert(Member { id: NodeId(number), address, place: None });
    }
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    for receiver in 3..1003 {
        let source = owner.source_of(receiver, &id).unwrap();
        owner.receives(receiver, announced(&id, instance(2, 1), false, fed_by(source)));
    }
    let Owner { directory, members, now, .. } = &mut owner;
    let context = Context { now: *now, members, link: LINK, outbox: &mut Vec::new() };
    let live = directory.entries.get_mut(&id).and_then(|entry| entry.live.as_mut()).unwrap();
    let (node, bytes, link) = (NodeId(1003), SIZE, LINK);
    let request = SourceRequest { node, bytes, avoid: &[], link, movable_since: None };
    let considered = live.candidates(&context, &request, &directory.speeds).len();
    assert!((1..=3 * LOOKED_AT).contains(&considered), "{considered}");

    let again = locate_with(&id, |locate| locate.avoid = vec![NodeId(2)]);
    let (_, source) = assigned(&owner.receives(3, again));
    let Source::Holder { node, .. } = source else { panic!("{source:?}") };
    let live = owner.directory.entries.get_mut(&id).and_then(|entry| entry.live.as_mut());
    let lineage = live.unwrap().tree.lineage(NodeId(3)).unwrap();
    assert_eq!((lineage.root, lineage.depth.is_some()), (NodeId(2), true), "from {node}");
}

#[test]
fn readers_of_many_objects_spread_over_the_holders() {
    let mut owner = Owner::new();
    let ids: Vec<_> = (0..8).map(|serial| ObjectId::Minted { node: NodeId(1), serial }).collect();
    for (id, serial) in ids.iter().zip(0..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
        for reader in [3, 4] {
            owner.receives(reader, announced(id, instance(2, serial), false, Progress::Complete));
        }
    }
    let sources: Vec<_> = ids.iter().map(|id| owner.source_of(5, id).unwrap()).collect();
    assert_eq!(sources, [3, 4, 3, 4, 3, 4, 3, 4], "requests alternate between equal holders");
}

/// Node 1 in a cluster of seven: 1 to 3 in one rack, 4 to 6 in another, 7 in a third.
fn in_racks() -> Owner {
    let mut owner = Owner::new();
    for (id, rack) in (1..).zip(["a", "a", "a", "b", "b", "b", "c"]) {
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
        owner.members.insert(Member { id: NodeId(id), address, place: rack.parse().ok() });
    }
    owner
}

/// An object of node 1 that node 4, in another rack, has begun to receive.
fn with_a_far_receiver() -> (Owner, ObjectId) {
    let mut owner = in_racks();
    let id = minted();
    owner.receives(1, announced(&id, instance(1, 1), true, Progress::Complete));
    let outbox = owner.receives(4, locate(&id));
    owner.begins_all(&id, outbox, &mut Outbox::new());
    (owner, id)
}

/// Pairs of source and receiver, and how many of them are in different racks.
fn sources(owner: &Owner) -> (Vec<(u64, u64)>, usize) {
    let sources: Vec<_> = owner.directory.sources().map(|(_, to, from)| (from, to)).collect();
    let apart = sources.iter().filter(|(from, to)| owner.members.distance(*from, *to) > 0).count();
    (sources.into_iter().map(|(from, to)| (from.0, to.0)).collect(), apart)
}

/// Broadcasts an object of node 1. The last `late` requesters send their requests after the object
/// exists, and the first `slow` of these begin late. Returns the pairs of source and receiver, and
/// how many of them are in different racks.
fn broadcast(
    owner: &mut Owner,
    requesters: &[u64],
    late: usize,
    slow: usize,
) -> Result<(Vec<(u64, u64)>, usize), TestCaseError> {
    let id = minted();
    // Requests before the object exists get their replies together.
    let (early, others) = requesters.split_at(requesters.len() - late);
    for requester in early {
        prop_assert_eq!(owner.source_of(*requester, &id), None);
    }
    let outbox = owner.receives(1, announced(&id, instance(1, 1), true, Progress::Complete));
    prop_assert_eq!(
        owner.begins_all(&id, outbox, &mut Outbox::new()),
        0,
        "requesters that get their replies together are in order"
    );
    // Some receivers begin late.
    let mut unread = Outbox::new();
    for (number, requester) in others.iter().enumerate() {
        let outbox = owner.receives(*requester, locate(&id));
        if number < slow {
            unread.extend(outbox);
        } else {
            owner.begins_all(&id, outbox, &mut unread);
        }
    }
    owner.begins_all(&id, unread, &mut Outbox::new());
    let (sources, apart) = sources(owner);
    prop_assert_eq!(sources.len(), requesters.len());
    let senders: BTreeSet<u64> = sources.iter().map(|(from, _)| *from).collect();
    prop_assert_eq!(senders.len(), requesters.len(), "a node has two receivers: {:?}", sources);
    Ok((sources, apart))
}

proptest! {
    /// Goal: a broadcast enters each other rack once and no node has two receivers, whatever the
    /// order of requests.
    #[test]
    fn a_chain_goes_from_rack_to_rack_once(
        requesters in Just((2..=7).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=6usize,
        slow in 0..=6usize,
    ) {
        let (sources, apart) = broadcast(&mut in_racks(), &requesters, late, slow)?;
        prop_assert_eq!(apart, 2, "{:?}", sources);
    }
}

/// Nodes 1 to 8, two in each rack, and two racks in each pod.
fn in_pods() -> Owner {
    let mut owner = Owner::new();
    for (id, labels) in (1..).zip(["aa", "aa", "ab", "ab", "bc", "bc", "bd", "bd"]) {
        let group = |label: char| Group { label: label.into(), carries: 0 };
        let place = Place::new(&labels.chars().map(group).collect::<Vec<_>>()).ok();
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
        owner.members.insert(Member { id: NodeId(id), address, place });
    }
    owner
}

proptest! {
    /// Goal: a broadcast enters each other rack once, and one of these transfers enters the other
    /// pod, whatever the order of requests.
    #[test]
    fn a_chain_goes_into_each_pod_and_rack_once(
        requesters in Just((2..=8).collect::<Vec<u64>>()).prop_shuffle(),
        late in 0..=7usize,
        slow in 0..=7usize,
    ) {
        let (sources, apart) = broadcast(&mut in_pods(), &requesters, late, slow)?;
        prop_assert_eq!(apart, 3, "{:?}", sources);
        let pods = sources.iter().filter(|(from, to)| (*from <= 4) != (*to <= 4)).count();
        prop_assert_eq!(pods, 1, "{:?}", sources);
    }
}

/// Goal: a third rack receives from the second one if the link of the first one is fully used, and
/// else from a complete copy.
#[test]
fn a_group_is_left_as_often_at_once_as_its_link_carries() {
    for (carries, source) in [(0, 4), (1, 4), (2, 2)] {
        let mut owner = in_racks();
        for id in 1..=2 {
            let group = Group { label: "a".into(), carries };
            let (address, place) = (([127, 0, 0, 1], id as u16).into(), Place::new(&[group]).ok());
            owner.members.insert(Member { id: NodeId(id), address, place });
        }
        let id = minted();
        for holder in 1..=2 {
            owner.receives(holder, announced(&id, instance(1, 1), holder == 1, Progress::Complete));
        }
        let outbox = owner.receives(4, locate(&id));
        owner.begins_all(&id, outbox, &mut Outbox::new());
        owner.receives(4, announced(&id, instance(1, 1), false, fed_by(1)));
        assert_eq!(owner.source_of(7, &id), Some(source), "{carries}");
    }
}

#[test]
fn a_receiver_with_much_of_an_object_is_not_moved() {
    let (mut owner, id) = with_a_far_receiver();
    // Half of the time that 32 MiB take at 1 Gbit/s.
    owner.now = owner.now + 134_000_000;
    let outbox = owner.receives(2, locate(&id));
    assert_eq!(owner.begins_all(&id, outbox, &mut Outbox::new()), 0);
}

#[test]
fn a_receiver_is_moved_once_while_others_arrive() {
    let (mut owner, id) = with_a_far_receiver();
    let mut moves = Vec::new();
    for requester in [2, 3] {
        // A fifth of a transfer.
        owner.now = owner.now + 54_000_000;
        let outbox = owner.receives(requester, locate(&id));
        moves.push(owner.begins_all(&id, outbox, &mut Outbox::new()));
    }
    assert_eq!(moves, [1, 0], "it began more than a quarter of a transfer ago");
}

#[test]
fn no_receiver_is_moved_to_a_node_that_begins_late() {
    let (mut owner, id) = with_a_far_receiver();
    let outbox = owner.receives(2, locate(&id));
    owner.now = owner.now + 134_000_000;
    assert_eq!(owner.begins_all(&id, outbox, &mut Outbox::new()), 0);
    assert_eq!(sources(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn a_repeated_lookup_cancels_pending_moves() {
    let (mut owner, id) = with_a_far_receiver();
    owner.receives(2, locate(&id));
    owner.receives(2, locate_with(&id, |locate| locate.avoid = vec![NodeId(1)]));
    assert!(sources(&owner).0.contains(&(1, 4)), "{:?}", sources(&owner));
    let outbox = owner.receives(2, announced(&id, instance(1, 1), false, fed_by(4)));
    assert_eq!(outbox, []);
}

#[test]
fn no_receiver_is_moved_to_a_node_that_does_not_receive() {
    let (mut owner, id) = with_a_far_receiver();
    let replies = owner.receives(2, locate(&id));
    assert_eq!(assigned(&replies).0, 2);
    // It waits for capacity.
    let progress = Progress::Partial { source: None };
    assert_eq!(owner.receives(2, announced(&id, instance(1, 1), false, progress)), []);
    assert_eq!(owner.receives(2, announced(&id, instance(1, 1), false, fed_by(1))), []);
    assert_eq!(sources(&owner).0, [(1, 2), (1, 4)]);
}

#[test]
fn no_node_receives_from_its_own_receiver() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let sources = [3, 4, 5].map(|requester| owner.source_of(requester, &id));
    assert_eq!(sources, [Some(2), Some(3), Some(4)]);
    // The source of 3 is gone; 4 and 5 are behind 3.
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    assert_eq!(owner.source_of(3, &id), None);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3);
}

#[test]
fn a_source_that_failed_is_chosen_last() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let outbox = owner.receives(4, locate_with(&id, |locate| locate.avoid = vec![NodeId(2)]));
    assert!(matches!(assigned(&outbox), (4, Source::Holder { node: NodeId(3), .. })));
}

#[test]
fn a_refusal_corrects_a_stale_location() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    let not_here = Some((NodeId(2), instance(2, 1)));
    let outbox = owner.receives(3, locate_with(&id, |locate| locate.not_here = not_here));
    let reannounce_if_held = Message::Reannounce { id: id.clone(), instance: instance(2, 1) };
    assert_eq!(outbox, [(NodeId(2), reannounce_if_held), no_source(3, &id)]);
    assert!(!owner.holders(&id).contains(&2));
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3, "it has the object after all");
}

#[test]
fn an_older_refusal_does_not_hide_a_newer_copy() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    assert_eq!(owner.source_of(4, &id), Some(3));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let not_here = Some((NodeId(3), instance(2, 1)));
    let again = locate_with(&id, |locate| {
        (locate.avoid, locate.not_here) = (vec![NodeId(3)], not_here);
    });
    owner.receives(4, again);
    assert!(owner.holders(&id).contains(&3));
}

#[test]
fn a_deletion_is_confirmed_when_every_holder_has_dropped_its_copy() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let dropped: Vec<NodeId> = owner.receives(5, delete(&id)).iter().map(|(to, _)| *to).collect();
    assert_eq!(dropped, [NodeId(2), NodeId(3)]);
    let done = || Message::Dropped { id: id.clone(), instance: instance(2, 1) };
    assert_eq!(owner.receives(2, done()), []);
    assert_eq!(owner.receives(3, done()), [deleted(&id, 5)]);
    let outbox = owner.receives(4, locate(&id));
    assert_eq!(outbox, [gone(4, &id, Error::ObjectDeleted { id: id.clone() })]);
}

#[test]
fn a_deletion_does_not_wait_for_a_failed_holder() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(5, delete(&id));
    assert!(owner.loses(2).contains(&deleted(&id, 5)));
}

#[test]
fn a_late_announcement_does_not_bring_a_deleted_object_back() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.receives(5, delete(&id)), [deleted(&id, 5)]);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error };
    assert_eq!(outbox, [(NodeId(2), drop)]);
    owner.waits(TOMBSTONE_NS);
    assert!(owner.directory.entries.iter().next().is_none(), "deletions are forgotten in the end");
    assert_eq!(owner.directory.deadline(), None);
}

#[test]
fn a_name_is_taken_while_its_object_lives_and_free_after_its_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let claimed = |instance, taken_by| Message::Claimed { id: id.clone(), instance, taken_by };
    let outbox = owner.receives(2, claim(&id, instance(2, 1)));
    assert_eq!(outbox, [(NodeId(2), claimed(instance(2, 1), None))]);
    let outbox = owner.receives(3, claim(&id, instance(3, 1)));
    assert_eq!(outbox, [(NodeId(3), claimed(instance(3, 1), Some(NodeId(2))))]);
    owner.receives(4, delete(&id));
    let outbox = owner.receives(3, claim(&id, instance(3, 2)));
    assert!(outbox.contains(&(NodeId(3), claimed(instance(3, 2), None))));
    assert!(outbox.contains(&deleted(&id, 4)), "the deleter does not wait for old copies");
    // A late announcement of the old object is refused.
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(outbox[..], [(NodeId(2), Message::Drop { .. })]));
}

#[test]
fn the_oldest_of_too_many_deletions_are_forgotten() {
    let mut owner = Owner::new();
    let ids: Vec<ObjectId> =
        (0..REMEMBERED_MAX + 2).map(|number| named(&owner, &number.to_string())).collect();
    let dropped = |id: &ObjectId| Message::Dropped { id: id.clone(), instance: instance(2, 1) };
    for id in &ids {
        owner.receives(2, announced(id, instance(2, 1), true, Progress::Complete));
        owner.receives(4, delete(id));
        if *id != ids[0] {
            assert_eq!(owner.receives(2, dropped(id)), [deleted(id, 4)]);
        }
    }
    let remembered = |owner: &Owner| owner.directory.entries.iter().count();
    assert_eq!(remembered(&owner), REMEMBERED_MAX);
    let is_gone = |id: &ObjectId| owner.directory.why_gone(id).is_some();
    assert!(is_gone(&ids[0]), "its holder has not dropped it yet");
    assert!(!is_gone(&ids[1]) && !is_gone(&ids[2]));
    assert!(ids[3..].iter().all(is_gone));
    assert_eq!(owner.receives(2, dropped(&ids[0])), [deleted(&ids[0], 4)]);
    owner.waits(TOMBSTONE_NS);
    assert_eq!(remembered(&owner), 0);
    assert_eq!(owner.directory.deadline(), None);
}

#[test]
fn a_later_lookup_names_the_deleted_input_that_ended_a_sum() {
    let mut owner = Owner::new();
    let id = minted();
    let error = Error::ObjectDeleted { id: named(&owner, "input") };
    owner.receives(1, Message::Fail { id: id.clone(), error: error.clone(), reserved: None });
    assert_eq!(owner.receives(3, locate(&id)), [gone(3, &id, error)]);
}

#[test]
fn a_deletion_without_instances_ends_no_named_object() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let error = Some(Error::ObjectLost { id: id.clone(), detail: "it failed".to_string() });
    owner.receives(
        3,
        Message::Tombstone { id: id.clone(), instances: Vec::new(), error, pruned: false },
    );
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn a_repeated_report_evicts_no_remembered_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let instances = vec![instance(2, 1)];
    for _ in 0..3 {
        let (id, instances) = (id.clone(), instances.clone());
        owner.receives(3, Message::Tombstone { id, instances, error: None, pruned: false });
    }
    assert_eq!(owner.directory.remembered.len(), 1);
    owner.receives(2, delete(&minted()));
    owner.receives(2, delete(&minted()));
    assert_eq!(owner.directory.remembered.len(), 2);
}

#[test]
fn a_ring_result_is_served_by_its_maker_and_its_receivers_only() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Parts));
    assert_eq!(owner.source_of(3, &id), Some(2));
    // Node 3 makes a part, and has announced no copy.
    owner.receives(4, announced(&id, instance(2, 1), false, fed_by(2)));
    assert_eq!(owner.source_of(5, &id), Some(4));
    let found = |owner: &mut Owner| {
        let live = owner.directory.entries.get_mut(&id).unwrap().live.as_mut().unwrap();
        live.found(NodeId(3), &owner.members).unwrap().holder
    };
    assert_eq!(found(&mut owner), NodeId(2), "the copy of node 3 may become void");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    assert_eq!(found(&mut owner), NodeId(3));
}

#[test]
fn a_late_announcement_of_an_earlier_instance_does_not_undo_a_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    for serial in 1..=2 {
        owner.receives(2, announced(&id, instance(2, serial), true, Progress::Complete));
        owner.receives(4, delete(&id));
    }
    let error = Error::ObjectDeleted { id: id.clone() };
    let outbox = owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let drop =
        Message::Drop { id: id.clone(), instance: instance(2, 1), error: Some(error.clone()) };
    assert_eq!(outbox, [(NodeId(3), drop)]);
    assert_eq!(owner.receives(5, seen(&id)), [gone(5, &id, error)]);
}

/// A request of a node that was sent a location before.
fn seen(id: &ObjectId) -> Message {
    locate_with(id, |locate| locate.seen_at = Some(NodeId(2)))
}

#[test]
fn a_deletion_ends_open_requests_and_later_ones_wait_for_the_next_put() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let error = Error::ObjectDeleted { id: id.clone() };
    owner.receives(3, watch(&id));
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(4, &id), Some(2));
    let outbox = owner.receives(2, delete(&id));
    let ended = answered(3, WATCH, Answer::Gone(Error::ObjectDeleted { id: id.clone() }));
    assert!(outbox.contains(&ended), "it watched: {outbox:?}");
    assert_eq!(
        owner.receives(4, seen(&id)),
        [gone(4, &id, error)],
        "it was about to receive the deleted object"
    );
    assert_eq!(owner.source_of(4, &id), None, "this is a new request");
    assert_eq!(owner.receives(3, watch(&id)), [answered(3, WATCH, Answer::Pending)]);
    let locations = ask(7, Question::Locations { id: id.clone(), known: None });
    assert_eq!(owner.receives(5, locations), [answered(5, 7, Answer::Locations(vec![]))]);
    // Another owner repeats the deletion that it remembers.
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let (instances, name) = (vec![instance(2, 1)], id.clone());
    assert_eq!(
        owner.receives(5, Message::Tombstone { id: name, instances, error, pruned: false }),
        []
    );
    let mut outbox = owner.receives(2, claim(&id, instance(2, 2)));
    outbox.extend(owner.receives(2, announced(&id, instance(2, 2), true, Progress::Complete)));
    let located =
        |(to, message): &(NodeId, Message)| *to == NodeId(4) && located(message).is_some();
    let found = |(to, message): &(NodeId, Message)| {
        *to == NodeId(3) && matches!(message, Message::Answer { answer: Answer::Found(_), .. })
    };
    assert!(outbox.iter().any(located) && outbox.iter().any(found), "{outbox:?}");
}

/// An owner of two versions under one prefix.
fn two_versions() -> (Owner, ObjectId, ObjectId) {
    let mut owner = Owner::new();
    let old = named(&owner, "1");
    let ObjectId::Named(name) = &old else { unreachable!() };
    let new: ObjectId = format!("{}/2", name.group()).parse().unwrap();
    for (id, serial) in [(&old, 1), (&new, 2)] {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
    }
    (owner, old, new)
}

#[test]
fn a_pruned_version_stays_deleted_while_a_newer_one_is_live() {
    let (mut owner, old, new) = two_versions();
    owner.receives(2, ask(1, Question::Delete { id: old.clone(), pruned: true }));
    let error = Error::ObjectDeleted { id: old.clone() };
    assert_eq!(owner.receives(4, locate(&old)), [gone(4, &old, error.clone())]);
    assert_eq!(owner.receives(4, watch(&old)), [answered(4, WATCH, Answer::Gone(error))]);
    owner.receives(2, delete(&new));
    assert_eq!(owner.source_of(4, &old), None, "the name is free, for example for the next run");
}

#[test]
fn pruning_is_reported_to_the_other_owner() {
    let (mut owner, old, _) = two_versions();
    let error = Error::ObjectDeleted { id: old.clone() };
    let (id, instances) = (old.clone(), vec![instance(2, 1)]);
    let remember = Message::Tombstone { id, instances, error: Some(error.clone()), pruned: true };
    owner.receives(5, remember);
    assert_eq!(owner.receives(4, locate(&old)), [gone(4, &old, error)]);
}

#[test]
fn a_deleted_version_is_free_while_a_newer_one_is_live() {
    let (mut owner, old, _) = two_versions();
    owner.receives(2, delete(&old));
    assert_eq!(owner.receives(4, locate(&old)), [no_source(4, &old)]);
    let outbox = owner.receives(3, claim(&old, instance(3, 1)));
    assert!(outbox.contains(&claimed(3, &old, instance(3, 1), None)), "{outbox:?}");
}

#[test]
fn a_reduce_that_fails_after_its_name_was_deleted_leaves_the_name_free() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let error = Error::ObjectLost { id: id.clone(), detail: "its inputs are gone".to_string() };
    let fail = Message::Fail { id: id.clone(), error, reserved: Some(instance(2, 1)) };
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(3, delete(&id));
    assert_eq!(owner.receives(2, fail.clone()), []);
    assert_eq!(owner.receives(4, locate(&id)), [no_source(4, &id)]);
    owner.receives(3, reserve(&id, instance(3, 1)));
    assert_eq!(owner.receives(2, fail), [], "the next reduce has the name");
    assert_eq!(owner.directory.reservations(), 1);
}

#[test]
fn a_late_failure_report_does_not_block_a_freed_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let error = Error::ObjectLost { id: id.clone(), detail: "its inputs are gone".to_string() };
    let reserved = Some(instance(2, 1));
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(2, Message::Fail { id: id.clone(), error: error.clone(), reserved });
    owner.receives(3, delete(&id));
    assert_eq!(owner.receives(4, locate(&id)), [no_source(4, &id)]);
    let (name, instances) = (id.clone(), vec![instance(2, 1)]);
    let repeated = Message::Tombstone { id: name, instances, error: Some(error), pruned: false };
    assert_eq!(owner.receives(5, repeated), []);
    assert_eq!(owner.receives(6, locate(&id)), [no_source(6, &id)]);
}

#[test]
fn a_reserved_name_of_a_capability_stays_deleted() {
    let mut owner = Owner::new();
    let id = named(&owner, "@1/1");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(2, delete(&id));
    let error = Error::ObjectDeleted { id: id.clone() };
    assert_eq!(owner.receives(4, locate(&id)), [gone(4, &id, error)]);
}

#[test]
fn a_result_that_failed_stays_failed_until_its_name_is_deleted() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    let detail = "its inputs are gone".to_string();
    let error = Error::ObjectLost { id: id.clone(), detail };
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(2, Message::Fail { id: id.clone(), error: error.clone(), reserved: None });
    assert_eq!(owner.receives(4, locate(&id)), [gone(4, &id, error)]);
    owner.receives(3, delete(&id));
    assert_eq!(owner.source_of(4, &id), None, "the name is free");
}

#[test]
fn every_owner_keeps_the_lower_of_two_objects_under_one_name() {
    let (low, high) = ((2, instance(2, 9)), (3, instance(3, 1)));
    for (first, second) in [(low, high), (high, low)] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.receives(first.0, announced(&id, first.1, true, Progress::Complete));
        let outbox = owner.receives(second.0, announced(&id, second.1, true, Progress::Complete));
        let drop = Message::Drop { id: id.clone(), instance: high.1, error: None };
        assert_eq!(outbox, [(NodeId(high.0), drop)]);
        assert_eq!(owner.holders(&id), [low.0]);
    }
}

#[test]
fn a_later_epoch_of_a_reduce_replaces_an_earlier_one() {
    let mut owner = Owner::new();
    let id = minted();
    let growing = || Progress::Partial { source: None };
    owner.receives(1, announced(&id, instance(1, 8), true, growing()));
    assert_eq!(owner.source_of(2, &id), Some(1));
    let outbox = owner.receives(1, announced(&id, instance(1, 9), true, growing()));
    let drop = Message::Drop { id: id.clone(), instance: instance(1, 8), error: None };
    assert_eq!(outbox, [(NodeId(2), drop)]);
    assert_eq!(owner.holders(&id), [1]);
}

#[test]
fn latest_is_the_highest_number_and_waits_for_a_higher_one() {
    let mut owner = Owner::new();
    let ids = ["9", "10", "11", "best"].map(|version| named(&owner, version));
    let prefix = format!("{}/", ids[0].to_string().rsplit_once('/').unwrap().0);
    let question = |after| {
        let prefix = prefix.parse().unwrap();
        ask(5, Question::Latest { prefix, after })
    };
    for (serial, id) in (1..).zip([&ids[1], &ids[0], &ids[3]]) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
    }
    let answer = |id: &ObjectId| {
        let ObjectId::Named(name) = id.clone() else { unreachable!() };
        answered(4, 5, Answer::Latest(name))
    };
    assert_eq!(owner.receives(4, question(None)), [answer(&ids[1])]);
    assert_eq!(owner.receives(4, question(Some(10))), [answered(4, 5, Answer::Pending)]);
    let outbox = owner.receives(2, announced(&ids[2], instance(2, 4), true, Progress::Complete));
    assert_eq!(outbox, [answer(&ids[2])]);
    // The result of a reduce whose epoch was aborted does not exist, although its name stays
    // reserved for the next epoch.
    let sum = named(&owner, "12");
    owner.receives(2, reserve(&sum, instance(2, 5)));
    owner.receives(2, announced(&sum, instance(2, 6), true, growing()));
    owner.receives(2, Message::Withdraw { id: sum.clone(), instance: instance(2, 6) });
    assert_eq!(owner.receives(4, question(None)), [answer(&ids[2])]);
    assert_eq!(owner.receives(4, question(Some(11))).len(), 1, "it waits");
    assert_eq!(owner.receives(2, announced(&sum, instance(2, 7), true, growing())), [answer(&sum)]);
}

#[test]
fn a_new_owner_reports_that_there_is_no_name_only_after_the_others_have_announced_theirs() {
    let mut owner = Owner::new();
    owner.loses(5);
    let id = named(&owner, "9");
    let prefix = format!("{}/", id.to_string().rsplit_once('/').unwrap().0);
    let question = |number| {
        let prefix = prefix.parse().unwrap();
        ask(number, Question::Latest { prefix, after: None })
    };
    let nothing_yet = |number| answered(4, number, Answer::Pending);
    assert_eq!(owner.receives(4, question(5)), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    // Another change: a member may be the owner of more names.
    owner.loses(3);
    assert_eq!(owner.receives(4, question(6)), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [nothing_yet(5), nothing_yet(6)]);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), []);
    assert_eq!(owner.receives(4, question(7)), [nothing_yet(7)]);
    let ObjectId::Named(name) = id.clone() else { unreachable!() };
    let reply = |number| {
        let name = name.clone();
        answered(4, number, Answer::Latest(name))
    };
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(outbox, [reply(5), reply(6), reply(7)]);
}

#[test]
fn a_loss_is_reported_later_while_members_merge() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let member = owner.members.iter().find(|member| member.id == NodeId(2)).unwrap();
    let is_lost = |outbox: &Outbox| outbox.iter().any(|(_, message)| is_gone(message));
    // It counts as a new member, and has not repeated its announcements for longer than the grace
    // period.
    owner.directory.merge(owner.now);
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    assert!(!is_lost(&owner.waits(2 * ORPHAN_GRACE_NS)));
    owner.members.insert(member);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3);
    assert!(!is_lost(&owner.waits(2 * MERGE_NS)));
    // A member that flaps forever does not delay the loss forever.
    owner.loses(2);
    assert_eq!(owner.source_of(4, &id), None);
    for _ in 0..4 {
        owner.directory.merge(owner.now);
        assert!(!is_lost(&owner.waits(MERGE_NS / 5)));
    }
    owner.directory.merge(owner.now);
    assert!(is_lost(&owner.waits(MERGE_NS / 5)));
}

#[test]
fn waiting_nodes_get_a_loss_after_the_grace_period() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    let outbox = owner.waits(ORPHAN_GRACE_NS);
    let is_lost = |message: &Message| {
        matches!(
            message,
            Message::Answer { answer: Answer::Gone(Error::ObjectLost { .. }), .. }
                | Message::DropPartial { error: Error::ObjectLost { .. }, .. }
        )
    };
    assert_eq!(outbox.len(), 2, "a reply to the request, and an order to drop the partial copy");
    assert!(outbox.iter().all(|(to, message)| *to == NodeId(3) && is_lost(message)));
}

#[test]
fn an_object_announced_again_within_the_grace_period_is_not_lost() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.loses(2);
    assert_eq!(owner.source_of(3, &id), None);
    let outbox = owner.receives(4, announced(&id, instance(2, 1), false, Progress::Complete));
    assert_eq!(assigned(&outbox).0, 3);
    assert_eq!(owner.waits(2 * ORPHAN_GRACE_NS), []);
}

/// Goal: without a fault nothing is lost at an owner that joined, however late the holders of very
/// many objects announce them, and no entry stays for a copy that never comes.
#[test]
fn an_object_is_not_lost_while_its_source_has_not_announced_it() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let is_lost = |outbox: &Outbox| outbox.iter().any(|(_, message)| is_gone(message));
    let doubted = (NodeId(2), Message::Reannounce { id: id.clone(), instance: instance(2, 1) });
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(2)));
    let waiting = owner.receives(4, locate(&id));
    for _ in 0..3 {
        let outbox = owner.waits(MERGE_NS + ORPHAN_GRACE_NS);
        assert_eq!(outbox, core::slice::from_ref(&doubted), "{waiting:?}");
    }
    // A copy that grows where it is made is news for those that watch the object.
    let mut other = Owner::new();
    other.receives(3, announced(&id, instance(2, 1), false, fed_by(2)));
    other.receives(5, watch(&id));
    let outbox = other.receives(2, announced(&id, instance(2, 1), true, growing()));
    assert!(outbox.iter().any(|(to, _)| *to == NodeId(5)), "{outbox:?}");
    // Meanwhile no other object gets the name.
    let outbox = owner.receives(4, claim(&id, instance(4, 7)));
    let taken =
        Message::Claimed { id: id.clone(), instance: instance(4, 7), taken_by: Some(NodeId(2)) };
    assert!(outbox.contains(&(NodeId(4), taken)), "{outbox:?}");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.waits(10 * MERGE_NS), []);
    // The source has no copy, or its receiver reports that or receives nothing, or the source is
    // gone.
    for event in 0..4 {
        let mut owner = Owner::new();
        owner.receives(3, announced(&id, instance(2, 1), false, fed_by(2)));
        owner.receives(4, locate(&id));
        assert!(!is_lost(&owner.waits(2 * MERGE_NS)));
        let not_here = Some((NodeId(2), instance(2, 1)));
        let withdrawn = Message::Withdraw { id: id.clone(), instance: instance(2, 1) };
        match event {
            0 => drop(owner.receives(3, locate_with(&id, |locate| locate.not_here = not_here))),
            1 => drop(owner.receives(3, Message::Decline { id: id.clone() })),
            2 => drop(owner.receives(2, withdrawn)),
            _ => drop(owner.loses(2)),
        }
        assert!(is_lost(&owner.waits(2 * MERGE_NS)), "{event}");
        assert_eq!(owner.directory.len(), 0);
    }
    // A source that has withdrawn its copy has none.
    let mut owner = Owner::new();
    owner.receives(2, announced(&id, instance(2, 1), true, growing()));
    assert_eq!(owner.source_of(4, &id), Some(2));
    owner.receives(4, announced(&id, instance(2, 1), false, fed_by(2)));
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    owner.receives(3, locate(&id));
    assert!(is_lost(&owner.waits(2 * ORPHAN_GRACE_NS)));
}

/// Goal: the end of a reservation checks what the end of the copies has not, as the name could
/// still get an object then.
#[test]
fn nothing_remains_of_a_reduce_whose_result_and_name_are_withdrawn() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let (name, result) = (instance(2, 1), instance(2, 2));
    owner.receives(2, Message::Reserve { id: id.clone(), instance: name });
    owner.receives(2, announced(&id, result, true, growing()));
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: result });
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: name });
    owner.waits(2 * ORPHAN_GRACE_NS);
    assert_eq!(owner.directory.len(), 0);
}

#[test]
fn the_result_of_a_restarted_reduce_is_not_lost() {
    let mut owner = Owner::new();
    let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
    let growing = Progress::Partial { source: None };
    owner.receives(3, announced(&id, instance(3, 2), true, growing));
    assert_eq!(owner.source_of(2, &id), Some(3));
    owner.receives(3, Message::Withdraw { id: id.clone(), instance: instance(3, 2) });
    assert_eq!(owner.source_of(2, &id), None);
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "its caller is alive and may still make it");
}

#[test]
fn an_id_is_lost_if_its_minter_failed_before_the_put() {
    let mut owner = Owner::new();
    let ids = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
    owner.loses(3);
    let id = ids.into_iter().find(|id| owner.members.owners(id).primary == NodeId(1)).unwrap();
    assert_eq!(owner.source_of(2, &id), None);
    let outbox = owner.waits(ORPHAN_GRACE_NS);
    assert!(matches!(&outbox[..], [(NodeId(2), gone)] if is_gone(gone)), "{outbox:?}");
}

#[test]
fn copies_that_receive_from_each_other_restart() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(4)));
    let outbox = owner.receives(4, announced(&id, instance(2, 1), false, fed_by(3)));
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
    assert_eq!(outbox, [(NodeId(4), drop)]);
    assert!(owner.directory.sources().all(|(_, node, source)| (node.0, source.0) == (3, 4)));
}

#[test]
fn a_restarted_receiver_still_serves_the_nodes_behind_it() {
    let (mut owner, id) = (Owner::new(), minted());
    owner.receives(2, announced(&id, instance(2, 1), true, growing()));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(2)));
    owner.receives(4, announced(&id, instance(2, 1), false, fed_by(3)));
    owner.receives(3, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    owner.receives(5, announced(&id, instance(2, 1), false, fed_by(2)));
    owner.receives(3, announced(&id, instance(2, 1), false, fed_by(5)));
    let outbox = owner.receives(5, announced(&id, instance(2, 1), false, fed_by(4)));
    let drop = Message::Drop { id, instance: instance(2, 1), error: None };
    assert_eq!(outbox, [(NodeId(5), drop)]);
}

/// Goal: an owner that was declared dead for a while does not defend a name that was deleted and
/// put again meanwhile.
#[test]
fn an_owner_that_catches_up_refuses_no_announcement() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let (old, new) = (instance(2, 1), instance(3, 1));
    let small = Progress::Inline(vec![1; 8].into());
    owner.receives(2, announced(&id, old, true, small));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.receives(3, announced(&id, new, true, Progress::Complete)), []);
    let (instances, error) = (vec![old], None);
    let outbox =
        owner.receives(4, Message::Tombstone { id: id.clone(), instances, error, pruned: false });
    let drop = Message::Drop { id: id.clone(), instance: old, error: None };
    assert_eq!(outbox, [(NodeId(2), drop.clone())]);
    owner.waits(ORPHAN_GRACE_NS);
    assert_eq!(owner.holders(&id), [3]);
    assert_eq!(owner.source_of(5, &id), Some(3));
    // A holder of the old instance must drop it.
    assert_eq!(
        owner.receives(2, announced(&id, old, true, Progress::Complete)),
        [(NodeId(2), drop)]
    );
}

#[test]
fn the_lower_of_two_live_rivals_stays_after_catching_up() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete)), []);
    let drop = Message::Drop { id: id.clone(), instance: instance(3, 1), error: None };
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [(NodeId(3), drop)]);
    // A withdrawn announcement is not handled later.
    owner.directory.catch_up(owner.now);
    owner.receives(4, announced(&id, instance(4, 1), true, Progress::Complete));
    owner.receives(4, Message::Withdraw { id: id.clone(), instance: instance(4, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), []);
    assert_eq!(owner.holders(&id), [2]);
}

/// Goal: an owner that may have missed a deletion accepts the next put, and loses no live object.
/// Method: an entry of a node that was not an owner; then another instance; then an announcement of
/// the holder of the first one.
#[test]
fn an_owner_that_may_have_missed_a_deletion_requests_confirmation_of_holders() {
    let mut owner = Owner::new();
    // Nodes 4 and 5 own the name instead of this node, for a while.
    let names = (0..).map(|group| -> ObjectId { format!("group{group}/x").parse().unwrap() });
    let is_others = |id: &ObjectId| {
        let owners = owner.members.owners(id);
        [2, 3].iter().all(|node| !owners.contains(NodeId(*node))) && !owners.contains(NodeId(1))
    };
    let mut is_mine_without = owner.members.clone();
    [4, 5].iter().for_each(|node| assert!(is_mine_without.remove(NodeId(*node))));
    let is_mine = |id: &ObjectId| is_mine_without.owners(id).contains(NodeId(1));
    let id = names.into_iter().find(|id| is_others(id) && is_mine(id)).unwrap();
    let (low, high) = (instance(2, 1), instance(3, 1));
    owner.receives(2, announced(&id, low, true, Progress::Complete));
    owner.loses(4);
    owner.loses(5);
    let outbox = owner.receives(3, announced(&id, high, true, Progress::Complete));
    assert_eq!(outbox, [(NodeId(2), Message::Reannounce { id: id.clone(), instance: low })]);
    assert_eq!(owner.holders(&id), [3]);
    // It is live, and the lower of the two: the other owner keeps it too.
    let outbox = owner.receives(2, announced(&id, low, true, Progress::Complete));
    let drop = Message::Drop { id: id.clone(), instance: high, error: None };
    assert_eq!(outbox, [(NodeId(3), drop)]);
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn a_pinned_copy_takes_the_name_of_orphaned_cached_copies() {
    for first_is_low in [true, false] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        let (before, after) = if first_is_low {
            (instance(2, 1), instance(3, 1))
        } else {
            (instance(3, 1), instance(2, 1))
        };
        owner.receives(before.node.0, announced(&id, before, true, Progress::Complete));
        owner.receives(5, announced(&id, before, false, Progress::Complete));
        owner.loses(before.node.0);
        let outbox = owner.receives(after.node.0, announced(&id, after, true, Progress::Complete));
        let drop = Message::Drop { id: id.clone(), instance: before, error: None };
        assert_eq!(outbox, [(NodeId(5), drop)]);
        assert_eq!(owner.holders(&id), [after.node.0]);
    }
}

#[test]
fn the_last_announcement_of_a_maker_counts() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, claim(&id, instance(2, 2)));
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 2) });
    assert_eq!(owner.holders(&id), [2]);
    assert_eq!(owner.source_of(3, &id), Some(2));
}

#[test]
fn a_name_deleted_while_its_only_holder_was_away_does_not_come_back() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let member = owner.members.iter().find(|member| member.id == NodeId(2)).unwrap();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.loses(2);
    owner.waits(2 * ORPHAN_GRACE_NS);
    assert_eq!(owner.receives(4, delete(&id)), [deleted(&id, 4)]);
    owner.members.insert(member);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert!(matches!(outbox[..], [(NodeId(2), Message::Drop { .. })]), "{outbox:?}");
    assert_eq!(owner.receives(5, announced(&id, instance(5, 1), true, Progress::Complete)), []);
    assert_eq!(owner.holders(&id), [5]);
}

#[test]
fn deletions_are_sent_to_new_owners_once() {
    let mut owner = Owner::new();
    let id = ObjectId::Minted { node: NodeId(3), serial: 1 };
    let outbox = owner.receives(4, delete(&id));
    let passed_on =
        outbox.into_iter().filter(|(_, message)| matches!(message, Message::Tombstone { .. }));
    let passed_on: Vec<NodeId> = passed_on.map(|(to, _)| to).collect();
    let notified = |owner: &mut Owner, rejoined| {
        let outbox = owner.members_changed(rejoined);
        assert!(outbox.iter().all(|(_, message)| matches!(message, Message::Tombstone { .. })));
        outbox.into_iter().map(|(to, _)| to).collect::<Vec<NodeId>>()
    };
    let owners: Vec<NodeId> = owner.members.owners(&id).iter().collect();
    let others: Vec<NodeId> = owners.iter().copied().filter(|node| *node != NodeId(1)).collect();
    assert!(!others.is_empty());
    assert_eq!(passed_on, others, "the deleter considers this node an owner, which it is not");
    // Thousands of deletions are remembered: they are not sent to all members at each change.
    assert_eq!(notified(&mut owner, None), []);
    assert_eq!(notified(&mut owner, Some(others[0])), [others[0]]);
    let (instances, error) = (Vec::new(), Some(Error::ObjectDeleted { id: id.clone() }));
    owner.receives(
        others[0].0,
        Message::Tombstone { id: id.clone(), instances, error, pruned: false },
    );
    assert_eq!(notified(&mut owner, None), [], "not back to the owner that sent it");
}

#[test]
fn an_announcement_to_a_node_that_is_not_an_owner_expires() {
    let mut owner = Owner::new();
    let strangers = (0..).map(|serial| ObjectId::Minted { node: NodeId(3), serial });
    let is_strange = |id: &ObjectId| !owner.members.owners(id).contains(NodeId(1));
    let id = strangers.into_iter().find(is_strange).unwrap();
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.holders(&id), [3], "this node may be its owner in the view of others");
    owner.waits(STRAY_NS / 2);
    assert_eq!(
        owner.holders(&id),
        [3],
        "and may learn that only when it detects the loss of a member"
    );
    owner.waits(STRAY_NS);
    assert_eq!(owner.holders(&id), []);
}

/// A reader announces an epoch that its maker has aborted, because it does not know the next one
/// yet.
#[test]
fn an_earlier_epoch_replaces_no_later_one_after_an_ownership_change() {
    let mut owner = Owner::new();
    let id = named(&owner, "sum");
    // Members that know that the last owner is gone announce to this one first.
    let all = owner.members.clone();
    owner.members.resign();
    owner.receives(2, announced(&id, instance(2, 7), true, growing()));
    owner.members = all;
    owner.members_changed(None);
    owner.receives(2, announced(&id, instance(2, 9), true, growing()));
    let outbox = owner.receives(3, announced(&id, instance(2, 7), false, fed_by(2)));
    let dropped = Message::Drop { id: id.clone(), instance: instance(2, 7), error: None };
    assert_eq!(outbox, [(NodeId(3), dropped)]);
    assert_eq!(owner.holders(&id), [2]);
}

#[test]
fn a_watcher_gets_a_reply_at_once_and_again_when_the_object_appears() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.receives(2, watch(&id)), [answered(2, WATCH, Answer::Pending)]);
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(found_at(&outbox), (NodeId(2), NodeId(3)));
    assert_eq!(found_at(&owner.receives(3, watch(&id))), (NodeId(3), NodeId(3)));
}

/// The watcher and the holder in a single message.
fn found_at(outbox: &Outbox) -> (NodeId, NodeId) {
    match &outbox[..] {
        [(to, Message::Answer { answer: Answer::Found(found), .. })] => (*to, found.holder),
        other => panic!("{other:?}"),
    }
}

fn reserve(id: &ObjectId, instance: Instance) -> Message {
    Message::Reserve { id: id.clone(), instance }
}

fn claimed(to: u64, id: &ObjectId, instance: Instance, taken_by: Option<u64>) -> (NodeId, Message) {
    let (id, taken_by) = (id.clone(), taken_by.map(NodeId));
    (NodeId(to), Message::Claimed { id, instance, taken_by })
}

fn growing() -> Progress {
    Progress::Partial { source: None }
}

/// Goal: a claim that another node passed on arrives later than what the holder announced since.
#[test]
fn a_late_claim_of_a_holder_changes_nothing() {
    let mut owner = Owner::new();
    let (id, put) = (named(&owner, "x"), instance(2, 1));
    assert_eq!(owner.receives(2, claim(&id, put)), [claimed(2, &id, put, None)]);
    owner.receives(2, announced(&id, put, true, Progress::Complete));
    assert_eq!(owner.receives(2, claim(&id, put)), [claimed(2, &id, put, None)]);
    assert_eq!(owner.source_of(3, &id), Some(2));
    let complete = owner.directory.entries.get(&id).and_then(|entry| entry.live.as_ref());
    assert!(complete.is_some_and(|live| live.is_complete()));
}

#[test]
fn a_reservation_keeps_a_name_until_its_result_is_complete() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    assert_eq!(
        owner.receives(2, reserve(&id, instance(2, 1))),
        [claimed(2, &id, instance(2, 1), None)]
    );
    for node in [2, 3] {
        let mine = instance(node, 5);
        assert_eq!(owner.receives(node, claim(&id, mine)), [claimed(node, &id, mine, Some(2))]);
        assert_eq!(owner.receives(node, reserve(&id, mine)), [claimed(node, &id, mine, Some(2))]);
    }
    // The result grows; its name is reserved again.
    assert_eq!(owner.receives(2, announced(&id, instance(2, 6), true, growing())), []);
    assert_eq!(
        owner.receives(2, reserve(&id, instance(2, 1))),
        [claimed(2, &id, instance(2, 1), None)]
    );
    owner.receives(2, announced(&id, instance(2, 6), true, Progress::Complete));
    owner.receives(2, reserve(&id, instance(2, 1)));
    assert_eq!(owner.directory.reservations(), 0, "the result is complete");
    assert_eq!(
        owner.receives(3, claim(&id, instance(3, 6)))[0].1,
        claimed(3, &id, instance(3, 6), Some(2)).1
    );
}

#[test]
fn a_complete_copy_of_an_aborted_epoch_does_not_end_the_reservation() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(2, announced(&id, instance(2, 6), true, growing()));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 6) });
    owner.receives(3, announced(&id, instance(2, 6), false, Progress::Complete));
    let dropped: Vec<NodeId> =
        owner.receives(5, delete(&id)).into_iter().map(|(to, _)| to).collect();
    assert_eq!(dropped, [NodeId(3), NodeId(2)], "the running reduce ends with its name");
}

#[test]
fn a_withdrawn_reservation_leaves_nothing() {
    for message in [
        |id: ObjectId| Message::Withdraw { id, instance: Instance { node: NodeId(2), serial: 1 } },
        |id: ObjectId| Message::Fail {
            error: Error::ObjectDeleted { id: id.clone() },
            id,
            reserved: Some(instance(2, 1)),
        },
    ] {
        let mut owner = Owner::new();
        let id = named(&owner, "x");
        owner.receives(2, reserve(&id, instance(2, 1)));
        owner.receives(2, message(id.clone()));
        assert_eq!(owner.directory.reservations(), 0);
        assert!(owner.receives(3, claim(&id, instance(3, 1))).contains(&claimed(
            3,
            &id,
            instance(3, 1),
            None
        )));
    }
}

#[test]
fn an_existing_object_wins_over_a_reservation() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    // Put at an owner that did not know the reduce, and announced here.
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(outbox, [claimed(2, &id, instance(2, 1), Some(3))]);
    assert_eq!(owner.directory.reservations(), 0);
    let error = Error::ObjectDeleted { id: id.clone() };
    assert_eq!(owner.receives(2, Message::Fail { id: id.clone(), error, reserved: None }), []);
    assert_eq!(owner.holders(&id), [3], "the end of the reduce does not affect it");
}

#[test]
fn a_deletion_includes_a_result_announced_meanwhile() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = |serial| {
        let (id, instance, error) = (id.clone(), instance(2, serial), error.clone());
        (NodeId(2), Message::Drop { id, instance, error })
    };
    assert_eq!(owner.receives(5, delete(&id)), [drop(1)]);
    assert_eq!(
        owner.receives(2, announced(&id, instance(2, 3), true, Progress::Complete)),
        [drop(3)]
    );
    let dropped = |serial| Message::Dropped { id: id.clone(), instance: instance(2, serial) };
    assert_eq!(owner.receives(2, dropped(1)), [], "the result may still be sent to others");
    assert_eq!(owner.receives(2, dropped(3)), [deleted(&id, 5)]);
    // The deleted reduce reserves its name again.
    let outbox = owner.receives(2, reserve(&id, instance(2, 1)));
    assert_eq!(outbox, [claimed(2, &id, instance(2, 1), None), drop(1)]);
    // A put by the same node is another object.
    let outbox = owner.receives(2, claim(&id, instance(2, 9)));
    assert_eq!(outbox, [claimed(2, &id, instance(2, 9), None)]);
}

#[test]
fn waiting_nodes_get_an_error_when_the_maker_of_a_result_fails() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(3, locate(&id));
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), []);
    owner.loses(2);
    // Another node sends its request within the grace period, because its former owner failed too.
    owner.receives(4, locate(&id));
    let notified: Vec<NodeId> =
        owner.waits(ORPHAN_GRACE_NS).into_iter().map(|(to, _)| to).collect();
    assert_eq!(notified, [NodeId(3), NodeId(4)]);
    let later = owner.receives(5, locate(&id));
    assert!(matches!(&later[..], [(NodeId(5), gone)] if is_gone(gone)), "{later:?}");
    // The name is free, also for its maker, if that had only lost its connections.
    let outbox = owner.receives(2, reserve(&id, instance(2, 1)));
    assert_eq!(outbox, [claimed(2, &id, instance(2, 1), None)]);
    owner.receives(5, locate(&id));
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "it may still be made");
}

#[test]
fn a_maker_that_repeats_its_reservation_in_time_keeps_it() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    owner.receives(3, locate(&id));
    owner.loses(2);
    owner.receives(2, reserve(&id, instance(2, 1)));
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), []);
    let outbox = owner.receives(4, claim(&id, instance(4, 1)));
    assert_eq!(outbox, [claimed(4, &id, instance(4, 1), Some(2))]);
}

#[test]
fn a_reduce_may_take_a_name_that_was_lost() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    assert_eq!(owner.source_of(3, &id), Some(2));
    owner.loses(2);
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error: None };
    let outbox = owner.receives(4, reserve(&id, instance(4, 1)));
    assert_eq!(outbox, [(NodeId(3), drop), claimed(4, &id, instance(4, 1), None)]);
    assert_eq!(owner.source_of(3, &id), None);
    assert_eq!(owner.waits(10 * ORPHAN_GRACE_NS), [], "it may still be made");
}

#[test]
fn a_withdrawn_small_put_leaves_no_bytes() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let bytes: Inline = vec![1; 8].into();
    let inline = Progress::Inline(bytes);
    let Message::Announce(announce) = announced(&id, instance(2, 1), true, inline) else {
        unreachable!()
    };
    owner
        .receives(2, Message::Announce(Announce { claim: true, meta: Meta::bytes(8), ..announce }));
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    let outbox = owner.receives(3, claim(&id, instance(3, 1)));
    assert_eq!(outbox, [claimed(3, &id, instance(3, 1), None)]);
}
