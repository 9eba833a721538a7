//! Control messages that other nodes send to this one, taken off their connections and handed to the machine.
//!
//! By a thread of its own, or by a program's thread that waits for an answer anyway: see [`crate::shared_epoll`]. What is sent
//! the other way is in [`super::outbox`].

use std::{
    collections::HashMap,
    io,
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    message::Message,
    node::Event,
    wire::{self, FrameKind, HEADER_BYTES, Header, WireError},
};
use rustix::{buffer::spare_capacity, io::Errno};
use tokio::sync::SetOnce;
use tracing::{debug, warn};

use crate::{
    counters::Counters,
    digest,
    engine::{facts::Facts, task::Task, tasks::Tasks},
    error::LinkError,
    sealing::Open,
    shared_epoll::{SharedEpoll, Waited},
    sync::lock,
};

/// The control connections that others made to this node.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) epoll: Arc<SharedEpoll>,
    facts: Facts,
    counters: Arc<Counters>,
    tasks: Tasks,
    /// Set when the first message was handed over.
    pub(crate) heard: SetOnce<()>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    counted: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    from: NodeId,
    /// A connection of a later generation takes the place of those of earlier ones.
    generation: u64,
    stream: TcpStream,
    /// Locked for as long as messages are taken, so that they stay in order.
    unread: Mutex<Unread>,
    /// Another one is in its place: what has come over it is not taken any more.
    is_replaced: AtomicBool,
}

/// What has come over a connection.
#[derive(Debug)]
struct Unread {
    /// What was read and is no whole message yet.
    bytes: Vec<u8>,
    open: Open,
}

/// Bytes that are read at a time: many small messages.
const READ_BYTES: usize = 32 * 1024;

impl Control {
    pub(crate) fn new(
        epoll: Arc<SharedEpoll>,
        facts: Facts,
        counters: Arc<Counters>,
        tasks: Tasks,
    ) -> Self {
        let (connections, counted, heard) = (Mutex::default(), AtomicU64::new(0), SetOnce::new());
        Self { epoll, facts, counters, tasks, heard, connections, counted }
    }

    /// Begins to take messages; ends with [`Control::close`].
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let control = self.clone();
        let run = move || control.epoll.run(|token, is_last| control.take(token, is_last));
        self.tasks.thread(Task::Control, "hoplite-control", run)
    }

    /// Keeps a connection, which does not block, until its node is removed or makes another one; no message is taken from
    /// it yet. None if the node has made another one since. What came over those that it made before and was not taken is
    /// not taken any more: it is older than what the node says now. Not for a thread that takes messages.
    pub(crate) fn keep(
        &self,
        from: NodeId,
        generation: u64,
        stream: TcpStream,
        open: Open,
    ) -> Option<u64> {
        let token = self.counted.fetch_add(1, Ordering::Relaxed);
        let unread = Mutex::new(Unread { bytes: Vec::new(), open });
        let is_replaced = AtomicBool::new(false);
        let connection = Arc::new(Connection { from, generation, stream, unread, is_replaced });
        let replaced = {
            let mut connections = lock(&self.connections);
            let is_later =
                |other: &Arc<Connection>| other.from == from && other.generation > generation;
            if connections.values().any(is_later) {
                return None;
            }
            let replaced = take_off(&mut connections, from);
            connections.insert(token, connection);
            replaced
        };
        for connection in replaced {
            // This waits for the thread that takes some of them just now.
            let _unread = lock(&connection.unread);
            connection.is_replaced.store(true, Ordering::Relaxed);
        }
        Some(token)
    }

    /// Begins to take messages from a connection, unless its node was removed meanwhile.
    pub(crate) fn listen(&self, token: u64) -> io::Result<()> {
        let connection = lock(&self.connections).get(&token).cloned();
        let Some(connection) = connection else { return Ok(()) };
        let added = self.epoll.add(&connection.stream, token);
        if added.is_err() {
            lock(&self.connections).remove(&token);
        }
        added
    }

    /// Ends the connections that a node made.
    pub(crate) fn remove(&self, from: NodeId) {
        drop(take_off(&mut lock(&self.connections), from));
    }

    /// Waits for messages with the calling thread; see [`SharedEpoll::wait`].
    pub(crate) fn wait(&self, time: Duration, is_over: impl Fn() -> bool) -> Waited {
        self.epoll.wait(time, is_over, |token, is_last| self.take(token, is_last))
    }

    /// Ends all connections, and the thread.
    pub(crate) fn close(&self) {
        lock(&self.connections).clear();
        self.epoll.close();
    }

    /// Takes what has come over a connection, on the thread for that or a program's that waits.
    fn take(&self, token: u64, is_last: bool) {
        self.tasks.catch(Task::Control, || self.take_from(token, is_last)).unwrap_or_default();
    }

    fn take_from(&self, token: u64, is_last: bool) {
        let connection = lock(&self.connections).get(&token).cloned();
        let Some(connection) = connection else { return };
        if let Err(error) = connection.take(self, is_last) {
            debug!(node = %connection.from, %error, "its control connection ended");
            lock(&self.connections).remove(&token);
        }
    }
}

