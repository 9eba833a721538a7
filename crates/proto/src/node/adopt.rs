//! Adopt: this node holds an original for another one, which leaves, or wants it to be at several nodes.
//!
//! What is kept for a node that lives can be given back, when clients here need its room: the other node finds another
//! keeper first.

use alloc::{collections::BTreeMap, format, vec::Vec};

use super::{Node, SpaceFor, replicas::Replicas, requests::Asked, world::World};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    limits::INLINE_BYTES_MAX,
    message::Message,
    meta::Meta,
    table::{State, Table},
};

/// Originals of other nodes that this one was asked to keep.
#[derive(Debug, Default)]
pub(super) struct Adoptions {
    /// On their way to here.
    coming: BTreeMap<ObjectId, Adoption>,
    /// Here, for nodes that have them too.
    held: BTreeMap<Instance, Held>,
}

/// An original on its way to here.
#[derive(Clone, Copy, Debug)]
struct Adoption {
    asker: NodeId,
    instance: Instance,
    /// Whether the asker waits until there is room here.
    may_wait: bool,
}

/// An original that is held for a node that has it too.
#[derive(Clone, Copy, Debug)]
struct Held {
    asker: NodeId,
    /// Whether that was asked to find another keeper.
    is_given_back: bool,
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
        owed
    }

    /// There is no room for an object now; whether its adoption was refused for that, so that another node may be asked.
    fn refuse_without_room(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.coming.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// An original is held for the asker: for good if that leaves.
    fn hold(&mut self, adoption: Adoption, was_original: bool) {
        let Adoption { asker, instance, may_wait: leaves } = adoption;
        if leaves {
            self.held.remove(&instance);
        } else if !was_original || self.held.contains_key(&instance) {
            self.held.insert(instance, Held { asker, is_given_back: false });
        }
    }

    /// The copy is no more.
    pub(super) fn forget(&mut self, instance: Instance) {
        self.held.remove(&instance);
    }

    /// The asker does not need the copy here any more; whether it was held for that node.
    fn release(&mut self, asker: NodeId, instance: Instance) -> bool {
        let is_its = self.held.get(&instance).is_some_and(|held| held.asker == asker);
        is_its && self.held.remove(&instance).is_some()
    }

    /// Asks to give back so much of what is held for others as `missing` bytes take, if it can be enough.
    fn give_back(
        &mut self,
        mut missing: u64,
        table: &Table,
        replicas: &Replicas,
        world: &mut World,
    ) {
        let mut chosen = Vec::new();
        for (instance, held) in &self.held {
            let copy = table.get(*instance).filter(|copy| copy.is_complete() && copy.pins == 0);
            let can_go = world.members().contains(held.asker) && !replicas.contains(*instance);
            let Some(copy) = copy.filter(|_| can_go) else { continue };
            if missing == 0 && !held.is_given_back {
                continue;
            }
            missing = missing.saturating_sub(copy.cost());
            if !held.is_given_back {
                chosen.push((*instance, held.asker, copy.id.clone()));
            }
        }
        for (instance, asker, id) in chosen.into_iter().filter(|_| missing == 0) {
            if let Some(held) = self.held.get_mut(&instance) {
                held.is_given_back = true;
            }
            world.send(asker, Message::Adopted { id, instance, kept: false });
        }
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
        may_wait: bool,
    ) {
        let adoption = Adoption { asker, instance, may_wait };
        let is_small = meta.size <= INLINE_BYTES_MAX;
        let is_wrong = !meta.is_consistent() || is_small != inline.is_some();
        let is_void = self.table.get(instance).is_some_and(|copy| copy.doomed);
        // What is here of another instance is not it, and keeps it from being received.
        let is_other = self.table.current(&id).is_some_and(|current| current != instance);
        if self.leaving.has_begun() || is_wrong || is_void || is_other {
            return answer(&id, adoption, false, &mut self.world);
        }
        if let Some(copy) = self.table.get_mut(instance) {
            if copy.is_complete() {
                return self.adopted_here(&id, adoption);
            }
        } else if inline.is_some() {
            let Some(evicted) = self.table.make_room(meta.size) else {
                return answer(&id, adoption, false, &mut self.world);
            };
            self.evicted(evicted);
            self.table.insert(instance, id.clone(), meta, inline, State::Complete, true);
            self.adoptions.hold(adoption, false);
            self.reveal(instance);
            self.announce(instance);
            self.completed(instance);
            return answer(&id, adoption, true, &mut self.world);
        }
        self.adoptions.expect(&id, adoption, &mut self.world);
        self.pull_if_wanted(&id);
        self.adoption_lacks_room(&id);
    }

    /// A copy that is complete is an original from now on.
    fn adopted_here(&mut self, id: &ObjectId, adoption: Adoption) {
        if let Some(copy) = self.table.get_mut(adoption.instance) {
            let was_original = core::mem::replace(&mut copy.origin, true);
            self.adoptions.hold(adoption, was_original);
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

    /// Clients of this node wait for room: other nodes are asked to take back what it takes.
    pub(super) fn give_back(&mut self, wants: &SpaceFor, size: u64) {
        let is_for_another =
            |id: &ObjectId| self.adoptions.wants(id) && !self.waiting.contains_key(id);
        if !matches!(wants, SpaceFor::Pull(id) if is_for_another(id)) {
            let missing = self.table.missing_for(size);
            self.adoptions.give_back(missing, &self.table, &self.replicas, &mut self.world);
        }
    }

    /// Enough other nodes keep an original: the copy here may go.
    pub(super) fn unkeep(&mut self, asker: NodeId, instance: Instance) {
        // A client of this node may want copies of it, too.
        if !self.adoptions.release(asker, instance) || self.replicas.contains(instance) {
            return;
        }
        if let Some(copy) = self.table.get_mut(instance) {
            copy.origin = false;
            self.announce(instance);
            self.grant_space();
        }
    }

    /// There is no room for an object now. If its adoption is to be refused for that, another node may have some.
    pub(super) fn adoption_lacks_room(&mut self, id: &ObjectId) {
        if self.pull_has_waited(id) && self.adoptions.refuse_without_room(id, &mut self.world) {
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
        let current = self.table.current(&id);
        let copy = current.and_then(|instance| Some((instance, self.table.get(instance)?)));
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
        self.leaving.adopted(from, instance, kept, &self.table, &mut self.world);
    }
}
