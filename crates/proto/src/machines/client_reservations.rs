//! Reservations: ids and names that clients receive before their objects exist, so that others can wait for them.
//!
//! ```text
//!   (requested from its owner)     --> reserved <--> used (its client makes the object) --> kept (it is complete)
//!                                         |           |
//!                                         +-----------+--> broken (its client is gone), deleted, or taken by the
//!                                                          object of another node: its node forgets it
//! ```
//! This node owns the ids that it generates. Therefore a get of one waits here, and a small object reaches it in one
//! message. Any client may put a slot, which is such an id: this node's part of the directory reserves it until its
//! object is complete. A name is reserved at its owners, where an instance represents the reservation. They reject the
//! claims of others, and report to waiting nodes that the client or this node is gone.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use crate::{
    directory::Directory,
    error::Error,
    event::Action,
    id::{ClientId, Instance, NodeId, ObjectId, RequestId},
    machines::{membership_change::MembershipChange, world::World},
    message::Message,
};

/// Ids and names that clients have reserved.
#[derive(Debug, Default)]
pub(crate) struct ClientReservations {
    all: BTreeMap<ObjectId, Reservation>,
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    client: ClientId,
    /// The request that began it, whose work ends with it.
    request: RequestId,
    /// Represents the reservation of a name or slot at its owners. No object ever has this instance.
    instance: Option<Instance>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The owner of the name has not replied yet, nor has the request of the client its reply.
    Asked,
    Reserved,
    /// Its client makes the object.
    Used,
    /// A slot, which any client may fill.
    Slot,
}

/// How a client ended that may have reserved objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// It was closed; its views may live on.
    Closed,
    /// Its connection ended, with its process if that is known.
    Disconnected(Option<u32>),
}

impl Ending {
    /// Why an object can't appear that the client has begun: names its host and process. `began` is what the client did,
    /// and `until` what it had to outlive.
    pub(crate) fn detail(self, began: &str, until: &str, world: &World) -> String {
        let me = world.me();
        let address = world.members().address(me).map(|address| format!(" ({address})"));
        let node = format!("node {me}{}", address.unwrap_or_default());
        match self {
            Self::Closed => format!("a client of {node} {began} and was closed before {until}"),
            Self::Disconnected(None) => {
                format!("a process on {node} {began} and ended or detached before {until}")
            }
            Self::Disconnected(Some(process)) => {
                format!("process {process} on {node} {began} and ended or detached before {until}")
            }
        }
    }
}

impl ClientReservations {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Reserves a new id for a client.
    pub(crate) fn mint(
        &mut self,
        client: ClientId,
        request: RequestId,
        world: &mut World,
    ) -> ObjectId {
        let id = world.mint();
        let state = State::Reserved;
        self.all.insert(id.clone(), Reservation { client, request, instance: None, state });
        id
    }

    /// Records a slot of a client.
    pub(crate) fn open_slot(
        &mut self,
        id: ObjectId,
        client: ClientId,
        request: RequestId,
        instance: Instance,
    ) {
        let (instance, state) = (Some(instance), State::Slot);
        self.all.insert(id, Reservation { client, request, instance, state });
    }

    /// Requests a name from its owner. Returns false if a client has reserved or requested it here already.
    pub(crate) fn ask(
        &mut self,
        client: ClientId,
        request: RequestId,
        id: &ObjectId,
        world: &mut World,
    ) -> bool {
        if self.all.contains_key(id) {
            return false;
        }
        let instance = world.next_instance();
        let (its, state) = (Some(instance), State::Asked);
        self.all.insert(id.clone(), Reservation { client, request, instance: its, state });
        let owner = world.members().owners(id).primary;
        world.send(owner, Message::Reserve { id: id.clone(), instance });
        reserve_at_backup(id, instance, world);
        true
    }

