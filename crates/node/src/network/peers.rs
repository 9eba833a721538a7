//! Control connections to the other members, one from here to each: messages leave in the order of their decisions.
//!
//! A message is written by the thread that decided it, if the socket takes it and nothing is queued before it; a task
//! writes the rest, and connects. A connection that breaks is made again, by way of another member if it must be; only
//! when that fails is the member doubted, or lost. What was under way may be lost with a connection, so the machine is
//! told of each new one and says again what matters.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, IoSlice},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::NodeId,
    limits::CONTROL_BYTES_MAX,
    members::Member,
    message::Message,
    node::Event,
    wire::{FrameKind, HEADER_BYTES, Role},
};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::{Notify, watch},
    task::JoinHandle,
    time::sleep,
};
use tracing::{debug, error, info};

use crate::{
    engine::{Core, lock},
    error::LinkError,
    frame,
    network::handshake::{self, Admitted, Session},
    network::relay,
};

/// The other members, and the payload connections to them that nobody uses just now.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: Mutex<HashMap<NodeId, Peer>>,
    idle: Mutex<HashMap<NodeId, Vec<TcpStream>>>,
    /// Who admitted this node, and whom this node did: for payload connections without another introduction.
    calls: Mutex<HashMap<NodeId, Session>>,
    callers: Mutex<HashMap<NodeId, Admitted>>,
    /// Outboxes that begin with a message that can wait.
    late: Mutex<Vec<Arc<Outbox>>>,
    is_late: Notify,
    /// There is another member.
    has_grown: Notify,
    /// How often helpers were looked for: not always the same are asked.
    sought: AtomicUsize,
}

#[derive(Debug)]
struct Peer {
    member: Member,
    /// By way of whom it is reached, if not directly.
    via: Option<NodeId>,
    outbox: Arc<Outbox>,
    task: JoinHandle<()>,
    /// Dropped with it: what is sent to the member over its payload connections ends.
    presence: watch::Sender<()>,
}

/// What is to be sent to a member.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// There is something for the task to do.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that the socket has taken.
    taken: usize,
    /// The connection, while there is one.
    stream: Option<Arc<TcpStream>>,
    /// Nothing will be added.
    is_closed: bool,
    /// Somebody is about to write what is queued, or the task is.
    is_due: bool,
}

/// How long a message waits that can wait: much longer than what follows it takes to be decided, much shorter than
/// anybody's patience.
const LATE: Duration = Duration::from_millis(20);

/// Frames that are written with one system call.
const BATCH_FRAMES: usize = 64;

impl Outbox {
    /// Queues a frame; says whether somebody has to flush, now or, if the frame can wait, in a moment.
    fn push(&self, frame: Vec<u8>, can_wait: bool) -> Push {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return Push::Done;
        }
        queue.frames.push_back(frame);
        let is_due = queue.is_due;
        queue.is_due |= !can_wait;
        match (is_due, can_wait, queue.frames.len()) {
            (false, false, _) => Push::Due,
            (false, true, 1) => Push::Later,
            _ => Push::Done,
        }
    }

    /// Writes what is queued, without waiting; what the socket does not take now, the task writes.
    pub(crate) fn flush(&self) {
        let flushed = lock(&self.queue).flush();
        if !matches!(flushed, Ok(true)) {
            self.changed.notify_one();
        }
    }

    fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// There is no connection (any more).
    fn disconnect(&self) {
        lock(&self.queue).stream = None;
    }

    fn is_connected(&self) -> bool {
        lock(&self.queue).stream.is_some()
    }

    /// What is queued is not sent.
    fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.frames.clear();
        (queue.taken, queue.is_due, queue.stream) = (0, false, None);
    }

    fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    /// Writes through `stream` until the outbox is closed and empty; fails when the connection does.
    async fn pump(&self, stream: Arc<TcpStream>) -> io::Result<()> {
        // Also tells the runtime that it can be written, for those who write without waiting.
        stream.writable().await?;
        {
            let mut queue = lock(&self.queue);
            queue.stream = Some(stream.clone());
            queue.taken = 0;
        }
        loop {
            let (is_empty, is_closed) = {
                let mut queue = lock(&self.queue);
                (queue.flush()?, queue.is_closed)
            };
            if is_empty && is_closed {
                return Ok(());
            }
            tokio::select! {
                () = self.changed.notified() => {}
                writable = stream.writable(), if !is_empty => writable?,
                // Nothing is ever sent this way: what can be read is the end.
                readable = stream.readable() => {
                    readable?;
                    match stream.try_read(&mut [0; 1]) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                        Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    }
                }
            }
        }
    }
}

