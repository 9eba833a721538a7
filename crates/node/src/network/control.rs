//! Receives control messages: reads them from connections of other nodes and passes them to the
//! state machine.
//!
//! A dedicated thread does this, or a client's thread that waits for a reply anyway: see
//! [`crate::shared_epoll`]. [`super::outbox`] sends messages in the other direction.

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
    question::Answer,
    wire::{self, FrameKind, HEADER_BYTES, Header, WireError},
};
use rustix::{buffer::spare_capacity, io::Errno};
use tokio::sync::SetOnce;
use tracing::debug;

use crate::{
    counters::Counters,
    digest,
    engine::{
        event_sender::{EventSender, Source},
        tasks::{Supervisor, Task},
    },
    error::LinkError,
    repeats::log_once,
    sealing::Open,
    shared_epoll::{SharedEpoll, Waited},
    sync::lock,
};

/// The control connections that other nodes opened to this one.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) epoll: Arc<SharedEpoll>,
    events: EventSender,
    counters: Arc<Counters>,
    tasks: Supervisor,
    /// Set when the first message has been passed on.
    pub(crate) heard: SetOnce<()>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    counted: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    from: NodeId,
    /// A connection of a later generation replaces those of earlier ones.
    generation: u64,
    stream: TcpStream,
    /// Locked while messages are read, so that they stay in order.
    unread: Mutex<Unread>,
    /// A newer connection replaced this one: its unread messages are dropped.
    is_replaced: AtomicBool,
    /// A task reads it again once the state machine has caught up.
    is_paused: AtomicBool,
}

/// Bytes received on a connection.
#[derive(Debug)]
struct Unread {
    /// Bytes of an incomplete message.
    bytes: Vec<u8>,
    open: Open,
}

/// Why a thread stopped reading a connection.
enum Taken {
    /// No bytes are left.
    All,
    /// Too many events wait for the state machine.
    Congested,
}

/// Bytes per read: many small messages.
const READ_BYTES: usize = 32 * 1024;

impl Control {
    pub(crate) fn new(
        epoll: Arc<SharedEpoll>,
        events: EventSender,
        counters: Arc<Counters>,
        tasks: Supervisor,
    ) -> Self {
        let (connections, counted, heard) = (Mutex::default(), AtomicU64::new(0), SetOnce::new());
        Self { epoll, events, counters, tasks, heard, connections, counted }
    }

    /// Starts the thread that receives messages; [`Control::close`] ends it.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let control = self.clone();
        let run = move || control.epoll.run(|token, is_last| control.take(token, is_last));
        self.tasks.thread(Task::Control, "hoplite-control", run)
    }

    /// Stores a non-blocking connection until its node is removed or opens another one. Reads no
    /// message from it yet. Returns None if the node has opened a newer one since. Unread messages
    /// of its earlier connections are dropped: they are older than what the node sends now. Do not
    /// call this on a thread that receives messages.
    pub(crate) fn keep(
        &self,
        from: NodeId,
        generation: u64,
        stream: TcpStream,
        open: Open,
    ) -> Option<u64> {
        let token = self.counted.fetch_add(1, Ordering::Relaxed);
        let unread = Mutex::new(Unread { bytes: Vec::new(), open });
        let (is_replaced, is_paused) = (AtomicBool::new(false), AtomicBool::new(false));
        let connection =
            Arc::new(Connection { from, generation, stream, unread, is_replaced, is_paused });
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
            // Waits for a thread that is receiving messages from it.
            let _unread = lock(&connection.unread);
            connection.is_replaced.store(true, Ordering::Relaxed);
        }
        Some(token)
    }

    /// Starts to receive messages from a connection, unless its node was removed meanwhile.
    pub(crate) fn listen(&self, token: u64) -> io::Result<()> {
        let connection = lock(&self.connections).get(&token).cloned();
        let Some(connection) = connection else { return Ok(()) };
        let added = self.epoll.add(&connection.stream, token);
        if added.is_err() {
            lock(&self.connections).remove(&token);
        }
        added
    }

    /// Closes the connections that a node opened.
    pub(crate) fn remove(&self, from: NodeId) {
        drop(take_off(&mut lock(&self.connections), from));
    }

    /// Receives messages on the calling thread; see [`SharedEpoll::wait`].
    pub(crate) fn wait(&self, time: Duration, is_over: impl Fn() -> bool) -> Waited {
        self.epoll.wait(time, is_over, |token, is_last| self.take(token, is_last))
    }

    /// Closes all connections, and ends the thread.
    pub(crate) fn close(&self) {
        lock(&self.connections).clear();
        self.epoll.close();
    }

    /// Receives messages of a connection, on the dedicated thread or on a waiting client's thread.
    fn take(&self, token: u64, is_last: bool) {
        self.tasks.catch(Task::Control, || self.take_from(token, is_last)).unwrap_or_default();
    }

    fn take_from(&self, token: u64, is_last: bool) {
        let connection = lock(&self.connections).get(&token).cloned();
        let Some(connection) = connection else { return };
        match connection.take(self, is_last) {
            Ok(Taken::All) => {}
            Ok(Taken::Congested) => self.read_later(token, &connection),
            Err(error) => {
                debug!(node = %connection.from, %error, "a control connection ended");
                lock(&self.connections).remove(&token);
            }
        }
    }

    /// Raises the event of a connection again when the state machine has caught up. Until then no
    /// thread waits: the caller's may have a timeout.
    fn read_later(&self, token: u64, connection: &Arc<Connection>) {
        if connection.is_paused.swap(true, Ordering::SeqCst) {
            return;
        }
        let (epoll, events) = (self.epoll.clone(), self.events.clone());
        let connection = Arc::downgrade(connection);
        self.tasks.spawn(Task::Control, async move {
            events.until_uncongested(Source::Members).await;
            if let Some(connection) = connection.upgrade() {
                connection.is_paused.store(false, Ordering::SeqCst);
                // This fails only if the connection is closed.
                let _ = epoll.raise(&connection.stream, token);
            }
        });
    }
}

