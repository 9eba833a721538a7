//! Counters that the status of a node does not have, and histograms of the time until other nodes
//! replied.

use std::collections::HashMap;

use hoplite_proto::{
    id::{Instance, QuestionId},
    time::Instant,
};
use serde::Serialize;

use super::events::CHOICES;

/// How members changed, by the state of their events.
pub(super) const MEMBERSHIPS: [&str; 7] =
    ["joined", "left", "failed", "reconnected", "suspected", "trusted", "barred"];

/// Counters since the start of the node.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) gets_waited: u64,
    pub(super) serves_direct: u64,
    pub(super) serves_relayed: u64,
    pub(super) fetches_resumed: u64,
    pub(super) reduces: u64,
    pub(super) reduces_ring: u64,
    pub(super) folds: u64,
    pub(super) folds_failed: u64,
    pub(super) spilled_bytes: u64,
    pub(super) unspilled_bytes: u64,
    #[serde(skip)]
    pub(super) choices: [u64; CHOICES.len()],
    #[serde(skip)]
    pub(super) memberships: [u64; MEMBERSHIPS.len()],
}

impl Totals {
    pub(super) fn member(&mut self, state: &str) {
        if let Some(index) = MEMBERSHIPS.iter().position(|name| *name == state) {
            self.memberships[index] += 1;
        }
    }
}

/// The upper bounds of the buckets are powers of two in microseconds, from 16 us to 17 s.
const FIRST: u32 = 4;
const LAST: u32 = 24;
const BUCKETS: usize = (LAST - FIRST + 2) as usize;

/// A request to an owner without a reply. Beyond this number, the oldest are not measured.
const ASKED_MAX: usize = 16_384;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Latency {
    Locate,
    Claim,
    Delete,
    Latest,
    Locations,
    List,
}

const NAMES: [&str; 6] = ["locate", "claim", "delete", "latest", "locations", "list"];

#[derive(Debug, Default)]
struct Histogram {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

/// A request to an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Question {
    Claim(Instance),
    Numbered(QuestionId),
}

/// All histograms, and the requests that are measured now.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    all: [Histogram; NAMES.len()],
    asked: HashMap<Question, (Latency, Instant)>,
}

impl Latencies {
    /// A request was sent. A repetition does not count.
    pub(super) fn asked(&mut self, now: Instant, latency: Latency, question: Question) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.clear();
        }
        self.asked.entry(question).or_insert((latency, now));
    }

    /// The owner replied, or the request was canceled.
    pub(super) fn answered(&mut self, now: Instant, question: &Question, counts: bool) {
        if let Some((latency, since)) = self.asked.remove(question)
            && counts
        {
            self.add(latency, now.since(since));
        }
    }

    pub(super) fn add(&mut self, latency: Latency, ns: u64) {
        let histogram = &mut self.all[latency as usize];
        let bits = u64::BITS - (ns / 1000).leading_zeros();
        let bucket = bits.saturating_sub(FIRST).min(LAST + 1 - FIRST);
        histogram.counts[bucket as usize] += 1;
        histogram.sum_ns = histogram.sum_ns.saturating_add(ns);
    }

    /// The histograms as they are reported, by name.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, impl Serialize)> + Clone {
        #[derive(Serialize)]
        struct Row {
            bounds: Vec<f64>,
            counts: [u64; BUCKETS],
            sum: f64,
        }
        NAMES.into_iter().zip(&self.all).map(|(name, histogram)| {
            let bounds = (FIRST..=LAST).map(|bits| (1u64 << bits) as f64 / 1e6).collect();
            let sum = histogram.sum_ns as f64 / 1e9;
            (name, Row { bounds, counts: histogram.counts, sum })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_in_the_bucket_below_its_bound() {
        let mut latencies = Latencies::default();
        for us in [0, 15, 16, 17, 1 << 24, u64::MAX / 1000] {
            latencies.add(Latency::List, us * 1000);
        }
        let counts = latencies.all[Latency::List as usize].counts;
        assert_eq!((counts[0], counts[1], counts[BUCKETS - 1]), (2, 2, 2));
        assert_eq!(counts.iter().sum::<u64>(), 6);
    }
}
