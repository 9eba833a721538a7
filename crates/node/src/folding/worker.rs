//! A position of a reduce at work: its own inputs and its children's streams, folded frame by frame.
//!
//! A position that has a parent keeps its stream in a bounded window until the parent fetches it; the caller's own
//! folds into the copy of the result, which is read by others while it grows. Arithmetic is in [`crate::folding::kernels`].

use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::{Instance, NodeId},
    limits::WINDOW_BYTES,
    message::{FoldKey, FoldOrder},
    node::{Event, FOLD_WAITED_NS},
};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::{
    engine::{Core, lock},
    folding::kernels,
    mutants::{self, Bug},
    store::Held,
    transfer::receive,
};

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
}

/// Memory of frames that are done with, for the next: new memory would be set to zero.
#[derive(Debug, Default)]
struct Spare {
    pieces: Vec<Vec<u8>>,
    /// What the pieces take together.
    bytes: usize,
    /// Pieces that hold frames; and whether any did since [`Streams::give_back`] was last called.
    used: usize,
    was_used: bool,
}

/// Bytes of memory for frames that are kept for the next: what two folds at work use.
const SPARE_BYTES_MAX: usize = 4 * WINDOW_BYTES as usize;

impl Spare {
    fn take(&mut self) -> Vec<u8> {
        (self.used, self.was_used) = (self.used + 1, true);
        let piece = self.pieces.pop().unwrap_or_default();
        self.bytes -= piece.capacity();
        piece
    }

    fn put(&mut self, piece: Vec<u8>) {
        self.used -= 1;
        if self.bytes + piece.capacity() <= SPARE_BYTES_MAX {
            self.bytes += piece.capacity();
            self.pieces.push(piece);
        }
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
        lock(&self.spare).put(std::mem::take(&mut self.bytes));
    }
}

/// How long a parent waits for a position whose order has not arrived yet, and a fold for the memory of a copy. The
/// order was sent before the parent's, and new memory takes 0.7 ms per MiB.
pub(crate) const ORDER_PATIENCE: Duration = Duration::from_secs(30);

/// The streams of the positions at this node, until their parents take them; and how many transfers are under way.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ready: Mutex<HashMap<FoldKey, mpsc::Receiver<Frame>>>,
    arrived: Notify,
    active: Arc<AtomicUsize>,
    spare: Arc<Mutex<Spare>>,
}

/// A transfer that is under way.
#[derive(Debug)]
pub(crate) struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Streams {
    /// Takes the stream of a position, waiting for its order; none if it does not come.
    pub(crate) async fn take(&self, key: FoldKey) -> Option<mpsc::Receiver<Frame>> {
        let taken = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                if let Some(stream) = lock(&self.ready).remove(&key) {
                    return stream;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(ORDER_PATIENCE, taken).await.ok()
    }

    /// Counts a transfer out of this node for as long as the guard lives.
    pub(crate) fn active(&self) -> Active {
        self.active.fetch_add(1, Ordering::AcqRel);
        Active(self.active.clone())
    }

    /// Whether nothing is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.load(Ordering::Acquire) == 0
    }

    /// Memory for `length` bytes, which are what it held before.
    pub(crate) fn piece(&self, length: usize) -> Piece {
        let mut bytes = lock(&self.spare).take();
        bytes.resize(length, 0);
        Piece { bytes, spare: self.spare.clone() }
    }

    /// Gives memory back that no frame needed since this was called before.
    pub(crate) fn give_back(&self) {
        let mut spare = lock(&self.spare);
        if spare.used == 0 && !std::mem::take(&mut spare.was_used) {
            (spare.pieces, spare.bytes) = (Vec::new(), 0);
        }
    }

    fn put(&self, key: FoldKey, stream: mpsc::Receiver<Frame>) {
        lock(&self.ready).insert(key, stream);
        self.arrived.notify_waiters();
    }

    fn forget(&self, key: FoldKey) {
        lock(&self.ready).remove(&key);
    }
}

/// Where a position's results go.
enum Sink {
    Parent(mpsc::Sender<Frame>),
    Result { held: Arc<Held>, count: u64 },
}

