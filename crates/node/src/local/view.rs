//! Memory that a program was given: objects to read, and space to fill.

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{Instance, ObjectId},
    inline::Inline,
    meta::Meta,
};
use hoplite_shm::{OwnedWriteGuard, Slot};

use crate::{
    error::Error,
    local::client::{Client, unexpected},
    local::wait::Wait,
};

/// The memory of an answer; dropping it tells the node.
pub(crate) struct Guard {
    pub(crate) client: Client,
    pub(crate) instance: Instance,
    pub(crate) slot: Option<Slot>,
    pub(crate) at_end: AtEnd,
}

/// What the node is told when a guard is dropped.
pub(crate) enum AtEnd {
    Release,
    Abort,
    /// The node holds the memory for this question.
    LetGo(u64),
    Nothing,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.client.is_forked() {
            // The pins belong to the parent; a slot would take its memory back into a list that is not shared.
            std::mem::forget(self.slot.take());
            return;
        }
        if matches!(self.at_end, AtEnd::Release) {
            self.client.read_ended();
        }
        let instance = self.instance;
        // Before the node is told: it may give the memory to another object at once.
        self.slot = None;
        match self.at_end {
            AtEnd::Release => self.client.tell(Ask::Release { instance }),
            AtEnd::Abort => self.client.tell(Ask::Abort { instance }),
            AtEnd::LetGo(request) => self.client.let_go(request),
            AtEnd::Nothing => {}
        }
    }
}

/// An object to read, without a copy. Its memory stays as it is for as long as the view lives, whatever happens to
/// the object.
pub struct View {
    pub(crate) id: ObjectId,
    pub(crate) meta: Meta,
    pub(crate) instance: Instance,
    pub(crate) body: Body,
}

/// Where the bytes of a view are.
pub(crate) enum Body {
    Inline(Inline),
    Slot(Guard),
}

impl View {
    /// The object.
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// What it is.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.body {
            Body::Inline(bytes) => bytes.as_bytes(),
            // Complete before it was handed out, and so for ever.
            Body::Slot(guard) => guard.slot.as_ref().and_then(Slot::bytes).unwrap_or_default(),
        }
    }
}

/// An object that is still arriving, or was when it was asked for. What is there of it can be copied away.
pub struct Growing {
    pub(crate) meta: Meta,
    pub(crate) guard: Guard,
}

impl Growing {
    /// What it will be.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether a view is of the same bytes. If not, what was copied is void.
    pub fn becomes(&self, view: &View) -> bool {
        self.guard.instance == view.instance
    }

    /// Copies what is there without a gap from `start` on to its place in `out`; returns where that ends.
    pub fn copy_to(&self, start: u64, out: &mut [u8]) -> u64 {
        let Some(slot) = &self.guard.slot else { return start };
        let end = slot.progress().prefix().min(out.len() as u64);
        match slot.ready(start..end) {
            Some(bytes) if start < end => {
                out[start as usize..end as usize].copy_from_slice(bytes);
                end
            }
            _ => start,
        }
    }
}

impl std::fmt::Debug for Growing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("id", &self.id).field("meta", &self.meta).finish()
    }
}

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
        let (client, instance) = (&self.guard.client, self.guard.instance);
        let copied = slot.copy_from_parts(parts, |_| client.advanced(instance));
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
        if self.guard.client.was_closed() {
            return Err(Error::Closed);
        }
        self.guard.slot = None;
        self.guard.at_end = AtEnd::Nothing;
        let instance = self.guard.instance;
        Ok(self.guard.client.start(Ask::Seal { instance }, None, |answer, _| match answer {
            Answer::Put { id } => Ok(id),
            other => Err(unexpected(&other)),
        }))
    }
}

/// All bytes of an object that is being made, to be filled in any order; nobody else sees them before it is sealed.
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
        if self.writer.guard.client.is_forked() {
            // Progress is shared with the parent, which goes on to fill it.
            return Err(Error::Forked);
        }
        if let Some(claim) = self.claim.take() {
            claim.commit();
        }
        self.writer.guard.client.advanced(self.writer.guard.instance);
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
