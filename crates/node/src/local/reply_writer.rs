//! Sends replies to one attached process: whole frames in order, some with a descriptor. Of messages it knows only
//! which carry a small object, whose bytes a queued message shares with the store.
//!
//! While the socket has space, the thread that produces a frame writes it: waking a task would be slower.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use hoplite_proto::request::Reply;
use hoplite_shm::send_with_fds;
use tokio::{io::Interest, net::UnixStream, sync::Notify};

use super::{
    limits::UNREAD_BYTES_MAX,
    protocol::{FromNode, frame},
};
use crate::sync::lock;

/// A file descriptor that accompanies a frame.
pub(super) type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// The outgoing queue of one process.
pub(super) struct ReplyWriter {
    stream: Arc<UnixStream>,
    queue: Mutex<Queue>,
    changed: Notify,
}

/// The process has more than [`UNREAD_BYTES_MAX`] of unread replies.
#[derive(Debug)]
pub(super) struct Unread;

/// Frames that wait for space in the socket.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Outgoing>,
    /// Bytes of the queued frames and of the frame that is being written.
    bytes: usize,
    /// Whether a frame waits or is being written.
    is_busy: bool,
    /// No frame will be added.
    is_closed: bool,
}

/// Minimum size of small objects that are not copied while they wait: 1 KiB, several times the other bytes of a reply.
const SHARED_BYTES_MIN: u64 = 1024;

struct Outgoing {
    /// Bytes of its frame that are not written yet.
    bytes: Vec<u8>,
    /// Instead of `bytes`: a message with a small object, whose bytes it shares with the store.
    shared: Option<FromNode>,
    descriptor: Option<Descriptor>,
    /// Part of it is written: without the rest, the process can't parse later frames.
    has_begun: bool,
}

impl Outgoing {
    const fn new(bytes: Vec<u8>, descriptor: Option<Descriptor>) -> Self {
        Self { bytes, shared: None, descriptor, has_begun: false }
    }

    /// Stores the message instead of its frame, if it carries a small object and none of it is written.
    fn share(&mut self, message: FromNode) {
        if let FromNode::Reply { reply: Ok(Reply::Got { inline: Some(bytes), .. }), .. } = &message
            && bytes.len() >= SHARED_BYTES_MIN
            && !self.has_begun
        {
            (self.bytes, self.shared) = (Vec::new(), Some(message));
        }
    }

    /// Writes as much as the socket accepts.
    fn send(&mut self, stream: &UnixStream) -> io::Result<()> {
        let descriptors: Vec<_> = self.descriptor.iter().map(|fd| fd.as_fd()).collect();
        let count = send_with_fds(stream, &self.bytes, &descriptors)?;
        // The descriptor was sent with the first byte.
        self.descriptor = None;
        self.bytes.drain(..count);
        self.has_begun = true;
        Ok(())
    }
}

impl ReplyWriter {
    pub(super) fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, queue: Mutex::default(), changed: Notify::new() }
    }

    /// Sends a message, whose frame is `bytes`, after all others. Never waits.
    pub(super) fn send(
        &self,
        message: FromNode,
        bytes: Vec<u8>,
        descriptor: Option<Descriptor>,
    ) -> Result<(), Unread> {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return Ok(());
        }
        let mut outgoing = Outgoing::new(bytes, descriptor);
        if !queue.is_busy {
            // The task that reads detects a process that has ended.
            let _ = self.stream.try_io(Interest::WRITABLE, || outgoing.send(&self.stream));
            if outgoing.bytes.is_empty() {
                return Ok(());
            }
        }
        if queue.bytes + outgoing.bytes.len() > UNREAD_BYTES_MAX && queue.is_busy {
            return Err(Unread);
        }
        let length = outgoing.bytes.len();
        outgoing.share(message);
        queue.push(outgoing, length);
        self.changed.notify_one();
        Ok(())
    }

    /// Drops the frames not begun, sends a last frame, and accepts no more.
    pub(super) fn cut(&self, last: Vec<u8>) {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return;
        }
        queue.frames.retain(|outgoing| outgoing.has_begun);
        let length = last.len();
        queue.push(Outgoing::new(last, None), length);
        queue.is_closed = true;
        self.changed.notify_one();
    }

    /// Accepts no more frames.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// Writes queued frames until the queue is closed or the process has ended.
    pub(super) async fn write(&self) {
        loop {
            let (next, is_closed) = lock(&self.queue).next();
            let Some(mut outgoing) = next else {
                if is_closed {
                    return;
                }
                self.changed.notified().await;
                continue;
            };
            let length = outgoing.bytes.len();
            while !outgoing.bytes.is_empty() {
                let sent =
                    self.stream.async_io(Interest::WRITABLE, || outgoing.send(&self.stream)).await;
                if sent.is_err() {
                    return self.close();
                }
            }
            lock(&self.queue).bytes -= length;
        }
    }
}

impl Queue {
    fn push(&mut self, outgoing: Outgoing, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.is_busy = true;
        self.frames.push_back(outgoing);
    }

    /// Takes the next frame to write. Also returns whether the queue is closed.
    fn next(&mut self) -> (Option<Outgoing>, bool) {
        let next = self.frames.pop_front().map(|mut outgoing| {
            if let Some(message) = outgoing.shared.take() {
                outgoing.bytes = frame(&message);
            }
            outgoing
        });
        self.is_busy = next.is_some();
        (next, self.is_closed)
    }
}
