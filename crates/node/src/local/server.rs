//! The Unix socket of a node: the other processes of its host attach here, and get descriptors of its memory.
//!
//! Frames are a little-endian u32 length and a postcard body, both ways. Descriptors travel beside the frame that says
//! `has_descriptor`, in the same order.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{ClientId, Instance, RequestId},
    limits::CONTROL_BYTES_MAX,
    members::Member,
    wire,
};
use hoplite_shm::{ExtentId, WriterId, recv_with_fds, send_with_fds};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tracing::{debug, info};

use crate::{
    engine::{Core, Sink, lock},
    fork_safe,
    mutants::{self, Bug},
    store::Held,
};

/// Processes with other releases can't share memory with this one.
pub(crate) const LOCAL_VERSION: u32 = 7;

/// Bytes of the longest frame, with its length.
pub(crate) const FRAME_BYTES_MAX: usize = 4 + CONTROL_BYTES_MAX as usize;

/// What a process says to the node of its host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// First of all.
    Hello { version: u32 },
    /// A question; `timeout_ns` from now.
    Ask { request: u64, ask: Ask, timeout_ns: Option<u64> },
    /// The answer is not wanted any more. It comes all the same.
    Cancel { request: u64 },
    /// Something that has no answer.
    Tell { ask: Ask },
    /// More of an object is filled.
    Advanced { instance: Instance },
    /// A new extent is mapped; nobody else may map it writable from now on.
    Mapped { extent: u64 },
    /// An extent could not be mapped: its descriptor is wanted again.
    Unmapped { extent: u64 },
    /// How is the node? Answered with JSON.
    Describe { request: u64 },
    /// What grew is not read any more.
    LetGo { request: u64 },
    /// The process is about to fork. What it reads is pinned once more until the pipe whose reading end comes with this
    /// frame has no other end any more.
    Hold,
}

/// Descriptors that came and were not asked for by a frame; a process that sends more is broken.
const UNCLAIMED_MAX: usize = 8;

/// What a node says to a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromNode {
    /// After `Hello`.
    Welcome { member: Member },
    /// Instead of that: go away, and why.
    Refused { said: String },
    /// The answer to a question.
    Answer { request: u64, answer: Result<Answer, CallError>, place: Option<Place> },
    /// The answer to `Describe`.
    Description { request: u64, json: Result<String, CallError> },
    /// These extents are gone from the node; their memory is free when nobody maps them.
    Forget { extents: Vec<u64> },
}

/// Where an object is in shared memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) extent: u64,
    pub(crate) extent_len: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Whether the extent's descriptor comes with this frame.
    pub(crate) has_descriptor: bool,
}

