//! The task of one position of a reduce: folds its own inputs, in memory or on disk, and its
//! children's streams, frame by frame.
//!
//! A position with a parent buffers its stream in a bounded window until the parent fetches it. The
//! caller's own position folds into the copy of the result, which others read while it grows.
//! [`crate::folding::kernels`] has the arithmetic.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    id::{Instance, NodeId},
    inline::Inline,
    limits::{BLOCK_BYTES, WINDOW_BYTES},
    message::{FoldKey, FoldOrder},
    meta::{Dtype, Op},
    node::{Event, FOLD_STALL_NS},
    reduce::ring::{PART_ALIGN_BYTES, PART_BYTES_MAX},
};
use hoplite_shm::Ready;
use tokio::sync::{mpsc, oneshot};

use super::{input::Input, kernels};
use crate::{
    backing::Backing,
    counters::Counter,
    disk::Disk,
    engine::tasks::Task,
    mutants::{self, Mutant},
    store::StoredCopy,
    sync::lock,
    transfer::{
        receive,
        shared::Transfers,
        streams::{Frame, ORDER_TIMEOUT, Piece, Stream, Streams},
    },
};

/// The active folds of a node.
pub(crate) struct Folding {
    transfers: Arc<Transfers>,
    disk: Option<Arc<Disk>>,
    /// Dropping an entry stops the fold.
    stops: Mutex<HashMap<FoldKey, oneshot::Sender<()>>>,
}

/// The destination of a position's result.
enum Sink {
    Parent(mpsc::Sender<Frame>),
    Result { stored: Arc<StoredCopy>, count: u64 },
}

impl Folding {
    pub(crate) fn new(transfers: Arc<Transfers>, disk: Option<Arc<Disk>>) -> Self {
        Self { transfers, disk, stops: Mutex::default() }
    }

    /// Stops a fold, unless it has ended.
    pub(crate) fn stop(&self, key: FoldKey) {
        lock(&self.stops).remove(&key);
    }

    /// Stops all folds.
    pub(crate) fn close(&self) {
        lock(&self.stops).clear();
    }

    /// Folds small inputs into a result, on the calling thread.
    pub(crate) fn fold_inline(&self, op: Op, dtype: Dtype, inputs: &[Inline]) -> Inline {
        let bytes: u64 = inputs.iter().map(Inline::len).sum();
        self.transfers.counters.bytes_folded_local.add(bytes);
        let mut result = inputs.first().map_or_else(Vec::new, |first| first.as_bytes().to_vec());
        inputs
            .iter()
            .skip(1)
            .for_each(|input| kernels::fold(op, dtype, &mut result, input.as_bytes()));
        kernels::finish(op, dtype, &mut result, inputs.len() as u64);
        result.into()
    }
}

/// Starts a fold. Its end is reported as `FoldEnded`, even if it is stopped.
pub(crate) fn start(folding: &Arc<Folding>, order: FoldOrder, target: Option<(Instance, u64)>) {
    let (key, transfers, this) = (order.key, folding.transfers.clone(), folding.clone());
    let (stop, stopped) = oneshot::channel();
    lock(&folding.stops).insert(key, stop);
    let sender = target.is_none().then(|| {
        let (sender, receiver) = mpsc::channel(window_frames(&order));
        let ring = is_scattered(&order).then(|| order.result.clone());
        transfers.streams.put(key, Stream { frames: receiver, ring });
        sender
    });
    let tasks = transfers.tasks.clone();
    tasks.spawn(Task::Fold, async move {
        let folding = async {
            // The order may arrive before the copy has memory.
            let sink = match (sender, target) {
                (Some(sender), _) => Sink::Parent(sender),
                (None, Some((instance, count))) => {
                    Sink::Result { stored: memory_of(&transfers, instance).await?, count }
                }
                (None, None) => return Err("the fold has no target".to_string()),
            };
            let mut inputs = Vec::with_capacity(order.inputs.len());
            for input in &order.inputs {
                inputs.push(match this.disk.as_ref().and_then(|disk| disk.written(*input)) {
                    // This includes an input that is being read back: that may serve another
                    // reader, and may be left on disk.
                    Some(file) if !is_in_memory(&transfers, *input) => Input::open(&file, *input)?,
                    _ => Input::of(memory_of(&transfers, *input).await?),
                });
            }
            run(&transfers, &order, inputs, sink).await
        };
        let failure = tokio::select! {
            result = folding => result.err(),
            _ = stopped => Some("the fold was stopped".to_string()),
        };
        if failure.is_some() {
            transfers.streams.forget(key);
        }
        this.stop(key);
        transfers.events.send(Event::FoldEnded { key, failure });
    });
}

