//! The ring of recent events.

use std::collections::VecDeque;

use hoplite_proto::time::Instant;

use super::events::What;

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

    /// The events from number `after` on, oldest first, each with its number.
    pub(super) fn since(&self, after: u64) -> impl Iterator<Item = (u64, &(Instant, What))> {
        let first = self.first();
        let skip = after.saturating_sub(first).min(self.kept.len() as u64);
        (first + skip..).zip(self.kept.range(skip as usize..))
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> impl Iterator<Item = &What> {
        self.kept.iter().map(|(_, what)| what)
    }
}
