//! Adopt: this node stores a pinned copy for a node that leaves, or that replicates an object.
//!
//! A replica for a live node can be returned when clients of this node need the capacity: the other node first
//! replicates to another member.

use alloc::{boxed::Box, format};

use super::Node;
use crate::{
    ask::Answer,
    error::Error,
    event::Whose,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::Terms,
    limits::{ADOPTIONS_MAX, limit_name},
    machines::{adoptions::Adoption, copies::Wanted, requests::Asked},
    message::Message,
    meta::Meta,
    table::{Copy, State},
};

impl Node {
    /// Another node requests that this node store a pinned copy.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn adopt(
        &mut self,
        asker: NodeId,
        id: ObjectId,
        instance: Instance,
        meta: Meta,
        inline: Option<Inline>,
        terms: Option<Box<Terms>>,
        may_wait: bool,
    ) {
        let adoption = Adoption { asker, instance, may_wait };
        let is_void = self.copies.get(instance).is_some_and(|copy| copy.doomed);
        // A copy of another instance does not count, and prevents the transfer of this one.
        let is_other = self.copies.current(&id).is_some_and(|current| current != instance);
        let is_full = self.adoptions.coming() >= ADOPTIONS_MAX;
        if is_full {
            self.world.turned_away(Whose::Member(asker), limit_name!(ADOPTIONS_MAX));
        }
        if self.leaving.has_begun() || is_void || is_other || is_full {
            return adoption.answer(&id, false, &mut self.world);
        }
        if let Some(copy) = self.copies.get(instance) {
            let is_complete = copy.is_complete();
            if let Some(terms) = &terms {
                self.copies.add_terms(instance, terms);
            }
            if is_complete {
                return self.adopted_here(&id, adoption);
            }
        } else if let Some(bytes) = inline.filter(|_| id.minter() == Some(asker)) {
            return self.adopt_small(id, adoption, meta, bytes, terms);
        }
        // Owners have the metadata of objects that the requester did not create: get the object from them.
        self.adoptions.expect(&id, adoption, &mut self.world);
        self.pull_if_wanted(&id);
        self.adoption_lacks_room(&id);
    }

    fn adopt_small(
        &mut self,
        id: ObjectId,
        adoption: Adoption,
        meta: Meta,
        bytes: Inline,
        terms: Option<Box<Terms>>,
    ) {
        let (instance, inline, state) = (adoption.instance, Some(bytes), State::Complete);
        let small = Wanted { id: id.clone(), meta, inline, state, terms };
        if !self.copies.insert_small(instance, small, &mut self.world) {
            return adoption.answer(&id, false, &mut self.world);
        }
        self.hold(adoption, false);
        self.reveal(instance);
        self.announce(instance);
        self.completed(instance);
        adoption.answer(&id, true, &mut self.world);
    }

    /// An inline object arrived from the owner. If an adoption waits for it, it is pinned.
    pub(super) fn adoption_came(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: &Meta,
        bytes: &Inline,
        terms: Option<Box<Terms>>,
    ) {
        let Some(adoption) = self.adoptions.take(id) else { return };
        if adoption.instance != instance || self.copies.get(instance).is_some() {
            return adoption.answer(id, false, &mut self.world);
        }
        self.adopt_small(id.clone(), adoption, meta.clone(), bytes.clone(), terms);
    }

    /// A pinned copy has left memory or returned, which changes its cost.
    pub(super) fn weigh_adoption(&mut self, instance: Instance) {
        let bytes = self.copies.get(instance).map_or(0, Copy::cost);
        self.adoptions.weigh(instance, bytes);
    }

    fn hold(&mut self, adoption: Adoption, was_original: bool) {
        let bytes = self.copies.get(adoption.instance).map_or(0, Copy::cost);
        self.adoptions.hold(adoption, was_original, bytes);
    }

    /// Pins a complete copy for another node.
    fn adopted_here(&mut self, id: &ObjectId, adoption: Adoption) {
        if let Some(was_original) = self.copies.set_origin(adoption.instance, true) {
            self.hold(adoption, was_original);
        }
        self.announce(adoption.instance);
        adoption.answer(id, true, &mut self.world);
    }

    /// A copy has arrived. If an adoption waits for it, the requester gets its reply.
    pub(super) fn adoption_arrived(&mut self, id: &ObjectId, instance: Instance) {
        let Some(adoption) = self.adoptions.take(id) else { return };
        if adoption.instance != instance {
            return adoption.answer(id, false, &mut self.world);
        }
        self.adopted_here(id, adoption);
    }

    /// Clients of this node wait for capacity: returns as many replicas as the largest satisfiable request needs.
    pub(super) fn give_back(&mut self) {
        let (kept_bytes, _) = self.adoptions.bytes();
        if kept_bytes == 0 {
            return;
        }
        let Some(missing) = self.missing_with(kept_bytes) else { return };
        let (mut chosen, covered) =
            self.adoptions.returnable(missing, self.copies.table(), &self.replicas, &self.world);
        if covered < missing {
            // Some replicas are being read. The others may suffice for a smaller object.
            let Some(missing) = self.missing_with(covered) else { return };
            chosen = self
                .adoptions
                .returnable(missing, self.copies.table(), &self.replicas, &self.world)
                .0;
        }
        for (instance, asker, id) in chosen {
            self.adoptions.give_back(instance);
            self.world.send(asker, Message::Adopted { id, instance, kept: false });
        }
    }

    /// Bytes that the largest waiting object lacks after all returned replicas are gone, if `more` bytes in addition
    /// suffice for that object.
    fn missing_with(&self, more: u64) -> Option<u64> {
        let is_for_another = |instance: Instance| {
            self.copies.wanted(instance).is_some_and(|wanted| {
                matches!(wanted.state, State::Flowing(_))
                    && self.adoptions.wants(&wanted.id)
                    && !self.readers.are_waiting(&wanted.id)
            })
        };
        let (_, given_back) = self.adoptions.bytes();
        let table = self.copies.table();
        let room = table.room_with(given_back.saturating_add(more))?;
        let (_, size) =
            self.copies.largest_within(room).find(|(instance, _)| !is_for_another(*instance))?;
        Some(table.missing_for(size).saturating_sub(given_back))
    }

    /// The requester no longer needs the replica: the copy here becomes a cached one, and need not arrive.
    pub(super) fn unkeep(&mut self, asker: NodeId, instance: Instance) {
        if let Some(id) = self.adoptions.cancel(asker, instance) {
            return self.end_if_unwanted(&id);
        }
        // A client of this node may want replicas of it, too.
        if !self.adoptions.release(asker, instance) || self.replicas.contains(instance) {
            return;
        }
        if self.copies.set_origin(instance, false).is_some() {
            self.announce(instance);
            self.copies.leave_disk(instance, &mut self.world);
        }
    }

    /// An object has no capacity now. If its adoption must not wait, it is refused, since another node may have
    /// capacity.
    pub(super) fn adoption_lacks_room(&mut self, id: &ObjectId) {
        if self.pull_without_room(id).is_some()
            && self.adoptions.refuse_without_room(id, &mut self.world)
        {
            self.end_if_unwanted(id);
        }
    }

    /// A client wants an object of this node on `copies` nodes.
    pub(super) fn keep(
        &mut self,
        asked: &Asked,
        id: ObjectId,
        copies: u32,
    ) -> Option<Result<Answer, Error>> {
        let current = self.copies.current(&id);
        let copy = current.and_then(|instance| Some((instance, self.copies.get(instance)?)));
        let original = copy.filter(|(_, copy)| copy.origin && copy.is_complete());
        let Some(original) = original else {
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
        self.replicas.want(asked, original, copies, &mut self.requests, &mut self.world);
        None
    }

    /// Another node keeps a replica, can't keep it, or wants to return it.
    pub(super) fn adopted(&mut self, from: NodeId, instance: Instance, kept: bool) {
        self.replicas.answered(from, instance, kept, &mut self.requests, &mut self.world);
        self.leaving.adopted(from, instance, kept, self.copies.table(), &mut self.world);
    }
}
