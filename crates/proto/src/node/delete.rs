//! Delete: all copies go, everywhere.

use alloc::{collections::BTreeSet, vec::Vec};

use super::{Action, Asked, Node, Waiting};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    message::Message,
    planted::{self, Bug},
    table::State,
};

impl Node {
    pub(super) fn delete(
        &mut self,
        asked: &Asked,
        ids: Vec<ObjectId>,
        out: &mut Vec<Action>,
    ) -> Option<Result<Answer, Error>> {
        let ids: BTreeSet<ObjectId> = ids.into_iter().collect();
        if ids.is_empty() {
            return Some(Ok(Answer::Done));
        }
        self.remember(asked, Waiting::Deletion(ids.clone()));
        for id in ids {
            self.tell_before_deletion(&id, out);
            let request = asked.request;
            // Both must know; the first owner's answer ends the wait.
            self.send_owners(&id, &Message::Delete { id: id.clone(), request }, out);
        }
        None
    }

    /// An owner has carried out a deletion. Only the first knows of all copies.
    pub(super) fn deleted(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
        out: &mut Vec<Action>,
    ) {
        if self.members.owners(id).first != from {
            return;
        }
        let Some(pending) = self.requests.get_mut(&request) else { return };
        let Waiting::Deletion(ids) = &mut pending.kind else { return };
        ids.remove(id);
        if ids.is_empty() {
            self.reply(request, Ok(Answer::Done), out);
        }
    }

    /// Deletions that no owner has confirmed, to be repeated to new owners.
    pub(super) fn unconfirmed_deletions(&self) -> Vec<(RequestId, ObjectId)> {
        let mut all = Vec::new();
        for (request, pending) in &self.requests {
            if let Waiting::Deletion(ids) = &pending.kind {
                all.extend(ids.iter().map(|id| (*request, id.clone())));
            }
        }
        all
    }

    /// The owner says that a copy is void: deleted, failed, or replaced by another instance.
    pub(super) fn drop_copy(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Option<Error>,
        out: &mut Vec<Action>,
    ) {
        if let Some(error) = &error
            && let Some(key) = self.reservation_of(instance)
        {
            self.reservation_dropped(from, key, id, error, out);
        }
        if matches!(error, Some(Error::ObjectDeleted { .. })) {
            self.create_deleted(instance);
        }
        let was_current = self.table.current(id) == Some(instance);
        // An attempt that was given up may still be read.
        let state = self.table.get(instance).filter(|copy| !copy.doomed).map(|copy| copy.state);
        if state == Some(State::Folding) {
            let error = error.clone().unwrap_or_else(|| Error::ObjectDeleted { id: id.clone() });
            self.fail_reduce_of(id, &error, out);
        }
        let was_told = was_current || self.pull_awaits_room_for(id, instance);
        if !planted::has(Bug::KeepsDroppedCopies) {
            self.doom(instance, out);
        }
        if was_current {
            self.folded.remove(id);
        }
        if error.is_some() {
            self.send(from, Message::Dropped { id: id.clone(), instance }, out);
        }
        if was_told {
            // The other owner may have heard of the deletion before it heard of this copy, or not at all: it would keep the
            // name for what is gone. So would this one, of what it is still to hear and does not remember as deleted.
            let owners = self.members.owners(id).iter();
            let misled = owners.filter(|owner| *owner != from || error.is_none());
            for owner in misled.collect::<Vec<_>>() {
                self.send(owner, Message::Withdraw { id: id.clone(), instance }, out);
            }
            // A name may have been put again meanwhile: who waits for that instance waits on.
            match &error {
                Some(error) => self.pull_failed(id, error, out),
                None => {
                    self.born(id, out);
                    self.pull_if_wanted(id, out);
                }
            }
        }
    }

    /// The owner knows of nobody who has all of an object.
    pub(super) fn stranded(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: Error,
        out: &mut Vec<Action>,
    ) {
        let copy = self.table.get(instance).filter(|copy| !copy.doomed);
        if copy.is_some_and(|copy| !matches!(copy.state, State::Flowing(_))) {
            // For a while nothing came through to it from here.
            self.announce(instance, out);
        } else {
            self.drop_copy(from, id, instance, Some(error), out);
        }
    }

    /// An owner gave the name of a copy to another instance, because it may have missed the end of this one.
    pub(super) fn doubted(&mut self, instance: Instance, out: &mut Vec<Action>) {
        let copy = self.table.get(instance).filter(|copy| !copy.doomed);
        if copy.is_some_and(|copy| self.table.current(&copy.id) == Some(instance)) {
            self.announce(instance, out);
        }
    }

    /// The owner says that an object can't come.
    pub(super) fn gone(&mut self, id: &ObjectId, error: &Error, out: &mut Vec<Action>) {
        self.watch_answered(id);
        self.pull_failed(id, error, out);
        self.input_gone(id, error, out);
        self.awaited_settled(id, out);
    }
}
