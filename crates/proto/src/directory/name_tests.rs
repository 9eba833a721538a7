//! Names: which of several objects, claims and reservations has one; the newest version.

use alloc::{format, string::ToString, vec, vec::Vec};

use super::tests::{
    Owner, announced, answered, ask, claim, claimed, delete, deleted, fed_by, growing, instance,
    minted, named, reserve,
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::ORPHAN_GRACE_NS,
    message::{Message, Progress},
    question::{Answer, Question},
};

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
    let is_mine = |id: &ObjectId| is_mine_without.owners(id).primary == NodeId(1);
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
    let dropped: Vec<NodeId> = owner.deletes(5, &id).into_iter().map(|(to, _)| to).collect();
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
