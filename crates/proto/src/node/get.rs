//! Get: brings an object to this node.
//!
//! [`crate::machines::pulls`] tracks its transfer, [`crate::machines::readers`] the clients that
//! wait for it.

use alloc::boxed::Box;

use super::Node;
use crate::{
    error::Error,
    event::LogEvent,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    lifetime::Terms,
    limits::OWNER_TIMEOUT_NS,
    machines::{
        copies::PendingCopy,
        pull_state::{PullPhase, PullTimeout},
    },
    message::{Announce, Message, Progress, RingOrder, Source},
    meta::Meta,
    request::Reply,
    table::{Copy, State},
};

impl Node {
    /// Ends a pull, for example since the object was created on this node, and serves the receivers
    /// that it kept waiting.
    pub(super) fn end_pull(&mut self, id: &ObjectId) {
        let Some(phase) = self.pulls.end(id) else { return };
        match phase {
            PullPhase::Locating { .. } | PullPhase::Backoff { .. } => {
                self.world.send_owners(id, &Message::CancelLocate { id: id.clone() });
            }
            PullPhase::Receiving { instance, .. } => {
                let complete = self.copies.get(instance).is_some_and(Copy::is_complete);
                if !complete {
                    self.stop_fetches(instance);
                }
            }
            PullPhase::Located(instance) => self.copies.cancel(instance),
        }
        self.serve_parked(id);
    }

    /// Begins to search for an object that is not arriving, if a client or an adoption waits for
    /// it.
    pub(super) fn pull_if_wanted(&mut self, id: &ObjectId) {
        let is_wanted = self.readers.are_waiting(id) || self.hosted_replicas.wants(id);
        let is_here = self.copies.current(id).is_some();
        if is_wanted && !is_here && !self.pulls.contains(id) {
            self.pulls.seek(id);
            self.locate(id);
        }
    }

    /// Fetches the parts of a reduce result, whether or not a client waits for it.
    pub(super) fn pull_parts(&mut self, order: &RingOrder) {
        let (id, meta) = (order.id.clone(), order.meta.clone());
        let state = State::Flowing(Some(order.source(self.world.me())));
        self.pulls.seek_at(&id, order.instance);
        self.want(order.instance, PendingCopy { id, meta, inline: None, state, terms: None });
    }

    /// Requests a source from the owner.
    pub(super) fn locate(&mut self, id: &ObjectId) {
        let owner = self.world.members().owners(id).primary;
        let is_here = owner == self.world.me();
        let backup_at = (!is_here).then(|| self.world.now() + OWNER_TIMEOUT_NS);
        let Some((avoid, not_here)) = self.pulls.begin_locate(id, backup_at) else { return };
        let receives = self.pulls.receives(self.world.now());
        let seen = self.pulls.has_seen(id);
        let locate = Message::Locate { id: id.clone(), avoid, not_here, receives, seen };
        self.world.send(owner, locate);
        if let Some(backup) = self.world.standby(id) {
            self.locate_at(backup, id);
        }
    }

    /// Requests a source from the backup owner too, because the primary owner does not reply.
    fn locate_at(&mut self, backup: NodeId, id: &ObjectId) {
        self.pulls.backup_requested(id);
        let (avoid, not_here) = (self.pulls.avoided(id), None);
        let (receives, seen) = (self.pulls.receives(self.world.now()), self.pulls.has_seen(id));
        let locate = Message::Locate { id: id.clone(), avoid, not_here, receives, seen };
        self.world.send(backup, locate);
    }

    /// The primary owner of these objects is unresponsive.
    pub(super) fn locate_at_backups(&mut self, primary: NodeId) {
        for id in self.pulls.locating() {
            let owners = self.world.members().owners(&id);
            if let Some(backup) = owners.backup.filter(|_| owners.primary == primary) {
                self.locate_at(backup, &id);
            }
        }
    }

    /// Repeats the request to changed owners.
    pub(super) fn locate_again(&mut self, id: &ObjectId) {
        if self.pulls.is_locating(id) {
            self.locate(id);
        }
    }

    /// An owner has registered the request for a source.
    pub(super) fn pull_acknowledged(&mut self, from: NodeId, id: &ObjectId) {
        if !self.pulls.acknowledged(id) {
            // Both owners got the request, and the first reply ended its purpose.
            self.world.send(from, Message::CancelLocate { id: id.clone() });
        }
    }

