//! Streams of partial results between a position of a reduce and its parent, and the memory of
//! their frames.
//!
//! Does not know what is folded, nor the connection of a stream.

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    limits::{FRAMES_BYTES, WINDOW_BYTES},
    message::FoldKey,
};
use hoplite_shm::Ready;
use tokio::sync::{Notify, mpsc, watch};

use super::turns::Turns;
use crate::sync::{lock, until};

/// A piece of the stream of a position.
#[derive(Debug)]
pub(crate) enum Frame {
    /// A few blocks of the partial result.
    Bytes {
        /// Its offset in the result.
        offset: u64,
        /// The folded bytes.
        bytes: Piece,
    },
    /// The fold is complete. A stream that ends without this broke.
    End,
}

impl Frame {
    /// Its offset and bytes; None at the end.
    pub(crate) fn bytes(&self) -> Option<(u64, Ready<'_>)> {
        match self {
            Self::Bytes { offset, bytes } => Some((*offset, Ready::from(&**bytes))),
            Self::End => None,
        }
    }
}

/// Memory for one frame, returned to a shared pool on drop.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Vec<u8>,
    spare: Arc<Mutex<Spare>>,
    spared: Arc<Notify>,
}

/// Pool of frame memory for reuse: new memory would have to be zeroed.
#[derive(Debug, Default)]
struct Spare {
    pieces: Vec<Vec<u8>>,
    /// Bytes of all pieces.
    bytes: usize,
    /// Bytes of pieces in use, and whether any was used since the last [`Streams::give_back`].
    used: usize,
    was_used: bool,
}

/// Limit of pooled frame memory: what two active folds use.
const SPARE_BYTES_MAX: usize = 4 * WINDOW_BYTES as usize;

impl Spare {
    fn take(&mut self, length: usize) -> Vec<u8> {
        (self.used, self.was_used) = (self.used + length, true);
        let piece = self.pieces.pop().unwrap_or_default();
        self.bytes -= piece.capacity();
        piece
    }

    /// Returns a piece to the pool. Returns whether it is the only one there.
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

/// Timeout of a parent for a position whose order has not arrived, and of a fold for the memory of
/// a copy. The order was sent before the parent's, and new memory takes 0.7 ms per MiB.
pub(crate) const ORDER_TIMEOUT: Duration = Duration::from_secs(30);

/// The streams of the positions at this node, until their parents take them, and the number of
/// transfers that share its link in each direction.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ready: Mutex<HashMap<FoldKey, Stream>>,
    arrived: Notify,
    sending: Count,
    receiving: Count,
    /// The copies that are sent, by receiver and instance, and the connections of each.
    copies: Mutex<HashMap<(NodeId, Instance), (usize, Active)>>,
    pub(super) turns: Turns,
    spare: Arc<Mutex<Spare>>,
    spared: Arc<Notify>,
}

/// The stream of a position.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) frames: mpsc::Receiver<Frame>,
    /// The result of the ring that it belongs to, if it does.
    pub(crate) ring: Option<ObjectId>,
}

/// Number of active transfers in one direction.
type Count = Arc<watch::Sender<usize>>;

/// An active transfer, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Active(Count);

impl Active {
    fn of(count: &Count) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

/// A connection that sends a copy, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct SendingCopy<'a> {
    streams: &'a Streams,
    key: (NodeId, Instance),
}

