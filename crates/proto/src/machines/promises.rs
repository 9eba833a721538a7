//! Promises: ids that are given out before their objects exist, so that others can wait for them.
//!
//! ```text
//!   promised --> kept (the object is put, created or reduced)
//!      |
//!      +-------> broken (its client is gone), or deleted: those who wait are told
//! ```
//! This node owns the ids that it mints, so a get of one waits here, and what is small goes to it in one message. What is
//! promised to a client that has a capability is a name below its prefix, which its owner hears of when the promise ends.

use alloc::{collections::BTreeMap, format, vec::Vec};

use crate::{
    ask::Answer,
    directory::Directory,
    error::Error,
    id::{ClientId, Name, ObjectId},
    machines::world::World,
    message::Message,
};

/// Ids of objects that clients have said they will make.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    all: BTreeMap<ObjectId, ClientId>,
}

impl Promises {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A client will make an object of a name, or of an id that is new.
    pub(crate) fn promise(
        &mut self,
        client: ClientId,
        name: Option<Name>,
        world: &mut World,
    ) -> Answer {
        let id = name.map_or_else(|| world.mint(), ObjectId::Named);
        self.give(id.clone(), client);
        Answer::Promised { id }
    }

    /// An id is given out to a client, or back to it.
    pub(crate) fn give(&mut self, id: ObjectId, client: ClientId) {
        self.all.insert(id, client);
    }

    /// Whether a client has promised that, and not made it.
    pub(crate) fn has(&self, id: &ObjectId, client: ClientId) -> bool {
        self.all.get(id) == Some(&client)
    }

    /// The id of what a client is about to make: a name of its choice, one that it was promised, or a new one.
    pub(crate) fn id_for(
        &mut self,
        client: ClientId,
        id: Option<ObjectId>,
        directory: &Directory,
        world: &mut World,
    ) -> Result<ObjectId, Error> {
        let Some(id) = id else { return Ok(world.mint()) };
        if id.minter().is_none() {
            // Whichever client makes it: the end of the promise must not end the object.
            self.forget(&id);
            return Ok(id);
        }
        if let Some(error) = directory.why_gone(&id) {
            return Err(error);
        }
        if !self.has(&id, client) {
            let said = format!(
                "{id} was not promised to this client, or was put before: put with a name, or with a ref that \
                 promise() returned here"
            );
            return Err(Error::InvalidArgument(said));
        }
        self.forget(&id);
        Ok(id)
    }

    /// A client is gone, or closes while its views live on: no other client makes what it promised.
    pub(crate) fn end(&mut self, client: ClientId, world: &mut World) {
        let broken = self.all.iter().filter(|(_, promiser)| **promiser == client);
        for id in broken.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            let detail = "its client promised it and has closed".into();
            self.fail(Error::ObjectLost { id: id.clone(), detail }, &id, world);
        }
    }

    /// A name is about to be deleted: its owner can't tell those who wait that it was promised.
    pub(crate) fn take_back(&mut self, id: &ObjectId, world: &mut World) {
        if id.minter().is_none() && self.all.contains_key(id) {
            self.fail(Error::ObjectDeleted { id: id.clone() }, id, world);
        }
    }

    fn fail(&mut self, error: Error, id: &ObjectId, world: &mut World) {
        self.forget(id);
        world.send_owners(id, &Message::Fail { id: id.clone(), error, reserved: None });
    }

    /// What was promised is deleted, or another client makes it.
    pub(crate) fn forget(&mut self, id: &ObjectId) {
        self.all.remove(id);
    }
}
