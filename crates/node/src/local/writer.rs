//! Writers: memory that a client fills and then seals as an object.

use std::time::Duration;

use hoplite_proto::{
    error::Error as CallError,
    id::ObjectId,
    request::{Reply, Request},
};
use hoplite_shm::{OwnedWriteGuard, Slot};

use super::{
    protocol::ToNode,
    request,
    view::{OnDrop, SlotGuard},
    wait::PendingReply,
};
use crate::error::Error;

/// Space for a new object, to be filled and sealed. Dropping it unsealed creates no object.
pub struct Writer {
    pub(crate) id: ObjectId,
    pub(crate) guard: SlotGuard,
}

impl Writer {
    /// The id of the new object. Receivers can already wait for it, and get bytes as they are
    /// written.
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// Copies all bytes of the object into place; receivers get them meanwhile.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if `bytes` has another length than requested, or bytes were
    /// written before.
    pub fn write_all(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write_parts(&[bytes])
    }

    /// Copies the bytes from several consecutive parts.
    ///
    /// # Errors
    /// As [`Writer::write_all`].
    pub fn write_parts(&self, parts: &[&[u8]]) -> Result<(), Error> {
        let Some(slot) = &self.guard.slot else { return Ok(()) };
        let (connection, instance) = (&self.guard.connection, self.guard.instance);
        let copied =
            slot.copy_from_parts(parts, |_| connection.send(ToNode::Advanced { instance }));
        copied.map_err(|error| CallError::InvalidArgument(error.to_string()).into())
    }

    /// Whether all bytes are written.
    pub fn is_complete(&self) -> bool {
        self.guard.slot.as_ref().is_some_and(Slot::is_complete)
    }

    /// Converts this to space that can be filled in any order.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if bytes were written before.
    pub fn into_space(self) -> Result<Space, Error> {
        let slot = self.guard.slot.as_ref();
        let claim = slot.and_then(|slot| slot.claim_owned(0..slot.len()));
        let said =
            || CallError::InvalidArgument(format!("{} has already been written in part", self.id));
        Ok(Space { claim: Some(claim.ok_or_else(said)?), writer: self })
    }

    /// Seals the object as complete. A running node replies at once, whatever the timeout. If the
    /// node does not reply in time, the caller gets no object: the node deletes it once it runs
    /// again.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if not all bytes are written; then there is no object.
    pub fn seal(mut self, timeout: Option<Duration>) -> Result<PendingReply<ObjectId>, Error> {
        if !self.is_complete() {
            let said = format!("{} was sealed before all bytes were written", self.id);
            return Err(CallError::InvalidArgument(said).into());
        }
        if self.guard.connection.was_closed() {
            return Err(Error::Closed);
        }
        self.guard.slot = None;
        self.guard.at_end = OnDrop::Nothing;
        let instance = self.guard.instance;
        let (connection, body) = (self.guard.connection.clone(), Request::Seal { instance });
        let sealing = request::start(&connection, true, body, timeout, |reply, _| match reply {
            Reply::Put { id } => Ok(id),
            _ => Err(Error::unexpected_reply()),
        });
        Ok(sealing.about(self.id.clone()))
    }
}

/// Space for a new object, to be filled in any order. No reader sees the bytes before the seal.
pub struct Space {
    /// Dropped before the writer, which notifies the node that the memory is free.
    claim: Option<OwnedWriteGuard>,
    writer: Writer,
}

impl Space {
    /// The id of the new object.
    pub const fn id(&self) -> &ObjectId {
        self.writer.id()
    }

    /// The bytes; initially the previous contents of the memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.claim.as_deref_mut().unwrap_or_default()
    }

    /// Seals the object as complete.
    ///
    /// # Errors
    /// As [`Writer::seal`].
    pub fn seal(mut self, timeout: Option<Duration>) -> Result<PendingReply<ObjectId>, Error> {
        if self.writer.guard.connection.is_forked() {
            // The parent shares the progress and continues to fill the space.
            return Err(Error::Forked);
        }
        if let Some(claim) = self.claim.take() {
            claim.commit();
        }
        let SlotGuard { connection, instance, .. } = &self.writer.guard;
        connection.send(ToNode::Advanced { instance: *instance });
        self.writer.seal(timeout)
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space").field("id", self.id()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("id", &self.id).finish_non_exhaustive()
    }
}
