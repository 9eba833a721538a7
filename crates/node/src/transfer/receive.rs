//! The receiving end of payload connections: copies go directly into place in memory, partial results into a window for
//! the fold.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_proto::{
    credit::CreditWindow,
    id::{FetchId, NodeId},
    limits::{CREDIT_BYTES, INLINE_BYTES_MAX, WINDOW_BYTES},
    message::FoldKey,
    meta::Digest,
    node::{Event, FETCH_PROGRESS_NS, FetchOrder, RangeSource},
    pipeline::frame_bytes,
    ranges::Ranges,
    wire::{self, Fetch, FetchTarget, FrameKind, Header, Unavailable, WireError},
};
use tokio::{io::AsyncReadExt, net::TcpStream, sync::mpsc};
use tracing::debug;

use super::{
    blocks::{self, Arrivals, Arrived, FRAMES_AT_ONCE},
    digesting::digest_of,
    limiter::Permit,
    shared::Transfers,
    streams::Piece,
    timeout::TransferTimeout,
};
use crate::{
    backing::{Backing, Claim},
    channel::{self, Channel},
    engine::task::Task,
    error::LinkError,
    frame,
    network::payload,
    repeats::log_once,
    store::StoredCopy,
};

/// The result of a transfer.
enum End {
    Complete,
    Unavailable(Unavailable),
}

/// Starts to receive the missing bytes of a copy.
pub(crate) fn start(transfers: &Arc<Transfers>, wanted: FetchOrder) {
    transfers.begin_fetch(wanted.fetch, || {
        let receiving = run_fetch(transfers.clone(), wanted);
        transfers.tasks.spawn(Task::Receive, receiving).abort_handle()
    });
}

/// Receives the missing bytes of a copy, and reports the result to the state machine.
async fn run_fetch(transfers: Arc<Transfers>, wanted: FetchOrder) {
    let (fetch, source) = (wanted.fetch, wanted.source);
    let Some(stored) = transfers.store.get(wanted.instance) else { return };
    let bytes: Ranges = match &wanted.ranges {
        Some(ranges) => ranges.iter().cloned().collect(),
        None => Ranges::full(stored.len()),
    };
    // Until a stopped transfer has ended, only it may write its bytes.
    let taken = stored.receiving.take(bytes.clone()).await;
    let (result, digest) = receive_and_digest(&transfers, &stored, &wanted).await;
    if wanted.in_parts && matches!(result, Ok(End::Complete)) {
        // Wait for the parts that this node computes. If that fails, this task is stopped.
        let _ = stored.wait(0..stored.len()).await;
    }
    drop(taken);
    let not_here = matches!(result, Ok(End::Unavailable(Unavailable::NotHere)));
    let is_here = bytes.iter().all(|range| stored.is_ready(range));
    let event = match result {
        Ok(End::Complete) if stored.is_complete() && digest != wanted.digest => {
            transfers.counters.copies_corrupt.add(1);
            log_once!(warn, source, id = %wanted.id, %source, "received a copy that does not match its announced digest");
            Event::CopyCorrupt { fetch }
        }
        Ok(End::Complete) if is_here => {
            transfers.counters.fetches.add(1);
            Event::Fetched { fetch }
        }
        other => {
            transfers.counters.fetches_failed.add(1);
            if let Err(error) = &other {
                transfers.note_slow(source, error);
                debug!(id = %wanted.id, %source, %error, "a transfer failed");
            }
            Event::FetchFailed { fetch, not_here }
        }
    };
    transfers.end_fetch(fetch, event);
}

/// Receives a copy, and computes its digest meanwhile if one is expected; None if it was not received.
async fn receive_and_digest(
    transfers: &Arc<Transfers>,
    stored: &Arc<StoredCopy>,
    wanted: &FetchOrder,
) -> (Result<End, LinkError>, Option<Digest>) {
    let receiving = receive_copy(transfers, stored, wanted);
    if wanted.digest.is_none() {
        return (receiving.await, None);
    }
    let digesting = digest_of(&transfers.tasks, stored);
    tokio::pin!(receiving, digesting);
    tokio::select! {
        biased;
        digest = &mut digesting => (receiving.await, digest),
        result = &mut receiving => match result {
            Ok(End::Complete) if stored.is_complete() => (result, digesting.await),
            _ => (result, None),
        },
    }
}

