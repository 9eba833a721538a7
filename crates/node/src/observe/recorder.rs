//! Reads events and actions, and keeps what `inspect` reports.
//!
//! What an event ends is looked up in the state machine, which has not handled it yet.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use hoplite_proto::{
    id::{FetchId, Instance, NodeId, ObjectId, RequestId, ServeId},
    message::{Announce, FoldKey, FoldOrder, Message, Source},
    node::{Action, Event, FetchOrder, LimitSubject, LogEvent, Node as Machine},
    question::{Answer, Question as Asked},
    swim::Suspicion,
    table::{FileState, Residency},
    time::Instant,
};

use super::{
    clients::{Clients, Lookup, OpenRequest},
    events::{Choice, Events, FoldRow, Process, What, beginning, degree_name, id_of},
    totals::{Latencies, Latency, Question, Totals},
};

/// Transfers whose end the state machine may never report. Beyond this number they begin anew.
const UNENDED_MAX: usize = 16_384;

/// A copy that arrives.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: ObjectId,
    pub(super) source: NodeId,
    pub(super) choice: Choice,
    pub(super) bytes: u64,
    pub(super) received: u64,
    pub(super) since: Instant,
    /// Whether it arrives now; otherwise it waits for another source.
    pub(super) is_running: bool,
}

/// Everything recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(super) now: Instant,
    pub(super) events: Events,
    /// Copies that arrive.
    pub(super) transfers: HashMap<Instance, Transfer>,
    /// The copy that each running transfer fills.
    fetches: HashMap<FetchId, Instance>,
    /// Sources that were chosen and have not begun to send.
    chosen: HashMap<ObjectId, Choice>,
    /// Requests without a reply.
    pub(super) waits: BTreeMap<RequestId, (OpenRequest, Process)>,
    pub(super) latencies: Latencies,
    pub(super) totals: Totals,
    pub(super) clients: Clients,
    suspects: Suspects,
}

impl Recorder {
    pub(super) fn record(&mut self, what: What) {
        self.events.push(self.now, what);
    }

