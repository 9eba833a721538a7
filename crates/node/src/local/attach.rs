//! The other end of a node's Unix socket: a process that uses the node of its host.
//!
//! A thread of its own takes the answers off the socket, or one that waits for an answer; any thread may ask. Extents
//! are mapped once each and stay mapped for as long as a view needs them.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, SendError, SyncSender, sync_channel},
    },
    time::Duration,
};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    members::Member,
};
use hoplite_shm::{
    ExtentId, Mapping, Peer, Slot, peer, recv_with_fds, send_with_fds, try_recv_with_fds,
    try_send_with_fds,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{
    incoming::Incoming,
    protocol::{COPY, FRAME_BYTES_MAX, FromNode, LOCAL_VERSION, Place, ToNode, frame},
    socket,
};
use crate::{
    error::Error,
    fork_safe,
    shared_epoll::{SharedEpoll, Waited},
    sync::lock,
};

/// What a question is answered with.
#[derive(Debug)]
pub(crate) enum Reply {
    /// With the memory that the answer speaks of.
    Answer(Answer, Option<Slot>),
    /// The status of the node, as JSON.
    Status(String),
}

/// Takes the answer to a question.
pub(crate) type Callback = Box<dyn FnOnce(Result<Reply, CallError>) + Send>;
/// None if this process may open no more files.
type Lifeline = Option<OwnedFd>;

/// A connection to the node of this host.
pub(crate) struct Attached {
    shared: Arc<Shared>,
    pub(crate) member: Member,
    /// The node's process; none if it is in a PID namespace that this process can't see into.
    node_process: Option<u32>,
    /// Whether all members of the node's cluster have proved who they are.
    pub(crate) is_authenticated: bool,
}

struct Shared {
    stream: UnixStream,
    /// What has no room in the socket. As long as there is some, only a thread of its own writes.
    unsent: Mutex<Unsent>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Callback>>,
    /// Who waits for a lifeline, in the order of the requests.
    holding: Mutex<VecDeque<SyncSender<Lifeline>>>,
    extents: Mutex<HashMap<u64, Arc<Mapping>>>,
    epoll: Arc<SharedEpoll>,
    /// Locked for as long as answers are taken, so that they stay in order.
    incoming: Mutex<Incoming>,
    is_closed: AtomicBool,
    /// Why the node has ended itself, or the attachment, if it said so.
    ended: OnceLock<String>,
    /// The process that attached; a fork of it must not use the socket.
    process: u32,
}

/// Frames that wait for room in the socket, of the first perhaps the rest.
#[derive(Default)]
struct Unsent {
    frames: VecDeque<Vec<u8>>,
    /// Whether a thread writes them.
    has_writer: bool,
}

/// How long a node may take to greet. It answers from memory; more means that it is frozen.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// How long a fork waits for a node to pin what is read. It answers from memory; more means that it is frozen.
const HOLD_PATIENCE: Duration = Duration::from_secs(2);

/// What follows the reason why calls fail.
const ADVICE: &str = "the next call attaches to the node that serves the same socket by then, unless the client was made \
                      with reconnect=False";

impl Attached {
    /// Attaches to the node that serves `path`, to ask no more than a capability allows, if there is one.
    ///
    /// # Errors
    /// [`Error::Attach`] if no node answers there, or one of another release; [`CallError::NotAllowed`] if it does not take the
    /// capability, or takes no process without one.
    pub(crate) fn connect(
        path: &Path,
        capability: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let fail = |detail: String| Error::Attach { path: path.display().to_string(), detail };
        let io_fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                fail("there is no socket; is a node running on this host?".into())
            }
            io::ErrorKind::ConnectionRefused => {
                fail("the node that served it is gone; start one with `hoplite node`".into())
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                fail("the node does not answer".into())
            }
            io::ErrorKind::PermissionDenied => fail(format!(
                "its file is another user's; run this process, in its container too, as the user of the node ({error})"
            )),
            io::ErrorKind::InvalidData => fail(format!(
                "what serves it does not speak this protocol; is it a node of another release? ({error})"
            )),
            _ => fail(error.to_string()),
        };
        let stream = UnixStream::connect(path).map_err(io_fail)?;
        // Before a byte of it is believed.
        let Peer { user, process: node_process } = peer(stream.as_fd()).map_err(io_fail)?;
        if socket::is_stranger(user) {
            return Err(fail(format!(
                "user {user} serves it, and this process is of user {}: attach to a node of your own user",
                socket::own_user()
            )));
        }
        let patience = timeout.unwrap_or(GREETING_PATIENCE).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(patience)).map_err(io_fail)?;
        // One that refuses at once has closed the connection by now, and said why.
        let version = LOCAL_VERSION;
        let hello = match capability {
            None => ToNode::Hello { version },
            Some(capability) => ToNode::Confined { version, capability },
        };
        let _ = send_with_fds(&stream, &frame(&hello), &[]);
        let mut incoming = Incoming::default();
        let (member, is_authenticated) =
            match incoming.next(&stream, recv_with_fds).map_err(io_fail)? {
                Some(FromNode::Welcome { member, is_authenticated }) => (member, is_authenticated),
                Some(FromNode::Refused { said }) => return Err(fail(said)),
                Some(FromNode::NotAllowed { said }) => {
                    return Err(CallError::NotAllowed(said).into());
                }
                Some(_) => {
                    return Err(fail(
                        "what serves it answered before it greeted; is it a node?".into(),
                    ));
                }
                None => return Err(fail("the node closed the connection".into())),
            };
        stream.set_read_timeout(None).map_err(io_fail)?;
        fork_safe::note(&stream);
        let epoll = SharedEpoll::new().map_err(io_fail)?;
        epoll.add(&stream, 0).map_err(io_fail)?;
        let shared = Arc::new(Shared {
            stream,
            unsent: Mutex::default(),
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            holding: Mutex::default(),
            extents: Mutex::default(),
            epoll: Arc::new(epoll),
            incoming: Mutex::new(incoming),
            is_closed: AtomicBool::new(false),
            ended: OnceLock::new(),
            process: std::process::id(),
        });
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("hoplite-attached".into())
            .spawn(move || {
                let _end = EndsWithThread(of_thread.clone());
                // Behind the greeting there may be more.
                of_thread.take();
                of_thread.epoll.run(|_, _| of_thread.take());
            })
            .map_err(io_fail)?;
        Ok(Self { shared, member, node_process, is_authenticated })
    }

    /// The number of a question that is about to be asked.
    pub(crate) fn next_request(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks; `callback` gets the answer on the thread that has it.
    pub(crate) fn ask(
        &self,
        request: u64,
        ask: Ask,
        timeout: Option<Duration>,
        callback: Callback,
    ) {
        let timeout_ns =
            timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let bytes = frame(&ToNode::Ask { request, ask, timeout_ns });
        if bytes.len() > FRAME_BYTES_MAX {
            let said = format!(
                "the arguments take {} bytes, and {FRAME_BYTES_MAX} fit one call: split it, or use shorter names",
                bytes.len()
            );
            callback(Err(CallError::InvalidArgument(said)));
            return;
        }
        lock(&self.shared.waiting).insert(request, callback);
        self.shared.write(bytes);
        if self.shared.is_closed.load(Ordering::Acquire) {
            self.shared.fail_all();
        }
    }

    /// What this process reads now stays pinned while a process has the descriptor that this returns.
    ///
    /// # Errors
    /// The node is gone or answers late, or this process may open no more files.
    pub(crate) fn hold(&self) -> io::Result<OwnedFd> {
        let (sender, lifeline) = sync_channel(1);
        {
            let mut holding = lock(&self.shared.holding);
            holding.push_back(sender);
            self.shared.say(&ToNode::Hold);
        }
        if self.shared.is_closed.load(Ordering::Acquire) {
            self.shared.fail_all();
        }
        match lifeline.recv_timeout(HOLD_PATIENCE) {
            Ok(Some(lifeline)) => Ok(lifeline),
            Ok(None) => Err(Errno::MFILE.into()),
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Says something that has no answer.
    pub(crate) fn say(&self, message: &ToNode) {
        self.shared.say(message);
    }

    /// Whether the node is closed or gone, also when the thread that takes answers has not seen that yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire) || self.shared.has_hung_up()
    }

    /// The node's process, if it is stopped by a signal or a debugger. Without /proc, or from another PID namespace, it is not
    /// known to be.
    pub(crate) fn stopped_process(&self) -> Option<u32> {
        let process = self.node_process?;
        let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in parentheses, may be any bytes.
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        matches!(stat.get(name_end + 2)?, b'T' | b't').then_some(process)
    }

    pub(crate) fn epoll(&self) -> Arc<SharedEpoll> {
        self.shared.epoll.clone()
    }

    /// Takes answers with the calling thread; see [`SharedEpoll::wait`].
    pub(crate) fn wait(&self, time: Duration, is_over: impl Fn() -> bool) -> Waited {
        self.shared.epoll.wait(time, is_over, |_, _| self.shared.take())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.shared.process == std::process::id() {
            let _ = self.shared.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    fn say(self: &Arc<Self>, message: &ToNode) {
        self.write(frame(message));
    }

    /// Writes a frame after all others, and never waits: a node that is frozen reads nothing.
    ///
    /// The thread that reads notices when the node is gone, and ends all waits.
    fn write(self: &Arc<Self>, bytes: Vec<u8>) {
        let mut unsent = lock(&self.unsent);
        if unsent.has_writer {
            unsent.frames.push_back(bytes);
            return;
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match try_send_with_fds(&self.stream, rest, &[]) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    unsent.frames.push_back(rest.to_vec());
                    let of_writer = self.clone();
                    let writer = std::thread::Builder::new().name("hoplite-unsent".into());
                    unsent.has_writer = writer.spawn(move || of_writer.write_unsent()).is_ok();
                    if !unsent.has_writer {
                        // Half a frame can't be followed by another: without a thread the connection is of no use.
                        unsent.frames.clear();
                        let _ = self.stream.shutdown(std::net::Shutdown::Both);
                    }
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Writes with this thread what there is to be written, until that is nothing.
    fn write_unsent(&self) {
        loop {
            let mut unsent = lock(&self.unsent);
            let Some(bytes) = unsent.frames.pop_front() else {
                unsent.has_writer = false;
                return;
            };
            drop(unsent);
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let Ok(count) = send_with_fds(&self.stream, rest, &[]) else {
                    // The node is gone: nothing that is written now arrives.
                    *lock(&self.unsent) = Unsent::default();
                    return;
                };
                rest = &rest[count..];
            }
        }
    }

    /// Takes all answers that are there, or learns that the node is gone.
    fn take(self: &Arc<Self>) {
        let mut incoming = lock(&self.incoming);
        loop {
            let message = match incoming.next(&self.stream, try_recv_with_fds) {
                Ok(Some(message)) => message,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => break,
            };
            match message {
                FromNode::Answer { request, answer, place } => {
                    let needed = place.as_ref().map_or(0, |place| place.len);
                    let slot = match place.map(|place| self.open(&place, &mut incoming, &answer)) {
                        None => Ok(None),
                        Some(Ok(slot)) => Ok(Some(slot)),
                        Some(Err(detail)) => {
                            self.decline(&answer);
                            Err(CallError::NoMemory { needed, detail })
                        }
                    };
                    if slot.is_err() && matches!(answer, Ok(Answer::Growing { .. })) {
                        self.say(&ToNode::LetGo { request });
                    }
                    self.reply(request, slot.and_then(|slot| Ok(Reply::Answer(answer?, slot))));
                }
                FromNode::Description { request, json } => {
                    self.reply(request, json.map(Reply::Status));
                }
                FromNode::Forget { extents } => {
                    let mut mapped = lock(&self.extents);
                    let gone: Vec<Option<Arc<Mapping>>> =
                        extents.iter().map(|extent| mapped.remove(extent)).collect();
                    drop(mapped);
                    drop(gone);
                    for extent in extents {
                        self.say(&ToNode::Unmapped { extent });
                    }
                }
                // The end of the connection follows.
                FromNode::Down { said } => drop(self.ended.set(said)),
                FromNode::Refused { said } => {
                    let said = format!(
                        "the node of this host ended the attachment of this process: {said}"
                    );
                    drop(self.ended.set(said));
                }
                FromNode::Lifeline => {
                    let waiting = lock(&self.holding).pop_front();
                    let late = waiting.map(|waiting| waiting.send(incoming.descriptor()));
                    if let Some(Err(SendError(Some(lifeline)))) = late {
                        // The child was forked without it, and is not to lose what it reads as long as this process lives.
                        std::mem::forget(lifeline);
                    }
                }
                FromNode::Welcome { .. } | FromNode::NotAllowed { .. } => {}
            }
        }
        drop(incoming);
        self.end();
    }

    fn reply(&self, request: u64, reply: Result<Reply, CallError>) {
        let callback = lock(&self.waiting).remove(&request);
        if let Some(callback) = callback {
            callback(reply);
        }
    }

    /// Whether the node has closed its end; what it said before may still be unread.
    fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The node is gone, or no thread takes its answers any more.
    fn end(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.fail_all();
        self.epoll.close();
    }

    fn fail_all(&self) {
        let reason = self.ended.get().map_or("the node of this host is gone", String::as_str);
        let gone = || CallError::NodeDown(format!("{reason}; {ADVICE}"));
        let waiting: Vec<Callback> =
            lock(&self.waiting).drain().map(|(_, callback)| callback).collect();
        waiting.into_iter().for_each(|callback| callback(Err(gone())));
        lock(&self.holding).clear();
    }

    /// Gives back what an answer granted, since it can't be used.
    fn decline(self: &Arc<Self>, answer: &Result<Answer, CallError>) {
        match answer {
            Ok(Answer::Got { instance, .. }) => {
                self.say(&ToNode::Tell { ask: Ask::Release { instance: *instance } });
            }
            Ok(Answer::Created { instance, .. }) => {
                self.say(&ToNode::Tell { ask: Ask::Abort { instance: *instance } });
            }
            _ => {}
        }
    }

    /// The slot that an answer speaks of, in memory that this process maps.
    fn open(
        self: &Arc<Self>,
        place: &Place,
        incoming: &mut Incoming,
        answer: &Result<Answer, CallError>,
    ) -> Result<Slot, String> {
        let said = |error: hoplite_shm::ShmError| format!("shared memory can't be used: {error}");
        let mapping = if place.has_descriptor {
            let Some(descriptor) = incoming.descriptor() else {
                // The kernel drops what it has no number for.
                self.say(&ToNode::Unmapped { extent: place.extent });
                return Err("this process may open no more files, and needs one for a moment to map the object's \
                            memory; close some, or raise the limit with ulimit -n"
                    .into());
            };
            let is_mine = matches!(answer, Ok(Answer::Created { .. }));
            let mapping = if is_mine {
                Mapping::map_writable(&descriptor, place.extent_len)
            } else if place.extent & COPY != 0 {
                Mapping::map_lent(&descriptor, place.extent_len)
            } else {
                Mapping::map_readonly(&descriptor, place.extent_len)
            };
            let mapping = mapping.map_err(|error| {
                self.say(&ToNode::Unmapped { extent: place.extent });
                said(error)
            })?;
            let mapping = Arc::new(mapping.with_extent(ExtentId(place.extent)));
            if is_mine {
                self.say(&ToNode::Mapped { extent: place.extent });
            }
            lock(&self.extents).insert(place.extent, mapping.clone());
            mapping
        } else {
            lock(&self.extents)
                .get(&place.extent)
                .cloned()
                .ok_or("the node spoke of unknown memory")?
        };
        Slot::open(mapping, place.offset, place.len).map_err(said)
    }
}

/// Ends the attachment with the thread that takes answers, also by a panic: no wait outlives it.
struct EndsWithThread(Arc<Shared>);

impl Drop for EndsWithThread {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