    pub(super) fn located(
        &mut self,
        from: NodeId,
        id: ObjectId,
        instance: Instance,
        meta: Meta,
        source: Source,
        terms: Option<Box<Terms>>,
    ) {
        if !self.pulls.is_locating(&id) {
            // The pull ended another way, or both owners got the request and this reply is the
            // second. The primary owner's reply holds. If this node followed both, whose views of
            // the broadcast tree differ, copies could grow from each other in a cycle.
            if let Source::Holder { node, .. } = source
                && self.world.members().owners(&id).primary == from
            {
                self.redirected(&id, instance, node);
            } else if let Some(copy) = self.copies.current(&id) {
                self.announce(copy);
            }
            return self.announce_if_without_capacity(&id);
        }
        self.pulls.saw(&id);
        match source {
            Source::Inline(bytes) => {
                self.located_inline(from, &id, instance, meta, bytes, terms);
            }
            // The owner has no other holder than this node: try again later.
            Source::Holder { node, .. } if node == self.world.me() => {
                self.pulls.pause(&id, self.world.now());
            }
            Source::Holder { node, reason } => {
                let note = LogEvent::SourceChosen { id: id.clone(), source: node, reason };
                self.world.note(note);
                self.located_at(&id, instance, meta, node, terms);
            }
        }
    }

    /// Small objects are not cached where they are only read: their owner replies in one round
    /// trip.
    fn located_inline(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        meta: Meta,
        bytes: Inline,
        terms: Option<Box<Terms>>,
    ) {
        let part = self.copies.current(id);
        if let Some(part) = part.filter(|part| {
            self.copies.get(*part).is_some_and(|copy| matches!(copy.state, State::Flowing(_)))
        }) {
            // A part of an older, larger object with the same name.
            self.withdraw(id, part);
        }
        if self.world.members().owners(id).primary == from {
            // The owner keeps no request that would have to be canceled.
            self.pulls.locate_at(id, instance);
        }
        self.end_pull(id);
        self.end_following(id);
        self.replica_received_inline(id, instance, &meta, &bytes, terms);
        for request in self.readers.take_waiting(id) {
            let (id, meta, inline) = (id.clone(), meta.clone(), Some(bytes.clone()));
            self.requests.reply(
                request,
                Ok(Reply::Got { id, meta, instance, inline, is_range: false }),
                &mut self.world,
            );
        }
    }

    fn located_at(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: Meta,
        source: NodeId,
        terms: Option<Box<Terms>>,
    ) {
        if let Some(terms) = &terms {
            self.copies.add_terms(instance, terms);
        }
        if let Some(before) = self.copies.current(id).filter(|before| *before != instance) {
            // Blocks of another instance are useless for this one.
            self.doom(before);
        }
        // A copy that is produced on this node has no source.
        let is_made = |copy: &Copy| matches!(copy.state, State::Filling(_) | State::Folding);
        let cannot_receive_into =
            self.copies.get(instance).is_some_and(|copy| copy.doomed || is_made(copy));
        if let Some(copy) = self.copies.get(instance).filter(|_| !cannot_receive_into) {
            if copy.is_complete() {
                self.reveal(instance);
                self.announce(instance);
                return self.completed(instance);
            }
            self.copies.set_state(instance, State::Flowing(Some(source)));
            return self.receive_from(id, instance, source);
        }
        if !self.copies.table().could_hold(meta.size) {
            let error = self.copies.store_full(meta.size);
            return self.pull_failed(id, &error);
        }
        if cannot_receive_into || self.copies.pending(instance).is_some() {
            // Try again later. Either a client still uses a dropped part of this instance, or the
            // owner has not received its deletion, or the instance that waits for capacity is
            // produced on this node.
            return self.pulls.pause(id, self.world.now());
        }
        if self.pulls.locate_at(id, instance) {
            let (state, inline) = (State::Flowing(Some(source)), None);
            self.want(instance, PendingCopy { id: id.clone(), meta, inline, state, terms });
            self.announce_if_without_capacity(id);
        }
    }

