//! The one door to the state machine: facts go in, and what it orders is carried out.
//!
//! Orders that are quick, and whose order counts, are carried out before the next fact is handed over: messages are
//! queued, answers given, tasks started. Those that take a while follow when the door is free again, and come back as
//! facts.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant as Clock},
};

use hoplite_proto::{
    ask::{Answer, Ask},
    error::Error as CallError,
    id::{ClientId, Instance, ReduceId, RequestId, ServeId},
    inline::Inline,
    message::{FoldKey, Message},
    meta::{Dtype, Op},
    node::{Action, Config, Event, Node as Machine, Note},
    reduce::cost::Link,
    time::Instant,
};
use hoplite_shm::WriterId;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    runtime::Handle,
    sync::{Notify, oneshot},
    task::AbortHandle,
};
use tracing::{debug, info, warn};

use crate::{
    counters::Counters,
    folding::kernels,
    folding::worker::{self, Streams},
    local::server::Session,
    network::control::Control,
    network::handshake::Identity,
    network::peers::{Outbox, Peers},
    store::Store,
    transfer::limiter::Lanes,
    transfer::receive::{self, Wanted},
    transfer::send::Serving,
};

/// What a leave may take beyond its time: the machine is told the time, and needs a moment to say good-bye.
const LEAVE_SLACK: Duration = Duration::from_millis(500);

/// Takes the answer to a question, on whatever thread has it, without waiting.
pub(crate) type Sink = Box<dyn FnOnce(Result<Answer, CallError>) + Send>;

/// Everything of a running node that its tasks share.
pub(crate) struct Core {
    pub(crate) identity: Identity,
    pub(crate) counters: Counters,
    pub(crate) store: Store,
    pub(crate) peers: Peers,
    pub(crate) control: Control,
    pub(crate) streams: Streams,
    pub(crate) runtime: Handle,
    door: Mutex<Door>,
    inbox: Mutex<VecDeque<Fact>>,
    /// The deadline that the timer sleeps for, which is not after the machine's.
    armed: Mutex<Option<Instant>>,
    begun: Clock,
    timer: Notify,
    ids: AtomicU64,
    replies: Mutex<HashMap<RequestId, Sink>>,
    /// Clients that write their objects themselves, through shared memory.
    attached: Mutex<HashSet<ClientId>>,
    serves: Mutex<HashMap<ServeId, oneshot::Sender<Option<Serving>>>>,
    /// Transfers to here by copy: the number of the task, and how to end it.
    fetches: Mutex<HashMap<Instance, (u64, AbortHandle)>>,
    /// Which of them may begin.
    pub(crate) lanes: Arc<Lanes>,
    /// The processes of this host that are attached.
    pub(crate) sessions: Mutex<HashMap<ClientId, Weak<Session>>>,
    folds: Mutex<HashMap<FoldKey, oneshot::Sender<()>>>,
    link: Mutex<Measured>,
    closed: AtomicBool,
    /// Set when this node has said good-bye: whether others hold all that only it held.
    left: OnceLock<bool>,
    left_changed: Notify,
}

/// Something that the node is told.
struct Fact {
    event: Event,
    /// It is the end of this transfer to here, and void if that is not under way any more.
    transfer: Option<(Instance, u64)>,
}

struct Door {
    machine: Machine,
    actions: Vec<Action>,
    /// To whom something was said that has not left yet.
    unsent: Vec<Arc<Outbox>>,
}

/// What transfers have shown of latency and bandwidth.
struct Measured {
    link: Link,
    has_latency: bool,
    has_bandwidth: bool,
}

/// An order that takes a while.
enum Slow {
    CreateSlot { instance: Instance, size: u64, writer: Option<WriterId> },
    FoldInline { reduce: ReduceId, epoch: u32, op: Op, dtype: Dtype, inputs: Vec<Inline> },
}

/// Bytes of inputs that are folded at the door: 10 us, less than another thread takes to wake up.
const QUICK_FOLD_BYTES_MAX: u64 = 64 * 1024;

/// Room for facts and for orders that is kept when they are done: after a change of members there may be very many.
const QUEUE_KEPT: usize = 1024;

/// Bytes of the largest object for which warm memory is taken at the door: its progress, which is set to zero, is a bit
/// for each block, 32 KiB of them.
const WARM_BYTES_MAX: u64 = 4 << 30;

