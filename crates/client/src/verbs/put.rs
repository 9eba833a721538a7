//! `put`: copies a value into the store.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_node::{
    Client as Native, Value as NativeValue, digest,
    proto::{
        id::{Name, ObjectId},
        limits::{INLINE_BYTES_MAX, OWNER_TIMEOUT_NS},
        meta::Meta,
    },
};

use super::checks;
use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::{Error, ErrorKind, Result},
    mode::{Mode, left},
    outcome::{Discard, Outcome},
    reference::{self, Ref},
    value::Value,
};

/// The verb of [`Client::put`](crate::Client::put).
#[derive(Debug)]
pub struct Put<'a> {
    value: Value<'a>,
    options: PutOptions,
}

#[derive(Debug)]
struct PutOptions {
    name: Option<Result<ObjectId>>,
    replicas: u32,
    retain: Option<u64>,
    ttl: Option<Duration>,
    exist_ok: bool,
    newest: bool,
    digest: bool,
}

impl<'a> Put<'a> {
    pub(crate) const fn new(value: Value<'a>) -> Self {
        let options = PutOptions {
            name: None,
            replicas: 1,
            retain: None,
            ttl: None,
            exist_ok: false,
            newest: false,
            digest: false,
        };
        Self { value, options }
    }
}

impl Call<'_, Put<'_>> {
    /// Names the object, such as `policy/17`, or gives it a ref that [`Client::reserve`](crate::Client::reserve)
    /// returned, or a slot of any client ([`Client::slots`](crate::Client::slots)).
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.verb.options.name = Some(reference::parse(name));
        self
    }

    /// Sets the number of nodes, including this one, that keep a copy until the object is deleted; 1 by default.
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.verb.options.replicas = replicas;
        self
    }

    /// Deletes all but the newest `versions` under the prefix of the name, including this one.
    pub fn retain(mut self, versions: impl Into<Option<u64>>) -> Self {
        self.verb.options.retain = versions.into();
        self
    }

    /// Deletes the object after a time, counted from when it is complete.
    pub fn ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.verb.options.ttl = ttl.into();
        self
    }

    /// Returns the ref of the existing object if the name is taken, whatever its bytes.
    pub fn exist_ok(mut self, exist_ok: bool) -> Self {
        self.verb.options.exist_ok = exist_ok;
        self
    }

    /// Refuses the put if a newer version exists under the prefix of the name. This is checked before the put.
    pub fn newest(mut self, newest: bool) -> Self {
        self.verb.options.newest = newest;
        self
    }

    /// Announces the digest of the bytes, also if the client does not.
    #[doc(hidden)]
    pub fn digest(mut self, digest: bool) -> Self {
        self.verb.options.digest = digest;
        self
    }
}

impl Verb for Put<'_> {
    type Output = Ref;
    const HOLDS_MEMORY: bool = true;

    async fn run(
        self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<Ref>> {
        let Self { value, options } = self;
        let name = options.name.transpose()?;
        let retained = checks::retain(options.retain, name.as_ref())?;
        let newest = checks::newest(options.newest, name.as_ref())?;
        let replicas = checks::replicas(options.replicas)?;
        let ttl = checks::ttl(options.ttl)?;
        let (native, limit) = attachment.open(mode, limit).await?;
        let begun = Instant::now();
        let existing = name.as_ref().filter(|_| options.exist_ok);
        // A put waits for memory before it learns that its name is taken. An existing object needs none.
        if let Some(id) = existing
            && exists(&native, mode, id, limit).await?
        {
            return Ok(Ref::new(id).into());
        }
        if let Some(name) = newest {
            check_newest(&native, mode, &name, left(limit, begun)).await?;
        }
        let mut meta = value.meta.clone();
        if attachment.digests() || options.digest {
            let sum = mode.copy(meta.size, || digest(&value.parts()));
            meta = meta.with_digest(sum);
        }
        let put = copied(&native, mode, &value, meta, name.clone(), ttl, left(limit, begun));
        let id = match put.await {
            Err(error) if error.kind() == ErrorKind::NameTaken && existing.is_some() => {
                return Ok(existing.map(Ref::new).ok_or(error)?.into());
            }
            put => put?,
        };
        // Nobody has the ref if this is cancelled.
        let created = Discard::new(&native, &id);
        let more = more_copies(&native, mode, &id, replicas, retained, left(limit, begun)).await;
        match more {
            Ok(reached) => Ok(Outcome::new(Ref::new(&id).with_replicas(reached), created)),
            // Only the replicas are late, or another caller deleted the object: the name may belong to another one.
            Err(error) => {
                created.keep();
                Err(error)
            }
        }
    }
}

