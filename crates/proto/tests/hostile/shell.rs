//! A shell without a clock around one real node. It executes the node's actions, at once or later, and checks their
//! validity. Does not depend on the plan of the hostile member.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    directory::Slice,
    id::{ClientId, Instance, ObjectId, ReduceId, RequestId, ServeId},
    inline::Inline,
    message::Message,
    meta::Meta,
    node::{Action, Config, Event, FetchOrder, Node},
    question::Answer,
    reduce::cost::Link,
    request::Reply,
    time::Instant,
    wire,
};

use crate::choices::{Choices, HOSTILE, ME, SILENT, WRONG, bytes, member};

const CAPACITY: u64 = 1 << 20;

/// Executes and checks the actions of the node.
struct Shell {
    node: Node,
    now: Instant,
    /// Events that follow from actions and are not delivered yet.
    facts: Vec<Event>,
    asked: u64,
    open: BTreeSet<RequestId>,
    slots: BTreeMap<Instance, u64>,
    serves: u64,
    told: Vec<(ObjectId, Instance, Meta)>,
    reduces: Vec<(ReduceId, u32)>,
}

impl Shell {
    fn new() -> Self {
        let link = Link { latency_ns: 100_000, bytes_per_second: 125_000_000 };
        let detection_ns = Some(3_000_000_000);
        let slice = Slice { entries: 2, pause_ns: 1_000_000 };
        let config = Config { detection_ns, slice, ..Config::new(CAPACITY, link) };
        let mut shell = Self {
            node: Node::new(member(ME), config),
            now: Instant(1),
            facts: Vec::new(),
            asked: 0,
            open: BTreeSet::new(),
            slots: BTreeMap::new(),
            serves: 0,
            told: Vec::new(),
            reduces: Vec::new(),
        };
        for peer in [HOSTILE, SILENT] {
            shell.tell(Event::PeerUp { member: member(peer) });
        }
        shell
    }

    fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.node.handle(self.now, event, &mut actions);
        actions.into_iter().for_each(|action| self.perform(action));
        let table = self.node.table();
        assert!(
            table.used() <= table.capacity(),
            "{} bytes in a store of {CAPACITY}",
            table.used()
        );
        let (small, most) = self.node.directory().inline_bytes();
        assert!(small <= most, "{small} bytes of small objects exceed {most}");
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Reply { request, reply, .. } => {
                assert!(self.open.remove(&request), "{request:?} got two replies");
                if let Ok(Reply::Got { meta, inline: Some(bytes), .. }) = reply {
                    assert_eq!(
                        bytes.len(),
                        meta.size,
                        "the size of the bytes differs from the metadata"
                    );
                }
            }
            Action::Send { message: Message::Announce(announce), .. } => {
                self.told.push((announce.id, announce.instance, announce.meta));
            }
            Action::Send { message: Message::Fold(order), .. } => {
                self.reduces.push((order.key.reduce, order.key.epoch));
            }
            Action::CreateSlot { instance, size, .. } => {
                assert_eq!(
                    self.slots.insert(instance, size),
                    None,
                    "{instance} already has a slot"
                );
                self.facts.push(Event::SlotReady { instance });
            }
            Action::FreeSlot { instance } => {
                self.slots.remove(&instance);
                self.facts.retain(|fact| *fact != Event::SlotReady { instance });
            }
            Action::Fetch(FetchOrder { fetch, instance, digest, .. }) => {
                assert!(self.slots.contains_key(&instance), "{instance} is fetched without a slot");
                self.facts.push(match digest {
                    Some(WRONG) => Event::CopyCorrupt { fetch },
                    _ => Event::Fetched { fetch },
                });
            }
            Action::StartFold { order, .. } => {
                for input in &order.inputs {
                    let held = self.node.table().get(*input).map(|copy| copy.meta.size);
                    assert_eq!(held, Some(order.size), "{input} is folded with a wrong size");
                }
                self.facts.push(Event::FoldEnded { key: order.key, failure: None });
            }
            Action::StopFold { key } => {
                self.facts.push(Event::FoldEnded { key, failure: Some("stopped".into()) });
            }
            Action::FoldInline { reduce, epoch, dtype, inputs, .. } => {
                let lengths: BTreeSet<u64> = inputs.iter().map(Inline::len).collect();
                let length = lengths.first().copied().unwrap_or_default();
                assert_eq!(lengths.len(), 1, "inputs of a fold differ in length: {lengths:?}");
                assert!(length.is_multiple_of(dtype.size()), "{length} bytes of {}", dtype.name());
                self.facts.push(Event::FoldedInline { reduce, epoch, result: bytes(length) });
            }
            Action::Inspect { to, number, .. } => {
                self.facts.push(Event::Inspected { to, number, report: String::new() });
            }
            Action::Survey { from, message } => {
                let place = if message.len() % 2 == 0 { "here".parse().ok() } else { None };
                let places = place.into_iter().map(|place| (from, place)).collect();
                self.facts.push(Event::PlacesFound { places });
            }
            Action::Serve { serve, instance, .. } => {
                assert!(self.slots.contains_key(&instance), "{instance} is sent without a slot");
                self.facts.push(Event::ServeEnded { serve });
            }
            _ => {}
        }
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(16) {
            0..=7 => {
                let message = choices.message();
                // The decoder drops malformed messages.
                let brought = message.small_object().map(|(meta, _)| meta.digest.as_deref());
                let is_wrong = brought.flatten() == Some(&WRONG);
                match message {
                    message if !message.is_valid() => {}
                    Message::Answer { answer: Answer::Located(located), .. } if is_wrong => {
                        self.tell(Event::InlineCorrupt { id: located.id, source: HOSTILE });
                    }
                    message => self.tell(Event::Message { from: HOSTILE, message }),
                }
            }
            8..=10 => {
                self.asked += 1;
                let request = RequestId(self.asked);
                let deadline = choices.flag().then(|| self.now + 1_000_000_000);
                let client = ClientId(1 + choices.below(2));
                let body = choices.ask();
                self.open.insert(request);
                self.tell(Event::Request { client, request, body, deadline });
            }
            11 => {
                let request = RequestId(1 + choices.below(self.asked.max(1)));
                if self.open.contains(&request) {
                    let client = ClientId(1 + choices.below(2));
                    self.tell(Event::Cancelled { client, request });
                }
            }
            12 => {
                self.serves += 1;
                let (id, instance) = (choices.id(), choices.instance());
                self.tell(Event::FetchRequested { serve: ServeId(self.serves), id, instance });
            }
            13 => {
                self.now = self.node.deadline().unwrap_or(self.now).max(self.now);
                self.tell(Event::DeadlinePassed);
            }
            14 => self.tell(match choices.below(4) {
                0 => Event::ClientDisconnected { client: ClientId(2), process: None },
                1 => Event::PeerUnreachable { node: HOSTILE, is_dead: choices.flag() },
                2 => Event::BlockCorrupt { source: HOSTILE },
                _ => Event::PeerReconnected { member: member(HOSTILE) },
            }),
            _ => {
                for fact in std::mem::take(&mut self.facts) {
                    self.tell(fact);
                }
                self.tell(Event::PeerUp { member: member(HOSTILE) });
            }
        }
    }
}

/// Plays a case, whose bytes are choices.
pub(crate) fn play(bytes: &[u8]) {
    let mut shell = Shell::new();
    let mut choices = Choices { bytes, told: Vec::new(), reduces: Vec::new() };
    while !choices.bytes.is_empty() {
        shell.step(&mut choices);
        choices.told.append(&mut shell.told);
        choices.reduces.append(&mut shell.reduces);
    }
}

/// Plays a case of encoded messages, each preceded by a length of two bytes. After each, the node gets the events that
/// follow from its actions, and a client sends a request that the bytes of the message choose.
pub(crate) fn play_messages(mut bytes: &[u8]) {
    let mut shell = Shell::new();
    let (mut told, mut reduces) = (Vec::new(), Vec::new());
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (encoded, rest) = rest.split_at(length);
        bytes = rest;
        if let Ok(message) = wire::decode::<Message>(encoded) {
            assert_eq!(wire::decode(&wire::encode(&message)).as_ref(), Ok(&message));
            if message.is_valid() {
                shell.tell(Event::Message { from: HOSTILE, message });
            }
        }
        let mut choices = Choices { bytes: encoded, told, reduces };
        shell.step(&mut choices);
        choices.told.append(&mut shell.told);
        choices.reduces.append(&mut shell.reduces);
        (told, reduces) = (choices.told, choices.reduces);
    }
}
