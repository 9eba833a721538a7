//! Sends replies to one attached process: whole frames in order, some with a descriptor. Of
//! messages it knows only which carry a small object, whose bytes a queued message shares with the
//! store.
//!
//! While the socket has space, the thread that produces a frame writes it: waking a task would be
//! slower.

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
    limits::{UNREAD_BYTES_MAX, UNREAD_SHARE_BYTES},
    protocol::{FromNode, frame},
    quota::{QuotaExceeded, QuotaHolder, QuotaPermit},
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

/// The process left too many replies unread.
#[derive(Debug)]
pub(super) enum Unread {
    /// More than [`UNREAD_BYTES_MAX`].
    OfProcess,
    /// More than its share of those of all processes.
    OfAll(QuotaExceeded),
}

impl Unread {
    /// The exceeded limit, and the reason for the process.
    pub(super) fn describe(&self) -> (&'static str, String) {
        match self {
            Self::OfProcess => {
                let most = UNREAD_BYTES_MAX >> 20;
                let said = format!(
                    "the process left {most} MiB of replies unread, which is the limit \
                     (UNREAD_BYTES_MAX)"
                );
                ("UNREAD_BYTES_MAX", said)
            }
            Self::OfAll(excess) => {
                let (limit, what) = ("UNREAD_BYTES_TOTAL_MAX", "bytes of unread replies");
                (limit, excess.explain(limit, what, "read replies while you send requests"))
            }
        }
    }
}

/// Frames that wait for space in the socket.
struct Queue {
    frames: VecDeque<Outgoing>,
    /// Bytes of the queued frames and of the frame that is being written.
    bytes: usize,
    /// Those of them that are not shared with the store.
    own_bytes: usize,
    /// Its share of the own bytes of all processes, for what exceeds [`UNREAD_SHARE_BYTES`].
    share: QuotaPermit,
    /// Whether a frame waits or is being written.
    is_busy: bool,
    /// No frame will be added.
    is_closed: bool,
}

/// Minimum size of small objects that are not copied while they wait: 1 KiB, several times the
/// other bytes of a reply.
const SHARED_BYTES_MIN: u64 = 1024;

struct Outgoing {
    /// Bytes of its frame that are not written yet.
    bytes: Vec<u8>,
    /// Instead of `bytes`: a message with a small object, whose bytes it shares with the store.
    shared: Option<FromNode>,
    /// Bytes that its queue counts as its own.
    own_bytes: usize,
    descriptor: Option<Descriptor>,
    /// Part of it is written: without the rest, the process can't parse later frames.
    has_begun: bool,
}

impl Outgoing {
    const fn new(bytes: Vec<u8>, descriptor: Option<Descriptor>) -> Self {
        Self { bytes, shared: None, own_bytes: 0, descriptor, has_begun: false }
    }

    /// Stores the message instead of its frame, if it carries a small object and none of it is
    /// written.
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
    /// Starts without frames; `share` has no bytes yet.
    pub(super) fn new(stream: Arc<UnixStream>, share: QuotaPermit) -> Self {
        let queue = Queue {
            frames: VecDeque::new(),
            bytes: 0,
            own_bytes: 0,
            share,
            is_busy: false,
            is_closed: false,
        };
        Self { stream, queue: Mutex::new(queue), changed: Notify::new() }
    }

    /// Counts its bytes for another taker too, before the first reply.
    pub(super) fn also(&self, taker: QuotaHolder) {
        // No bytes are always granted.
        let _ = lock(&self.queue).share.also(taker);
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
        let (mut length, mut outgoing) = (bytes.len(), Outgoing::new(bytes, descriptor));
        if queue.is_busy {
            if queue.bytes + length > UNREAD_BYTES_MAX {
                return Err(Unread::OfProcess);
            }
            outgoing.share(message);
            queue.take(outgoing.bytes.len())?;
        } else {
            // A frame that may not wait must not begin.
            queue.take(length)?;
            // The task that reads detects a process that has ended.
            let _ = self.stream.try_io(Interest::WRITABLE, || outgoing.send(&self.stream));
            length = outgoing.bytes.len();
            outgoing.share(message);
            // Fewer are always granted.
            let _ = queue.take(outgoing.bytes.len());
            if length == 0 {
                return Ok(());
            }
        }
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
        // Only the first one can have begun.
        let begun = queue.frames.iter().take_while(|outgoing| outgoing.has_begun).count();
        let dropped = queue.frames.split_off(begun);
        queue.free(dropped.iter().map(|outgoing| outgoing.own_bytes).sum());
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
            let mut queue = lock(&self.queue);
            queue.bytes -= length;
            queue.free(outgoing.own_bytes);
        }
    }
}

impl Queue {
    /// Takes its share of the bytes of all processes for `more` own bytes.
    fn take(&mut self, more: usize) -> Result<(), Unread> {
        let over = (self.own_bytes.saturating_add(more) as u64).saturating_sub(UNREAD_SHARE_BYTES);
        // In steps, so that few replies change it.
        let share = self.share.resize(over.next_multiple_of(UNREAD_SHARE_BYTES));
        share.map_err(Unread::OfAll)
    }

    fn free(&mut self, own_bytes: usize) {
        self.own_bytes -= own_bytes;
        // Fewer are always granted.
        let _ = self.take(0);
    }

    fn push(&mut self, mut outgoing: Outgoing, bytes: usize) {
        outgoing.own_bytes = outgoing.bytes.len();
        self.own_bytes += outgoing.own_bytes;
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