impl Core {
    pub(crate) fn new(
        identity: Identity,
        config: Config,
        control: Control,
        runtime: Handle,
    ) -> Arc<Self> {
        let machine = Machine::new(identity.member, config);
        let (has_latency, has_bandwidth) = (false, false);
        let link = Measured { link: config.link, has_latency, has_bandwidth };
        let core = Arc::new(Self {
            identity,
            counters: Counters::default(),
            store: Store::new(config.capacity),
            peers: Peers::default(),
            control,
            streams: Streams::default(),
            runtime,
            door: Mutex::new(Door { machine, actions: Vec::new(), unsent: Vec::new() }),
            inbox: Mutex::default(),
            armed: Mutex::default(),
            begun: Clock::now(),
            timer: Notify::new(),
            ids: AtomicU64::new(1),
            replies: Mutex::default(),
            attached: Mutex::default(),
            serves: Mutex::default(),
            fetches: Mutex::default(),
            lanes: Arc::default(),
            sessions: Mutex::default(),
            folds: Mutex::default(),
            link: Mutex::new(link),
            closed: AtomicBool::new(false),
            left: OnceLock::new(),
            left_changed: Notify::new(),
        });
        core.runtime.spawn(keep_time(core.clone()));
        core.runtime.spawn({
            let core = core.clone();
            async move { core.peers.flush_late().await }
        });
        core
    }

    /// Now, in the machine's time.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A number that was not given out before, for clients, requests and transfers.
    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Says that a client writes through shared memory of its own.
    pub(crate) fn attach(&self, client: ClientId) {
        lock(&self.attached).insert(client);
    }

