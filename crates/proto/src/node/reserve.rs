//! The name of a result: asked for before the reduce begins, so that no client puts it meanwhile, and kept until it ends.

use alloc::{collections::BTreeMap, vec::Vec};

use super::{Node, change::Change, coordinator::Coordinator, world::World};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, ReduceId, RequestId},
    message::Message,
    reduce::Step,
};

/// The names that are kept for results, by the reduce.
#[derive(Debug, Default)]
pub(super) struct ResultNames {
    all: BTreeMap<ReduceId, Reservation>,
    by_instance: BTreeMap<Instance, ReduceId>,
}

/// A name that is kept for a reduce.
#[derive(Debug)]
struct Reservation {
    /// Stands for the reduce at the owner of the name; no bytes ever have it.
    instance: Instance,
    /// Until the owner has confirmed: whom to answer, and what the reduce then begins with.
    begins: Option<(RequestId, Vec<Step>)>,
}

impl ResultNames {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The reduce for which this instance reserves a name.
    pub(super) fn reduce_of(&self, instance: Instance) -> Option<ReduceId> {
        self.by_instance.get(&instance).copied()
    }

    fn begin(&mut self, key: ReduceId, reservation: Reservation) {
        self.by_instance.insert(reservation.instance, key);
        self.all.insert(key, reservation);
    }

    fn remove(&mut self, key: ReduceId) -> Option<Reservation> {
        let reservation = self.all.remove(&key)?;
        self.by_instance.remove(&reservation.instance);
        Some(reservation)
    }

    /// The name is kept no more: its reduce is complete.
    pub(super) fn end(&mut self, key: ReduceId) {
        self.remove(key);
    }

    /// Tells new owners of the names that are kept, and asks them for those that are not confirmed.
    pub(super) fn reserve_again(
        &self,
        coordinator: &Coordinator,
        change: &Change,
        world: &mut World,
    ) {
        for (key, Reservation { instance, begins }) in &self.all {
            let Some(reduce) = coordinator.get(*key) else { continue };
            let (id, instance, is_confirmed) = (reduce.result(), *instance, begins.is_none());
            if let Some(first) = change.new_owner(id, world) {
                world.send(first, Message::Reserve { id: id.clone(), instance });
            }
            let second = world.members().owners(id).second.filter(|_| is_confirmed);
            if let Some(second) = second.filter(|it| change.new_owners(id, world).contains(it)) {
                world.send(second, Message::Reserve { id: id.clone(), instance });
            }
        }
    }
}

impl Node {
    /// Asks for the name; the reduce begins when it is granted.
    pub(super) fn reserve(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        request: RequestId,
        steps: Vec<Step>,
    ) {
        let instance = self.world.next_instance();
        self.names.begin(key, Reservation { instance, begins: Some((request, steps)) });
        let owner = self.world.members().owners(id).first;
        self.world.send(owner, Message::Reserve { id: id.clone(), instance });
    }

    /// The owner of the name has spoken.
    pub(super) fn reserved(
        &mut self,
        from: NodeId,
        key: ReduceId,
        id: &ObjectId,
        taken_by: Option<NodeId>,
    ) {
        let owners = self.world.members().owners(id);
        // Only the first knows of all who want the name.
        if owners.first != from {
            return;
        }
        let Some(kept) = self.names.all.get_mut(&key) else { return };
        let instance = kept.instance;
        if let Some(holder) = taken_by {
            if kept.begins.is_none() {
                // Told again after a change of members: two nodes were granted one name while they did not know of
                // each other. The name is the other's, so nothing is said of it.
                self.names.remove(key);
                self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
            }
            return self.fail_reduce_of(id, &Error::NameTaken { id: id.clone(), holder });
        }
        if let Some((request, steps)) = kept.begins.take() {
            // Should the first die, the second keeps the name, and knows whose death those who wait are to be told of.
            if let Some(second) = owners.second {
                self.world.send(second, Message::Reserve { id: id.clone(), instance });
            }
            self.take_steps(key, steps);
            self.requests.reply(request, Ok(Answer::Reducing { id: id.clone() }), &mut self.world);
        }
    }

    /// The client does not wait for the name any more.
    pub(super) fn give_up_reservation(&mut self, key: ReduceId) {
        let Some(id) = self.coordinator.get(key).map(|reduce| reduce.result().clone()) else {
            return;
        };
        let detail = "its reduce was given up before it had its name".into();
        self.fail_reduce_of(&id.clone(), &Error::ObjectLost { id, detail });
    }

    /// The owner says that the name was deleted before there was a result.
    pub(super) fn reservation_dropped(
        &mut self,
        from: NodeId,
        key: ReduceId,
        id: &ObjectId,
        error: &Error,
    ) {
        // The second may hear late of the deletion of what had the name before.
        if self.world.members().owners(id).first != from {
            return;
        }
        let Some(kept) = self.names.remove(key) else { return };
        // The second may have heard of the deletion before it heard of the reduce.
        let instance = kept.instance;
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.fail_reduce_of(id, error);
        if let Some((request, _)) = kept.begins {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// A reduce has failed: the reservation of its name, if it was granted. One that was requested only is withdrawn.
    pub(super) fn end_reservation(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        error: &Error,
    ) -> Option<Instance> {
        let Reservation { instance, begins } = self.names.remove(key)?;
        let Some((request, _)) = begins else { return Some(instance) };
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.requests.reply(request, Err(error.clone()), &mut self.world);
        None
    }
}
