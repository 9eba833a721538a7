//! Streams of partial results between a position of a reduce and its parent, and the memory of their frames.
//!
//! Does not know what is folded, nor over which connection a stream goes.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    limits::{FRAMES_BYTES, WINDOW_BYTES},
    message::FoldKey,
};
use tokio::sync::{Notify, mpsc, watch};

use crate::sync::{lock, until};

/// A piece of the stream of a position.
#[derive(Debug)]
pub(crate) enum Frame {
    /// A few blocks of the partial result.
    Bytes {
        /// Where it belongs.
        offset: u64,
        /// What was folded.
        bytes: Piece,
    },
    /// All was folded. A stream that ends without this broke off.
    End,
}

/// Memory for one frame, which goes back to those that share it.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Vec<u8>,
    spare: Arc<Mutex<Spare>>,
    spared: Arc<Notify>,
}

/// Memory of frames that are done with, for the next: new memory would be set to zero.
#[derive(Debug, Default)]
struct Spare {
    pieces: Vec<Vec<u8>>,
    /// What the pieces take together.
    bytes: usize,
    /// Bytes of pieces that hold frames; and whether any did since [`Streams::give_back`] was last called.
    used: usize,
    was_used: bool,
}

/// Bytes of memory for frames that are kept for the next: what two folds at work use.
const SPARE_BYTES_MAX: usize = 4 * WINDOW_BYTES as usize;

impl Spare {
    fn take(&mut self, length: usize) -> Vec<u8> {
        (self.used, self.was_used) = (self.used + length, true);
        let piece = self.pieces.pop().unwrap_or_default();
        self.bytes -= piece.capacity();
        piece
    }

    /// Keeps a piece; whether it is the first.
    fn put(&mut self, piece: Vec<u8>) -> bool {
        self.used -= piece.len();
        if self.bytes + piece.capacity() <= SPARE_BYTES_MAX {
            self.bytes += piece.capacity();
            self.pieces.push(piece);
        }
        self.pieces.len() == 1
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if lock(&self.spare).put(std::mem::take(&mut self.bytes)) {
            self.spared.notify_one();
        }
    }
}

/// How long a parent waits for a position whose order has not arrived yet, and a fold for the memory of a copy. The
/// order was sent before the parent's, and new memory takes 0.7 ms per MiB.
pub(crate) const ORDER_PATIENCE: Duration = Duration::from_secs(30);

/// The streams of the positions at this node, until their parents take them; and how many transfers share its link in
/// each direction.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ready: Mutex<HashMap<FoldKey, mpsc::Receiver<Frame>>>,
    arrived: Notify,
    sending: Count,
    receiving: Count,
    spare: Arc<Mutex<Spare>>,
    spared: Arc<Notify>,
}

/// How many transfers are under way in one direction.
type Count = Arc<watch::Sender<usize>>;

/// A transfer that is under way.
#[derive(Debug)]
pub(crate) struct Active(Count);

