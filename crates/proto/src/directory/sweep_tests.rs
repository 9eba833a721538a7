//! Membership changes in slices, with messages in between: the replies equal those after a change
//! in one step.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec,
    vec::Vec,
};

use super::{
    tests::{Owner, Walk, announced, answered, ask, delete, fed_by, instance, locate, lookup},
    *,
};
use crate::{
    id::{Instance, NodeId, ObjectId, QuestionId},
    limits::MERGE_NS,
    members::Member,
    message::{Message, Progress},
    question::{Answer, LocateRange, Question},
};

/// An owner with slices of one entry, which run only on demand.
fn sliced() -> Owner {
    Owner { walk: Walk { is_slow: true, ..Walk::default() }, ..Owner::new() }
}

fn minted_by(node: u64, serial: u64) -> ObjectId {
    ObjectId::Minted { node: NodeId(node), serial }
}

impl Owner {
    /// The same node joins again, after it has forgotten everything.
    fn meets(&mut self, member: Member) -> Outbox {
        self.members.insert(member);
        self.members_changed(Some(member.id))
    }

    fn member(&self, node: u64) -> Member {
        self.members.iter().find(|member| member.id == NodeId(node)).unwrap()
    }
}

#[test]
fn an_entry_is_up_to_date_between_two_slices() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (1..=9).map(|serial| minted_by(1, serial)).collect();
    for (id, serial) in ids.iter().zip(1..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
        owner.receives(3, announced(id, instance(2, serial), false, Progress::Complete));
    }
    owner.loses(2);
    assert!(owner.walk.upto.is_some(), "one of nine entries was updated");
    let last = &ids[8];
    assert_eq!(owner.source_of(4, last), Some(3), "the other holder is gone");
    assert_eq!(owner.holders(last), [3, 4]);
    owner.walk_all();
    assert!(ids[..8].iter().all(|id| owner.holders(id) == [3]));
    assert_eq!(owner.holders(last), [3, 4]);
}

#[test]
fn a_range_comes_from_no_node_that_lost_its_copy() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (1..=9).map(|serial| minted_by(1, serial)).collect();
    for (id, serial) in ids.iter().zip(1..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
    }
    let member = owner.member(2);
    owner.loses(2);
    owner.meets(member);
    assert!(owner.walk.upto.is_some(), "one of nine entries was updated");
    let (id, instance) = (ids[8].clone(), instance(2, 9));
    let (bytes, avoid, not_here) = (1, Vec::new(), None);
    let locate = LocateRange { id, instance, bytes, avoid, not_here };
    let outbox = owner.receives(4, ask(1, Question::LocateRange(Box::new(locate))));
    assert!(outbox.contains(&answered(4, 1, Answer::RangeLocated(None))), "{outbox:?}");
}

#[test]
fn announcements_of_a_rejoined_node_survive_the_slices_of_its_loss() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (1..=9).map(|serial| minted_by(1, serial)).collect();
    for (id, serial) in ids.iter().zip(1..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
    }
    let member = owner.member(2);
    owner.loses(2);
    owner.meets(member);
    // It still has the last object, and another one without an entry here.
    let another = minted_by(1, 99);
    owner.receives(2, announced(&ids[8], instance(2, 9), true, Progress::Complete));
    owner.receives(2, announced(&another, instance(2, 99), true, Progress::Complete));
    owner.receives(2, locate(&minted_by(1, 100)));
    owner.walk_all();
    assert!(ids[..8].iter().all(|id| owner.holders(id).is_empty()));
    assert_eq!((owner.holders(&ids[8]), owner.holders(&another)), (vec![2], vec![2]));
    assert!(owner.directory.is_awaited(&minted_by(1, 100), NodeId(2)));
}

#[test]
fn a_change_during_another_reaches_all_entries() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (1..=9).map(|serial| minted_by(1, serial)).collect();
    for (id, serial) in ids.iter().zip(1..) {
        for holder in 2..=4 {
            owner.receives(holder, announced(id, instance(2, serial), true, Progress::Complete));
        }
    }
    owner.loses(2);
    owner.loses(3);
    owner.walk_all();
    assert!(ids.iter().all(|id| owner.holders(id) == [4]));
    assert!(owner.directory.entries.is_settled());
}