fn take_off(connections: &mut HashMap<u64, Arc<Connection>>, from: NodeId) -> Vec<Arc<Connection>> {
    let theirs = connections.extract_if(|_, connection| connection.from == from);
    theirs.map(|(_, connection)| connection).collect()
}

impl Connection {
    /// Hands over all messages that are there; of the last event, up to the end.
    fn take(&self, control: &Control, is_last: bool) -> Result<(), LinkError> {
        let mut unread = lock(&self.unread);
        if self.is_replaced.load(Ordering::Relaxed) {
            return Ok(());
        }
        loop {
            if control.facts.is_crowded() {
                control.tasks.block_on(control.facts.while_crowded());
            }
            unread.bytes.reserve(READ_BYTES);
            let room = unread.bytes.capacity() - unread.bytes.len();
            match rustix::io::read(&self.stream, spare_capacity(&mut unread.bytes)) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    let taken = self.take_whole(control, &mut unread)?;
                    unread.bytes.drain(..taken);
                    if unread.bytes.len() < READ_BYTES {
                        // After a message of megabytes.
                        unread.bytes.shrink_to(2 * READ_BYTES);
                    }
                    if count < room && !is_last {
                        // That was all; the next byte is another event.
                        return Ok(());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// What a message means. The answer to a get that brings other bytes than it says is asked of another owner; nothing
    /// else is said of bytes that contradict it.
    fn event(&self, control: &Control, message: Message) -> Result<Event, WireError> {
        let from = self.from;
        if digest::is_right(&message) {
            return Ok(Event::Message { from, message });
        }
        control.counters.copies_corrupt.add(1);
        warn!(node = %from, "a small object came that is not what its maker announced");
        match message {
            Message::Located { id, .. } => Ok(Event::InlineDiffers { id, source: from }),
            _ => Err(WireError::Unexpected("bytes that differ from their digest".into())),
        }
    }

    /// Hands over the whole messages at the beginning of what was read; returns how long they are.
    fn take_whole(&self, control: &Control, unread: &mut Unread) -> Result<usize, LinkError> {
        let Unread { bytes, open } = unread;
        let mut taken = 0;
        while let Some((header, rest)) = bytes[taken..].split_first_chunk_mut::<HEADER_BYTES>() {
            let mut header = Header::decode(header)?;
            if header.kind != FrameKind::Control {
                return Err(WireError::Unexpected(header.kind.to_string()).into());
            }
            let Some(body) = rest.get_mut(..header.length as usize) else { break };
            open.open(&mut header, body)?;
            let message: Message = wire::decode(body)?;
            if !message.is_sound() {
                let said = "a message that contradicts itself".into();
                return Err(WireError::Unexpected(said).into());
            }
            control.counters.messages_received.add(1);
            control.facts.tell(self.event(control, message)?);
            if !control.heard.initialized() {
                let _ = control.heard.set(());
            }
            taken += HEADER_BYTES + body.len();
        }
        Ok(taken)
    }
}
