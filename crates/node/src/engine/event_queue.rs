//! The queue of events for the state machine: which is next, and whether it is too long. Does not
//! know the state machine.

use std::collections::VecDeque;

use hoplite_proto::{message::Message, node::Event, question::Question, request::Request};

use tokio::sync::watch;

use super::{
    door::Queue,
    event_sender::{QueuedEvent, Source},
    fair_queue::{FairQueue, Party},
};

/// Queued bytes of one source from which on its sockets are not read, 64 MiB: the state machine
/// needs a second for them.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Capacity for events that is kept afterwards: a membership change may queue very many.
const FACTS_KEPT: usize = 1024;

/// Events of members that are handled before one of a program that waits.
const MEMBERS_PER_PROGRAM: usize = 8;

pub(super) struct EventQueue {
    /// Messages of failure detection. They must not wait behind the events of many rejoining
    /// members: these would be declared dead again.
    swim: VecDeque<QueuedEvent>,
    members: VecDeque<QueuedEvent>,
    programs: FairQueue<QueuedEvent>,
    /// Events of members handled since the last one of a program.
    streak: usize,
    /// By [`Source`]: the queued bytes, whether socket readers must wait, and the sender that
    /// notifies them.
    bytes: [usize; 2],
    is_congested: [bool; 2],
    congested: watch::Sender<[bool; 2]>,
}

impl Queue for EventQueue {
    type Item = QueuedEvent;

    fn push(&mut self, event: QueuedEvent) {
        self.bytes[source(&event.event) as usize] += cost(&event.event);
        match party(&event.event) {
            Some(party) => self.programs.push(party, event),
            None => {
                let is_swim =
                    matches!(event.event, Event::Message { message: Message::Swim(_), .. });
                if is_swim { &mut self.swim } else { &mut self.members }.push_back(event);
            }
        }
        self.note_congestion();
    }

    fn is_empty(&self) -> bool {
        self.swim.is_empty() && self.members.is_empty() && self.programs.is_empty()
    }
}

impl EventQueue {
    pub(super) fn new() -> Self {
        Self {
            swim: VecDeque::new(),
            members: VecDeque::new(),
            programs: FairQueue::new(),
            streak: 0,
            bytes: [0; 2],
            is_congested: [false; 2],
            congested: watch::Sender::default(),
        }
    }

    /// Queues `next`, and replaces it by the event whose turn it is. Leaves it in place if there
    /// are no others.
    pub(super) fn exchange(&mut self, next: &mut Option<QueuedEvent>) {
        if self.is_empty() {
            self.members.shrink_to(FACTS_KEPT);
            return;
        }
        if let Some(event) = next.take() {
            self.push(event);
        }
        let is_members_turn = self.programs.is_empty() || self.streak < MEMBERS_PER_PROGRAM;
        if is_members_turn && !(self.swim.is_empty() && self.members.is_empty()) {
            self.streak += 1;
            *next = self.swim.pop_front().or_else(|| self.members.pop_front());
        } else {
            self.streak = 0;
            *next = self.programs.pop();
        }
        if let Some(QueuedEvent { event, .. }) = next {
            self.bytes[source(event) as usize] -= cost(event);
        }
        self.note_congestion();
    }

    /// Removes all events, which are then dropped.
    pub(super) fn take_all(&mut self) -> Vec<QueuedEvent> {
        let (swim, members) = (std::mem::take(&mut self.swim), std::mem::take(&mut self.members));
        let all = swim.into_iter().chain(members).chain(self.programs.take_all()).collect();
        self.bytes = [0; 2];
        self.note_congestion();
        all
    }

    /// Subscribes to whether socket readers of each source must wait.
    pub(super) fn congested(&self) -> watch::Receiver<[bool; 2]> {
        self.congested.subscribe()
    }

    fn note_congestion(&mut self) {
        let is_congested = self.bytes.map(|bytes| bytes > BYTES_MAX);
        if is_congested != self.is_congested {
            self.is_congested = is_congested;
            self.congested.send_replace(is_congested);
        }
    }
}

/// The party whose turn an event of a program needs: `Some(None)` comes after all others. None for
/// an event of a member that comes before those of programs.
fn party(event: &Event) -> Option<Option<Party>> {
    match event {
        Event::Request { client, .. }
        | Event::Cancelled { client, .. }
        | Event::ClientDisconnected { client, .. }
        | Event::ClientForked { client, .. } => Some(Some(Party::Client(*client))),
        // A page takes milliseconds, and a program of the member waits for it.
        Event::Message {
            from,
            message: Message::Ask { question: Question::List { .. } | Question::Inspect(_), .. },
        } => Some(Some(Party::Member(*from))),
        // A node leaves after the requests that its program sent before.
        Event::LeaveRequested { .. } => Some(None),
        _ => None,
    }
}

/// Who causes an event.
fn source(event: &Event) -> Source {
    match (party(event), event) {
        (None, _) | (_, Event::Message { .. }) => Source::Members,
        (Some(_), _) => Source::Programs,
    }
}

