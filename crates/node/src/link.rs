//! Measures the link to other nodes from transfers and handshakes.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use hoplite_proto::{
    connections::Proved, limits::INLINE_BYTES_MAX, link::LinkEstimate, node::Event,
    reduce::cost::Link,
};

use crate::{engine::event_sender::EventSender, sync::lock};

/// The measured link of a node.
#[derive(Debug)]
pub(crate) struct LinkMeter {
    events: EventSender,
    estimate: Mutex<LinkEstimate>,
    connections: Mutex<Proved>,
}

impl LinkMeter {
    /// Starts with `assumed`, until something is measured.
    pub(crate) fn new(events: EventSender, assumed: Link) -> Self {
        let estimate = Mutex::new(LinkEstimate::new(assumed));
        Self { events, estimate, connections: Mutex::new(Proved::new(1)) }
    }

    /// The present estimate of latency and bandwidth.
    pub(crate) fn link(&self) -> Link {
        lock(&self.estimate).link()
    }

    /// The connections on which a large object begins to arrive.
    pub(crate) fn proved(&self) -> Proved {
        *lock(&self.connections)
    }

    /// Records what the last large object has shown.
    pub(crate) fn record_proved(&self, proved: Proved) {
        *lock(&self.connections) = proved;
    }

    /// Records a round trip to another node.
    pub(crate) fn round_trip(&self, round_trip: Duration) {
        let nanoseconds = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.measured(|estimate| estimate.round_trip(nanoseconds));
    }

    fn measured(&self, update: impl FnOnce(&mut LinkEstimate)) {
        let (link, has_bandwidth) = {
            let mut estimate = lock(&self.estimate);
            update(&mut estimate);
            (estimate.link(), estimate.has_bandwidth())
        };
        self.events.send(Event::LinkMeasured { link, has_bandwidth });
    }
}

/// The rate of a transfer: the fastest run of a window, or all of a shorter transfer.
///
/// The fastest run, because a sender that waits for its own copy does not show the rate of the
/// link. A whole window, because fewer bytes may have waited in the kernel and arrive at memory
/// speed. For the same reason a short transfer counts from its request on.
#[derive(Debug)]
pub(crate) struct Throughput {
    /// Bytes of a run, at least those that may be in flight.
    run: u64,
    since: Instant,
    bytes: u64,
    /// Whether the transfer used several connections for a while.
    is_cut: bool,
    /// Whether other transfers shared the link: then the link is faster than this rate.
    was_shared: bool,
    /// Time from the request to the first bytes.
    first: Option<Duration>,
    best: Option<(u64, Duration)>,
}

/// Minimum sample: the smallest streamed object. For less, request and reply take longer than the
/// bytes.
const SAMPLE_BYTES_MIN: u64 = INLINE_BYTES_MAX;

/// Minimum of a steady sample. For less, the request's path and the scheduler take much of the
/// time.
const STEADY_BYTES_MIN: u64 = 1024 * 1024;

impl Throughput {
    /// A transfer that is requested now, with at most `in_flight` bytes on the way.
    pub(crate) fn new(in_flight: u64) -> Self {
        let (since, first, best) = (Instant::now(), None, None);
        let (is_cut, was_shared) = (false, false);
        Self { run: in_flight, since, bytes: 0, is_cut, was_shared, first, best }
    }

    /// Counts received bytes, which shared the link with `shares - 1` other transfers.
    pub(crate) fn step(&mut self, bytes: u64, shares: u16) {
        self.was_shared |= shares > 1;
        self.bytes += bytes;
        self.first.get_or_insert_with(|| self.since.elapsed());
        if self.bytes >= self.run {
            let run = (self.bytes, self.since.elapsed());
            let is_faster = |best: (u64, Duration)| {
                u128::from(run.0) * best.1.as_nanos() > u128::from(best.0) * run.1.as_nanos()
            };
            if self.best.is_none_or(is_faster) {
                self.best = Some(run);
            }
            self.begin_run();
        }
    }

    /// Begins another run, which alone is no sample: its first bytes may have waited in the kernel.
    pub(crate) fn restart(&mut self) {
        self.is_cut = true;
        self.begin_run();
    }

    fn begin_run(&mut self) {
        self.bytes = 0;
        self.since = Instant::now();
    }

    /// Reports the rate. `may_wait`: the sender had to compute the bytes first. If that took most
    /// of the time, there is no sample.
    pub(crate) fn report(&self, link: &LinkMeter, may_wait: bool) {
        let time = self.since.elapsed();
        let has_waited = may_wait && self.first.is_none_or(|first| first > time / 2);
        let says_something = self.bytes >= SAMPLE_BYTES_MIN && !has_waited && !self.is_cut;
        let whole = says_something.then_some((self.bytes, time));
        if let Some((bytes, time)) = self.best.or(whole) {
            let is_steady = !may_wait && !self.was_shared && bytes >= STEADY_BYTES_MIN;
            let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            link.measured(|estimate| estimate.transfer(bytes, nanoseconds, is_steady));
        }
    }
}