impl Queue {
    /// Writes what the socket takes without waiting; whether that is all.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(stream) = self.stream.clone() else { return Ok(self.frames.is_empty()) };
        while !self.frames.is_empty() {
            let mut pieces: Vec<IoSlice<'_>> =
                self.frames.iter().take(BATCH_FRAMES).map(|frame| IoSlice::new(frame)).collect();
            let mut rest = pieces.as_mut_slice();
            IoSlice::advance_slices(&mut rest, self.taken);
            let written = match stream.try_write_vectored(rest) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            self.taken += written;
            while self.frames.front().is_some_and(|first| first.len() <= self.taken) {
                self.taken -= self.frames.pop_front().map_or(0, |first| first.len());
            }
        }
        self.is_due = false;
        Ok(true)
    }
}

/// What is to become of a frame that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Push {
    /// Others write it.
    Done,
    /// Whoever queued it has to flush.
    Due,
    /// It is the first of those that can wait.
    Later,
}

/// Pauses before a broken connection is tried again: a node that lives accepts within the first, one that restarts
/// its network within all of them.
const RETRIES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(400),
];

/// Payload connections to one peer that are kept for the next transfer; more are closed.
const IDLE_MAX: usize = 8;

impl Peer {
    /// Whether there is a connection to it that goes by way of nobody else.
    fn is_direct(&self) -> bool {
        self.via.is_none() && self.outbox.is_connected()
    }
}

impl Peers {
    /// Begins to connect to a member.
    pub(crate) fn add(&self, core: &Arc<Core>, member: Member) {
        let outbox = Arc::new(Outbox::default());
        let task = core.runtime.spawn(talk(core.clone(), member, outbox.clone()));
        let presence = watch::Sender::new(());
        let peer = Peer { member, via: None, outbox, task, presence };
        if let Some(before) = lock(&self.all).insert(member.id, peer) {
            before.outbox.close();
        }
        self.has_grown.notify_waiters();
    }

    /// Ends the connections to a node; of one that has left, after what is queued for it.
    pub(crate) fn remove(&self, node: NodeId, has_left: bool) {
        if let Some(peer) = lock(&self.all).remove(&node) {
            peer.outbox.close();
            if !has_left {
                // Said later, over another connection, it would be taken for new.
                peer.outbox.forget();
                peer.task.abort();
            }
        }
        lock(&self.idle).remove(&node);
        lock(&self.calls).remove(&node);
        lock(&self.callers).remove(&node);
    }

    /// Ends when the member is no member any more; if it is none yet, when it has been one.
    pub(crate) async fn gone(&self, node: NodeId) {
        loop {
            let has_grown = self.has_grown.notified();
            tokio::pin!(has_grown);
            has_grown.as_mut().enable();
            if self.is_member(node) {
                return self.lost(node).await;
            }
            has_grown.await;
        }
    }

