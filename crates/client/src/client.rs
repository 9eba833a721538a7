//! The client: one method per verb.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use hoplite_node::{
    Client as Native, address_of, capability,
    proto::{
        id::{Name, ObjectId},
        request::Location as NativeLocation,
    },
};

use crate::{
    attachment::{Attachment, Terms},
    call::Call,
    error::{Error, Result},
    outcome::{Discard, Outcome},
    reference::{Ref, parse, parse_all},
    settings::{kinds, paths::expanded, secrets::read_private, source::Settings},
    value::Value,
    verbs::{
        checks, create::Create, get::Get, into::GetInto, latest::Latest, lease::Acquire, put::Put,
        reduce::Reduce, simple::Simple,
    },
};

/// 30 years. A longer timeout counts as no timeout.
const TIMEOUT_S_MAX: f64 = 1e9;

/// The beginning of every capability.
const CAPABILITY: &str = "hoplite capability ";

/// Settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// Name that marks all objects that this client creates. They are deleted 5 s after the last client of the job has
    /// closed or failed. The default of `init` is HOPLITE_JOB.
    pub job: Option<String>,
    /// Whether to attach to the next node on the same socket after the node's process ends; true by default. Calls in
    /// progress fail with `NodeDown`. The next call waits for a new node for at most 10 s, also with a timeout of 0.
    pub reconnect: bool,
    /// A capability that restricts this client, as its text or the path of its file; HOPLITE_CAPABILITY by default.
    pub capability: Option<String>,
    /// Whether `put` announces the SHA-256 of the bytes, which every node that receives the object verifies;
    /// HOPLITE_DIGEST by default.
    pub digest: Option<bool>,
    /// Timeout of the calls that set none; HOPLITE_TIMEOUT by default, or else no limit.
    pub timeout: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { job: None, reconnect: true, capability: None, digest: None, timeout: None }
    }
}

/// A client of a node. Clones share one identity; the client is detached with the last of them.
///
/// Each verb returns a [`Call`]: `.wait()` blocks, `.await` suspends on any executor, and `.start()` runs it in the
/// background. Every call has a `.timeout(...)`. A call that sets none has that of [`ClientOptions`].
#[derive(Clone)]
pub struct Client(Arc<Attachment>);

/// One node that holds a copy of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The id of the node, as in its status.
    pub node: String,
    /// Host and port of the node; None if it has no TCP port.
    pub address: Option<String>,
    /// Whether the copy has all bytes. A copy that is not complete still grows.
    pub complete: bool,
}

impl Client {
    pub(crate) const fn new(attachment: Arc<Attachment>) -> Self {
        Self(attachment)
    }

    /// A client of a node, which reconnects only where the caller does it.
    ///
    /// # Errors
    /// None.
    #[doc(hidden)]
    pub fn from_raw(native: Native, digest: bool) -> Result<Self> {
        Attachment::new(native, None, Terms { digest, ..Terms::default() }, None).map(Self)
    }

