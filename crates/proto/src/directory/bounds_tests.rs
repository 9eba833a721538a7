//! Repeated messages of members neither accumulate at an owner nor delay others.

use alloc::{format, vec, vec::Vec};

use super::{
    tests::{Owner, answered, ask},
    *,
};
use crate::{
    error::Error,
    id::{Instance, Name, NodeId, ObjectId},
    limits::{BURIED_MAX, DELETERS_MAX, LATEST_MAX, ORPHAN_GRACE_NS, REMEMBERED_WORDS_BYTES},
    message::{Announce, Message, Progress, RateReport},
    meta::Meta,
    question::{Answer, Question},
    rate::Rate,
};

fn instance(node: u64, serial: u64) -> Instance {
    Instance { node: NodeId(node), serial }
}

fn name(text: &str) -> ObjectId {
    ObjectId::Named(text.parse::<Name>().unwrap())
}

/// A name owned by node 1, the owner in these tests, and node 2.
fn mine(owner: &Owner) -> ObjectId {
    let names = (0..).map(|group| name(&format!("group{group}/x")));
    let is_mine = |id: &ObjectId| {
        let owners = owner.members.owners(id);
        owners.contains(NodeId(1)) && owners.contains(NodeId(2))
    };
    names.into_iter().find(is_mine).unwrap()
}

fn announced(id: &ObjectId, instance: Instance) -> Message {
    let (id, meta, progress) = (id.clone(), Meta::bytes(1 << 20), Progress::Complete);
    Message::Announce(Announce {
        id,
        instance,
        meta,
        pinned: true,
        progress,
        claim: false,
        lifetime: None,
    })
}

#[test]
fn repeated_catching_up_does_not_delay_replies_to_claims() {
    let mut owner = Owner::new();
    let id = mine(&owner);
    owner.receives(2, announced(&id, instance(2, 1)));
    owner.directory.catch_up(owner.now);
    assert_eq!(owner.receives(3, announced(&id, instance(3, 1))), []);
    let refused = Message::Drop { id: id.clone(), instance: instance(3, 1), error: None };
    let mut answered = Outbox::new();
    for _ in 0..20 {
        owner.directory.catch_up(owner.now);
        answered.extend(owner.waits(ORPHAN_GRACE_NS / 2));
    }
    assert_eq!(answered, [(NodeId(3), refused)]);
}

/// Goal: sources that do not exist are not remembered when a member reports them as stalled.
#[test]
fn a_source_that_is_not_a_member_is_not_marked_as_stalled() {
    let mut owner = Owner::new();
    let id = mine(&owner);
    owner.receives(2, announced(&id, instance(2, 1)));
    for source in 1000..1100 {
        let source = NodeId(source);
        let (progress, instance) = (Progress::Partial { source: Some(source) }, instance(2, 1));
        let (of, meta, claim) = (id.clone(), Meta::bytes(1 << 20), false);
        let begun =
            Announce { id: of, instance, meta, pinned: false, progress, claim, lifetime: None };
        owner.receives(3, Message::Announce(begun));
        owner.waits(ORPHAN_GRACE_NS);
        let (id, missing) = (id.clone(), 1 << 20);
        let rate_reported =
            RateReport { id, instance, source, rate: Rate::STALLED, missing, usual: None };
        owner.receives(3, Message::RateReport(rate_reported));
        owner.waits(ORPHAN_GRACE_NS);
    }
    assert_eq!(owner.directory.strangers(&owner.members), 0);
}

#[test]
fn earlier_instances_of_a_name_are_limited() {
    let mut owner = Owner::new();
    let id = mine(&owner);
    let count = 2 * BURIED_MAX as u64;
    let gone =
        |instances, error| Message::Tombstone { id: id.clone(), instances, error, pruned: false };
    let deleted = || Error::ObjectDeleted { id: id.clone() };
    for serial in 0..count {
        owner.receives(3, gone(vec![instance(3, serial)], None));
        owner.receives(4, gone(vec![instance(4, serial)], Some(deleted())));
    }
    let outbox = owner.loses(2);
    let sent = outbox.iter().filter_map(|(_, message)| match message {
        Message::Tombstone { instances, .. } => {
            assert!(message.is_valid(), "{} instances", instances.len());
            Some(
                instances.contains(&instance(3, count - 1))
                    || instances.contains(&instance(4, count - 1)),
            )
        }
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [true; 2], "the latest ones are remembered");
}

#[test]
fn remembered_reasons_are_shortened() {
    let mut owner = Owner::new();
    let (id, detail) = (mine(&owner), "x".repeat(1 << 20));
    let error = Error::ObjectLost { id: id.clone(), detail };
    owner.receives(3, announced(&id, instance(3, 1)));
    owner.receives(3, Message::Fail { id: id.clone(), error, reserved: None });
    let Some(Error::ObjectLost { detail, .. }) = owner.directory.why_gone(&id) else {
        panic!("it is gone")
    };
    assert!(detail.len() <= REMEMBERED_WORDS_BYTES + 3);
}

#[test]
fn waiting_deleters_and_followers_of_a_prefix_are_limited() {
    let mut owner = Owner::new();
    let id = mine(&owner);
    owner.receives(3, announced(&id, instance(3, 1)));
    let deletions =
        (1..).map(|number| ask(number, Question::Delete { id: id.clone(), pruned: false }));
    let answers: Vec<usize> =
        deletions.take(DELETERS_MAX + 2).map(|delete| owner.receives(2, delete).len()).collect();
    // The first deletion makes the holder drop it, and goes to the other owner.
    assert_eq!(answers.iter().sum::<usize>(), 2 + 2);
    let (id, instance) = (id.clone(), instance(3, 1));
    assert_eq!(owner.receives(3, Message::Dropped { id, instance }).len(), DELETERS_MAX);

    let latest = |number, after| {
        let prefix = "policy/".parse().unwrap();
        ask(number, Question::Latest { prefix, after })
    };
    let numbers = 10_000..10_000 + 2 * LATEST_MAX as u64;
    for number in numbers.clone() {
        owner.receives(2, latest(number, None));
    }
    assert_eq!(owner.directory.asked.latest_of(NodeId(2)), LATEST_MAX);
    assert_eq!(owner.receives(3, latest(1, None)), [answered(3, 1, Answer::Pending)]);
    // A name that exists takes no place.
    let id = name("policy/1");
    owner.receives(4, announced(&id, Instance { node: NodeId(4), serial: 1 }));
    assert_eq!(owner.directory.asked.latest_of(NodeId(2)), 0);
    for number in numbers {
        owner.receives(2, latest(number, Some(1)));
    }
    let outbox = owner.receives(2, latest(1 << 40, None));
    let ObjectId::Named(name) = id else { unreachable!() };
    assert_eq!(outbox, [answered(2, 1 << 40, Answer::Latest(name))]);
}

/// Goal: reports do not need to look at all entries.
#[test]
fn recorded_objects_are_counted_until_their_loss_is_reported() {
    let mut owner = Owner::new();
    let id = mine(&owner);
    let counts = |owner: &Owner| (owner.directory.len(), owner.directory.recount());
    assert_eq!(counts(&owner), (0, 0));
    owner.receives(3, announced(&id, instance(3, 1)));
    owner.receives(4, announced(&id, instance(3, 1)));
    assert_eq!(counts(&owner), (1, 1));
    owner.loses(3);
    assert_eq!(counts(&owner), (1, 1), "node 4 has it");
    owner.loses(4);
    assert_eq!(counts(&owner), (1, 1), "a node may still announce it");
    owner.waits(ORPHAN_GRACE_NS);
    assert_eq!(counts(&owner), (0, 0));
}