    /// Whether the owner of a name has not replied yet.
    pub(crate) fn is_asked(&self, id: &ObjectId) -> bool {
        let state = self.all.get(id).map(|reservation| reservation.state);
        state == Some(State::Asked)
    }

    /// Requests the names at their backup owners too, because the primary owner is unresponsive.
    pub(crate) fn primary_unresponsive(&self, primary: NodeId, world: &mut World) {
        for (id, Reservation { instance, state, .. }) in &self.all {
            let is_there = world.members().owners(id).primary == primary;
            if let (State::Asked, Some(instance), true) = (state, *instance, is_there) {
                reserve_at_backup(id, instance, world);
            }
        }
    }

    /// The owner has granted the name. Returns the request to reply to, if it has no reply yet.
    pub(crate) fn granted(&mut self, id: &ObjectId) -> Option<RequestId> {
        let reservation = self.all.get_mut(id)?;
        if reservation.state != State::Asked {
            return None;
        }
        reservation.state = State::Reserved;
        Some(reservation.request)
    }

    /// Ends a reservation, whose request then holds nothing more.
    fn remove(&mut self, id: &ObjectId, world: &mut World) -> Option<Reservation> {
        let reservation = self.all.remove(id)?;
        world.act(Action::WorkEnded { request: reservation.request });
        Some(reservation)
    }

    /// Whether this instance represents the reservation of a name or slot.
    pub(crate) fn is_of(&self, id: &ObjectId, instance: Instance) -> bool {
        self.all.get(id).is_some_and(|reservation| reservation.instance == Some(instance))
    }

    /// Whether a client has reserved an id or name and not made its object yet.
    pub(crate) fn has(&self, id: &ObjectId, client: ClientId) -> bool {
        self.is_in(id, client, State::Reserved)
    }

    /// Whether a client makes the object of a name that it has reserved.
    pub(crate) fn is_used(&self, id: &ObjectId, client: ClientId) -> bool {
        self.is_in(id, client, State::Used)
    }

    fn is_in(&self, id: &ObjectId, client: ClientId, state: State) -> bool {
        let its = self.all.get(id).filter(|reservation| reservation.client == client);
        its.is_some_and(|reservation| reservation.state == state)
    }

    /// Returns the id of an object that a client is about to make: a name of its choice, one that it has reserved, or
    /// a new one.
    pub(crate) fn id_for(
        &mut self,
        client: ClientId,
        id: Option<ObjectId>,
        directory: &Directory,
        world: &mut World,
    ) -> Result<ObjectId, Error> {
        let Some(id) = id else { return Ok(world.mint()) };
        if id.minter().is_none() {
            if !self.all.contains_key(&id) {
                return Ok(id);
            }
            if !self.has(&id, client) {
                return Err(Error::NameTaken { id, holder: world.me() });
            }
            self.set(&id, client, State::Used);
            return Ok(id);
        }
        // A client that has reconnected may have ids of the node before.
        if let Some(error) = directory.why_gone(&id).or_else(|| world.members().why_unmade(&id)) {
            return Err(error);
        }
        if id.is_slot() {
            return Ok(id);
        }
        if !self.has(&id, client) {
            let said = format!(
                "{id} is not reserved for this client, or has already been put: put with a name, or with a ref that \
                 reserve() returned here"
            );
            return Err(Error::InvalidArgument(said));
        }
        self.set(&id, client, State::Used);
        Ok(id)
    }

    fn set(&mut self, id: &ObjectId, client: ClientId, state: State) {
        let its = self.all.get_mut(id).filter(|reservation| reservation.client == client);
        its.into_iter().for_each(|reservation| reservation.state = state);
    }

    /// The object of a reserved id or name was not made: its client may try again, unless it was deleted and is not
    /// reserved any more.
    pub(crate) fn reuse(&mut self, id: &ObjectId, client: ClientId) {
        self.set(id, client, State::Reserved);
    }