    /// Copies a value into the store as a new immutable object. Other nodes can stream it while it is being copied.
    ///
    /// # Errors
    /// `NameTaken`, `StoreFull`, `Timeout`, `InvalidArgument`, `NotAllowed`, `ObjectDeleted`, `NodeDown`.
    pub fn put<'a>(&self, value: impl Into<Value<'a>>) -> Call<'_, Put<'a>> {
        Call::new(&self.0, Put::new(value.into()))
    }

    /// Allocates an array in the store, to be filled in place and sealed without a copy. `dtype` is its name in NumPy,
    /// or `bytes` with the number of bytes as the only axis.
    ///
    /// # Errors
    /// `UnsupportedDtype`, `NameTaken`, `StoreFull`, `InvalidArgument`, `NodeDown`.
    pub fn create(&self, dtype: &str, shape: &[u64]) -> Call<'_, Create> {
        Call::new(&self.0, Create::new(dtype, shape))
    }

    /// Waits until an object is complete on this host, and returns a view of it.
    ///
    /// # Errors
    /// `Timeout`, `ObjectLost`, `ObjectDeleted`, `ObjectCorrupt`, `StoreFull`, `NodeDown`.
    pub fn get(&self, reference: impl AsRef<str>) -> Call<'_, Get> {
        Call::new(&self.0, Get::new(reference))
    }

    /// Copies an object into `out`, which must have its size, while it arrives; returns that size in bytes. Of the
    /// memory nothing is defined if the call fails.
    ///
    /// # Errors
    /// As [`Client::get`]; `ShapeMismatch` if the object does not fit.
    pub fn get_into<M: AsMut<[u8]> + Send>(
        &self,
        reference: impl AsRef<str>,
        out: M,
    ) -> Call<'_, GetInto<M>> {
        Call::new(&self.0, GetInto::new(reference, out))
    }

    /// Waits until `count` objects are ready: complete on some node, deleted or lost. Returns their indexes in the order
    /// in which they became ready, fewer than `count` only after the timeout.
    ///
    /// # Errors
    /// `InvalidArgument` if a ref is listed twice or `count` exceeds their number.
    pub fn wait_for(
        &self,
        refs: impl IntoIterator<Item = impl AsRef<str>>,
        count: usize,
    ) -> Call<'_, Simple<Vec<usize>>> {
        let ids = parse_all(refs).and_then(|ids| {
            checks::distinct(&ids, "refs to wait for")?;
            let count = checks::count(count, 0, ids.len())?;
            Ok((ids, count))
        });
        let start = ids
            .map(|(ids, count)| move |native: &Native, limit| native.start_wait(ids, count, limit));
        let finish = |_: &Native, ready: Vec<u32>| {
            ready.into_iter().map(|index| index as usize).collect::<Vec<_>>().into()
        };
        Call::new(&self.0, Simple::checked(start, finish))
    }

    /// Folds the first inputs to arrive by an operation: `sum`, `min`, `max`, `prod`, `mean`, `any` or `all`. Returns
    /// the ref of the result once the reduce is accepted. To cancel the reduce, delete the result. It also ends with
    /// this client: if that ends before the result is complete, readers get `ObjectLost`.
    ///
    /// # Errors
    /// `UnknownOp`, `InvalidArgument`, `NameTaken`, `NodeDown`. A get of the result reports what the inputs cause.
    pub fn reduce(
        &self,
        inputs: impl IntoIterator<Item = impl AsRef<str>>,
        op: impl AsRef<str>,
    ) -> Call<'_, Reduce> {
        Call::new(&self.0, Reduce::new(parse_all(inputs), op.as_ref()))
    }

    /// Waits until the inputs that a reduce folded are decided, and returns them. Only clients of the node on which the
    /// reduce was called can query this.
    ///
    /// # Errors
    /// `Timeout`, `InvalidArgument`, `ObjectDeleted`, `ObjectLost`.
    pub fn inputs(&self, reference: impl AsRef<str>) -> Call<'_, Simple<Vec<Ref>>> {
        let start = parse(reference)
            .map(|id| move |native: &Native, limit| native.start_inputs(&id, limit));
        Call::new(
            &self.0,
            Simple::checked(start, |_, ids| ids.iter().map(Ref::new).collect::<Vec<_>>().into()),
        )
    }

    /// Returns the inputs of a reduce that are lost now.
    ///
    /// # Errors
    /// As [`Client::inputs`].
    pub fn lost(&self, reference: impl AsRef<str>) -> Call<'_, Simple<Vec<Ref>>> {
        let start = parse(reference)
            .map(|id| move |native: &Native, limit| native.start_lost_inputs(&id, limit));
        Call::new(
            &self.0,
            Simple::checked(start, |_, ids| ids.iter().map(Ref::new).collect::<Vec<_>>().into()),
        )
    }

    /// Deletes all copies of objects on all nodes. Views stay valid. Waits for the deleted objects fail with
    /// `ObjectDeleted`, and their names can be put again.
    ///
    /// # Errors
    /// `Timeout`, `NotAllowed`, `NodeDown`.
    pub fn delete(&self, refs: impl IntoIterator<Item = impl AsRef<str>>) -> Call<'_, Simple<()>> {
        let start = parse_all(refs)
            .map(|ids| move |native: &Native, limit| native.start_delete(ids, limit));
        Call::new(&self.0, Simple::checked(start, |_, ()| ().into()))
    }

    /// Returns the newest object under a prefix that ends in `/`, such as `policy/` for `policy/17`.
    ///
    /// # Errors
    /// `Timeout` if no such name existed in time; `InvalidArgument`.
    pub fn latest(&self, prefix: &str) -> Call<'_, Latest> {
        Call::new(&self.0, Latest::new(prefix))
    }

    /// Reserves the ref of an object that this client will create, so that others can wait for it meanwhile.
    ///
    /// # Errors
    /// `NodeDown`.
    pub fn reserve(&self) -> Call<'_, Simple<Ref>> {
        let finish = |native: &Native, id| Outcome::new(Ref::new(&id), Discard::new(native, &id));
        Call::new(&self.0, Simple::new(|native, _| native.start_reserve(None, None), finish))
    }

    /// Reserves a name that no object has: it belongs to this client until the client puts, creates or reduces its
    /// object, deletes it, or ends. If it ends before, readers and reduces that wait for the object get `ObjectLost`,
    /// and another client can reserve or put the name.
    ///
    /// # Errors
    /// `NameTaken`, `Timeout`, `InvalidArgument`, `NotAllowed`, `NodeDown`.
    pub fn reserve_name(&self, name: impl AsRef<str>) -> Call<'_, Simple<Ref>> {
        let start = name
            .as_ref()
            .parse::<Name>()
            .map_err(Error::argument)
            .map(|name| move |native: &Native, limit| native.start_reserve(Some(name), limit));
        let finish = |native: &Native, id| Outcome::new(Ref::new(&id), Discard::new(native, &id));
        Call::new(&self.0, Simple::checked(start, finish))
    }

    /// Makes slots: refs that any client of the cluster may put or create, each once, with the directory entry on this
    /// client's node. A get or reduce of them here is answered without another host. Readers and puts of the unfilled
    /// ones get `ObjectLost` when this client ends.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotAllowed`, `StoreFull`, `NodeDown`.
    pub fn slots(&self, count: u32) -> Call<'_, Simple<Vec<Ref>>> {
        let finish = |native: &Native, ids: Vec<ObjectId>| {
            Outcome::new(ids.iter().map(Ref::new).collect(), Discard::all(native, ids))
        };
        Call::new(&self.0, Simple::new(move |native, _| native.start_slots(count), finish))
    }

    /// Takes a lease of an object, which need not exist yet. The object is deleted 5 s after its last lease ends.
    ///
    /// # Errors
    /// `Timeout`, `InvalidArgument`, `NotAllowed`.
    pub fn lease(&self, reference: impl AsRef<str>) -> Call<'_, Acquire> {
        Call::new(&self.0, Acquire(parse(reference)))
    }

    /// Lists the nodes that hold a copy of an object.
    ///
    /// # Errors
    /// `Timeout`, `NodeDown`.
    pub fn locations(&self, reference: impl AsRef<str>) -> Call<'_, Simple<Vec<Location>>> {
        let start = parse(reference)
            .map(|id| move |native: &Native, limit| native.start_locations(&id, None, limit));
        let finish = |_: &Native, all: Vec<NativeLocation>| {
            all.into_iter().map(Location::new).collect::<Vec<_>>().into()
        };
        Call::new(&self.0, Simple::checked(start, finish))
    }

    /// Returns the status of the node as JSON: identity, members, store, counters.
    ///
    /// # Errors
    /// `NodeDown`.
    pub fn status(&self) -> Call<'_, Simple<String>> {
        Call::new(&self.0, Simple::new(Native::start_describe, |_, json| json.into()))
    }

    /// The socket of its node, for [`connect`](crate::connect).
    pub fn socket(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Detaches from the node. Objects and views stay. Calls of this client that wait in other threads fail with
    /// `ClientClosed` at once. A second call does nothing.
    pub fn close(&self) {
        self.0.close();
    }

    /// Whether [`Client::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket()).finish_non_exhaustive()
    }
}

