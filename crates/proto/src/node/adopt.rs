//! Adopt: this node holds an original for another one, which leaves, or wants it to be at several nodes.
//!
//! What is kept for a node that lives can be given back, when clients here need its room: the other node finds another
//! keeper first.

use alloc::{boxed::Box, collections::BTreeMap, format, vec::Vec};

use super::{Node, Whose, copies::Wanted, replicas::Replicas, requests::Asked, world::World};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::Terms,
    limits::{ADOPTIONS_MAX, limit_name},
    message::Message,
    meta::Meta,
    table::{Copy, State, Table},
};

/// Originals of other nodes that this one was asked to keep.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    /// On their way to here.
    coming: BTreeMap<ObjectId, Adoption>,
    /// Here, for nodes that have them too.
    held: Held,
}

/// An original on its way to here.
#[derive(Clone, Copy, Debug)]
struct Adoption {
    asker: NodeId,
    instance: Instance,
    /// Whether the asker waits until there is room here.
    may_wait: bool,
}

/// Originals that are kept for nodes that have them too.
#[derive(Debug, Default)]
struct Held {
    /// Those that were not given back.
    kept: BTreeMap<Instance, HeldFor>,
    kept_bytes: u64,
    /// Those for which another keeper is sought.
    given_back: BTreeMap<Instance, HeldFor>,
    given_back_bytes: u64,
}

/// For whom an original is kept, and what it takes of the capacity.
#[derive(Clone, Copy, Debug)]
struct HeldFor {
    asker: NodeId,
    bytes: u64,
}

impl Held {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.given_back.is_empty()
    }

    fn asker(&self, instance: Instance) -> Option<NodeId> {
        let kept = self.kept.get(&instance).or_else(|| self.given_back.get(&instance));
        kept.map(|kept| kept.asker)
    }

    fn insert(&mut self, instance: Instance, asker: NodeId, bytes: u64) {
        self.remove(instance);
        self.kept_bytes += bytes;
        self.kept.insert(instance, HeldFor { asker, bytes });
    }

    fn remove(&mut self, instance: Instance) {
        if let Some(kept) = self.kept.remove(&instance) {
            self.kept_bytes -= kept.bytes;
        } else if let Some(given) = self.given_back.remove(&instance) {
            self.given_back_bytes -= given.bytes;
        }
    }

    /// What an original takes of the capacity from now on.
    fn weigh(&mut self, instance: Instance, bytes: u64) {
        let held = [
            (&mut self.kept, &mut self.kept_bytes),
            (&mut self.given_back, &mut self.given_back_bytes),
        ];
        for (originals, sum) in held {
            if let Some(original) = originals.get_mut(&instance) {
                *sum = *sum - original.bytes + bytes;
                original.bytes = bytes;
            }
        }
    }

    fn give_back(&mut self, instance: Instance) {
        if let Some(kept) = self.kept.remove(&instance) {
            self.kept_bytes -= kept.bytes;
            self.given_back_bytes += kept.bytes;
            self.given_back.insert(instance, kept);
        }
    }

    /// A node that is lost looks for no other keepers.
    fn without(&mut self, node: NodeId) {
        let hit = self.given_back.iter().filter(|(_, given)| given.asker == node);
        for (instance, given) in hit.map(|(i, given)| (*i, *given)).collect::<Vec<_>>() {
            self.insert(instance, given.asker, given.bytes);
        }
    }
}

impl Adoptions {
    /// How many are on their way.
    pub(super) fn coming(&self) -> usize {
        self.coming.len()
    }

    /// Whether an object is on its way to here for another node.
    pub(super) fn wants(&self, id: &ObjectId) -> bool {
        self.coming.contains_key(id)
    }

    fn expect(&mut self, id: &ObjectId, adoption: Adoption, world: &mut World) {
        if let Some(before) = self.coming.insert(id.clone(), adoption)
            && before.asker != adoption.asker
        {
            answer(id, before, false, world);
        }
    }

    /// An original will not come to here.
    pub(super) fn refuse(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(adoption) = self.coming.remove(id) {
            answer(id, adoption, false, world);
        }
    }

    /// Nothing is adopted any more; the objects that were on their way.
    pub(super) fn refuse_all(&mut self, world: &mut World) -> Vec<ObjectId> {
        let all: Vec<ObjectId> = self.coming.keys().cloned().collect();
        all.iter().for_each(|id| self.refuse(id, world));
        all
    }

