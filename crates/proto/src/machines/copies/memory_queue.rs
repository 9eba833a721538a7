//! Copies that are admitted, but for which the shell has no memory: others are evicted for them, or
//! else they wait.
//!
//! ```text
//! refused -> copies are evicted    -> requested again
//!         -> nothing is evictable   -> waits -> requested again, one by one, when memory was freed
//!                                               and every 250 ms; meanwhile pinned copies are
//!                                               written to disk, and can then be evicted
//! ```
//! The shell may have less memory than the capacity allows: the host or a control group has no
//! more, or the free memory is fragmented. Does not know the reason, nor how much there is.

use alloc::{collections::BTreeMap, string::String};

use crate::{id::Instance, time::Instant};

/// Time between attempts while nothing is freed here: 250 ms. Other processes free memory too.
const RETRY_NS: u64 = 250_000_000;

/// Delay of the next attempt after memory was freed: 2 ms, so that many releases at once cause one
/// attempt.
const FREED_NS: u64 = 2_000_000;

/// How long the shell may take to reply before all are tried again: 10 s, in which it allocates 14
/// GiB.
const ANSWER_NS: u64 = 10_000_000_000;

/// The copies that wait for memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryQueue {
    /// In the order of their first refusals.
    waiting: BTreeMap<u64, Instance>,
    tickets: BTreeMap<Instance, u64>,
    last_ticket: u64,
    /// The ticket whose memory was requested last. Later tickets are next.
    asked: Option<u64>,
    /// Whether memory was freed since the first of them was requested.
    was_freed: bool,
    retry_at: Option<Instant>,
    /// The last reason that the shell reported.
    reason: String,
}

impl MemoryQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Why a copy has no memory, if it waits for some.
    pub(crate) fn reason(&self, instance: Instance) -> Option<&str> {
        self.tickets.contains_key(&instance).then_some(self.reason.as_str())
    }

    /// Records that the shell has no memory for a copy. Returns the next copy to request memory
    /// for.
    pub(crate) fn refused(
        &mut self,
        instance: Instance,
        reason: String,
        now: Instant,
    ) -> Option<Instance> {
        self.reason = reason;
        match self.tickets.get(&instance) {
            Some(ticket) if self.asked == Some(*ticket) => self.next_after(Some(*ticket), now),
            Some(_) => None,
            None => {
                self.last_ticket += 1;
                self.tickets.insert(instance, self.last_ticket);
                self.waiting.insert(self.last_ticket, instance);
                self.retry_at.get_or_insert(now + RETRY_NS);
                None
            }
        }
    }

    /// Removes a copy that has memory or is gone. Returns the next copy to request memory for.
    pub(crate) fn settled(&mut self, instance: Instance, now: Instant) -> Option<Instance> {
        let ticket = self.tickets.remove(&instance)?;
        self.waiting.remove(&ticket);
        if self.waiting.is_empty() {
            (self.asked, self.retry_at) = (None, None);
            return None;
        }
        if self.asked == Some(ticket) { self.next_after(Some(ticket), now) } else { None }
    }

    /// Records that memory is free, or that a copy became evictable.
    pub(crate) fn freed(&mut self, now: Instant) {
        if self.asked.is_some() {
            self.was_freed = true;
        } else if let Some(at) = self.retry_at.as_mut() {
            *at = (*at).min(now + FREED_NS);
        }
    }

    /// The first copy to request memory for, if an attempt is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Instance> {
        if self.retry_at.is_none_or(|at| at > now) {
            return None;
        }
        self.was_freed = false;
        self.next_after(None, now)
    }

    fn next_after(&mut self, ticket: Option<u64>, now: Instant) -> Option<Instance> {
        let from = ticket.map_or(0, |ticket| ticket + 1);
        let next = self.waiting.range(from..).next();
        self.asked = next.map(|(ticket, _)| *ticket);
        let pause = match (next, core::mem::take(&mut self.was_freed)) {
            (Some(_), was_freed) => {
                self.was_freed = was_freed;
                ANSWER_NS
            }
            (None, true) => FREED_NS,
            (None, false) => RETRY_NS,
        };
        self.retry_at = Some(now + pause);
        next.map(|(_, instance)| *instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;

    fn instance(serial: u64) -> Instance {
        Instance { node: NodeId(1), serial }
    }

    const START: Instant = Instant(1000);

    fn with_three() -> MemoryQueue {
        let mut memory_queue = MemoryQueue::default();
        for serial in 1..=3 {
            assert_eq!(memory_queue.refused(instance(serial), "no".into(), START), None);
        }
        memory_queue
    }

    #[test]
    fn copies_are_tried_in_order_and_none_blocks_the_next() {
        let mut memory_queue = with_three();
        assert_eq!(memory_queue.due(START), None);
        let later = START + RETRY_NS;
        assert_eq!(memory_queue.due(later), Some(instance(1)));
        assert_eq!(memory_queue.refused(instance(1), "no".into(), later), Some(instance(2)));
        assert_eq!(memory_queue.settled(instance(2), later), Some(instance(3)));
        assert_eq!(memory_queue.refused(instance(3), "no".into(), later), None);
        assert_eq!((memory_queue.len(), memory_queue.deadline()), (2, Some(later + RETRY_NS)));
        assert_eq!(memory_queue.reason(instance(2)), None);
        assert_eq!(memory_queue.reason(instance(3)), Some("no"));
    }

    #[test]
    fn freed_memory_causes_an_attempt_soon() {
        let mut memory_queue = with_three();
        memory_queue.freed(START);
        let soon = START + FREED_NS;
        assert_eq!(memory_queue.deadline(), Some(soon));
        assert_eq!(memory_queue.due(soon), Some(instance(1)));
        // The same for memory that is freed during an attempt.
        memory_queue.freed(soon);
        assert_eq!(memory_queue.refused(instance(1), "no".into(), soon), Some(instance(2)));
        assert_eq!(memory_queue.refused(instance(2), "no".into(), soon), Some(instance(3)));
        assert_eq!(memory_queue.refused(instance(3), "no".into(), soon), None);
        assert_eq!(memory_queue.deadline(), Some(soon + FREED_NS));
    }

    #[test]
    fn nothing_is_due_while_no_copy_waits() {
        let mut memory_queue = with_three();
        let later = START + RETRY_NS;
        assert_eq!(memory_queue.due(later), Some(instance(1)));
        for (serial, next) in [(1, Some(instance(2))), (3, None), (2, None)] {
            assert_eq!(memory_queue.settled(instance(serial), later), next);
        }
        assert_eq!((memory_queue.len(), memory_queue.deadline()), (0, None));
        memory_queue.freed(later);
        assert_eq!(memory_queue.deadline(), None);
    }

    #[test]
    fn memory_is_requested_again_if_the_shell_does_not_reply() {
        let mut memory_queue = with_three();
        let later = START + RETRY_NS;
        assert_eq!(memory_queue.due(later), Some(instance(1)));
        assert_eq!(memory_queue.due(later + RETRY_NS), None);
        assert_eq!(memory_queue.due(later + ANSWER_NS), Some(instance(1)));
    }
}
