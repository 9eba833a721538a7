//! The receiving end of payload connections: copies go directly into place in memory, partial
//! results into a window for the fold.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use hoplite_proto::{
    credit::CreditWindow,
    id::{FetchId, NodeId},
    limits::WINDOW_BYTES,
    message::FoldKey,
    node::{Event, FETCH_PROGRESS_NS, FetchOrder, RangeSource},
    pipeline::frame_bytes,
    ranges::Ranges,
    wire::{Fetch, FetchTarget, Header, Unavailable, WireError},
};
use tokio::sync::mpsc;
use tracing::debug;

use super::{
    blocks::FRAMES_AT_ONCE,
    limiter::Permit,
    path::{Arrived, End, Incoming, PayloadPath},
    shared::Transfers,
    streams::{Active, Piece},
    timeout::TransferTimeout,
};
use crate::{
    backing::{Backing, Claim},
    digest::digest_of,
    engine::tasks::Task,
    error::LinkError,
    frame,
    link::Throughput,
    repeats::log_once,
    store::StoredCopy,
};

/// Starts to receive the missing bytes of a copy.
pub(crate) fn start<P: PayloadPath>(transfers: &Arc<Transfers>, path: &Arc<P>, wanted: FetchOrder) {
    transfers.begin_fetch(wanted.fetch, || {
        let receiving = run_fetch(transfers.clone(), path.clone(), wanted);
        transfers.tasks.spawn(Task::Receive, receiving).abort_handle()
    });
}

