//! The connection of a client to its node, in this process or over the Unix socket: sends requests,
//! receives replies with their memory. Does not interpret requests.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    os::fd::{OwnedFd, RawFd},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{
    error::Error as CallError,
    id::{ClientId, Instance, ObjectId, RequestId},
    request::{Reply, Request},
};
use hoplite_shm::{Slot, process_id};
use tokio::runtime::Handle;

use super::{
    attach::{Attached, Callback},
    programs::Programs,
    protocol::ToNode,
};
use crate::{
    error::Error,
    fork_safe::{self, Noted},
    repeats::log_once,
    shared_epoll::{SharedEpoll, Waited},
    store::Store,
    sync::lock,
};

/// All connections of this process.
static ALL: Mutex<Vec<Weak<Connection>>> = Mutex::new(Vec::new());

/// The locked lists of sockets and of connections.
type Locked = (Noted, MutexGuard<'static, Vec<Weak<Connection>>>);

thread_local! {
    /// What this thread holds between [`before_fork`] and [`after_fork`].
    static HELD: RefCell<Option<Locked>> = const { RefCell::new(None) };
}

/// Locks the lists and returns descriptors and inodes of the sockets of nodes and attachments. A
/// descriptor with another inode now is a different socket.
///
/// No other thread can lock the lists until [`after_fork`]: in the child it could not unlock them.
pub fn before_fork() -> Vec<(RawFd, u64)> {
    after_fork();
    let noted = fork_safe::all();
    let all = noted.iter().map(|(descriptor, inode)| (*descriptor, *inode)).collect();
    HELD.set(Some((noted, lock(&ALL))));
    all
}

/// Releases the locks of [`before_fork`], in the parent and in the child. Does nothing without it.
pub fn after_fork() {
    drop(HELD.take());
}

/// A wait that ends when its client is closed.
pub(crate) trait Close: Send + Sync {
    fn close(&self);
}

/// A client's link to a node, in its process or over the socket.
pub(crate) struct Connection {
    link: Link,
    process: u32,
    /// Number of views that pin memory.
    reads: AtomicUsize,
    is_closed: AtomicBool,
    /// Open requests with their numbers, by the address of their shared state.
    waits: Mutex<HashMap<usize, Waiting>>,
}

/// The number of a request, and its wait.
type Waiting = (u64, Arc<dyn Close>);

enum Link {
    Embedded { programs: Arc<Programs>, client: ClientId },
    Attached(Attached),
}

impl Connection {
    pub(crate) fn embedded(programs: Arc<Programs>) -> Arc<Self> {
        let client = programs.next_client();
        Self::new(Link::Embedded { programs, client })
    }

    /// Attaches to the node that serves `path`.
    ///
    /// # Errors
    /// As [`Attached::connect`].
    pub(crate) fn attach(
        path: &Path,
        capability: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Arc<Self>, Error> {
        Ok(Self::new(Link::Attached(Attached::connect(path, capability, timeout)?)))
    }

    fn new(link: Link) -> Arc<Self> {
        let (process, reads, is_closed) =
            (process_id(), AtomicUsize::new(0), AtomicBool::new(false));
        let connection =
            Arc::new(Self { link, process, reads, is_closed, waits: Mutex::default() });
        let mut all = lock(&ALL);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&connection));
        connection
    }

    /// Pins everything that all clients of this process read; see [`Connection::hold`]. Includes
    /// closed clients, whose views live on.
    pub(crate) fn pin_for_fork() -> Vec<OwnedFd> {
        let all: Vec<Arc<Self>> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
        let is_reading = |connection: &&Arc<Self>| {
            !connection.is_forked() && connection.reads.load(Ordering::Relaxed) > 0
        };
        let reading = all.iter().filter(is_reading);
        let held = reading.filter_map(|connection| {
            let lifeline = connection.hold();
            lifeline
                .inspect_err(|error| {
                    log_once!(
                        warn, error.kind(), %error,
                        "a forked child may lose the objects that it reads"
                    )
                })
                .ok()
        });
        held.collect()
    }

    /// Whether its node is closed or gone.
    pub(crate) fn is_down(&self) -> bool {
        match &self.link {
            Link::Embedded { programs, .. } => programs.network.tasks.is_closed(),
            Link::Attached(attached) => attached.is_closed(),
        }
    }

    /// The node's process, if it is known to be stopped.
    pub(crate) fn stopped_process(&self) -> Option<u32> {
        match &self.link {
            Link::Embedded { .. } => None,
            Link::Attached(attached) => attached.stopped_process(),
        }
    }

    /// Whether the members of the node's cluster are authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        match &self.link {
            Link::Embedded { programs, .. } => programs.network.identity.is_authenticated(),
            Link::Attached(attached) => attached.is_authenticated,
        }
    }

    /// Whether this process is a forked child of the process that opened the connection.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != process_id()
    }

    /// Pins everything that is read now, while any process has the returned descriptor: before a
    /// fork, whose child has the views too. Not for a forked child.
    fn hold(&self) -> io::Result<OwnedFd> {
        match &self.link {
            Link::Embedded { programs, client } => programs.hold(*client, ()),
            Link::Attached(attached) => attached.hold(),
        }
    }

    /// Ends every wait.
    pub(crate) fn close(&self) {
        if self.is_forked() {
            return;
        }
        self.is_closed.store(true, Ordering::SeqCst);
        let waits = std::mem::take(&mut *lock(&self.waits));
        waits.values().for_each(|(_, wait)| wait.close());
        // Cancel only now: the replies then find no wait.
        waits.values().for_each(|(request, _)| self.send(ToNode::Cancel { request: *request }));
        self.send(ToNode::Notify { body: Request::CancelReservations });
    }

    /// Whether [`Connection::close`] was called.
    pub(crate) fn was_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Registers a waiting request, which [`Connection::close`] ends.
    pub(crate) fn register(&self, request: u64, wait: Arc<dyn Close>) {
        if self.is_forked() {
            return;
        }
        lock(&self.waits).insert(Arc::as_ptr(&wait).addr(), (request, wait.clone()));
        if self.was_closed() {
            wait.close();
            self.send(ToNode::Cancel { request });
        }
    }

    /// Removes a request, by the address of its shared state.
    pub(crate) fn unregister(&self, place: usize) {
        if !self.is_forked() {
            lock(&self.waits).remove(&place);
        }
    }

    /// Sends a request; `callback` gets the reply with its memory. `timed` is the timeout, and
    /// since when it runs. `may_wait` if this thread would block for the reply anyway. Returns the
    /// number of the request.
    pub(crate) fn ask(
        &self,
        body: Request,
        timed: Option<(Duration, Instant)>,
        may_wait: bool,
        callback: impl FnOnce(u64, Result<(Reply, Option<Slot>), CallError>) + Send + 'static,
    ) -> u64 {
        match &self.link {
            Link::Embedded { programs, client } => {
                let store = programs.store.clone();
                let sink = move |reply: Result<Reply, CallError>| {
                    // Only attached clients need the node's number of the request.
                    callback(0, reply.and_then(|reply| with_slot(&store, reply)));
                };
                let deadline = timed.map(|(timeout, begun)| programs.events.after(begun, timeout));
                programs.submit(*client, body, deadline, may_wait, None, Box::new(sink)).0
            }
            Link::Attached(attached) => {
                let request = attached.next_request();
                let callback: Callback = Box::new(move |reply| callback(request, reply));
                attached.ask(request, body, timed.map(|(timeout, _)| timeout), callback);
                request
            }
        }
    }

    /// Deletes an object whose id no caller received, even for a closed client.
    pub(crate) fn delete_in_passing(&self, id: ObjectId) {
        if !self.is_forked() {
            self.ask(Request::Delete { ids: vec![id] }, None, false, |_, _| {});
        }
    }

    /// The epoll on which this thread can receive its reply itself.
    pub(crate) fn epoll(&self) -> Option<Arc<SharedEpoll>> {
        match &self.link {
            _ if self.is_forked() => None,
            // A runtime's thread has other tasks, which must not wait behind this node's events.
            Link::Embedded { .. } if Handle::try_current().is_ok() => None,
            Link::Embedded { programs, .. } => Some(programs.network.control.epoll.clone()),
            Link::Attached(attached) => Some(attached.epoll()),
        }
    }

    /// Handles events of [`Connection::epoll`] on this thread, until `is_over` or for at most
    /// `time`.
    pub(crate) fn wait_in_epoll(&self, time: Duration, is_over: impl Fn() -> bool) -> Waited {
        match &self.link {
            Link::Embedded { programs, .. } => programs.network.control.wait(time, is_over),
            Link::Attached(attached) => attached.wait(time, is_over),
        }
    }

    /// Sends a message without a reply.
    pub(crate) fn send(&self, message: ToNode) {
        match &self.link {
            _ if self.is_forked() => {}
            Link::Attached(attached) => attached.send(&message),
            Link::Embedded { programs, client } => match message {
                ToNode::Cancel { request } => {
                    programs.cancel(*client, RequestId(request));
                }
                ToNode::Notify { body } => programs.notify(*client, body),
                ToNode::Advanced { instance } => programs.advanced(instance),
                // The other messages concern memory mapped by another process.
                _ => {}
            },
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Link::Embedded { programs, client } = &self.link
            && self.process == process_id()
        {
            programs.gone(*client, Some(process_id()));
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.link {
            Link::Embedded { programs, client } => write!(f, "{client:?} of {programs:?}"),
            Link::Attached(attached) => write!(f, "attached to {}", attached.member.id),
        }
    }
}

/// The instance whose memory a reply refers to.
const fn slot_of(reply: &Reply) -> Option<Instance> {
    match reply {
        Reply::Created { instance, .. }
        | Reply::Growing { instance, .. }
        | Reply::Got { instance, inline: None, .. } => Some(*instance),
        _ => None,
    }
}

/// A reply of a node in this process, with the memory that it refers to.
fn with_slot(store: &Store, reply: Reply) -> Result<(Reply, Option<Slot>), CallError> {
    let Some(instance) = slot_of(&reply) else { return Ok((reply, None)) };
    let slot = store.slot(instance);
    // Without memory, the growing copy is gone: there is nothing to follow.
    if slot.is_none() && !matches!(reply, Reply::Growing { .. }) {
        return Err(CallError::NodeDown("the node is closed".into()));
    }
    Ok((reply, slot))
}

/// The memory of a reply. Dropping it notifies the node.
pub(crate) struct SlotGuard {
    pub(crate) connection: Arc<Connection>,
    pub(crate) instance: Instance,
    pub(crate) slot: Option<Slot>,
    pub(crate) at_end: OnDrop,
    /// Whether its reader has copied it.
    pub(crate) is_copied: AtomicBool,
}

/// The message to the node when a guard is dropped.
pub(crate) enum OnDrop {
    Release,
    Abort,
    /// Stop following, with the number of the request.
    StopFollowing(u64),
    Nothing,
}

impl SlotGuard {
    /// Takes the memory of a reply to the request with this number.
    pub(crate) fn of(
        connection: &Arc<Connection>,
        request: u64,
        reply: &Reply,
        slot: Option<Slot>,
    ) -> Option<Self> {
        let instance = slot_of(reply)?;
        let at_end = match reply {
            Reply::Growing { .. } if slot.is_none() => return None,
            Reply::Growing { .. } => OnDrop::StopFollowing(request),
            Reply::Got { .. } => {
                connection.reads.fetch_add(1, Ordering::Relaxed);
                // The node has seen the seal; the header is the writer's.
                if let Some(slot) = &slot {
                    slot.record_complete();
                }
                OnDrop::Release
            }
            _ => OnDrop::Abort,
        };
        let (connection, is_copied) = (connection.clone(), AtomicBool::new(false));
        Some(Self { connection, instance, slot, at_end, is_copied })
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if self.connection.is_forked() {
            // The parent owns the pins. Dropping the slot would return its memory to a list that
            // the child does not share.
            std::mem::forget(self.slot.take());
            return;
        }
        if matches!(self.at_end, OnDrop::Release) {
            self.connection.reads.fetch_sub(1, Ordering::Relaxed);
        }
        let instance = self.instance;
        // Unmap before notifying the node, which may reuse the memory at once.
        self.slot = None;
        let is_copied = *self.is_copied.get_mut();
        self.connection.send(match self.at_end {
            OnDrop::Release if is_copied => {
                ToNode::Notify { body: Request::ReleaseCopied { instance } }
            }
            OnDrop::Release => ToNode::Notify { body: Request::Release { instance } },
            OnDrop::Abort => ToNode::Notify { body: Request::Abort { instance } },
            OnDrop::StopFollowing(request) => ToNode::StopFollowing { request },
            OnDrop::Nothing => return,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::metadata,
        net::UdpSocket,
        os::{fd::AsRawFd, unix::fs::MetadataExt},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::fork_safe::note;

    #[test]
    fn no_other_thread_has_the_list_during_a_fork() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let descriptor = socket.as_raw_fd();
        // Another test may have registered a socket with this descriptor before.
        let inode = metadata(format!("/proc/self/fd/{descriptor}")).unwrap().ino();
        let is_it = |noted: &(RawFd, u64)| *noted == (descriptor, inode);
        assert!(!before_fork().iter().any(is_it));
        let noting = thread::spawn(move || {
            note(&socket);
            socket
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!noting.is_finished());
        after_fork();
        let _socket = noting.join().unwrap();
        assert!(before_fork().iter().any(is_it));
        after_fork();
    }
}
