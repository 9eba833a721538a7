//! Replicas and handed-over copies of other nodes: those in transfer to this node, and those that
//! are here.
//!
//! Does not know how they are transferred, nor who needs their capacity.

use alloc::{collections::btree_map::Entry, vec::Vec};

use super::state::{Hosted, HostedFor, IncomingReplica, IsReturned, Replicas};
use crate::{
    id::{Instance, NodeId, ObjectId},
    machines::world::World,
    message::Message,
    table::Table,
    timed::key_after,
};

impl Hosted {
    /// The key of a replica.
    fn key(&self, instance: Instance) -> Option<(IsReturned, Instance)> {
        let keys = [(false, instance), (true, instance)];
        keys.into_iter().find(|key| self.stored.contains_key(key))
    }

    fn requester(&self, instance: Instance) -> Option<NodeId> {
        self.stored.get(&self.key(instance)?).map(|replica| replica.requester)
    }

    fn sum(&mut self, is_returned: IsReturned) -> &mut u64 {
        if is_returned { &mut self.returned_bytes } else { &mut self.stored_bytes }
    }

    fn insert(&mut self, instance: Instance, is_returned: IsReturned, replica: HostedFor) {
        self.remove(instance);
        *self.sum(is_returned) += replica.bytes;
        self.stored.insert((is_returned, instance), replica);
    }

    pub(super) fn remove(&mut self, instance: Instance) -> Option<(IsReturned, HostedFor)> {
        let (is_returned, _) = self.key(instance)?;
        let replica = self.stored.remove(&(is_returned, instance))?;
        *self.sum(is_returned) -= replica.bytes;
        Some((is_returned, replica))
    }

    /// Forgets a requester that is gone, and takes back the replicas given back to it, which seeks
    /// no other nodes any more.
    pub(super) fn forget_node(&mut self, node: NodeId) {
        if let Some((_, losses)) = self.requesters.get_mut(&node) {
            *losses += 1;
        }
        let first = Instance { node: NodeId(0), serial: 0 };
        let returned = self.stored.range((true, first)..);
        let its = returned.filter(|(_, replica)| replica.requester == node);
        for (instance, replica) in its.map(|((_, it), replica)| (*it, *replica)).collect::<Vec<_>>()
        {
            self.insert(instance, false, replica);
        }
    }

    /// A copy in transfer, unless its requester was lost.
    fn incoming(&self, id: &ObjectId) -> Option<&IncomingReplica> {
        let (replica, losses) = self.incoming.get(id)?;
        let (_, now) = self.requesters.get(&replica.requester)?;
        (losses == now).then_some(replica)
    }
}

/// Copies that other nodes requested this one to keep.
impl Replicas {
    /// The number of copies in transfer to this node.
    pub(crate) fn incoming(&self) -> usize {
        self.hosted.incoming.len()
    }

    /// Whether an object is in transfer to this node for another node.
    pub(crate) fn expects(&self, id: &ObjectId) -> bool {
        self.hosted.incoming(id).is_some()
    }

    /// The object after another one, or the first, that is in transfer for another node, even if
    /// that is lost.
    pub(crate) fn next_incoming(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        key_after(&self.hosted.incoming, after)
    }

    pub(crate) fn expect(&mut self, id: &ObjectId, replica: IncomingReplica, world: &mut World) {
        let before = self.take_incoming(id).filter(|it| it.requester != replica.requester);
        if let Some(before) = before {
            before.answer(id, false, world);
        }
        let (count, losses) = self.hosted.requesters.entry(replica.requester).or_default();
        *count += 1;
        self.hosted.incoming.insert(id.clone(), (replica, *losses));
    }

    /// Ends the transfer of an object if its requester was lost. Returns whether it was.
    pub(crate) fn end_if_lost(&mut self, id: &ObjectId) -> bool {
        let is_lost = self.hosted.incoming.contains_key(id) && !self.expects(id);
        if is_lost {
            self.take_incoming(id);
        }
        is_lost
    }

    /// Refuses a pinned copy that will not arrive.
    pub(crate) fn refuse(&mut self, id: &ObjectId, world: &mut World) {
        if let Some(replica) = self.take_incoming(id) {
            replica.answer(id, false, world);
        }
    }

    /// Refuses all copies in transfer. Returns their objects.
    pub(crate) fn refuse_all(&mut self, world: &mut World) -> Vec<ObjectId> {
        let all: Vec<ObjectId> = self.hosted.incoming.keys().cloned().collect();
        all.iter().for_each(|id| self.refuse(id, world));
        all
    }

    /// Refuses a replica for lack of capacity, so that the requester can choose another node.
    /// Returns false if the requester waits instead.
    pub(crate) fn refuse_without_capacity(&mut self, id: &ObjectId, world: &mut World) -> bool {
        let is_refused = self.hosted.incoming(id).is_some_and(|replica| !replica.may_wait);
        if is_refused {
            self.refuse(id, world);
        }
        is_refused
    }

    /// Ends the transfer of a copy that has arrived.
    pub(crate) fn take_incoming(&mut self, id: &ObjectId) -> Option<IncomingReplica> {
        let replica = self.hosted.incoming(id).copied();
        let (IncomingReplica { requester, .. }, _) = self.hosted.incoming.remove(id)?;
        if let Entry::Occupied(mut its) = self.hosted.requesters.entry(requester) {
            its.get_mut().0 -= 1;
            if its.get().0 == 0 {
                its.remove();
            }
        }
        replica
    }