/// Whether a copy of an object exists somewhere.
async fn exists(
    native: &Native,
    mode: Mode,
    id: &ObjectId,
    limit: Option<Duration>,
) -> Result<bool> {
    use ErrorKind::{ObjectDeleted, ObjectLost, Timeout};
    match mode.reply(native.start_locations(id, None, limit)).await {
        Ok(holders) => Ok(!holders.is_empty()),
        Err(error) if matches!(error.kind(), Timeout | ObjectDeleted | ObjectLost) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that no newer version of a name exists.
async fn check_newest(
    native: &Native,
    mode: Mode,
    name: &Name,
    limit: Option<Duration>,
) -> Result<()> {
    let prefix = format!("{}/", name.group());
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let newer = native.start_latest(&prefix, name.version(), Some(Duration::ZERO));
        match mode.reply(newer).await {
            Ok(newest) => {
                let message = format!(
                    "{} would go back: {} exists, and readers of latest take the highest number: put a higher number, \
                     or delete the names under {prefix} to begin anew",
                    name.as_str(),
                    newest.as_str()
                );
                return Err(Error::argument(message));
            }
            Err(error) if error.kind() == ErrorKind::Timeout => {
                if asked.elapsed() < Duration::from_nanos(OWNER_TIMEOUT_NS) {
                    return Ok(());
                }
                // The owner has not replied.
                if left(limit, begun).is_some_and(|left| left.is_zero()) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Puts the bytes, and waits until they are in the store.
async fn copied(
    native: &Native,
    mode: Mode,
    value: &Value<'_>,
    meta: Meta,
    name: Option<ObjectId>,
    ttl: Option<Duration>,
    limit: Option<Duration>,
) -> Result<ObjectId> {
    let size = meta.size;
    if size <= INLINE_BYTES_MAX {
        let reply = {
            let bytes = value.joined();
            let value = NativeValue::with_meta(&bytes, meta)?;
            native.start_put_small(name, &value, ttl, limit)
        };
        return mode.reply(reply).await;
    }
    let begun = Instant::now();
    let writer = mode.reply(native.start_create(name, meta, ttl, limit)).await?;
    // Other hosts can receive the object while it is being copied.
    mode.copy(size, || writer.write_parts(&value.parts()))?;
    mode.reply(writer.seal(left(limit, begun))?).await
}

/// Waits for the replicas, and deletes older versions; returns how many nodes keep a copy.
async fn more_copies(
    native: &Native,
    mode: Mode,
    id: &ObjectId,
    replicas: u32,
    retained: Option<(Name, u64)>,
    limit: Option<Duration>,
) -> Result<u32> {
    let begun = Instant::now();
    let reached = match replicas {
        1 => 1,
        more => mode.reply(native.start_replicate(id, more, limit)).await?,
    };
    if let Some((name, number)) = retained {
        let pruned = mode.reply(native.start_prune(name, number, left(limit, begun))).await;
        // The object exists even if the time is up. The next put prunes the rest.
        pruned.or_else(|error: Error| match error.kind() {
            ErrorKind::Timeout => Ok(()),
            _ => Err(error),
        })?;
    }
    Ok(reached)
}