impl Location {
    fn new(native: NativeLocation) -> Self {
        let NativeLocation { member, complete } = native;
        let address = address_of(&member).map(|address| address.to_string());
        Self { node: member.id.to_string(), address, complete }
    }
}

impl ClientOptions {
    /// Completes the options from settings.
    ///
    /// # Errors
    /// `InvalidArgument` if a setting or the capability is not valid.
    pub(crate) fn with(self, settings: &Settings) -> Result<Self> {
        let capability = settings.find("capability", self.capability, kinds::text)?;
        let digest = settings.find("digest", self.digest, kinds::flag)?.value;
        let timeout = settings.find("timeout", self.timeout, kinds::seconds)?.value;
        let capability = capability.value.map(|text| capability_text(&text)).transpose()?;
        Ok(Self { capability, digest, timeout, ..self })
    }

    /// The terms of a client that attaches to a socket.
    pub(crate) fn terms(self) -> Terms {
        let Self { job, reconnect, capability, digest, timeout } = self;
        // A timeout beyond the range of the clock is no limit.
        let timeout = timeout.filter(|timeout| timeout.as_secs_f64() < TIMEOUT_S_MAX);
        Terms { job, reconnect, capability, digest: digest.unwrap_or_default(), timeout }
    }
}

/// The text of a capability, given as text or as the path of its file.
fn capability_text(given: &str) -> Result<String> {
    let (what, text) = if given.starts_with(CAPABILITY) {
        ("the capability".into(), given.to_owned())
    } else {
        let path = expanded(Path::new(given));
        let text = read_private(&path, "the capability", "a capability")?;
        (path.display().to_string(), text)
    };
    let text = text.trim_end_matches('\n');
    capability::read(text)
        .map_err(|error| Error::argument(format!("{what} is not valid: {error}")))?;
    Ok(text.into())
}
