//! Originals of other nodes that this one was asked to keep: those on their way, and those that are here.
//!
//! Does not know how they come here, nor who wants their room.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::{replicas::Replicas, world::World},
    message::Message,
    table::Table,
};

/// Originals of other nodes that this one was asked to keep.
#[derive(Debug, Default)]
pub(crate) struct Adoptions {
    /// On their way to here.
    coming: BTreeMap<ObjectId, Adoption>,
    /// Here, for nodes that have them too.
    held: Held,
}

/// An original on its way to here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adoption {
    pub(crate) asker: NodeId,
    pub(crate) instance: Instance,
    /// Whether the asker waits until there is room here.
    pub(crate) may_wait: bool,
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
    pub(crate) fn coming(&self) -> usize {
        self.coming.len()
    }

    /// Whether an object is on its way to here for another node.
    pub(crate) fn wants(&self, id: &ObjectId) -> bool {
        self.coming.contains_key(id)
    }

    pub(crate) fn expect(&mut self, id: &ObjectId, adoption: Adoption, world: &mut World) {
        if let Some(before) = self.coming.insert(id.clone(), adoption)
            && before.asker != adoption.asker
        {
            before.answer(id, false, world);
        }
    }

    /// An original will not come to here.
    pub(crate) fn refuse(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(adoption) = self.coming.remove(id) {
            adoption.answer(id, false, world);
        }
    }

    /// Nothing is adopted any more; the objects that were on their way.
    pub(crate) fn refuse_all(&mut self, world: &mut World) -> Vec<ObjectId> {
        let all: Vec<ObjectId> = self.coming.keys().cloned().collect();
        all.iter().for_each(|id| self.refuse(id, world));
        all
    }

    /// The asker is gone; the objects that were on their way for it.
    pub(crate) fn forget_node(&mut self, node: NodeId) -> Vec<ObjectId> {
        let owed = self.coming.iter().filter(|(_, adoption)| adoption.asker == node);
        let owed: Vec<ObjectId> = owed.map(|(id, _)| id.clone()).collect();
        self.coming.retain(|_, adoption| adoption.asker != node);
        self.held.without(node);
        owed
    }

    /// The asker has no such original any more; the object, if it was on its way.
    pub(crate) fn cancel(&mut self, asker: NodeId, instance: Instance) -> Option<ObjectId> {
        let is_it = |adoption: &Adoption| (adoption.asker, adoption.instance) == (asker, instance);
        let id = self.coming.iter().find(|(_, adoption)| is_it(adoption))?.0.clone();
        self.coming.remove(&id);
        Some(id)
    }

    /// There is no room for an object now; whether its adoption was refused for that, so that another node may be asked.
    pub(crate) fn refuse_without_room(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.coming.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// An original of this many bytes is held for the asker: for good if that leaves.
    pub(crate) fn hold(&mut self, adoption: Adoption, was_original: bool, bytes: u64) {
        let Adoption { asker, instance, may_wait: leaves } = adoption;
        if leaves {
            self.held.remove(instance);
        } else if !was_original || self.held.asker(instance).is_some() {
            self.held.insert(instance, asker, bytes);
        }
    }

    /// An original has come, or a copy of it: it is expected no more.
    pub(crate) fn take(&mut self, id: &ObjectId) -> Option<Adoption> {
        self.coming.remove(id)
    }

    /// What an original takes of the capacity from now on.
    pub(crate) fn weigh(&mut self, instance: Instance, bytes: u64) {
        self.held.weigh(instance, bytes);
    }

    /// Bytes of the originals that were not given back, and of those that were.
    pub(crate) const fn bytes(&self) -> (u64, u64) {
        (self.held.kept_bytes, self.held.given_back_bytes)
    }

    /// Another keeper is sought for an original.
    pub(crate) fn give_back(&mut self, instance: Instance) {
        self.held.give_back(instance);
    }

    /// The copy is no more.
    pub(crate) fn forget(&mut self, instance: Instance) {
        self.held.remove(instance);
    }

    /// The asker does not need the copy here any more; whether it was held for that node.
    pub(crate) fn release(&mut self, asker: NodeId, instance: Instance) -> bool {
        let is_its = self.held.asker(instance) == Some(asker);
        if is_its {
            self.held.remove(instance);
        }
        is_its
    }

    /// Originals of others that can go, enough of them for `missing` bytes or all; and the bytes that they take.
    pub(crate) fn returnable(
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
    pub(crate) fn holds_nothing(&self) -> bool {
        self.held.is_empty()
    }
}

impl Adoption {
    /// Tells the asker whether this node keeps the original.
    pub(crate) fn answer(self, id: &ObjectId, kept: bool, world: &mut World) {
        let (id, instance) = (id.clone(), self.instance);
        world.send(self.asker, Message::Adopted { id, instance, kept });
    }
}