    /// Ends when a node is no member (any more).
    async fn lost(&self, node: NodeId) {
        let presence = lock(&self.all).get(&node).map(|peer| peer.presence.subscribe());
        if let Some(mut presence) = presence {
            // Nothing is ever sent: an error says that the sender is gone.
            while presence.changed().await.is_ok() {}
        }
    }

    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        lock(&self.all).contains_key(&node)
    }

    /// Calls a node that was lost. If it answers, it and this one meet as if they never had; both connect anew.
    pub(crate) fn call(core: &Arc<Core>, member: Member) {
        let core = core.clone();
        core.runtime.clone().spawn(async move {
            let helpers = relay::HELPERS_TO_THE_LOST;
            core.drive(match relay::call(&core, member, Role::Meet, helpers).await {
                Ok((met, _)) => Event::PeerUp { member: met.member },
                Err(error) => {
                    debug!(node = %member.id, %error, "is still lost");
                    let is_refused = handshake::is_elsewhere(&error);
                    Event::CallFailed { node: member.id, is_refused }
                }
            });
        });
    }

    /// Whether a member is reached at an address, or goes by an id; this node itself is known.
    pub(crate) fn is_known(&self, me: &Member, address: SocketAddr, id: Option<NodeId>) -> bool {
        let all = lock(&self.all);
        address == me.address
            || id == Some(me.id)
            || id.is_some_and(|id| all.contains_key(&id))
            || all.values().any(|peer| peer.member.address == address)
    }

    /// Queues a message; one for a node that is gone goes nowhere. What has to be flushed when all is queued that there
    /// is to say is added to `due`: one system call for several messages. One that can wait leaves with the next that
    /// can't, or with [`Peers::flush_late`].
    pub(crate) fn queue(&self, to: NodeId, message: &Message, due: &mut Vec<Arc<Outbox>>) {
        let outbox = lock(&self.all).get(&to).map(|peer| peer.outbox.clone());
        let Some(outbox) = outbox else { return };
        let frame = frame::frame(FrameKind::Control, 0, message);
        if frame.len() > HEADER_BYTES + CONTROL_BYTES_MAX as usize {
            // The limits on names and counts leave no such message; the receiver would close the connection for it.
            error!(node = %to, bytes = frame.len(), "a message is too long to be sent");
            return;
        }
        match outbox.push(frame, message.can_wait()) {
            Push::Done => {}
            // What is only to be known elsewhere too leaves after what somebody waits for.
            Push::Due if matches!(message, Message::Announce(news) if !news.claim) => {
                due.push(outbox)
            }
            Push::Due => due.insert(0, outbox),
            Push::Later => {
                let is_first = {
                    let mut late = lock(&self.late);
                    late.push(outbox);
                    late.len() == 1
                };
                if is_first {
                    self.is_late.notify_one();
                }
            }
        }
    }

    /// Writes what could wait, a moment after it was queued, again and again.
    pub(crate) async fn flush_late(&self) {
        loop {
            self.is_late.notified().await;
            sleep(LATE).await;
            let late = std::mem::take(&mut *lock(&self.late));
            late.iter().for_each(|outbox| outbox.flush());
        }
    }

    /// Asks a node for something, on a payload connection that is idle or a new one: `first` is what it is sent.
    pub(crate) async fn payload(
        &self,
        core: &Arc<Core>,
        node: NodeId,
        first: &[u8],
    ) -> Result<TcpStream, LinkError> {
        loop {
            let idle = lock(&self.idle).get_mut(&node).and_then(Vec::pop);
            let Some(mut stream) = idle else { break };
            // One that the other side closed meanwhile has an end to read.
            if matches!(stream.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            {
                stream.write_all(first).await?;
                return Ok(stream);
            }
        }
        let session = lock(&self.calls).get(&node).cloned();
        if let Some(session) = session {
            let stream = self.connect(core, node).await?;
            match handshake::call_again(&core.identity, stream, node, &session, first).await {
                // It has forgotten this node, or not heard the end of its introduction yet.
                Err(LinkError::Refused(said)) => debug!(%node, said, "introduces itself anew"),
                other => return other,
            }
        }
        let stream = self.connect(core, node).await?;
        let met = handshake::call_over(&core.identity, stream, Role::Payload, Some(node)).await?;
        let mut stream = met.stream;
        stream.write_all(first).await?;
        Ok(stream)
    }

    /// Connects to a member as its control connection is.
    async fn connect(&self, core: &Arc<Core>, node: NodeId) -> Result<TcpStream, LinkError> {
        let (address, helper) = {
            let all = lock(&self.all);
            let peer = all.get(&node).ok_or(LinkError::NotMember(node))?;
            let helper = peer.via.map(|via| all.get(&via).ok_or(LinkError::NotMember(via)));
            (peer.member.address, helper.transpose()?.map(|helper| helper.member))
        };
        match helper {
            Some(helper) => relay::through(core, helper, node).await,
            None => handshake::connect(address).await,
        }
    }

    /// Where a member is that this node has a connection to, which goes by way of nobody else.
    pub(crate) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        let all = lock(&self.all);
        all.get(&node).filter(|peer| peer.is_direct()).map(|peer| peer.member.address)
    }

    /// Some of those who may reach a member if this node can't.
    pub(crate) fn helpers(&self, member: NodeId, count: usize) -> Vec<Member> {
        let all = lock(&self.all);
        let mut helpers: Vec<Member> = all
            .values()
            .filter(|peer| peer.member.id != member && peer.is_direct())
            .map(|peer| peer.member)
            .collect();
        helpers.sort_unstable_by_key(|helper| helper.id);
        let turn = self.sought.fetch_add(count, Ordering::Relaxed);
        let first = turn.checked_rem(helpers.len()).unwrap_or_default();
        helpers.rotate_left(first);
        helpers.truncate(count);
        helpers
    }

    /// A member is reached (again), by way of another one or directly: what was open to it the other way is not used.
    fn is_reached(&self, node: NodeId, via: Option<NodeId>) {
        if let Some(peer) = lock(&self.all).get_mut(&node) {
            peer.via = via;
        }
        lock(&self.idle).remove(&node);
    }

    /// By way of whom a member is reached, if not directly.
    pub(crate) fn via(&self, node: NodeId) -> Option<NodeId> {
        lock(&self.all).get(&node)?.via
    }

    /// A node has admitted this one.
    fn has_called(&self, node: NodeId, session: Option<Session>) {
        if let Some(session) = session {
            lock(&self.calls).insert(node, session);
        }
    }

    /// This node has admitted another.
    pub(crate) fn was_called(&self, node: NodeId, session: Option<Session>) {
        if let Some(session) = session {
            lock(&self.callers).insert(node, Admitted::new(session));
        }
    }

    /// Admits a node that called before, for one payload connection; the proof that this is the node it means.
    pub(crate) fn admit(
        &self,
        node: NodeId,
        nonce: &[u8; 16],
        pass: &[u8; 32],
    ) -> Option<[u8; 32]> {
        lock(&self.callers).get_mut(&node)?.admit(nonce, pass)
    }

    /// Gives a payload connection back after a transfer that ended in order.
    pub(crate) fn keep_idle(&self, node: NodeId, stream: TcpStream) {
        if !lock(&self.all).contains_key(&node) {
            return;
        }
        let mut idle = lock(&self.idle);
        let streams = idle.entry(node).or_default();
        if streams.len() < IDLE_MAX {
            streams.push(stream);
        }
    }

    /// Ends all connections when what is queued has been sent, or after `patience`.
    pub(crate) async fn close(&self, patience: Duration) {
        let peers: Vec<Peer> = lock(&self.all).drain().map(|(_, peer)| peer).collect();
        lock(&self.idle).clear();
        let mut tasks = Vec::new();
        for peer in peers {
            peer.outbox.close();
            tasks.push(peer.task);
        }
        let all = async {
            for task in &mut tasks {
                let _ = task.await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }
}

/// Sends what is queued for a member for as long as it can be reached.
async fn talk(core: Arc<Core>, member: Member, outbox: Arc<Outbox>) {
    let mut was_connected = false;
    let mut look_again = LOOK_AGAIN;
    loop {
        let role = if was_connected { Role::ControlAgain } else { Role::Control };
        let (stream, via) = match connect(&core, member, role).await {
            Ok(connected) => connected,
            // The member was let go of, or replaced: what becomes of this connection tells nothing.
            Err(_) if outbox.is_closed() => return,
            Err(error) => {
                let is_dead = handshake::is_elsewhere(&error);
                info!(node = %member.id, address = %member.address, %error, "can't be reached");
                core.drive(Event::PeerLost { node: member.id, is_dead });
                if is_dead {
                    return;
                }
                // Others may reach it: all of them decide whether it lives. What it is to know is said again when it can be
                // reached, and is not kept until then.
                outbox.forget();
                was_connected = true;
                sleep(STABLE).await;
                continue;
            }
        };
        if was_connected {
            core.drive(Event::PeerUp { member });
        }
        was_connected = true;
        let connected_at = Instant::now();
        tokio::select! {
            pumped = outbox.pump(Arc::new(stream)) => match pumped {
                Ok(()) => return,
                Err(error) => debug!(node = %member.id, %error, "connection broke"),
            },
            () = relay::is_needless(&core, member, look_again), if via.is_some() => {
                info!(node = %member.id, "can be reached directly again");
                // Should that not last, it is not tried as often: both sides say everything again each time.
                look_again = (2 * look_again).min(LOOK_AGAIN_MAX);
            }
            // One that stands still takes all that it is sent, and passes nothing on.
            () = core.peers.lost(via.unwrap_or(member.id)), if via.is_some() => {
                debug!(node = %member.id, "whoever helped to reach it is gone");
            }
        }
        outbox.disconnect();
        if via.is_none() && connected_at.elapsed() > LOOK_AGAIN_MAX {
            look_again = LOOK_AGAIN;
        }
        // Somebody who lets us in and at once closes must not keep both sides busy.
        if connected_at.elapsed() < STABLE {
            sleep(STABLE).await;
        }
    }
}

/// Between two tries to do without a helper.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(160);

/// A connection that lives shorter than this is made again only after a pause.
const STABLE: Duration = Duration::from_millis(200);

/// A control connection to a member, and by way of whom it goes, if not directly.
async fn connect(
    core: &Arc<Core>,
    member: Member,
    role: Role,
) -> Result<(TcpStream, Option<NodeId>), LinkError> {
    let mut last = LinkError::Stranger;
    for pause in RETRIES {
        sleep(pause).await;
        match relay::call(core, member, role, relay::HELPERS).await {
            Ok((met, via)) => {
                if let Some(round_trip) = met.round_trip.filter(|_| via.is_none()) {
                    core.measured_round_trip(round_trip);
                }
                handshake::expect_answers(&met.stream, core.identity.silence)?;
                core.peers.is_reached(member.id, via);
                core.peers.has_called(member.id, met.session);
                return Ok((met.stream, via));
            }
            Err(error) if handshake::is_elsewhere(&error) => return Err(error),
            // Others have been asked, and everybody has been patient already.
            Err(error) if handshake::is_unreachable(&error) => return Err(error),
            Err(error) => {
                debug!(node = %member.id, %error, "no connection");
                last = error;
            }
        }
    }
    Err(last)
}
