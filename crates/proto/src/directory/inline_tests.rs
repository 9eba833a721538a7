//! Bytes of small objects at an owner: stored within its capacity; beyond that, they come from
//! their holders.

use alloc::{boxed::Box, format, string::ToString, vec, vec::Vec};

use proptest::prelude::*;

use super::{
    tests::{Owner, delete, locate, located, no_source, watch},
    *,
};
use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId},
    inline::Inline,
    lifetime::Lifetime,
    limits::{ORPHAN_GRACE_NS, SHARE_OF_ONE, STRAY_NS},
    members::Members,
    message::{Announce, Located, Message, Progress, Source},
    meta::Meta,
    question::Answer,
};

/// Bytes of an object. Two of them exceed the limit of one member.
const SIZE: u64 = 60;
const OF_ONE: u64 = 100;

/// Node 1, which stores up to 100 bytes of each of two others.
fn owner() -> Owner {
    let directory = Directory::new(None, Slice::default(), OF_ONE * SHARE_OF_ONE);
    Owner { directory, ..Owner::new() }
}

/// Names whose primary owner is node 1.
fn names(owner: &Owner) -> impl Iterator<Item = ObjectId> {
    let all = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    all.filter(|id| owner.members.owners(id).primary == NodeId(1))
}

/// The instance that a node has made under a name, a different one for each name.
fn made(id: &ObjectId, maker: u64) -> Instance {
    let text = id.to_string();
    let group = text.trim_start_matches("group").trim_end_matches("/x");
    Instance { node: NodeId(maker), serial: group.parse().unwrap() }
}

fn bytes(fill: u8) -> Inline {
    vec![fill; SIZE as usize].into()
}

fn announced(id: &ObjectId, maker: u64, progress: Progress) -> Message {
    let (instance, id, meta) = (made(id, maker), id.clone(), Meta::bytes(SIZE));
    let (pinned, claim, lifetime) = (true, false, None);
    Message::Announce(Announce { id, instance, meta, pinned, progress, claim, lifetime })
}

/// The announcement of a small object made by node `maker`.
fn small(id: &ObjectId, maker: u64) -> Message {
    announced(id, maker, Progress::Inline(bytes(maker as u8)))
}

/// The announcement of an owner that has stored a small object of node `maker`.
fn stored(id: &ObjectId, maker: u64, bytes: Option<Inline>) -> Message {
    let Message::Announce(announce) = announced(id, maker, Progress::Stored(bytes)) else {
        unreachable!()
    };
    Message::Announce(Announce { pinned: false, ..announce })
}

fn reannounce_if_held(id: &ObjectId, by: u64, maker: u64) -> (NodeId, Message) {
    (NodeId(by), Message::Reannounce { id: id.clone(), instance: made(id, maker) })
}

fn waiting(id: &ObjectId, requester: u64) -> (NodeId, Message) {
    no_source(requester, id)
}

