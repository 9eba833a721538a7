//! The sending end of payload connections: copies, as they grow, and streams of partial results.
//!
//! One task reads requests and credit, one writes. Nothing is sent beyond the credit. Each
//! connection carries one transfer at a time, so a stalled receiver delays no other. If a receiver
//! accepts nothing of a copy for a while, the transfer is aborted, so that it does not keep the
//! copy forever. While the copy itself does not grow, or the fold makes no frame, the receiver is
//! notified that the sender waits.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, ServeId},
    limits::{FRAME_BYTES_MAX, WINDOW_BYTES},
    message::FoldKey,
    node::Event,
    pipeline::is_frame_length,
    wire::{Fetch, FetchTarget, Unavailable, WireError},
};
use hoplite_shm::Ready;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tracing::debug;

use super::{
    blocks,
    path::{End, Headers, Outgoing, Request, Requests},
    shared::{Serving, Transfers},
    streams::{Frame, ORDER_TIMEOUT, SendingCopy},
    timeout::TransferTimeout,
    turns::{Kind, TURNS_RATE_MAX, Taken, Turn},
};
use crate::{
    backing::Backing,
    engine::tasks::Task,
    error::LinkError,
    mutants,
    network::{certificates::PeerCertificate, connection_limit::ConnectionPermit, peers::IDLE_MAX},
    store::StoredCopy,
    sync::lock,
};

/// Bytes per write, if that many are ready.
const BATCH_BYTES: u64 = 2 * FRAME_BYTES_MAX;

/// How long a copy stays granted to a receiver that may request more of it: longer than most round
/// trips, and too short to delay the end of a copy. Later requests are granted again.
const MORE_TIMEOUT: Duration = Duration::from_millis(100);

/// Credit that the receiver granted to the active transfer.
#[derive(Debug, Default)]
struct SendCredit {
    granted: Mutex<GrantedCredit>,
    changed: Notify,
    /// Whether the connection has ended.
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct GrantedCredit {
    transfer: u64,
    bytes: u64,
}

impl SendCredit {
    /// Begins a transfer with this credit. What is left of the one before is void.
    fn begin(&self, transfer: u64, bytes: u64) {
        *lock(&self.granted) = GrantedCredit { transfer, bytes };
    }

