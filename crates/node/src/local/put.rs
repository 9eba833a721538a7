//! Puts of a client, and writers: the memory that it fills and then seals as an object.

use std::time::{Duration, Instant};

use hoplite_proto::{
    error::Error as CallError,
    id::ObjectId,
    limits::INLINE_BYTES_MAX,
    meta::Meta,
    request::{Reply, Request},
};
use hoplite_shm::{OwnedWriteGuard, Slot};

use super::{
    client::{Client, answered},
    connection::{OnDrop, SlotGuard},
    protocol::ToNode,
    wait::{PendingReply, nanoseconds, send},
};
use crate::error::Error;

/// Bytes to put, with metadata.
#[derive(Clone, Debug)]
pub struct Value<'a> {
    bytes: &'a [u8],
    meta: Meta,
}

impl<'a> Value<'a> {
    /// Plain bytes without dtype and shape.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self { bytes, meta: Meta::bytes(bytes.len() as u64) }
    }

    /// Bytes with metadata.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if their length does not match `meta`.
    pub fn with_meta(bytes: &'a [u8], meta: Meta) -> Result<Self, Error> {
        if meta.size == bytes.len() as u64 && meta.is_consistent() {
            return Ok(Self { bytes, meta });
        }
        let said = format!("{} bytes do not match {meta}, which has {}", bytes.len(), meta.size);
        Err(CallError::InvalidArgument(said).into())
    }
}

impl Client {
    /// Puts an object and waits until its bytes are in the store; other nodes can stream them
    /// earlier. `id` is a name or a reserved id; None generates an id.
    ///
    /// # Errors
    /// [`CallError::NameTaken`], [`CallError::StoreFull`] after `timeout`, [`CallError::NodeDown`].
    pub fn put(
        &self,
        id: Option<ObjectId>,
        value: Value<'_>,
        timeout: Option<Duration>,
    ) -> Result<ObjectId, Error> {
        if value.meta.size <= INLINE_BYTES_MAX {
            return self.start_put_small(id, &value, None, timeout).join();
        }
        let begun = Instant::now();
        let writer = self.start_create(id, value.meta.clone(), None, timeout).join()?;
        writer.write_all(value.bytes)?;
        writer.seal(timeout.map(|timeout| timeout.saturating_sub(begun.elapsed())))?.join()
    }

    /// Puts an object of at most [`INLINE_BYTES_MAX`] bytes. It is deleted after `ttl`, if given.
    pub fn start_put_small(
        &self,
        id: Option<ObjectId>,
        value: &Value<'_>,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> PendingReply<ObjectId> {
        let (meta, bytes, ttl_ns) = (value.meta.clone(), value.bytes.into(), ttl.map(nanoseconds));
        let body = Request::Put { id, meta, bytes, ttl_ns };
        self.start(body, timeout, answered!(Reply::Put { id } => id))
    }

    /// Allocates space for an object of more than [`INLINE_BYTES_MAX`] bytes. The object is deleted
    /// `ttl` after it is sealed, if given.
    pub fn start_create(
        &self,
        id: Option<ObjectId>,
        meta: Meta,
        ttl: Option<Duration>,
        timeout: Option<Duration>,
    ) -> PendingReply<Writer> {
        let body = Request::Create { id, meta, ttl_ns: ttl.map(nanoseconds) };
        self.start(body, timeout, |reply, guard| match (reply, guard) {
            (Reply::Created { id, .. }, Some(guard)) => Ok(Writer { id, guard }),
            _ => Err(Error::unexpected_reply()),
        })
    }
}

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
        let sealing = send(&connection, true, body, timeout, answered!(Reply::Put { id } => id));
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
