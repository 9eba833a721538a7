//! The sending end of payload connections: copies, as they grow, and streams of partial results.
//!
//! One task reads requests and credit, one writes. Nothing is sent beyond the credit. Each connection carries one
//! transfer at a time, so a stalled receiver delays no other. If a receiver accepts nothing of a copy for a while, the
//! transfer is aborted, so that it does not keep the copy forever. While the copy itself does not grow, or the fold
//! makes no frame, the receiver is notified that the sender waits.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, ServeId},
    limits::{FRAME_BYTES_MAX, WINDOW_BYTES},
    message::FoldKey,
    node::Event,
    pipeline::is_frame_length,
    wire::{self, Fetch, FetchTarget, FrameKind, Unavailable, WireError},
};
use hoplite_shm::Ready;
use tokio::{
    io::AsyncWriteExt,
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tracing::debug;

use super::{
    blocks::{self, Of},
    congestion,
    shared::{Serving, Transfers},
    streams::{Frame, ORDER_TIMEOUT},
    timeout::TransferTimeout,
};
use crate::{
    backing::Backing,
    channel::{self, Channel},
    engine::task::Task,
    error::LinkError,
    frame, mutants,
    network::{certificates::PeerCertificate, connection_limit::ConnectionPermit, peers::IDLE_MAX},
    sealing::{Open, Seal},
    store::StoredCopy,
};

/// Bytes per write, if that many are ready.
const BATCH_BYTES: u64 = 2 * FRAME_BYTES_MAX;

/// The sending half of a connection.
#[derive(Debug)]
struct Writer {
    /// The receiver.
    node: NodeId,
    stream: OwnedWriteHalf,
    seal: Seal,
}

impl Writer {
    /// Encrypts and sends a frame.
    async fn send(&mut self, mut frame: Vec<u8>) -> Result<(), LinkError> {
        self.seal.seal_whole(&mut frame);
        Ok(self.stream.write_all(&frame).await?)
    }
}

/// Credit that the receiver granted to the active transfer.
#[derive(Debug, Default)]
struct SendCredit {
    transfer: AtomicU64,
    bytes: AtomicU64,
    changed: Notify,
    /// Whether the connection has ended.
    is_closed: std::sync::atomic::AtomicBool,
}

impl SendCredit {
    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits for at least `least` bytes of credit, and takes up to `most`.
    async fn take(&self, least: u64, most: u64) -> Result<u64, LinkError> {
        loop {
            let there = self.bytes.load(Ordering::Acquire);
            if there >= least {
                let taken = there.min(most);
                self.bytes.fetch_sub(taken, Ordering::AcqRel);
                return Ok(taken);
            }
            if self.is_closed.load(Ordering::Acquire) {
                return Err(broken());
            }
            self.changed.notified().await;
        }
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Completes when the connection ends.
    async fn closed(&self) {
        while !self.is_closed.load(Ordering::Acquire) {
            self.changed.notified().await;
        }
    }
}

fn broken() -> LinkError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// Serves the requests of a node on one connection, until the connection ends, the node is no longer a member, or its
/// certificate is revoked.
pub(crate) fn start(
    transfers: &Arc<Transfers>,
    node: NodeId,
    channel: Channel,
    shown: Option<Arc<PeerCertificate>>,
    permit: ConnectionPermit,
) {
    let serving = transfers.clone();
    transfers.tasks.spawn(Task::Send, async move {
        let _place = permit;
        tokio::select! {
            result = serve(&serving, node, channel) => if let Err(error) = result {
                serving.note_slow(node, &error);
                debug!(%node, %error, "a payload connection ended");
            },
            // An unresponsive node reads nothing, and its kernel keeps the connection.
            () = serving.network.peers.gone(node) => {}
            () = serving.network.identity.key.wait_until_revoked(shown.as_deref()) => {}
        }
    });
}

/// Serves the requests on one connection until it ends.
async fn serve(
    transfers: &Arc<Transfers>,
    node: NodeId,
    channel: Channel,
) -> Result<(), LinkError> {
    let Channel { stream, seal, open } = channel;
    let (reader, stream) = stream.into_split();
    let mut writer = Writer { node, stream, seal };
    let (asks, mut asked) = mpsc::channel(1);
    let credit = Arc::new(SendCredit::default());
    // Aborted when this function ends.
    let mut hearing = JoinSet::new();
    let of_hearer = credit.clone();
    hearing.spawn(transfers.tasks.watch(Task::Send, async move {
        let result = read_requests(reader, open, &asks, &of_hearer).await;
        of_hearer.close();
        result
    }));
    // The other end uses no connection again that was idle for half of this time. It may have closed this one through a
    // firewall that had forgotten it.
    while let Ok(Some((transfer, fetch))) = tokio::time::timeout(2 * IDLE_MAX, asked.recv()).await {
        serve_request(transfers, &mut writer, &credit, transfer, fetch).await?;
        congestion::suit_path(writer.stream.as_ref());
    }
    Ok(())
}

/// A transfer requested from the state machine. Dropping this reports its end: it is complete, or its connection or
/// receiver is gone.
struct ServeRequest<'a> {
    transfers: &'a Arc<Transfers>,
    serve: ServeId,
    is_refused: bool,
}

impl Drop for ServeRequest<'_> {
    fn drop(&mut self) {
        self.transfers.forget_serve(self.serve);
        if !self.is_refused {
            self.transfers.events.send(Event::ServeEnded { serve: self.serve });
        }
    }
}