    /// Takes note of an event before the state machine handles it.
    pub(crate) fn event(
        &mut self,
        now: Instant,
        event: &Event,
        machine: &Machine,
        lookup: &impl Lookup,
    ) {
        self.begin_to_wait(lookup);
        self.now = now;
        match event {
            Event::Request { client, request, body, .. } => {
                self.requested(*client, *request, body, machine, lookup);
            }
            Event::Message { message, .. } => {
                self.compare_suspects(machine);
                self.received(message);
            }
            Event::DeadlinePassed => self.compare_suspects(machine),
            Event::ClientDisconnected { client, .. } => {
                self.clients.forget(*client);
            }
            Event::FetchProgress { fetch, received, missing, .. } => {
                let instance = self.fetches.get(fetch);
                if let Some(transfer) = instance.and_then(|it| self.transfers.get_mut(it)) {
                    transfer.bytes = transfer.bytes.max(received + missing);
                    transfer.received = transfer.bytes - missing;
                }
            }
            Event::Fetched { fetch } => self.fetched(*fetch),
            Event::FetchFailed { fetch, not_here } => self.fetch_failed(*fetch, *not_here),
            Event::ServeEnded { serve } => self.serve_ended(*serve, machine),
            Event::Spilled { instance } | Event::Unspilled { instance } => {
                self.file_ended(*instance, machine);
            }
            Event::SpillFailed { instance, detail, .. }
            | Event::UnspillFailed { instance, detail } => {
                self.file_failed(*instance, detail, machine);
            }
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure.as_deref(), machine),
            Event::BlockCorrupt { source } => {
                self.record(What::Corrupt { source: *source, id: None });
            }
            Event::CopyCorrupt { fetch } => {
                let known = self.end_fetch(*fetch).map(|(_, it)| (it.source, it.id.clone()));
                if let Some((source, id)) = known {
                    self.record(What::Corrupt { source, id: Some(id) });
                }
            }
            Event::InlineCorrupt { id, source } => {
                self.record(What::Corrupt { source: *source, id: Some(id.clone()) });
            }
            Event::PeerReconnected { member } => {
                self.member(member.id, "reconnected", "its connection broke");
            }
            _ => {}
        }
    }

    /// Takes note of an action of the last event.
    pub(crate) fn action(&mut self, action: &Action, machine: &Machine, lookup: &impl Lookup) {
        match action {
            Action::Reply { request, reply, .. } => self.replied(*request, reply, lookup),
            Action::Send { to, message } => self.sent(*to, message),
            Action::AddPeer(member) => self.member(member.id, "joined", ""),
            Action::FreeSlot { instance } => {
                self.transfers.remove(instance);
            }
            Action::StopFetch { fetch } => {
                if let Some((_, transfer)) = self.end_fetch(*fetch) {
                    transfer.is_running = false;
                }
            }
            Action::Fetch(order) => self.fetch(order, machine),
            Action::Serve { serve, instance, relayed } => {
                let count = if *relayed {
                    &mut self.totals.serves_relayed
                } else {
                    &mut self.totals.serves_direct
                };
                *count += 1;
                if let Some(id) = id_of(*instance, machine) {
                    let (reader, relayed) = (lookup.reader(*serve), *relayed);
                    self.record(What::Serve { id, instance: *instance, reader, relayed });
                }
            }
            Action::Spill { kept } => {
                self.record(What::Spill { id: kept.id.clone(), bytes: kept.meta.size });
            }
            Action::Unspill { instance } => {
                if let Some(copy) = machine.table().get(*instance) {
                    self.record(What::Unspill { id: copy.id.clone(), bytes: copy.meta.size });
                }
            }
            Action::StartFold { order, .. } => self.start_fold(order, machine),
            Action::Log(note) => self.noted(note, lookup),
            _ => {}
        }
    }

    fn member(&mut self, node: NodeId, state: &'static str, why: &str) {
        self.totals.member(state);
        self.record(What::Member { node, state, why: beginning(why) });
    }

    fn compare_suspects(&mut self, machine: &Machine) {
        if self.suspects.are(machine.suspicions()) {
            return;
        }
        let Self { now, events, totals, suspects, .. } = self;
        suspects.compare(machine.suspicions(), |node, by| {
            let (state, why) = match by {
                Some(by) => ("suspected", format!("it did not reply to node {by}")),
                None if machine.members().contains(node) => ("trusted", "it replied".into()),
                None => return,
            };
            totals.member(state);
            events.push(*now, What::Member { node, state, why: why.into() });
        });
    }

    fn received(&mut self, message: &Message) {
        let question = match message {
            Message::Claimed { instance, .. } => Question::Claim(*instance),
            Message::Answer { number, .. } => Question::Numbered(*number),
            _ => return,
        };
        self.latencies.answered(self.now, &question, true);
    }

    fn sent(&mut self, to: NodeId, message: &Message) {
        let (latency, question) = match message {
            Message::Cancel { number } => {
                return self.latencies.answered(self.now, &Question::Numbered(*number), false);
            }
            Message::Announce(Announce { claim: true, instance, .. }) => {
                (Latency::Claim, Question::Claim(*instance))
            }
            Message::Ask { number, question } => {
                let latency = match question {
                    Asked::Locate(_) => Latency::Locate,
                    Asked::Latest { .. } => Latency::Latest,
                    Asked::Locations { .. } => Latency::Locations,
                    _ => return,
                };
                (latency, Question::Numbered(*number))
            }
            Message::Answer { answer: Answer::Located(located), .. } => {
                if let Source::Holder { node, .. } = located.source {
                    let (id, reader) = (located.id.clone(), to);
                    self.record(What::Locate { id, reader, source: node });
                }
                return;
            }
            _ => return,
        };
        self.latencies.asked(self.now, latency, question);
    }

    fn fetch(&mut self, order: &FetchOrder, machine: &Machine) {
        let FetchOrder { fetch, ref id, instance, source, in_parts, .. } = *order;
        insert_bounded(&mut self.fetches, fetch, instance);
        let before = self.transfers.get(&instance);
        let received = before.map_or(0, |before| before.received);
        let bytes = machine.table().get(instance).map_or(0, |copy| copy.meta.size);
        let usual = if in_parts { Choice::Ordered } else { Choice::Redirect };
        let choice = self.chosen.remove(id).unwrap_or(usual);
        let resumed = received > 0;
        self.totals.fetches_resumed += u64::from(resumed);
        let (since, is_running) = (self.now, true);
        let transfer =
            Transfer { id: id.clone(), source, choice, bytes, received, since, is_running };
        insert_bounded(&mut self.transfers, instance, transfer);
        self.record(What::Fetch { id: id.clone(), instance, source, bytes, resumed });
    }

    /// A transfer has ended. Returns its copy, and what is known of that.
    fn end_fetch(&mut self, fetch: FetchId) -> Option<(Instance, &mut Transfer)> {
        let instance = self.fetches.remove(&fetch)?;
        Some((instance, self.transfers.get_mut(&instance)?))
    }

    fn fetched(&mut self, fetch: FetchId) {
        let Some(instance) = self.fetches.remove(&fetch) else { return };
        let Some(transfer) = self.transfers.remove(&instance) else { return };
        let Transfer { id, source, bytes, since, .. } = transfer;
        self.record(What::Fetched { id, instance, source, bytes, ns: self.now.since(since) });
    }

    fn fetch_failed(&mut self, fetch: FetchId, not_here: bool) {
        let Some((instance, transfer)) = self.end_fetch(fetch) else { return };
        transfer.is_running = false;
        let Transfer { source, bytes, received, .. } = *transfer;
        let id = transfer.id.clone();
        let why = if not_here { "it has no such copy" } else { "the transfer broke" };
        self.record(What::FetchFailed { id, instance, source, bytes, received, why });
    }

    fn serve_ended(&mut self, serve: ServeId, machine: &Machine) {
        let Some((instance, since)) = machine.running_serve(serve) else { return };
        if let Some(id) = id_of(instance, machine) {
            self.record(What::Served { id, instance, ns: self.now.since(since) });
        }
    }

    /// A copy is in its file, or back in memory.
    fn file_ended(&mut self, instance: Instance, machine: &Machine) {
        let Some(copy) = machine.table().get(instance) else { return };
        let (id, bytes) = (copy.id.clone(), copy.meta.size);
        if let FileState::Writing(since) = copy.file_state {
            self.totals.spilled_bytes += bytes;
            self.record(What::Spilled { id, ns: self.now.since(since) });
        } else if let Residency::Restoring(since) = copy.residency {
            self.totals.unspilled_bytes += bytes;
            self.record(What::Unspilled { id, ns: self.now.since(since) });
        }
    }

    fn file_failed(&mut self, instance: Instance, why: &str, machine: &Machine) {
        let Some(copy) = machine.table().get(instance) else { return };
        if matches!(copy.file_state, FileState::Writing(_))
            || matches!(copy.residency, Residency::Restoring(_))
        {
            self.record(What::SpillFailed { id: copy.id.clone(), why: beginning(why) });
        }
    }

    fn start_fold(&mut self, order: &FoldOrder, machine: &Machine) {
        self.totals.folds += 1;
        let FoldOrder { result, key, children, inputs, .. } = order;
        self.record(What::Fold(FoldRow::of(result, key, children, inputs, machine)));
    }

    fn fold_ended(&mut self, key: &FoldKey, failure: Option<&str>, machine: &Machine) {
        self.totals.folds_failed += u64::from(failure.is_some());
        let Some(fold) = machine.running_fold(key) else { return };
        let (result, ns) = (fold.result.clone(), self.now.since(fold.since));
        let (epoch, position, error) = (key.epoch, key.position, failure.map(beginning));
        self.record(What::Folded { result, epoch, position, ns, error });
    }

    fn noted(&mut self, note: &LogEvent, lookup: &impl Lookup) {
        match note {
            LogEvent::SourceChosen { id, source, reason } => {
                let choice = Choice::Located(*reason);
                self.chose(id, choice);
                self.record(What::Source { id: id.clone(), source: *source, choice });
            }
            LogEvent::SourceReplaced { id, before, source } => {
                self.chose(id, Choice::Redirect);
                let (id, before, source) = (id.clone(), *before, *source);
                self.record(What::Redirect { id, before, source });
            }
            LogEvent::DegreeChosen { id, degree, reason } => {
                let (result, degree) = (id.clone(), degree_name(*degree));
                let reason = Box::new(*reason);
                self.record(What::Degree { result, degree, reason });
            }
            LogEvent::RingChosen { id, parts } => {
                self.totals.reduces_ring += 1;
                self.record(What::Ring { result: id.clone(), parts: *parts as u64 });
            }
            LogEvent::ReduceRestarted { id, epoch, detail } => {
                let (result, epoch, why) = (id.clone(), *epoch, beginning(detail));
                self.record(What::Restart { result, epoch, why });
            }
            LogEvent::ReduceEnded { id, since, failure } => {
                let (ns, error) = (self.now.since(*since), failure.as_deref().map(beginning));
                self.record(What::Reduced { result: id.clone(), ns, error });
            }
            LogEvent::MemberRemoved { node, how, reason } => self.member(*node, how, reason),
            LogEvent::MessageRejected { from, message } => {
                self.record(What::Rejected { node: *from, message: <&str>::from(&**message) });
            }
            LogEvent::Limited { whose, limit } => {
                let (node, process): (_, Process) = match whose {
                    LimitSubject::Member(node) => (Some(*node), None),
                    LimitSubject::Client(client) => (None, lookup.process(*client)),
                };
                self.record(What::Limit { limit, node, process });
            }
            LogEvent::Evicted { copies } => {
                self.record(What::Evicted { copies: *copies as u64 });
            }
            LogEvent::SourceAvoided { .. }
            | LogEvent::ReplicaLate { .. }
            | LogEvent::LongWait { .. } => {}
        }
    }

    /// The verb of a request that waits, and the process of its client.
    pub(crate) fn wait(&self, request: RequestId) -> (&'static str, Process) {
        let found = self.waits.get(&request);
        found.map_or(("request", None), |(open, process)| (open.verb, *process))
    }

    fn chose(&mut self, id: &ObjectId, choice: Choice) {
        if let Some(index) = choice.index() {
            self.totals.choices[index] += 1;
        }
        insert_bounded(&mut self.chosen, id.clone(), choice);
    }
}

