//! Replicas and handed-over copies of other nodes: those in transfer to this node, and those that
//! are here.
//!
//! Does not know how they are transferred, nor who needs their capacity.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::{replicas::Replicas, world::World},
    message::Message,
    table::Table,
    timed::key_after,
};

/// Pinned copies that other nodes requested this one to keep.
#[derive(Debug, Default)]
pub(crate) struct HostedReplicas {
    /// In transfer to this node, each with the number of losses of its requester before. After
    /// another one it is void, until the walk for that change removes it.
    incoming: BTreeMap<ObjectId, (IncomingReplica, u32)>,
    /// How often each requester was lost since anything was in transfer.
    losses: BTreeMap<NodeId, u32>,
    /// Here, as replicas for nodes that have them too.
    hosted: Hosted,
}

/// A pinned copy in transfer to this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IncomingReplica {
    pub(crate) requester: NodeId,
    pub(crate) instance: Instance,
    /// Whether the requester waits until there is capacity here. It does so only when it leaves.
    pub(crate) may_wait: bool,
}

/// Replicas that are kept for nodes that have the objects too.
#[derive(Debug, Default)]
struct Hosted {
    /// Replicas that were not given back.
    stored: BTreeMap<Instance, HostedFor>,
    stored_bytes: u64,
    /// Replicas that this node gives back: another node is being sought.
    returned: BTreeMap<Instance, HostedFor>,
    returned_bytes: u64,
}

/// The node that a replica is kept for, and the capacity that the replica takes.
#[derive(Clone, Copy, Debug)]
struct HostedFor {
    requester: NodeId,
    bytes: u64,
}

impl Hosted {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.stored.is_empty() && self.returned.is_empty()
    }

    fn requester(&self, instance: Instance) -> Option<NodeId> {
        let stored = self.stored.get(&instance).or_else(|| self.returned.get(&instance));
        stored.map(|stored| stored.requester)
    }

    fn insert(&mut self, instance: Instance, requester: NodeId, bytes: u64) {
        self.remove(instance);
        self.stored_bytes += bytes;
        self.stored.insert(instance, HostedFor { requester, bytes });
    }

    fn remove(&mut self, instance: Instance) {
        if let Some(stored) = self.stored.remove(&instance) {
            self.stored_bytes -= stored.bytes;
        } else if let Some(given) = self.returned.remove(&instance) {
            self.returned_bytes -= given.bytes;
        }
    }

    /// Updates the capacity that a replica takes.
    fn resize(&mut self, instance: Instance, bytes: u64) {
        let hosted = [
            (&mut self.stored, &mut self.stored_bytes),
            (&mut self.returned, &mut self.returned_bytes),
        ];
        for (replicas, sum) in hosted {
            if let Some(replica) = replicas.get_mut(&instance) {
                *sum = *sum - replica.bytes + bytes;
                replica.bytes = bytes;
            }
        }
    }

    fn return_replica(&mut self, instance: Instance) {
        if let Some(stored) = self.stored.remove(&instance) {
            self.stored_bytes -= stored.bytes;
            self.returned_bytes += stored.bytes;
            self.returned.insert(instance, stored);
        }
    }

    /// Takes back the replicas given back to a lost node, which seeks no other nodes any more.
    fn without(&mut self, node: NodeId) {
        let hit = self.returned.iter().filter(|(_, given)| given.requester == node);
        for (instance, given) in hit.map(|(i, given)| (*i, *given)).collect::<Vec<_>>() {
            self.insert(instance, given.requester, given.bytes);
        }
    }
}

impl HostedReplicas {
    /// The number of copies in transfer.
    pub(crate) fn incoming(&self) -> usize {
        self.incoming.len()
    }

    fn losses(&self, requester: NodeId) -> u32 {
        self.losses.get(&requester).copied().unwrap_or_default()
    }

    fn get(&self, id: &ObjectId) -> Option<&IncomingReplica> {
        let (replica, losses) = self.incoming.get(id)?;
        (*losses == self.losses(replica.requester)).then_some(replica)
    }

    /// Whether an object is in transfer to this node for another node.
    pub(crate) fn wants(&self, id: &ObjectId) -> bool {
        self.get(id).is_some()
    }

    /// The object after another one, or the first, that is in transfer for another node, even if
    /// that is lost.
    pub(crate) fn next_after(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        key_after(&self.incoming, after)
    }

    pub(crate) fn expect(&mut self, id: &ObjectId, replica: IncomingReplica, world: &mut World) {
        let before = self.take(id).filter(|before| before.requester != replica.requester);
        if let Some(before) = before {
            before.answer(id, false, world);
        }
        let losses = self.losses(replica.requester);
        self.incoming.insert(id.clone(), (replica, losses));
    }

