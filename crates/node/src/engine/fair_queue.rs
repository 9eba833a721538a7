//! A queue in which the clients take turns: one event of each, then the next one of each. So do the
//! members that list objects on behalf of their clients. Events of one party stay in order. Does
//! not know events.
//!
//! Start-time fair queueing with equal costs (Goyal, Vin, Cheng 1996, section 2): each event
//! belongs to a round, which is the one after that of its party's last queued event, or after the
//! current one.

use std::collections::{BTreeMap, HashMap};

use hoplite_proto::id::{ClientId, NodeId};

/// Who takes turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Party {
    Client(ClientId),
    Member(NodeId),
}

/// Queued events of type `T`.
pub(super) struct FairQueue<T> {
    /// By round and number.
    events: BTreeMap<(u64, u64), (Option<Party>, T)>,
    /// The round of each party's last queued event.
    last: HashMap<Party, u64>,
    /// The round of the event taken last, and the number of the next event.
    round: u64,
    next: u64,
}

impl<T> FairQueue<T> {
    pub(super) fn new() -> Self {
        Self { events: BTreeMap::new(), last: HashMap::new(), round: 0, next: 0 }
    }

    /// Queues an event of a party behind the party's others; without a party, behind all.
    pub(super) fn push(&mut self, party: Option<Party>, event: T) {
        let round = match party {
            Some(party) => {
                let round = self.last.get(&party).map_or(self.round, |last| *last) + 1;
                self.last.insert(party, round);
                round
            }
            None => self.events.last_key_value().map_or(self.round, |((round, _), _)| *round),
        };
        self.events.insert((round, self.next), (party, event));
        self.next += 1;
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let ((round, _), (party, event)) = self.events.pop_first()?;
        self.round = round;
        if let Some(party) = party
            && self.last.get(&party) == Some(&round)
        {
            self.last.remove(&party);
        }
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Removes all events.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::replace(self, Self::new()).events.into_values().map(|(_, event)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: Option<Party> = Some(Party::Client(ClientId(1)));
    const MODEST: Option<Party> = Some(Party::Member(NodeId(1)));

    fn rest(queue: &mut FairQueue<u64>) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn client_with_one_event_waits_for_one_of_each_other() {
        let mut queue = FairQueue::new();
        (0..100).for_each(|number| queue.push(GREEDY, number));
        (0..50).for_each(|number| assert_eq!(queue.pop(), Some(number)));
        queue.push(MODEST, 1000);
        queue.push(MODEST, 1001);
        let order: Vec<u64> = (0..4).filter_map(|_| queue.pop()).collect();
        assert_eq!(order, [50, 1000, 51, 1001]);
        assert_eq!(rest(&mut queue), (52..100).collect::<Vec<u64>>());
        assert!(
            queue.is_empty() && queue.last.is_empty(),
            "clients that have nothing here cost nothing"
        );
    }

    #[test]
    fn client_that_sends_one_after_the_other_delays_none() {
        let mut queue = FairQueue::new();
        (0..10).for_each(|number| queue.push(GREEDY, number));
        for number in 0..10 {
            queue.push(MODEST, 1000);
            assert_eq!([queue.pop(), queue.pop()], [Some(number), Some(1000)]);
        }
    }

    #[test]
    fn event_without_a_client_comes_after_all_earlier_ones() {
        let mut queue = FairQueue::new();
        (0..3).for_each(|number| queue.push(GREEDY, number));
        queue.push(None, 7);
        queue.push(MODEST, 5);
        queue.push(GREEDY, 3);
        assert_eq!(rest(&mut queue), [0, 5, 1, 2, 7, 3]);
    }
}