    /// Adds credit of a transfer. If another one is active, it is void.
    fn grant(&self, transfer: u64, bytes: u64) {
        let mut granted = lock(&self.granted);
        if granted.transfer == transfer {
            granted.bytes = granted.bytes.saturating_add(bytes);
            self.changed.notify_one();
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Waits for at least `least` bytes of credit, and takes up to `most`.
    async fn take(&self, least: u64, most: u64) -> Result<u64, LinkError> {
        loop {
            if let Some(taken) = self.take_now(least, most) {
                return Ok(taken);
            }
            if self.is_closed.load(Ordering::Acquire) {
                return Err(broken());
            }
            self.changed.notified().await;
        }
    }

    fn take_now(&self, least: u64, most: u64) -> Option<u64> {
        let bytes = &mut lock(&self.granted).bytes;
        let taken = (*bytes).min(most);
        (taken >= least).then(|| {
            *bytes -= taken;
            taken
        })
    }

    fn give_back(&self, bytes: u64) {
        let credit = &mut lock(&self.granted).bytes;
        *credit = credit.saturating_add(bytes);
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

/// Serves the requests of a node on one connection, until the connection ends, the node is no
/// longer a member, or its certificate is revoked.
pub(crate) fn start(
    transfers: &Arc<Transfers>,
    node: NodeId,
    ends: (impl Requests, impl Outgoing + 'static),
    shown: Option<Arc<PeerCertificate>>,
    permit: ConnectionPermit,
) {
    let serving = transfers.clone();
    transfers.tasks.spawn(Task::Send, async move {
        let _place = permit;
        tokio::select! {
            result = serve(&serving, node, ends) => if let Err(error) = result {
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
pub(super) async fn serve(
    transfers: &Arc<Transfers>,
    node: NodeId,
    (requests, mut outgoing): (impl Requests, impl Outgoing),
) -> Result<(), LinkError> {
    let (asks, mut asked) = mpsc::channel(1);
    let credit = Arc::new(SendCredit::default());
    // Aborted when this function ends.
    let mut hearing = JoinSet::new();
    let of_hearer = credit.clone();
    hearing.spawn(transfers.tasks.watch(Task::Send, async move {
        let result = read_requests(requests, &asks, &of_hearer).await;
        of_hearer.close();
        result
    }));
    // The other end uses no connection again that was idle for half of this time. It may have
    // closed this one through a firewall that had forgotten it.
    let idle = 2 * IDLE_MAX;
    let mut granted: Option<Granted<'_>> = None;
    loop {
        let wait = if granted.is_some() { MORE_TIMEOUT } else { idle };
        let (transfer, fetch) = match tokio::time::timeout(wait, asked.recv()).await {
            Ok(Some(next)) => next,
            Err(_) if granted.take().is_some() => continue,
            _ => return Ok(()),
        };
        if !is_frame_length(fetch.frame) {
            let said = format!("a request for frames of {} bytes", fetch.frame);
            return Err(WireError::Unexpected(said).into());
        }
        // Not before: the receiver may request a transfer while the one before still runs.
        credit.begin(transfer, fetch.credit);
        let (credit, timeout) = (&*credit, TransferTimeout::new(&transfers.events));
        let (frame, outgoing) = (u64::from(fetch.frame), &mut outgoing);
        let mut sending =
            Sending { transfers, node, outgoing, credit, transfer, frame, timeout, relayed: false };
        let end = match fetch.what {
            FetchTarget::Copy { id, instance, ranges, ordered } => {
                sending.copy(id, instance, &ranges, ordered, &mut granted).await?
            }
            FetchTarget::Partial(key) => {
                // The stream may take long.
                granted = None;
                sending.partial(key).await?
            }
        };
        if !fetch.more && granted.take().is_some() && matches!(end, End::Complete) {
            // A receiver announces the end of a copy once, on one of its connections.
            transfers.counters.serves.add(1);
        }
        sending.outgoing.end(transfer, &end).await?;
        if fetch.more && !matches!(end, End::Complete) {
            // The receiver does not want the rest from here, although it may have requested it.
            return Ok(());
        }
    }
}

/// A copy that a receiver may get on a connection: for one request, and for more of the same copy
/// right afterwards.
struct Granted<'a> {
    instance: Instance,
    serving: Serving,
    _request: ServeRequest<'a>,
    _sending: SendingCopy<'a>,
}

/// A transfer requested from the state machine. Dropping this reports its end: it is complete, or
/// its connection or receiver is gone.
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
    mut requests: impl Requests,
    asks: &mpsc::Sender<(u64, Fetch)>,
    credit: &SendCredit,
) -> Result<(), LinkError> {
    while let Some(request) = requests.next().await? {
        match request {
            Request::Fetch(transfer, fetch) => {
                if asks.send((transfer, fetch)).await.is_err() {
                    return Ok(());
                }
            }
            Request::Credit(transfer, bytes) => credit.grant(transfer, bytes),
        }
    }
    Ok(())
}

/// The sending end of one transfer.
struct Sending<'a, 't, O> {
    transfers: &'t Arc<Transfers>,
    /// The receiver.
    node: NodeId,
    outgoing: &'a mut O,
    credit: &'a SendCredit,
    transfer: u64,
    frame: u64,
    timeout: TransferTimeout,
    /// Whether the copy itself came over the network or is computed by a reduce.
    relayed: bool,
}

impl<'t, O: Outgoing> Sending<'_, 't, O> {
    /// Sends the requested ranges of a copy as they become ready. `ordered`: this node computes the
    /// copy and may not have its order yet. `granted`: the copy of the request before, if that
    /// announced more.
    async fn copy(
        &mut self,
        id: ObjectId,
        instance: Instance,
        ranges: &[Range<u64>],
        ordered: bool,
        granted: &mut Option<Granted<'t>>,
    ) -> Result<End, LinkError> {
        if granted.as_ref().is_none_or(|granted| granted.instance != instance) {
            // Release the copy before: the next one may wait for its memory.
            *granted = None;
            *granted = self.granted(id.clone(), instance, ordered).await?;
        }
        let Some(granted) = granted else { return Ok(End::Unavailable(Unavailable::NotHere)) };
        self.relayed = granted.serving.relayed;
        let turn = self.turn(ordered.then_some(id), Kind::Result);
        for range in ranges {
            if !self.range(&granted.serving.stored, range.clone(), turn.as_ref()).await? {
                return Ok(End::Unavailable(Unavailable::Dropped));
            }
        }
        Ok(End::Complete)
    }

    /// Requests a copy from the state machine; `None` if it is not here.
    async fn granted(
        &mut self,
        id: ObjectId,
        instance: Instance,
        ordered: bool,
    ) -> Result<Option<Granted<'t>>, LinkError> {
        let transfers = self.transfers;
        if ordered {
            let ordered = tokio::time::timeout(ORDER_TIMEOUT, transfers.store.wait_for(instance));
            // If the order does not arrive, the state machine refuses the transfer.
            let _ = self.wait(ordered).await?;
        }
        let (serve, mut decision) = transfers.expect_serve(self.node);
        let mut request = ServeRequest { transfers, serve, is_refused: false };
        transfers.events.send(Event::FetchRequested { serve, id, instance });
        // The state machine may have to wait for a reply of the owner.
        let serving = self.wait(&mut decision).await?;
        let Some(serving) = serving.ok().flatten() else {
            request.is_refused = true;
            return Ok(None);
        };
        let _sending = transfers.streams.sending_copy(self.node, instance);
        Ok(Some(Granted { instance, serving, _request: request, _sending }))
    }

    /// Waits for something independent of the receiver, and reports to it that this end waits while
    /// that takes long.
    ///
    /// # Errors
    /// The connection has ended, whether or not the wait is over.
    async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Result<T, LinkError> {
        tokio::pin!(what);
        loop {
            let (result, is_word_due) = tokio::select! {
                biased;
                // First: what is taken for a receiver that is gone would be lost for its next
                // connection.
                () = self.credit.closed() => return Err(broken()),
                waited = self.timeout.wait(&mut what) => waited,
            };
            if is_word_due {
                let word = self.outgoing.keep_alive(self.transfer);
                self.timeout.expect("accepted", word).await?;
            }
            if let Some(result) = result {
                return Ok(result);
            }
        }
    }

    /// Sends a range of a copy, each batch when its turn comes. Returns false if the rest of the
    /// copy will not come.
    async fn range(
        &mut self,
        stored: &StoredCopy,
        range: Range<u64>,
        turn: Option<&Turn<'_>>,
    ) -> Result<bool, LinkError> {
        let (Range { start: mut at, end }, len) = (range, stored.len());
        if at > end || end > len {
            let said = format!("a request for bytes {at} to {end} of {len}");
            return Err(WireError::Unexpected(said).into());
        }
        // Memory for bytes that can't be sent from their place.
        let mut staging = Vec::new();
        while at < end {
            let first = at..(at + self.frame).min(end);
            if !stored.is_ready(first.clone())
                && self.wait(stored.wait(first.clone())).await?.is_err()
            {
                return Ok(false);
            }
            let batch = if self.transfers.streams.is_short() {
                first.clone()
            } else {
                ready_run(stored, first.clone(), end, self.frame)
            };
            let least = first.end - first.start;
            let most = batch.end - batch.start;
            let granted = self.timeout.expect("accepted", self.credit.take(least, most)).await?;
            // Send whole frames only: the rest of the credit is for the next.
            let to =
                if granted == most { batch.end } else { at + granted / self.frame * self.frame };
            self.credit.give_back(granted - (to - at));
            let _turn = taken(turn).await;
            let Ok(bytes) = stored.bytes(at..to, &mut staging) else {
                // The writer has reset the progress of an object that it has not sealed.
                self.credit.give_back(to - at);
                continue;
            };
            self.batch(stored, at, bytes).await?;
            at = to;
        }
        Ok(true)
    }

    /// Sends ready bytes of a copy.
    async fn batch(
        &mut self,
        stored: &StoredCopy,
        at: u64,
        bytes: Ready<'_>,
    ) -> Result<(), LinkError> {
        let Self { transfers, transfer, frame, relayed, .. } = *self;
        let changed = mutants::sent(relayed, bytes);
        let frames = blocks::frames(changed.as_deref().map_or(bytes, Into::into), at, frame);
        let sums = changed.is_none().then_some(stored);
        let shares = transfers.streams.shares_out().max(stored.shares_upstream());
        let headers = Headers { transfer, shares, sums };
        let sending = self.outgoing.send(&transfers.streams, &frames, headers);
        self.timeout.expect("accepted", sending).await?;
        let (counters, length) = (&transfers.counters, bytes.len() as u64);
        self.timeout.moved(length);
        (if relayed { &counters.bytes_relayed } else { &counters.bytes_direct }).add(length);
        self.count(length);
        Ok(())
    }

    /// Sends the stream of a position of a reduce to its parent.
    async fn partial(&mut self, key: FoldKey) -> Result<End, LinkError> {
        let Self { transfers, transfer, .. } = *self;
        let streams = &transfers.streams;
        let Some(mut stream) = self.wait(streams.take(key)).await? else {
            return Ok(End::Unavailable(Unavailable::Stopped));
        };
        let _sending = streams.sending();
        let turn = self.turn(stream.ring.clone(), Kind::Partial);
        let mut has_begun = false;
        // At most half of the window: the other half is granted again while this one is in flight.
        // In a ring an older stream may have bytes meanwhile, and goes first.
        let most = if turn.is_some() { FRAME_BYTES_MAX } else { WINDOW_BYTES / 2 };
        let most = ((most / self.frame) as usize).clamp(1, blocks::FRAMES_AT_ONCE);
        let mut batch = Vec::with_capacity(most);
        loop {
            batch.clear();
            let most = if streams.is_short() { 1 } else { most };
            match self.wait(stream.frames.recv_many(&mut batch, most)).await {
                Ok(0) => return Ok(End::Unavailable(Unavailable::Stopped)),
                Ok(_) => has_begun = true,
                Err(error) => {
                    if !has_begun {
                        streams.put_back(key, stream);
                    }
                    return Err(error);
                }
            }
            let pieces: Vec<_> = batch.iter().filter_map(Frame::bytes).collect();
            let length: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
            self.credit.take(length, length).await?;
            let _turn = taken(turn.as_ref()).await;
            let headers = Headers { transfer, shares: streams.shares_out(), sums: None };
            self.outgoing.send(streams, &pieces, headers).await?;
            transfers.counters.bytes_partial.add(length);
            self.count(length);
            if matches!(batch.last(), Some(Frame::End)) {
                return Ok(End::Complete);
            }
        }
    }

    /// The place of a transfer among those of its ring, if one of them alone fills the link.
    fn turn(&mut self, ring: Option<ObjectId>, kind: Kind) -> Option<Turn<'t>> {
        let link = &self.transfers.link;
        let is_filled =
            link.proved().connections == 1 && link.link().bytes_per_second <= TURNS_RATE_MAX;
        let add = |result| self.transfers.streams.turns.add(self.node, result, kind);
        let turn = ring.filter(|_| is_filled).map(add);
        self.outgoing.limit_unsent(turn.is_some());
        turn
    }

    /// Counts sent bytes.
    fn count(&self, bytes: u64) {
        self.transfers.network.traffic.sent(self.node, bytes);
        self.transfers.count_shared(bytes);
    }
}

/// Waits for a turn; transfers outside a ring have none.
async fn taken<'a>(turn: Option<&'a Turn<'_>>) -> Option<Taken<'a>> {
    match turn {
        Some(turn) => Some(turn.take().await),
        None => None,
    }
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

#[cfg(test)]
mod tests;