/// Receives the missing bytes of a copy, and reports the result to the state machine.
async fn run_fetch<P: PayloadPath>(transfers: Arc<Transfers>, path: Arc<P>, wanted: FetchOrder) {
    let (fetch, source) = (wanted.fetch, wanted.source);
    let Some(stored) = transfers.store.get(wanted.instance) else { return };
    let bytes: Ranges = match &wanted.ranges {
        Some(ranges) => ranges.iter().cloned().collect(),
        None => Ranges::full(stored.len()),
    };
    // Until a stopped transfer has ended, only it may write its bytes.
    let taken = stored.receiving.take(bytes.clone()).await;
    let (result, is_wrong) = receive_and_digest(&transfers, &*path, &stored, &wanted).await;
    if wanted.in_parts && matches!(result, Ok(End::Complete)) {
        // Wait for the parts that this node computes. If that fails, this task is stopped.
        let _ = stored.wait(0..stored.len()).await;
    }
    drop(taken);
    let not_here = matches!(result, Ok(End::Unavailable(Unavailable::NotHere)));
    let is_here = bytes.iter().all(|range| stored.is_ready(range));
    let event = match result {
        Ok(End::Complete) if is_wrong => {
            transfers.counters.copies_corrupt.add(1);
            log_once!(
                warn, source, id = %wanted.id, %source,
                "received a copy that does not match its announced digest"
            );
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

/// Receives a copy, and computes its digest meanwhile if one is expected. Returns whether the copy
/// was complete then and differs from it: only the last of several transfers of a copy verifies it.
async fn receive_and_digest<P: PayloadPath>(
    transfers: &Arc<Transfers>,
    path: &P,
    stored: &Arc<StoredCopy>,
    wanted: &FetchOrder,
) -> (Result<End, LinkError>, bool) {
    let receiving = receive_copy(transfers, path, stored, wanted);
    if wanted.digest.is_none() {
        return (receiving.await, false);
    }
    let digesting = digest_of(&transfers.tasks, stored);
    tokio::pin!(receiving, digesting);
    tokio::select! {
        biased;
        digest = &mut digesting => {
            let result = receiving.await;
            let is_wrong = stored.is_complete() && digest != wanted.digest;
            (result, is_wrong)
        }
        result = &mut receiving => match result {
            Ok(End::Complete) if stored.is_complete() => {
                (result, digesting.await != wanted.digest)
            }
            _ => (result, false),
        },
    }
}

async fn receive_copy<P: PayloadPath>(
    transfers: &Arc<Transfers>,
    path: &P,
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
    let requested = ranges.iter().map(|range| start + range.start..start + range.end).collect();
    let what = FetchTarget::Copy { id: id.clone(), instance: of, ranges: requested, ordered };
    let credit = CreditWindow::new(transfers.events.now(), transfers.link.link().latency_ns);
    let growth = Growth::new(ranges.iter().map(|range| range.end - range.start).sum());
    let fetch = Fetch { what, credit: credit.window(), frame: frame as u32 };
    let receiving = Receiving::begin(transfers, path, source, &fetch).await?;
    let mut copy = Copy { receiving, stored, wanted, start, frame, credit, growth, permit };
    for range in ranges {
        let Some(claim) = stored.claim(range.clone()) else {
            let Range { start, end } = range;
            let said = format!("bytes {start} to {end}, which are already written");
            return Err(WireError::Unexpected(said).into());
        };
        if let Some(end) = copy.fill(claim).await? {
            copy.receiving.finish(ordered);
            return Ok(end);
        }
    }
    copy.receiving.end(ordered).await
}

/// The transfer of a copy to this node.
struct Copy<'a, I> {
    receiving: Receiving<'a, I>,
    stored: &'a StoredCopy,
    wanted: &'a FetchOrder,
    /// Where the copy begins in that of the source.
    start: u64,
    frame: u64,
    credit: CreditWindow,
    growth: Growth,
    permit: Option<Permit>,
}

impl<I: Incoming> Copy<'_, I> {
    /// Receives the bytes of a claim. Returns the end of the transfer if that comes first.
    async fn fill(&mut self, mut claim: impl Claim) -> Result<Option<End>, LinkError> {
        let Self { receiving, stored, .. } = self;
        let transfers = receiving.transfers;
        while !claim.range().is_empty() {
            let at = claim.range().start;
            let place = claim.place(FRAMES_AT_ONCE as u64 * self.frame);
            let mut places: Vec<&mut [u8]> = place.chunks_mut(self.frame as usize).collect();
            let mut headers = match receiving.next(&mut places).await? {
                Ok(headers) => headers,
                Err(end) => return Ok(Some(end)),
            };
            let mut whole = 0;
            let opened = headers.iter_mut().zip(&mut places).try_for_each(|(header, place)| {
                receiving.open(header, self.start + at + whole, place)?;
                whole += place.len() as u64;
                Ok::<(), WireError>(())
            });
            if self.wanted.range.is_none() {
                // A range is not sent to others.
                stored.remember_sums(at, whole, &headers);
            }
            let shares = receiving.shares(&headers);
            stored.came_beside(shares);
            // Keep the valid frames, even if a later one is corrupt.
            claim.commit(whole)?;
            opened?;
            transfers.counters.bytes_received.add(whole);
            receiving.timeout.moved(whole);
            // Count before yielding to other tasks: meanwhile more bytes would arrive than the link
            // carries in the counted time.
            receiving.moved(whole, shares);
            self.growth.step(transfers, self.wanted.fetch, whole, shares);
            self.permit.iter().for_each(Permit::moved);
            stored.yield_to_followers().await;
            if let Some(granted) = self.credit.received(transfers.events.now(), whole) {
                receiving.incoming.grant(granted).await?;
            }
        }
        Ok(None)
    }
}

/// The missing bytes of a range.
fn within(missing: &Ranges, range: &Range<u64>) -> Vec<Range<u64>> {
    missing.intersect(&std::iter::once(range.clone()).collect()).iter().collect()
}

/// The receiving end of one transfer, whatever its bytes are for.
struct Receiving<'a, I> {
    transfers: &'a Arc<Transfers>,
    incoming: I,
    source: NodeId,
    transfer: u64,
    timeout: TransferTimeout,
    throughput: Throughput,
    /// Counts the transfer. It uses no link before the first frame.
    active: Option<Active>,
}

impl<'a, I: Incoming> Receiving<'a, I> {
    /// Sends the request of a transfer.
    async fn begin<P: PayloadPath<Incoming = I>>(
        transfers: &'a Arc<Transfers>,
        path: &P,
        source: NodeId,
        fetch: &Fetch,
    ) -> Result<Self, LinkError> {
        let (transfer, throughput) = (transfers.events.next_id(), Throughput::default());
        let incoming = path.fetch(source, transfer, fetch).await?;
        let timeout = TransferTimeout::new(&transfers.events);
        Ok(Self { transfers, incoming, source, transfer, timeout, throughput, active: None })
    }

    /// Waits for frames in `places`, or the end of the transfer. The frames are not verified yet.
    async fn next(
        &mut self,
        places: &mut [&mut [u8]],
    ) -> Result<Result<Vec<Header>, End>, LinkError> {
        loop {
            match self.timeout.expect("sent", self.incoming.next(places)).await? {
                Arrived::KeepAlive => self.timeout.receive_keep_alive()?,
                Arrived::Ended(end) => return Ok(Err(end)),
                Arrived::Frames(headers) => {
                    self.active.get_or_insert_with(|| self.transfers.streams.receiving());
                    return Ok(Ok(headers));
                }
            }
        }
    }