async fn receive_copy(
    transfers: &Arc<Transfers>,
    stored: &StoredCopy,
    wanted: &FetchOrder,
) -> Result<End, LinkError> {
    let FetchOrder { ref id, instance, source, ref ranges, in_parts: ordered, range, .. } = *wanted;
    // The copy begins at this byte of the source's instance.
    let RangeSource { of, start } = range.unwrap_or(RangeSource { of: instance, start: 0 });
    let size = stored.len();
    let missing = stored.ready().complement(size);
    let ranges: Vec<Range<u64>> = match ranges {
        Some(ranges) => ranges.iter().flat_map(|range| within(&missing, range)).collect(),
        None => missing.iter().collect(),
    };
    if ranges.is_empty() {
        return Ok(End::Complete);
    }
    // Parts of a reduce skip the limiter, because other nodes wait for each.
    let permit = if ordered { None } else { Some(transfers.limiter.enter(source, size).await) };
    let frame = frame_bytes(size, transfers.link.link());
    let at_source = |range: &Range<u64>| start + range.start..start + range.end;
    let requested = ranges.iter().map(at_source).collect();
    let what = FetchTarget::Copy { id: id.clone(), instance: of, ranges: requested, ordered };
    let mut pace = Throughput::default();
    let mut growth = Growth::new(ranges.iter().map(|range| range.end - range.start).sum());
    let mut credit = CreditWindow::new(transfers.events.now(), transfers.link.link().latency_ns);
    let (mut channel, transfer) = ask(transfers, source, what, credit.window(), frame).await?;
    let mut arrivals = Arrivals::default();
    let mut timeout = TransferTimeout::new(&transfers.events);
    // The transfer uses no link before the first frame.
    let mut receiving = None;
    for range in ranges {
        let Some(mut claim) = stored.claim(range.clone()) else {
            return Err(WireError::Unexpected(format!(
                "bytes {} to {}, which are already written",
                range.start, range.end
            ))
            .into());
        };
        while !claim.range().is_empty() {
            let at = claim.range().start;
            let mut places: Vec<&mut [u8]> =
                claim.place(FRAMES_AT_ONCE as u64 * frame).chunks_mut(frame as usize).collect();
            let arrived =
                timeout.expect("sent", arrivals.next(&channel.stream, &mut places)).await?;
            let mut headers = match arrived {
                Arrived::Frames(headers) => headers,
                Arrived::KeepAlive(header) => {
                    keep_alive(&mut channel, &mut timeout, header)?;
                    continue;
                }
                Arrived::Other(header, body) => {
                    let end = ended(&mut channel, transfer, header, &places[0][..body]).await?;
                    transfers.network.peers.keep_idle(source, channel);
                    pace.report(transfers, ordered);
                    return Ok(end);
                }
            };
            let mut whole = 0;
            let opened = headers.iter_mut().zip(&mut places).try_for_each(|(header, place)| {
                blocks::open(&mut channel.open, header, transfer, start + at + whole, place)?;
                whole += place.len() as u64;
                Ok::<(), WireError>(())
            });
            if wanted.range.is_none() {
                // A range is not sent to others.
                stored.remember_sums(at, whole, &headers);
            }
            // Keep the valid frames, even if a later one is corrupt.
            claim.commit(whole)?;
            count_opened(transfers, source, opened)?;
            transfers.counters.bytes_received.add(whole);
            transfers.network.traffic.received(source, whole);
            timeout.moved(whole);
            // Count before yielding to other tasks: meanwhile more bytes would arrive than the link carries in the
            // counted time.
            receiving.get_or_insert_with(|| transfers.streams.receiving());
            let shares = shares(transfers, &headers);
            stored.came_beside(shares);
            pace.step(whole, shares);
            growth.step(transfers, wanted.fetch, whole, shares);
            permit.iter().for_each(Permit::moved);
            stored.yield_to_followers().await;
            if let Some(granted) = credit.received(transfers.events.now(), whole) {
                channel.send(frame::bare(FrameKind::Credit, transfer, granted)).await?;
            }
        }
    }
    let end = timeout.expect("sent", async {
        let header = next(&mut channel.stream).await?;
        ended(&mut channel, transfer, header, &[]).await
    });
    let end = end.await?;
    transfers.network.peers.keep_idle(source, channel);
    pace.report(transfers, ordered);
    Ok(end)
}

/// The missing bytes of a range.
fn within(missing: &Ranges, range: &Range<u64>) -> Vec<Range<u64>> {
    missing.intersect(&std::iter::once(range.clone()).collect()).iter().collect()
}

/// Number of transfers that share the busiest link of these frames.
fn shares(transfers: &Transfers, frames: &[Header]) -> u16 {
    let theirs = frames.iter().map(|frame| frame.shares).max().unwrap_or(1);
    theirs.max(transfers.streams.shares_in())
}

/// Counts corrupt blocks, and reports their source to the state machine.
fn count_opened(
    transfers: &Arc<Transfers>,
    source: NodeId,
    opened: Result<(), WireError>,
) -> Result<(), WireError> {
    if matches!(opened, Err(WireError::Checksum { .. } | WireError::NotAuthentic(_))) {
        transfers.counters.blocks_corrupt.add(1);
        transfers.events.send(Event::BlockCorrupt { source });
    }
    opened
}

