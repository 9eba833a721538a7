//! The receiving end of payload connections: copies go straight to their place in memory, partial results into a
//! window for the fold.

use std::{
    io,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    limits::{BLOCK_BYTES, CREDIT_BYTES, WINDOW_BYTES},
    message::FoldKey,
    node::Event,
    wire::{Fetch, FrameKind, Header, Unavailable, What, WireError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};
use tracing::debug;

use crate::{driver::Core, error::LinkError, frame, store::Held};

/// How a transfer ended.
enum End {
    Complete,
    Unavailable(Unavailable),
}

/// Receives what is missing of a copy, and tells the machine how it ended.
pub(crate) async fn copy(
    core: Arc<Core>,
    id: ObjectId,
    instance: Instance,
    source: NodeId,
    serial: u64,
) {
    let Some(held) = core.store.get(instance) else { return };
    let result = receive_copy(&core, &held, &id, instance, source).await;
    if !core.fetch_over(instance, serial) {
        // It was stopped just now; what became of it tells nothing.
        return;
    }
    let not_here = matches!(result, Ok(End::Unavailable(Unavailable::NotHere)));
    let event = match result {
        Ok(End::Complete) if held.slot.is_complete() => {
            core.counters.fetches.add(1);
            Event::Fetched { instance }
        }
        other => {
            core.counters.fetches_failed.add(1);
            if let Err(error) = &other {
                debug!(%id, %source, %error, "a transfer broke off");
            }
            Event::FetchFailed { instance, source, not_here, ready: held.ready() }
        }
    };
    core.drive(event);
}

async fn receive_copy(
    core: &Arc<Core>,
    held: &Held,
    id: &ObjectId,
    instance: Instance,
    source: NodeId,
) -> Result<End, LinkError> {
    let ranges = held.ready().complement(held.slot.len());
    if ranges.is_empty() {
        return Ok(End::Complete);
    }
    let mut stream = core.peers.payload(core, source).await?;
    let transfer = core.next_id();
    let what = What::Copy { id: id.clone(), instance, ranges };
    ask(&mut stream, transfer, what, CREDIT_BYTES).await?;
    let mut pace = Pace::default();
    let mut ungranted = 0;
    loop {
        let header = next(&mut stream, transfer).await?;
        if header.kind != FrameKind::Blocks {
            let end = ended(&mut stream, &header).await?;
            core.peers.keep_idle(source, stream);
            pace.report(core);
            return Ok(end);
        }
        let range = blocks_range(&header, held.slot.len())?;
        let Some(mut blocks) = held.slot.claim_owned(range) else {
            // Nobody else fills this copy, and what is there was not asked for.
            return Err(WireError::Unexpected(format!("blocks at {}", header.offset)).into());
        };
        stream.read_exact(&mut blocks).await?;
        if let Err(error) = frame::check(&header, &blocks) {
            core.counters.blocks_corrupt.add(1);
            return Err(error.into());
        }
        blocks.commit();
        held.grew();
        core.counters.bytes_received.add(u64::from(header.length));
        pace.step(u64::from(header.length));
        ungranted += u64::from(header.length);
        if ungranted >= CREDIT_BYTES / 4 {
            stream.write_all(&frame::bare(FrameKind::Credit, transfer, ungranted)).await?;
            ungranted = 0;
        }
    }
}

/// Receives the stream of a child into a window; the last item is the reason if the stream broke off.
pub(crate) async fn partial(
    core: Arc<Core>,
    child: NodeId,
    key: FoldKey,
    size: u64,
    frame: u64,
    window: mpsc::Sender<Result<Vec<u8>, String>>,
) {
    if let Err(error) = receive_partial(&core, child, key, size, frame, &window).await {
        let said = format!("the stream of position {} at node {child}: {error}", key.position);
        let _ = window.send(Err(said)).await;
    }
}

async fn receive_partial(
    core: &Arc<Core>,
    child: NodeId,
    key: FoldKey,
    size: u64,
    frame: u64,
    window: &mpsc::Sender<Result<Vec<u8>, String>>,
) -> Result<(), LinkError> {
    let mut stream = core.peers.payload(core, child).await?;
    let transfer = core.next_id();
    ask(&mut stream, transfer, What::Partial(key), WINDOW_BYTES).await?;
    let mut at = 0;
    while at < size {
        let header = next(&mut stream, transfer).await?;
        if header.kind != FrameKind::Blocks {
            let _ = ended(&mut stream, &header).await?;
            return Err(WireError::Unexpected(format!("its end after {at} of {size} bytes")).into());
        }
        let range = blocks_range(&header, size)?;
        let due = at..(at + frame).min(size);
        if range != due {
            return Err(WireError::Unexpected(format!("bytes {range:?} instead of {due:?}")).into());
        }
        let length = header.length as usize;
        let mut block = Vec::with_capacity(length);
        // Without a limit a read would go on into the next header.
        (&mut stream).take(length as u64).read_to_end(&mut block).await?;
        if block.len() < length {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if let Err(error) = frame::check(&header, &block) {
            core.counters.blocks_corrupt.add(1);
            return Err(error.into());
        }
        at = range.end;
        if window.send(Ok(block)).await.is_err() {
            // The fold is over; closing the connection tells the child.
            return Ok(());
        }
        // Its place in the window is the fold's now; the next may come when there is one.
        stream.write_all(&frame::bare(FrameKind::Credit, transfer, length as u64)).await?;
    }
    let header = next(&mut stream, transfer).await?;
    if matches!(ended(&mut stream, &header).await?, End::Complete) {
        core.peers.keep_idle(child, stream);
    }
    Ok(())
}

async fn ask(
    stream: &mut TcpStream,
    transfer: u64,
    what: What,
    credit: u64,
) -> Result<(), LinkError> {
    let fetch = Fetch { what, credit };
    Ok(stream.write_all(&frame::frame(FrameKind::Fetch, transfer, &fetch)).await?)
}

/// The next header of this transfer.
async fn next(stream: &mut TcpStream, transfer: u64) -> Result<Header, LinkError> {
    let header = frame::read_header(stream).await?;
    let header = header.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    if header.transfer != transfer {
        let said = format!("a frame of transfer {} in transfer {transfer}", header.transfer);
        return Err(WireError::Unexpected(said).into());
    }
    Ok(header)
}

async fn ended(stream: &mut TcpStream, header: &Header) -> Result<End, LinkError> {
    match header.kind {
        FrameKind::End => Ok(End::Complete),
        FrameKind::Unavailable => Ok(End::Unavailable(frame::read_body(stream, header).await?)),
        other => Err(WireError::Unexpected(format!("{other:?}")).into()),
    }
}

/// The place of a run of blocks in an object of `size` bytes: whole ones, and at least one.
fn blocks_range(header: &Header, size: u64) -> Result<Range<u64>, WireError> {
    let Header { offset, length, .. } = *header;
    let end = offset.saturating_add(length.into());
    let is_whole =
        offset.is_multiple_of(BLOCK_BYTES) && (end.is_multiple_of(BLOCK_BYTES) || end == size);
    if !is_whole || length == 0 || end > size {
        let said = format!("blocks of {length} bytes at {offset} of {size}");
        return Err(WireError::Unexpected(said));
    }
    Ok(offset..end)
}

/// How fast blocks come: the best run of a window, or the whole of a transfer that is shorter.
///
/// The best, since a sender that waits for its own copy says nothing of the link. A whole window, since fewer bytes may
/// have waited in the kernel and come as fast as memory.
#[derive(Debug)]
struct Pace {
    since: Instant,
    bytes: u64,
    best: Option<(u64, Duration)>,
}

/// Less tells more of the scheduler than of the link.
const SAMPLE_BYTES_MIN: u64 = 1024 * 1024;

impl Default for Pace {
    fn default() -> Self {
        Self { since: Instant::now(), bytes: 0, best: None }
    }
}

impl Pace {
    fn step(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= CREDIT_BYTES {
            let run = (self.bytes, self.since.elapsed());
            // Equal bytes in each run: the shortest is the fastest.
            if self.best.is_none_or(|best| run.1 < best.1) {
                self.best = Some(run);
            }
            self.bytes = 0;
            self.since = Instant::now();
        }
    }

    fn report(&self, core: &Arc<Core>) {
        let whole = (self.bytes >= SAMPLE_BYTES_MIN).then(|| (self.bytes, self.since.elapsed()));
        if let Some((bytes, time)) = self.best.or(whole) {
            core.measured_transfer(bytes, time);
        }
    }
}