fn take_off(connections: &mut HashMap<u64, Arc<Connection>>, from: NodeId) -> Vec<Arc<Connection>> {
    let theirs = connections.extract_if(|_, connection| connection.from == from);
    theirs.map(|(_, connection)| connection).collect()
}

impl Connection {
    /// Passes on all available messages, until too many wait for the state machine; if this is the
    /// last event, reads until the end of the stream.
    fn take(&self, control: &Control, is_last: bool) -> Result<Taken, LinkError> {
        let mut unread = lock(&self.unread);
        if self.is_replaced.load(Ordering::Relaxed) {
            return Ok(Taken::All);
        }
        loop {
            if control.events.is_congested(Source::Members) {
                return Ok(Taken::Congested);
            }
            unread.bytes.reserve(READ_BYTES);
            let room = unread.bytes.capacity() - unread.bytes.len();
            match rustix::io::read(&self.stream, spare_capacity(&mut unread.bytes)) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    let taken = self.take_whole(control, &mut unread)?;
                    unread.bytes.drain(..taken);
                    if unread.bytes.len() < READ_BYTES {
                        // Free the memory of a message of megabytes.
                        unread.bytes.shrink_to(2 * READ_BYTES);
                    }
                    if count < room && !is_last {
                        // All bytes were read; the next byte raises another event.
                        return Ok(Taken::All);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Taken::All),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Converts a message to an event. If the bytes of a small object do not match their digest, a
    /// reply to a get becomes a retry at another owner, and any other message is an error.
    fn event(&self, control: &Control, message: Message) -> Result<Event, WireError> {
        let from = self.from;
        if digest::is_right(&message) {
            return Ok(Event::Message { from, message });
        }
        control.counters.copies_corrupt.add(1);
        log_once!(
            warn, from, node = %from,
            "received a small object that does not match its announced digest"
        );
        match message {
            Message::Answer { answer: Answer::Located(located), .. } => {
                Ok(Event::InlineCorrupt { id: located.id, source: from })
            }
            _ => Err(WireError::Unexpected("bytes that do not match their digest".into())),
        }
    }

    /// Passes on the complete messages at the start of the bytes read; returns their length.
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
            if !message.is_valid() {
                let said = "an inconsistent message".into();
                return Err(WireError::Unexpected(said).into());
            }
            control.counters.messages_received.add(1);
            control.events.send(self.event(control, message)?);
            if !control.heard.initialized() {
                let _ = control.heard.set(());
            }
            taken += HEADER_BYTES + body.len();
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
