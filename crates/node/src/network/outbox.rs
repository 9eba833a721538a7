//! The queue of messages to one member. Messages leave in the order in which they were decided.
//!
//! The thread that decided a message writes it, if nothing is queued before it and the socket
//! accepts it; a task writes the rest. Knows frames, not their contents.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use hoplite_proto::{limits::OUTBOX_BYTES_MAX, message::Message, wire::FrameKind};
use hoplite_shm::{PathInfo, path_info};
use tokio::{net::TcpStream, sync::Notify};

use crate::{frame, sealing::Seal, sync::lock};

/// Messages to be sent to a member.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// Wakes the task.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Not encrypted: the next connection may have other keys.
    frames: VecDeque<Queued>,
    /// Memory that they take, without bytes of small objects shared with the store.
    bytes: usize,
    /// The queue exceeded its limit.
    is_full: bool,
    /// The first frames, encrypted for the connection.
    sealed: Vec<u8>,
    /// Bytes that the socket has accepted: of `sealed`, and of the first frame.
    written: usize,
    taken: usize,
    /// The connection, while there is one.
    connection: Option<Connection>,
    /// No message will be added.
    is_closed: bool,
    /// A thread or the task is about to write the queue.
    is_due: bool,
}

#[derive(Debug)]
struct Connection {
    stream: Arc<TcpStream>,
    seal: Seal,
}

/// A queued message.
#[derive(Debug)]
struct Queued {
    /// Bytes of its frame.
    length: usize,
    said: QueuedBody,
}

#[derive(Debug)]
enum QueuedBody {
    Frame(Vec<u8>),
    /// A message with a small object, whose bytes it shares with the store.
    Message(Box<Message>),
}

/// Limits of one system call: frames, and bytes after which no frame is added.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 256 * 1024;

/// Limit of the memory queued for a member, lower in tests.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { OUTBOX_BYTES_MAX };

/// Minimum size of small objects that are not copied while they wait: 1 KiB, several times the
/// other bytes of a message.
const SHARED_BYTES_MIN: u64 = 1024;

impl Queued {
    fn new(frame: Vec<u8>, message: &Message) -> Self {
        let shared = message.small_object().map_or(0, |(_, bytes)| bytes.len());
        let length = frame.len();
        let said = if shared < SHARED_BYTES_MIN {
            QueuedBody::Frame(frame)
        } else {
            QueuedBody::Message(Box::new(message.clone()))
        };
        Self { length, said }
    }

    /// Memory that it takes.
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.said {
                QueuedBody::Frame(frame) => frame.capacity(),
                QueuedBody::Message(_) => size_of::<Message>(),
            }
    }

    /// Appends its frame to others.
    fn append_to(&self, frames: &mut Vec<u8>) {
        match &self.said {
            QueuedBody::Frame(frame) => frames.extend_from_slice(frame),
            QueuedBody::Message(message) => {
                frames.extend_from_slice(&frame::frame(FrameKind::Control, 0, message));
            }
        }
    }
}

impl Outbox {
    /// Queues the frame of a message. Returns whether the caller must flush now, later if the
    /// message can wait, or not at all.
    pub(super) fn push(&self, frame: Vec<u8>, message: &Message) -> Push {
        let can_wait = message.can_wait();
        let mut queue = lock(&self.queue);
        if queue.is_closed || queue.is_full {
            return Push::Done;
        }
        let queued = Queued::new(frame, message);
        queue.bytes += queued.bytes();
        queue.frames.push_back(queued);
        if queue.bytes > BYTES_MAX {
            queue.clear();
            queue.is_full = true;
            self.changed.notify_one();
            return Push::Full;
        }
        let is_due = queue.is_due;
        queue.is_due |= !can_wait;
        match (is_due, can_wait, queue.frames.len()) {
            (false, false, _) => Push::Due,
            (false, true, 1) => Push::Deferred,
            _ => Push::Done,
        }
    }

