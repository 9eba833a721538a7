//! What is to be sent to one member: messages leave in the order of their decisions.
//!
//! A message is written by the thread that decided it, if the socket takes it and nothing is queued before it; a task
//! writes the rest. Knows frames, not what they say.

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

/// What is to be sent to a member.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    /// There is something for the task to do.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Not sealed: the next connection may be another.
    frames: VecDeque<Queued>,
    /// What they take, without the bytes of small objects that the store has.
    bytes: usize,
    /// It was too much.
    is_full: bool,
    /// The first frames as they are sent, sealed for the connection.
    sealed: Vec<u8>,
    /// Bytes of these that the socket has taken; and of the first frame.
    written: usize,
    taken: usize,
    /// The connection, while there is one.
    connection: Option<Connection>,
    /// Nothing will be added.
    is_closed: bool,
    /// A thread is about to write what is queued, or the task is.
    is_due: bool,
}

#[derive(Debug)]
struct Connection {
    stream: Arc<TcpStream>,
    seal: Seal,
}

/// A message that waits for the socket.
#[derive(Debug)]
struct Queued {
    /// Of its frame.
    length: usize,
    said: Said,
}

#[derive(Debug)]
enum Said {
    Frame(Vec<u8>),
    /// It brings a small object, whose bytes it shares with the store.
    Message(Box<Message>),
}

/// Frames that are written with one system call, and the bytes from which on no other joins them.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 256 * 1024;

/// Bytes of what waits for a member, fewer in tests.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { OUTBOX_BYTES_MAX };

/// Small objects of so many bytes are not copied while they wait: 1 KiB, several times what a message takes beside them.
const SHARED_BYTES_MIN: u64 = 1024;

impl Queued {
    fn new(frame: Vec<u8>, message: &Message) -> Self {
        let shared = message.small_object().map_or(0, |(_, bytes)| bytes.len());
        let length = frame.len();
        let said = if shared < SHARED_BYTES_MIN {
            Said::Frame(frame)
        } else {
            Said::Message(Box::new(message.clone()))
        };
        Self { length, said }
    }

    /// What it takes.
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.said {
                Said::Frame(frame) => frame.capacity(),
                Said::Message(_) => size_of::<Message>(),
            }
    }

    /// Adds its frame to others.
    fn append_to(&self, frames: &mut Vec<u8>) {
        match &self.said {
            Said::Frame(frame) => frames.extend_from_slice(frame),
            Said::Message(message) => {
                frames.extend_from_slice(&frame::frame(FrameKind::Control, 0, message));
            }
        }
    }
}

impl Outbox {
    /// Queues the frame of a message; says whether the caller has to flush, now or, if the message can wait, in a moment.
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

    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// There is no connection (any more).
    pub(super) fn disconnect(&self) {
        lock(&self.queue).connect(None);
    }

    pub(super) fn is_connected(&self) -> bool {
        lock(&self.queue).connection.is_some()
    }

    /// What TCP knows of the way to the member; none without a connection.
    pub(super) fn path(&self) -> Option<PathInfo> {
        let queue = lock(&self.queue);
        path_info(queue.connection.as_ref()?.stream.as_fd()).ok()
    }

    /// What is queued is not sent.
    pub(super) fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.clear();
        queue.connect(None);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    /// Writes through `stream` until the outbox is closed and empty; fails when the connection does, and at once if there was
    /// too much to be said before it: the member has to hear everything again.
    pub(super) async fn pump(&self, stream: Arc<TcpStream>, seal: Seal) -> io::Result<()> {
        // Also tells the runtime that it can be written, for those who write without waiting.
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

fn too_little() -> io::Error {
    io::Error::other("it takes less than there is to be said")
}

/// Memory of sealed frames that is kept for the next.
const SEALED_BYTES_KEPT: usize = 16 * 1024;

impl Queue {
    fn clear(&mut self) {
        (self.frames, self.bytes, self.is_due) = (VecDeque::new(), 0, false);
    }

    /// Has another connection, or none. Of what the last one has not taken whole nothing is sent there.
    fn connect(&mut self, connection: Option<Connection>) {
        self.sealed = Vec::new();
        self.is_full = false;
        (self.written, self.taken, self.connection) = (0, 0, connection);
    }

    /// Writes what the socket takes without waiting; whether that is all.
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

/// What is to become of a frame that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// Another thread writes it.
    Done,
    /// It was too much: neither it nor what was queued before is sent.
    Full,
    /// The caller has to flush.
    Due,
    /// It is the first of those that can wait.
    Later,
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{
        id::{Instance, NodeId, ObjectId},
        limits::INLINE_BYTES_MAX,
        message::Source,
        meta::Meta,
        wire::{HEADER_BYTES, Header},
    };
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    const OWNER: NodeId = NodeId(1);

    /// The answer to a question for a small object.
    fn located(bytes: &[u8]) -> Message {
        Message::Located {
            id: ObjectId::Minted { node: OWNER, serial: 1 },
            instance: Instance { node: OWNER, serial: 2 },
            meta: Meta::bytes(bytes.len() as u64),
            source: Source::Inline(bytes.into()),
            lifetime: None,
        }
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

    /// Goal: answers to a member that reads slowly take little memory, and come whole and in order.
    #[tokio::test]
    async fn small_objects_that_wait_are_not_copied() {
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

    /// Goal: what waits for a member that can't be reached is bounded, and no later message goes there without those before it.
    #[tokio::test]
    async fn what_waits_without_a_connection_is_bounded_and_said_again() {
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
        assert!(said.contains("less than there is to be said"), "{said}");
        // The next connection is one again, over which the member is told everything.
        outbox.disconnect();
        let (near, mut far) = connected().await;
        let length = push(&outbox, &located(b"x"));
        outbox.close();
        outbox.pump(Arc::new(near), Seal::new(None)).await.unwrap();
        let mut came = vec![0; length];
        far.read_exact(&mut came).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_ends_over_which_too_little_is_taken() {
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
        assert!(said.contains("less than there is to be said"), "{said}");
        // The next connection begins with what is said then.
        outbox.disconnect();
        assert_eq!(push(&outbox, &located(b"x")) > 0, lock(&outbox.queue).frames.len() == 1);
    }
}
