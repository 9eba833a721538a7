//! Limits the number of copies that a node receives from one source at a time.
//!
//! Each transfer uses a connection of its own. With a thousand at once, each would get a thousandth
//! of the link, and the process would run out of descriptors. Small copies have separate permits,
//! so that they do not wait for large ones.
//!
//! A transfer that has received nothing for a while blocks no other: its source itself waits for
//! bytes. Its permit goes to another transfer, and it continues without one. Therefore no transfer
//! waits for one that never progresses.

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

use crate::{id::NodeId, time::Instant};

/// Permits per source for copies of similar size. While some transfers wait for a reply, the others
/// keep the link busy. With 8, relays that feed each other more often waited for each other's
/// permits.
const PERMITS: usize = 16;

/// Interval at which transfers without progress lose their permits: 10 ms. Within 5 ms on a busy
/// machine, often no transfer receives anything. With 20 ms, broadcasts of many objects took
/// longer, since their relays wait for each other's permits.
const LOOK_NS: u64 = 10_000_000;

/// The permits of all transfers to a node.
#[derive(Debug, Default)]
pub struct Limiter {
    classes: BTreeMap<Class, Queue>,
    tickets: u64,
}

/// The source, and the size class of the copy: its power of four.
type Class = (NodeId, u32);

/// A transfer that has a permit or waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    class: Class,
    number: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Transfers with a permit, and whether each has received bytes since the last check.
    busy: BTreeMap<u64, bool>,
    /// Transfers that wait for a permit, in order.
    waiting: VecDeque<u64>,
    /// When to check again which transfers have received bytes.
    look_at: Option<Instant>,
}

impl Queue {
    fn grant(&mut self, class: Class, granted: &mut Vec<Ticket>) {
        while self.busy.len() < PERMITS
            && let Some(number) = self.waiting.pop_front()
        {
            self.busy.insert(number, true);
            granted.push(Ticket { class, number });
        }
    }
}

impl Limiter {
    /// Registers a transfer of `size` bytes from `sender`. Returns whether it has a permit already;
    /// otherwise permits are granted in order of registration.
    pub fn enter(&mut self, now: Instant, sender: NodeId, size: u64) -> (Ticket, bool) {
        let class = (sender, size.max(1).ilog2() / 2);
        self.tickets += 1;
        let number = self.tickets;
        let queue = self.classes.entry(class).or_default();
        let is_granted = queue.busy.len() < PERMITS;
        if is_granted {
            queue.busy.insert(number, true);
        } else {
            queue.waiting.push_back(number);
            queue.look_at.get_or_insert(now + LOOK_NS);
        }
        (Ticket { class, number }, is_granted)
    }

    /// Records that a transfer has received bytes.
    pub fn moved(&mut self, ticket: Ticket) {
        let queue = self.classes.get_mut(&ticket.class);
        if let Some(has_moved) = queue.and_then(|queue| queue.busy.get_mut(&ticket.number)) {
            *has_moved = true;
        }
    }

    /// Ends a transfer, or its wait. Appends the transfers that get its permit to `granted`.
    pub fn leave(&mut self, ticket: Ticket, granted: &mut Vec<Ticket>) {
        let Some(queue) = self.classes.get_mut(&ticket.class) else { return };
        if queue.busy.remove(&ticket.number).is_none() {
            queue.waiting.retain(|number| *number != ticket.number);
        }
        queue.grant(ticket.class, granted);
        if queue.busy.is_empty() && queue.look_at.is_none() {
            self.classes.remove(&ticket.class);
        }
    }

