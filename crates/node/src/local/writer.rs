//! Space that a program was given to fill, and the seal that makes an object of it.

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::ObjectId,
};
use hoplite_shm::{OwnedWriteGuard, Slot};

use super::{
    protocol::ToNode,
    question::{self, unexpected},
    view::{AtEnd, Guard},
    wait::Wait,
};
use crate::error::Error;

/// Space for an object, to be filled and sealed. Dropping it unsealed leaves no object.
pub struct Writer {
    pub(crate) id: ObjectId,
    pub(crate) guard: Guard,
}

impl Writer {
    /// The id that the object will have. Receivers can wait for it already, and get what is written.
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// Copies all bytes of the object to their place; receivers get them while this goes on.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if `bytes` are not as many as were asked for, or were written before.
    pub fn write_all(&self, bytes: &[u8]) -> Result<(), Error> {
        self.write_parts(&[bytes])
    }

    /// The same with the bytes in several parts, one after the other.
    ///
    /// # Errors
    /// As [`Writer::write_all`].
    pub fn write_parts(&self, parts: &[&[u8]]) -> Result<(), Error> {
        let Some(slot) = &self.guard.slot else { return Ok(()) };
        let (connection, instance) = (&self.guard.connection, self.guard.instance);
        let copied = slot.copy_from_parts(parts, |_| connection.say(ToNode::Advanced { instance }));
        copied.map_err(|error| CallError::InvalidArgument(error.to_string()).into())
    }

    /// Whether all of it was written.
    pub fn is_complete(&self) -> bool {
        self.guard.slot.as_ref().is_some_and(Slot::is_complete)
    }

    /// The space itself, to be filled in any order.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if some of it was written before.
    pub fn into_space(self) -> Result<Space, Error> {
        let slot = self.guard.slot.as_ref();
        let claim = slot.and_then(|slot| slot.claim_owned(0..slot.len()));
        let said = || CallError::InvalidArgument(format!("{} was written in part before", self.id));
        Ok(Space { claim: Some(claim.ok_or_else(said)?), writer: self })
    }

    /// Says that the object is complete.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if not all of it was written; then there is no object.
    pub fn seal(mut self) -> Result<Wait<ObjectId>, Error> {
        if !self.is_complete() {
            let said = format!("{} was sealed before all of it was filled", self.id);
            return Err(CallError::InvalidArgument(said).into());
        }
        if self.guard.connection.was_closed() {
            return Err(Error::Closed);
        }
        self.guard.slot = None;
        self.guard.at_end = AtEnd::Nothing;
        let instance = self.guard.instance;
        let (connection, ask) = (self.guard.connection.clone(), Ask::Seal { instance });
        Ok(question::start(&connection, true, ask, None, |answer, _| match answer {
            Answer::Put { id } => Ok(id),
            other => Err(unexpected(&other)),
        }))
    }
}

/// All bytes of an object that is being made, to be filled in any order; no reader sees them before it is sealed.
pub struct Space {
    /// Dropped before the writer, which tells the node that the memory is free.
    claim: Option<OwnedWriteGuard>,
    writer: Writer,
}

impl Space {
    /// The id that the object will have.
    pub const fn id(&self) -> &ObjectId {
        self.writer.id()
    }

    /// The bytes, which are what the memory held before.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.claim.as_deref_mut().unwrap_or_default()
    }

    /// Says that the object is complete.
    ///
    /// # Errors
    /// As [`Writer::seal`].
    pub fn seal(mut self) -> Result<Wait<ObjectId>, Error> {
        if self.writer.guard.connection.is_forked() {
            // Progress is shared with the parent, which goes on to fill it.
            return Err(Error::Forked);
        }
        if let Some(claim) = self.claim.take() {
            claim.commit();
        }
        let Guard { connection, instance, .. } = &self.writer.guard;
        connection.say(ToNode::Advanced { instance: *instance });
        self.writer.seal()
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