/// A body with its length in front.
pub(crate) fn frame<T: Serialize>(body: &T) -> Vec<u8> {
    let body = wire::encode(body);
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Takes the first whole frame off `bytes`; none if it is not all there.
pub(crate) fn take_frame(bytes: &mut Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length);
    if length > CONTROL_BYTES_MAX {
        let said = format!("a frame of {length} bytes, the limit is {CONTROL_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    let end = 4 + length as usize;
    if bytes.len() < end {
        return Ok(None);
    }
    let rest = bytes.split_off(end);
    let mut whole = std::mem::replace(bytes, rest);
    Ok(Some(whole.split_off(4)))
}

/// Accepts for ever.
pub(crate) async fn accept(core: Arc<Core>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                fork_safe::note(&stream);
                tokio::spawn(attend(core.clone(), stream));
            }
            Err(error) => {
                info!(%error, "could not accept a process");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// One attached process.
pub(crate) struct Session {
    core: Arc<Core>,
    client: ClientId,
    out: UnboundedSender<Outgoing>,
    /// Extents whose descriptors it has.
    known: Mutex<HashSet<ExtentId>>,
    /// Its questions, as it counts them and as the node does.
    asked: Mutex<HashSet<(u64, RequestId)>>,
    /// Copies that it reads while they arrive, by its question. Their memory serves nobody else meanwhile, whatever
    /// becomes of the copy.
    growing: Mutex<HashMap<u64, Arc<Held>>>,
    stream: Arc<UnixStream>,
    /// Frames that wait for room in the socket. As long as there are none, a frame goes out on the thread that has it:
    /// a task to write it would wake up later.
    queued: Arc<Mutex<usize>>,
}

struct Outgoing {
    bytes: Vec<u8>,
    descriptor: Option<Arc<OwnedFd>>,
}

async fn attend(core: Arc<Core>, stream: UnixStream) {
    let client = ClientId(core.next_id());
    let (out, queue) = unbounded_channel();
    let stream = Arc::new(stream);
    let (known, asked, growing) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (of_session, queued) = (stream.clone(), Arc::new(Mutex::new(0)));
    let counted = queued.clone();
    let core_of_session = core.clone();
    let session = Session {
        core: core_of_session,
        client,
        out,
        known,
        asked,
        growing,
        stream: of_session,
        queued,
    };
    let session = Arc::new(session);
    core.attach(client);
    let alive = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let alive =
        alive.and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    let writing = tokio::spawn(write(stream.clone(), queue, counted));
    lock(&core.sessions).insert(client, Arc::downgrade(&session));
    let result = session.read(&stream).await;
    lock(&core.sessions).remove(&client);
    let has_memory = !lock(&session.known).is_empty();
    drop(session);
    // What is queued, a refusal perhaps, still goes out.
    let abort = writing.abort_handle();
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    abort.abort();
    drop(stream);
    if let Err(error) = result {
        core.counters.strangers.add(1);
        info!(%error, "an attached process broke off");
        // It did not say what it still reads: its views stay valid for as long as it can look at them. One that never
        // got any memory has none, and must not cost a descriptor until it ends.
        while has_memory && alive.as_ref().is_some_and(|process| !has_ended(process)) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    core.client_gone(client);
    // A process that has ended writes no more, and its warm memory serves others. While it lives nobody else's
    // objects go there. Its end may be seen a moment after that of its connection.
    let writer = WriterId(client.0);
    for _ in 0..10 {
        if alive.as_ref().is_some_and(has_ended) {
            return core.store.arena.writer_gone(writer);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    core.store.arena.retire(writer);
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Writes what is queued until the session is over or the process gone.
async fn write(
    stream: Arc<UnixStream>,
    mut queue: UnboundedReceiver<Outgoing>,
    queued: Arc<Mutex<usize>>,
) {
    while let Some(Outgoing { bytes, mut descriptor }) = queue.recv().await {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = stream
                .async_io(Interest::WRITABLE, || {
                    let fds: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
                    send_with_fds(&*stream, rest, &fds)
                })
                .await;
            match sent {
                Ok(count) => {
                    rest = &rest[count..];
                    descriptor = None;
                }
                Err(_) => return,
            }
        }
        *lock(&queued) -= 1;
    }
}

impl Session {
    async fn read(self: &Arc<Self>, stream: &UnixStream) -> io::Result<()> {
        let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
        let mut buffer = vec![0; 16 * 1024];
        let mut is_greeted = false;
        loop {
            while let Some(body) = take_frame(&mut bytes)? {
                let message: ToNode = wire::decode(&body)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                match message {
                    ToNode::Hello { version } if !is_greeted => {
                        if version != LOCAL_VERSION {
                            let said = format!(
                                "this node speaks version {LOCAL_VERSION} to processes of its host, not {version}: \
                                 install the same release in both"
                            );
                            self.say(&FromNode::Refused { said }, None);
                            return Ok(());
                        }
                        is_greeted = true;
                        self.say(&FromNode::Welcome { member: self.core.identity.member }, None);
                    }
                    _ if !is_greeted => {
                        return Err(io::Error::new(io::ErrorKind::InvalidData, "no greeting"));
                    }
                    ToNode::Hold => {
                        if descriptors.is_empty() {
                            return Err(io::Error::new(
                                io::ErrorKind::InvalidData,
                                "no descriptor",
                            ));
                        }
                        self.core.hold(self.client, descriptors.remove(0));
                    }
                    message => self.take(message),
                }
            }
            let received = stream.async_io(Interest::READABLE, || {
                recv_with_fds(stream, &mut buffer, &mut descriptors)
            });
            match received.await? {
                0 => return Ok(()),
                count => bytes.extend_from_slice(&buffer[..count]),
            }
            if descriptors.len() > UNCLAIMED_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
            }
        }
    }

    fn take(self: &Arc<Self>, message: ToNode) {
        match message {
            ToNode::Hello { .. } | ToNode::Hold => {}
            ToNode::LetGo { request } => drop(lock(&self.growing).remove(&request)),
            // A release has no answer, however it is said.
            ToNode::Ask { ask: ask @ Ask::Release { .. }, .. } => self.core.tell(self.client, ask),
            ToNode::Ask { request, ask, timeout_ns } => self.ask(request, ask, timeout_ns),
            ToNode::Cancel { request } => {
                let asked =
                    lock(&self.asked).iter().find(|(theirs, _)| *theirs == request).copied();
                if let Some((_, ours)) = asked {
                    self.core.drive(hoplite_proto::node::Event::Cancelled { request: ours });
                }
            }
            ToNode::Tell { ask } => {
                if matches!(ask, Ask::Release { .. } | Ask::Abort { .. } | Ask::BreakPromises) {
                    self.core.tell(self.client, ask);
                }
            }
            ToNode::Advanced { instance } => {
                if let Some(held) = self.core.store.get(instance) {
                    held.grew();
                }
            }
            ToNode::Mapped { extent } => {
                if let Err(error) = self.core.store.arena.seal(ExtentId(extent)) {
                    debug!(%error, "an extent could not be sealed");
                }
            }
            ToNode::Unmapped { extent } => {
                lock(&self.known).remove(&ExtentId(extent));
            }
            ToNode::Describe { request } => {
                let session = self.clone();
                self.core.describe(self.client, move |json| {
                    session.say(&FromNode::Description { request, json }, None);
                });
            }
        }
    }

    fn ask(self: &Arc<Self>, request: u64, ask: Ask, timeout_ns: Option<u64>) {
        if let Ask::Seal { instance } = ask
            && let Some(held) = self.core.store.get(instance)
        {
            if !held.slot.is_complete() {
                let said = format!("instance {instance} was sealed before all of it was filled");
                let answer = Err(CallError::InvalidArgument(said));
                return self.say(&FromNode::Answer { request, answer, place: None }, None);
            }
            held.grew();
        }
        let session = self.clone();
        // The answer may come before the node's number of the question is known here: then it is not kept.
        let answered = Arc::new(Mutex::new(false));
        let is_answered = answered.clone();
        let sink: Sink = Box::new(move |answer| {
            *lock(&is_answered) = true;
            lock(&session.asked).retain(|(theirs, _)| *theirs != request);
            session.answer(request, answer);
        });
        let timeout = timeout_ns.map(Duration::from_nanos);
        let ours = self.core.ask(self.client, ask, timeout, false, sink);
        let answered = lock(&answered);
        if !*answered {
            lock(&self.asked).insert((request, ours));
        }
    }

    fn answer(&self, request: u64, answer: Result<Answer, CallError>) {
        let instance = match &answer {
            Ok(Answer::Created { instance, .. } | Answer::Got { instance, inline: None, .. }) => {
                *instance
            }
            Ok(Answer::Growing { instance, .. }) => {
                let Some(held) = self.core.store.get(*instance) else {
                    let answer = Ok(Answer::Done);
                    return self.say(&FromNode::Answer { request, answer, place: None }, None);
                };
                lock(&self.growing).insert(request, held);
                *instance
            }
            _ => return self.say(&FromNode::Answer { request, answer, place: None }, None),
        };
        let Some((place, descriptor)) = self.place(instance) else {
            let answer = Err(CallError::NodeDown("the memory of the object is gone".into()));
            return self.say(&FromNode::Answer { request, answer, place: None }, None);
        };
        let is_got = matches!(answer, Ok(Answer::Got { .. }));
        self.say(&FromNode::Answer { request, answer, place: Some(place) }, descriptor);
        if is_got && mutants::has(Bug::ReleasesAtOnce) {
            self.core.tell(self.client, Ask::Release { instance });
        }
    }

    fn place(&self, instance: Instance) -> Option<(Place, Option<Arc<OwnedFd>>)> {
        let held = self.core.store.get(instance)?;
        let extent = held.slot.extent();
        let (descriptor, extent_len) = self.core.store.arena.descriptor(extent)?;
        let has_descriptor = lock(&self.known).insert(extent);
        let (offset, len) = (held.slot.offset(), held.slot.len());
        let place = Place { extent: extent.0, extent_len, offset, len, has_descriptor };
        Some((place, has_descriptor.then_some(descriptor)))
    }

    /// The node let go of extents: the process may unmap them.
    pub(crate) fn forget(&self, gone: &[ExtentId]) {
        let mut known = lock(&self.known);
        let extents: Vec<u64> =
            gone.iter().filter(|extent| known.remove(extent)).map(|extent| extent.0).collect();
        drop(known);
        if !extents.is_empty() {
            self.say(&FromNode::Forget { extents }, None);
        }
    }

    fn say(&self, message: &FromNode, descriptor: Option<Arc<OwnedFd>>) {
        let mut bytes = frame(message);
        if let FromNode::Answer { request, .. } = message
            && bytes.len() > FRAME_BYTES_MAX
        {
            let said =
                format!("the answer of {} bytes is longer than {FRAME_BYTES_MAX}", bytes.len());
            let answer = Err(CallError::InvalidArgument(said));
            bytes = frame(&FromNode::Answer { request: *request, answer, place: None });
        }
        let mut queued = lock(&self.queued);
        let mut rest = Outgoing { bytes, descriptor };
        if *queued == 0 {
            let sent = self.stream.try_io(Interest::WRITABLE, || {
                let fds: Vec<_> = rest.descriptor.iter().map(|fd| fd.as_fd()).collect();
                send_with_fds(&*self.stream, &rest.bytes, &fds)
            });
            if let Ok(count) = sent {
                if count == rest.bytes.len() {
                    return;
                }
                rest.bytes.drain(..count);
                rest.descriptor = None;
            }
        }
        *queued += 1;
        // A process that is gone is noticed by whoever reads from it.
        let _ = self.out.send(rest);
    }
}
