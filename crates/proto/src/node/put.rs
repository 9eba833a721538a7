//! Put: creates an object on this node.
//!
//! [`crate::machines::pending_puts`] tracks the progress of each.

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
        copies::PendingCopy,
        pending_puts::{PendingPut, PutPhase},
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
        let is_reserved =
            id.as_ref().is_some_and(|id| self.client_reservations.has(id, context.client));
        let id = match self.id_for(context.client, id) {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        let instance = self.world.next_instance();
        self.requests.remember(context, RequestKind::Create(instance), &self.world);
        let (client, request) = (context.client, context.request);
        self.pending_puts
            .begin(instance, PendingPut::new(client, request, id.clone(), is_reserved));
        let (state, terms) =
            (State::Filling(client), Terms::new(ttl_ns, self.client_leases.job(client)));
        self.want(instance, PendingCopy { id, meta, inline, state, terms });
        None
    }

    /// Capacity is reserved. A small object claims its name next; a large one needs memory first. No get uses the copy
    /// before the name is confirmed.
    pub(super) fn put_admitted(&mut self, instance: Instance) {
        if self.copies.get(instance).is_some_and(|copy| copy.inline.is_some()) {
            self.claim_name(instance);
        }
    }

    /// Capacity and memory are reserved for a client to fill. A name that its client has reserved needs no claim.
    pub(super) fn claim_name(&mut self, instance: Instance) {
        let maker = self.pending_puts.maker(instance);
        let of_slot = maker.map(|(id, _)| id).filter(|id| id.is_slot());
        if let Some(error) = of_slot.and_then(|id| self.world.members().why_unmade(id)) {
            return self.fail_put(instance, error);
        }
        let is_granted =
            maker.is_some_and(|(id, client)| self.client_reservations.is_used(id, client));
        if is_granted
            || !self.pending_puts.claim_name(instance, self.copies.table(), &mut self.world)
        {
            self.put_confirmed(instance, None);
        }
    }

    /// A node claims a name at this node, the backup owner, because the primary owner does not reply to it. If it
    /// replies to this node, only it may grant the name: otherwise both owners could grant it to different objects. Then
    /// the claim is passed on, since the path between the two may be broken.
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
        if let Some(key) = self.result_reservations.reduce_of(instance) {
            return self.result_reserved(from, key, id, taken_by);
        }
        if self.client_reservations.is_of(id, instance) && id.is_slot() {
            // It is filled, and does not end with its client any more.
            return self.client_reservations.forget(id, &mut self.world);
        }
        if self.client_reservations.is_of(id, instance) {
            return self.name_reserved(from, id, instance, taken_by);
        }
        match (self.pending_puts.phase(instance), taken_by) {
            (Some(PutPhase::Name), None) => self.put_confirmed(instance, Some(from)),
            (Some(PutPhase::Name), Some(holder)) => {
                self.fail_put(instance, Error::NameTaken { id: id.clone(), holder });
            }
            // The client gave up while its claim was in flight: release the name.
            (None, None) if self.copies.get(instance).is_none() => {
                self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
            }
            // A claim that another node passed on came after the copy was announced.
            (None, None) => self.announce(instance),
            _ => {}
        }
    }

    /// The object may exist: the client fills it, or it is complete. `knows_it` is the owner that confirmed the name,
    /// and since then has the bytes of a small object.
    fn put_confirmed(&mut self, instance: Instance, knows_it: Option<NodeId>) {
        let Some((id, request)) = self.pending_puts.confirm(instance) else { return };
        if self.copies.get(instance).is_some_and(|copy| copy.inline.is_some()) {
            if let Some(create) = self.pending_puts.end(instance) {
                self.client_reservations.keep(&id, create.client, &mut self.world);
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
        let Some((id, is_deleted)) = self.pending_puts.seal(client, instance) else {
            let said =
                format!("instance {instance} is not being filled: it is already sealed or aborted");
            return Err(Error::InvalidArgument(said));
        };
        self.client_reservations.keep(&id, client, &mut self.world);
        let Some(copy) = self.copies.get(instance) else {
            return Err(Error::ObjectDeleted { id });
        };
        let is_doomed = copy.doomed;
        self.copies.set_state(instance, State::Complete);
        self.remove_reader(instance);
        if is_doomed {
            self.leaving.forget(instance);
            // A reduce folds inputs while they are filled, and a client with the result may delete them at once: for
            // their creators the put has succeeded. If objects with one name were put on both sides of a partition,
            // only one of them remains, and the other put has failed.
            return match is_deleted {
                true => Ok(Reply::Put { id }),
                false if id.is_slot() => {
                    let detail = "the client that made the slot ended before the put, or another client filled it";
                    Err(Error::ObjectLost { id, detail: detail.into() })
                }
                false => Err(Error::ObjectDeleted { id }),
            };
        }
        self.announce(instance);
        self.completed(instance);
        self.leaving.filled(instance, self.copies.table(), &mut self.world);
        Ok(Reply::Put { id })
    }

    /// Why an object that a client has filled can't be complete: the node of its slot is gone, and nobody waits for it.
    fn slot_is_gone(&self, client: ClientId, instance: Instance) -> Option<Error> {
        let (id, maker) = self.pending_puts.maker(instance)?;
        let is_slot = id.is_slot() && maker == client;
        is_slot.then(|| self.world.members().why_unmade(id)).flatten()
    }

    /// Fails the puts that wait for the reply of the node of a slot which is gone.
    pub(super) fn fail_puts_without_slot(&mut self) {
        for (instance, error) in self.pending_puts.without_slot(&self.world) {
            self.fail_put(instance, error);
        }
    }

    pub(super) fn abort(&mut self, client: ClientId, instance: Instance) -> Result<Reply, Error> {
        if self.pending_puts.is_of_another(instance, client) {
            let said = format!("instance {instance} is being filled by another client");
            return Err(Error::InvalidArgument(said));
        }
        if let Some(create) = self.pending_puts.end(instance) {
            self.undo_put(&create, instance);
        }
        Ok(Reply::Done)
    }

    pub(super) fn fail_put(&mut self, instance: Instance, error: Error) {
        let Some(mut create) = self.pending_puts.end(instance) else { return };
        let request = create.request.take();
        self.undo_put(&create, instance);
        if let Some(request) = request {
            self.requests.reply(request, Err(error), &mut self.world);
        }
    }

    fn undo_put(&mut self, create: &PendingPut, instance: Instance) {
        self.copies.cancel(instance);
        if let Some(copy) = self.copies.get(instance) {
            if copy.inline.is_none() {
                // Receivers that follow the growing copy must not wait for the rest.
                self.world.act(Action::FreeSlot { instance });
            }
            self.doom(instance);
            self.remove_reader(instance);
        }
        if create.is_announced() {
            let id = create.id.clone();
            let message = match id.minter() {
                // Another client may put a name or slot, but another generated id can never get an object any more.
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
            self.world.send_owners(&create.id, &message);
        }
        if create.is_reserved && (create.id.minter().is_none() || !create.is_announced()) {
            // Announcements are withdrawn, if any, and the client may try again.
            self.client_reservations.reuse(&create.id, create.client);
        } else if create.is_reserved {
            self.client_reservations.keep(&create.id, create.client, &mut self.world);
        }
        // Gets that found the object growing here look elsewhere now.
        self.pull_if_wanted(&create.id);
    }

    /// What a create waits for: capacity, memory or its name.
    pub(super) fn put_description(&self, instance: Instance) -> (String, String) {
        let Some((id, _)) = self.pending_puts.maker(instance) else {
            return (format!("instance {instance}"), "it has ended".into());
        };
        if let Some(full) = self.copies.shortfall(instance) {
            return (format!("memory for {id}"), full.to_string());
        }
        match self.pending_puts.phase(instance) {
            Some(PutPhase::Name | PutPhase::Filling) => {
                let owner = self.world.members().owners(id).primary;
                (format!("the name {id}"), format!("its owner, node {owner}, has not confirmed it"))
            }
            _ => (format!("memory for {id}"), "the node is still allocating it".to_string()),
        }
    }

    /// Ends a create whose request has ended.
    pub(super) fn withdraw_put(&mut self, instance: Instance) {
        if let Some(create) = self.pending_puts.end(instance) {
            self.undo_put(&create, instance);
        }
    }
}

/// The error for a time to live of zero.
pub(super) fn no_time() -> Error {
    Error::InvalidArgument(
        "ttl is 0 s: set a positive time, or none to keep the object until it is deleted".into(),
    )
}
