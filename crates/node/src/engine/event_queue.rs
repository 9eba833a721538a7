//! The queue of events for the state machine, and whether it is too long. Does not know the state machine.

use std::collections::VecDeque;

use hoplite_proto::{message::Message, node::Event, request::Request};

use tokio::sync::watch;

use super::event_sender::QueuedEvent;

/// Queued bytes from which on sockets of other nodes and processes are not read, 64 MiB: the state machine needs a
/// second for them.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Capacity for events that is kept afterwards: a membership change may queue very many.
const FACTS_KEPT: usize = 1024;

#[derive(Default)]
pub(super) struct EventQueue {
    events: VecDeque<QueuedEvent>,
    bytes: usize,
    /// Whether socket readers must wait; and the sender that notifies them.
    is_congested: bool,
    congested: watch::Sender<bool>,
}

impl EventQueue {
    pub(super) fn push(&mut self, event: QueuedEvent) {
        self.bytes += cost(&event.event);
        // Failure detection must not wait behind the events of many rejoining members: they would be declared dead
        // again.
        if matches!(event.event, Event::Message { message: Message::Swim(_), .. }) {
            self.events.push_front(event);
        } else {
            self.events.push_back(event);
        }
        self.note_congestion();
    }

    /// Replaces `next` by the first event, and queues it behind the others. Leaves it in place if there are no others.
    pub(super) fn exchange(&mut self, next: &mut Option<QueuedEvent>) {
        if self.is_empty() {
            self.events.shrink_to(FACTS_KEPT);
            return;
        }
        if let Some(event) = next.take() {
            self.push(event);
        }
        *next = self.events.pop_front();
        self.bytes -= next.as_ref().map_or(0, |event| cost(&event.event));
        self.note_congestion();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Removes all events, which are then dropped.
    pub(super) fn take_all(&mut self) -> VecDeque<QueuedEvent> {
        self.bytes = 0;
        self.note_congestion();
        std::mem::take(&mut self.events)
    }

    /// Subscribes to whether socket readers must wait.
    pub(super) fn congested(&self) -> watch::Receiver<bool> {
        self.congested.subscribe()
    }

    fn note_congestion(&mut self) {
        let is_congested = self.bytes > BYTES_MAX;
        if is_congested != self.is_congested {
            self.is_congested = is_congested;
            self.congested.send_replace(is_congested);
        }
    }
}

/// Approximate bytes of an event: itself and the bytes of a small object.
fn cost(event: &Event) -> usize {
    let small = match event {
        Event::Message { message, .. } => {
            message.small_object().map_or(0, |(_, bytes)| bytes.len())
        }
        Event::Request { body: Request::Put { bytes, .. }, .. } => bytes.len(),
        _ => 0,
    };
    size_of::<QueuedEvent>() + usize::try_from(small).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{
        id::{ClientId, RequestId},
        limits::INLINE_BYTES_MAX,
        meta::Meta,
    };

    use super::*;

    fn put(bytes: u64) -> QueuedEvent {
        let body = Request::Put {
            id: None,
            meta: Meta::bytes(bytes),
            bytes: vec![7; bytes as usize].into(),
            ttl_ns: None,
        };
        let (client, request, deadline) = (ClientId(1), RequestId(1), None);
        QueuedEvent { event: Event::Request { client, request, body, deadline }, is_current: None }
    }

    #[test]
    fn inbox_is_crowded_above_its_byte_limit() {
        let mut queue = EventQueue::default();
        let congested = queue.congested();
        let count = BYTES_MAX / INLINE_BYTES_MAX as usize;
        (0..count - 1).for_each(|_| queue.push(put(INLINE_BYTES_MAX)));
        assert!(!*congested.borrow());
        queue.push(put(INLINE_BYTES_MAX));
        assert!(*congested.borrow());
        let mut pop = || {
            let mut next = None;
            queue.exchange(&mut next);
            next
        };
        assert!(pop().is_some() && !*congested.borrow());
        while pop().is_some() {}
        assert!(queue.is_empty() && queue.bytes == 0);
        // Many events without bytes fit.
        (0..BYTES_MAX / size_of::<QueuedEvent>()).for_each(|_| queue.push(put(0)));
        assert!(!*congested.borrow());
        (0..2).for_each(|_| queue.push(put(0)));
        assert!(*congested.borrow());
        queue.take_all();
        assert!(queue.is_empty() && !*congested.borrow());
    }
}