    /// The asker is gone; the objects that were on their way for it.
    pub(super) fn forget_node(&mut self, node: NodeId) -> Vec<ObjectId> {
        let owed = self.coming.iter().filter(|(_, adoption)| adoption.asker == node);
        let owed: Vec<ObjectId> = owed.map(|(id, _)| id.clone()).collect();
        self.coming.retain(|_, adoption| adoption.asker != node);
        self.held.without(node);
        owed
    }

    /// The asker has no such original any more; the object, if it was on its way.
    fn cancel(&mut self, asker: NodeId, instance: Instance) -> Option<ObjectId> {
        let is_it = |adoption: &Adoption| (adoption.asker, adoption.instance) == (asker, instance);
        let id = self.coming.iter().find(|(_, adoption)| is_it(adoption))?.0.clone();
        self.coming.remove(&id);
        Some(id)
    }

    /// There is no room for an object now; whether its adoption was refused for that, so that another node may be asked.
    fn refuse_without_room(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.coming.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// An original of this many bytes is held for the asker: for good if that leaves.
    fn hold(&mut self, adoption: Adoption, was_original: bool, bytes: u64) {
        let Adoption { asker, instance, may_wait: leaves } = adoption;
        if leaves {
            self.held.remove(instance);
        } else if !was_original || self.held.asker(instance).is_some() {
            self.held.insert(instance, asker, bytes);
        }
    }

    /// The copy is no more.
    pub(super) fn forget(&mut self, instance: Instance) {
        self.held.remove(instance);
    }

    /// The asker does not need the copy here any more; whether it was held for that node.
    fn release(&mut self, asker: NodeId, instance: Instance) -> bool {
        let is_its = self.held.asker(instance) == Some(asker);
        if is_its {
            self.held.remove(instance);
        }
        is_its
    }

    /// Originals of others that can go, enough of them for `missing` bytes or all; and the bytes that they take.
    fn returnable(
        &self,
        missing: u64,
        table: &Table,
        replicas: &Replicas,
        world: &World,
    ) -> (Vec<(Instance, NodeId, ObjectId)>, u64) {
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for (instance, kept) in &self.held.kept {
            if covered >= missing {
                break;
            }
            let copy = table.get(*instance).filter(|copy| copy.is_readable() && copy.pins == 0);
            let can_go = world.members().contains(kept.asker) && !replicas.contains(*instance);
            if let Some(copy) = copy.filter(|_| can_go) {
                covered += kept.bytes;
                chosen.push((*instance, kept.asker, copy.id.clone()));
            }
        }
        (chosen, covered)
    }

    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }
}

fn answer(id: &ObjectId, adoption: Adoption, kept: bool, world: &mut World) {
    let (id, instance) = (id.clone(), adoption.instance);
    world.send(adoption.asker, Message::Adopted { id, instance, kept });
}