    /// When [`Limiter::expire`] must be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.classes.values().filter_map(|queue| queue.look_at).min()
    }

    /// Gives the permits of transfers without progress to waiting ones.
    pub fn expire(&mut self, now: Instant, granted: &mut Vec<Ticket>) {
        self.classes.retain(|class, queue| {
            if queue.look_at.is_some_and(|look_at| look_at <= now) {
                queue.look_at = (!queue.waiting.is_empty()).then_some(now + LOOK_NS);
                if queue.look_at.is_some() {
                    queue.busy.retain(|_, has_moved| core::mem::take(has_moved));
                }
                queue.grant(*class, granted);
            }
            !queue.busy.is_empty() || queue.look_at.is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: NodeId = NodeId(1);
    const SIZE: u64 = 100_000;
    const NOW: Instant = Instant(0);

    fn all_busy(limiter: &mut Limiter) -> Vec<Ticket> {
        let busy: Vec<_> = (0..PERMITS).map(|_| limiter.enter(NOW, FROM, SIZE)).collect();
        assert!(busy.iter().all(|(_, is_granted)| *is_granted));
        busy.into_iter().map(|(ticket, _)| ticket).collect()
    }

    fn waiting(limiter: &mut Limiter) -> Ticket {
        let (ticket, is_granted) = limiter.enter(NOW, FROM, SIZE);
        assert!(!is_granted);
        ticket
    }

    fn left(limiter: &mut Limiter, ticket: Ticket) -> Vec<Ticket> {
        let mut granted = Vec::new();
        limiter.leave(ticket, &mut granted);
        granted
    }

    #[test]
    fn as_many_as_there_are_permits_go_at_once_and_the_rest_in_order() {
        let mut limiter = Limiter::default();
        let busy = all_busy(&mut limiter);
        let (next, last) = (waiting(&mut limiter), waiting(&mut limiter));
        assert!(limiter.enter(NOW, NodeId(2), SIZE).1, "another sender");
        assert!(limiter.enter(NOW, FROM, SIZE / 8).1, "another size");
        assert!(!limiter.enter(NOW, FROM, SIZE + 1).1, "about the same size");
        assert_eq!(left(&mut limiter, busy[0]), [next]);
        assert_eq!(left(&mut limiter, next), [last]);
    }

    #[test]
    fn a_transfer_that_gives_up_takes_no_permit() {
        let mut limiter = Limiter::default();
        let busy = all_busy(&mut limiter);
        let (first, second) = (waiting(&mut limiter), waiting(&mut limiter));
        assert_eq!(left(&mut limiter, first), []);
        assert_eq!(left(&mut limiter, busy[0]), [second]);
        // Ending a transfer twice grants no second permit.
        waiting(&mut limiter);
        assert_eq!(left(&mut limiter, busy[0]), []);
    }

    #[test]
    fn transfers_without_progress_block_no_other() {
        let (mut limiter, mut granted) = (Limiter::default(), Vec::new());
        let busy = all_busy(&mut limiter);
        let next = waiting(&mut limiter);
        for _ in 0..9 {
            let due = limiter.deadline().unwrap();
            limiter.expire(Instant(due.0 - 1), &mut granted);
            limiter.expire(due, &mut granted);
            assert_eq!(granted, [], "all receive something");
            busy.iter().for_each(|ticket| limiter.moved(*ticket));
        }
        let due = limiter.deadline().unwrap();
        limiter.expire(due, &mut granted);
        busy[1..].iter().for_each(|ticket| limiter.moved(*ticket));
        let due = limiter.deadline().unwrap();
        limiter.expire(due, &mut granted);
        assert_eq!(granted, [next], "one has received nothing");
        // However many wait, all of them get a permit, and one that lost its permit grants none
        // when it ends.
        let others: Vec<Ticket> = (0..5 * PERMITS).map(|_| waiting(&mut limiter)).collect();
        granted.clear();
        assert_eq!(left(&mut limiter, busy[0]), []);
        for _ in 0..12 {
            if let Some(due) = limiter.deadline() {
                limiter.expire(due, &mut granted);
            }
        }
        assert_eq!(granted, others);
        busy.iter().chain([&next]).chain(&others).for_each(|ticket| {
            assert_eq!(left(&mut limiter, *ticket), []);
        });
        assert!(limiter.classes.is_empty() && limiter.deadline().is_none());
    }
}
