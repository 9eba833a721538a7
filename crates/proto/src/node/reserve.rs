//! Names that are reserved at their owners before their objects exist, so that no other client can
//! put them: for the result of a reduce until it ends, or for a client until it has made the
//! object.

use alloc::{format, string::String, vec::Vec};

use super::Node;
use crate::{
    error::Error,
    event::{Action, LimitSubject},
    id::{ClientId, Instance, Name, NodeId, ObjectId, RequestId},
    limits::{SLOTS_MAX, limit_name},
    machines::{
        claims::Holder,
        requests::{RequestContext, RequestKind},
    },
    message::Message,
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
            let id = self.claims.mint(client, request, &mut self.world);
            return Some(Ok(Reply::Reserved { id }));
        };
        let id = ObjectId::Named(name);
        if self.claims.has(&id, client) {
            // It holds nothing: the first request does.
            self.world.act(Action::WorkEnded { request });
            return Some(Ok(Reply::Reserved { id }));
        }
        if !self.claims.reserve(&id, request, Holder::Client(client), &mut self.world) {
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
                    self.claims.withdraw(id, &mut self.world);
                }
                return Err(error);
            }
            self.claims.open_slot(id.clone(), client, request, instance);
            ids.push(id);
        }
        Ok(Reply::Slots { ids })
    }

    /// The owner replied to a reservation, or found that another node has got the name, or that a
    /// slot is filled.
    pub(super) fn reservation_claimed(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        taken_by: Option<NodeId>,
    ) {
        if id.is_slot() {
            // It does not end with its client any more.
            self.claims.forget(id, &mut self.world);
            return;
        }
        let is_standby = self.claims.is_asked(id) && self.world.standby(id) == Some(from);
        // Only the primary owner has all claims of the name, unless it is unresponsive.
        if self.world.members().owners(id).primary != from && !is_standby {
            return;
        }
        if let Some(holder) = taken_by {
            // After a membership change, it may be that two nodes were granted the name during a
            // partition.
            return self.lose_reservation(id, &Error::NameTaken { id: id.clone(), holder });
        }
        let Some((holder, request)) = self.claims.granted(id) else { return };
        // If one owner fails, the other one keeps the reservation. It also records whose failure to
        // report to requesters.
        if let Some(other) = self.world.other_owner(id, from) {
            self.world.send(other, Message::Reserve { id: id.clone(), instance });
        }
        let id = id.clone();
        let reply = match holder {
            Holder::Client(_) => Reply::Reserved { id },
            Holder::Reduce(key) => {
                self.watch_inputs(key);
                Reply::Reducing { id }
            }
        };
        self.requests.reply(request, Ok(reply), &mut self.world);
    }

    /// The owner reported that a reservation has ended: the name was deleted, or the owner has no
    /// entry left for it.
    pub(super) fn reservation_dropped(
        &mut self,
        from: NodeId,
        id: &ObjectId,
        instance: Instance,
        error: &Error,
    ) {
        // The backup owner may receive the deletion of the previous object of that name late.
        let is_first = self.world.members().owners(id).primary == from;
        if is_first && self.claims.is_reserved_by(id, instance) {
            self.lose_reservation(id, error);
        }
    }

    /// The client no longer waits for the name that it reserves, or its reduce.
    pub(super) fn give_up_reservation(&mut self, id: &ObjectId) {
        let detail = "its reduce was canceled before its name was reserved".into();
        self.lose_reservation(id, &Error::ObjectLost { id: id.clone(), detail });
    }

    /// Withdraws a reservation from both owners, since the backup owner may have it although the
    /// primary owner does not. A reduce fails without its name.
    fn lose_reservation(&mut self, id: &ObjectId, error: &Error) {
        let Some(lost) = self.claims.withdraw(id, &mut self.world) else { return };
        if let Holder::Reduce(..) = lost.holder {
            self.fail_reduce_of(id, error);
        }
        if lost.is_asked() {
            self.requests.reply(lost.request, Err(error.clone()), &mut self.world);
        }
    }

    /// Ends the reservation of a failed reduce. Returns its instance if it was granted; a pending
    /// one is withdrawn.
    pub(super) fn end_reservation(&mut self, id: &ObjectId, error: &Error) -> Option<Instance> {
        if self.claims.is_asked(id) {
            self.lose_reservation(id, error);
        }
        self.claims.forget(id, &mut self.world)
    }

    /// What a claim of a name waits for.
    pub(super) fn name_description(&self, id: &ObjectId) -> (String, String) {
        let owner = self.world.members().owners(id).primary;
        (format!("the name {id}"), format!("its owner, node {owner}, has not confirmed it"))
    }
}
