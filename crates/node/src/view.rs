//! Memory that a program was given: objects to read, and space to fill.

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{Instance, ObjectId},
    inline::Inline,
    meta::Meta,
};
use hoplite_shm::Slot;

use crate::{
    client::{Client, unexpected},
    error::Error,
    wait::Wait,
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
    Nothing,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.client.is_forked() {
            // The pins belong to the parent.
            return;
        }
        let instance = self.instance;
        // Before the node is told: it may give the memory to another object at once.
        self.slot = None;
        match self.at_end {
            AtEnd::Release => self.client.tell(Ask::Release { instance }),
            AtEnd::Abort => self.client.tell(Ask::Abort { instance }),
            AtEnd::Nothing => {}
        }
    }
}

/// An object to read, without a copy. Its memory stays as it is for as long as the view lives, whatever happens to
/// the object.
pub struct View {
    pub(crate) id: ObjectId,
    pub(crate) meta: Meta,
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
        let Some(slot) = &self.guard.slot else { return Ok(()) };
        let (client, instance) = (&self.guard.client, self.guard.instance);
        let copied = slot.copy_from(bytes, |_| client.advanced(instance));
        copied.map_err(|error| CallError::InvalidArgument(error.to_string()).into())
    }

    /// Says that the object is complete.
    ///
    /// # Errors
    /// [`CallError::InvalidArgument`] if not all of it was written; then there is no object.
    pub fn seal(mut self) -> Result<Wait<ObjectId>, Error> {
        if !self.guard.slot.as_ref().is_some_and(Slot::is_complete) {
            let said = format!("{} was sealed before all of it was filled", self.id);
            return Err(CallError::InvalidArgument(said).into());
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

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("id", &self.id).finish_non_exhaustive()
    }
}
