//! Copies that owners have to be told of again after a change of members, a slice of them at a time.
//!
//! What this node does meanwhile it tells the owners of now by itself; only a deletion must not come to an owner that does
//! not know yet of what is deleted.

use alloc::vec::Vec;

use super::{Action, Node};
use crate::{
    id::{Instance, NodeId, ObjectId},
    members::Members,
    message::Message,
    planted::{self, Bug},
    time::Instant,
};

/// Changes of which the owners of some copies have not been told.
#[derive(Debug, Default)]
pub(super) struct Retelling {
    /// Those that the walk through the copies is about, and those that came since it began.
    changes: Vec<Change>,
    later: Vec<Change>,
    /// How far the walk has come.
    after: Option<Instance>,
    next_at: Instant,
}

/// Who the members were, and who of those of now has lost what it was told.
#[derive(Debug)]
struct Change {
    before: Members,
    renewed: Option<NodeId>,
}

impl Retelling {
    /// When the next slice is to be told.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.changes.is_empty()).then_some(self.next_at)
    }
}

impl Node {
    /// Tells the owners that were not owners before, and `renewed` in any case, of the copies here.
    pub(super) fn tell_of_copies(
        &mut self,
        before: &Members,
        renewed: Option<NodeId>,
        out: &mut Vec<Action>,
    ) {
        let change = Change { before: before.clone(), renewed };
        // An owner that is asked for the rest of an object has to know of the part that is here.
        for id in self.sought() {
            if let Some(instance) = self.table.current(&id) {
                self.tell_of(instance, core::slice::from_ref(&change), out);
            }
        }
        if self.retelling.after.is_some() {
            self.retelling.later.push(change);
        } else {
            self.retelling.changes.push(change);
        }
        self.tell_of_some(out);
    }

    pub(super) fn expire_retelling(&mut self, out: &mut Vec<Action>) {
        if self.retelling.deadline().is_some_and(|at| at <= self.now) {
            self.tell_of_some(out);
        }
    }

    fn tell_of_some(&mut self, out: &mut Vec<Action>) {
        let most = self.config.slice.entries;
        let some: Vec<Instance> = self.table.following(self.retelling.after).take(most).collect();
        let mut retelling = core::mem::take(&mut self.retelling);
        for instance in &some {
            let is_told = self.table.get(*instance).is_none_or(|copy| {
                // Told of at once, or since.
                self.pulls.contains_key(&copy.id)
            });
            if !is_told {
                self.tell_of(*instance, &retelling.changes, out);
            }
        }
        retelling.after = some.last().copied().filter(|_| some.len() == most);
        if retelling.after.is_none() {
            retelling.changes = core::mem::take(&mut retelling.later);
        }
        retelling.next_at = self.now + self.config.slice.pause_ns;
        self.retelling = retelling;
    }

    /// What is here of an object that is about to be deleted is told of first.
    pub(super) fn tell_before_deletion(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        if self.retelling.changes.is_empty() {
            return;
        }
        let Some(instance) = self.table.current(id) else { return };
        let retelling = core::mem::take(&mut self.retelling);
        self.tell_of(instance, &retelling.changes, out);
        self.tell_of(instance, &retelling.later, out);
        self.retelling = retelling;
    }

    fn tell_of(&mut self, instance: Instance, changes: &[Change], out: &mut Vec<Action>) {
        let is_current = |id: &ObjectId| self.table.current(id) == Some(instance);
        let copy = self.table.get(instance).filter(|copy| is_current(&copy.id));
        let Some(copy) = copy.filter(|_| !planted::has(Bug::TellsNewOwnersNothing)) else { return };
        let now = self.members.owners(&copy.id);
        let mut new: Vec<NodeId> = Vec::new();
        for Change { before, renewed } in changes {
            let then = before.owners(&copy.id);
            let is_new = |owner: &NodeId| !then.contains(*owner) || *renewed == Some(*owner);
            new.extend(now.iter().filter(is_new));
        }
        if new.is_empty() {
            return;
        }
        let Some(announce) = self.announcement(instance) else { return };
        for owner in now.iter().filter(|owner| new.contains(owner)) {
            self.send(owner, Message::Announce(announce.clone()), out);
        }
    }
}