    /// Writes the queue without waiting. The task writes what the socket does not accept now.
    pub(crate) fn flush(&self) {
        let flushed = lock(&self.queue).flush();
        if !matches!(flushed, Ok(true)) {
            self.changed.notify_one();
        }
    }

    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// Drops the connection.
    pub(super) fn disconnect(&self) {
        lock(&self.queue).connect(None);
    }

    pub(super) fn is_connected(&self) -> bool {
        lock(&self.queue).connection.is_some()
    }

    /// TCP's measurements of the path to the member; None without a connection.
    pub(super) fn path(&self) -> Option<PathInfo> {
        let queue = lock(&self.queue);
        path_info(queue.connection.as_ref()?.stream.as_fd()).ok()
    }

    /// Drops the queue and the connection.
    pub(super) fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.clear();
        queue.connect(None);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    /// Writes to `stream` until the outbox is closed and empty. Fails when the connection does, and
    /// at once if the queue exceeded its limit before: the member then needs the full state again.
    pub(super) async fn pump(&self, stream: Arc<TcpStream>, seal: Seal) -> io::Result<()> {
        // This also marks the stream as writable in the runtime, for `try_write`.
        stream.writable().await?;
        {
            let mut queue = lock(&self.queue);
            if queue.is_full && !queue.is_closed {
                return Err(too_little());
            }
            queue.connect(Some(Connection { stream: stream.clone(), seal }));
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
                // The peer never sends on this connection: readable means closed.
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

fn too_little() -> io::Error {
    io::Error::other("the peer reads messages too slowly: the queue is full")
}

/// Bytes of the encryption buffer that are kept for later frames.
const SEALED_BYTES_KEPT: usize = 16 * 1024;

impl Queue {
    fn clear(&mut self) {
        (self.frames, self.bytes, self.is_due) = (VecDeque::new(), 0, false);
    }

    /// Replaces or drops the connection. A frame that the previous connection did not accept whole
    /// is sent again in full on the next.
    fn connect(&mut self, connection: Option<Connection>) {
        self.sealed = Vec::new();
        self.is_full = false;
        (self.written, self.taken, self.connection) = (0, 0, connection);
    }

    /// Writes what the socket accepts without waiting; returns whether the queue is empty.
    fn flush(&mut self) -> io::Result<bool> {
        if self.is_full {
            return Err(too_little());
        }
        let Some(Connection { stream, seal }) = &mut self.connection else {
            return Ok(self.frames.is_empty());
        };
        while !self.frames.is_empty() {
            if self.written == self.sealed.len() {
                self.sealed.clear();
                self.written = 0;
                for queued in self.frames.iter().take(BATCH_FRAMES) {
                    let begin = self.sealed.len();
                    queued.append_to(&mut self.sealed);
                    seal.seal_whole(&mut self.sealed[begin..]);
                    if self.sealed.len() >= BATCH_BYTES {
                        break;
                    }
                }
            }
            let written = match stream.try_write(&self.sealed[self.written..]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            self.written += written;
            self.taken += written;
            while self.frames.front().is_some_and(|first| first.length <= self.taken)
                && let Some(first) = self.frames.pop_front()
            {
                self.taken -= first.length;
                self.bytes -= first.bytes();
            }
        }
        self.sealed.clear();
        self.sealed.shrink_to(SEALED_BYTES_KEPT);
        (self.written, self.is_due) = (0, false);
        Ok(true)
    }
}

/// What the caller must do after queuing a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// Nothing: another thread writes it.
    Done,
    /// The queue exceeded its limit: this frame and all queued ones were dropped.
    Full,
    /// Flush.
    Due,
    /// Flush later: this is the first frame that can wait.
    Deferred,
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{
        id::{Instance, NodeId, ObjectId, QuestionId},
        limits::INLINE_BYTES_MAX,
        message::{Located, Source},
        meta::Meta,
        question::Answer,
        wire::{HEADER_BYTES, Header},
    };
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    const OWNER: NodeId = NodeId(1);

    /// The reply to a lookup of a small object.
    fn located(bytes: &[u8]) -> Message {
        let located = Located {
            id: ObjectId::Minted { node: OWNER, serial: 1 },
            instance: Instance { node: OWNER, serial: 2 },
            meta: Meta::bytes(bytes.len() as u64),
            source: Source::Inline(bytes.into()),
            lifetime: None,
        };
        Message::Answer { number: QuestionId(3), answer: Answer::Located(Box::new(located)) }
    }

    fn push(outbox: &Outbox, message: &Message) -> usize {
        let frame = frame::frame(FrameKind::Control, 0, message);
        let length = frame.len();
        outbox.push(frame, message);
        length
    }

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// Goal: replies to a member that reads slowly take little memory, and arrive whole and in
    /// order.
    #[tokio::test]
    async fn queued_small_objects_are_not_copied() {
        let outbox = Arc::new(Outbox::default());
        let large = vec![7; INLINE_BYTES_MAX as usize];
        let sent: usize = (0..1000)
            .map(|number| push(&outbox, &located(if number % 2 == 0 { &large } else { b"x" })))
            .sum();
        assert!(sent > 15 << 20 && lock(&outbox.queue).bytes < 1 << 20);
        outbox.close();
        let (near, mut far) = connected().await;
        let pumping = {
            let outbox = outbox.clone();
            tokio::spawn(async move { outbox.pump(Arc::new(near), Seal::new(None)).await })
        };
        let mut came = vec![0; sent];
        far.read_exact(&mut came).await.unwrap();
        pumping.await.unwrap().unwrap();
        let mut rest = &came[..];
        for number in 0..1000 {
            let (header, behind) = rest.split_first_chunk::<HEADER_BYTES>().unwrap();
            let header = Header::decode(header).unwrap();
            let (body, behind) = behind.split_at(header.length as usize);
            frame::check(&header, body).unwrap();
            assert_eq!(body.len() > large.len(), number % 2 == 0);
            rest = behind;
        }
        let queue = lock(&outbox.queue);
        assert!((rest.len(), queue.bytes, queue.frames.len()) == (0, 0, 0));
    }

    /// Goal: the queue for an unreachable member is bounded, and no later message is sent there
    /// without those before it.
    #[tokio::test]
    async fn queue_without_connection_is_bounded() {
        let outbox = Outbox::default();
        let (mut pushed, mut most) = (0, 0);
        while pushed < 3 * BYTES_MAX {
            pushed += push(&outbox, &located(&[7; 1000]));
            most = most.max(lock(&outbox.queue).bytes);
        }
        assert!(most <= BYTES_MAX && most > BYTES_MAX / 2, "{most}");
        assert_eq!(lock(&outbox.queue).frames.len(), 0);
        let (near, _far) = connected().await;
        let said = outbox.pump(Arc::new(near), Seal::new(None)).await.unwrap_err().to_string();
        assert!(said.contains("the queue is full"), "{said}");
        // The next connection works; the member gets the full state on it.
        outbox.disconnect();
        let (near, mut far) = connected().await;
        let length = push(&outbox, &located(b"x"));
        outbox.close();
        outbox.pump(Arc::new(near), Seal::new(None)).await.unwrap();
        let mut came = vec![0; length];
        far.read_exact(&mut came).await.unwrap();
    }

    #[tokio::test]
    async fn connection_to_slow_reader_is_closed() {
        let outbox = Arc::new(Outbox::default());
        let (near, _far) = connected().await;
        let pumping = {
            let outbox = outbox.clone();
            tokio::spawn(async move { outbox.pump(Arc::new(near), Seal::new(None)).await })
        };
        while !pumping.is_finished() {
            push(&outbox, &located(&[7; 1000]));
            outbox.flush();
            assert!(lock(&outbox.queue).bytes <= BYTES_MAX);
            tokio::task::yield_now().await;
        }
        let said = pumping.await.unwrap().unwrap_err().to_string();
        assert!(said.contains("the queue is full"), "{said}");
        // The next connection starts with messages queued after it.
        outbox.disconnect();
        assert_eq!(push(&outbox, &located(b"x")) > 0, lock(&outbox.queue).frames.len() == 1);
    }
}