impl Node {
    /// Another node asks this one to keep an original.
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
        // What is here of another instance is not it, and keeps it from being received.
        let is_other = self.copies.current(&id).is_some_and(|current| current != instance);
        let is_full = self.adoptions.coming() >= ADOPTIONS_MAX;
        if is_full {
            self.world.turned_away(Whose::Member(asker), limit_name!(ADOPTIONS_MAX));
        }
        if self.leaving.has_begun() || is_void || is_other || is_full {
            return answer(&id, adoption, false, &mut self.world);
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
        // What the asker has not minted comes from the owners, who know what it is.
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
            return answer(&id, adoption, false, &mut self.world);
        }
        self.hold(adoption, false);
        self.reveal(instance);
        self.announce(instance);
        self.completed(instance);
        answer(&id, adoption, true, &mut self.world);
    }

    /// The owner has sent a small object. If this node was asked to keep it, it does.
    pub(super) fn adoption_came(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        meta: &Meta,
        bytes: &Inline,
        terms: Option<Box<Terms>>,
    ) {
        let Some(adoption) = self.adoptions.coming.remove(id) else { return };
        if adoption.instance != instance || self.copies.get(instance).is_some() {
            return answer(id, adoption, false, &mut self.world);
        }
        self.adopt_small(id.clone(), adoption, meta.clone(), bytes.clone(), terms);
    }

    /// An original has left memory or comes back: it takes something else of the capacity.
    pub(super) fn weigh_adoption(&mut self, instance: Instance) {
        let bytes = self.copies.get(instance).map_or(0, Copy::cost);
        self.adoptions.held.weigh(instance, bytes);
    }

    fn hold(&mut self, adoption: Adoption, was_original: bool) {
        let bytes = self.copies.get(adoption.instance).map_or(0, Copy::cost);
        self.adoptions.hold(adoption, was_original, bytes);
    }

    /// A copy that is complete is an original from now on.
    fn adopted_here(&mut self, id: &ObjectId, adoption: Adoption) {
        if let Some(was_original) = self.copies.set_origin(adoption.instance, true) {
            self.hold(adoption, was_original);
        }
        self.announce(adoption.instance);
        answer(id, adoption, true, &mut self.world);
    }

    /// A copy has arrived; if it was taken over for another node, that is told.
    pub(super) fn adoption_arrived(&mut self, id: &ObjectId, instance: Instance) {
        let Some(adoption) = self.adoptions.coming.remove(id) else { return };
        if adoption.instance != instance {
            return answer(id, adoption, false, &mut self.world);
        }
        self.adopted_here(id, adoption);
    }

    /// Clients of this node wait for room: asks to give back so much of what is kept for others as that takes, if it can be
    /// enough for one of them.
    pub(super) fn give_back(&mut self) {
        if self.adoptions.held.kept.is_empty() {
            return;
        }
        let Some(missing) = self.missing_with(self.adoptions.held.kept_bytes) else { return };
        let (mut chosen, covered) =
            self.adoptions.returnable(missing, self.copies.table(), &self.replicas, &self.world);
        if covered < missing {
            // Some of it is read now: the rest may be enough for another object.
            let Some(missing) = self.missing_with(covered) else { return };
            chosen = self
                .adoptions
                .returnable(missing, self.copies.table(), &self.replicas, &self.world)
                .0;
        }
        for (instance, asker, id) in chosen {
            self.adoptions.held.give_back(instance);
            self.world.send(asker, Message::Adopted { id, instance, kept: false });
        }
    }

    /// What the largest object that clients wait for would lack when all that was given back is gone, if `more` bytes beside
    /// it are enough for that object.
    fn missing_with(&self, more: u64) -> Option<u64> {
        let is_for_another = |instance: Instance| {
            self.copies.wanted(instance).is_some_and(|wanted| {
                matches!(wanted.state, State::Flowing(_))
                    && self.adoptions.wants(&wanted.id)
                    && !self.readers.are_waiting(&wanted.id)
            })
        };
        let given_back = self.adoptions.held.given_back_bytes;
        let table = self.copies.table();
        let room = table.room_with(given_back.saturating_add(more))?;
        let (_, size) =
            self.copies.largest_within(room).find(|(instance, _)| !is_for_another(*instance))?;
        Some(table.missing_for(size).saturating_sub(given_back))
    }

    /// Enough other nodes keep an original, or it is no more: the copy here may go, and need not come.
    pub(super) fn unkeep(&mut self, asker: NodeId, instance: Instance) {
        if let Some(id) = self.adoptions.cancel(asker, instance) {
            return self.end_if_unwanted(&id);
        }
        // A client of this node may want copies of it, too.
        if !self.adoptions.release(asker, instance) || self.replicas.contains(instance) {
            return;
        }
        if self.copies.set_origin(instance, false).is_some() {
            self.announce(instance);
            self.copies.leave_disk(instance, &mut self.world);
        }
    }

    /// There is no room for an object now. If its adoption is to be refused for that, another node may have some.
    pub(super) fn adoption_lacks_room(&mut self, id: &ObjectId) {
        if self.pull_without_room(id).is_some()
            && self.adoptions.refuse_without_room(id, &mut self.world)
        {
            self.end_if_unwanted(id);
        }
    }

    /// A client wants an original of this node to be at `copies` nodes.
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
                let said = format!("{id} was not put at this node, which can't see to its copies");
                Error::InvalidArgument(said)
            } else {
                // This is asked right after the seal.
                self.directory.why_gone(&id).unwrap_or(Error::ObjectDeleted { id })
            };
            return Some(Err(error));
        };
        self.replicas.want(asked, original, copies, &mut self.requests, &mut self.world);
        None
    }

    /// Another node keeps an original of this one, or can't, or wants to give it back.
    pub(super) fn adopted(&mut self, from: NodeId, instance: Instance, kept: bool) {
        self.replicas.answered(from, instance, kept, &mut self.requests, &mut self.world);
        self.leaving.adopted(from, instance, kept, self.copies.table(), &mut self.world);
    }
}
