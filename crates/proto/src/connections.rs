//! Number of connections on which one large object arrives from one source.
//!
//! Many networks limit each connection to a part of the link; clouds, for example, to 5 or 10 of
//! 25 or 100 Gbit/s. Only a measurement shows this. A transfer adds one connection at a time, and
//! keeps it if the object then arrives faster. Otherwise the link is full, or the source has no more
//! to send: the connection is given up, and the next trial comes later, with one less. While other
//! transfers share the link, or this host is too busy, nothing is measured.
//!
//! Counts bytes and times of one transfer. It does not know its connections or its source.

use crate::time::Instant;

/// Maximum number of connections of a transfer: enough for 40 Gbit/s at 5 Gbit/s each.
pub const CONNECTIONS_MAX: u16 = 8;

/// Minimum size of a transfer with several connections, 64 MiB. It takes 50 ms at 10 Gbit/s; a
/// smaller transfer ends before a second connection is measured.
pub const PARALLEL_BYTES_MIN: u64 = 64 << 20;

/// Bytes that each of several connections requests at a time, a whole number of frames of any size: at
/// first, and at most. A relay waits for the first of them for up to this many bytes of each, and so
/// do all relays behind it.
pub const SEGMENT_BYTES: u64 = 1 << 20;
pub const SEGMENT_BYTES_MAX: u64 = 4 << 20;
const SEGMENT_BYTES_MIN: u64 = 512 << 10;

/// Time that a segment takes at the rate of the transfer, plus a round trip, in which the next
/// request arrives.
const SEGMENT_NS: u64 = 8_000_000;

/// Interval of [`ConnectionCount::observe`].
pub const OBSERVED_NS: u64 = 10_000_000;

/// Maximum time between two observations of a measurement. On a host that is too busy to be in time,
/// bytes arrive in bursts, and the rate depends on when the measurement ends.
const LATE_NS: u64 = 25_000_000;

/// Time after a change in which the congestion control of the new connection finds its rate: this,
/// and as many round trips as credit and congestion window need to grow.
const SETTLES_NS: u64 = 20_000_000;
const ROUND_TRIPS: u64 = 10;

/// Duration of a measurement: longer than a process waits for its time slice on a busy host.
const MEASURED_NS: u64 = 40_000_000;

/// Percentage of the best rate before from which an added connection is kept. The last connection of
/// a link adds little: the eighth of 40 Gbit/s, if each has 5, 14 %.
const KEPT_PERCENT: u128 = 110;

/// Time that the missing bytes must take at the present rate for a trial, which costs half of that.
const WORTH_NS: u128 = 120_000_000;

/// Time from a trial that failed to the next one. It grows by this factor each time, up to a minute.
const PAUSE_NS: u64 = 200_000_000;
const PAUSE_FACTOR: u64 = 4;
const PAUSE_NS_MAX: u64 = 60_000_000_000;

/// What transfers have found out about the link, for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proved {
    /// The connections that were useful.
    pub connections: u16,
    /// When another number may be tried, and the pause after it.
    next_trial: Instant,
    pause_ns: u64,
}

impl Proved {
    /// These connections, of which nothing was tried yet.
    pub const fn new(connections: u16) -> Self {
        Self { connections, next_trial: Instant(0), pause_ns: PAUSE_NS }
    }
}

/// The number of connections of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCount {
    count: u16,
    most: u16,
    /// The connections that proved useful, and their best rate in bytes per second. The best,
    /// because a relay whose own source paused has more to send for a moment, as if a connection
    /// helped.
    kept: (u16, u128),
    latency_ns: u64,
    settles_ns: u64,
    /// Start of the measurement, which may be in the future, and the bytes received until then.
    since: (Instant, Option<u64>),
    observed_at: Instant,
    next_trial: Instant,
    pause_ns: u64,
    /// Whether the next trial is with one connection less: a host that was busy for a moment may
    /// have had too many.
    tries_less: bool,
    /// Whether the number was compared with another one, or no more could be opened.
    is_proved: bool,
}

impl ConnectionCount {
    /// A transfer that begins now over a link with this one-way latency.
    pub fn new(now: Instant, latency_ns: u64, proved: Proved) -> Self {
        let count = proved.connections.clamp(1, CONNECTIONS_MAX);
        let settles_ns = SETTLES_NS.saturating_add(latency_ns.saturating_mul(2 * ROUND_TRIPS));
        Self {
            count,
            most: CONNECTIONS_MAX,
            kept: (count, 0),
            latency_ns,
            settles_ns,
            since: (now + settles_ns, None),
            observed_at: now,
            next_trial: proved.next_trial,
            pause_ns: proved.pause_ns,
            tries_less: count > 1,
            is_proved: false,
        }
    }