/// Goal: a visit costs the same however many changes are pending, and an owner that was displaced
/// meanwhile knows it.
#[test]
fn changes_of_owners_count_as_one_for_each_walk() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (0..40).map(|n| format!("g{n}/1").parse().unwrap()).collect();
    for (id, serial) in ids.iter().zip(1..) {
        owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete));
    }
    let before = owner.members.clone();
    let mut displaced: BTreeSet<&ObjectId> = BTreeSet::new();
    for number in 10..30 {
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], number as u16));
        owner.meets(Member { id: NodeId(number), address, place: None });
        displaced.extend(ids.iter().filter(|id| !owner.members.owners(id).contains(NodeId(1))));
        owner.loses(number);
    }
    let mut entries = 0;
    for id in &ids {
        let me = NodeId(1);
        if !before.owners(id).contains(me) {
            continue;
        }
        entries += 1;
        assert!(owner.directory.entries.pending_owners() <= 2);
        owner.run(|directory, context| directory.settle(context, id));
        let is_doubtful = owner.directory.entries.get(id).is_some_and(|it| it.is_doubtful());
        assert!(is_doubtful || !displaced.contains(id), "{id}");
    }
    assert!(entries > 10 && !displaced.is_empty());
    owner.walk_all();
    assert_eq!(owner.directory.entries.pending_owners(), 0);
}

/// Makes an owner of `ids` lose some of them to nodes that join, and get them back. Returns those.
fn displaced(owner: &mut Owner, ids: &[ObjectId]) -> BTreeSet<ObjectId> {
    let mut displaced = BTreeSet::new();
    for number in 10..20 {
        let address = core::net::SocketAddr::from(([127, 0, 0, 1], number as u16));
        owner.meets(Member { id: NodeId(number), address, place: None });
        let others = ids.iter().filter(|id| !owner.members.owners(id).contains(NodeId(1)));
        displaced.extend(others.cloned());
        owner.loses(number);
    }
    assert!(displaced.len() > 5);
    displaced
}

/// Goal: an owner keeps no copies that were deleted or dropped while another node owned the object.
#[test]
fn an_owner_again_verifies_the_copies_that_nobody_announces() {
    let small = || Progress::Inline(vec![0; 8].into());
    let cases = [
        (true, false, Progress::Complete),
        (true, true, Progress::Complete),
        (true, true, small()),
        (false, false, Progress::Complete),
        (false, true, Progress::Complete),
        (false, true, small()),
    ];
    for (is_named, has_ended, progress) in cases {
        let mut owner = Owner::new();
        let ids = (0..).map(|n| match is_named {
            true => format!("g{n}/1").parse().unwrap(),
            false => minted_by(2, n),
        });
        let is_mine = |id: &ObjectId| owner.members.owners(id).contains(NodeId(1));
        let ids: Vec<ObjectId> = ids.filter(is_mine).take(40).collect();
        for (id, serial) in ids.iter().zip(1..) {
            owner.receives(2, announced(id, instance(2, serial), true, progress.clone()));
        }
        let displaced = displaced(&mut owner, &ids);
        let verified = owner.waits(owner.directory.stray_ns);
        let verified = verified.into_iter().map(|(holder, message)| match message {
            Message::Reannounce { id, instance } if holder == NodeId(2) => (id, instance),
            other => panic!("{other:?}"),
        });
        let verified: BTreeMap<ObjectId, Instance> = verified.collect();
        assert!(verified.keys().eq(&displaced), "{verified:?}");
        for (id, instance) in verified {
            assert_eq!(owner.holders(&id), [2], "it counts until its node answers");
            let announce = announced(&id, instance, true, progress.clone());
            let withdrawn = Message::Withdraw { id, instance };
            owner.receives(2, if has_ended { withdrawn } else { announce });
        }
        assert_eq!(owner.waits(4 * MERGE_NS), []);
        let gone = if has_ended { displaced.len() } else { 0 };
        assert_eq!(owner.directory.len(), ids.len() - gone);
    }
}

/// Goal: a name does not stay reserved at an owner that has missed the end of the reservation.
#[test]
fn an_owner_again_verifies_reservations() {
    let mut owner = Owner::new();
    let ids = (0..).map(|n| format!("g{n}/1").parse().unwrap());
    let is_mine = |id: &ObjectId| owner.members.owners(id).contains(NodeId(1));
    let ids: Vec<ObjectId> = ids.filter(is_mine).take(40).collect();
    for id in &ids {
        owner.receives(2, Message::Reserve { id: id.clone(), instance: instance(2, 1) });
    }
    let displaced = displaced(&mut owner, &ids);
    let verified = owner.waits(owner.directory.stray_ns);
    assert_eq!(verified.len(), displaced.len());
    for (node, message) in verified {
        let Message::Claimed { id, instance, taken_by: None } = message else { panic!() };
        owner.receives(node.0, Message::Withdraw { id, instance });
    }
    assert_eq!(owner.directory.reservations(), ids.len() - displaced.len());
}

