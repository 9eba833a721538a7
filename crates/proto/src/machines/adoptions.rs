//! Replicas and handed-over copies of other nodes: those in transfer to this node, and those that are here.
//!
//! Does not know how they are transferred, nor who needs their capacity.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::{replicas::Replicas, world::World},
    message::Message,
    table::Table,
};

/// Pinned copies that other nodes requested this one to keep.
#[derive(Debug, Default)]
pub(crate) struct Adoptions {
    /// In transfer to this node.
    coming: BTreeMap<ObjectId, Adoption>,
    /// Here, as replicas for nodes that have them too.
    held: Held,
}

/// A pinned copy in transfer to this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adoption {
    pub(crate) asker: NodeId,
    pub(crate) instance: Instance,
    /// Whether the requester waits until there is capacity here. It does so only when it leaves.
    pub(crate) may_wait: bool,
}

/// Replicas that are kept for nodes that have the objects too.
#[derive(Debug, Default)]
struct Held {
    /// Replicas that were not given back.
    kept: BTreeMap<Instance, HeldFor>,
    kept_bytes: u64,
    /// Replicas that this node gives back: another node is being sought.
    given_back: BTreeMap<Instance, HeldFor>,
    given_back_bytes: u64,
}

/// The node that a replica is kept for, and the capacity that the replica takes.
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

    /// Updates the capacity that a replica takes.
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

    /// Takes back the replicas given back to a lost node, which seeks no other nodes any more.
    fn without(&mut self, node: NodeId) {
        let hit = self.given_back.iter().filter(|(_, given)| given.asker == node);
        for (instance, given) in hit.map(|(i, given)| (*i, *given)).collect::<Vec<_>>() {
            self.insert(instance, given.asker, given.bytes);
        }
    }
}

impl Adoptions {
    /// The number of copies in transfer.
    pub(crate) fn coming(&self) -> usize {
        self.coming.len()
    }

    /// Whether an object is in transfer to this node for another node.
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

    /// Refuses a pinned copy that will not arrive.
    pub(crate) fn refuse(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(adoption) = self.coming.remove(id) {
            adoption.answer(id, false, world);
        }
    }

    /// Refuses all copies in transfer. Returns their objects.
    pub(crate) fn refuse_all(&mut self, world: &mut World) -> Vec<ObjectId> {
        let all: Vec<ObjectId> = self.coming.keys().cloned().collect();
        all.iter().for_each(|id| self.refuse(id, world));
        all
    }

    /// Forgets a requester that is gone. Returns the objects in transfer for it.
    pub(crate) fn forget_node(&mut self, node: NodeId) -> Vec<ObjectId> {
        let owed = self.coming.iter().filter(|(_, adoption)| adoption.asker == node);
        let owed: Vec<ObjectId> = owed.map(|(id, _)| id.clone()).collect();
        self.coming.retain(|_, adoption| adoption.asker != node);
        self.held.without(node);
        owed
    }

    /// Cancels the transfer of a copy that the requester does not have any more. Returns the object, if it was in
    /// transfer.
    pub(crate) fn cancel(&mut self, asker: NodeId, instance: Instance) -> Option<ObjectId> {
        let is_it = |adoption: &Adoption| (adoption.asker, adoption.instance) == (asker, instance);
        let id = self.coming.iter().find(|(_, adoption)| is_it(adoption))?.0.clone();
        self.coming.remove(&id);
        Some(id)
    }

    /// Refuses a replica for lack of capacity, so that the requester can choose another node. Returns false if the
    /// requester waits instead.
    pub(crate) fn refuse_without_room(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.coming.get(id).is_some_and(|adoption| !adoption.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// Records a replica of `bytes` bytes for the requester. If the requester leaves, the copy stays here for good and
    /// is not recorded.
    pub(crate) fn hold(&mut self, adoption: Adoption, was_original: bool, bytes: u64) {
        let Adoption { asker, instance, may_wait: leaves } = adoption;
        if leaves {
            self.held.remove(instance);
        } else if !was_original || self.held.asker(instance).is_some() {
            self.held.insert(instance, asker, bytes);
        }
    }

    /// Ends an adoption whose copy has arrived.
    pub(crate) fn take(&mut self, id: &ObjectId) -> Option<Adoption> {
        self.coming.remove(id)
    }

    /// Updates the capacity that a replica takes.
    pub(crate) fn weigh(&mut self, instance: Instance, bytes: u64) {
        self.held.weigh(instance, bytes);
    }

    /// Bytes of the replicas that were not given back, and of those that were.
    pub(crate) const fn bytes(&self) -> (u64, u64) {
        (self.held.kept_bytes, self.held.given_back_bytes)
    }

    /// Marks a replica as given back: another node is being sought.
    pub(crate) fn give_back(&mut self, instance: Instance) {
        self.held.give_back(instance);
    }

    /// Forgets a copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        self.held.remove(instance);
    }

    /// Releases a replica that the requester does not need any more. Returns whether it was kept for that node.
    pub(crate) fn release(&mut self, asker: NodeId, instance: Instance) -> bool {
        let is_its = self.held.asker(instance) == Some(asker);
        if is_its {
            self.held.remove(instance);
        }
        is_its
    }

    /// Replicas that can be given back, enough for `missing` bytes or all of them, and the bytes that they take.
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
    /// Reports to the requester whether this node keeps the copy.
    pub(crate) fn answer(self, id: &ObjectId, kept: bool, world: &mut World) {
        let (id, instance) = (id.clone(), self.instance);
        world.send(self.asker, Message::Adopted { id, instance, kept });
    }
}