/// Frames folded between two yields.
const FRAMES_PER_TURN: u64 = 2;

/// Frames that a position buffers between its children and its parent. For a part of a scattered
/// result these are all frames, because the parent may read them late.
fn window_frames(order: &FoldOrder) -> usize {
    let part = order.part.end - order.part.start;
    let window = if is_scattered(order) {
        part.clamp(WINDOW_BYTES, PART_BYTES_MAX + PART_ALIGN_BYTES)
    } else {
        WINDOW_BYTES
    };
    window.div_ceil(u64::from(order.frame)) as usize
}

fn is_scattered(order: &FoldOrder) -> bool {
    order.part.end - order.part.start < order.size
}

async fn memory_of(transfers: &Transfers, instance: Instance) -> Result<Arc<StoredCopy>, String> {
    let stored = tokio::time::timeout(ORDER_TIMEOUT, transfers.store.wait_for(instance)).await;
    stored.map_err(|_| format!("no memory became available in time for instance {instance}"))
}

fn is_in_memory(transfers: &Transfers, instance: Instance) -> bool {
    transfers.store.get(instance).is_some_and(|stored| stored.is_complete())
}

async fn run(
    transfers: &Arc<Transfers>,
    order: &FoldOrder,
    mut inputs: Vec<Input>,
    sink: Sink,
) -> Result<(), String> {
    // Aborts the receivers of the children's streams with this fold.
    let mut receivers = tokio::task::JoinSet::new();
    let mut children = children(transfers, order, &mut receivers);
    let mut block = vec![0; BLOCK_BYTES as usize];
    let (frame, mut frames) = (u64::from(order.frame), 0_u64);
    for at in order.part.clone().step_by(order.frame as usize) {
        let range = at..(at + frame).min(order.part.end);
        let sum = of_children(transfers, order, &mut children).await?;
        let sum = with_inputs(transfers, order, &range, sum, &mut inputs, &mut block).await?;
        let bytes = sum.ok_or_else(|| "the fold has no inputs".to_string())?;
        if !put(&transfers.streams, &sink, order, range, bytes).await? {
            return Ok(());
        }
        // A fold of complete local inputs never waits: yield, so that its frames are sent and other
        // streams make progress.
        frames += 1;
        if frames.is_multiple_of(FRAMES_PER_TURN) {
            tokio::task::yield_now().await;
        }
    }
    if let Sink::Parent(parent) = &sink
        && parent.send(Frame::End).await.is_ok()
    {
        // The stream is kept for a parent that has not connected yet; until then this fold can
        // still be stopped.
        parent.closed().await;
    }
    Ok(())
}

/// Starts to receive the streams of the children.
fn children(
    transfers: &Arc<Transfers>,
    order: &FoldOrder,
    receivers: &mut tokio::task::JoinSet<Option<()>>,
) -> Vec<Child> {
    let begin = |&(node, position): &(NodeId, u32)| {
        // The child's own window buffers the rest; a few frames here let reading overlap with
        // folding.
        let (sender, stream) = mpsc::channel(window_frames(order).div_ceil(4));
        let key = FoldKey { position, ..order.key };
        if node == transfers.network.identity.member.id {
            let passing = local_partial(transfers.clone(), key, sender);
            receivers.spawn(transfers.tasks.watch(Task::Stream, passing));
        } else {
            let (part, frame) = (order.part.clone(), u64::from(order.frame));
            let (this, path) = (transfers.clone(), transfers.path.clone());
            let receiving = receive::partial(this, path, node, key, part, frame, sender);
            receivers.spawn(transfers.tasks.watch(Task::Stream, receiving));
        }
        Child { node, stream }
    };
    order.children.iter().map(begin).collect()
}

/// Folds the next frame of each child; None without children.
async fn of_children(
    transfers: &Arc<Transfers>,
    order: &FoldOrder,
    children: &mut [Child],
) -> Result<Option<Piece>, String> {
    let mut sum: Option<Piece> = None;
    for child in children {
        let theirs = child.next(transfers, order.key).await?;
        match &mut sum {
            None => sum = Some(theirs),
            Some(sum) => {
                kernels::fold(order.op, order.dtype, sum, &theirs);
                folded(transfers, order).add(theirs.len() as u64);
            }
        }
    }
    Ok(sum)
}

