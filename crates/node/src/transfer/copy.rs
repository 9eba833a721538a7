//! The bytes of a copy that arrives, on one connection or on several: which of them each requests,
//! and how they come into memory.
//!
//! A small copy is one request for all missing bytes. A large one is requested in segments. Each
//! connection takes the first segment that no other has, and requests the next before the present
//! one has arrived, so that it is never idle. The segments arrive nearly in order, which relays need.
//! [`hoplite_proto::connections`] decides how many connections are used. If one fails, the whole
//! transfer fails; what has arrived remains.

use std::{
    collections::{BTreeSet, VecDeque},
    future::ready,
    iter::once,
    mem::take,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hoplite_proto::{
    connections::{ConnectionCount, OBSERVED_NS, PARALLEL_BYTES_MIN},
    credit::CreditWindow,
    id::FetchId,
    limits::CREDIT_BYTES,
    node::{Event, FETCH_PROGRESS_NS, FetchOrder, RangeSource},
    pipeline::frame_bytes,
    ranges::Ranges,
    wire::{Fetch, FetchTarget, Header, WireError},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::debug;

use super::{
    blocks::FRAMES_AT_ONCE,
    connection::{LinkUse, Receiving},
    limiter::Permit,
    path::{End, Incoming, PayloadPath},
    shared::Transfers,
};
use crate::{
    backing::{Backing, Claim},
    engine::tasks::Task,
    error::LinkError,
    store::{StoredCopy, TakenRanges},
    sync::lock,
};

/// Time to open a further connection, whose bytes the others then receive.
const OPEN_TIMEOUT: Duration = Duration::from_millis(500);

/// A copy that arrives.
struct Copy<P> {
    transfers: Arc<Transfers>,
    path: Arc<P>,
    stored: Arc<StoredCopy>,
    /// Kept until its last connection has ended.
    _taken: Arc<TakenRanges>,
    wanted: FetchOrder,
    /// Where the bytes are at the source.
    at: RangeSource,
    frame: u64,
    /// Whether each request is for one segment; otherwise one is for all.
    in_segments: bool,
    permit: Option<Permit>,
    state: Mutex<State>,
}

/// What its connections have in common.
struct State {
    /// The bytes that are not requested yet, in order.
    unrequested: VecDeque<Range<u64>>,
    count: ConnectionCount,
    /// The connections in use. One that is given up still receives what it has requested.
    open: u16,
    growth: Growth,
    link_use: LinkUse,
    /// Whether another transfer shared the link since the last observation.
    was_shared: bool,
}

/// Bytes that one connection requests at once.
struct Part {
    ranges: Vec<Range<u64>>,
    /// Whether other bytes of the copy are not requested yet.
    more: bool,
}

/// Receives the missing bytes of a copy. `taken` are its ranges in memory.
pub(super) async fn receive<P: PayloadPath>(
    transfers: &Arc<Transfers>,
    path: &Arc<P>,
    stored: &Arc<StoredCopy>,
    wanted: &FetchOrder,
    taken: Arc<TakenRanges>,
) -> Result<End, LinkError> {
    let FetchOrder { instance, ref ranges, in_parts, range, .. } = *wanted;
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
    let permit = if in_parts { None } else { Some(turn(transfers, wanted, size).await) };
    let bytes = ranges.iter().map(|range| range.end - range.start).sum();
    let in_segments = bytes >= PARALLEL_BYTES_MIN && !in_parts;
    // A request ahead grants credit while that of the present one is in use.
    let in_flight = if in_segments { 2 * CREDIT_BYTES } else { CREDIT_BYTES };
    let mut proved = transfers.link.proved();
    if transfers.streams.shares_in() > 0 {
        proved.connections = 1;
    }
    let latency_ns = transfers.link.link().latency_ns;
    let copy = Arc::new(Copy {
        transfers: transfers.clone(),
        path: path.clone(),
        stored: stored.clone(),
        _taken: taken,
        wanted: wanted.clone(),
        at: range.unwrap_or(RangeSource { of: instance, start: 0 }),
        frame: frame_bytes(size, transfers.link.link()),
        in_segments,
        permit,
        state: Mutex::new(State {
            unrequested: ranges.into(),
            count: ConnectionCount::new(transfers.events.now(), latency_ns, proved),
            open: 0,
            growth: Growth::new(bytes),
            link_use: LinkUse::new(in_flight),
            was_shared: false,
        }),
    });
    let end = match in_segments {
        true => on_several(&copy).await,
        false => connection(copy.clone(), 0).await,
    };
    if end.is_ok() {
        lock(&copy.state).link_use.report(transfers, in_parts);
    }
    end
}

/// Waits for the turn of a transfer. Meanwhile the state machine must not look for another source.
async fn turn(transfers: &Arc<Transfers>, wanted: &FetchOrder, size: u64) -> Permit {
    let FetchOrder { fetch, source, .. } = *wanted;
    let mut turn = pin!(transfers.limiter.enter(source, size));
    tokio::select! {
        biased;
        permit = &mut turn => return permit,
        () = ready(()) => transfers.events.send(Event::FetchQueued { fetch }),
    }
    let permit = turn.await;
    transfers.events.send(Event::FetchStarted { fetch });
    permit
}

/// Receives a large copy on as many connections as prove useful.
async fn on_several<P: PayloadPath>(copy: &Arc<Copy<P>>) -> Result<End, LinkError> {
    let (mut connections, mut running) = (JoinSet::new(), BTreeSet::new());
    let mut observing = interval(Duration::from_nanos(OBSERVED_NS));
    observing.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            Some(ended) = connections.join_next() => {
                let ended: Option<(u16, Result<End, LinkError>)> = ended.ok().flatten();
                let (number, end) = ended.ok_or(LinkError::Failed)?;
                let end = end?;
                if !matches!(end, End::Complete) {
                    return Ok(end);
                }
                running.remove(&number);
            }
            _ = observing.tick() => for number in 0..copy.observe() {
                if running.insert(number) {
                    let receiving = connection(copy.clone(), number);
                    let numbered = async move { (number, receiving.await) };
                    connections.spawn(copy.transfers.tasks.watch(Task::Receive, numbered));
                }
            }
        }
        if running.is_empty() && lock(&copy.state).unrequested.is_empty() {
            return Ok(End::Complete);
        }
    }
}

