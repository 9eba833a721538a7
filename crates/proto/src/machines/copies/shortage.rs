//! Copies that have room in the accounts, and for which the shell has no memory: what may go does, then they wait.
//!
//! ```text
//! refused -> copies are evicted -> asked again
//!         -> nothing may go     -> waits -> asked again, one after the other, when memory was freed and every 250 ms
//!                                  originals are written to disk meanwhile, and may go then
//! ```
//! The shell may have less memory than the capacity allows: the host or a control group has no more, or what is free lies
//! in pieces between objects. Does not know which, nor how much there is.

use alloc::{collections::BTreeMap, string::String};

use crate::{id::Instance, time::Instant};

/// How long those that wait are not tried again while nothing is freed here: 250 ms. Other processes free memory too.
const RETRY_NS: u64 = 250_000_000;

/// How long they are not tried again after something was freed: 2 ms, so that what many free at once is one reason.
const FREED_NS: u64 = 2_000_000;

/// How long the shell may take to answer before all are tried again: 10 s, in which it makes 14 GiB.
const ANSWER_NS: u64 = 10_000_000_000;

/// Those that wait for memory.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    /// In the order in which they were first refused.
    waiting: BTreeMap<u64, Instance>,
    tickets: BTreeMap<Instance, u64>,
    last_ticket: u64,
    /// The one that the shell was asked for again. Those after it are next.
    asked: Option<u64>,
    /// Whether memory was freed since the first of them was asked for.
    was_freed: bool,
    retry_at: Option<Instant>,
    /// What the shell said last.
    said: String,
}

impl Shortage {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Why a copy has no memory, if it waits for some.
    pub(crate) fn reason(&self, instance: Instance) -> Option<&str> {
        self.tickets.contains_key(&instance).then_some(self.said.as_str())
    }

    /// The shell has no memory for a copy. The next that it is to be asked for.
    pub(crate) fn refused(
        &mut self,
        instance: Instance,
        said: String,
        now: Instant,
    ) -> Option<Instance> {
        self.said = said;
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

    /// A copy waits no more: it has memory, or is gone. The next that the shell is to be asked for.
    pub(crate) fn settled(&mut self, instance: Instance, now: Instant) -> Option<Instance> {
        let ticket = self.tickets.remove(&instance)?;
        self.waiting.remove(&ticket);
        if self.waiting.is_empty() {
            (self.asked, self.retry_at) = (None, None);
            return None;
        }
        if self.asked == Some(ticket) { self.next_after(Some(ticket), now) } else { None }
    }

    /// Memory is free, or a copy may go.
    pub(crate) fn freed(&mut self, now: Instant) {
        if self.asked.is_some() {
            self.was_freed = true;
        } else if let Some(at) = self.retry_at.as_mut() {
            *at = (*at).min(now + FREED_NS);
        }
    }

    /// The first that the shell is to be asked for, if it is time.
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

    fn with_three() -> Shortage {
        let mut shortage = Shortage::default();
        for serial in 1..=3 {
            assert_eq!(shortage.refused(instance(serial), "no".into(), START), None);
        }
        shortage
    }

    #[test]
    fn they_are_tried_one_after_the_other_and_none_behind_one_that_does_not_fit() {
        let mut shortage = with_three();
        assert_eq!(shortage.due(START), None);
        let later = START + RETRY_NS;
        assert_eq!(shortage.due(later), Some(instance(1)));
        assert_eq!(shortage.refused(instance(1), "no".into(), later), Some(instance(2)));
        assert_eq!(shortage.settled(instance(2), later), Some(instance(3)));
        assert_eq!(shortage.refused(instance(3), "no".into(), later), None);
        assert_eq!((shortage.len(), shortage.deadline()), (2, Some(later + RETRY_NS)));
        assert_eq!(shortage.reason(instance(2)), None);
        assert_eq!(shortage.reason(instance(3)), Some("no"));
    }

    #[test]
    fn what_is_freed_makes_them_be_tried_soon() {
        let mut shortage = with_three();
        shortage.freed(START);
        let soon = START + FREED_NS;
        assert_eq!(shortage.deadline(), Some(soon));
        assert_eq!(shortage.due(soon), Some(instance(1)));
        // Also what is freed while they are tried.
        shortage.freed(soon);
        assert_eq!(shortage.refused(instance(1), "no".into(), soon), Some(instance(2)));
        assert_eq!(shortage.refused(instance(2), "no".into(), soon), Some(instance(3)));
        assert_eq!(shortage.refused(instance(3), "no".into(), soon), None);
        assert_eq!(shortage.deadline(), Some(soon + FREED_NS));
    }

    #[test]
    fn when_none_waits_nothing_is_due() {
        let mut shortage = with_three();
        let later = START + RETRY_NS;
        assert_eq!(shortage.due(later), Some(instance(1)));
        for (serial, next) in [(1, Some(instance(2))), (3, None), (2, None)] {
            assert_eq!(shortage.settled(instance(serial), later), next);
        }
        assert_eq!((shortage.len(), shortage.deadline()), (0, None));
        shortage.freed(later);
        assert_eq!(shortage.deadline(), None);
    }

    #[test]
    fn a_shell_that_does_not_answer_is_asked_again() {
        let mut shortage = with_three();
        let later = START + RETRY_NS;
        assert_eq!(shortage.due(later), Some(instance(1)));
        assert_eq!(shortage.due(later + RETRY_NS), None);
        assert_eq!(shortage.due(later + ANSWER_NS), Some(instance(1)));
    }
}
