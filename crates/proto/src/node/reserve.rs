//! Names that are reserved at their owners before their objects exist, so that no other client can put them: for the
//! result of a reduce until it ends, or for a client until it has made the object.

use alloc::{format, vec::Vec};

use super::Node;
use crate::{
    error::Error,
    event::{Action, LimitSubject},
    id::{ClientId, Instance, Name, NodeId, ObjectId, ReduceId, RequestId},
    limits::{SLOTS_MAX, limit_name},
    machines::{
        client_reservations::reserve_at_backup,
        requests::{RequestContext, RequestKind},
        result_reservations::Reservation,
    },
    message::Message,
    reduce::Step,
    request::Reply,
};

impl Node {
    /// Reserves a name, or a new id, for a client.
    pub(super) fn reserve(
        &mut self,
        context: &RequestContext,
        name: Option<Name>,
    ) -> Option<Result<Reply, Error>> {
        let (client, request) = (context.client, context.request);
        let Some(name) = name else {
            let id = self.client_reservations.mint(client, request, &mut self.world);
            return Some(Ok(Reply::Reserved { id }));
        };
        let id = ObjectId::Named(name);
        if self.client_reservations.has(&id, client) {
            // It holds nothing: the first request does.
            self.world.act(Action::WorkEnded { request });
            return Some(Ok(Reply::Reserved { id }));
        }
        if !self.client_reservations.ask(client, request, &id, &mut self.world) {
            return Some(Err(Error::NameTaken { id, holder: self.world.me() }));
        }
        self.requests.remember(context, RequestKind::Name(id), &self.world);
        None
    }

