//! The Unix socket of a node: the other processes of its host attach here, and get descriptors of its memory.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{ClientId, Instance, RequestId},
    wire,
};
use hoplite_shm::{ExtentId, ShmError, WriterId, recv_with_fds, send_with_fds};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    sync::{
        Notify,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
};
use tracing::info;

use super::{
    programs::{Attachment, Programs},
    protocol::{FRAME_BYTES_MAX, FromNode, LOCAL_VERSION, Place, ToNode, frame, take_frame},
};
use crate::{
    engine::{requests::Sink, task::Task},
    fork_safe,
    mutants::{self, Bug},
    store::Held,
    sync::lock,
};

/// Descriptors that came and were not asked for by a frame; a process that sends more is broken.
const UNCLAIMED_MAX: usize = 8;

/// Accepts for ever.
pub(crate) async fn accept(programs: Arc<Programs>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                fork_safe::note(&stream);
                programs.network.tasks.spawn(Task::Session, attend(programs.clone(), stream));
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
    programs: Arc<Programs>,
    client: ClientId,
    out: UnboundedSender<Outgoing>,
    /// Extents whose descriptors it has.
    known: Mutex<HashSet<ExtentId>>,
    /// Its questions: as it counts them, and as the node does.
    asked: Mutex<HashMap<u64, RequestId>>,
    /// Copies that it reads while they arrive, by its question. Their memory is not used again meanwhile, whatever
    /// becomes of the copy.
    growing: Mutex<HashMap<u64, Arc<Held>>>,
    stream: Arc<UnixStream>,
    /// Frames that wait for room in the socket. As long as there are none, a frame goes out on the thread that has it:
    /// a task to write it would wake up later.
    queued: Arc<Mutex<usize>>,
    /// The node ends the connection.
    ended: Notify,
}

struct Outgoing {
    bytes: Vec<u8>,
    descriptor: Option<Arc<OwnedFd>>,
}

