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

/// Bytes that a connection requests at a time, 4 MiB: a whole number of frames of any size, and few
/// enough that relays get the object nearly in order.
pub const SEGMENT_BYTES: u64 = 4 << 20;

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

/// Percentage of the rate before from which an added connection is kept. The last connection of a
/// link may add little: the third of 21 Gbit/s, if each has 10, adds 5 %.
const KEPT_PERCENT: u128 = 105;

/// Time that the missing bytes must take at the present rate for a trial, which costs half of that.
const WORTH_NS: u128 = 120_000_000;

/// Time from a trial that failed to the next one. It grows by this factor each time.
const PAUSE_NS: u64 = 200_000_000;
const PAUSE_FACTOR: u64 = 4;

/// The number of connections of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionCount {
    count: u16,
    most: u16,
    /// The connections that proved useful, and their rate in bytes per second.
    kept: (u16, u128),
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
    /// A transfer that begins now over a link with this one-way latency, with as many connections
    /// as an earlier one kept.
    pub fn new(now: Instant, latency_ns: u64, kept: u16) -> Self {
        let count = kept.clamp(1, CONNECTIONS_MAX);
        let settles_ns = SETTLES_NS.saturating_add(latency_ns.saturating_mul(2 * ROUND_TRIPS));
        Self {
            count,
            most: CONNECTIONS_MAX,
            kept: (count, 0),
            settles_ns,
            since: (now + settles_ns, None),
            observed_at: now,
            next_trial: now,
            pause_ns: PAUSE_NS,
            tries_less: count > 1,
            is_proved: false,
        }
    }

    /// The connections to use.
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// The connections that proved useful, once another number was tried.
    pub fn proved(&self) -> Option<u16> {
        self.is_proved.then_some(self.kept.0)
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
        let is_better = match self.count < connections {
            true => rate * KEPT_PERCENT >= before * 100,
            false => rate * 100 >= before * KEPT_PERCENT,
        };
        self.is_proved |= self.count != connections;
        if self.count == connections || is_better {
            self.kept = (self.count, rate);
            return;
        }
        self.count = connections;
        self.tries_less = !self.tries_less;
        self.next_trial = now + self.pause_ns;
        self.pause_ns *= PAUSE_FACTOR;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: u64 = 125_000_000;

    /// A transfer of `size` bytes over a link with a limit for each connection, at its end, and its
    /// largest number of connections.
    fn transfer(kept: u16, link: u64, each: u64, size: u64) -> (ConnectionCount, u16) {
        let mut count = ConnectionCount::new(Instant(0), 0, kept);
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
        let of = |link, each| transfer(1, link * GBIT, each * GBIT, 4 << 30).0.proved();
        let all = [of(25, 10), of(25, 5), of(10, 10), of(20, 10), of(100, 5)];
        assert_eq!(all, [3, 5, 1, 2, 8].map(Some));
    }

    #[test]
    fn a_connection_that_adds_nothing_is_tried_less_and_less_often() {
        let mut count = ConnectionCount::new(Instant(0), 0, 1);
        let mut trials = 0;
        for step in 1..1000 {
            let before = count.count();
            count.observe(Instant(step * OBSERVED_NS), step << 20, 1 << 40, true);
            trials += u16::from(count.count() > before);
        }
        assert_eq!((count.proved(), trials), (Some(1), 4), "of 10 s");
    }

    #[test]
    fn a_short_transfer_is_not_worth_a_trial() {
        assert_eq!(transfer(1, 10 * GBIT, 5 * GBIT, PARALLEL_BYTES_MIN).1, 1);
        // A later transfer begins with the connections of an earlier one.
        assert_eq!(transfer(2, 10 * GBIT, 5 * GBIT, PARALLEL_BYTES_MIN).1, 2);
    }

    #[test]
    fn nothing_is_measured_while_others_share_the_link() {
        let mut count = ConnectionCount::new(Instant(0), 0, 1);
        for step in 1..100 {
            count.observe(Instant(step * OBSERVED_NS), step << 24, 1 << 40, step % 4 > 0);
            assert_eq!(count.count(), 1);
        }
    }

    #[test]
    fn nothing_is_measured_on_a_host_that_pauses() {
        let mut count = ConnectionCount::new(Instant(0), 0, 1);
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
        let mut count = ConnectionCount::new(Instant(0), 0, 2);
        for step in 1..100 {
            count.observe(Instant(step * OBSERVED_NS), 0, 1 << 30, true);
        }
        assert_eq!((count.proved(), count.count()), (None, 2));
    }

    #[test]
    fn superfluous_connections_are_given_up() {
        let of = |kept| transfer(kept, 10 * GBIT, 10 * GBIT, 64 << 30).0.proved();
        assert_eq!([2, 3, 8].map(of), [Some(1); 3]);
        // Of five, four are not enough.
        assert_eq!(transfer(5, 10 * GBIT, 2 * GBIT, 64 << 30).0.proved(), Some(5));
    }

    #[test]
    fn no_more_connections_than_can_be_opened() {
        let mut count = ConnectionCount::new(Instant(0), 0, 4);
        count.limit(2);
        for step in 1..1000 {
            count.observe(Instant(step * OBSERVED_NS), step << 24, 1 << 40, true);
            assert!(count.count() <= 2);
        }
    }
}
