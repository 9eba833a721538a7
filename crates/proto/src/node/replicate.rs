//! Replicate: this node stores a pinned copy for a node that leaves, or that replicates an object.
//!
//! A replica for a live node can be returned when clients of this node need the capacity: the other
//! node first replicates to another member.

use alloc::{boxed::Box, format, vec::Vec};

use super::Node;
use crate::{
    error::Error,
    event::LimitSubject,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::Terms,
    limits::{INCOMING_REPLICAS_MAX, limit_name},
    machines::{copies::PendingCopy, replicas::IncomingReplica, requests::RequestContext},
    meta::Meta,
    request::Reply,
    table::{Copy, State},
};

impl Node {
    /// Another node requests that this node store a pinned copy.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn store_replica(
        &mut self,
        requester: NodeId,
        id: ObjectId,
        instance: Instance,
        meta: Meta,
        inline: Option<Inline>,
        terms: Option<Box<Terms>>,
        may_wait: bool,
    ) {
        let replica = IncomingReplica { requester, instance, may_wait };
        let is_doomed = self.copies.get(instance).is_some_and(|copy| copy.doomed);
        // A copy of another instance does not count, and prevents the transfer of this one.
        let is_other = self.copies.current(&id).is_some_and(|current| current != instance);
        let is_full = self.replicas.incoming() >= INCOMING_REPLICAS_MAX;
        if is_full {
            self.world
                .limit_reached(LimitSubject::Member(requester), limit_name!(INCOMING_REPLICAS_MAX));
        }
        if self.world.members().self_is_leaving() || is_doomed || is_other || is_full {
            return replica.answer(&id, false, &mut self.world);
        }
        if let Some(copy) = self.copies.get(instance) {
            let is_complete = copy.is_complete();
            if let Some(terms) = &terms {
                self.copies.add_terms(instance, terms);
            }
            if is_complete {
                return self.replica_stored(&id, replica);
            }
        } else if let Some(bytes) = inline.filter(|_| id.minter() == Some(requester)) {
            return self.store_inline_replica(id, replica, meta, bytes, terms);
        }
        // Owners have the metadata of objects that the requester did not create: get the object
        // from them.
        self.replicas.expect(&id, replica, &mut self.world);
        self.pull_if_wanted(&id);
        self.replica_lacks_capacity(&id);
    }

    fn store_inline_replica(
        &mut self,
        id: ObjectId,
        replica: IncomingReplica,
        meta: Meta,
        bytes: Inline,
        terms: Option<Box<Terms>>,
    ) {
        let (instance, inline, state) = (replica.instance, Some(bytes), State::Complete);
        let small = PendingCopy { id: id.clone(), meta, inline, state, terms };
        if !self.copies.insert_small(instance, small, &mut self.world) {
            return replica.answer(&id, false, &mut self.world);
        }
        self.host(replica, false);
        self.reveal(instance);
        self.announce(instance);
        self.completed(instance);
        replica.answer(&id, true, &mut self.world);
    }

    /// An inline object arrived from the owner. If a replica is to be made of it, it is pinned.
    pub(super) fn replica_received_inline(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: &Meta,
        bytes: &Inline,
        terms: Option<Box<Terms>>,
    ) {
        let Some(replica) = self.replicas.take_incoming(id) else { return };
        if replica.instance != instance || self.copies.get(instance).is_some() {
            return replica.answer(id, false, &mut self.world);
        }
        self.store_inline_replica(id.clone(), replica, meta.clone(), bytes.clone(), terms);
    }

    /// A pinned copy has left memory or returned, which changes its cost.
    pub(super) fn resize_replica(&mut self, instance: Instance) {
        let bytes = self.copies.get(instance).map_or(0, Copy::cost);
        self.replicas.resize(instance, bytes);
    }

    fn host(&mut self, replica: IncomingReplica, was_pinned: bool) {
        let bytes = self.copies.get(replica.instance).map_or(0, Copy::cost);
        self.replicas.host(replica, was_pinned, bytes);
    }

    /// Pins a complete copy for another node.
    fn replica_stored(&mut self, id: &ObjectId, replica: IncomingReplica) {
        if let Some(was_pinned) = self.copies.set_pinned(replica.instance, true) {
            self.host(replica, was_pinned);
        }
        self.announce(replica.instance);
        replica.answer(id, true, &mut self.world);
    }

    /// A copy has arrived. If another node requested a replica of it, that node gets its reply.
    pub(super) fn replica_received(&mut self, id: &ObjectId, instance: Instance) {
        let Some(replica) = self.replicas.take_incoming(id) else { return };
        if replica.instance != instance {
            return replica.answer(id, false, &mut self.world);
        }
        self.replica_stored(id, replica);
    }

    /// Clients of this node wait for capacity: returns as many replicas as the largest satisfiable
    /// request needs.
    pub(super) fn return_replicas(&mut self) {
        let (kept_bytes, _) = self.replicas.hosted_bytes();
        if kept_bytes == 0 {
            return;
        }
        let Some(missing) = self.missing_with(kept_bytes) else { return };
        let (mut chosen, covered) = self.returnable(missing);
        if covered < missing {
            // Some replicas are being read. The others may suffice for a smaller object.
            let Some(missing) = self.missing_with(covered) else { return };
            chosen = self.returnable(missing).0;
        }
        for instance in chosen {
            let Some(id) = self.copies.id_of(instance).cloned() else { continue };
            self.replicas.return_replica(id, instance, &mut self.world);
        }
    }

    fn returnable(&self, missing: u64) -> (Vec<Instance>, u64) {
        self.replicas.returnable(missing, self.copies.table(), &self.world)
    }

    /// Bytes that the largest waiting object lacks after all returned replicas are gone, if `more`
    /// bytes in addition suffice for that object.
    fn missing_with(&self, more: u64) -> Option<u64> {
        let is_for_another = |instance: Instance| {
            self.copies.pending(instance).is_some_and(|wanted| {
                wanted.state == State::Arriving
                    && self.replicas.expects(&wanted.id)
                    && !self.readers.are_waiting(&wanted.id)
            })
        };
        let (_, given_back) = self.replicas.hosted_bytes();
        let table = self.copies.table();
        let room = table.room_with(given_back.saturating_add(more))?;
        let (_, size) =
            self.copies.largest_within(room).find(|(instance, _)| !is_for_another(*instance))?;
        Some(table.missing_for(size).saturating_sub(given_back))
    }

    /// The requester no longer needs the replica: the copy here becomes a cached one, and need not
    /// arrive.
    pub(super) fn release_replica(&mut self, requester: NodeId, id: &ObjectId, instance: Instance) {
        if self.replicas.cancel(requester, id, instance) {
            return self.end_if_unwanted(id);
        }
        if self.replicas.release(requester, instance)
            && self.copies.set_pinned(instance, false).is_some()
        {
            self.announce(instance);
            self.copies.leave_disk(instance, &mut self.world);
        }
    }

    /// An object has no capacity now. If it is a replica that must not wait, it is refused, since
    /// another node may have capacity.
    pub(super) fn replica_lacks_capacity(&mut self, id: &ObjectId) {
        if self.pull_without_capacity(id).is_some()
            && self.replicas.refuse_without_capacity(id, &mut self.world)
        {
            self.end_if_unwanted(id);
        }
    }

    /// A client wants an object of this node on `copies` nodes.
    pub(super) fn keep(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
        copies: u32,
    ) -> Option<Result<Reply, Error>> {
        let current = self.copies.current(&id);
        let copy = current.and_then(|instance| Some((instance, self.copies.get(instance)?)));
        let primary = copy.filter(|(_, copy)| copy.pinned && copy.is_complete());
        let Some((instance, _)) = primary else {
            let error = if current.is_some() {
                let said =
                    format!("{id} was not put on this node, which therefore can't replicate it");
                Error::InvalidArgument(said)
            } else {
                // Clients send this request right after the seal.
                self.directory.why_gone(&id).unwrap_or(Error::ObjectDeleted { id })
            };
            return Some(Err(error));
        };
        self.settle_replicas(instance);
        let copy = self.copies.get(instance)?;
        self.replicas.want(context, (instance, copy), copies, &mut self.requests, &mut self.world);
        None
    }

    /// Another node keeps a replica, can't keep it, or wants to return it.
    pub(super) fn replica_reply(&mut self, from: NodeId, instance: Instance, accepted: bool) {
        self.settle_replicas(instance);
        self.replicas.replied(from, instance, accepted, &mut self.requests, &mut self.world);
    }

    /// Another node no longer has a copy. It may have been a replica.
    pub(super) fn replica_lost(&mut self, from: NodeId, instance: Instance) {
        if self.replicas.contains(instance) {
            self.settle_replicas(instance);
            self.replicas.lost(from, instance, &mut self.requests, &mut self.world);
        }
    }

    pub(super) fn expire_replicas(&mut self) {
        self.hand_over();
        for instance in self.replicas.due(self.world.now()) {
            self.settle_replicas(instance);
        }
        for request in self.replicas.expire(&mut self.requests, &mut self.world) {
            self.time_out(request);
        }
    }
}