/// Receives requests of a copy on a connection until there are none for it.
async fn connection<P: PayloadPath>(copy: Arc<Copy<P>>, number: u16) -> Result<End, LinkError> {
    let Some(mut part) = copy.next_part(number) else { return Ok(End::Complete) };
    let (transfers, source) = (&copy.transfers, copy.wanted.source);
    let mut credit = CreditWindow::new(transfers.events.now(), transfers.link.link().latency_ns);
    let fetch = copy.fetch(&part, credit.window());
    let beginning = Receiving::begin(transfers, &*copy.path, source, &fetch);
    let mut receiving = if number == 0 {
        beginning.await?
    } else if let Ok(Ok(begun)) = timeout(OPEN_TIMEOUT, beginning).await {
        begun
    } else {
        debug!(%source, number, "no further connection for a large object");
        copy.not_opened(number, part.ranges);
        return Ok(End::Complete);
    };
    let _open = Open::new(&copy.state);
    loop {
        let (next, granted) = (copy.next_part(number), credit.window());
        let ahead = match &next {
            Some(next) => Some(receiving.request_next(&copy.fetch(next, granted)).await?),
            None => None,
        };
        let end = copy.arrive(&mut receiving, &mut credit, part.ranges).await?;
        if !matches!(end, End::Complete) {
            if !copy.in_segments {
                receiving.keep();
            }
            return Ok(end);
        }
        let Some((next, transfer)) = next.zip(ahead) else {
            receiving.keep();
            return Ok(end);
        };
        receiving.follow(transfer);
        credit.follow(granted);
        part = next;
    }
}

/// A connection in use, counted until it is dropped.
struct Open<'a>(&'a Mutex<State>);

impl<'a> Open<'a> {
    fn new(state: &'a Mutex<State>) -> Self {
        lock(state).open += 1;
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        lock(self.0).open -= 1;
    }
}

impl<P: PayloadPath> Copy<P> {
    /// Takes the bytes of a request, if this connection is still to be used.
    fn next_part(&self, number: u16) -> Option<Part> {
        let mut state = lock(&self.state);
        if number >= state.count.count() || state.unrequested.is_empty() {
            return None;
        }
        if !self.in_segments {
            return Some(Part { ranges: take(&mut state.unrequested).into(), more: false });
        }
        let (mut ranges, mut bytes, segment) = (Vec::new(), 0, state.count.segment_bytes());
        while bytes < segment
            && let Some(range) = state.unrequested.pop_front()
        {
            let end = ((range.start / segment + 1) * segment).min(range.end);
            if end < range.end {
                state.unrequested.push_front(end..range.end);
            }
            bytes += end - range.start;
            ranges.push(range.start..end);
        }
        Some(Part { ranges, more: !state.unrequested.is_empty() })
    }

    /// Leaves the bytes of a request to the other connections: this one could not be opened.
    fn not_opened(&self, number: u16, ranges: Vec<Range<u64>>) {
        let mut state = lock(&self.state);
        ranges.into_iter().rev().for_each(|range| state.unrequested.push_front(range));
        state.count.limit(number);
    }

