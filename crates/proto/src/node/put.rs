//! Put: creates an object on this node.
//!
//! [`crate::machines::claims`] has the phase of each.

use alloc::{
    format,
    string::{String, ToString},
};

use super::Node;
use crate::{
    error::Error,
    event::Action,
    id::{ClientId, Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::Terms,
    limits::{INLINE_BYTES_MAX, OBJECT_BYTES_MAX},
    machines::{
        claims::{Put, PutPhase},
        copies::PendingCopy,
        requests::{RequestContext, RequestKind},
    },
    message::Message,
    meta::Meta,
    request::Reply,
    table::State,
};

impl Node {
    pub(super) fn put_inline(
        &mut self,
        context: &RequestContext,
        id: Option<ObjectId>,
        meta: Meta,
        bytes: Inline,
        ttl_ns: Option<u64>,
    ) -> Option<Result<Reply, Error>> {
        if meta.size > INLINE_BYTES_MAX || meta.size != bytes.len() {
            let said =
                format!("{} bytes were sent for an object of {} bytes", bytes.len(), meta.size);
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.begin_put(context, id, meta, Some(bytes), ttl_ns)
    }

    pub(super) fn create(
        &mut self,
        context: &RequestContext,
        id: Option<ObjectId>,
        meta: Meta,
        ttl_ns: Option<u64>,
    ) -> Option<Result<Reply, Error>> {
        if meta.size <= INLINE_BYTES_MAX || meta.size > OBJECT_BYTES_MAX {
            // Clients create smaller objects in their own memory, and put those.
            let limit = if meta.size > OBJECT_BYTES_MAX {
                format!("at most {OBJECT_BYTES_MAX}")
            } else {
                format!("more than {INLINE_BYTES_MAX}")
            };
            let said =
                format!("an object of {} bytes can't be created in place: use {limit}", meta.size);
            return Some(Err(Error::InvalidArgument(said)));
        }
        self.begin_put(context, id, meta, None, ttl_ns)
    }

    fn begin_put(
        &mut self,
        context: &RequestContext,
        id: Option<ObjectId>,
        meta: Meta,
        inline: Option<Inline>,
        ttl_ns: Option<u64>,
    ) -> Option<Result<Reply, Error>> {
        if !meta.is_consistent() {
            let said =
                format!("the metadata is inconsistent: {meta} does not take {} bytes", meta.size);
            return Some(Err(Error::InvalidArgument(said)));
        }
        if ttl_ns == Some(0) {
            return Some(Err(no_time()));
        }
        if !self.copies.table().could_hold(meta.size) {
            return Some(Err(self.copies.store_full(meta.size)));
        }
        let id = match self.claims.id_for(context.client, id, &self.directory, &mut self.world) {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        let instance = self.world.next_instance();
        self.requests.remember(context, RequestKind::Create(instance), &self.world);
        let (client, request) = (context.client, context.request);
        self.claims.begin_put(instance, client, request, id.clone());
        let (state, terms) =
            (State::Filling(client), Terms::new(ttl_ns, self.client_leases.job(client)));
        self.want(instance, PendingCopy { id, meta, inline, state, terms });
        None
    }

    /// The copy has capacity, and memory if it is large. No get uses it before its name is
    /// confirmed.
    pub(super) fn claim_name(&mut self, instance: Instance) {
        match self.claims.claim(instance, self.copies.table(), &mut self.world) {
            Ok(true) => {}
            Ok(false) => self.put_confirmed(instance, None),
            Err(error) => self.fail_put(instance, error),
        }
    }

    /// A node claims a name at this node, the backup owner, because the primary owner does not
    /// reply to it. If it replies to this node, only it may grant the name: otherwise both owners
    /// could grant it to different objects. Then the claim is passed on, since the path between the
    /// two may be broken.
    pub(super) fn claim_at_backup(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        at_backup: Message,
    ) {
        let (me, owners) = (self.world.me(), self.world.members().owners(id));
        // Another node may have passed it on.
        let claimer = instance.node;
        if !self.world.members().contains(claimer) || (claimer == me && from != me) {
            return;
        }
        if owners.backup == Some(me) {
            // Readers of the name wait for news of the primary owner.
            self.world.probe_by_all(owners.primary);
        }
        if owners.primary == me || self.world.standby(id) == Some(me) {
            self.receive(claimer, at_backup.into_claim());
        } else if owners.backup == Some(me) {
            self.world.send(owners.primary, at_backup);
        }
    }

    /// The owner of a name replied to the claim.
    pub(super) fn claimed(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        taken_by: Option<NodeId>,
    ) {
        if self.claims.is_reserved_by(id, instance) {
            return self.reservation_claimed(from, id, instance, taken_by);
        }
        match (self.claims.put(instance).map(|put| put.phase), taken_by) {
            (Some(PutPhase::Claiming(_)), None) => self.put_confirmed(instance, Some(from)),
            (Some(PutPhase::Claiming(_)), Some(holder)) => {
                self.fail_put(instance, Error::NameTaken { id: id.clone(), holder });
            }
            // The client gave up while its claim was in flight: release the name.
            (None, None) if self.copies.get(instance).is_none() => {
                let withdrawal = Message::Withdraw { id: id.clone(), instance };
                self.world.send_owners(id, &withdrawal);
                if !self.world.members().owners(id).contains(from) {
                    // It counts itself as an owner.
                    self.world.send(from, withdrawal);
                }
            }
            // A claim that another node passed on came after the copy was announced.
            (None, None) => self.announce(instance),
            _ => {}
        }
    }

    /// The object may exist: the client fills it, or it is complete. `knows_it` is the owner that
    /// confirmed the name, and since then has the bytes of a small object.
    fn put_confirmed(&mut self, instance: Instance, knows_it: Option<NodeId>) {
        let Some((id, request)) = self.claims.confirm(instance) else { return };
        if self.copies.get(instance).is_some_and(|copy| copy.inline.is_some()) {
            if let Some(put) = self.claims.end_put(instance) {
                self.claims.object_made(&id, put.client, &mut self.world);
            }
            self.copies.set_state(instance, State::Complete);
            self.remove_reader(instance);
            self.reveal(instance);
            self.announce_but(instance, knows_it);
            self.completed(instance);
            if let Some(request) = request {
                self.requests.reply(request, Ok(Reply::Put { id }), &mut self.world);
            }
            return;
        }
        self.reveal(instance);
        self.announce(instance);
        self.end_pull(&id);
        self.growing(instance);
        if let Some(request) = request {
            self.requests.reply(request, Ok(Reply::Created { id, instance }), &mut self.world);
        }
    }

    pub(super) fn seal(&mut self, client: ClientId, instance: Instance) -> Result<Reply, Error> {
        if let Some(error) = self.slot_is_gone(client, instance) {
            self.withdraw_put(instance);
            return Err(error);
        }
        let Some((id, is_deleted)) = self.claims.seal(client, instance) else {
            let said =
                format!("instance {instance} is not being filled: it is already sealed or aborted");
            return Err(Error::InvalidArgument(said));
        };
        self.claims.object_made(&id, client, &mut self.world);
        let Some(copy) = self.copies.get(instance) else {
            return Err(Error::ObjectDeleted { id });
        };
        let is_doomed = copy.doomed;
        self.copies.set_state(instance, State::Complete);
        self.remove_reader(instance);
        if is_doomed {
            // A reduce folds inputs while they are filled, and a client with the result may delete
            // them at once: for their creators the put has succeeded. If objects with one name were
            // put on both sides of a partition, only one of them remains, and the other put has
            // failed.
            return match is_deleted {
                true => Ok(Reply::Put { id }),
                false if id.is_slot() => {
                    let detail = "the client that made the slot ended before the put, or another \
                        client filled it";
                    Err(Error::ObjectLost { id, detail: detail.into() })
                }
                false => Err(Error::ObjectDeleted { id }),
            };
        }
        self.announce(instance);
        self.completed(instance);
        if self.replicas.has_passed(instance) {
            self.replicate_elsewhere(instance);
        }
        Ok(Reply::Put { id })
    }

    /// Why an object that a client has filled can't be complete: the node of its slot is gone, and
    /// nobody waits for it.
    fn slot_is_gone(&self, client: ClientId, instance: Instance) -> Option<Error> {
        let put = self.claims.put(instance).filter(|put| put.client == client)?;
        put.id.is_slot().then(|| self.world.members().why_unmade(&put.id)).flatten()
    }

    pub(super) fn abort(&mut self, client: ClientId, instance: Instance) -> Result<Reply, Error> {
        if self.claims.put(instance).is_some_and(|put| put.client != client) {
            let said = format!("instance {instance} is being filled by another client");
            return Err(Error::InvalidArgument(said));
        }
        self.withdraw_put(instance);
        Ok(Reply::Done)
    }

    pub(super) fn fail_put(&mut self, instance: Instance, error: Error) {
        let Some(put) = self.claims.end_put(instance) else { return };
        self.undo_put(&put, instance);
        if let Some(request) = put.request {
            self.requests.reply(request, Err(error), &mut self.world);
        }
    }

    fn undo_put(&mut self, put: &Put, instance: Instance) {
        self.copies.cancel(instance);
        if let Some(copy) = self.copies.get(instance) {
            if copy.inline.is_none() {
                // Receivers that follow the growing copy must not wait for the rest.
                self.world.act(Action::FreeSlot { instance });
            }
            self.doom(instance);
            self.remove_reader(instance);
        }
        if put.is_announced() {
            let id = put.id.clone();
            let message = match id.minter() {
                // Another client may put a name or slot, but another generated id can never get an
                // object any more.
                None => Message::Withdraw { id, instance },
                Some(_) if id.is_slot() => Message::Withdraw { id, instance },
                Some(_) => {
                    let detail = "its client aborted it or failed before it was complete".into();
                    Message::Fail {
                        error: Error::ObjectLost { id: id.clone(), detail },
                        id,
                        reserved: None,
                    }
                }
            };
            self.world.send_owners(&put.id, &message);
        }
        if put.is_reserved && (put.id.minter().is_none() || !put.is_announced()) {
            // Announcements are withdrawn, if any, and the client may try again.
            self.claims.reuse(&put.id, put.client);
        } else if put.is_reserved {
            self.claims.object_made(&put.id, put.client, &mut self.world);
        }
        // Gets that found the object growing here look elsewhere now.
        self.pull_if_wanted(&put.id);
    }

    /// What a create waits for: capacity, memory or its name.
    pub(super) fn put_description(&self, instance: Instance) -> (String, String) {
        let Some(Put { id, phase, .. }) = self.claims.put(instance) else {
            return (format!("instance {instance}"), "it has ended".into());
        };
        if let Some(full) = self.copies.shortfall(instance) {
            return (format!("memory for {id}"), full.to_string());
        }
        match phase {
            PutPhase::Claiming(_) | PutPhase::Filling => self.name_description(id),
            PutPhase::Waiting => {
                (format!("memory for {id}"), "the node is still allocating it".to_string())
            }
        }
    }

    /// Ends a create whose request has ended.
    pub(super) fn withdraw_put(&mut self, instance: Instance) {
        if let Some(put) = self.claims.end_put(instance) {
            self.undo_put(&put, instance);
        }
    }
}

/// The error for a time to live of zero.
pub(super) fn no_time() -> Error {
    Error::InvalidArgument(
        "ttl is 0 s: set a positive time, or none to keep the object until it is deleted".into(),
    )
}