/// Receives a child's stream into a window. If the stream breaks, the last item is the reason.
pub(crate) async fn partial(
    transfers: Arc<Transfers>,
    child: NodeId,
    key: FoldKey,
    part: Range<u64>,
    frame: u64,
    window: mpsc::Sender<Result<Piece, String>>,
) {
    let received = tokio::select! {
        received = receive_partial(&transfers, child, key, part, frame, &window) => received,
        // The kernel of an unresponsive host may keep the connection open.
        () = transfers.network.peers.gone(child) => Err(LinkError::Failed),
    };
    if let Err(error) = received {
        transfers.note_slow(child, &error);
        let said = format!("the stream of position {} at node {child}: {error}", key.position);
        let _ = window.send(Err(said)).await;
    }
}

async fn receive_partial(
    transfers: &Arc<Transfers>,
    child: NodeId,
    key: FoldKey,
    part: Range<u64>,
    frame: u64,
    window: &mpsc::Sender<Result<Piece, String>>,
) -> Result<(), LinkError> {
    let what = FetchTarget::Partial(key);
    let mut pace = Throughput::default();
    let mut receiving = None;
    let (mut channel, transfer) = ask(transfers, child, what, WINDOW_BYTES, frame).await?;
    let mut arrivals = Arrivals::default();
    let mut timeout = TransferTimeout::new(&transfers.events);
    let (mut at, mut asked, mut ungranted) = (part.start, part.start, 0);
    // Memory for frames that are not complete.
    let mut waiting: VecDeque<Piece> = VecDeque::new();
    while at < part.end {
        let most = if transfers.streams.is_short() { 1 } else { FRAMES_AT_ONCE };
        while asked < part.end && waiting.len() < most {
            let length = frame.min(part.end - asked);
            waiting.push_back(transfers.streams.piece(length as usize));
            asked += length;
        }
        let mut places: Vec<&mut [u8]> = waiting.iter_mut().map(|piece| &mut **piece).collect();
        let arrived = timeout.expect("sent", arrivals.next(&channel.stream, &mut places)).await?;
        let headers = match arrived {
            Arrived::Frames(headers) => headers,
            Arrived::KeepAlive(header) => {
                keep_alive(&mut channel, &mut timeout, header)?;
                continue;
            }
            Arrived::Other(header, body) => {
                let _ = ended(&mut channel, transfer, header, &places[0][..body]).await?;
                let said = format!("the end at byte {at} of {}", part.end);
                return Err(WireError::Unexpected(said).into());
            }
        };
        receiving.get_or_insert_with(|| transfers.streams.receiving());
        let shares = shares(transfers, &headers);
        for mut header in headers {
            let Some(mut piece) = waiting.pop_front() else { break };
            let opened = blocks::open(&mut channel.open, &mut header, transfer, at, &mut piece);
            count_opened(transfers, child, opened)?;
            let length = piece.len() as u64;
            transfers.counters.bytes_partial_received.add(length);
            transfers.network.traffic.received(child, length);
            transfers.streams.wait_for_room(window).await;
            if window.send(Ok(piece)).await.is_err() {
                // The fold has ended; closing the connection notifies the child.
                return Ok(());
            }
            at += length;
            ungranted += length;
            pace.step(length, shares);
        }
        // The fold owns their places in the window now. Grant credit before the window is empty, but not with a packet
        // per frame.
        if ungranted >= WINDOW_BYTES / 4 {
            channel.send(frame::bare(FrameKind::Credit, transfer, ungranted)).await?;
            ungranted = 0;
        }
        // Let the fold run before more is read.
        tokio::task::yield_now().await;
        // The fold may have waited for other children before it took these frames.
        timeout.restart();
    }
    let header = loop {
        let header = timeout.expect("sent", next(&mut channel.stream)).await?;
        if header.kind != FrameKind::KeepAlive {
            break header;
        }
        keep_alive(&mut channel, &mut timeout, header)?;
    };
    if matches!(ended(&mut channel, transfer, header, &[]).await?, End::Complete) {
        transfers.network.peers.keep_idle(child, channel);
    }
    pace.report(transfers, true);
    Ok(())
}

/// Sends a request to a node; returns the connection for the reply, and the number of the transfer.
async fn ask(
    transfers: &Arc<Transfers>,
    node: NodeId,
    what: FetchTarget,
    credit: u64,
    frame: u64,
) -> Result<(Channel, u64), LinkError> {
    let transfer = transfers.events.next_id();
    let fetch = Fetch { what, credit, frame: frame as u32 };
    let fetch = frame::frame(FrameKind::Fetch, transfer, &fetch);
    Ok((payload::open(&transfers.network, node, &fetch).await?, transfer))
}

async fn next(stream: &mut TcpStream) -> Result<Header, LinkError> {
    let header = channel::read_header(stream).await?;
    Ok(header.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?)
}