    /// Asks on behalf of a client; `sink` gets the answer, perhaps before this returns. `may_wait` if this thread would
    /// wait for it anyway.
    pub(crate) fn ask(
        self: &Arc<Self>,
        client: ClientId,
        ask: Ask,
        timeout: Option<Duration>,
        may_wait: bool,
        sink: Sink,
    ) -> RequestId {
        let request = RequestId(self.next_id());
        let deadline = timeout
            .map(|timeout| self.now() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        lock(&self.replies).insert(request, sink);
        let event = Event::Asked { client, request, ask, deadline };
        if self.is_closed() {
            self.fail_all();
        } else if may_wait && Handle::try_current().is_err() {
            let fact = Fact { event, transfer: None };
            self.pass(fact).into_iter().for_each(|order| self.perform_slow(order));
        } else {
            self.drive(event);
        }
        request
    }

    /// Tells the node something that is not answered: a release.
    pub(crate) fn tell(self: &Arc<Self>, client: ClientId, ask: Ask) {
        let request = RequestId(self.next_id());
        self.drive(Event::Asked { client, request, ask, deadline: None });
    }

    /// How the node is, as JSON.
    pub(crate) fn describe(
        self: &Arc<Self>,
        client: ClientId,
        sink: impl FnOnce(Result<String, CallError>) + Send + 'static,
    ) -> RequestId {
        let core = self.clone();
        let answer = move |answer: Result<Answer, CallError>| {
            sink(answer.and_then(|answer| match answer {
                Answer::Status(status) => Ok(core.description(&status).to_string()),
                _ => Err(CallError::NodeDown("it gave an answer to another question".into())),
            }));
        };
        self.ask(client, Ask::Status, None, false, Box::new(answer))
    }

    pub(crate) fn client_gone(self: &Arc<Self>, client: ClientId) {
        self.drive(Event::ClientGone { client });
        lock(&self.attached).remove(&client);
    }

    /// Pins what a client reads once more, until the pipe whose reading end this is has no other end.
    pub(crate) fn hold(self: &Arc<Self>, client: ClientId, end: OwnedFd) {
        let heir = ClientId(self.next_id());
        self.drive(Event::ClientForked { client, heir });
        let core = self.clone();
        self.runtime.spawn(async move {
            if let Ok(mut end) = pipe::Receiver::from_owned_fd(end) {
                // Nobody writes into it: it is readable when it is over.
                let mut byte = [0];
                while end.read(&mut byte).await.is_ok_and(|count| count > 0) {}
            }
            core.client_gone(heir);
        });
    }

    /// Keeps the place of a transfer that the machine is asked about.
    pub(crate) fn expect_serve(&self) -> (ServeId, oneshot::Receiver<Option<Serving>>) {
        let serve = ServeId(self.next_id());
        let (sender, receiver) = oneshot::channel();
        lock(&self.serves).insert(serve, sender);
        (serve, receiver)
    }

    /// Nobody waits for the decision on a transfer any more.
    pub(crate) fn forget_serve(&self, serve: ServeId) {
        lock(&self.serves).remove(&serve);
    }

    /// Hands a fact to the machine and carries out what it orders.
    ///
    /// Never waits: while another thread is at the door, that thread takes this fact too. So a fact may be stated from
    /// anywhere, also from within the carrying out of an order.
    pub(crate) fn drive(self: &Arc<Self>, event: Event) {
        self.drive_fact(Fact { event, transfer: None });
    }

    /// Tells the node how a transfer to here ended, unless it has been stopped by the time that the node hears of it.
    pub(crate) fn drive_transfer(self: &Arc<Self>, instance: Instance, serial: u64, event: Event) {
        self.drive_fact(Fact { event, transfer: Some((instance, serial)) });
    }

    fn drive_fact(self: &Arc<Self>, fact: Fact) {
        for order in self.pass(fact) {
            // New memory would hold up the transfers beside this task, or a thread that only lets go of something.
            let core = self.clone();
            drop(self.runtime.spawn_blocking(move || core.perform_slow(order)));
        }
    }

    /// Takes all facts that there are through the door, and returns the orders that take a while.
    fn pass(self: &Arc<Self>, fact: Fact) -> Vec<Slow> {
        {
            let mut inbox = lock(&self.inbox);
            // Who lives must not wait behind all that is told when many have come back: they would be lost again.
            if matches!(fact.event, Event::Message { message: Message::Rumour(_), .. }) {
                inbox.push_front(fact);
            } else {
                inbox.push_back(fact);
            }
        }
        let mut slow = Vec::new();
        loop {
            match self.door.try_lock() {
                Ok(mut door) => self.drain(&mut door, &mut slow),
                Err(TryLockError::Poisoned(door)) => self.drain(&mut door.into_inner(), &mut slow),
                // Whoever is there looks into the inbox again after leaving. Nobody is there for another reason.
                Err(TryLockError::WouldBlock) => return slow,
            }
            if lock(&self.inbox).is_empty() {
                return slow;
            }
        }
    }

    fn next_fact(&self) -> Option<Fact> {
        let mut inbox = lock(&self.inbox);
        let fact = inbox.pop_front();
        if fact.is_none() {
            inbox.shrink_to(QUEUE_KEPT);
        }
        fact
    }

    fn drain(self: &Arc<Self>, door: &mut Door, slow: &mut Vec<Slow>) {
        let mut actions = std::mem::take(&mut door.actions);
        while let Some(Fact { event, transfer }) = self.next_fact() {
            if transfer.is_some_and(|(instance, serial)| !self.fetch_over(instance, serial)) {
                continue;
            }
            door.machine.handle(self.now(), event, &mut actions);
            for action in actions.drain(..) {
                self.perform(action, slow, &mut door.unsent);
            }
        }
        actions.shrink_to(QUEUE_KEPT);
        door.actions = actions;
        door.unsent.drain(..).for_each(|outbox| outbox.flush());
        let deadline = door.machine.deadline();
        let mut armed = lock(&self.armed);
        // A timer that goes off too early looks again. Most questions are answered long before their deadlines, and to
        // wake its task for each of them twice would cost more than the question itself.
        let is_late = |deadline: Instant| armed.is_none_or(|armed| deadline < armed);
        if deadline.is_some_and(is_late) {
            *armed = deadline;
            self.timer.notify_one();
        }
    }

    fn perform(
        self: &Arc<Self>,
        action: Action,
        slow: &mut Vec<Slow>,
        unsent: &mut Vec<Arc<Outbox>>,
    ) {
        match action {
            Action::Reply { request, answer, .. } => {
                let sink = lock(&self.replies).remove(&request);
                if let Some(sink) = sink {
                    sink(answer);
                }
            }
            Action::Send { to, message } => {
                self.counters.messages_sent.add(1);
                self.peers.queue(to, &message, unsent);
            }
            Action::AddPeer(member) => {
                info!(node = %member.id, address = %member.address, "a member");
                self.peers.add(self, member);
            }
            Action::DropPeer { node, has_left } => {
                info!(%node, "no member any more");
                self.peers.remove(node, has_left);
                self.control.remove(node);
            }
            Action::Call(member) => Peers::call(self, member),
            Action::CreateSlot { instance, size, writer } => {
                let is_attached = |client: &ClientId| lock(&self.attached).contains(client);
                let writer = writer.filter(is_attached).map(|client| WriterId(client.0));
                if size <= WARM_BYTES_MAX && self.store.create_warm(instance, size, writer) {
                    self.drive(Event::SlotReady { instance });
                } else {
                    slow.push(Slow::CreateSlot { instance, size, writer });
                }
            }
            Action::FreeSlot { instance } => {
                // What was received into it is no news of whatever comes into its place.
                self.stop_fetch(instance);
                self.store.free(instance);
            }
            Action::Fetch { id, instance, source, parts } => {
                self.fetch(Wanted { id, instance, source, parts });
            }
            Action::StopFetch { instance } => self.stop_fetch(instance),
            Action::Serve { serve, instance, relayed } => {
                self.begin_serve(serve, instance, relayed)
            }
            Action::Refuse { serve } => {
                self.counters.refusals.add(1);
                if let Some(asker) = lock(&self.serves).remove(&serve) {
                    let _ = asker.send(None);
                }
            }
            Action::StartFold { order, target } => {
                let (stop, stopped) = oneshot::channel();
                lock(&self.folds).insert(order.key, stop);
                worker::start(self, order, target, stopped);
            }
            Action::StopFold { key } => {
                // Dropping the sender stops the fold; one that is over already does not mind.
                drop(lock(&self.folds).remove(&key));
            }
            Action::FoldInline { reduce, epoch, op, dtype, inputs } => {
                let bytes: u64 = inputs.iter().map(Inline::len).sum();
                let fold = Slow::FoldInline { reduce, epoch, op, dtype, inputs };
                if bytes <= QUICK_FOLD_BYTES_MAX {
                    self.perform_slow(fold);
                } else {
                    slow.push(fold);
                }
            }
            Action::Note(note) => self.note(&note),
            Action::Left { is_kept } => {
                // It is said once.
                let _ = self.left.set(is_kept);
                self.left_changed.notify_waiters();
            }
        }
    }

    fn begin_serve(self: &Arc<Self>, serve: ServeId, instance: Instance, relayed: bool) {
        let asker = lock(&self.serves).remove(&serve);
        let held = self.store.get(instance);
        let is_taken = match (asker, held) {
            (Some(asker), Some(held)) => asker.send(Some(Serving { held, relayed })).is_ok(),
            (Some(asker), None) => {
                let _ = asker.send(None);
                false
            }
            (None, _) => false,
        };
        if !is_taken {
            // The receiver or its connection is gone: nobody else will say that this transfer is over.
            self.drive(Event::ServeEnded { serve });
        }
    }

    fn perform_slow(self: &Arc<Self>, order: Slow) {
        match order {
            Slow::CreateSlot { instance, size, writer } => {
                let event = match self.store.create(instance, size, writer) {
                    Ok(gone) => {
                        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
                        for session in sessions.iter().filter_map(Weak::upgrade) {
                            session.forget(&gone);
                        }
                        Event::SlotReady { instance }
                    }
                    Err(error) => Event::SlotFailed { instance, detail: error.to_string() },
                };
                self.drive(event);
            }
            Slow::FoldInline { reduce, epoch, op, dtype, inputs } => {
                let count = inputs.len() as u64;
                let bytes: u64 = inputs.iter().map(Inline::len).sum();
                self.counters.bytes_folded_local.add(bytes);
                let mut inputs = inputs.into_iter();
                let mut result =
                    inputs.next().map_or_else(Vec::new, |first| first.as_bytes().to_vec());
                inputs.for_each(|input| kernels::fold(op, dtype, &mut result, input.as_bytes()));
                kernels::finish(op, dtype, &mut result, count);
                self.drive(Event::FoldedInline { reduce, epoch, result: result.into() });
            }
        }
    }

    fn note(&self, note: &Note) {
        match note {
            Note::SourceChosen { id, source, reason } => {
                debug!(%id, %source, %reason, "source chosen");
            }
            Note::SenderReplaced { id, before, source } => {
                debug!(%id, %before, %source, "sender replaced");
            }
            Note::DegreeChosen { id, degree, reason } => {
                debug!(%id, %degree, %reason, "degree chosen");
            }
            Note::Scattered { id, parts } => debug!(%id, parts, "scattered"),
            Note::SenderAvoided { node, blocks } => warn!(
                %node,
                blocks,
                "a node, or the way from it, changes bytes: it is taken only if nobody else has an object"
            ),
            Note::ReduceRestarted { id, epoch, detail } => {
                self.counters.reduces_restarted.add(1);
                info!(%id, epoch, detail, "a reduce begins again");
            }
            Note::Evicted { copies } => {
                self.counters.evictions.add(*copies as u64);
                debug!(copies, "evicted");
            }
        }
    }

    fn fetch(self: &Arc<Self>, wanted: Wanted) {
        let (serial, instance) = (self.next_id(), wanted.instance);
        // Locked before the task can end, which takes its entry away.
        let mut fetches = lock(&self.fetches);
        let task = self.runtime.spawn(receive::copy(self.clone(), wanted, serial));
        if let Some((_, before)) = fetches.insert(instance, (serial, task.abort_handle())) {
            before.abort();
        }
    }

    fn stop_fetch(&self, instance: Instance) {
        if let Some((_, task)) = lock(&self.fetches).remove(&instance) {
            task.abort();
        }
    }

    /// A copy has arrived or stopped arriving: forgets its task; false if that was stopped or replaced before.
    fn fetch_over(&self, instance: Instance, serial: u64) -> bool {
        let mut fetches = lock(&self.fetches);
        let is_current = fetches.get(&instance).is_some_and(|(current, _)| *current == serial);
        if is_current {
            fetches.remove(&instance);
        }
        is_current
    }

    /// A fold is over: forgets how to stop it.
    pub(crate) fn fold_over(&self, key: FoldKey) {
        lock(&self.folds).remove(&key);
    }

    /// A round trip to another node was timed.
    pub(crate) fn measured_round_trip(self: &Arc<Self>, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX);
        self.measure(|measured| {
            let old = measured.link.latency_ns;
            // A busy process answers late, and none too early: what is longer counts little.
            measured.link.latency_ns = match measured.has_latency {
                true if sample > old => old + (sample - old) / 16,
                _ => sample,
            };
            measured.has_latency = true;
        });
    }

