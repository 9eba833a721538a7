//! `create` and `seal`: an object that is filled in place.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_node::{
    Space, Value as NativeValue,
    proto::{id::ObjectId, limits::INLINE_BYTES_MAX, meta::Meta},
};

use super::checks;
use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::{Error, Result},
    mode::{Mode, left},
    outcome::{Discard, Outcome},
    reference::{self, Ref},
    value::{Element, array_meta, dtype_of},
    view::{aligned, check},
};

/// The verb of [`Client::create`](crate::Client::create).
#[derive(Debug)]
pub struct Create {
    meta: Result<Meta>,
    name: Option<Result<ObjectId>>,
    replicas: u32,
    ttl: Option<Duration>,
}

impl Create {
    pub(crate) fn new(dtype: &str, shape: &[u64]) -> Self {
        Self { meta: array_meta(dtype, shape), name: None, replicas: 1, ttl: None }
    }
}

impl Call<'_, Create> {
    /// Names the object, or gives it a reserved ref.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.verb.name = Some(reference::parse(name));
        self
    }

    /// Sets the number of nodes that keep a copy; `seal` waits for them.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.verb.replicas = replicas;
        self
    }

    /// Deletes the object after a time, counted from `seal`.
    pub fn ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.verb.ttl = ttl.into();
        self
    }
}

impl Verb for Create {
    type Output = Buffer;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Buffer>> {
        let (meta, name) = (self.meta?, self.name.transpose()?);
        let (replicas, ttl) = (checks::replicas(self.replicas)?, checks::ttl(self.ttl)?);
        let (native, limit) = attachment.open(mode, limit).await?;
        let (id, memory, reserved) = if meta.size > INLINE_BYTES_MAX {
            let reply = native.start_create(name, meta.clone(), ttl, limit);
            let space = mode.reply(reply).await?.into_space()?;
            (space.id().clone(), Memory::Large(space), None)
        } else {
            // A reserved ref, so that others can wait for the object before the seal. Another client may fill a slot.
            let (id, is_reserved) = match name {
                Some(id) => (id.clone(), id.is_unique() && !id.is_slot()),
                None => (mode.reply(native.start_reserve(None, None)).await?, true),
            };
            let reserved = is_reserved.then(|| Discard::new(&native, &id));
            let (bytes, start) = aligned(meta.size as usize);
            (id, Memory::Small { bytes, start, ttl }, reserved)
        };
        let (attachment, reference) = (attachment.clone(), Ref::new(&id));
        Ok(Buffer { attachment, reference, id, meta, memory, replicas, reserved }.into())
    }
}

/// Memory for one object, from [`Client::create`](crate::Client::create): fill it, then [`seal`](Buffer::seal) it.
///
/// Initially the bytes are undefined. No reader sees them before the seal. Dropping the buffer creates no object.
pub struct Buffer {
    attachment: Arc<Attachment>,
    reference: Ref,
    id: ObjectId,
    meta: Meta,
    memory: Memory,
    replicas: u32,
    /// Ends the waits for a reserved ref of a small object that will not exist. The node does this for a large one.
    reserved: Option<Discard>,
}

enum Memory {
    /// A small object travels inside messages, and is put at the seal.
    Small {
        bytes: Box<[u8]>,
        start: usize,
        ttl: Option<Duration>,
    },
    Large(Space),
}

impl Buffer {
    /// The ref of the future object. Processes that receive it can wait for the object before the seal.
    pub const fn reference(&self) -> &Ref {
        &self.reference
    }

    /// The bytes, to be filled in any order. The first one is at a multiple of 64.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Small { bytes, start, .. } => {
                &mut bytes[*start..*start + self.meta.size as usize]
            }
            Memory::Large(space) => space.bytes(),
        }
    }

    /// The elements.
    ///
    /// # Errors
    /// `UnsupportedDtype` if the buffer has another dtype.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        check::<T>(&dtype_of(&self.meta).0)?;
        bytemuck::try_cast_slice_mut(self.bytes_mut()).map_err(|error| {
            Error::argument(format!("the buffer can't be read as {}: {error}", T::DTYPE))
        })
    }

    /// The dtype by its name in NumPy, or `bytes`.
    pub fn dtype(&self) -> std::borrow::Cow<'static, str> {
        dtype_of(&self.meta).0
    }

    /// Length of each axis; empty for bytes.
    pub fn shape(&self) -> &[u64] {
        dtype_of(&self.meta).1
    }

    /// Size in bytes.
    pub const fn nbytes(&self) -> u64 {
        self.meta.size
    }

    /// Completes the object. From now on it exists and never changes. The timeout covers the node's reply, the name of
    /// a small object, and the replicas; if only replicas are late, the object exists.
    pub fn seal(self) -> Call<'static, Seal> {
        Call::owned(self.attachment.clone(), Seal(self))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {})", self.reference, self.meta)
    }
}

/// The verb of [`Buffer::seal`].
#[derive(Debug)]
pub struct Seal(Buffer);

impl Verb for Seal {
    type Output = Ref;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Ref>> {
        let begun = Instant::now();
        let Buffer { id, meta, memory, replicas, reserved, .. } = self.0;
        let sealing = match memory {
            Memory::Large(space) => space.seal(limit)?,
            Memory::Small { bytes, start, ttl } => {
                let (native, limit) = attachment.open(mode, limit).await?;
                let bytes = &bytes[start..start + meta.size as usize];
                native.start_put_small(Some(id), &NativeValue::with_meta(bytes, meta)?, ttl, limit)
            }
        };
        let id = mode.reply(sealing).await?;
        if let Some(reserved) = reserved {
            reserved.keep();
        }
        let (native, limit) = attachment.open(mode, left(limit, begun)).await?;
        let created = Discard::new(&native, &id);
        let reached = match replicas {
            1 => Ok(1),
            more => mode.reply(native.start_replicate(&id, more, limit)).await,
        };
        match reached {
            Ok(reached) => Ok(Outcome::new(Ref::new(&id).with_replicas(reached), created)),
            Err(error) => {
                created.keep();
                Err(error)
            }
        }
    }
}
