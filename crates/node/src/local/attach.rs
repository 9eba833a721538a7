//! The client's end of a node's Unix socket, in an attached process.
//!
//! A dedicated thread receives replies, or a thread that waits for one. Any thread may send
//! requests. Each extent is mapped once and stays mapped while a view needs it.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, SendError, SyncSender, sync_channel},
    },
    time::Duration,
};

use hoplite_proto::{
    error::Error as CallError,
    members::Member,
    request::{Reply, Request},
};
use hoplite_shm::{
    ExtentId, Mapping, Slot, process_id, send_with_fds, try_recv_with_fds, try_send_with_fds,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::{
    greeting::{Greeted, cannot_attach, greet},
    protocol::{COPY, FRAME_BYTES_MAX, FromNode, Region, ReplyReader, ToNode, frame},
};
use crate::{
    error::Error,
    fork_safe,
    shared_epoll::{SharedEpoll, Waited},
    sync::lock,
};

/// Receives the reply to a request, with the memory that it refers to.
pub(crate) type Callback = Box<dyn FnOnce(Result<(Reply, Option<Slot>), CallError>) + Send>;
/// A pipe end that pins memory for a forked child. None if this process is at its limit of open
/// files.
type Lifeline = Option<OwnedFd>;

/// A connection to the node of this host.
pub(crate) struct Attached {
    shared: Arc<Shared>,
    pub(crate) member: Member,
    /// The node's process; None if it is in a PID namespace invisible to this process.
    node_process: Option<u32>,
    /// Whether the members of the node's cluster are authenticated.
    pub(crate) is_authenticated: bool,
}

struct Shared {
    stream: UnixStream,
    /// Frames that the socket has not accepted. While there are some, only a dedicated thread
    /// writes.
    unsent: Mutex<Unsent>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Callback>>,
    /// Threads that wait for a lifeline, in the order of the requests.
    holding: Mutex<VecDeque<SyncSender<Lifeline>>>,
    extents: Mutex<HashMap<u64, Arc<Mapping>>>,
    epoll: Arc<SharedEpoll>,
    /// Locked while replies are received, so that they stay in order.
    incoming: Mutex<ReplyReader>,
    is_closed: AtomicBool,
    /// Why the node or the attachment ended, if the node reported it.
    ended: OnceLock<String>,
    /// The process that attached; a forked child must not use the socket.
    process: u32,
}

/// Frames that wait for space in the socket. The first may be partial.
#[derive(Default)]
struct Unsent {
    frames: VecDeque<Vec<u8>>,
    /// Whether a thread writes them.
    has_writer: bool,
}

/// How long a fork waits for the node to pin views. A node replies from memory; longer means that
/// it is unresponsive.
const HOLD_TIMEOUT: Duration = Duration::from_secs(2);

/// Appended to the reason why calls fail.
const ADVICE: &str = "the next call attaches to the node that then serves the socket, unless the \
                      client was created with reconnect=False";

impl Attached {
    /// Attaches to the node that serves `path`, optionally restricted to a capability.
    ///
    /// # Errors
    /// [`Error::Attach`] if no node, or a node of another release, serves the path;
    /// [`CallError::NotAllowed`] if the node rejects the capability, or requires one.
    pub(crate) fn connect(
        path: &Path,
        capability: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let Greeted { stream, incoming, member, is_authenticated, node_process } =
            greet(path, capability, timeout)?;
        let begun = Shared::begin(stream, incoming);
        let shared = begun.map_err(|error| cannot_attach(path, &error))?;
        Ok(Self { shared, member, node_process, is_authenticated })
    }

    /// Allocates the number of the next request.
    pub(crate) fn next_request(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request; `callback` gets the reply on the thread that receives it.
    pub(crate) fn ask(
        &self,
        request: u64,
        body: Request,
        timeout: Option<Duration>,
        callback: Callback,
    ) {
        let timeout_ns =
            timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let bytes = frame(&ToNode::Request { request, body, timeout_ns });
        if bytes.len() > FRAME_BYTES_MAX {
            let said = format!(
                "the arguments take {} bytes, but one call can have {FRAME_BYTES_MAX}: split it, \
                 or use shorter names",
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

    /// Pins everything that this process reads now, for as long as any process has the returned
    /// descriptor.
    ///
    /// # Errors
    /// The node is gone or replies late, or this process is at its limit of open files.
    pub(crate) fn hold(&self) -> io::Result<OwnedFd> {
        let (sender, lifeline) = sync_channel(1);
        {
            let mut holding = lock(&self.shared.holding);
            holding.push_back(sender);
            self.shared.send(&ToNode::PinForFork);
        }
        if self.shared.is_closed.load(Ordering::Acquire) {
            self.shared.fail_all();
        }
        match lifeline.recv_timeout(HOLD_TIMEOUT) {
            Ok(Some(lifeline)) => Ok(lifeline),
            Ok(None) => Err(Errno::MFILE.into()),
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Sends a message without a reply.
    pub(crate) fn send(&self, message: &ToNode) {
        self.shared.send(message);
    }

    /// Whether the node is closed or gone, even if the receiving thread has not detected that yet.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed.load(Ordering::Acquire) || self.shared.has_hung_up()
    }

    /// The node's process, if a signal or debugger has stopped it. None if that is unknown: without
    /// /proc, or from another PID namespace.
    pub(crate) fn stopped_process(&self) -> Option<u32> {
        let process = self.node_process?;
        let stat = std::fs::read(format!("/proc/{process}/stat")).ok()?;
        // The program's name, in parentheses, may contain any bytes.
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        matches!(stat.get(name_end + 2)?, b'T' | b't').then_some(process)
    }

    pub(crate) fn epoll(&self) -> Arc<SharedEpoll> {
        self.shared.epoll.clone()
    }

    /// Receives replies on the calling thread; see [`SharedEpoll::wait`].
    pub(crate) fn wait(&self, time: Duration, is_over: impl Fn() -> bool) -> Waited {
        self.shared.epoll.wait(time, is_over, |_, _| self.shared.take())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.shared.process == process_id() {
            let _ = self.shared.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    /// Begins to receive what follows the greeting.
    fn begin(stream: UnixStream, incoming: ReplyReader) -> io::Result<Arc<Self>> {
        fork_safe::note(&stream);
        let epoll = SharedEpoll::new()?;
        epoll.add(&stream, 0)?;
        let shared = Arc::new(Self {
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
            process: process_id(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("hoplite-attached".into());
        thread.spawn(move || {
            let _end = EndsWithThread(of_thread.clone());
            // More messages may follow the greeting.
            of_thread.take();
            of_thread.epoll.run(|_, _| of_thread.take());
        })?;
        Ok(shared)
    }

    fn send(self: &Arc<Self>, message: &ToNode) {
        self.write(frame(message));
    }

    /// Writes a frame after all others. Never waits, because an unresponsive node reads nothing.
    ///
    /// The receiving thread detects that the node is gone, and ends all waits.
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
                        // No frame may follow a partial one: without a thread the connection is
                        // useless.
                        unsent.frames.clear();
                        let _ = self.stream.shutdown(std::net::Shutdown::Both);
                    }
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Writes the unsent frames on this thread until none are left.
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
                    // The node is gone: nothing written now arrives.
                    *lock(&self.unsent) = Unsent::default();
                    return;
                };
                rest = &rest[count..];
            }
        }
    }

    /// Receives all available replies, or detects that the node is gone.
    fn take(self: &Arc<Self>) {
        let mut incoming = lock(&self.incoming);
        loop {
            let message = match incoming.next(&self.stream, try_recv_with_fds) {
                Ok(Some(message)) => message,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => break,
            };
            self.received(message, &mut incoming);
        }
        drop(incoming);
        self.end();
    }

    fn received(self: &Arc<Self>, message: FromNode, incoming: &mut ReplyReader) {
        match message {
            FromNode::Reply { request, reply, region } => {
                let reply = self.with_memory(request, reply, region, incoming);
                self.reply(request, reply);
            }
            FromNode::Unmap { extents } => {
                let mut mapped = lock(&self.extents);
                let gone: Vec<Option<Arc<Mapping>>> =
                    extents.iter().map(|extent| mapped.remove(extent)).collect();
                drop(mapped);
                drop(gone);
                for extent in extents {
                    self.send(&ToNode::Unmapped { extent });
                }
            }
            // The end of the connection follows.
            FromNode::Down { said } => drop(self.ended.set(said)),
            FromNode::Refused { said } => {
                let said =
                    format!("the node of this host ended the attachment of this process: {said}");
                drop(self.ended.set(said));
            }
            FromNode::Lifeline => {
                let waiting = lock(&self.holding).pop_front();
                let late = waiting.map(|waiting| waiting.send(incoming.descriptor()));
                if let Some(Err(SendError(Some(lifeline)))) = late {
                    // The child was forked without it, and must not lose its views while this
                    // process lives.
                    std::mem::forget(lifeline);
                }
            }
            FromNode::Welcome { .. } | FromNode::NotAllowed { .. } => {}
        }
    }

    /// A reply with the memory that it refers to, or the error of memory that can't be used.
    fn with_memory(
        self: &Arc<Self>,
        request: u64,
        reply: Result<Reply, CallError>,
        region: Option<Region>,
        incoming: &mut ReplyReader,
    ) -> Result<(Reply, Option<Slot>), CallError> {
        let Some(region) = region else { return Ok((reply?, None)) };
        match self.open(&region, incoming, &reply) {
            Ok(slot) => Ok((reply?, Some(slot))),
            Err(detail) => {
                self.decline(&reply);
                if matches!(reply, Ok(Reply::Growing { .. })) {
                    self.send(&ToNode::StopFollowing { request });
                }
                Err(CallError::NoMemory { needed: region.len, detail })
            }
        }
    }

    fn reply(&self, request: u64, reply: Result<(Reply, Option<Slot>), CallError>) {
        let callback = lock(&self.waiting).remove(&request);
        if let Some(callback) = callback {
            callback(reply);
        }
    }

    /// Whether the node has closed its end. Earlier messages may still be unread.
    fn has_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Ends the attachment: the node is gone, or the receiving thread has ended.
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

    /// Returns the memory that a reply granted, because it can't be used.
    fn decline(self: &Arc<Self>, answer: &Result<Reply, CallError>) {
        match answer {
            Ok(Reply::Got { instance, .. }) => {
                self.send(&ToNode::Notify { body: Request::Release { instance: *instance } });
            }
            Ok(Reply::Created { instance, .. }) => {
                self.send(&ToNode::Notify { body: Request::Abort { instance: *instance } });
            }
            _ => {}
        }
    }

    /// Opens the slot that a reply refers to, in memory mapped by this process.
    fn open(
        self: &Arc<Self>,
        region: &Region,
        incoming: &mut ReplyReader,
        answer: &Result<Reply, CallError>,
    ) -> Result<Slot, String> {
        let said = |error: hoplite_shm::ShmError| format!("shared memory can't be used: {error}");
        let mapping = if region.has_descriptor {
            let Some(descriptor) = incoming.descriptor() else {
                // The kernel drops a descriptor if the process is at its limit.
                self.send(&ToNode::Unmapped { extent: region.extent });
                return Err(
                    "this process is at its limit of open files, and needs one to map the \
                     object's memory: close some, or raise the limit with ulimit -n"
                        .into(),
                );
            };
            let is_mine = matches!(answer, Ok(Reply::Created { .. }));
            let mapping = if is_mine {
                Mapping::map_writable(&descriptor, region.extent_len)
            } else if region.extent & COPY != 0 {
                Mapping::map_lent(&descriptor, region.extent_len)
            } else {
                Mapping::map_readonly(&descriptor, region.extent_len)
            };
            let mapping = mapping.map_err(|error| {
                self.send(&ToNode::Unmapped { extent: region.extent });
                said(error)
            })?;
            let mapping = Arc::new(mapping.with_extent(ExtentId(region.extent)));
            if is_mine {
                self.send(&ToNode::Mapped { extent: region.extent });
            }
            lock(&self.extents).insert(region.extent, mapping.clone());
            mapping
        } else {
            lock(&self.extents)
                .get(&region.extent)
                .cloned()
                .ok_or("the node referred to unknown memory")?
        };
        Slot::open(mapping, region.offset, region.len).map_err(said)
    }
}

/// Ends the attachment when the receiving thread ends, even by a panic: no wait outlives it.
struct EndsWithThread(Arc<Shared>);

impl Drop for EndsWithThread {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests;
