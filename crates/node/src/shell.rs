//! Executes the actions of the state machine: dispatches each to the folder that handles it.
//!
//! Does not know when or why actions occur.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::{ClientId, Instance, NodeId, ServeId},
    inline::Inline,
    inspection::Inspection,
    members::Member,
    node::{self, Action, Event, LogEvent, LostObjects, Node as Machine},
    request::{Reply, Status},
    time::Instant,
};
use hoplite_shm::{Limit, ShmError, memory_limit};
use serde_json::Value;
use tokio::sync::SetOnce;
use tracing::{debug, info, warn};

use crate::{
    disk::Disk,
    engine::{event_loop::Execute, tasks::Task},
    folding::worker::{self, Folding},
    limited::LimitKey,
    local::{describe, programs::Programs},
    mutants,
    network::{connect, peers::DueOutboxes, shared::Network},
    observe::{clients::Lookup, recorder::Recorder, report},
    repeats::log_once,
    transfer::{receive, shared::Transfers},
};

/// The parts of a node that execute actions.
pub(crate) struct Shell {
    pub(crate) network: Arc<Network>,
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) programs: Arc<Programs>,
    folding: Arc<Folding>,
    pub(crate) disk: Option<Arc<Disk>>,
    /// Set when this node has sent `Leave`: the objects that no other node has taken over.
    left: SetOnce<LostObjects>,
}

/// What the event loop keeps for the shell, under its own lock.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// Outboxes with messages to flush.
    unsent: DueOutboxes,
    recorder: Recorder,
}

impl Lookup for Shell {
    fn process(&self, client: ClientId) -> Option<u32> {
        self.programs.process(client)
    }

    fn reader(&self, serve: ServeId) -> Option<NodeId> {
        self.transfers.reader(serve)
    }
}

/// Limit of inputs folded in the event loop, in bytes: 10 us, less than another thread takes to
/// wake up.
const QUICK_FOLD_BYTES_MAX: u64 = 64 * 1024;

/// Size of the largest object for which warm memory is taken in the event loop: its progress, one
/// bit per block, is 32 KiB that are set to zero.
const WARM_BYTES_MAX: u64 = 4 << 30;

/// Extra time of a leave after its timeout: the state machine has the timeout, and needs a moment
/// to send `Leave`.
const LEAVE_SLACK: Duration = Duration::from_millis(500);

impl Shell {
    pub(crate) fn new(
        transfers: Arc<Transfers>,
        programs: Arc<Programs>,
        disk: Option<Arc<Disk>>,
    ) -> Self {
        Self {
            folding: Arc::new(Folding::new(transfers.clone(), disk.clone())),
            disk,
            network: transfers.network.clone(),
            transfers,
            programs,
            left: SetOnce::new(),
        }
    }

    /// Leaves the cluster: hands over the objects that only this node holds, and finishes its folds
    /// for others. Returns when that is done or the timeout has passed, with whether everything was
    /// handed over. A node that stopped by itself hands nothing over.
    pub(crate) async fn leave(&self, grace: Duration) -> bool {
        let timeout_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        self.network.events.send(Event::LeaveRequested { timeout_ns });
        tokio::select! {
            // The state machine ends the leave in time. This timeout is for a node without a thread
            // to run it.
            left = tokio::time::timeout(grace + LEAVE_SLACK, self.left.wait()) => {
                left.is_ok_and(is_nothing)
            }
            () = self.network.tasks.failed() => false,
        }
    }

    /// Closes everything: every open request fails because the node has ended.
    pub(crate) fn close(&self) {
        self.network.tasks.close();
        self.programs.close();
        self.transfers.close();
        self.network.control.close();
        self.folding.close();
        self.transfers.store.clear();
        if let Some(disk) = &self.disk {
            disk.close();
        }
    }

    /// Makes another thread allocate memory for the next large object, if several follow each
    /// other.
    fn make_ahead(&self) {
        if self.transfers.store.arena.begin_ahead() {
            let store = self.transfers.store.clone();
            let making = move || store.arena.make_ahead();
            drop(self.network.tasks.spawn_blocking(Task::SlowActions, making));
        }
    }

    /// Writes a report for `inspect`, here rather than on another thread: it takes two milliseconds
    /// at most.
    fn report(&self, inspection: Inspection, machine: &Machine, recorder: &Recorder) -> String {
        let (network, me) = (&self.network, self.network.identity.member.id);
        match inspection {
            Inspection::Activity { after, limit } => {
                report::activity(recorder, me, machine, after, limit)
            }
            Inspection::Metrics => {
                let status = self.describe(&machine.status());
                let peers = network.traffic.values(machine.members());
                report::metrics(recorder, me, machine, &status, &peers)
            }
        }
    }