    /// The connections to use.
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Bytes of the next request. One connection keeps the order whatever it requests, and what is
    /// in flight bridges pauses of this host.
    pub fn segment_bytes(&self) -> u64 {
        if self.count == 1 {
            return SEGMENT_BYTES_MAX;
        }
        let ns = SEGMENT_NS.saturating_add(self.latency_ns.saturating_mul(2));
        let each = self.kept.1 / u128::from(self.kept.0);
        let bytes = u64::try_from(each * u128::from(ns) / 1_000_000_000).unwrap_or(u64::MAX);
        match self.kept.1 {
            0 => SEGMENT_BYTES,
            _ => 1 << bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).ilog2(),
        }
    }

    /// What was found out, once another number was tried.
    pub fn proved(&self) -> Option<Proved> {
        let Self { kept: (connections, _), next_trial, pause_ns, .. } = *self;
        self.is_proved.then_some(Proved { connections, next_trial, pause_ns })
    }

    /// Records that only this many connections can be opened.
    pub fn limit(&mut self, most: u16) {
        self.most = self.most.min(most.max(1));
        self.count = self.count.min(self.most);
        self.kept.0 = self.kept.0.min(self.most);
        self.is_proved = true;
    }

    /// Records how many bytes have arrived on all connections, and how many are missing.
    /// `is_steady`: all connections to use are in use, no others, and no other transfer shares the
    /// link.
    pub fn observe(&mut self, now: Instant, received: u64, missing: u64, is_steady: bool) {
        let is_late = now.since(core::mem::replace(&mut self.observed_at, now)) > LATE_NS;
        if !is_steady || is_late {
            // The connection on trial remains until it can be measured.
            self.since = (now + self.settles_ns, None);
            return;
        }
        if now < self.since.0 {
            return;
        }
        let Some(before) = self.since.1 else {
            self.since = (now, Some(received));
            return;
        };
        let taken_ns = now.since(self.since.0);
        if taken_ns < MEASURED_NS {
            return;
        }
        if received == before {
            self.since = (now, Some(received));
            return;
        }
        let rate = u128::from(received - before) * 1_000_000_000 / u128::from(taken_ns);
        self.measured(now, rate);
        let takes_ns = u128::from(missing) * 1_000_000_000 / rate.max(1);
        if self.count == self.kept.0 && now >= self.next_trial && takes_ns >= WORTH_NS {
            let tries_less = self.tries_less || self.count == self.most;
            match tries_less && self.count > 1 {
                true => self.count -= 1,
                false => self.count = (self.count + 1).min(self.most),
            }
        }
        self.since = (now + self.settles_ns, None);
    }

    fn measured(&mut self, now: Instant, rate: u128) {
        let (connections, before) = self.kept;
        if self.count == connections {
            self.kept.1 = before.max(rate);
            return;
        }
        let is_better = match self.count < connections {
            true => rate * KEPT_PERCENT >= before * 100,
            false => rate * 100 >= before * KEPT_PERCENT,
        };
        self.is_proved = true;
        if is_better {
            self.kept = (self.count, rate);
            return;
        }
        self.count = connections;
        self.tries_less = !self.tries_less;
        self.next_trial = now + self.pause_ns;
        self.pause_ns = (self.pause_ns * PAUSE_FACTOR).min(PAUSE_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const GBIT: u64 = 125_000_000;

    fn proved(count: &ConnectionCount) -> Option<u16> {
        count.proved().map(|it| it.connections)
    }

    /// A transfer of `size` bytes over a link with a limit for each connection, at its end, and its
    /// largest number of connections.
    fn transfer(kept: u16, link: u64, each: u64, size: u64) -> (ConnectionCount, u16) {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(kept));
        let (mut now, mut received, mut most) = (0, 0, 0);
        while received < size {
            now += OBSERVED_NS;
            let rate = link.min(each * u64::from(count.count()));
            received = (received + rate / (1_000_000_000 / OBSERVED_NS)).min(size);
            count.observe(Instant(now), received, size - received, true);
            most = most.max(count.count());
        }
        (count, most)
    }

    #[test]
    fn as_many_connections_as_fill_the_link() {
        let of = |link, each| proved(&transfer(1, link * GBIT, each * GBIT, 4 << 30).0);
        let all = [of(25, 10), of(25, 5), of(10, 10), of(20, 10), of(100, 5)];
        assert_eq!(all, [3, 5, 1, 2, 8].map(Some));
    }

    #[test]
    fn a_connection_that_adds_nothing_is_tried_less_and_less_often() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(1));
        let mut trials = 0;
        for step in 1..1000 {
            let before = count.count();
            count.observe(Instant(step * OBSERVED_NS), step << 20, 1 << 40, true);
            trials += u16::from(count.count() > before);
        }
        assert_eq!((proved(&count), trials), (Some(1), 4), "of 10 s");
    }

    #[test]
    fn later_transfers_continue_the_pauses_of_earlier_ones() {
        let (mut proved, mut trials) = (Proved::new(1), vec![]);
        for transfer in 0..4 {
            let start = Instant(transfer * 5_000_000_000);
            let mut count = ConnectionCount::new(start, 0, proved);
            trials.push(0);
            for step in 1..500 {
                let before = count.count();
                count.observe(start + step * OBSERVED_NS, step << 19, 1 << 28, true);
                trials[transfer as usize] += u16::from(count.count() > before);
            }
            proved = count.proved().unwrap_or(proved);
        }
        assert_eq!((proved.connections, trials), (1, vec![4, 0, 0, 1]));
    }

    /// A relay sends what has arrived at once after each pause of its source.
    #[test]
    fn a_source_that_pauses_adds_no_connection() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(1));
        let (mut received, mut arrived) = (0, 0);
        for step in 1..3000 {
            arrived += if step % 70 < 14 { 0 } else { 640 << 10 };
            received = arrived.min(received + (1 << 20));
            count.observe(Instant(step * OBSERVED_NS), received, 1 << 40, true);
        }
        assert_eq!(proved(&count), Some(1));
    }

    #[test]
    fn segments_of_several_connections_take_as_long_on_any_link() {
        // The largest of a transfer with a limit for each connection, from the second one on.
        let of = |each: u64, latency_ns| {
            let mut count = ConnectionCount::new(Instant(0), latency_ns, Proved::new(1));
            assert_eq!(count.segment_bytes(), SEGMENT_BYTES_MAX);
            let (mut received, mut most) = (0, 0);
            for step in 1..200 {
                received += each * u64::from(count.count()) / (1_000_000_000 / OBSERVED_NS);
                count.observe(Instant(step * OBSERVED_NS), received, 1 << 40, true);
                most = most.max(if count.count() > 1 { count.segment_bytes() } else { 0 });
            }
            most >> 10
        };
        assert_eq!(
            [GBIT / 2, GBIT, 2 * GBIT, 10 * GBIT].map(|it| of(it, 0)),
            [512, 512, 1024, 4096]
        );
        assert_eq!(of(GBIT, 10_000_000), 2048, "with a round trip of 20 ms");
        assert_eq!(
            ConnectionCount::new(Instant(0), 0, Proved::new(2)).segment_bytes(),
            SEGMENT_BYTES
        );
    }

    #[test]
    fn a_short_transfer_is_not_worth_a_trial() {
        assert_eq!(transfer(1, 10 * GBIT, 5 * GBIT, PARALLEL_BYTES_MIN).1, 1);
        // A later transfer begins with the connections of an earlier one.
        assert_eq!(transfer(2, 10 * GBIT, 5 * GBIT, PARALLEL_BYTES_MIN).1, 2);
    }

    #[test]
    fn nothing_is_measured_while_others_share_the_link() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(1));
        for step in 1..100 {
            count.observe(Instant(step * OBSERVED_NS), step << 24, 1 << 40, step % 4 > 0);
            assert_eq!(count.count(), 1);
        }
    }

    #[test]
    fn nothing_is_measured_on_a_host_that_pauses() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(1));
        let (mut now, mut received) = (0, 0);
        for step in 0..1000 {
            // It runs for 10 of 40 ms, and finds what has arrived meanwhile.
            now += if step % 2 == 0 { 3 * OBSERVED_NS } else { OBSERVED_NS };
            received += if step % 2 == 0 { 4 << 20 } else { 1 << 20 };
            count.observe(Instant(now), received, 1 << 40, true);
            assert_eq!(count.count(), 1);
        }
    }

    #[test]
    fn a_stalled_transfer_adds_no_connection() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(2));
        for step in 1..100 {
            count.observe(Instant(step * OBSERVED_NS), 0, 1 << 30, true);
        }
        assert_eq!((proved(&count), count.count()), (None, 2));
    }

    #[test]
    fn superfluous_connections_are_given_up() {
        let of = |kept| proved(&transfer(kept, 10 * GBIT, 10 * GBIT, 64 << 30).0);
        assert_eq!([2, 3, 8].map(of), [Some(1); 3]);
        // Of five, four are not enough.
        assert_eq!(proved(&transfer(5, 10 * GBIT, 2 * GBIT, 64 << 30).0), Some(5));
    }

    #[test]
    fn no_more_connections_than_can_be_opened() {
        let mut count = ConnectionCount::new(Instant(0), 0, Proved::new(4));
        count.limit(2);
        for step in 1..1000 {
            count.observe(Instant(step * OBSERVED_NS), step << 24, 1 << 40, true);
            assert!(count.count() <= 2);
        }
    }
}