/// Reads requests and credit from the connection.
async fn read_requests(
    mut reader: OwnedReadHalf,
    mut open: Open,
    asks: &mpsc::Sender<(u64, Fetch)>,
    credit: &SendCredit,
) -> Result<(), LinkError> {
    while let Some(mut header) = channel::read_header(&mut reader).await? {
        let body = channel::read_body(&mut reader, &mut open, &mut header).await?;
        match header.kind {
            FrameKind::Fetch => {
                let fetch: Fetch = wire::decode(&body)?;
                credit.transfer.store(header.transfer, Ordering::Release);
                credit.bytes.store(fetch.credit, Ordering::Release);
                if asks.send((header.transfer, fetch)).await.is_err() {
                    return Ok(());
                }
            }
            FrameKind::Credit => {
                // Credit for an earlier transfer is void.
                if credit.transfer.load(Ordering::Acquire) == header.transfer {
                    credit.give_back(header.offset);
                    credit.changed.notify_one();
                }
            }
            other => return Err(WireError::Unexpected(other.to_string()).into()),
        }
    }
    Ok(())
}

async fn serve_request(
    transfers: &Arc<Transfers>,
    writer: &mut Writer,
    credit: &SendCredit,
    transfer: u64,
    fetch: Fetch,
) -> Result<(), LinkError> {
    if !is_frame_length(fetch.frame) {
        let said = format!("a request for frames of {} bytes", fetch.frame);
        return Err(WireError::Unexpected(said).into());
    }
    let frame = u64::from(fetch.frame);
    let outcome = match fetch.what {
        FetchTarget::Copy { id, instance, ranges, ordered } => {
            let wanted = RequestedRanges { transfer, ranges, frame, ordered };
            send_copy(transfers, writer, credit, id, instance, &wanted).await?
        }
        FetchTarget::Partial(key) => {
            send_partial(transfers, writer, credit, transfer, key, frame).await?
        }
    };
    let last = match outcome {
        None => frame::bare(FrameKind::End, transfer, 0),
        Some(why) => frame::frame(FrameKind::Unavailable, transfer, &why),
    };
    writer.send(last).await
}

/// The part of a copy that a receiver requests.
struct RequestedRanges {
    transfer: u64,
    ranges: Vec<Range<u64>>,
    frame: u64,
    /// Whether this node computes the copy and may not have its order yet.
    ordered: bool,
}

/// Sends the requested ranges of a copy as they become ready. Returns the reason if it could not.
async fn send_copy(
    transfers: &Arc<Transfers>,
    writer: &mut Writer,
    credit: &SendCredit,
    id: ObjectId,
    instance: Instance,
    wanted: &RequestedRanges,
) -> Result<Option<Unavailable>, LinkError> {
    let mut timeout = TransferTimeout::new(&transfers.events);
    if wanted.ordered {
        let ordered = tokio::time::timeout(ORDER_TIMEOUT, transfers.store.wait_for(instance));
        // If the order does not arrive, the state machine refuses the transfer.
        let _ = wait(&mut timeout, writer, credit, wanted.transfer, ordered).await?;
    }
    let (serve, mut decision) = transfers.expect_serve(writer.node);
    let mut asked = ServeRequest { transfers, serve, is_refused: false };
    transfers.events.send(Event::FetchRequested { serve, id, instance });
    // The state machine may have to wait for a reply of the owner.
    let serving = wait(&mut timeout, writer, credit, wanted.transfer, &mut decision).await?;
    let Some(Serving { stored, relayed }) = serving.ok().flatten() else {
        asked.is_refused = true;
        return Ok(Some(Unavailable::NotHere));
    };
    let _sending = transfers.streams.sending();
    let result =
        send_ranges(transfers, writer, credit, &mut timeout, (&stored, relayed), wanted).await;
    if matches!(result, Ok(None)) {
        transfers.counters.serves.add(1);
    }
    result
}

/// Waits for something independent of the receiver, and reports to it that this end waits while that takes long.
///
/// # Errors
/// The connection has ended, whether or not the wait is over.
async fn wait<T>(
    timeout: &mut TransferTimeout,
    writer: &mut Writer,
    credit: &SendCredit,
    transfer: u64,
    what: impl Future<Output = T>,
) -> Result<T, LinkError> {
    tokio::pin!(what);
    loop {
        let (result, is_word_due) = tokio::select! {
            biased;
            // First: what is taken for a receiver that is gone would be lost for its next connection.
            () = credit.closed() => return Err(broken()),
            waited = timeout.wait(&mut what) => waited,
        };
        if is_word_due {
            let word = frame::bare(FrameKind::KeepAlive, transfer, 0);
            timeout.expect("accepted", writer.send(word)).await?;
        }
        if let Some(result) = result {
            return Ok(result);
        }
    }
}

