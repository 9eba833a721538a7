//! Tests of the directory: messages in, messages out.

use alloc::{boxed::Box, collections::VecDeque, format, vec, vec::Vec};

use super::*;
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId, QuestionId},
    inline::Inline,
    limits::STRAY_NS,
    members::{Member, Members},
    message::{Announce, Located, Message, Progress, ReceiveRate, Source},
    meta::Meta,
    question::{Answer, Locate, Question},
    reduce::cost::Link,
    time::Instant,
};

pub(super) const SIZE: u64 = 32 << 20;

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) const LINK: Link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };

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

    /// Handles a deletion by `from`; returns what it sends to others than the other owner.
    pub(super) fn deletes(&mut self, from: u64, id: &ObjectId) -> Outbox {
        let mut outbox = self.receives(from, delete(id));
        outbox.retain(|(_, message)| !matches!(message, Message::Tombstone { .. }));
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
    pub(super) fn begins_all(
        &mut self,
        id: &ObjectId,
        outbox: Outbox,
        unread: &mut Outbox,
    ) -> usize {
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

/// A name whose backup owner is this node, and its primary owner.
pub(super) fn backed_up(owner: &Owner) -> (ObjectId, u64) {
    let names = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    let mut owned = names.map(|id| (owner.members.owners(&id), id));
    let (owners, id) = owned.find(|(owners, _)| owners.backup == Some(NodeId(1))).unwrap();
    (id, owners.primary.0)
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

pub(super) fn claim(id: &ObjectId, instance: Instance) -> Message {
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
pub(super) fn gone(to: u64, id: &ObjectId, error: Error) -> (NodeId, Message) {
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
pub(super) const fn is_gone(message: &Message) -> bool {
    matches!(message, Message::Answer { answer: Answer::Gone(_), .. })
}

/// The receiver of the only message, and the source that it assigns.
pub(super) fn assigned(outbox: &Outbox) -> (u64, Source) {
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

pub(super) fn deleted(id: &ObjectId, to: u64) -> (NodeId, Message) {
    answered(to, number_of(id), Answer::Deleted)
}

pub(super) fn unknown_to(id: &ObjectId, to: u64) -> (NodeId, Message) {
    answered(to, number_of(id), Answer::Unknown)
}

/// The number of the questions of [`watch`].
pub(super) const WATCH: u64 = 1 << 40;

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

pub(super) fn reserve(id: &ObjectId, instance: Instance) -> Message {
    Message::Reserve { id: id.clone(), instance }
}

pub(super) fn claimed(
    to: u64,
    id: &ObjectId,
    instance: Instance,
    taken_by: Option<u64>,
) -> (NodeId, Message) {
    let (id, taken_by) = (id.clone(), taken_by.map(NodeId));
    (NodeId(to), Message::Claimed { id, instance, taken_by })
}

pub(super) fn growing() -> Progress {
    Progress::Partial { source: None }
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