    /// Announces that the object waits for capacity, so that owners send no receivers here:
    /// capacity may never become free.
    fn announce_if_without_capacity(&mut self, id: &ObjectId) {
        if let Some(announce) = self.pending_announcement(id) {
            self.world.send_owners(id, &Message::Announce(announce));
            self.serve_parked(id);
            self.replica_lacks_capacity(id);
        }
    }

    /// Whether an object has capacity here, so that received blocks may be read.
    pub(super) fn pull_is_arriving(&self, id: &ObjectId) -> bool {
        let has_room = |instance: Instance| self.copies.get(instance).is_some();
        self.pulls.is_receiving(id) || self.pulls.located(id).is_some_and(has_room)
    }

    /// The instance of an object that was located and waits for capacity here.
    pub(super) fn pull_without_capacity(&self, id: &ObjectId) -> Option<Instance> {
        self.pulls.located(id).filter(|instance| self.copies.pending(*instance).is_some())
    }

    /// The announcement of an object that waits for capacity here. As a holder without a source,
    /// this node still receives its deletion.
    pub(super) fn pending_announcement(&self, id: &ObjectId) -> Option<Announce> {
        let instance = self.pull_without_capacity(id)?;
        let wanted = self.copies.pending(instance)?;
        let (id, meta) = (id.clone(), wanted.meta.clone());
        let (progress, claim, pinned) = (Progress::Partial { source: None }, false, false);
        let lifetime = wanted.terms.as_ref().map(|terms| terms.to_lifetime(self.world.now()));
        Some(Announce { id, instance, meta, pinned, progress, claim, lifetime })
    }

    /// Memory is allocated for an object that arrives from `source`, or from a source that is still
    /// unknown.
    pub(super) fn pull_in_memory(&mut self, instance: Instance, source: Option<NodeId>) {
        let Some(id) = self.copies.id_of(instance).cloned() else { return };
        if self.pulls.located(&id) != Some(instance) {
            return;
        }
        match source {
            Some(source) => self.receive_from(&id, instance, source),
            None => self.seek_other(&id),
        }
    }

    /// Fails a pull: waiting clients get the error, and received blocks are dropped.
    pub(super) fn pull_failed(&mut self, id: &ObjectId, error: &Error) {
        if let Some(instance) = self.copies.current(id)
            && self.copies.get(instance).is_some_and(|copy| matches!(copy.state, State::Flowing(_)))
        {
            self.withdraw(id, instance);
        }
        self.end_pull(id);
        self.end_following(id);
        let error = self.with_file(id, error);
        for request in self.readers.take_waiting(id) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
        self.hosted_replicas.refuse(id, &mut self.world);
    }

    /// Removes one waiting reader. An arriving object continues to arrive; a search without readers
    /// ends.
    pub(super) fn stop_waiting(&mut self, id: &ObjectId, request: RequestId) {
        if self.readers.stop_waiting(id, request) {
            self.end_if_unwanted(id);
        }
    }

    /// Ends the pull of an object that no client and no downstream receiver waits for, unless it is
    /// arriving.
    pub(super) fn end_if_unwanted(&mut self, id: &ObjectId) {
        self.leave_on_disk_if_unwanted(id);
        let is_arriving = self.pull_is_arriving(id);
        let awaits_room = self.pull_without_capacity(id).is_some();
        let has_parked = self.readers.have_parked(id);
        let is_wanted = self.readers.are_waiting(id) || self.hosted_replicas.wants(id);
        let part = self.copies.current(id);
        let is_read =
            part.and_then(|part| self.copies.get(part)).is_some_and(|copy| copy.readers > 0);
        if !self.pulls.contains(id) || is_arriving || is_wanted || has_parked || is_read {
            return;
        }
        if let Some(instance) = part {
            self.withdraw(id, instance);
        } else if awaits_room {
            self.world.send_owners(id, &Message::CancelLocate { id: id.clone() });
        }
        self.end_pull(id);
    }

    pub(super) fn expire_pulls(&mut self) {
        for id in self.pulls.due(self.world.now()) {
            match self.pulls.overdue(&id) {
                Some(PullTimeout::Reply) => match self.world.members().owners(&id).backup {
                    Some(backup) => self.locate_at(backup, &id),
                    None => self.pulls.backup_requested(&id),
                },
                Some(PullTimeout::Stalled) => self.report_stall(&id),
                Some(PullTimeout::Backoff) => self.locate(&id),
                None => {}
            }
        }
    }
}