impl Active {
    fn of(count: &Count) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

fn shares(count: &Count) -> u16 {
    u16::try_from(*count.borrow()).unwrap_or(u16::MAX)
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Streams {
    /// Takes the stream of a position, waiting for its order; none if it does not come.
    pub(crate) async fn take(&self, key: FoldKey) -> Option<mpsc::Receiver<Frame>> {
        let taken = until(&self.arrived, || lock(&self.ready).remove(&key));
        tokio::time::timeout(ORDER_PATIENCE, taken).await.ok()
    }

    /// Counts a transfer out of this node for as long as the guard lives.
    pub(crate) fn sending(&self) -> Active {
        Active::of(&self.sending)
    }

    /// Counts a transfer to this node for as long as the guard lives.
    pub(crate) fn receiving(&self) -> Active {
        Active::of(&self.receiving)
    }

    /// How many transfers share the link out of this node.
    pub(crate) fn shares_out(&self) -> u16 {
        shares(&self.sending)
    }

    /// How many transfers share the link to this node.
    pub(crate) fn shares_in(&self) -> u16 {
        shares(&self.receiving)
    }

    /// Ends when nothing is being sent.
    pub(crate) async fn idle(&self) {
        // The sender is part of this.
        let _ = self.sending.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Memory for `length` bytes, which are what it held before.
    pub(crate) fn piece(&self, length: usize) -> Piece {
        let mut bytes = lock(&self.spare).take(length);
        bytes.resize(length, 0);
        Piece { bytes, spare: self.spare.clone(), spared: self.spared.clone() }
    }

    /// Whether there are so many frames that each stream keeps one only.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.spare).used as u64 > FRAMES_BYTES
    }

    /// Waits, if there are so many frames, until the others of a stream were taken.
    pub(crate) async fn wait_for_room<T>(&self, window: &mpsc::Sender<T>) {
        if self.is_short() {
            // An error says that nothing is taken any more, as the next frame is told.
            let _ = window.reserve_many(window.max_capacity()).await;
        }
    }

    /// Gives memory back that no frame needed since this was called before.
    pub(crate) fn give_back(&self) {
        let mut spare = lock(&self.spare);
        if spare.used == 0 && !std::mem::take(&mut spare.was_used) {
            (spare.pieces, spare.bytes) = (Vec::new(), 0);
        }
    }

    /// Ends when there is memory that [`Self::give_back`] may give back.
    pub(crate) async fn spare(&self) {
        while lock(&self.spare).bytes == 0 {
            self.spared.notified().await;
        }
    }

    /// Keeps the stream of a position for its parent.
    pub(crate) fn put(&self, key: FoldKey, stream: mpsc::Receiver<Frame>) {
        lock(&self.ready).insert(key, stream);
        self.arrived.notify_waiters();
    }

    /// Drops the stream of a position.
    pub(crate) fn forget(&self, key: FoldKey) {
        lock(&self.ready).remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    fn spare_bytes(streams: &Streams) -> usize {
        lock(&streams.spare).bytes
    }

    #[tokio::test]
    async fn of_many_frames_a_stream_keeps_one() {
        let (streams, (window, mut frames)) = (Streams::default(), mpsc::channel(8));
        let send = async |length: usize| {
            streams.wait_for_room(&window).await;
            window.send(streams.piece(length)).await.unwrap();
        };
        let large = FRAMES_BYTES as usize;
        send(large).await;
        send(1).await;
        assert!(streams.is_short());
        let third = send(1);
        tokio::pin!(third);
        let first = frames.recv().await.unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(third.as_mut().poll(&mut context).is_pending(), "the second is there");
        drop(frames.recv().await.unwrap());
        third.await;
        drop(first);
        assert!(!streams.is_short());
        send(1).await;
        assert_eq!(frames.len(), 2);
    }

    #[test]
    fn memory_of_frames_is_kept_while_it_is_used_and_given_back_then() {
        let streams = Streams::default();
        let frames = |length: usize, count: usize| {
            drop((0..count).map(|_| streams.piece(length)).collect::<Vec<_>>());
        };
        frames(64 << 10, 3);
        assert_eq!(spare_bytes(&streams), 3 * (64 << 10));
        streams.give_back();
        let used = streams.piece(64 << 10);
        assert_eq!(spare_bytes(&streams), 2 * (64 << 10), "what is there is taken");
        streams.give_back();
        streams.give_back();
        assert_eq!(spare_bytes(&streams), 2 * (64 << 10), "a frame is at work");
        drop(used);
        streams.give_back();
        streams.give_back();
        assert_eq!(spare_bytes(&streams), 0);
        // Frames of any sizes together.
        frames(256 << 10, 64);
        frames(1 << 10, 1024);
        assert!(spare_bytes(&streams) <= SPARE_BYTES_MAX, "{}", spare_bytes(&streams));
    }
}
