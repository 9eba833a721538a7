//! Deletions: what each holder, owner and requester gets, and what does not come back.

use alloc::{format, string::ToString, vec, vec::Vec};

use super::tests::{
    Owner, SECOND, WATCH, announced, answered, ask, backed_up, claim, claimed, delete, deleted,
    gone, instance, locate, locate_with, located, minted, named, no_source, reserve, unknown_to,
    watch,
};
use crate::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    limits::{ORPHAN_GRACE_NS, REMEMBERED_MAX, TOMBSTONE_NS},
    message::{Message, Progress},
    question::{Answer, Question},
};

#[test]
fn a_new_owner_drops_copies_announced_after_their_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.deletes(2, &id), [], "a holder may still announce it");
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    let [(NodeId(3), Message::Drop { instance: dropped, error, .. }), (_, other)] = &outbox[..]
    else {
        panic!("{outbox:?}")
    };
    assert!(matches!(other, Message::Tombstone { .. }), "the other owner may have it too");
    assert_eq!(*dropped, instance(3, 1));
    assert!(matches!(error, Some(Error::ObjectDeleted { .. })));
    let dropped = Message::Dropped { id: id.clone(), instance: instance(3, 1) };
    assert_eq!(owner.receives(3, dropped), [], "other holders may announce it too");
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [unknown_to(&id, 2)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_drops_all_instances_of_a_deleted_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.deletes(2, &id), []);
    for holder in [3, 4] {
        owner.receives(holder, announced(&id, instance(holder, 1), true, Progress::Complete));
        assert!(owner.holders(&id).is_empty(), "node {holder}");
    }
    owner.receives(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [], "node 4 may still send it to others");
    let dropped = Message::Dropped { id: id.clone(), instance: instance(4, 1) };
    assert_eq!(owner.receives(4, dropped), [unknown_to(&id, 2)]);
}

#[test]
fn a_deletion_holds_when_the_maker_fails_before_its_announcement() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    assert_eq!(owner.receives(3, announced(&id, instance(4, 1), false, Progress::Complete)), []);
    let outbox = owner.deletes(2, &id);
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
    owner.deletes(4, &id);
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
    owner.deletes(2, &id);
    owner.receives(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    owner.loses(5);
    assert_eq!(owner.deletes(4, &id), [], "a holder may announce the current instance");
    let outbox = owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert!(matches!(&outbox[0], (NodeId(3), Message::Drop { .. })), "{outbox:?}");
    owner.receives(3, Message::Dropped { id: id.clone(), instance: instance(3, 1) });
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [unknown_to(&id, 4)]);
    assert!(owner.holders(&id).is_empty());
}

#[test]
fn a_new_owner_without_announcements_confirms_a_deletion_after_the_grace_period() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.deletes(2, &id), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS / 2), []);
    assert_eq!(owner.waits(ORPHAN_GRACE_NS), [unknown_to(&id, 2)]);
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.holders(&id), [3], "it was put after the deletion");
}

#[test]
fn a_new_put_ends_the_deletion_of_its_name() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.loses(5);
    assert_eq!(owner.deletes(2, &id), []);
    let outbox = owner.receives(3, claim(&id, instance(3, 1)));
    assert!(outbox.contains(&unknown_to(&id, 2)), "{outbox:?}");
    assert!(outbox.contains(&claimed(3, &id, instance(3, 1), None)), "{outbox:?}");
}

#[test]
fn a_deletion_is_confirmed_when_every_holder_has_dropped_its_copy() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.receives(3, announced(&id, instance(2, 1), false, Progress::Complete));
    let dropped: Vec<NodeId> = owner.deletes(5, &id).iter().map(|(to, _)| *to).collect();
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
    owner.deletes(5, &id);
    assert!(owner.loses(2).contains(&deleted(&id, 5)));
}

#[test]
fn a_late_announcement_does_not_bring_a_deleted_object_back() {
    let mut owner = Owner::new();
    let id = minted();
    assert_eq!(owner.deletes(5, &id), [deleted(&id, 5)]);
    let outbox = owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error };
    assert_eq!(outbox, [(NodeId(2), drop)]);
    owner.waits(TOMBSTONE_NS);
    assert!(owner.directory.entries.iter().next().is_none(), "deletions are forgotten in the end");
    assert_eq!(owner.directory.deadline(), None);
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
fn a_late_announcement_of_an_earlier_instance_does_not_undo_a_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    for serial in 1..=2 {
        owner.receives(2, announced(&id, instance(2, serial), true, Progress::Complete));
        owner.deletes(4, &id);
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
    let outbox = owner.deletes(2, &id);
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
    owner.deletes(3, &id);
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
    owner.deletes(3, &id);
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
    owner.deletes(2, &id);
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
    owner.deletes(3, &id);
    assert_eq!(owner.source_of(4, &id), None, "the name is free");
}

#[test]
fn a_name_deleted_while_its_only_holder_was_away_does_not_come_back() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let member = owner.members.iter().find(|member| member.id == NodeId(2)).unwrap();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.loses(2);
    owner.waits(2 * ORPHAN_GRACE_NS);
    assert_eq!(owner.deletes(4, &id), [deleted(&id, 4)]);
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
fn a_deletion_includes_a_result_announced_meanwhile() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    owner.receives(2, reserve(&id, instance(2, 1)));
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    let drop = |serial| {
        let (id, instance, error) = (id.clone(), instance(2, serial), error.clone());
        (NodeId(2), Message::Drop { id, instance, error })
    };
    assert_eq!(owner.deletes(5, &id), [drop(1)]);
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

