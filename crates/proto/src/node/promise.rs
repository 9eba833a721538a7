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

use super::Node;
use crate::{
    ask::Answer,
    error::Error,
    id::{ClientId, Name, ObjectId},
    message::Message,
};

/// Ids of objects that clients have said they will make.
#[derive(Debug, Default)]
pub(super) struct Promises {
    all: BTreeMap<ObjectId, ClientId>,
}

impl Promises {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// An id is given out to a client, or back to it.
    pub(super) fn give(&mut self, id: ObjectId, client: ClientId) {
        self.all.insert(id, client);
    }

    /// A client makes what it promised; false if it did not promise that.
    fn keep(&mut self, id: &ObjectId, client: ClientId) -> bool {
        self.has(id, client) && self.forget(id)
    }

    /// Whether a client has promised that, and not made it.
    pub(super) fn has(&self, id: &ObjectId, client: ClientId) -> bool {
        self.all.get(id) == Some(&client)
    }

    /// What was promised is deleted, or another client makes it; whether it was promised.
    pub(super) fn forget(&mut self, id: &ObjectId) -> bool {
        self.all.remove(id).is_some()
    }

    /// A client makes nothing any more; what it had promised.
    fn end(&mut self, client: ClientId) -> Vec<ObjectId> {
        let broken = self.all.iter().filter(|(_, promiser)| **promiser == client);
        let broken: Vec<ObjectId> = broken.map(|(id, _)| id.clone()).collect();
        self.all.retain(|_, promiser| *promiser != client);
        broken
    }
}

impl Node {
    pub(super) fn promise(&mut self, client: ClientId, name: Option<Name>) -> Answer {
        let id = name.map_or_else(|| self.world.mint(), ObjectId::Named);
        self.promises.give(id.clone(), client);
        Answer::Promised { id }
    }

    /// The id of what a client is about to make: a name of its choice, one that it was promised, or a new one.
    pub(super) fn id_for(
        &mut self,
        client: ClientId,
        id: Option<ObjectId>,
    ) -> Result<ObjectId, Error> {
        let Some(id) = id else { return Ok(self.world.mint()) };
        if id.minter().is_none() {
            // Whichever client makes it: the end of the promise must not end the object.
            self.promises.forget(&id);
            return Ok(id);
        }
        if let Some(error) = self.directory.why_gone(&id) {
            return Err(error);
        }
        if !self.promises.keep(&id, client) {
            let said = format!(
                "{id} was not promised to this client, or was put before: put with a name, or with a ref that \
                 promise() returned here"
            );
            return Err(Error::InvalidArgument(said));
        }
        Ok(id)
    }

    /// A client is gone, or closes while its views live on: no other client makes what it promised.
    pub(super) fn break_promises(&mut self, client: ClientId) {
        for id in self.promises.end(client) {
            let detail = "its client promised it and has closed".into();
            let error = Error::ObjectLost { id: id.clone(), detail };
            self.world.send_owners(&id, &Message::Fail { id: id.clone(), error, reserved: None });
        }
    }

    /// A name is about to be deleted: its owner can't tell those who wait that it was promised.
    pub(super) fn take_promise_back(&mut self, id: &ObjectId) {
        if id.minter().is_none() && self.promises.forget(id) {
            let error = Error::ObjectDeleted { id: id.clone() };
            self.world.send_owners(id, &Message::Fail { id: id.clone(), error, reserved: None });
        }
    }

    /// An object was deleted that a client of this node may still make.
    pub(super) fn promise_deleted(&mut self, id: &ObjectId) {
        // A result that is not there yet has no copy that could be dropped. A name has: its reservation.
        if id.minter().is_some() {
            self.promises.forget(id);
            self.fail_reduce_of(id, &Error::ObjectDeleted { id: id.clone() });
        }
    }
}