    /// `bytes` arrived from one sender in `time`. It may have waited for them itself, or shared its link: then the link
    /// is at least so fast, and only `is_steady` says that it is not much faster.
    pub(crate) fn measured_transfer(self: &Arc<Self>, bytes: u64, time: Duration, is_steady: bool) {
        let nanoseconds = time.as_nanos().max(1);
        let sample =
            u64::try_from(u128::from(bytes) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX);
        self.measure(|measured| {
            let old = measured.link.bytes_per_second;
            measured.link.bytes_per_second = match measured.has_bandwidth {
                true if sample < old && is_steady => smooth(old, sample),
                // Links that have become slower show in the end too.
                true if sample < old => old - (old - sample) / 64,
                _ => sample,
            };
            measured.has_bandwidth = true;
        });
    }

    /// Latency and bandwidth as they are known now.
    pub(crate) fn link(&self) -> Link {
        lock(&self.link).link
    }

    fn measure(self: &Arc<Self>, update: impl FnOnce(&mut Measured)) {
        let (link, has_bandwidth) = {
            let mut measured = lock(&self.link);
            update(&mut measured);
            (measured.link, measured.has_bandwidth)
        };
        self.drive(Event::LinkMeasured { link, has_bandwidth });
    }

    /// Leaves the cluster: hands over what only this node holds, and finishes what it folds for others. Returns when that is
    /// done or `patience` is over; whether everything was handed over.
    pub(crate) async fn leave(self: &Arc<Self>, patience: Duration) -> bool {
        let left = async {
            loop {
                let changed = self.left_changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(is_kept) = self.left.get() {
                    return *is_kept;
                }
                changed.await;
            }
        };
        let patience_ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.drive(Event::LeaveAsked { patience_ns });
        // The machine ends it in time and says good-bye; without a thread for that it ends here.
        tokio::time::timeout(patience + LEAVE_SLACK, left).await.unwrap_or(false)
    }