    /// Decrypts and verifies a frame of the bytes from `at` on. Counts a corrupt one, and reports
    /// its source to the state machine.
    fn open(&mut self, header: &mut Header, at: u64, bytes: &mut [u8]) -> Result<(), WireError> {
        let decrypted = self.incoming.decrypt(header, bytes);
        let opened = decrypted.and_then(|()| frame::verify(header, self.transfer, at, bytes));
        if matches!(opened, Err(WireError::Checksum { .. } | WireError::NotAuthentic(_))) {
            self.transfers.counters.blocks_corrupt.add(1);
            self.transfers.events.send(Event::BlockCorrupt { source: self.source });
        }
        opened
    }

    /// Number of transfers that share the busiest link of these frames.
    fn shares(&self, frames: &[Header]) -> u16 {
        let theirs = frames.iter().map(|frame| frame.shares).max().unwrap_or(1);
        theirs.max(self.transfers.streams.shares_in())
    }

    /// Counts received bytes.
    fn moved(&mut self, bytes: u64, shares: u16) {
        self.transfers.network.traffic.received(self.source, bytes);
        self.throughput.step(bytes, shares);
    }

    /// Waits for the end after the last frame.
    async fn end(mut self, may_wait: bool) -> Result<End, LinkError> {
        match self.next(&mut []).await? {
            Err(end) => {
                self.finish(may_wait);
                Ok(end)
            }
            Ok(_) => Err(WireError::Unexpected("a frame after the last".into()).into()),
        }
    }

    /// Reports the rate after the end, and keeps the connection.
    fn finish(self, may_wait: bool) {
        self.throughput.report(&self.transfers.link, may_wait);
        self.incoming.keep();
    }
}

/// Receives a child's stream into a window. If the stream breaks, the last item is the reason.
pub(crate) async fn partial<P: PayloadPath>(
    transfers: Arc<Transfers>,
    path: Arc<P>,
    child: NodeId,
    key: FoldKey,
    part: Range<u64>,
    frame: u64,
    window: mpsc::Sender<Result<Piece, String>>,
) {
    let received = tokio::select! {
        received = receive_partial(&transfers, &*path, child, key, part, frame, &window) => {
            received
        }
        // The kernel of an unresponsive host may keep the connection open.
        () = transfers.network.peers.gone(child) => Err(LinkError::Failed),
    };
    if let Err(error) = received {
        transfers.note_slow(child, &error);
        let said = format!("the stream of position {} at node {child}: {error}", key.position);
        let _ = window.send(Err(said)).await;
    }
}

async fn receive_partial<P: PayloadPath>(
    transfers: &Arc<Transfers>,
    path: &P,
    child: NodeId,
    key: FoldKey,
    part: Range<u64>,
    frame: u64,
    window: &mpsc::Sender<Result<Piece, String>>,
) -> Result<(), LinkError> {
    let what = FetchTarget::Partial(key);
    let fetch = Fetch { what, credit: WINDOW_BYTES, frame: frame as u32 };
    let mut receiving = Receiving::begin(transfers, path, child, &fetch).await?;
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
        let Ok(headers) = receiving.next(&mut places).await? else {
            let said = format!("the end at byte {at} of {}", part.end);
            return Err(WireError::Unexpected(said).into());
        };
        let shares = receiving.shares(&headers);
        for mut header in headers {
            let Some(mut piece) = waiting.pop_front() else { break };
            receiving.open(&mut header, at, &mut piece)?;
            let length = piece.len() as u64;
            transfers.counters.bytes_partial_received.add(length);
            receiving.moved(length, shares);
            transfers.streams.wait_for_room(window).await;
            if window.send(Ok(piece)).await.is_err() {
                // The fold has ended; closing the connection notifies the child.
                return Ok(());
            }
            at += length;
            ungranted += length;
        }
        // The fold owns their places in the window now. Grant credit before the window is empty,
        // but not with a packet per frame.
        if ungranted >= WINDOW_BYTES / 4 {
            receiving.incoming.grant(std::mem::take(&mut ungranted)).await?;
        }
        // Let the fold run before more is read.
        tokio::task::yield_now().await;
        // The fold may have waited for other children before it took these frames.
        receiving.timeout.restart();
    }
    receiving.end(true).await?;
    Ok(())
}

/// The progress of a transfer, for the state machine, which decides whether to report it.
#[derive(Debug)]
struct Growth {
    received: u64,
    missing: u64,
    /// The most transfers that shared the link since the last report.
    shares: u16,
    /// Time of the last report. The first bytes are reported at once, because on a slow link the
    /// next ones come much later.
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

#[cfg(test)]
mod tests;