/// Inserts an entry whose end may never be seen.
fn insert_bounded<K: Eq + Hash, V>(all: &mut HashMap<K, V>, key: K, value: V) {
    if all.len() >= UNENDED_MAX {
        all.clear();
    }
    all.insert(key, value);
}

/// The members that were suspected at the last comparison, in order. The state machine does not
/// report when that changes.
#[derive(Debug, Default)]
struct Suspects(Vec<NodeId>);

impl Suspects {
    /// Whether nothing has changed, which most messages find.
    fn are(&self, current: impl Iterator<Item = (NodeId, Suspicion)>) -> bool {
        current.map(|(node, _)| node).eq(self.0.iter().copied())
    }

    /// Passes each change to `changed`: the member, and by whom it is suspected now.
    fn compare(
        &mut self,
        current: impl Iterator<Item = (NodeId, Suspicion)>,
        mut changed: impl FnMut(NodeId, Option<NodeId>),
    ) {
        let mut now = Vec::new();
        for (node, suspicion) in current {
            if self.0.binary_search(&node).is_err() {
                changed(node, Some(suspicion.by));
            }
            now.push(node);
        }
        for node in self.0.iter().filter(|node| now.binary_search(node).is_err()) {
            changed(*node, None);
        }
        self.0 = now;
    }
}
