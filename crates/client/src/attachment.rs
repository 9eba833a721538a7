//! A client's attachment to a node: its end, the reconnect to the next node, and its renewal in a forked child.
//!
//! Does not know objects.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use hoplite_node::{Client as Native, proto::id::ObjectId};

use crate::{
    error::{Error, ErrorKind, Result},
    mode::{Mode, left},
    process, signals,
};

/// How long a client with `reconnect` waits for the next node, counted from when it detects that its node is gone; and
/// at least, in a later call. A call with a timeout above 0 waits for at least the third. The last is the interval
/// between two attempts.
const RECONNECT: Duration = Duration::from_secs(10);
const LATER: Duration = Duration::from_millis(500);
const BRIEF: Duration = Duration::from_millis(20);
const RECONNECT_POLL: Duration = Duration::from_millis(50);

/// How long a forked child tries to attach to the node of its parent, which replies within milliseconds.
const FORKED: Duration = Duration::from_secs(10);

const CLOSED: &str = "this client is closed: create another with connect, init or a node's client";

/// What a client is, apart from its node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) job: Option<String>,
    pub(crate) reconnect: bool,
    /// The text of a capability.
    pub(crate) capability: Option<String>,
    pub(crate) digest: bool,
    /// Timeout of the calls that set none.
    pub(crate) timeout: Option<Duration>,
}

/// The attachment of a client; its clones share it.
pub struct Attachment {
    /// The number of the client in this process.
    number: u64,
    terms: Terms,
    /// The socket of its node.
    path: Option<PathBuf>,
    link: ArcSwap<Link>,
    is_closed: AtomicBool,
    /// Whether it ever had a lease. A client without any takes no lock, which a fork may hold, when it is dropped.
    had_leases: AtomicBool,
    /// The process that reconnects this client; 0 if none does. A forked child ignores its parent.
    renewing: AtomicU32,
    /// The node that lives in this process while the client lives.
    _node: Option<Arc<dyn Send + Sync>>,
}

/// One attachment to one node.
struct Link {
    native: Native,
    /// The fork after which it was made; see [`crate::fork`].
    fork: u32,
    /// When the client detected that the node is gone.
    gone_at: OnceLock<Instant>,
}