/// Handles a report of the sender that it waits.
fn keep_alive(
    channel: &mut Channel,
    timeout: &mut TransferTimeout,
    mut header: Header,
) -> Result<(), LinkError> {
    channel.open.open(&mut header, &mut [])?;
    Ok(timeout.receive_keep_alive()?)
}

/// Reads the result of a transfer, from a frame with `begun` bytes of its body already read.
async fn ended(
    channel: &mut Channel,
    transfer: u64,
    mut header: Header,
    begun: &[u8],
) -> Result<End, LinkError> {
    let Channel { stream, open, .. } = channel;
    let body = channel::read_body(&mut begun.chain(stream), open, &mut header).await?;
    if header.transfer != transfer {
        let said = format!("a frame of transfer {} in transfer {transfer}", header.transfer);
        return Err(WireError::Unexpected(said).into());
    }
    match header.kind {
        FrameKind::End => Ok(End::Complete),
        FrameKind::Unavailable => Ok(End::Unavailable(wire::decode(&body)?)),
        other => Err(WireError::Unexpected(other.to_string()).into()),
    }
}

/// The progress of a transfer, for the state machine, which decides whether to report it.
#[derive(Debug)]
struct Growth {
    received: u64,
    missing: u64,
    /// The most transfers that shared the link since the last report.
    shares: u16,
    /// Time of the last report. The first bytes are reported at once, because on a slow link the next ones come much
    /// later.
    told: Option<Instant>,
}

impl Growth {
    fn new(missing: u64) -> Self {
        Self { received: 0, missing, shares: 0, told: None }
    }

    fn step(&mut self, transfers: &Arc<Transfers>, fetch: FetchId, bytes: u64, shares: u16) {
        self.shares = self.shares.max(shares);
        self.received += bytes;
        self.missing = self.missing.saturating_sub(bytes);
        let is_due = |told: Instant| told.elapsed() >= Duration::from_nanos(FETCH_PROGRESS_NS);
        if self.missing > 0 && self.told.is_none_or(is_due) {
            self.told = Some(Instant::now());
            let (received, missing) = (self.received, self.missing);
            let shares = std::mem::take(&mut self.shares);
            transfers.events.send(Event::FetchProgress { fetch, received, missing, shares });
        }
    }
}

/// The rate of a transfer: the fastest run of a window, or all of a shorter transfer.
///
/// The fastest run, because a sender that waits for its own copy does not show the rate of the link. A whole window,
/// because fewer bytes may have waited in the kernel and arrive at memory speed. For the same reason a short transfer
/// counts from its request on.
#[derive(Debug)]
struct Throughput {
    since: Instant,
    bytes: u64,
    /// Whether other transfers shared the link: then the link is faster than this rate.
    was_shared: bool,
    /// Time from the request to the first bytes.
    first: Option<Duration>,
    best: Option<(u64, Duration)>,
}

/// Minimum sample: the smallest streamed object. For less, request and reply take longer than the bytes.
const SAMPLE_BYTES_MIN: u64 = INLINE_BYTES_MAX;

/// Minimum of a steady sample. For less, the request's path and the scheduler take much of the time.
const STEADY_BYTES_MIN: u64 = 1024 * 1024;

impl Default for Throughput {
    fn default() -> Self {
        Self { since: Instant::now(), bytes: 0, was_shared: false, first: None, best: None }
    }
}

impl Throughput {
    fn step(&mut self, bytes: u64, shares: u16) {
        self.was_shared |= shares > 1;
        self.bytes += bytes;
        self.first.get_or_insert_with(|| self.since.elapsed());
        if self.bytes >= CREDIT_BYTES {
            let run = (self.bytes, self.since.elapsed());
            let is_faster = |best: (u64, Duration)| {
                u128::from(run.0) * best.1.as_nanos() > u128::from(best.0) * run.1.as_nanos()
            };
            if self.best.is_none_or(is_faster) {
                self.best = Some(run);
            }
            self.bytes = 0;
            self.since = Instant::now();
        }
    }

    /// Reports the rate. `may_wait`: the sender had to compute the bytes first. If that took most of the time, there is
    /// no sample.
    fn report(&self, transfers: &Arc<Transfers>, may_wait: bool) {
        let time = self.since.elapsed();
        let has_waited = may_wait && self.first.is_none_or(|first| first > time / 2);
        let says_something = self.bytes >= SAMPLE_BYTES_MIN && !has_waited;
        let whole = says_something.then_some((self.bytes, time));
        if let Some((bytes, time)) = self.best.or(whole) {
            let is_steady = !may_wait && !self.was_shared && bytes >= STEADY_BYTES_MIN;
            transfers.link.transfer(bytes, time, is_steady);
        }
    }
}

#[cfg(test)]
mod tests;
