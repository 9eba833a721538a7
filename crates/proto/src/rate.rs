//! Rate of one transfer, and when to report it to the owner of the object.
//!
//! Counts bytes and times of one transfer. It does not depend on the source, or on the owner's
//! reaction to a report.
//!
//! A receiver reports the rate since the first bytes after 30 ms, and then each time the transfer
//! has taken twice as long. Short transfers therefore cost no message, long ones a few. If a
//! transfer is slow, or its usual rate is unknown, the receiver first reports every 20 ms, so that
//! its own receivers soon get another source. When nothing arrives for 300 ms, it reports that the
//! transfer is stalled.
//!
//! A low rate is evidence against a host only if the transfer has the link to itself. Frames carry
//! the number of transfers that share the busiest link on their path. A report therefore contains
//! the fair rate: an upper bound of the rate without the other transfers.

use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// Time of the first report: shorter transfers end before another source could begin.
pub const FIRST_REPORT_NS: u64 = 30_000_000;

/// Minimum time between the first bytes and a report. Busy hosts begin late, and this delay is
/// unrelated to the rate.
const LEAST_NS: u64 = 20_000_000;

/// Time without a byte after which a transfer counts as stalled: 300 ms.
///
/// It is longer than a process waits for its time slice on a busy host, and a tenth of the time to
/// detect a dead host.
pub const STALL_NS: u64 = 300_000_000;

/// Time in which the primary owner must reply to a stall report. After that the backup owner gets
/// it, since the primary owner may itself be the stalled source.
pub const STALL_ANSWER_NS: u64 = 120_000_000;

/// Maximum interval of reports of a slow transfer: 200 ms, and 20 ms while it is younger than that.
const SLOW_REPORT_NS_MAX: u64 = 200_000_000;
const EARLY_REPORT_NS: u64 = 20_000_000;

/// Factor below the usual rate from which a transfer counts as slow.
pub const SLOW_TIMES: u64 = 3;

/// How long a slow node is remembered, and reports this itself: one minute. After that it may be a
/// source again.
pub const REMEMBERED_NS: u64 = 60_000_000_000;

/// Maximum interval of reports of a running or stalled transfer.
const REPORT_NS_MAX: u64 = 2_000_000_000;

/// Maximum number of transfers by which a report scales its rate, so that a source can't excuse any
/// slowness.
const SHARES_MAX: u16 = 64;

/// Rate of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Zero for a stalled transfer.
    pub bytes_per_second: u64,
    /// Largest number of transfers that shared the busier end of the link, including this one.
    pub shares: u16,
}

impl Rate {
    /// A transfer that makes no progress.
    pub const STALLED: Self = Self { bytes_per_second: 0, shares: 1 };

    /// Estimated rate in bytes per second if the transfer had the link to itself.
    pub fn fair(self) -> u64 {
        self.bytes_per_second.saturating_mul(self.shares.clamp(1, SHARES_MAX).into())
    }
}

/// Measures one transfer from one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateMeter {
    /// When the first bytes arrived; before that, when the transfer began.
    since: Instant,
    /// Bytes received from this source.
    received: u64,
    grew_at: Instant,
    /// Time of the last report, and the bytes received until then.
    reported: (Instant, u64),
    /// Largest number of transfers that shared the link since then.
    shares: u16,
    next_report: Instant,
    /// When the transfer counts as stalled, or is reported again.
    stalls_at: Instant,
    /// When the backup owner gets the report, unless the primary owner has replied.
    backup_at: Option<Instant>,
}

/// A report that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallReport {
    /// Report to the primary owner that nothing arrives.
    ToPrimary,
    /// The primary owner has not replied: report to the backup owner.
    ToBackup,
}