    /// The status of the node as JSON.
    fn describe(&self, status: &Status) -> Value {
        describe::description(status, &self.network, self.transfers.store.arena.stats())
    }

    /// Allocates a slot, if warm memory is there for it. Otherwise returns the action, which is
    /// slow.
    fn create_slot(
        &self,
        instance: Instance,
        size: u64,
        writer: Option<ClientId>,
    ) -> Option<Action> {
        let store = &self.transfers.store;
        let as_writer = writer.and_then(|client| self.programs.writer(client));
        let is_warm = size <= WARM_BYTES_MAX && store.create_warm(instance, size, as_writer);
        self.make_ahead();
        if !is_warm {
            return Some(Action::CreateSlot { instance, size, writer });
        }
        self.network.events.send(Event::SlotReady { instance });
        None
    }

    /// Executes an action on the file of a copy.
    fn execute_on_disk(&self, action: Action) {
        let (Some(disk), store) = (&self.disk, &self.transfers.store) else { return };
        match action {
            Action::Spill { kept } => {
                let held = store.get(kept.instance);
                disk.spill(kept, held);
            }
            Action::Unspill { instance } => {
                store.get(instance).into_iter().for_each(|held| disk.unspill(instance, held));
            }
            Action::DropSpilled { instance } => disk.drop_file(instance),
            _ => {}
        }
    }

    fn add_peer(&self, member: Member, machine: &Machine) {
        info!(node = %member.id, address = %member.address, "added a member");
        connect::add(&self.network, member);
        self.network.survey.members_changed(machine.members());
    }

    fn drop_peer(&self, node: NodeId, has_left: bool, machine: &Machine) {
        info!(%node, "removed a member");
        // Before its address is unknown to the tasks that connect to configured addresses.
        self.network.identity.own_cluster.member_lost();
        self.network.peers.remove(node, has_left);
        self.network.control.remove(node);
        self.network.survey.members_changed(machine.members());
    }

    fn note(&self, note: &LogEvent, recorder: &Recorder) {
        match note {
            LogEvent::SourceChosen { id, source, reason } => {
                debug!(%id, %source, %reason, "source chosen");
            }
            LogEvent::SourceReplaced { id, before, source } => {
                debug!(%id, %before, %source, "sender replaced");
            }
            LogEvent::DegreeChosen { id, degree, reason } => {
                debug!(%id, %degree, %reason, "degree chosen");
            }
            LogEvent::RingChosen { id, parts } => debug!(%id, parts, "scattered"),
            LogEvent::SourceAvoided { node, blocks } => warn!(
                %node,
                blocks,
                "a node, or the path from it, corrupts data: receiving objects from it only if no \
                 other node has a copy"
            ),
            LogEvent::ReduceRestarted { id, epoch, detail } => {
                self.network.counters.reduces_restarted.add(1);
                info!(%id, epoch, detail, "a reduce restarts");
            }
            LogEvent::ReplicaLate { id, node } => {
                self.network.counters.replicas_late.add(1);
                log_once!(
                    info, node, %id, %node,
                    "a node has not confirmed a replica in time: trying another"
                );
            }
            LogEvent::MessageRejected { from, message } => {
                self.network.counters.messages_refused.add(1);
                debug!(
                    %from, ?message,
                    "dropped a message: it is malformed, or its sender is not an owner"
                );
            }
            LogEvent::Limited { whose, limit } => {
                let whose = match whose {
                    node::LimitSubject::Member(node) => LimitKey::Member(*node),
                    node::LimitSubject::Client(client) => {
                        LimitKey::Process(self.programs.process(*client))
                    }
                };
                self.network.limited.note(whose, limit);
                debug!(?whose, limit, "a limit rejected a request");
            }
            LogEvent::LongWait { request, what, state, waited_ns } => {
                let (verb, process) = recorder.wait(*request);
                let waited_s = waited_ns / 1_000_000_000;
                info!(process, verb, waited_s, %what, state, "a request still waits");
            }
            LogEvent::ReduceEnded { .. } | LogEvent::MemberRemoved { .. } => {}
            LogEvent::Evicted { copies } => {
                self.network.counters.evictions.add(*copies as u64);
                debug!(copies, "evicted");
            }
        }
    }
}

