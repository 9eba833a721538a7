//! What goes out to one attached process: whole frames in order, some with a descriptor. Of messages it knows only which bring
//! a small object, whose bytes they share with the store while they wait.
//!
//! As long as the socket has room a frame goes out on the thread that has it: a task to write it would wake up later.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use hoplite_proto::ask::Answer;
use hoplite_shm::send_with_fds;
use tokio::{io::Interest, net::UnixStream, sync::Notify};

use super::{
    limits::UNREAD_BYTES_MAX,
    protocol::{FromNode, frame},
};
use crate::sync::lock;

/// What goes beside a frame.
pub(super) type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// The way out to one process.
pub(super) struct Answers {
    stream: Arc<UnixStream>,
    queue: Mutex<Queue>,
    changed: Notify,
}

/// The process has left more than [`UNREAD_BYTES_MAX`] unread.
#[derive(Debug)]
pub(super) struct Unread;

/// What waits for room in the socket.
#[derive(Default)]
struct Queue {
    frames: VecDeque<Outgoing>,
    /// Bytes of the queued frames and of the frame that is being written.
    bytes: usize,
    /// Whether a frame waits or is being written.
    is_busy: bool,
    /// Nothing comes behind what is there.
    is_closed: bool,
}

/// Small objects of so many bytes are not copied while they wait: 1 KiB, several times what an answer takes beside them.
const SHARED_BYTES_MIN: u64 = 1024;

struct Outgoing {
    /// Of its frame, what was not written.
    bytes: Vec<u8>,
    /// In place of that: a message that brings a small object, whose bytes it shares with the store.
    shared: Option<FromNode>,
    descriptor: Option<Descriptor>,
    /// Some of it has been written: without the rest the process could read nothing that follows.
    has_begun: bool,
}

impl Outgoing {
    const fn new(bytes: Vec<u8>, descriptor: Option<Descriptor>) -> Self {
        Self { bytes, shared: None, descriptor, has_begun: false }
    }

    /// Keeps the message in place of its frame, if that has the bytes of a small object and was not begun.
    fn share(&mut self, message: FromNode) {
        if let FromNode::Answer { answer: Ok(Answer::Got { inline: Some(bytes), .. }), .. } =
            &message
            && bytes.len() >= SHARED_BYTES_MIN
            && !self.has_begun
        {
            (self.bytes, self.shared) = (Vec::new(), Some(message));
        }
    }

    /// Writes some of it, as far as there is room.
    fn send(&mut self, stream: &UnixStream) -> io::Result<()> {
        let descriptors: Vec<_> = self.descriptor.iter().map(|fd| fd.as_fd()).collect();
        let count = send_with_fds(stream, &self.bytes, &descriptors)?;
        // It goes with the first byte.
        self.descriptor = None;
        self.bytes.drain(..count);
        self.has_begun = true;
        Ok(())
    }
}

impl Answers {
    pub(super) fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, queue: Mutex::default(), changed: Notify::new() }
    }

    /// Sends a message, whose frame this is, after all others, and never waits.
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
            // A process that is gone is noticed by the task that reads.
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

    /// Drops what waits and was not begun, sends a last frame and nothing after it.
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

    /// Sends nothing behind what waits.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// Writes what waits until this is closed or the process gone.
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

    /// The next frame to be written, and whether none follows when there is none.
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
