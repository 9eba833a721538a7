//! The name of a result: asked for before the reduce begins, so that no client puts it meanwhile, and kept until it ends.

use alloc::vec::Vec;

use super::Node;
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, ReduceId, RequestId},
    machines::reservations::Reservation,
    message::Message,
    reduce::Step,
};

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
        self.reservations.begin(key, Reservation { instance, begins: Some((request, steps)) });
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
        let Some(kept) = self.reservations.get_mut(key) else { return };
        let instance = kept.instance;
        if let Some(holder) = taken_by {
            if kept.begins.is_none() {
                // Told again after a change of members: two nodes were granted one name while they did not know of
                // each other. The name is the other's, so nothing is said of it.
                self.reservations.remove(key);
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
        let detail = "its reduce was canceled before its name was reserved".into();
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
        let Some(kept) = self.reservations.remove(key) else { return };
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
        let Reservation { instance, begins } = self.reservations.remove(key)?;
        let Some((request, _)) = begins else { return Some(instance) };
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.requests.reply(request, Err(error.clone()), &mut self.world);
        None
    }
}
