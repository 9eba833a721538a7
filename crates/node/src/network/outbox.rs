//! What is to be sent to one member: messages leave in the order of their decisions.
//!
//! A message is written by the thread that decided it, if the socket takes it and nothing is queued before it; a task
//! writes the rest. Knows frames, not what they say.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    sync::{Arc, Mutex},
};

use tokio::{net::TcpStream, sync::Notify};

use crate::sync::lock;

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
    /// A thread is about to write what is queued, or the task is.
    is_due: bool,
}

/// Frames that are written with one system call.
const BATCH_FRAMES: usize = 64;

impl Outbox {
    /// Queues a frame; says whether the caller has to flush, now or, if the frame can wait, in a moment.
    pub(super) fn push(&self, frame: Vec<u8>, can_wait: bool) -> Push {
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

    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.changed.notify_one();
    }

    /// There is no connection (any more).
    pub(super) fn disconnect(&self) {
        lock(&self.queue).stream = None;
    }

    pub(super) fn is_connected(&self) -> bool {
        lock(&self.queue).stream.is_some()
    }

    /// What is queued is not sent.
    pub(super) fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.frames.clear();
        (queue.taken, queue.is_due, queue.stream) = (0, false, None);
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    /// Writes through `stream` until the outbox is closed and empty; fails when the connection does.
    pub(super) async fn pump(&self, stream: Arc<TcpStream>) -> io::Result<()> {
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
pub(super) enum Push {
    /// Another thread writes it.
    Done,
    /// The caller has to flush.
    Due,
    /// It is the first of those that can wait.
    Later,
}