    /// Ends everything: whoever still waits is told that the node is down.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.fail_all();
        for (_, (_, task)) in lock(&self.fetches).drain() {
            task.abort();
        }
        self.control.close();
        lock(&self.folds).clear();
        lock(&self.serves).clear();
        self.store.clear();
    }

    fn fail_all(&self) {
        let sinks: Vec<Sink> = lock(&self.replies).drain().map(|(_, sink)| sink).collect();
        for sink in sinks {
            sink(Err(CallError::NodeDown("the node is closed".into())));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How many transfers out of this node are under way.
    pub(crate) fn has_serves(&self) -> bool {
        !self.streams.is_idle()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Hands over `DeadlinePassed` when the machine's deadline is there.
async fn keep_time(core: Arc<Core>) {
    while !core.is_closed() {
        let deadline = *lock(&core.armed);
        let Some(deadline) = deadline else {
            core.timer.notified().await;
            continue;
        };
        let wait = Duration::from_nanos(deadline.since(core.now()));
        if wait.is_zero() {
            *lock(&core.armed) = None;
            core.drive(Event::DeadlinePassed);
            core.streams.give_back();
            // Whoever is at the door may still have to take it.
            tokio::task::yield_now().await;
            continue;
        }
        let _ = tokio::time::timeout(wait, core.timer.notified()).await;
    }
}

/// A quarter of the new, three of the old: a single odd sample does not change a plan.
const fn smooth(old: u64, sample: u64) -> u64 {
    old / 4 * 3 + sample / 4
}

/// A lock whose holder panicked still guards sound data here: every change under it is complete or none.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