impl Execute for Shell {
    type Rest = Rest;

    fn observe(&self, now: Instant, event: &Event, machine: &Machine, rest: &mut Rest) {
        rest.recorder.event(now, event, machine, self);
    }

    fn execute(&self, action: Action, machine: &Machine, rest: &mut Rest) -> Option<Action> {
        rest.recorder.action(&action, machine, self);
        match action {
            Action::Reply { request, reply: Ok(Reply::Status(status)), .. } => {
                let report = self.describe(&status).to_string();
                self.programs.answer(request, Ok(Reply::Inspected { report }));
            }
            Action::Reply { request, reply, .. } => self.programs.answer(request, reply),
            Action::WorkEnded { request } => self.programs.work_ended(request),
            Action::Send { to, message } => {
                self.network.counters.messages_sent.add(1);
                self.network.peers.queue(to, &mutants::said(message), &mut rest.unsent);
            }
            Action::AddPeer(member) => self.add_peer(member, machine),
            Action::DropPeer { node, has_left } => self.drop_peer(node, has_left, machine),
            Action::Reconnect(member) => connect::call(&self.network, member),
            Action::CreateSlot { instance, size, writer } => {
                return self.create_slot(instance, size, writer);
            }
            Action::FreeSlot { instance } => self.transfers.store.free(instance),
            Action::Spill { .. } | Action::Unspill { .. } | Action::DropSpilled { .. } => {
                self.execute_on_disk(action);
            }
            Action::Fetch(order) => receive::start(&self.transfers, &self.transfers.path, order),
            Action::StopFetch { fetch } => self.transfers.stop_fetch(fetch),
            Action::Serve { serve, instance, relayed } => {
                self.transfers.grant_serve(serve, instance, relayed);
            }
            Action::Refuse { serve } => self.transfers.refuse_serve(serve),
            Action::StartFold { order, target } => worker::start(&self.folding, order, target),
            Action::StopFold { key } => self.folding.stop(key),
            Action::FoldInline { ref inputs, .. } => {
                if inputs.iter().map(Inline::len).sum::<u64>() > QUICK_FOLD_BYTES_MAX {
                    return Some(action);
                }
                self.execute_slowly(action);
            }
            Action::Inspect { to, number, inspection } => {
                let report = self.report(inspection, machine, &rest.recorder);
                self.network.events.send(Event::Inspected { to, number, report });
            }
            Action::Survey { from, message } => {
                self.network.survey.receive(from, message);
            }
            Action::Log(note) => self.note(&note, &rest.recorder),
            Action::Left { lost } => {
                // The state machine reports it once.
                let _ = self.left.set(lost);
            }
        }
        None
    }

    fn finish(&self, rest: &mut Rest) {
        rest.unsent.flush();
    }

    fn execute_slowly(&self, action: Action) {
        match action {
            Action::CreateSlot { instance, size, writer } => {
                let writer = writer.and_then(|client| self.programs.writer(client));
                let tell_gone = || self.programs.forget_gone();
                let created = self.transfers.store.create(instance, size, writer, tell_gone);
                // It may have taken the memory allocated ahead.
                self.make_ahead();
                self.network.events.send(match created {
                    Ok(()) => Event::SlotReady { instance },
                    // Memory that can never be allocated fails at once instead.
                    Err(ref error @ ShmError::NoMemory { wanted, ref limit, .. })
                        if *limit != Limit::FileSize && wanted <= memory_limit().0 =>
                    {
                        self.network.counters.memory_refused.add(1);
                        debug!(%instance, %error, "no memory for a copy");
                        Event::SlotRefused { instance, detail: error.to_string() }
                    }
                    Err(error) => Event::SlotFailed { instance, detail: error.to_string() },
                });
            }
            Action::FoldInline { reduce, epoch, op, dtype, inputs } => {
                let result = self.folding.fold_inline(op, dtype, &inputs);
                self.network.events.send(Event::FoldedInline { reduce, epoch, result });
            }
            quick => debug_assert!(false, "{quick:?} must be executed in the event loop"),
        }
    }
}

/// Whether a node that left has handed over everything. Logs the objects that are lost.
fn is_nothing(lost: &LostObjects) -> bool {
    if lost.count > 0 {
        let named: Vec<String> = lost.ids.iter().map(ToString::to_string).collect();
        let (count, first) = (lost.count, named.join(" "));
        warn!(
            count,
            first, "objects are lost: no other node had capacity for them before this one left"
        );
    }
    lost.count == 0
}
