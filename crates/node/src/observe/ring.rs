//! The ring of recent events.

use std::collections::VecDeque;

use hoplite_proto::time::Instant;

use super::{events::What, json::Json};

/// Events kept: those of several minutes on a busy node. Each takes 90 bytes.
pub(super) const EVENTS_MAX: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };

/// The most recent events, each with a serial number.
#[derive(Debug, Default)]
pub(super) struct Events {
    kept: VecDeque<(Instant, What)>,
    /// The number that the next event gets.
    next: u64,
}

impl Events {
    pub(super) fn push(&mut self, at: Instant, what: What) {
        if self.kept.len() >= EVENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((at, what));
        self.next += 1;
    }

    /// The number of the oldest event.
    pub(super) fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// Writes events from number `after` on, oldest first, until there are `limit` or the text has `bytes`.
    pub(super) fn write(
        &self,
        json: &mut Json,
        after: u64,
        limit: usize,
        bytes: usize,
        unix: impl Fn(Instant) -> f64,
    ) {
        let (first, full) = (self.first(), json.len() + bytes);
        let skip = after.saturating_sub(first).min(self.kept.len() as u64);
        let asked = self.kept.range(skip as usize..).take(limit);
        for (serial, (at, what)) in (first + skip..).zip(asked) {
            if json.len() >= full {
                return;
            }
            json.object(|json| {
                json.number("serial", serial);
                json.time("time", unix(*at));
                what.write(json);
            });
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> impl Iterator<Item = &What> {
        self.kept.iter().map(|(_, what)| what)
    }
}
