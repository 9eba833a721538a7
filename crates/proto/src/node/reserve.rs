//! The name of a result: asked for before the reduce begins, so that nobody puts it meanwhile, and kept until it ends.

use alloc::vec::Vec;

use super::{Action, Node};
use crate::{
    ask::Answer,
    error::Error,
    id::{Instance, NodeId, ObjectId, ReduceId, RequestId},
    message::Message,
    reduce::Step,
};

/// A name that is kept for a reduce.
#[derive(Debug)]
pub(super) struct Reservation {
    /// Stands for the reduce at the owner of the name; no bytes ever have it.
    instance: Instance,
    /// Until the owner has confirmed: whom to answer, and what the reduce then begins with.
    begins: Option<(RequestId, Vec<Step>)>,
}

impl Node {
    /// Asks for the name; the reduce begins when it is granted.
    pub(super) fn reserve(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        request: RequestId,
        steps: Vec<Step>,
        out: &mut Vec<Action>,
    ) {
        let instance = self.next_instance();
        self.reservations.insert(key, Reservation { instance, begins: Some((request, steps)) });
        let owner = self.members.owners(id).first;
        self.send(owner, Message::Reserve { id: id.clone(), instance }, out);
    }

    pub(super) fn reservation_of(&self, instance: Instance) -> Option<ReduceId> {
        let found = self.reservations.iter().find(|(_, kept)| kept.instance == instance);
        found.map(|(key, _)| *key)
    }

    /// The owner of the name has spoken.
    pub(super) fn reserved(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        taken_by: Option<NodeId>,
        out: &mut Vec<Action>,
    ) {
        let Some(kept) = self.reservations.get_mut(&key) else { return };
        let begins = kept.begins.take();
        match (begins, taken_by) {
            (Some((request, steps)), None) => {
                self.take_steps(key, steps, out);
                self.reply(request, Ok(Answer::Reducing { id: id.clone() }), out);
            }
            (Some((request, _)), Some(holder)) => {
                self.reservations.remove(&key);
                self.forget_reduce(key, out);
                self.reply(request, Err(Error::NameTaken { id: id.clone(), holder }), out);
            }
            // Told again after a change of members: two nodes were granted one name while they did not know of each
            // other. The name is the other's, so nothing is said of it.
            (None, Some(holder)) => {
                self.reservations.remove(&key);
                self.fail_reduce_of(id, &Error::NameTaken { id: id.clone(), holder }, out);
            }
            (None, None) => {}
        }
    }

    /// The client does not wait for the name any more.
    pub(super) fn give_up_reservation(&mut self, key: ReduceId, out: &mut Vec<Action>) {
        let Some(kept) = self.reservations.remove(&key) else { return };
        let Some(reduce) = self.forget_reduce(key, out) else { return };
        let (id, instance) = (reduce.result().clone(), kept.instance);
        self.send_owners(&id, &Message::Withdraw { id: id.clone(), instance }, out);
    }

    /// Names that are kept or asked for, to be told to new owners.
    pub(super) fn reserved_names(&self) -> Vec<(ObjectId, Instance)> {
        let name = |(key, kept): (&ReduceId, &Reservation)| {
            Some((self.reduces.get(key)?.result().clone(), kept.instance))
        };
        self.reservations.iter().filter_map(name).collect()
    }
}