/// Starts a fold. It ends with `FoldEnded`, also when `stopped` tells it to.
pub(crate) fn start(
    core: &Arc<Core>,
    order: FoldOrder,
    target: Option<(Instance, u64)>,
    stopped: oneshot::Receiver<()>,
) {
    let key = order.key;
    let sender = target.is_none().then(|| {
        let (sender, receiver) = mpsc::channel(window_frames(&order));
        core.streams.put(key, receiver);
        sender
    });
    let core = core.clone();
    let runtime = core.runtime.clone();
    runtime.spawn(async move {
        let folding = async {
            // The order may be here before the memory of a copy is.
            let sink = match (sender, target) {
                (Some(sender), _) => Sink::Parent(sender),
                (None, Some((instance, count))) => {
                    Sink::Result { held: memory_of(&core, instance).await?, count }
                }
                (None, None) => return Err("there is nowhere to fold to".to_string()),
            };
            let mut inputs = Vec::with_capacity(order.inputs.len());
            for input in &order.inputs {
                inputs.push(memory_of(&core, *input).await?);
            }
            run(&core, &order, inputs, sink).await
        };
        let failure = tokio::select! {
            result = folding => result.err(),
            _ = stopped => Some("it was stopped".to_string()),
        };
        if failure.is_some() {
            core.streams.forget(key);
        }
        core.fold_over(key);
        core.drive(Event::FoldEnded { key, failure });
    });
}

/// Frames that are folded without a pause.
const FRAMES_PER_TURN: u64 = 2;

/// Frames that a position keeps between its children and its parent; of a part of a scattered result all, for its parent
/// may first have to be done with others.
fn window_frames(order: &FoldOrder) -> usize {
    let part = order.part.end - order.part.start;
    let window = if part < order.size { part.max(WINDOW_BYTES) } else { WINDOW_BYTES };
    window.div_ceil(u64::from(order.frame)) as usize
}

async fn memory_of(core: &Core, instance: Instance) -> Result<Arc<Held>, String> {
    let held = tokio::time::timeout(ORDER_PATIENCE, core.store.wait_for(instance)).await;
    held.map_err(|_| format!("instance {instance} has no memory"))
}

