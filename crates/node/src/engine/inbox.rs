//! The queue of events for the state machine, and whether it is too long. Does not know the state machine.

use std::collections::VecDeque;

use hoplite_proto::{ask::Ask, message::Message, node::Event};

use tokio::sync::watch;

use super::facts::Fact;

/// Queued bytes from which on sockets of other nodes and processes are not read, 64 MiB: the state machine needs a
/// second for them.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Capacity for events that is kept afterwards: a membership change may queue very many.
const FACTS_KEPT: usize = 1024;

#[derive(Default)]
pub(super) struct Inbox {
    facts: VecDeque<Fact>,
    bytes: usize,
    /// Whether socket readers must wait; and the sender that notifies them.
    is_crowded: bool,
    crowded: watch::Sender<bool>,
}

impl Inbox {
    pub(super) fn push(&mut self, fact: Fact) {
        self.bytes += cost(&fact.event);
        // Failure detection must not wait behind the events of many rejoining members: they would be declared dead
        // again.
        if matches!(fact.event, Event::Message { message: Message::Rumour(_), .. }) {
            self.facts.push_front(fact);
        } else {
            self.facts.push_back(fact);
        }
        self.note_crowd();
    }

    pub(super) fn pop(&mut self) -> Option<Fact> {
        let fact = self.facts.pop_front();
        match &fact {
            Some(fact) => self.bytes -= cost(&fact.event),
            None => self.facts.shrink_to(FACTS_KEPT),
        }
        self.note_crowd();
        fact
    }

    pub(super) fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Removes all events, which are then dropped.
    pub(super) fn take_all(&mut self) -> VecDeque<Fact> {
        self.bytes = 0;
        self.note_crowd();
        std::mem::take(&mut self.facts)
    }

    /// Subscribes to whether socket readers must wait.
    pub(super) fn crowded(&self) -> watch::Receiver<bool> {
        self.crowded.subscribe()
    }

    fn note_crowd(&mut self) {
        let is_crowded = self.bytes > BYTES_MAX;
        if is_crowded != self.is_crowded {
            self.is_crowded = is_crowded;
            self.crowded.send_replace(is_crowded);
        }
    }
}

/// Approximate bytes of an event: itself and the bytes of a small object.
fn cost(event: &Event) -> usize {
    let small = match event {
        Event::Message { message, .. } => {
            message.small_object().map_or(0, |(_, bytes)| bytes.len())
        }
        Event::Asked { ask: Ask::Put { bytes, .. }, .. } => bytes.len(),
        _ => 0,
    };
    size_of::<Fact>() + usize::try_from(small).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{
        id::{ClientId, RequestId},
        limits::INLINE_BYTES_MAX,
        meta::Meta,
    };

    use super::*;

    fn put(bytes: u64) -> Fact {
        let ask = Ask::Put {
            id: None,
            meta: Meta::bytes(bytes),
            bytes: vec![7; bytes as usize].into(),
            ttl_ns: None,
        };
        let (client, request, deadline) = (ClientId(1), RequestId(1), None);
        Fact { event: Event::Asked { client, request, ask, deadline }, is_current: None }
    }

    #[test]
    fn inbox_is_crowded_above_its_byte_limit() {
        let mut inbox = Inbox::default();
        let crowded = inbox.crowded();
        let count = BYTES_MAX / INLINE_BYTES_MAX as usize;
        (0..count - 1).for_each(|_| inbox.push(put(INLINE_BYTES_MAX)));
        assert!(!*crowded.borrow());
        inbox.push(put(INLINE_BYTES_MAX));
        assert!(*crowded.borrow());
        inbox.pop();
        assert!(!*crowded.borrow());
        while inbox.pop().is_some() {}
        assert!(inbox.is_empty() && inbox.bytes == 0);
        // Many events without bytes fit.
        (0..BYTES_MAX / size_of::<Fact>()).for_each(|_| inbox.push(put(0)));
        assert!(!*crowded.borrow());
        (0..2).for_each(|_| inbox.push(put(0)));
        assert!(*crowded.borrow());
        inbox.take_all();
        assert!(inbox.is_empty() && !*crowded.borrow());
    }
}