/// Number of forks that led to this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Marks the attachments of this process as those of its parent.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Attachment {
    /// A client of `native`, which serves `path`. `node` lives while the client lives.
    ///
    /// # Errors
    /// Those of joining the job.
    pub(crate) fn new(
        native: Native,
        path: Option<PathBuf>,
        terms: Terms,
        node: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Arc<Self>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let attachment = Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            terms,
            path,
            link: ArcSwap::from_pointee(Link::new(native)),
            is_closed: AtomicBool::new(false),
            had_leases: AtomicBool::new(false),
            renewing: AtomicU32::new(0),
            _node: node,
        };
        attachment.enter(&attachment.link.load().native)?;
        Ok(Arc::new(attachment))
    }

    /// Attaches to the node that serves `path`.
    pub(crate) fn attach(
        path: &Path,
        capability: Option<&String>,
        limit: Option<Duration>,
    ) -> Result<Native> {
        Ok(signals::blocked(|| match capability {
            None => Native::attach(path, limit),
            Some(text) => Native::attach_with_capability(path, text.clone(), limit),
        })?)
    }

    /// Whether puts announce the digest of their bytes.
    pub(crate) const fn digests(&self) -> bool {
        self.terms.digest
    }

    /// The timeout of the calls that set none.
    pub(crate) const fn timeout(&self) -> Option<Duration> {
        self.terms.timeout
    }

    /// The socket of its node.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The client of the node, and the rest of the timeout after a reconnect, if that is needed.
    ///
    /// # Errors
    /// [`ErrorKind::ClientClosed`]; [`ErrorKind::NodeDown`] if no node replaces a node that is gone;
    /// [`ErrorKind::ForkedClient`].
    pub(crate) async fn open(
        self: &Arc<Self>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<(Native, Option<Duration>)> {
        if let Some(native) = self.ready(mode) {
            return Ok((native, limit));
        }
        let (begun, this) = (Instant::now(), self.clone());
        let native = mode.aside(move || this.renew(limit)).await?;
        Ok((mode.native(&native), left(limit, begun)))
    }

    /// The client of the node, if it is usable now.
    pub(crate) fn ready(&self, mode: Mode) -> Option<Native> {
        let link = self.link.load();
        let is_gone = self.terms.reconnect && link.native.is_closed();
        let is_usable = !is_gone && link.is_own() && !self.is_closed();
        is_usable.then(|| mode.native(&link.native))
    }

    /// Ends every wait of the client.
    pub(crate) fn close(&self) {
        let link = self.link.load();
        if !self.is_closed.swap(true, Ordering::SeqCst) && link.is_own() {
            link.native.close();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Registers a lease, to take it again at the next node.
    pub(crate) fn note_lease(&self, id: &ObjectId) {
        self.had_leases.store(true, Ordering::Relaxed);
        process::with(|shared| {
            *shared.leases.entry((self.number, id.clone())).or_default() += 1;
        });
    }

    /// Removes a lease, and returns it to the node without waiting.
    pub(crate) fn release_lease(&self, id: &ObjectId) {
        let key = (self.number, id.clone());
        process::with(|shared| {
            if let Some(number) = shared.leases.get_mut(&key) {
                *number -= 1;
                if *number == 0 {
                    shared.leases.remove(&key);
                }
            }
        });
        let link = self.link.load();
        if link.is_own() && !self.is_closed() {
            drop(link.native.start_release_lease(id));
        }
    }

    /// Attaches to the next node, or in a forked child to the node of its parent.
    fn renew(&self, limit: Option<Duration>) -> Result<Native> {
        if self.is_closed() {
            return Err(Error::new(ErrorKind::ClientClosed, CLOSED));
        }
        if !self.link.load().is_own() {
            self.attach_anew()?;
        }
        let link = self.link.load_full();
        if self.terms.reconnect && link.native.is_closed() {
            return self.reattach(&link, limit);
        }
        Ok(link.native.clone())
    }

    /// Registers the job and the leases of this client at a node.
    fn enter(&self, native: &Native) -> Result<()> {
        if let Some(job) = &self.terms.job {
            let name = job.parse().map_err(Error::argument)?;
            native.start_join(name).join()?;
        }
        let mine = |((client, id), number): (&(u64, ObjectId), &u32)| {
            (*client == self.number).then(|| (id.clone(), *number))
        };
        if !self.had_leases.load(Ordering::Relaxed) {
            return Ok(());
        }
        let leases: Vec<_> =
            process::with(|shared| shared.leases.iter().filter_map(mine).collect());
        for (id, number) in leases {
            for _ in 0..number {
                native.start_acquire_lease(&id).join()?;
            }
        }
        Ok(())
    }

    fn attached(&self, path: &Path, limit: Duration) -> Result<Native> {
        let native = Self::attach(path, self.terms.capability.as_ref(), Some(limit))?;
        self.enter(&native)?;
        Ok(native)
    }

    /// Waits for the node that replaces the one of `gone`, and attaches to it.
    fn reattach(&self, gone: &Link, call_limit: Option<Duration>) -> Result<Native> {
        let Some(path) = &self.path else {
            return Err(Error::new(ErrorKind::NodeDown, "node down: the node is closed"));
        };
        let now = Instant::now();
        let gone_for = now.duration_since(*gone.gone_at.get_or_init(|| now));
        // Later calls wait for less time, so that they do not all wait for a node that never starts.
        let longest = RECONNECT.saturating_sub(gone_for).max(LATER);
        // A timeout of 0 requests the present state of objects, which only a node knows.
        let call_limit = call_limit.filter(|limit| !limit.is_zero());
        let limit = call_limit.map_or(longest, |limit| longest.min(limit.max(BRIEF)));
        let until = now + limit;
        let mut reason = "another thread is still reconnecting".to_owned();
        loop {
            // Another thread may have attached meanwhile.
            let link = self.link.load();
            if self.is_closed() {
                return Err(Error::new(ErrorKind::ClientClosed, CLOSED));
            }
            if !link.native.is_closed() {
                return Ok(link.native.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if let Some(_turn) = Turn::take(&self.renewing) {
                match self.attached(path, left) {
                    Ok(native) => {
                        self.link.store(Arc::new(Link::new(native.clone())));
                        if self.is_closed() {
                            native.close();
                        }
                        continue;
                    }
                    // The capability has expired, or the next node has another token.
                    Err(error) if error.kind() == ErrorKind::NotAllowed => return Err(error),
                    Err(error) => reason = error.to_string(),
                }
            }
            if Instant::now() >= until {
                let message = format!(
                    "the node at {} is gone, and no other node served that socket within {:.3} s ({reason}): start it \
                     again with hoplite node, or find another node with init",
                    path.display(),
                    limit.as_secs_f64()
                );
                return Err(Error::new(ErrorKind::NodeDown, message));
            }
            thread::sleep(limit.min(RECONNECT_POLL));
        }
    }

    /// Attaches a forked child to the node of its parent, whose attachment is not usable here.
    fn attach_anew(&self) -> Result<()> {
        let forked = |message: String| Error::new(ErrorKind::ForkedClient, message);
        let Some(path) = &self.path else {
            return Err(forked(
                "the node is embedded in the parent of this process and has no socket: start a node in this process"
                    .into(),
            ));
        };
        let native = self.attached(path, FORKED).map_err(|error| {
            forked(format!(
                "this forked process can't attach to the node of its parent ({error}): find or start another node \
                 here with init, or run hoplite node before the fork"
            ))
        })?;
        self.link.store(Arc::new(Link::new(native)));
        Ok(())
    }
}

impl Link {
    fn new(native: Native) -> Self {
        Self { native, fork: FORKS.load(Ordering::Relaxed), gone_at: OnceLock::new() }
    }

    /// Whether this process made it, not its parent.
    fn is_own(&self) -> bool {
        self.fork == FORKS.load(Ordering::Relaxed)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let number = self.number;
        if *self.had_leases.get_mut() {
            process::with(|shared| shared.leases.retain(|(client, _), _| *client != number));
        }
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The turn of one thread of this process to reconnect a client.
struct Turn<'a>(&'a AtomicU32);

impl<'a> Turn<'a> {
    fn take(holder: &'a AtomicU32) -> Option<Self> {
        let process = std::process::id();
        let before = holder.load(Ordering::Acquire);
        let is_taken = before != process
            && holder
                .compare_exchange(before, process, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        is_taken.then_some(Self(holder))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