/// Goal: the backup owner gets each end from the primary owner, which knows which object is meant.
/// Its own deletion request could arrive after the next put of the name.
#[test]
fn the_other_owner_gets_the_instances_of_a_deletion() {
    let mut owner = Owner::new();
    let id = named(&owner, "x");
    let other = owner.members.owners(&id).backup.unwrap();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let outbox = owner.receives(4, delete(&id));
    let report = tombstone(&id, vec![instance(2, 1)]);
    assert!(outbox.contains(&(other, report.clone())), "{outbox:?}");
    assert!(outbox.contains(&(NodeId(4), report)), "the other owner may be out of reach");
    let unknown = named(&owner, "y");
    assert_eq!(owner.receives(4, delete(&unknown)), [unknown_to(&unknown, 4)]);
    // It remembers an earlier object, but another node may have put the name elsewhere since.
    owner.receives(2, Message::Dropped { id: id.clone(), instance: instance(2, 1) });
    assert_eq!(owner.receives(4, delete(&id)), [unknown_to(&id, 4)]);
}

#[test]
fn a_deletion_from_the_primary_owner_spares_the_next_object() {
    let mut owner = Owner::new();
    let (id, primary) = backed_up(&owner);
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    owner.waits(SECOND);
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.receives(primary, tombstone(&id, vec![instance(2, 1)])), []);
    assert_eq!(owner.holders(&id), [3]);
    // The former holder has announced it before, and its message comes later.
    let error = None;
    let drop = Message::Drop { id: id.clone(), instance: instance(2, 1), error };
    let late = announced(&id, instance(2, 1), true, Progress::Complete);
    assert_eq!(owner.receives(2, late), [(NodeId(2), drop)]);
    // Late, from the former holder.
    owner.receives(2, Message::Withdraw { id: id.clone(), instance: instance(2, 1) });
    assert_eq!(owner.holders(&id), [3]);
}

#[test]
fn a_node_passes_on_its_own_deletion() {
    let mut owner = Owner::new();
    let names = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    let is_mine = |id: &ObjectId| owner.members.owners(id).contains(NodeId(1));
    let id: ObjectId = names.into_iter().find(|id| !is_mine(id)).unwrap();
    let owners = owner.members.owners(&id);
    let report = tombstone(&id, vec![instance(2, 1)]);
    let outbox = owner.receives(owners.primary.0, report.clone());
    assert_eq!(outbox, [(owners.backup.unwrap(), report)]);
    assert_eq!(owner.directory.entries.iter().count(), 0);
}

/// Goal: what only the backup owner knows ends with a deletion, and the primary owner remembers it.
#[test]
fn the_other_owner_deletes_what_the_primary_owner_does_not_know() {
    let mut owner = Owner::new();
    let (id, primary) = backed_up(&owner);
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    let outbox = owner.receives(4, delete(&id));
    assert!(outbox.contains(&(NodeId(primary), tombstone(&id, vec![instance(2, 1)]))));
    let dropped = Message::Dropped { id: id.clone(), instance: instance(2, 1) };
    assert_eq!(owner.receives(2, dropped), [deleted(&id, 4)]);
}

/// Goal: a name whose object failed is free at both owners after its deletion.
#[test]
fn a_deletion_frees_a_failed_name_at_the_other_owner() {
    let mut owner = Owner::new();
    let (id, primary) = backed_up(&owner);
    let error = Error::ObjectLost { id: id.clone(), detail: "it failed".to_string() };
    let failed = Message::Tombstone {
        id: id.clone(),
        instances: vec![instance(2, 1)],
        error: Some(error.clone()),
        pruned: false,
    };
    owner.receives(primary, failed);
    assert_eq!(owner.receives(3, locate(&id)), [gone(3, &id, error)]);
    owner.receives(primary, tombstone(&id, vec![instance(2, 1)]));
    assert_eq!(owner.receives(3, locate(&id)), [no_source(3, &id)]);
}

/// Goal: a reservation that reaches the backup owner after the end of its object does not stay.
#[test]
fn a_late_reservation_of_a_deleted_object_ends_with_its_announcement() {
    let mut owner = Owner::new();
    let (id, primary) = backed_up(&owner);
    owner.receives(primary, tombstone(&id, vec![instance(2, 3)]));
    owner.receives(2, reserve(&id, instance(2, 1)));
    assert_eq!(owner.directory.reservations(), 1);
    owner.receives(2, announced(&id, instance(2, 3), true, Progress::Complete));
    assert_eq!(owner.directory.reservations(), 0);
}

/// Goal: a backup owner that has not yet heard of the end of an object drops no later one. It may
/// receive the messages of both holders in any order.
#[test]
fn the_backup_owner_does_not_choose_between_two_objects() {
    for (first, second) in [(2, 3), (3, 2)] {
        let mut owner = Owner::new();
        let (id, _) = backed_up(&owner);
        let of = |node| announced(&id, instance(node, 1), true, Progress::Complete);
        let confirm = |node| {
            let (id, instance) = (id.clone(), instance(node, 1));
            (NodeId(node), Message::Reannounce { id, instance })
        };
        owner.receives(first, of(first));
        owner.waits(SECOND);
        assert_eq!(owner.receives(second, of(second)), [confirm(first)]);
        assert_eq!(owner.holders(&id), [second]);
        // The first one exists too, and is accepted later, so that the holders do not announce them
        // in turn at once.
        assert_eq!(owner.receives(first, of(first)), []);
        assert_eq!(owner.waits(SECOND), [confirm(second)]);
        assert_eq!(owner.holders(&id), [first]);
    }
}

fn tombstone(id: &ObjectId, instances: Vec<Instance>) -> Message {
    let error = Some(Error::ObjectDeleted { id: id.clone() });
    Message::Tombstone { id: id.clone(), instances, error, pruned: false }
}