    /// Records a replica of `bytes` bytes for the requester. If the requester leaves, the copy
    /// stays here for good and is not recorded.
    pub(crate) fn host(&mut self, replica: IncomingReplica, was_pinned: bool, bytes: u64) {
        let IncomingReplica { requester, instance, may_wait: leaves } = replica;
        let was_hosted = self.hosted.remove(instance).is_some();
        if !leaves && (!was_pinned || was_hosted) {
            self.hosted.insert(instance, false, HostedFor { requester, bytes });
        }
    }

    /// Updates the capacity that a replica takes.
    pub(crate) fn resize(&mut self, instance: Instance, bytes: u64) {
        if let Some((is_returned, HostedFor { requester, .. })) = self.hosted.remove(instance) {
            self.hosted.insert(instance, is_returned, HostedFor { requester, bytes });
        }
    }

    /// Bytes of the replicas that were not given back, and of those that were.
    pub(crate) const fn hosted_bytes(&self) -> (u64, u64) {
        (self.hosted.stored_bytes, self.hosted.returned_bytes)
    }

    /// Releases a replica that the requester does not need any more. Returns whether no node and no
    /// client of this one needs the copy to be pinned.
    pub(crate) fn release(&mut self, requester: NodeId, instance: Instance) -> bool {
        let is_its = self.hosted.requester(instance) == Some(requester);
        if is_its {
            self.hosted.remove(instance);
        }
        // A client of this node may want replicas of it, too.
        is_its && !self.contains(instance)
    }

    /// Cancels the transfer of a copy that the requester does not have any more. Returns whether it
    /// was in transfer.
    pub(crate) fn cancel(&mut self, requester: NodeId, id: &ObjectId, instance: Instance) -> bool {
        let replica = self.hosted.incoming(id);
        let is_it = replica.is_some_and(|it| (it.requester, it.instance) == (requester, instance));
        if is_it {
            self.take_incoming(id);
        }
        is_it
    }

    /// The node that a replica is kept for.
    pub(crate) fn requester(&self, instance: Instance) -> Option<NodeId> {
        self.hosted.requester(instance)
    }

    /// Replicas that can be given back, enough for `missing` bytes or all of them, and the bytes
    /// that they take.
    pub(crate) fn returnable(
        &self,
        missing: u64,
        table: &Table,
        world: &World,
    ) -> (Vec<Instance>, u64) {
        let (mut chosen, mut covered) = (Vec::new(), 0);
        for ((is_returned, instance), stored) in &self.hosted.stored {
            if covered >= missing || *is_returned {
                break;
            }
            let can_go =
                table.get(*instance).is_some_and(|copy| copy.is_readable() && copy.readers == 0)
                    && world.members().contains(stored.requester)
                    && !self.contains(*instance);
            if can_go {
                covered += stored.bytes;
                chosen.push(*instance);
            }
        }
        (chosen, covered)
    }

    /// Gives a replica back: the requester seeks another node.
    pub(crate) fn return_replica(&mut self, id: ObjectId, instance: Instance, world: &mut World) {
        if let Some((_, replica)) = self.hosted.remove(instance) {
            self.hosted.insert(instance, true, replica);
            let reply = Message::ReplicaReply { id, instance, accepted: false };
            world.send(replica.requester, reply);
        }
    }

    #[cfg(test)]
    pub(crate) fn hosts_none(&self) -> bool {
        self.hosted.stored.is_empty()
    }
}

impl IncomingReplica {
    /// Reports to the requester whether this node keeps the copy.
    pub(crate) fn answer(self, id: &ObjectId, accepted: bool, world: &mut World) {
        let (id, instance) = (id.clone(), self.instance);
        world.send(self.requester, Message::ReplicaReply { id, instance, accepted });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: members that fail leave nothing behind, however long a transfer takes.
    #[test]
    fn losses_are_counted_of_the_requesters_of_copies_in_transfer() {
        let (mut replicas, mut world) = (Replicas::default(), World::of(5));
        let id = |serial| ObjectId::Minted { node: NodeId(2), serial };
        let replica = |requester, serial| {
            let instance = Instance { node: NodeId(2), serial };
            IncomingReplica { requester: NodeId(requester), instance, may_wait: false }
        };
        replicas.expect(&id(1), replica(2, 1), &mut world);
        replicas.expect(&id(2), replica(3, 2), &mut world);
        [3, 4, 5].into_iter().for_each(|node| replicas.hosted.forget_node(NodeId(node)));
        assert!(replicas.expects(&id(1)) && !replicas.expects(&id(2)));
        // The walk has not come there yet, and the requester is back.
        replicas.expect(&id(3), replica(3, 3), &mut world);
        assert!(replicas.end_if_lost(&id(2)) && !replicas.end_if_lost(&id(3)));
        assert_eq!(replicas.hosted.requesters.len(), 2);
        assert!(replicas.take_incoming(&id(3)).is_some());
        replicas.expect(&id(2), replica(3, 2), &mut world);
        assert!(replicas.expects(&id(2)));
        replicas.refuse_all(&mut world);
        assert!(replicas.hosted.requesters.is_empty());
    }
}
