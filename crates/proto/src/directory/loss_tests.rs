//! Losses: when the last copy of an object counts as gone, and who gets that.

use alloc::vec::Vec;

use super::{
    tests::{
        Owner, announced, assigned, claim, claimed, fed_by, growing, instance, is_gone, locate,
        locate_with, named, reserve, watch,
    },
    *,
};
use crate::{
    error::Error,
    id::{NodeId, ObjectId},
    limits::{MERGE_NS, ORPHAN_GRACE_NS},
    message::{Message, Progress},
    question::Answer,
};

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