/// The receiver and the bytes of a single message.
fn brought(outbox: &Outbox) -> (u64, Inline) {
    let [(to, message)] = &outbox[..] else { panic!("{outbox:?}") };
    if let Some(Located { source: Source::Inline(bytes), .. }) = located(message) {
        return (to.0, bytes.clone());
    }
    match message {
        Message::Answer { answer: Answer::Found(found), .. } => {
            (to.0, found.inline.clone().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

/// An owner that has one object of node 3 with its bytes, and another one without them.
fn with_two_of_node_3() -> (Owner, ObjectId, ObjectId) {
    let mut owner = owner();
    let [kept, other] = [names(&owner).next().unwrap(), names(&owner).nth(1).unwrap()];
    assert_eq!(owner.receives(3, small(&kept, 3)), []);
    assert_eq!(owner.receives(3, small(&other, 3)), []);
    assert_eq!(owner.directory.take_limited(), [(NodeId(3), "INLINE_SHARE")]);
    (owner, kept, other)
}

#[test]
fn bytes_beyond_the_capacity_come_from_their_holder_for_all_waiting_nodes() {
    let (mut owner, kept, other) = with_two_of_node_3();
    assert_eq!(owner.directory.inline_bytes().0, SIZE);
    assert_eq!(brought(&owner.receives(2, locate(&kept))), (2, bytes(3)));
    assert_eq!(
        owner.receives(2, locate(&other)),
        [waiting(&other, 2), reannounce_if_held(&other, 3, 3)]
    );
    assert_eq!(
        owner.receives(4, locate(&other)),
        [waiting(&other, 4)],
        "node 3 has the request already"
    );
    let outbox = owner.receives(3, small(&other, 3));
    let (first, second) = outbox.split_at(1);
    assert_eq!(brought(&first.to_vec()), (2, bytes(3)));
    assert_eq!(brought(&second.to_vec()), (4, bytes(3)));
    assert_eq!(owner.directory.inline_bytes().0, SIZE);
    assert_eq!(owner.directory.take_limited(), [], "the owner had requested the bytes");
    assert_eq!(
        owner.receives(2, locate(&other)),
        [waiting(&other, 2), reannounce_if_held(&other, 3, 3)]
    );
}

#[test]
fn a_waiting_node_gets_bytes_beyond_the_capacity() {
    let (mut owner, _, _) = with_two_of_node_3();
    let third = names(&owner).nth(2).unwrap();
    assert_eq!(owner.source_of(2, &third), None);
    assert_eq!(brought(&owner.receives(3, small(&third, 3))), (2, bytes(3)));
}

#[test]
fn a_watcher_of_a_small_object_gets_its_bytes() {
    let (mut owner, _, other) = with_two_of_node_3();
    assert_eq!(owner.receives(2, watch(&other)), [reannounce_if_held(&other, 3, 3)]);
    assert_eq!(brought(&owner.receives(3, small(&other, 3))), (2, bytes(3)));
}

#[test]
fn a_deletion_frees_capacity_for_other_small_objects() {
    let (mut owner, kept, other) = with_two_of_node_3();
    owner.receives(2, delete(&kept));
    assert_eq!(owner.directory.inline_bytes().0, 0);
    owner.receives(2, locate(&other));
    assert_eq!(brought(&owner.receives(3, small(&other, 3))), (2, bytes(3)));
    assert_eq!(owner.directory.inline_bytes().0, SIZE);
    assert_eq!(brought(&owner.receives(2, locate(&other))), (2, bytes(3)));
}

#[test]
fn one_member_leaves_capacity_for_another() {
    let (mut owner, _, _) = with_two_of_node_3();
    let [third, fourth] = [2, 3].map(|at| names(&owner).nth(at).unwrap());
    owner.receives(4, small(&third, 4));
    assert_eq!(owner.directory.inline_bytes(), (2 * SIZE, OF_ONE * SHARE_OF_ONE));
    assert_eq!(owner.directory.take_limited(), []);
    // This node stores the objects of its own puts anyway.
    owner.receives(1, small(&fourth, 1));
    assert_eq!(owner.directory.inline_bytes().0, 2 * SIZE);
    assert_eq!(brought(&owner.receives(2, locate(&fourth))), (2, bytes(1)));
}

/// Goal: missing bytes are requested from the maker, and from another holder when the maker is
/// gone.
#[test]
fn another_holder_sends_the_bytes_when_the_maker_is_gone() {
    let (mut owner, kept, other) = with_two_of_node_3();
    let third = names(&owner).nth(2).unwrap();
    owner.receives(4, small(&third, 4));
    assert_eq!(owner.receives(4, small(&other, 3)), [], "the limit of node 4 is reached");
    assert_eq!(
        owner.receives(2, locate(&other)),
        [waiting(&other, 2), reannounce_if_held(&other, 3, 3)]
    );
    let outbox = owner.loses(3);
    let backup = owner.members.owners(&kept).backup.unwrap();
    assert_eq!(
        outbox,
        [(backup, stored(&kept, 3, None)), reannounce_if_held(&other, 4, 3)],
        "the owner requests them for the waiting node"
    );
    assert_eq!(brought(&owner.receives(4, small(&other, 3))), (2, bytes(3)));
    assert_eq!(
        brought(&owner.receives(2, locate(&kept))),
        (2, bytes(3)),
        "as before node 3 was lost"
    );
}

#[test]
fn an_object_without_its_bytes_is_lost_with_its_last_holder() {
    let (mut owner, kept, other) = with_two_of_node_3();
    owner.receives(2, locate(&other));
    owner.loses(3);
    let outbox = owner.waits(ORPHAN_GRACE_NS);
    let [(NodeId(2), Message::Answer { answer: Answer::Gone(error), .. })] = &outbox[..] else {
        panic!("{outbox:?}")
    };
    assert!(matches!(error, Error::ObjectLost { id, .. } if *id == other));
    assert_eq!(brought(&owner.receives(2, locate(&kept))), (2, bytes(3)));
}

#[test]
fn an_owner_offers_what_no_node_holds() {
    let (mut owner, kept, _) = with_two_of_node_3();
    let outbox = owner.loses(3);
    let backup = owner.members.owners(&kept).backup.unwrap();
    assert_eq!(outbox, [(backup, stored(&kept, 3, None))]);
    assert_eq!(owner.members_changed(None), outbox, "another owner may have joined");
    owner.receives(4, small(&kept, 3));
    assert_eq!(owner.members_changed(None), [], "node 4 announces its copy");
}

#[test]
fn an_owner_offers_what_loses_its_last_copy_after_a_membership_change() {
    let mut owner = owner();
    let id = names(&owner).next().unwrap();
    let withdraw = Message::Withdraw { id: id.clone(), instance: made(&id, 3) };
    owner.loses(5);
    owner.receives(4, small(&id, 3));
    let backup = owner.members.owners(&id).backup.unwrap();
    assert_eq!(owner.receives(4, withdraw.clone()), [(backup, stored(&id, 3, None))]);
    owner.receives(4, small(&id, 3));
    owner.waits(ORPHAN_GRACE_NS);
    assert_eq!(owner.receives(4, withdraw), [], "all owners have heard of it");
}

/// Goal: the bytes of an object end with its job although only the backup owner had room for them.
/// If a node has a copy, the object ends at its primary owner.
#[test]
fn the_backup_owner_ends_what_no_node_holds_with_its_job() {
    let mut owner = owner();
    let of_backup = |id: &ObjectId| owner.members.owners(id).backup == Some(NodeId(1));
    let all = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    let mut ids = all.filter(of_backup);
    let (bare, held) = (ids.next().unwrap(), ids.next().unwrap());
    let job: Name = "job".parse().unwrap();
    for (from, message) in [(2, stored(&bare, 3, Some(bytes(3)))), (4, small(&held, 4))] {
        let Message::Announce(announce) = message else { unreachable!() };
        let lifetime = Lifetime { job: Some(job.clone()), ..Lifetime::default() };
        let lifetime = Some(Box::new(lifetime));
        owner.receives(from, Message::Announce(Announce { lifetime, ..announce }));
    }
    assert!(owner.directory.is_fed(&bare) && owner.directory.is_fed(&held));
    let outbox = owner.receives(2, Message::JobEnded { job });
    assert!(!owner.directory.is_fed(&bare) && owner.directory.is_fed(&held));
    let primary = owner.members.owners(&bare).primary;
    let is_end = |(to, message): &(NodeId, Message)| {
        *to == primary && matches!(message, Message::Tombstone { id, .. } if *id == bare)
    };
    assert!(outbox.iter().any(is_end), "{outbox:?}");
}

/// Goal: the bytes outlive two owners that leave one after the other.
#[test]
fn a_leaving_owner_sends_what_no_node_holds() {
    let mut owner = owner();
    let id = names(&owner).next().unwrap();
    let message = stored(&id, 3, Some(bytes(3)));
    owner.receives(2, message.clone());
    let mut without_me = owner.members.clone();
    without_me.resign();
    let ((), outbox) = owner.run(|directory, context| {
        let context = &mut Context { members: &without_me, outbox: context.outbox, ..*context };
        directory.pass_on(context, &id);
    });
    let later = without_me.owners(&id);
    assert_eq!(outbox, later.iter().map(|to| (to, message.clone())).collect::<Vec<_>>());
}

/// Goal: a former owner, which receives no deletions, offers no deleted object.
#[test]
fn a_former_owner_offers_what_no_node_holds_once() {
    let mut owner = owner();
    let with_all = owner.members.clone();
    let mut all = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    owner.loses(5);
    let is_mine = |members: &Members, id: &ObjectId| members.owners(id).contains(NodeId(1));
    let id = all.find(|id| is_mine(&owner.members, id) && !is_mine(&with_all, id)).unwrap();
    owner.receives(2, stored(&id, 3, Some(bytes(3))));
    owner.members = with_all;
    let owners = owner.members.owners(&id);
    let to_owners: Vec<_> = owners.iter().map(|to| (to, stored(&id, 3, None))).collect();
    assert_eq!(owner.members_changed(None), to_owners);
    assert_eq!(owner.members_changed(None), []);
    let outbox = owner.loses(5);
    assert!(outbox.iter().any(|(_, it)| *it == stored(&id, 3, None)), "it is an owner again");
}

#[test]
fn an_owner_requests_what_no_node_holds_if_it_lacks_it() {
    let mut owner = owner();
    let id = names(&owner).next().unwrap();
    owner.receives(4, locate(&id));
    let requested = owner.receives(2, stored(&id, 3, None));
    assert_eq!(requested, [reannounce_if_held(&id, 2, 3)]);
    let outbox = owner.receives(2, stored(&id, 3, Some(bytes(3))));
    assert_eq!(brought(&outbox), (4, bytes(3)));
    assert_eq!(owner.holders(&id), []);
    assert_eq!(owner.receives(2, stored(&id, 3, None)), []);
    owner.receives(4, delete(&id));
    let outbox = owner.receives(2, stored(&id, 3, None));
    let [(NodeId(2), Message::Tombstone { instances, error, .. })] = &outbox[..] else {
        panic!("{outbox:?}")
    };
    assert_eq!(*instances, [made(&id, 3)]);
    assert!(matches!(error, Some(Error::ObjectDeleted { .. })), "it was deleted");
}

/// Goal: a deletion that overtakes the bytes on their way to the other owner ends them there too.
#[test]
fn an_owner_passes_on_the_deletion_of_what_no_node_holds() {
    let mut owner = owner();
    let id = names(&owner).next().unwrap();
    owner.receives(2, stored(&id, 3, Some(bytes(3))));
    let backup = owner.members.owners(&id).backup.unwrap();
    let outbox = owner.receives(4, delete(&id));
    let ended = outbox.iter().find(|(_, it)| matches!(it, Message::Tombstone { .. }));
    let Some((to, Message::Tombstone { instances, .. })) = ended else { panic!("{outbox:?}") };
    assert_eq!((*to, &instances[..]), (backup, &[made(&id, 3)][..]));
}

#[test]
fn an_owner_without_capacity_requests_what_no_node_holds_if_a_node_waits() {
    let (mut owner, _, _) = with_two_of_node_3();
    let id = names(&owner).nth(2).unwrap();
    assert_eq!(owner.receives(3, stored(&id, 4, None)), []);
    owner.receives(2, locate(&id));
    assert_eq!(owner.receives(3, stored(&id, 4, None)), [reannounce_if_held(&id, 3, 4)]);
}

#[test]
fn what_no_node_holds_is_lost_at_an_owner_without_capacity() {
    let (mut owner, _, other) = with_two_of_node_3();
    let more = names(&owner).nth(2).unwrap();
    owner.receives(3, Message::Withdraw { id: other.clone(), instance: made(&other, 3) });
    owner.receives(3, stored(&more, 4, Some(bytes(4))));
    owner.waits(ORPHAN_GRACE_NS);
    assert_eq!(owner.directory.recount(), 1, "only the first of three is left");
}

/// Goal: bytes of copies whose maker has announced nothing, and is gone, are kept within the same
/// bounds.
#[test]
fn bytes_of_copies_without_a_maker_are_requested() {
    let mut owner = owner();
    let ids: Vec<ObjectId> = names(&owner).take(3).collect();
    for id in &ids {
        assert_eq!(owner.receives(4, small(id, 3)), []);
    }
    assert_eq!(owner.directory.inline_bytes().0, SIZE, "only the first of three");
    let mut outbox = owner.loses(3);
    outbox.extend(owner.waits(1));
    assert_eq!(outbox, []);
    assert_eq!(brought(&owner.receives(2, locate(&ids[0]))), (2, bytes(3)));
    assert_eq!(
        owner.receives(2, locate(&ids[1])),
        [waiting(&ids[1], 2), reannounce_if_held(&ids[1], 4, 3)]
    );
    assert_eq!(brought(&owner.receives(4, small(&ids[1], 3))), (2, bytes(3)));
}

proptest! {
    /// Goal: after any sequence of messages, the bytes are within their limits and equal those of
    /// the entries.
    #[test]
    fn the_accounts_are_those_of_the_entries(
        steps in prop::collection::vec((0..8usize, 1..5u64, 0..6u8), 0..200),
    ) {
        let mut owner = owner();
        let ids: Vec<ObjectId> = names(&owner).take(8).collect();
        for (at, node, what) in steps {
            let id = &ids[at];
            match what {
                0 | 1 => drop(owner.receives(node, small(id, node))),
                2 => drop(owner.receives(node, small(id, node % 4 + 1))),
                3 => drop(owner.receives(node, locate(id))),
                4 => drop(owner.receives(node, delete(id))),
                _ => {
                    let (instance, id) = (made(id, node), id.clone());
                    owner.receives(node, Message::Withdraw { id, instance });
                }
            }
            let (bytes, most) = owner.directory.inline_bytes();
            prop_assert!(bytes <= most);
            let live = owner.directory.entries.iter().filter_map(|(_, entry)| entry.live.as_ref());
            let foreign = live.filter(|live| live.inline.is_some() && live.instance.node != NodeId(1));
            prop_assert!(foreign.count() as u64 * SIZE <= bytes, "each has a charge");
        }
        ids.iter().for_each(|id| drop(owner.receives(2, delete(id))));
        owner.waits(2 * STRAY_NS);
        prop_assert_eq!(owner.directory.inline_bytes().0, 0);
    }
}