impl Drop for SendingCopy<'_> {
    fn drop(&mut self) {
        let mut copies = lock(&self.streams.copies);
        if let Some((connections, _)) = copies.get_mut(&self.key) {
            *connections -= 1;
            if *connections == 0 {
                copies.remove(&self.key);
            }
        }
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
    /// Takes the stream of a position, waiting for its order; None if it does not arrive.
    pub(crate) async fn take(&self, key: FoldKey) -> Option<Stream> {
        let taken = until(&self.arrived, || lock(&self.ready).remove(&key));
        tokio::time::timeout(ORDER_TIMEOUT, taken).await.ok()
    }

    /// Counts a transfer from this node while the guard exists.
    pub(crate) fn sending(&self) -> Active {
        Active::of(&self.sending)
    }

    /// Counts a copy that is sent to a receiver while the guard exists, once for all connections.
    pub(crate) fn sending_copy(&self, to: NodeId, instance: Instance) -> SendingCopy<'_> {
        let (streams, key) = (self, (to, instance));
        lock(&self.copies).entry(key).or_insert_with(|| (0, self.sending())).0 += 1;
        SendingCopy { streams, key }
    }

    /// Counts a transfer to this node while the guard exists.
    pub(crate) fn receiving(&self) -> Active {
        Active::of(&self.receiving)
    }

    /// Number of transfers that share the link out of this node.
    pub(crate) fn shares_out(&self) -> u16 {
        shares(&self.sending)
    }

    /// Number of transfers that share the link to this node.
    pub(crate) fn shares_in(&self) -> u16 {
        shares(&self.receiving)
    }

    /// Whether anything is being sent or received.
    pub(crate) fn are_active(&self) -> bool {
        self.shares_out() + self.shares_in() > 0
    }

    /// Completes when nothing is being sent.
    pub(crate) async fn idle(&self) {
        // The sender is a field of this struct, so this does not fail.
        let _ = self.sending.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Takes memory for `length` bytes, with arbitrary contents.
    pub(crate) fn piece(&self, length: usize) -> Piece {
        let mut bytes = lock(&self.spare).take(length);
        bytes.resize(length, 0);
        Piece { bytes, spare: self.spare.clone(), spared: self.spared.clone() }
    }

    /// Whether frames use so much memory that each stream may keep only one.
    pub(crate) fn is_short(&self) -> bool {
        lock(&self.spare).used as u64 > FRAMES_BYTES
    }

    /// If frames use too much memory, waits until the other frames of a stream were taken.
    pub(crate) async fn wait_for_room<T>(&self, window: &mpsc::Sender<T>) {
        if self.is_short() {
            // An error means that the receiver is gone; sending the next frame reports it.
            let _ = window.reserve_many(window.max_capacity()).await;
        }
    }

    /// Frees pooled memory that was not used since the previous call.
    pub(crate) fn give_back(&self) {
        let mut spare = lock(&self.spare);
        if spare.used == 0 && !std::mem::take(&mut spare.was_used) {
            (spare.pieces, spare.bytes) = (Vec::new(), 0);
        }
    }

    /// Completes when there is memory that [`Self::give_back`] may free.
    pub(crate) async fn spare(&self) {
        while lock(&self.spare).bytes == 0 {
            self.spared.notified().await;
        }
    }

    /// Stores the stream of a position for its parent.
    pub(crate) fn put(&self, key: FoldKey, stream: Stream) {
        lock(&self.ready).insert(key, stream);
        self.arrived.notify_waiters();
    }

    /// Stores a stream again from which nothing was sent: its parent has closed that connection,
    /// and may request it on another.
    pub(crate) fn put_back(&self, key: FoldKey, stream: Stream) {
        // The fold of a closed stream has ended, and nothing would remove it.
        if !stream.frames.is_closed() {
            self.put(key, stream);
        }
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
    async fn stream_keeps_one_frame_when_memory_is_short() {
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
        assert!(third.as_mut().poll(&mut context).is_pending(), "the second frame is not taken");
        drop(frames.recv().await.unwrap());
        third.await;
        drop(first);
        assert!(!streams.is_short());
        send(1).await;
        assert_eq!(frames.len(), 2);
    }

    #[test]
    fn frame_memory_is_pooled_while_used_and_then_freed() {
        let streams = Streams::default();
        let frames = |length: usize, count: usize| {
            drop((0..count).map(|_| streams.piece(length)).collect::<Vec<_>>());
        };
        frames(64 << 10, 3);
        assert_eq!(spare_bytes(&streams), 3 * (64 << 10));
        streams.give_back();
        let used = streams.piece(64 << 10);
        assert_eq!(spare_bytes(&streams), 2 * (64 << 10), "pooled memory is reused");
        streams.give_back();
        streams.give_back();
        assert_eq!(spare_bytes(&streams), 2 * (64 << 10), "a frame is in use");
        drop(used);
        streams.give_back();
        streams.give_back();
        assert_eq!(spare_bytes(&streams), 0);
        // Frames of mixed sizes.
        frames(256 << 10, 64);
        frames(1 << 10, 1024);
        assert!(spare_bytes(&streams) <= SPARE_BYTES_MAX, "{}", spare_bytes(&streams));
    }
}