impl RateMeter {
    /// A transfer that begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            received: 0,
            grew_at: now,
            reported: (now, 0),
            shares: 1,
            next_report: now + FIRST_REPORT_NS,
            stalls_at: now + STALL_NS,
            backup_at: None,
        }
    }

    /// Records that `received` bytes have arrived in total, the last of them while `shares - 1`
    /// other transfers used the link. Returns the rate since the last report if another report is
    /// due. `usual` is the rate of other transfers; much slower ones are reported more often.
    pub fn grew(
        &mut self,
        now: Instant,
        received: u64,
        shares: u16,
        usual: Option<u64>,
    ) -> Option<Rate> {
        self.shares = self.shares.max(shares);
        if received <= self.received {
            return None;
        }
        if self.received == 0 {
            (self.since, self.reported) = (now, (now, received));
            self.next_report = self.next_report.max(now + LEAST_NS);
        }
        (self.received, self.grew_at) = (received, now);
        (self.stalls_at, self.backup_at) = (now + STALL_NS, None);
        if now < self.next_report {
            return None;
        }
        let (then, before) = self.reported;
        self.reported = (now, received);
        // Zero means stalled.
        let bytes_per_second = bytes_per_second(received - before, now.since(then)).max(1);
        let rate = Rate { bytes_per_second, shares: core::mem::replace(&mut self.shares, shares) };
        let is_slow = usual.map(|usual| rate.fair().saturating_mul(SLOW_TIMES) < usual);
        let taken = now.since(self.since);
        let most = match is_slow {
            Some(true) | None if taken < SLOW_REPORT_NS_MAX => EARLY_REPORT_NS,
            Some(true) => SLOW_REPORT_NS_MAX,
            _ => REPORT_NS_MAX,
        };
        self.next_report = now + taken.min(most);
        Some(rate)
    }

    /// When [`RateMeter::expire`] must be called.
    pub fn deadline(&self) -> Instant {
        self.backup_at.map_or(self.stalls_at, |backup_at| backup_at.min(self.stalls_at))
    }

    /// The report that is due because nothing arrived.
    pub fn expire(&mut self, now: Instant) -> Option<StallReport> {
        if self.stalls_at <= now {
            self.stalls_at = now + now.since(self.grew_at).clamp(STALL_NS, REPORT_NS_MAX);
            self.backup_at = Some(now + STALL_ANSWER_NS);
            return Some(StallReport::ToPrimary);
        }
        self.backup_at.take_if(|at| *at <= now).map(|_| StallReport::ToBackup)
    }

    /// An owner has received the stall report.
    pub const fn answered(&mut self) {
        self.backup_at = None;
    }
}

fn bytes_per_second(bytes: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant::default() + ms * MS
    }

    #[test]
    fn reports_come_after_30_ms_and_then_each_time_it_took_twice_as_long() {
        let mut meter = RateMeter::new(at(0));
        let mut reports = alloc::vec::Vec::new();
        for ms in 1..=1000 {
            // 1 MB/s.
            if let Some(rate) = meter.grew(at(ms), ms * 1000, 1, Some(2_000_000)) {
                reports.push((ms, rate.fair()));
            }
        }
        let expected = [30, 59, 117, 233, 465, 929].map(|ms| (ms, 1_000_000));
        assert_eq!(reports, expected);
        assert_eq!(meter.expire(at(1000)), None);
    }

    #[test]
    fn a_slow_transfer_is_reported_every_20_and_then_every_200_ms() {
        let early = [30, 50, 70, 90, 110, 130, 150, 170, 190];
        for (usual, late) in
            [(Some(10_000_000), &[210, 410, 610, 810][..]), (None, &[210, 419, 837])]
        {
            let mut meter = RateMeter::new(at(0));
            let is_due = |ms: &u64| meter.grew(at(*ms), ms * 1000, 1, usual).is_some();
            let due: alloc::vec::Vec<u64> = (1..=1000).filter(is_due).collect();
            assert_eq!(due, [&early[..], late].concat());
        }
    }

    #[test]
    fn a_start_that_a_busy_host_makes_late_does_not_count_as_slow() {
        let mut meter = RateMeter::new(at(0));
        let rates = (40..75).filter_map(|ms| meter.grew(at(ms), (ms - 39) * 1000, 1, None));
        let rates: alloc::vec::Vec<u64> = rates.map(Rate::fair).collect();
        assert_eq!(rates, [1_000_000], "of the 20 ms from the first bytes on");
    }

    #[test]
    fn a_transfer_that_shares_its_link_is_reported_with_its_fair_rate() {
        let mut meter = RateMeter::new(at(0));
        // A third of 3 MB/s, next to two other transfers at first and one later.
        let shares = |ms: u64| if ms < 25 { 3 } else { 2 };
        let reports = (1..=100).filter_map(|ms| {
            let rate = meter.grew(at(ms), ms * 1000, shares(ms), Some(3_000_000))?;
            Some((ms, rate.bytes_per_second, rate.fair()))
        });
        let reports: alloc::vec::Vec<_> = reports.collect();
        assert_eq!(reports, [(30, 1_000_000, 3_000_000), (59, 1_000_000, 2_000_000)]);
    }

    #[test]
    fn a_stall_is_reported_after_300_ms_and_then_ever_less_often() {
        let mut meter = RateMeter::new(at(0));
        meter.grew(at(10), 1, 1, None);
        assert_eq!(meter.deadline(), at(310));
        assert_eq!(meter.expire(at(309)), None);
        assert_eq!(meter.expire(at(310)), Some(StallReport::ToPrimary));
        assert_eq!(
            meter.expire(at(430)),
            Some(StallReport::ToBackup),
            "the owner may be the host that is stalled"
        );
        assert_eq!(meter.expire(at(610)), Some(StallReport::ToPrimary));
        meter.answered();
        assert_eq!(meter.expire(at(730)), None);
        assert_eq!(meter.expire(at(1210)), Some(StallReport::ToPrimary));
        meter.grew(at(1220), 2, 1, None);
        assert_eq!(meter.deadline(), at(1520), "it goes on");
    }
}
