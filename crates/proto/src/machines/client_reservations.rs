//! Reservations: ids that a client receives before their objects exist, so that others can wait for them.
//!
//! ```text
//!   reserved --> kept (the object is put, created or reduced)
//!      |
//!      +-------> broken (its client is gone), or deleted: waiting nodes get an error
//! ```
//! This node owns the ids that it generates. Therefore a get of one waits here, and a small object reaches it in one
//! message. A client with a capability reserves a name below its prefix instead. The owner of that name learns of the
//! reservation only when it ends.

use alloc::{collections::BTreeMap, format, vec::Vec};

use crate::{
    directory::Directory,
    error::Error,
    id::{ClientId, Name, ObjectId},
    machines::world::World,
    message::Message,
    request::Reply,
};

/// Ids and names that clients have reserved.
#[derive(Debug, Default)]
pub(crate) struct ClientReservations {
    all: BTreeMap<ObjectId, ClientId>,
}

impl ClientReservations {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Reserves a name, or a new id, for a client.
    pub(crate) fn reserve(
        &mut self,
        client: ClientId,
        name: Option<Name>,
        world: &mut World,
    ) -> Reply {
        let id = name.map_or_else(|| world.mint(), ObjectId::Named);
        self.grant(id.clone(), client);
        Reply::Reserved { id }
    }

    /// Assigns an id to a client, or returns it to that client.
    pub(crate) fn grant(&mut self, id: ObjectId, client: ClientId) {
        self.all.insert(id, client);
    }

    /// Whether a client has reserved an id and not made its object yet.
    pub(crate) fn has(&self, id: &ObjectId, client: ClientId) -> bool {
        self.all.get(id) == Some(&client)
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
            // Whichever client makes the object, the end of the reservation must not end it.
            self.forget(&id);
            return Ok(id);
        }
        if let Some(error) = directory.why_gone(&id) {
            return Err(error);
        }
        if !self.has(&id, client) {
            let said = format!(
                "{id} is not reserved for this client, or has already been put: put with a name, or with a ref that \
                 reserve() returned here"
            );
            return Err(Error::InvalidArgument(said));
        }
        self.forget(&id);
        Ok(id)
    }

    /// Ends the reservations of a client that is gone, or that closes while its views live on: no other client makes
    /// the objects.
    pub(crate) fn end(&mut self, client: ClientId, world: &mut World) {
        let broken = self.all.iter().filter(|(_, promiser)| **promiser == client);
        for id in broken.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            let detail = "its client reserved it and has closed".into();
            self.fail(Error::ObjectLost { id: id.clone(), detail }, &id, world);
        }
    }

    /// Ends the reservation of a name that is about to be deleted: its owner cannot notify the waiting clients, because it
    /// does not know of the reservation.
    pub(crate) fn withdraw(&mut self, id: &ObjectId, world: &mut World) {
        if id.minter().is_none() && self.all.contains_key(id) {
            self.fail(Error::ObjectDeleted { id: id.clone() }, id, world);
        }
    }

    fn fail(&mut self, error: Error, id: &ObjectId, world: &mut World) {
        self.forget(id);
        world.send_owners(id, &Message::Fail { id: id.clone(), error, reserved: None });
    }

    /// Forgets a reservation whose id was deleted, or whose object another client makes.
    pub(crate) fn forget(&mut self, id: &ObjectId) {
        self.all.remove(id);
    }
}
