//! Reads events and actions, and keeps what `inspect` reports.

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, RequestId},
    message::{Announce, FoldKey, FoldOrder, Message, Source},
    node::{Action, Event, LimitSubject, LogEvent, Node as Machine},
    time::Instant,
};

use super::{
    clients::{Clients, Lookup},
    events::{Choice, Process, What, beginning, degree_name},
    histogram::{Latencies, Latency, Question},
    ring::Events,
    running::{
        FileTransfer, Fold, ReduceShape, Running, RunningReduce, Serve, Transfer, insert_bounded,
    },
    suspects::Suspects,
    totals::Totals,
};

/// Inputs and children of one fold that are kept; a reduce may have 65 536.
const INPUTS_MAX: usize = 32;
const CHILDREN_MAX: usize = 256;

/// Everything recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(super) now: Instant,
    pub(super) events: Events,
    pub(super) running: Running,
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
                self.running.forget_reads(*client);
                self.clients.forget(*client);
            }
            Event::FetchProgress { instance, received, missing, .. } => {
                if let Some(transfer) = self.running.transfers.get_mut(instance) {
                    transfer.bytes = transfer.bytes.max(received + missing);
                    transfer.received = transfer.bytes - missing;
                }
            }
            Event::Fetched { instance } => {
                if let Some(transfer) = self.running.transfers.remove(instance) {
                    let Transfer { id, source, bytes, since, .. } = transfer;
                    let ns = now.since(since);
                    self.record(What::Fetched { id, instance: *instance, source, bytes, ns });
                }
            }
            Event::FetchFailed { instance, source, not_here } => {
                self.fetch_failed(*instance, *source, *not_here);
            }
            Event::FetchRequested { serve, id, instance } => {
                let (reader, id) = (lookup.reader(*serve), id.clone());
                let (instance, since) = (*instance, now);
                let asked = Serve { id, instance, reader, since, is_granted: false };
                insert_bounded(&mut self.running.serves, *serve, asked);
            }
            Event::ServeEnded { serve } => {
                if let Some(serve) = self.running.serves.remove(serve)
                    && serve.is_granted
                {
                    let Serve { id, instance, since, .. } = serve;
                    self.record(What::Served { id, instance, ns: now.since(since) });
                }
            }
            Event::Spilled { instance } => {
                if let Some(FileTransfer { id, bytes, since }) =
                    self.running.spills.remove(instance)
                {
                    self.totals.spilled_bytes += bytes;
                    self.record(What::Spilled { id, ns: now.since(since) });
                }
            }
            Event::Unspilled { instance } => {
                if let Some(FileTransfer { id, bytes, since }) =
                    self.running.unspills.remove(instance)
                {
                    self.totals.unspilled_bytes += bytes;
                    self.record(What::Unspilled { id, ns: now.since(since) });
                }
            }
            Event::SpillFailed { instance, detail, .. } => {
                let file = self.running.spills.remove(instance);
                self.file_failed(file, detail);
            }
            Event::UnspillFailed { instance, detail } => {
                let file = self.running.unspills.remove(instance);
                self.file_failed(file, detail);
            }
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure.as_deref()),
            Event::BlockCorrupt { source } => {
                self.record(What::Corrupt { source: *source, id: None });
            }
            Event::CopyCorrupt { instance, source } => {
                let id = machine.table().get(*instance).map(|copy| copy.id.clone());
                self.record(What::Corrupt { source: *source, id });
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
                self.running.transfers.remove(instance);
            }
            Action::StopFetch { instance } => {
                if let Some(transfer) = self.running.transfers.get_mut(instance) {
                    transfer.is_running = false;
                }
            }
            Action::Fetch { id, instance, source, parts, .. } => {
                let is_ordered = parts.is_some();
                self.fetch(id, *instance, *source, is_ordered, machine);
            }
            Action::Serve { serve, instance, relayed } => {
                let count = if *relayed {
                    &mut self.totals.serves_relayed
                } else {
                    &mut self.totals.serves_direct
                };
                *count += 1;
                if let Some(serve) = self.running.serves.get_mut(serve) {
                    (serve.is_granted, serve.since) = (true, self.now);
                    let (id, reader) = (serve.id.clone(), serve.reader);
                    let (instance, relayed) = (*instance, *relayed);
                    self.record(What::Serve { id, instance, reader, relayed });
                }
            }
            Action::Refuse { serve } => {
                self.running.serves.remove(serve);
            }
            Action::Spill { kept } => {
                let (id, bytes, since) = (kept.id.clone(), kept.meta.size, self.now);
                let file = FileTransfer { id: id.clone(), bytes, since };
                insert_bounded(&mut self.running.spills, kept.instance, file);
                self.record(What::Spill { id, bytes });
            }
            Action::Unspill { instance } => {
                if let Some(copy) = machine.table().get(*instance) {
                    let (id, bytes, since) = (copy.id.clone(), copy.meta.size, self.now);
                    let file = FileTransfer { id: id.clone(), bytes, since };
                    insert_bounded(&mut self.running.unspills, *instance, file);
                    self.record(What::Unspill { id, bytes });
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
            Message::LocatePending { id }
            | Message::Located { id, .. }
            | Message::Gone { id, .. } => Question::Locate(id.clone()),
            Message::Claimed { instance, .. } => Question::Claim(*instance),
            Message::LatestReply { request, .. }
            | Message::RequestPending { request, .. }
            | Message::LocationsReply { request, .. } => Question::Numbered(*request),
            _ => return,
        };
        self.latencies.answered(self.now, &question, true);
    }

    fn sent(&mut self, to: NodeId, message: &Message) {
        let (latency, question) = match message {
            Message::Locate { id, .. } => (Latency::Locate, Question::Locate(id.clone())),
            Message::CancelLocate { id } => {
                return self.latencies.answered(self.now, &Question::Locate(id.clone()), false);
            }
            Message::Announce(Announce { claim: true, instance, .. }) => {
                (Latency::Claim, Question::Claim(*instance))
            }
            Message::Latest { request, .. } => (Latency::Latest, Question::Numbered(*request)),
            Message::Locations { request, .. } => {
                (Latency::Locations, Question::Numbered(*request))
            }
            Message::Located { id, source: Source::Holder { node, .. }, .. } => {
                return self.record(What::Locate { id: id.clone(), reader: to, source: *node });
            }
            _ => return,
        };
        self.latencies.asked(self.now, latency, question);
    }

    fn fetch(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        source: NodeId,
        is_ordered: bool,
        machine: &Machine,
    ) {
        let before = self.running.transfers.get(&instance);
        let received = before.map_or(0, |before| before.received);
        let bytes = machine.table().get(instance).map_or(0, |copy| copy.meta.size);
        let usual = if is_ordered { Choice::Ordered } else { Choice::Redirect };
        let choice = self.running.chosen.remove(id).unwrap_or(usual);
        let resumed = received > 0;
        self.totals.fetches_resumed += u64::from(resumed);
        let (since, is_running) = (self.now, true);
        let transfer =
            Transfer { id: id.clone(), source, choice, bytes, received, since, is_running };
        insert_bounded(&mut self.running.transfers, instance, transfer);
        self.record(What::Fetch { id: id.clone(), instance, source, bytes, resumed });
    }

    fn fetch_failed(&mut self, instance: Instance, source: NodeId, not_here: bool) {
        let Some(transfer) = self.running.transfers.get_mut(&instance) else { return };
        transfer.is_running = false;
        let (id, bytes, received) = (transfer.id.clone(), transfer.bytes, transfer.received);
        let why = if not_here { "it has no such copy" } else { "the transfer broke" };
        self.record(What::FetchFailed { id, instance, source, bytes, received, why });
    }

    fn file_failed(&mut self, file: Option<FileTransfer>, why: &str) {
        if let Some(FileTransfer { id, .. }) = file {
            self.record(What::SpillFailed { id, why: beginning(why) });
        }
    }

    fn start_fold(&mut self, order: &FoldOrder, machine: &Machine) {
        let name = |input: &Instance| machine.table().get(*input).map(|copy| copy.id.clone());
        let inputs: Box<[ObjectId]> =
            order.inputs.iter().take(INPUTS_MAX).filter_map(name).collect();
        let children: Box<[NodeId]> =
            order.children.iter().take(CHILDREN_MAX).map(|(node, _)| *node).collect();
        let FoldKey { epoch, position, .. } = order.key;
        self.totals.folds += 1;
        let (result, since) = (order.result.clone(), self.now);
        let (own_children, own_inputs) = (children.clone(), inputs.clone());
        let fold = Fold { result, children: own_children, inputs: own_inputs, since };
        insert_bounded(&mut self.running.folds, order.key, fold);
        let result = order.result.clone();
        self.record(What::Fold { result, epoch, position, parent: (), children, inputs });
    }

    fn fold_ended(&mut self, key: &FoldKey, failure: Option<&str>) {
        self.totals.folds_failed += u64::from(failure.is_some());
        let Some(Fold { result, since, .. }) = self.running.folds.remove(key) else { return };
        let (epoch, position, ns) = (key.epoch, key.position, self.now.since(since));
        let error = failure.map(beginning);
        self.record(What::Folded { result, epoch, position, ns, error });
    }

    /// The reduce of a result, which begins now if it is not known.
    pub(super) fn reduce(&mut self, result: &ObjectId) -> &mut RunningReduce {
        let since = self.now;
        self.running.reduces.entry(result.clone()).or_insert(RunningReduce {
            epoch: 0,
            shape: ReduceShape::Unknown,
            since,
        })
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
                let reason = Box::new(*reason);
                self.reduce(id).shape = ReduceShape::Tree(*degree, reason.clone());
                let (result, degree) = (id.clone(), degree_name(*degree));
                self.record(What::Degree { result, degree, reason });
            }
            LogEvent::RingChosen { id, parts } => {
                self.totals.reduces_ring += 1;
                self.reduce(id).shape = ReduceShape::Ring(*parts as u64);
                self.record(What::Ring { result: id.clone(), parts: *parts as u64 });
            }
            LogEvent::ReduceRestarted { id, epoch, detail } => {
                self.reduce(id).epoch = epoch + 1;
                let (result, epoch, why) = (id.clone(), *epoch, beginning(detail));
                self.record(What::Restart { result, epoch, why });
            }
            LogEvent::ReduceEnded { id, failure } => {
                let known = self.running.reduces.remove(id);
                let ns = known.map_or(0, |reduce| self.now.since(reduce.since));
                let error = failure.as_deref().map(beginning);
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
        let found = self.running.waits.get(&request);
        found.map_or(("request", None), |(open, process)| (open.verb, *process))
    }

    fn chose(&mut self, id: &ObjectId, choice: Choice) {
        if let Some(index) = choice.index() {
            self.totals.choices[index] += 1;
        }
        insert_bounded(&mut self.running.chosen, id.clone(), choice);
    }
}