async fn send_ranges(
    transfers: &Arc<Transfers>,
    writer: &mut Writer,
    credit: &SendCredit,
    timeout: &mut TransferTimeout,
    (stored, relayed): (&StoredCopy, bool),
    wanted: &RequestedRanges,
) -> Result<Option<Unavailable>, LinkError> {
    let RequestedRanges { transfer, ref ranges, frame, .. } = *wanted;
    let len = stored.len();
    let mut staging = Vec::new();
    let counter =
        if relayed { &transfers.counters.bytes_relayed } else { &transfers.counters.bytes_direct };
    for range in ranges {
        if range.start > range.end || range.end > len {
            return Err(WireError::Unexpected(format!(
                "a request for bytes {} to {} of {len}",
                range.start, range.end
            ))
            .into());
        }
        let mut at = range.start;
        while at < range.end {
            let first = at..(at + frame).min(range.end);
            if !stored.is_ready(first.clone()) {
                let grown =
                    wait(timeout, writer, credit, transfer, stored.wait(first.clone())).await?;
                if grown.is_err() {
                    return Ok(Some(Unavailable::Dropped));
                }
            }
            let batch = if transfers.streams.is_short() {
                first.clone()
            } else {
                ready_run(stored, first.clone(), range.end, frame)
            };
            let least = first.end - first.start;
            let most = batch.end - batch.start;
            let granted = timeout.expect("accepted", credit.take(least, most)).await?;
            // Send whole frames only: the rest of the credit is for the next.
            let end = if granted == most { batch.end } else { at + granted / frame * frame };
            credit.give_back(granted - (end - at));
            let Ok(bytes) = stored.bytes(at..end, &mut staging) else {
                // The writer has reset the progress of an object that it has not sealed.
                credit.give_back(end - at);
                continue;
            };
            let changed = mutants::sent(relayed, bytes);
            let frames = blocks::frames(changed.as_deref().map_or(bytes, Into::into), at, frame);
            let (Writer { stream, seal, .. }, streams) = (&mut *writer, &transfers.streams);
            let known =
                |at, length| if changed.is_some() { None } else { stored.known_sum(at, length) };
            let shares = streams.shares_out().max(stored.shares_upstream());
            let of = Of { transfer, shares };
            let writing = blocks::write(stream, seal, streams, of, frames, known);
            timeout.expect("accepted", writing).await?;
            timeout.moved(end - at);
            counter.add(bytes.len() as u64);
            transfers.network.traffic.sent(writer.node, bytes.len() as u64);
            transfers.count_shared(bytes.len() as u64);
            at = end;
        }
    }
    Ok(None)
}

/// The ready frames from `first` on, up to a batch.
fn ready_run(stored: &StoredCopy, first: Range<u64>, end: u64, frame: u64) -> Range<u64> {
    let limit = (first.start + BATCH_BYTES).min(end);
    let mut to = first.end;
    while to < limit && stored.is_ready(to..(to + frame).min(end)) {
        to = (to + frame).min(end);
    }
    first.start..to
}

/// Sends the stream of a position of a reduce to its parent.
async fn send_partial(
    transfers: &Arc<Transfers>,
    writer: &mut Writer,
    credit: &SendCredit,
    transfer: u64,
    key: FoldKey,
    frame: u64,
) -> Result<Option<Unavailable>, LinkError> {
    let mut timeout = TransferTimeout::new(&transfers.events);
    let frames = transfers.streams.take(key);
    let frames = wait(&mut timeout, writer, credit, transfer, frames).await?;
    let Some(mut frames) = frames else { return Ok(Some(Unavailable::Stopped)) };
    let _sending = transfers.streams.sending();
    let mut has_begun = false;
    // At most half of the window: the other half is granted again while this one is in flight.
    let most = ((WINDOW_BYTES / 2 / frame) as usize).clamp(1, blocks::FRAMES_AT_ONCE);
    let mut batch = Vec::with_capacity(most);
    loop {
        batch.clear();
        let most = if transfers.streams.is_short() { 1 } else { most };
        let received = frames.recv_many(&mut batch, most);
        match wait(&mut timeout, writer, credit, transfer, received).await {
            Ok(0) => return Ok(Some(Unavailable::Stopped)),
            Ok(_) => has_begun = true,
            Err(error) => {
                if !has_begun {
                    transfers.streams.put_back(key, frames);
                }
                return Err(error);
            }
        }
        let pieces = batch.iter().filter_map(|frame| match frame {
            Frame::Bytes { offset, bytes } => Some((*offset, Ready::from(&**bytes))),
            Frame::End => None,
        });
        let length: u64 = pieces.clone().map(|(_, bytes)| bytes.len() as u64).sum();
        credit.take(length, length).await?;
        let (Writer { stream, seal, .. }, streams) = (&mut *writer, &transfers.streams);
        let of = Of { transfer, shares: streams.shares_out() };
        blocks::write(stream, seal, streams, of, pieces, |_, _| None).await?;
        transfers.counters.bytes_partial.add(length);
        transfers.network.traffic.sent(writer.node, length);
        transfers.count_shared(length);
        if matches!(batch.last(), Some(Frame::End)) {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests;