    /// A client has made the object of an id or name, or can't make it any more. The owners of a name then end the
    /// reservation, if there is one.
    pub(crate) fn keep(&mut self, id: &ObjectId, client: ClientId, world: &mut World) {
        if self.is_used(id, client) {
            self.forget(id, world);
        }
    }

    /// Passes the reservation of an id or name to a reduce, whose result has it. Returns the instance of a name.
    pub(crate) fn take(
        &mut self,
        id: &ObjectId,
        client: ClientId,
        world: &mut World,
    ) -> Option<Instance> {
        if !self.is_used(id, client) {
            return None;
        }
        self.remove(id, world)?.instance
    }

    /// Ends the reservations of a client that is gone, or that closes while its views live on: no other client makes
    /// the objects.
    pub(crate) fn end(&mut self, client: ClientId, ending: Ending, world: &mut World) {
        let its = self.all.iter().filter(|(_, reservation)| reservation.client == client);
        // A client that is closed may still complete an object that it fills; one that is gone fills none.
        let broken = its.filter(|(_, reservation)| reservation.state != State::Used);
        for id in broken.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            let Some(Reservation { instance, state, .. }) = self.remove(&id, world) else {
                continue;
            };
            if let (State::Asked, Some(instance)) = (state, instance) {
                world.send_owners(&id, &Message::Withdraw { id: id.clone(), instance });
                continue;
            }
            let error = Error::ObjectLost {
                id: id.clone(),
                detail: ending.detail("reserved it", "the put", world),
            };
            let fail = Message::Fail { id: id.clone(), error, reserved: instance };
            if state == State::Slot {
                // Only this node knows whether it is filled.
                world.send(world.me(), fail);
            } else {
                world.send_owners(&id, &fail);
            }
        }
    }

    /// Withdraws a reservation of a name or slot, whose client waits for it no longer or which another node has got.
    /// Returns the request to reply to, if it has no reply yet.
    pub(crate) fn withdraw(&mut self, id: &ObjectId, world: &mut World) -> Option<RequestId> {
        let instance = self.all.get(id)?.instance?;
        world.send_owners(id, &Message::Withdraw { id: id.clone(), instance });
        let Reservation { request, state, .. } = self.remove(id, world)?;
        (state == State::Asked).then_some(request)
    }

    /// Forgets a reservation whose id was deleted, or whose object is made.
    pub(crate) fn forget(&mut self, id: &ObjectId, world: &mut World) {
        self.remove(id, world);
    }

    /// Sends confirmed reservations of names to new owners, and repeats unconfirmed ones.
    pub(crate) fn resend(&self, change: &MembershipChange, world: &mut World) {
        for (id, Reservation { instance, state, .. }) in &self.all {
            let Some(instance) = instance.filter(|_| !id.is_slot()) else { continue };
            let is_confirmed = *state != State::Asked;
            repeat_reservation(id, instance, is_confirmed, change, world);
        }
    }
}

/// Requests a name at its backup owner, if the primary owner is unresponsive.
pub(crate) fn reserve_at_backup(id: &ObjectId, instance: Instance, world: &mut World) {
    if let Some(backup) = world.standby(id) {
        world.send(backup, Message::ReserveAtBackup { id: id.clone(), instance });
    }
}

/// Sends the reservation of a name to its new owners: to the backup owner only if the primary owner has confirmed it.
pub(crate) fn repeat_reservation(
    id: &ObjectId,
    instance: Instance,
    is_confirmed: bool,
    change: &MembershipChange,
    world: &mut World,
) {
    let reserve = || Message::Reserve { id: id.clone(), instance };
    if let Some(first) = change.new_owner(id, world) {
        world.send(first, reserve());
    }
    let second: Option<NodeId> = world.members().owners(id).backup.filter(|_| is_confirmed);
    if let Some(second) = second.filter(|it| change.new_owners(id, world).contains(it)) {
        world.send(second, reserve());
    }
}