#[test]
fn a_leaving_node_sends_all_deletions_first() {
    let mut owner = sliced();
    let ids: Vec<ObjectId> = (1..=9).map(|serial| minted_by(1, serial)).collect();
    let mut outbox = Outbox::new();
    for id in &ids {
        outbox.extend(owner.receives(1, delete(id)));
    }
    let mut without_me = owner.members.clone();
    without_me.resign();
    let ((), later) = owner.run(|directory, context| {
        let context = &mut Context { members: &without_me, outbox: context.outbox, ..*context };
        ids.iter().for_each(|id| directory.pass_on(context, id));
    });
    outbox.extend(later);
    let sent = |id: &ObjectId| {
        outbox
            .iter()
            .filter(|(_, message)| matches!(message, Message::Tombstone { id: of, .. } if of == id))
            .count()
    };
    assert!(ids.iter().all(|id| sent(id) == 2), "each goes to both later owners");
}

/// The messages except deletions, which go to the final owners and not to those in between.
fn replies(outbox: Outbox) -> BTreeSet<String> {
    let replies =
        outbox.into_iter().filter(|(_, message)| !matches!(message, Message::Tombstone { .. }));
    replies.map(|message| format!("{message:?}")).collect()
}

/// Both owners get the same messages: one applies each change in one step, the other entry by
/// entry.
#[test]
fn slices_change_no_reply() {
    let mut behind = 0;
    for seed in 0..300_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        let mut both = [Owner::new(), sliced()];
        let all: Vec<Member> = both[0].members.others().collect();
        let (mut sent, mut was_behind) = ([BTreeSet::new(), BTreeSet::new()], false);
        for step in 0..60 {
            let (node, id) = (2 + dice(4), dice(8));
            let id = if id < 6 {
                minted_by(1 + id % 3, id)
            } else {
                format!("n{id}/1").parse().unwrap()
            };
            let (of, kind) = (instance(2 + dice(2), 1), dice(12));
            let is_member = both[0].members.contains(NodeId(node));
            let message = match kind {
                0 | 1 => announced(&id, of, node == of.node.0, Progress::Complete),
                2 => announced(&id, of, false, fed_by(of.node.0)),
                3 => Message::Withdraw { id, instance: of },
                4 | 5 => locate(&id),
                6 => ask(
                    step,
                    Question::Watch { id, seen_at: (dice(2) == 0).then(|| NodeId(2 + dice(4))) },
                ),
                7 => ask(step, Question::Locations { id, known: None }),
                8 if dice(3) == 0 => ask(step, Question::Delete { id, pruned: false }),
                9 => {
                    let prefix = "n6/".parse().unwrap();
                    ask(step, Question::Latest { prefix, after: None })
                }
                _ if step % 2 == 0 => Message::Decline { id },
                _ => Message::Cancel { number: QuestionId(lookup(&id)) },
            };
            for (owner, sent) in both.iter_mut().zip(&mut sent) {
                let outbox = match (kind, is_member) {
                    (10, true) => owner.loses(node),
                    (_, false) => owner.meets(all[node as usize - 2]),
                    _ => owner.receives(node, message.clone()),
                };
                sent.extend(replies(outbox));
            }
            was_behind |= both[1].walk.upto.is_some();
        }
        behind += u32::from(was_behind);
        let rest = both[1].walk_all();
        sent[1].extend(replies(rest));
        let [whole, sliced] = &sent;
        let (missing, more): (Vec<_>, Vec<_>) =
            (whole.difference(sliced).collect(), sliced.difference(whole).collect());
        assert!(missing.is_empty() && more.is_empty(), "seed {seed}: {missing:#?} {more:#?}");
        let known = |owner: &Owner| {
            let entry = |(id, entry): (&ObjectId, &super::entry::Entry)| {
                let holders = owner.directory.holders(id);
                let reserved = entry.reserved.as_ref().map(|reserved| reserved.instance);
                format!("{id} {holders:?} {:?} {reserved:?}", entry.questions)
            };
            owner.directory.entries.iter().map(entry).collect::<Vec<String>>()
        };
        assert_eq!(known(&both[0]), known(&both[1]), "seed {seed}");
    }
    assert!(behind > 200, "only {behind} of 300 runs had pending changes while messages arrived");
}