    fn fetch(&self, part: &Part, credit: u64) -> Fetch {
        let (id, RangeSource { of, start }) = (self.wanted.id.clone(), self.at);
        let ranges = part.ranges.iter().map(|it| start + it.start..start + it.end).collect();
        let ordered = self.wanted.in_parts;
        let what = FetchTarget::Copy { id, instance: of, ranges, ordered };
        Fetch { what, credit, frame: self.frame as u32, more: part.more }
    }

    /// Observes the transfer, and returns the number of connections to use.
    fn observe(&self) -> u16 {
        let mut state = lock(&self.state);
        let State { count, open, growth, was_shared, .. } = &mut *state;
        let is_steady = !take(was_shared) && *open == count.count();
        let now = self.transfers.events.now();
        count.observe(now, growth.received, growth.missing, is_steady);
        if let Some(proved) = count.proved() {
            self.transfers.link.record_proved(proved);
        }
        if state.unrequested.is_empty() { 0 } else { state.count.count() }
    }

    /// Receives the bytes of one request. Returns the end that the source reports.
    async fn arrive(
        &self,
        receiving: &mut Receiving<P::Incoming>,
        credit: &mut CreditWindow,
        ranges: Vec<Range<u64>>,
    ) -> Result<End, LinkError> {
        for range in ranges {
            let Some(claim) = self.stored.claim(range.clone()) else {
                let Range { start, end } = range;
                let said = format!("bytes {start} to {end}, which are already written");
                return Err(WireError::Unexpected(said).into());
            };
            if let Some(end) = self.fill(receiving, credit, claim).await? {
                return Ok(end);
            }
        }
        receiving.end().await
    }

    /// Receives the bytes of a claim. Returns the end of the transfer if that comes first.
    async fn fill(
        &self,
        receiving: &mut Receiving<P::Incoming>,
        credit: &mut CreditWindow,
        mut claim: impl Claim,
    ) -> Result<Option<End>, LinkError> {
        let Self { transfers, stored, .. } = self;
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
                receiving.open(header, self.at.start + at + whole, place)?;
                whole += place.len() as u64;
                Ok::<(), WireError>(())
            });
            if self.wanted.range.is_none() {
                // A range is not sent to others.
                stored.remember_sums(at, whole, &headers);
            }
            // Keep the valid frames, even if a later one is corrupt.
            claim.commit(whole)?;
            opened?;
            transfers.counters.bytes_received.add(whole);
            receiving.timeout.moved(whole);
            // Count before yielding to other tasks: meanwhile more bytes would arrive than the link
            // carries in the counted time.
            self.moved(whole, &headers);
            self.permit.iter().for_each(Permit::moved);
            stored.yield_to_followers().await;
            if let Some(granted) = credit.received(transfers.events.now(), whole) {
                receiving.incoming.grant(granted).await?;
            }
        }
        Ok(None)
    }

    /// Counts received frames.
    fn moved(&self, bytes: u64, frames: &[Header]) {
        let mut state = lock(&self.state);
        let State { open, growth, link_use, was_shared, .. } = &mut *state;
        let shares = link_use.moved(&self.transfers, self.wanted.source, bytes, frames);
        if *open > 1 {
            // Streams of a reduce, and smaller objects, have one connection.
            link_use.restart();
        }
        *was_shared |= shares > 1;
        self.stored.came_beside(shares);
        let due = growth.step(self.wanted.fetch, bytes, shares);
        // The state machine may run on this thread, and the other connections must not wait for it.
        drop(state);
        due.into_iter().for_each(|event| self.transfers.events.send(event));
    }
}

/// The missing bytes of a range.
fn within(missing: &Ranges, range: &Range<u64>) -> Vec<Range<u64>> {
    missing.intersect(&once(range.clone()).collect()).iter().collect()
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

    /// Counts received bytes. Returns the report that is due.
    fn step(&mut self, fetch: FetchId, bytes: u64, shares: u16) -> Option<Event> {
        self.shares = self.shares.max(shares);
        self.received += bytes;
        self.missing = self.missing.saturating_sub(bytes);
        let is_due = |told: Instant| told.elapsed() >= Duration::from_nanos(FETCH_PROGRESS_NS);
        if self.missing == 0 || !self.told.is_none_or(is_due) {
            return None;
        }
        self.told = Some(Instant::now());
        let (received, missing, shares) = (self.received, self.missing, take(&mut self.shares));
        Some(Event::FetchProgress { fetch, received, missing, shares })
    }
}