/// Folds a range of the inputs into the sum of the children; None without both.
async fn with_inputs(
    transfers: &Arc<Transfers>,
    order: &FoldOrder,
    range: &Range<u64>,
    mut sum: Option<Piece>,
    inputs: &mut [Input],
    block: &mut [u8],
) -> Result<Option<Piece>, String> {
    for input in inputs {
        let bytes = input.bytes(transfers, range.clone()).await?;
        match &mut sum {
            None => {
                let mut first = transfers.streams.piece(bytes.len());
                bytes.copy_to(&mut first);
                sum = Some(first);
            }
            Some(sum) => {
                fold_input(order, sum, bytes, block);
                if mutants::is_active(Mutant::FoldsTwice) {
                    fold_input(order, sum, bytes, block);
                }
                folded(transfers, order).add(bytes.len() as u64);
            }
        }
    }
    Ok(sum)
}

/// The counter of folded bytes.
fn folded<'a>(transfers: &'a Transfers, order: &FoldOrder) -> &'a Counter {
    if order.key.position == FoldKey::RESULT {
        &transfers.counters.bytes_folded_local
    } else {
        &transfers.counters.bytes_folded_remote
    }
}

/// Folds an input. Bytes that another process can write are copied to `block` first, whose size
/// fits the cache.
fn fold_input(order: &FoldOrder, sum: &mut [u8], input: Ready<'_>, block: &mut [u8]) {
    if let Some(bytes) = input.own() {
        return kernels::fold(order.op, order.dtype, sum, bytes);
    }
    for (sum, bytes) in sum.chunks_mut(block.len()).zip(input.chunks(block.len())) {
        let copy = &mut block[..bytes.len()];
        bytes.copy_to(copy);
        kernels::fold(order.op, order.dtype, sum, copy);
    }
}

/// The stream of a child.
struct Child {
    node: NodeId,
    stream: mpsc::Receiver<Result<Piece, String>>,
}

impl Child {
    /// Waits for the next frame. Reports to the state machine each time that the fold has waited
    /// for [`FOLD_STALL_NS`].
    async fn next(&mut self, transfers: &Arc<Transfers>, key: FoldKey) -> Result<Piece, String> {
        loop {
            let wait = Duration::from_nanos(FOLD_STALL_NS);
            match tokio::time::timeout(wait, self.stream.recv()).await {
                Ok(frame) => {
                    return frame.unwrap_or_else(|| Err("a child's stream ended".into()));
                }
                Err(_) => transfers.events.send(Event::FoldStalled { key, node: self.node }),
            }
        }
    }
}

/// Moves the stream of a child on this same node into its parent's window: a node has no payload
/// connection to itself. If the stream breaks, the last item is the reason.
async fn local_partial(
    transfers: Arc<Transfers>,
    key: FoldKey,
    window: mpsc::Sender<Result<Piece, String>>,
) {
    let Some(Stream { mut frames, .. }) = transfers.streams.take(key).await else {
        let said = format!("no fold order arrived for position {} at this node", key.position);
        let _ = window.send(Err(said)).await;
        return;
    };
    loop {
        let item = match frames.recv().await {
            Some(Frame::Bytes { bytes, .. }) => Ok(bytes),
            Some(Frame::End) => return,
            None => Err(format!("the stream of position {} at this node broke", key.position)),
        };
        let is_over = item.is_err();
        if window.send(item).await.is_err() || is_over {
            return;
        }
    }
}

/// Delivers a folded frame; false if the parent wants no more.
///
/// If a parent ends early, its own node reports the failure, or the coordinator has stopped it. A
/// report from here would only hide that reason.
async fn put(
    streams: &Streams,
    sink: &Sink,
    order: &FoldOrder,
    range: Range<u64>,
    mut bytes: Piece,
) -> Result<bool, String> {
    match sink {
        Sink::Parent(parent) => {
            if !is_scattered(order) {
                streams.wait_for_room(parent).await;
            }
            let frame = Frame::Bytes { offset: range.start, bytes };
            Ok(parent.send(frame).await.is_ok())
        }
        Sink::Result { stored, count } => {
            kernels::finish(order.op, order.dtype, &mut bytes, *count);
            let written = stored.write(range.start, &bytes);
            written.map(|()| true).map_err(|error| format!("the result: {error}"))
        }
    }
}
