//! What is to be sent to one member: messages leave in the order of their decisions.
//!
//! A message is written by the thread that decided it, if the socket takes it and nothing is queued before it; a task
//! writes the rest. Knows frames, not what they say.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

use tokio::{net::TcpStream, sync::Notify};

use crate::{sealing::Seal, sync::lock};

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
    frames: VecDeque<Vec<u8>>,
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
        lock(&self.queue).connect(None);
    }

    pub(super) fn is_connected(&self) -> bool {
        lock(&self.queue).connection.is_some()
    }

    /// What is queued is not sent.
    pub(super) fn forget(&self) {
        let mut queue = lock(&self.queue);
        queue.frames.clear();
        queue.connect(None);
        queue.is_due = false;
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.queue).is_closed
    }

    /// Writes through `stream` until the outbox is closed and empty; fails when the connection does.
    pub(super) async fn pump(&self, stream: Arc<TcpStream>, seal: Seal) -> io::Result<()> {
        // Also tells the runtime that it can be written, for those who write without waiting.
        stream.writable().await?;
        lock(&self.queue).connect(Some(Connection { stream: stream.clone(), seal }));
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

/// Memory of sealed frames that is kept for the next.
const SEALED_BYTES_KEPT: usize = 16 * 1024;

impl Queue {
    /// Has another connection, or none. Of what the last one has not taken whole nothing is sent there.
    fn connect(&mut self, connection: Option<Connection>) {
        self.sealed = Vec::new();
        (self.written, self.taken, self.connection) = (0, 0, connection);
    }

    /// Writes what the socket takes without waiting; whether that is all.
    fn flush(&mut self) -> io::Result<bool> {
        let Some(Connection { stream, seal }) = &mut self.connection else {
            return Ok(self.frames.is_empty());
        };
        while !self.frames.is_empty() {
            if self.written == self.sealed.len() {
                self.sealed.clear();
                self.written = 0;
                for frame in self.frames.iter().take(BATCH_FRAMES) {
                    let begin = self.sealed.len();
                    self.sealed.extend_from_slice(frame);
                    seal.seal_whole(&mut self.sealed[begin..]);
                }
            }
            let written = match stream.try_write(&self.sealed[self.written..]) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            self.written += written;
            self.taken += written;
            while self.frames.front().is_some_and(|first| first.len() <= self.taken) {
                self.taken -= self.frames.pop_front().map_or(0, |first| first.len());
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
    /// The caller has to flush.
    Due,
    /// It is the first of those that can wait.
    Later,
}
