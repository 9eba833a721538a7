//! Deletions by clients: complete when the primary owner of each object has confirmed the deletion.

use alloc::{collections::BTreeSet, vec::Vec};

use super::{RequestContext, RequestKind, Requests};
use crate::{
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    machines::{membership_change::MembershipChange, world::World},
    message::Message,
    request::Reply,
};

impl Requests {
    pub(crate) fn delete(
        &mut self,
        context: &RequestContext,
        ids: Vec<ObjectId>,
        world: &mut World,
    ) -> Option<Result<Reply, Error>> {
        let ids: BTreeSet<ObjectId> = ids.into_iter().collect();
        if ids.is_empty() {
            return Some(Ok(Reply::Done));
        }
        self.remember(context, RequestKind::Deletion(ids.clone()), world);
        for id in ids {
            let (request, pruned) = (context.request, false);
            // Both owners need the deletion; the reply of the primary owner ends the wait.
            world.send_owners(&id, &Message::Delete { id: id.clone(), request, pruned });
        }
        None
    }

    /// Handles the confirmation of a deletion by an owner. Only the primary owner has records of all copies.
    pub(crate) fn deleted(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        request: RequestId,
        world: &mut World,
    ) {
        if world.members().owners(id).primary != from {
            return;
        }
        let Some(pending) = self.all.get_mut(&request) else { return };
        let RequestKind::Deletion(ids) = &mut pending.kind else { return };
        ids.remove(id);
        if ids.is_empty() {
            self.reply(request, Ok(Reply::Done), world);
        }
    }

    /// Objects of a request whose deletion no owner has confirmed yet.
    pub(crate) fn unconfirmed_deletions(&self, request: RequestId) -> Vec<ObjectId> {
        match self.kind(request) {
            Some(RequestKind::Deletion(ids)) => ids.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// Repeats unconfirmed deletions to new owners.
    pub(super) fn resend_deletions(
        &self,
        request: RequestId,
        change: &MembershipChange,
        world: &mut World,
    ) {
        for id in self.unconfirmed_deletions(request) {
            if let Some(owner) = change.new_owner(&id, world) {
                world.send(owner, Message::Delete { id, request, pruned: false });
            }
        }
    }
}