async fn attend(programs: Arc<Programs>, stream: UnixStream) {
    let client = programs.next_client();
    let (out, queue) = unbounded_channel();
    let stream = Arc::new(stream);
    let (known, asked, growing) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (of_session, queued) = (stream.clone(), Arc::new(Mutex::new(0)));
    let counted = queued.clone();
    let session = Session {
        programs: programs.clone(),
        client,
        out,
        known,
        asked,
        growing,
        stream: of_session,
        queued,
        ended: Notify::new(),
    };
    let session = Arc::new(session);
    let of_programs: Weak<Session> = Arc::downgrade(&session);
    programs.attach(client, of_programs);
    let alive = stream.peer_cred().ok().and_then(|peer| peer.pid());
    let alive =
        alive.and_then(Pid::from_raw).and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    let writing = write(stream.clone(), queue, counted);
    let writing = programs.network.tasks.spawn(Task::Answers, writing);
    let result = tokio::select! {
        result = session.read(&stream) => result,
        () = session.ended.notified() => Ok(()),
    };
    if let Err(error) = &result {
        session.say(&FromNode::Refused { said: error.to_string() }, None);
    }
    let has_memory = !lock(&session.known).is_empty();
    drop(session);
    // What is queued, a refusal perhaps, still goes out.
    let abort = writing.abort_handle();
    let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    abort.abort();
    drop(stream);
    if let Err(error) = result {
        programs.network.counters.strangers.add(1);
        info!(%error, "an attached process broke off");
        // It did not say what it still reads: its views stay valid for as long as it can look at them. One that never
        // got any memory has none, and must not cost a descriptor until it ends.
        while has_memory && alive.as_ref().is_some_and(|process| !has_ended(process)) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    programs.gone(client);
    programs.store.arena.retire(WriterId(client.0));
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Answers a question for what grows in memory that its writer has not mapped yet: as soon as it has, since until then a
/// process that has the descriptor could map it writable too. Before that there is nothing to be read.
async fn answer_when_sealed(
    session: Weak<Session>,
    request: u64,
    answer: Result<Answer, CallError>,
    held: Arc<Held>,
) {
    let is_sealed = || session.upgrade().is_none_or(|session| session.is_sealed(&held));
    let is_there = held.until(is_sealed).await;
    let Some(session) = session.upgrade() else { return };
    if is_there {
        session.answer(request, answer);
    } else {
        session.say_nothing_grows(request);
    }
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
                        self.say(
                            &FromNode::Welcome { member: self.programs.network.identity.member },
                            None,
                        );
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
                        self.programs.hold(self.client, descriptors.remove(0));
                    }
                    message => self.take(message)?,
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

    fn take(self: &Arc<Self>, message: ToNode) -> io::Result<()> {
        match message {
            ToNode::Hello { .. } | ToNode::Hold => {}
            ToNode::LetGo { request } => drop(lock(&self.growing).remove(&request)),
            // A release has no answer, however it is said.
            ToNode::Ask { ask: ask @ Ask::Release { .. }, .. } => {
                self.programs.requests.tell(self.client, ask)
            }
            ToNode::Ask { request, ask, timeout_ns } => self.ask(request, ask, timeout_ns),
            ToNode::Cancel { request } => {
                let asked = lock(&self.asked).get(&request).copied();
                if let Some(ours) = asked {
                    self.programs.requests.cancel(ours);
                }
            }
            ToNode::Tell { ask } => {
                if matches!(ask, Ask::Release { .. } | Ask::Abort { .. } | Ask::BreakPromises) {
                    self.programs.requests.tell(self.client, ask);
                }
            }
            ToNode::Advanced { instance } => self.programs.advanced(instance),
            ToNode::Mapped { extent } => {
                match self.programs.store.arena.seal(ExtentId(extent), self.writer()) {
                    // Given up and trimmed meanwhile.
                    Ok(()) | Err(ShmError::UnknownExtent { .. }) => {}
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
            ToNode::Unmapped { extent } => {
                lock(&self.known).remove(&ExtentId(extent));
            }
            ToNode::Describe { request } => {
                let session = self.clone();
                self.programs.describe(self.client, move |json| {
                    session.say(&FromNode::Description { request, json }, None);
                });
            }
        }
        Ok(())
    }

    /// As whom this process writes to shared memory.
    const fn writer(&self) -> WriterId {
        WriterId(self.client.0)
    }

    fn ask(self: &Arc<Self>, request: u64, ask: Ask, timeout_ns: Option<u64>) {
        if let Ask::Seal { instance } = ask
            && let Some(held) = self.programs.store.get(instance)
        {
            let is_filled = held.slot.is_complete();
            // It has mapped the memory, or never will: from now on others may read there.
            let sealed = self.programs.store.arena.seal(held.slot.extent(), self.writer());
            if !is_filled || sealed.is_err() {
                let said = match sealed {
                    Err(error) => format!("instance {instance} can't be sealed: {error}"),
                    Ok(()) => format!("instance {instance} was sealed before all of it was filled"),
                };
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
            lock(&session.asked).remove(&request);
            session.answer(request, answer);
        });
        let timeout = timeout_ns.map(Duration::from_nanos);
        let ours = self.programs.requests.ask(self.client, ask, timeout, false, sink);
        let answered = lock(&answered);
        if !*answered {
            lock(&self.asked).insert(request, ours);
        }
    }

    fn answer(self: &Arc<Self>, request: u64, answer: Result<Answer, CallError>) {
        let instance = match &answer {
            Ok(Answer::Created { instance, .. } | Answer::Got { instance, inline: None, .. }) => {
                *instance
            }
            Ok(Answer::Growing { instance, .. }) => {
                let Some(held) = self.programs.store.get(*instance) else {
                    return self.say_nothing_grows(request);
                };
                if !self.is_sealed(&held) {
                    let answering = answer_when_sealed(Arc::downgrade(self), request, answer, held);
                    self.programs.network.tasks.spawn(Task::Session, answering);
                    return;
                }
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
            self.programs.requests.tell(self.client, Ask::Release { instance });
        }
    }

    /// Answers that there is nothing to be followed.
    fn say_nothing_grows(&self, request: u64) {
        self.say(&FromNode::Answer { request, answer: Ok(Answer::Done), place: None }, None);
    }

    fn is_sealed(&self, held: &Held) -> bool {
        self.programs.store.arena.is_sealed(held.slot.extent())
    }

    fn place(&self, instance: Instance) -> Option<(Place, Option<Arc<OwnedFd>>)> {
        let held = self.programs.store.get(instance)?;
        let extent = held.slot.extent();
        let (descriptor, extent_len) =
            self.programs.store.arena.descriptor(extent, self.writer())?;
        let has_descriptor = lock(&self.known).insert(extent);
        let (offset, len) = (held.slot.offset(), held.slot.len());
        let place = Place { extent: extent.0, extent_len, offset, len, has_descriptor };
        Some((place, has_descriptor.then_some(descriptor)))
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
        // The task that reads notices that a process is gone.
        let _ = self.out.send(rest);
    }
}

impl Attachment for Session {
    fn forget(&self, gone: &[ExtentId]) {
        let mut known = lock(&self.known);
        let extents: Vec<u64> =
            gone.iter().filter(|extent| known.remove(extent)).map(|extent| extent.0).collect();
        drop(known);
        if !extents.is_empty() {
            self.say(&FromNode::Forget { extents }, None);
        }
    }

    fn end(&self) {
        self.ended.notify_one();
    }
}