    /// Generates slots for a client.
    pub(super) fn slots(
        &mut self,
        client: ClientId,
        request: RequestId,
        count: u32,
    ) -> Result<Reply, Error> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > SLOTS_MAX {
            self.world.limit_reached(LimitSubject::Client(client), limit_name!(SLOTS_MAX));
            return Err(Error::InvalidArgument(format!(
                "{count} slots are too many: make at most {SLOTS_MAX} with one call"
            )));
        }
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let (id, instance) = (self.world.mint_slot(), self.world.next_instance());
            if let Err(error) = self.directory.open_slot(&id, instance, self.world.members()) {
                for id in &ids {
                    self.client_reservations.withdraw(id, &mut self.world);
                }
                return Err(error);
            }
            self.client_reservations.open_slot(id.clone(), client, request, instance);
            ids.push(id);
        }
        Ok(Reply::Slots { ids })
    }

    /// Returns the id of an object that a client is about to make. Refuses a name that a reduce of this node makes: the
    /// owner may not have received its reservation yet.
    pub(super) fn id_for(
        &mut self,
        client: ClientId,
        id: Option<ObjectId>,
    ) -> Result<ObjectId, Error> {
        let is_result =
            |id: &ObjectId| id.minter().is_none() && self.coordinator.maker(id).is_some();
        match id {
            Some(id) if is_result(&id) => Err(Error::NameTaken { id, holder: self.world.me() }),
            id => self.client_reservations.id_for(client, id, &self.directory, &mut self.world),
        }
    }

    /// The owner replied to the reservation of a client, or found that another node has got the name.
    pub(super) fn name_reserved(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        taken_by: Option<NodeId>,
    ) {
        let is_standby =
            self.client_reservations.is_asked(id) && self.world.standby(id) == Some(from);
        // Only the primary owner has all claims of the name, unless it is unresponsive.
        if self.world.members().owners(id).primary != from && !is_standby {
            return;
        }
        if let Some(holder) = taken_by {
            if let Some(request) = self.client_reservations.withdraw(id, &mut self.world) {
                let error = Error::NameTaken { id: id.clone(), holder };
                self.requests.reply(request, Err(error), &mut self.world);
            }
        } else if let Some(request) = self.client_reservations.granted(id) {
            // If one owner fails, the other one keeps the reservation.
            if let Some(other) = self.world.other_owner(id, from) {
                self.world.send(other, Message::Reserve { id: id.clone(), instance });
            }
            self.requests.reply(request, Ok(Reply::Reserved { id: id.clone() }), &mut self.world);
        }
    }

    /// The owner reported that the reservation of a client has ended: the name was deleted, or the owner has no entry
    /// left for it.
    pub(super) fn name_dropped(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: &Error,
    ) {
        // The backup owner may receive the deletion of the previous object of that name late.
        let is_first = self.world.members().owners(id).primary == from;
        if !is_first || !self.client_reservations.is_of(id, instance) {
            return;
        }
        // The backup owner may have received the deletion before the reservation.
        if let Some(request) = self.client_reservations.withdraw(id, &mut self.world) {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// Requests the name. The reduce begins once the name is granted.
    pub(super) fn reserve_result(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        request: RequestId,
        steps: Vec<Step>,
    ) {
        let instance = self.world.next_instance();
        self.result_reservations
            .begin(key, Reservation { instance, begins: Some((request, steps)) });
        let owner = self.world.members().owners(id).primary;
        self.world.send(owner, Message::Reserve { id: id.clone(), instance });
        reserve_at_backup(id, instance, &mut self.world);
    }

    /// The owner replied to the reservation of a reduce.
    pub(super) fn result_reserved(
        &mut self,
        from: NodeId,
        key: ReduceId,
        id: &ObjectId,
        taken_by: Option<NodeId>,
    ) {
        let Some(kept) = self.result_reservations.get_mut(key) else { return };
        let is_standby = kept.begins.is_some() && self.world.standby(id) == Some(from);
        // Only the primary owner has all claims of the name, unless it is unresponsive.
        if self.world.members().owners(id).primary != from && !is_standby {
            return;
        }
        let instance = kept.instance;
        if let Some(holder) = taken_by {
            if kept.begins.is_none() {
                // A repeated reservation after a membership change: two nodes were granted the name during a partition.
                // The other node keeps it, so its state at the owners must not change.
                self.result_reservations.remove(key);
                self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
            }
            return self.fail_reduce_of(id, &Error::NameTaken { id: id.clone(), holder });
        }
        if let Some((request, steps)) = kept.begins.take() {
            // If one owner fails, the other one keeps the reservation. It also records whose failure to report to
            // requesters.
            if let Some(other) = self.world.other_owner(id, from) {
                self.world.send(other, Message::Reserve { id: id.clone(), instance });
            }
            self.take_steps(key, steps);
            self.requests.reply(request, Ok(Reply::Reducing { id: id.clone() }), &mut self.world);
        }
    }

    /// The client no longer waits for the name.
    pub(super) fn give_up_reservation(&mut self, key: ReduceId) {
        let Some(id) = self.coordinator.get(key).map(|reduce| reduce.result().clone()) else {
            return;
        };
        let detail = "its reduce was canceled before its name was reserved".into();
        self.fail_reduce_of(&id.clone(), &Error::ObjectLost { id, detail });
    }

    /// The owner reported that the name was deleted before the result existed.
    pub(super) fn reservation_dropped(
        &mut self,
        from: NodeId,
        key: ReduceId,
        id: &ObjectId,
        error: &Error,
    ) {
        // The backup owner may receive the deletion of the previous object of that name late.
        if self.world.members().owners(id).primary != from {
            return;
        }
        let Some(kept) = self.result_reservations.remove(key) else { return };
        // The backup owner may have received the deletion before the reservation.
        let instance = kept.instance;
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.fail_reduce_of(id, error);
        if let Some((request, _)) = kept.begins {
            self.requests.reply(request, Err(error.clone()), &mut self.world);
        }
    }

    /// Ends the reservation of a failed reduce. Returns it if it was granted; a pending request is withdrawn.
    pub(super) fn end_reservation(
        &mut self,
        key: ReduceId,
        id: &ObjectId,
        error: &Error,
    ) -> Option<Instance> {
        let Reservation { instance, begins } = self.result_reservations.remove(key)?;
        let Some((request, _)) = begins else { return Some(instance) };
        self.world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        self.requests.reply(request, Err(error.clone()), &mut self.world);
        None
    }
}
