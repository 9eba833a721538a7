//! The receiving end of payload connections: copies go directly into place in memory, partial
//! results into a window for the fold.

use std::{collections::VecDeque, ops::Range, slice, sync::Arc};

use hoplite_proto::{
    id::NodeId,
    limits::{CREDIT_BYTES, WINDOW_BYTES},
    message::FoldKey,
    node::{Event, FetchOrder},
    ranges::Ranges,
    wire::{Fetch, FetchTarget, Unavailable, WireError},
};
use tokio::sync::mpsc;
use tracing::debug;

use super::{
    blocks::FRAMES_AT_ONCE,
    connection::{LinkUse, Receiving},
    copy,
    path::{End, Incoming, PayloadPath},
    shared::Transfers,
    streams::Piece,
};
use crate::{
    backing::Backing, digest::digest_of, engine::tasks::Task, error::LinkError, repeats::log_once,
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
    let taken = Arc::new(stored.take(bytes.clone()).await);
    let receiving = copy::receive(&transfers, &path, &stored, &wanted, taken.clone());
    let (result, is_wrong) = receive_and_digest(&transfers, receiving, &stored, &wanted).await;
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
async fn receive_and_digest(
    transfers: &Arc<Transfers>,
    receiving: impl Future<Output = Result<End, LinkError>>,
    stored: &Arc<StoredCopy>,
    wanted: &FetchOrder,
) -> (Result<End, LinkError>, bool) {
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
    let fetch = Fetch { what, credit: WINDOW_BYTES, frame: frame as u32, more: false };
    let mut link_use = LinkUse::new(CREDIT_BYTES);
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
        for mut header in headers {
            let Some(mut piece) = waiting.pop_front() else { break };
            receiving.open(&mut header, at, &mut piece)?;
            let length = piece.len() as u64;
            transfers.counters.bytes_partial_received.add(length);
            link_use.moved(transfers, child, length, slice::from_ref(&header));
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
    receiving.end().await?;
    link_use.report(transfers, true);
    receiving.keep();
    Ok(())
}

#[cfg(test)]
mod tests;