    /// Refuses a pinned copy that will not arrive.
    pub(crate) fn refuse(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(replica) = self.take(id) {
            replica.answer(id, false, world);
        }
    }

    /// Refuses all copies in transfer. Returns their objects.
    pub(crate) fn refuse_all(&mut self, world: &mut World) -> Vec<ObjectId> {
        let all: Vec<ObjectId> = self.incoming.keys().cloned().collect();
        all.iter().for_each(|id| self.refuse(id, world));
        all
    }

    /// Forgets a requester that is gone.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        if !self.incoming.is_empty() {
            *self.losses.entry(node).or_default() += 1;
        }
        self.hosted.without(node);
    }

    /// Ends the transfer of an object if its requester was lost. Returns whether it was.
    pub(crate) fn end_if_lost(&mut self, id: &ObjectId) -> bool {
        let is_lost = self.incoming.contains_key(id) && !self.wants(id);
        if is_lost {
            self.take(id);
        }
        is_lost
    }

    /// Cancels the transfer of a copy that the requester does not have any more. Returns whether it
    /// was in transfer.
    pub(crate) fn cancel(&mut self, requester: NodeId, id: &ObjectId, instance: Instance) -> bool {
        let replica = self.get(id);
        let is_it = replica.is_some_and(|it| (it.requester, it.instance) == (requester, instance));
        if is_it {
            self.take(id);
        }
        is_it
    }

    /// Refuses a replica for lack of capacity, so that the requester can choose another node.
    /// Returns false if the requester waits instead.
    pub(crate) fn refuse_without_capacity(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.get(id).is_some_and(|replica| !replica.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// Records a replica of `bytes` bytes for the requester. If the requester leaves, the copy
    /// stays here for good and is not recorded.
    pub(crate) fn host(&mut self, replica: IncomingReplica, was_pinned: bool, bytes: u64) {
        let IncomingReplica { requester, instance, may_wait: leaves } = replica;
        if leaves {
            self.hosted.remove(instance);
        } else if !was_pinned || self.hosted.requester(instance).is_some() {
            self.hosted.insert(instance, requester, bytes);
        }
    }

    /// Ends an adoption whose copy has arrived.
    pub(crate) fn take(&mut self, id: &ObjectId) -> Option<IncomingReplica> {
        let replica = self.get(id).copied();
        self.incoming.remove(id);
        if self.incoming.is_empty() {
            self.losses.clear();
        }
        replica
    }

    /// Updates the capacity that a replica takes.
    pub(crate) fn resize(&mut self, instance: Instance, bytes: u64) {
        self.hosted.resize(instance, bytes);
    }

    /// Bytes of the replicas that were not given back, and of those that were.
    pub(crate) const fn bytes(&self) -> (u64, u64) {
        (self.hosted.stored_bytes, self.hosted.returned_bytes)
    }

    /// Marks a replica as given back: another node is being sought.
    pub(crate) fn return_replica(&mut self, instance: Instance) {
        self.hosted.return_replica(instance);
    }

    /// The node that a replica is kept for.
    pub(crate) fn requester(&self, instance: Instance) -> Option<NodeId> {
        self.hosted.requester(instance)
    }

    /// Forgets a copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        self.hosted.remove(instance);
    }

    /// Releases a replica that the requester does not need any more. Returns whether it was kept
    /// for that node.
    pub(crate) fn release(&mut self, requester: NodeId, instance: Instance) -> bool {
        let is_its = self.hosted.requester(instance) == Some(requester);
        if is_its {
            self.hosted.remove(instance);
        }
        is_its
    }

    /// Replicas that can be given back, enough for `missing` bytes or all of them, and the bytes
    /// that they take.
    pub(crate) fn returnable(
        &self,
        missing: u64,
        table: &Table,
        replicas: &Replicas,
        world: &World,
    ) -> (Vec<(Instance, NodeId, ObjectId)>, u64) {
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for (instance, stored) in &self.hosted.stored {
            if covered >= missing {
                break;
            }
            let copy = table.get(*instance).filter(|copy| copy.is_readable() && copy.readers == 0);
            let can_go =
                world.members().contains(stored.requester) && !replicas.contains(*instance);
            if let Some(copy) = copy.filter(|_| can_go) {
                covered += stored.bytes;
                chosen.push((*instance, stored.requester, copy.id.clone()));
            }
        }
        (chosen, covered)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.hosted.is_empty()
    }
}

impl IncomingReplica {
    /// Reports to the requester whether this node keeps the copy.
    pub(crate) fn answer(self, id: &ObjectId, accepted: bool, world: &mut World) {
        let (id, instance) = (id.clone(), self.instance);
        world.send(self.requester, Message::ReplicaReply { id, instance, accepted });
    }
}