/// Approximate bytes of an event: itself and the bytes of a small object or a message of a survey.
fn cost(event: &Event) -> usize {
    let small = match event {
        Event::Message { message: Message::Survey(bytes), .. } => bytes.len(),
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
        id::{ClientId, NodeId, RequestId, ServeId},
        limits::INLINE_BYTES_MAX,
        meta::Meta,
        swim::SwimMessage,
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
        let mut queue = EventQueue::new();
        let congested = queue.congested();
        let count = BYTES_MAX / INLINE_BYTES_MAX as usize;
        (0..count - 1).for_each(|_| queue.push(put(INLINE_BYTES_MAX)));
        assert_eq!(*congested.borrow(), [false, false]);
        queue.push(put(INLINE_BYTES_MAX));
        assert_eq!(*congested.borrow(), [false, true], "members are read all the same");
        let mut pop = || {
            let mut next = None;
            queue.exchange(&mut next);
            next
        };
        assert!(pop().is_some() && !congested.borrow()[1]);
        while pop().is_some() {}
        assert!(queue.is_empty() && queue.bytes[1] == 0);
        // Many events without bytes fit.
        (0..BYTES_MAX / size_of::<QueuedEvent>()).for_each(|_| queue.push(put(0)));
        assert!(!congested.borrow()[1]);
        (0..2).for_each(|_| queue.push(put(0)));
        assert!(congested.borrow()[1]);
        queue.take_all();
        assert!(queue.is_empty() && !congested.borrow()[1]);
    }

    #[test]
    fn bytes_of_a_survey_count() {
        let mut queue = EventQueue::new();
        let bytes = INLINE_BYTES_MAX;
        let message = Message::Survey(vec![7; bytes as usize].into());
        let event = Event::Message { from: NodeId(1), message };
        queue.push(QueuedEvent { event, is_current: None });
        assert!(queue.bytes[Source::Members as usize] as u64 > bytes);
        queue.exchange(&mut None);
        assert_eq!(queue.bytes, [0; 2]);
    }

    fn program(request: u64) -> QueuedEvent {
        QueuedEvent {
            event: Event::Cancelled { client: ClientId(1), request: RequestId(request) },
            is_current: None,
        }
    }

    fn member(serve: u64) -> QueuedEvent {
        QueuedEvent { event: Event::ServeEnded { serve: ServeId(serve) }, is_current: None }
    }

    /// Takes all events: which source each has, and its number.
    fn order(queue: &mut EventQueue) -> Vec<(Source, u64)> {
        let pop = || {
            let mut next = None;
            queue.exchange(&mut next);
            Some(match next?.event {
                Event::Cancelled { request, .. } => (Source::Programs, request.0),
                Event::ServeEnded { serve } => (Source::Members, serve.0),
                other => panic!("{other:?}"),
            })
        };
        std::iter::from_fn(pop).collect()
    }

    #[test]
    fn members_go_before_programs_which_do_not_starve() {
        let mut queue = EventQueue::new();
        let count = 2 * MEMBERS_PER_PROGRAM as u64 + 1;
        (0..count).for_each(|number| queue.push(program(number)));
        (0..count).for_each(|number| queue.push(member(number)));
        let order = order(&mut queue);
        let programs_at: Vec<usize> =
            (0..order.len()).filter(|&at| order[at].0 == Source::Programs).take(3).collect();
        let round = MEMBERS_PER_PROGRAM + 1;
        assert_eq!(programs_at, [round - 1, 2 * round - 1, 2 * round + 1]);
        for source in [Source::Members, Source::Programs] {
            let numbers = order.iter().filter(|(of, _)| *of == source).map(|(_, number)| *number);
            assert!(numbers.eq(0..count), "{source:?}: each once and in order");
        }
    }

    #[test]
    fn failure_detection_goes_first_and_in_order() {
        let ping = |sequence: u64| {
            let message = Message::Swim(SwimMessage::Ping { sequence });
            QueuedEvent { event: Event::Message { from: NodeId(2), message }, is_current: None }
        };
        let mut queue = EventQueue::new();
        queue.push(member(0));
        (1..=3).for_each(|sequence| queue.push(ping(sequence)));
        let mut sequence = || {
            let mut next = None;
            queue.exchange(&mut next);
            match next?.event {
                Event::Message {
                    message: Message::Swim(SwimMessage::Ping { sequence }), ..
                } => Some(sequence),
                _ => None,
            }
        };
        assert_eq!(
            [sequence(), sequence(), sequence(), sequence()],
            [Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn next_event_goes_behind_those_of_its_source_only() {
        let mut queue = EventQueue::new();
        queue.push(program(0));
        let mut next = Some(member(0));
        queue.exchange(&mut next);
        assert!(matches!(next.take().unwrap().event, Event::ServeEnded { .. }));
        next = Some(program(1));
        queue.exchange(&mut next);
        let first = Event::Cancelled { client: ClientId(1), request: RequestId(0) };
        assert_eq!(format!("{:?}", next.unwrap().event), format!("{first:?}"));
        assert_eq!(order(&mut queue), [(Source::Programs, 1)]);
    }
}