async fn run(
    core: &Arc<Core>,
    order: &FoldOrder,
    inputs: Vec<Arc<Held>>,
    sink: Sink,
) -> Result<(), String> {
    let (frame, mut at, mut turn) = (u64::from(order.frame), order.part.start, 0_u64);
    let mut children = Vec::new();
    // Ends the receivers of the children's streams with this fold.
    let mut receivers = tokio::task::JoinSet::new();
    for (node, position) in &order.children {
        // The child's own window holds the rest; here a few frames let reading overlap with folding.
        let (sender, receiver) = mpsc::channel(window_frames(order).div_ceil(4));
        let key = FoldKey { position: *position, ..order.key };
        if *node == core.identity.member.id {
            receivers.spawn(local_partial(core.clone(), key, sender));
        } else {
            let (core, part) = (core.clone(), order.part.clone());
            receivers.spawn(receive::partial(core, *node, key, part, frame, sender));
        }
        children.push(Child::new(*node, receiver));
    }
    let folded = if order.key.position == FoldKey::RESULT {
        &core.counters.bytes_folded_local
    } else {
        &core.counters.bytes_folded_remote
    };
    while at < order.part.end {
        let range = at..(at + frame).min(order.part.end);
        let mut sum: Option<Piece> = None;
        for child in &mut children {
            let theirs = child.next(core, order.key).await?;
            match &mut sum {
                None => sum = Some(theirs),
                Some(sum) => {
                    kernels::fold(order.op, order.dtype, sum, &theirs);
                    folded.add(theirs.len() as u64);
                }
            }
        }
        for input in &inputs {
            let bytes =
                input.wait(range.clone()).await.map_err(|_| "an input was dropped".to_string())?;
            match &mut sum {
                None => {
                    let mut first = core.streams.piece(bytes.len());
                    first.copy_from_slice(bytes);
                    sum = Some(first);
                }
                Some(sum) => {
                    kernels::fold(order.op, order.dtype, sum, bytes);
                    if mutants::has(Bug::FoldsTwice) {
                        kernels::fold(order.op, order.dtype, sum, bytes);
                    }
                    folded.add(bytes.len() as u64);
                }
            }
        }
        let bytes = sum.ok_or_else(|| "nothing to fold".to_string())?;
        if !put(&sink, order, range, bytes).await? {
            return Ok(());
        }
        at = (at + frame).min(order.part.end);
        // Inputs that are all here never wait: what is folded has to leave meanwhile, and the streams beside this fold
        // want their turn too.
        turn += 1;
        if turn.is_multiple_of(FRAMES_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    if let Sink::Parent(parent) = &sink
        && parent.send(Frame::End).await.is_ok()
    {
        // The stream is kept for a parent that has not come yet; until then this fold can still be stopped.
        parent.closed().await;
    }
    Ok(())
}

/// The stream of a child, and how long the fold has waited for it.
struct Child {
    node: NodeId,
    stream: mpsc::Receiver<Result<Piece, String>>,
    /// When the machine last heard of it; since then:
    since: Instant,
    waited: Duration,
    bytes: u64,
}

/// Between two reports to the machine.
const WAITED: Duration = Duration::from_nanos(FOLD_WAITED_NS);

impl Child {
    fn new(node: NodeId, stream: mpsc::Receiver<Result<Piece, String>>) -> Self {
        Self { node, stream, since: Instant::now(), waited: Duration::ZERO, bytes: 0 }
    }

    /// Its next frame. The machine hears of it, if the fold waits for this child most of the time.
    async fn next(&mut self, core: &Arc<Core>, key: FoldKey) -> Result<Piece, String> {
        if let Ok(frame) = self.stream.try_recv() {
            return self.took(core, key, Some(frame));
        }
        loop {
            let begun = Instant::now();
            let frame = tokio::time::timeout(WAITED, self.stream.recv()).await;
            self.waited += begun.elapsed();
            match frame {
                Ok(frame) => return self.took(core, key, frame),
                Err(_) => self.report(core, key),
            }
        }
    }

    fn took(
        &mut self,
        core: &Arc<Core>,
        key: FoldKey,
        frame: Option<Result<Piece, String>>,
    ) -> Result<Piece, String> {
        let frame = frame.unwrap_or_else(|| Err("a child's stream ended".into()))?;
        self.bytes += frame.len() as u64;
        self.report(core, key);
        Ok(frame)
    }

    fn report(&mut self, core: &Arc<Core>, key: FoldKey) {
        let passed = self.since.elapsed();
        if passed < WAITED {
            return;
        }
        // The machine is at rest as long as the fold has enough to do.
        if self.waited > passed * 4 / 5 {
            let (node, ns) = (self.node, u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX));
            core.drive(Event::FoldWaited { key, node, ns, bytes: self.bytes });
        }
        (self.since, self.waited, self.bytes) = (Instant::now(), Duration::ZERO, 0);
    }
}

/// Moves the stream of a child that is folded at this same node into its parent's window: a node has no payload
/// connection to itself. The last item is the reason if the stream broke off.
async fn local_partial(core: Arc<Core>, key: FoldKey, window: mpsc::Sender<Result<Piece, String>>) {
    let Some(mut frames) = core.streams.take(key).await else {
        let said = format!("position {} at this node got no order", key.position);
        let _ = window.send(Err(said)).await;
        return;
    };
    loop {
        let item = match frames.recv().await {
            Some(Frame::Bytes { bytes, .. }) => Ok(bytes),
            Some(Frame::End) => return,
            None => Err(format!("the stream of position {} at this node broke off", key.position)),
        };
        let is_over = item.is_err();
        if window.send(item).await.is_err() || is_over {
            return;
        }
    }
}

/// Hands on what was folded; false if the parent wants no more of it.
///
/// A parent that ends early says why itself: its node reports the failure, or the coordinator has stopped it. A report
/// from here would only hide that reason.
async fn put(
    sink: &Sink,
    order: &FoldOrder,
    range: std::ops::Range<u64>,
    mut bytes: Piece,
) -> Result<bool, String> {
    match sink {
        Sink::Parent(parent) => {
            let frame = Frame::Bytes { offset: range.start, bytes };
            Ok(parent.send(frame).await.is_ok())
        }
        Sink::Result { held, count } => {
            kernels::finish(order.op, order.dtype, &mut bytes, *count);
            let block = held.slot.claim_owned(range);
            let mut block =
                block.ok_or_else(|| "the result is written by somebody else".to_string())?;
            block.copy_from_slice(&bytes);
            block.commit();
            held.grew();
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare(streams: &Streams) -> usize {
        lock(&streams.spare).bytes
    }

    #[test]
    fn memory_of_frames_is_kept_while_it_is_used_and_given_back_then() {
        let streams = Streams::default();
        let frames = |length: usize, count: usize| {
            drop((0..count).map(|_| streams.piece(length)).collect::<Vec<_>>());
        };
        frames(64 << 10, 3);
        assert_eq!(spare(&streams), 3 * (64 << 10));
        streams.give_back();
        let used = streams.piece(64 << 10);
        assert_eq!(spare(&streams), 2 * (64 << 10), "what is there is taken");
        streams.give_back();
        streams.give_back();
        assert_eq!(spare(&streams), 2 * (64 << 10), "a frame is at work");
        drop(used);
        streams.give_back();
        streams.give_back();
        assert_eq!(spare(&streams), 0);
        // Frames of any sizes together.
        frames(256 << 10, 64);
        frames(1 << 10, 1024);
        assert!(spare(&streams) <= SPARE_BYTES_MAX, "{}", spare(&streams));
    }
}
