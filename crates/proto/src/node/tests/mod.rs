//! Whole nodes that exchange messages in memory: every event and every action in the life of an
//! object.
//!
//! The shells execute every action at once; the simulator has clocks and a network.

mod capacity;
mod inspect;
mod leave;
mod lifetime;
mod list;
mod many_inputs;
mod memory;
mod names;
mod places;
mod range;
mod refused;
mod replicate;
mod reserve;
mod reserve_name;
mod ring;
mod spill;
mod unresponsive;
mod wait;
mod walk;

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};

use super::*;
use crate::{
    broadcast::Reason,
    directory::Slice,
    error::Error,
    id::{ClientId, FetchId, Instance, NodeId, ObjectId, QuestionId, RequestId, ServeId},
    inline::Inline,
    limits::OWNER_TIMEOUT_NS,
    members::Member,
    message::{FoldOrder, Holding, Located, Message, Source},
    meta::{Dtype, Meta, Op},
    question::{Answer, Question},
    reduce::cost::Link,
    request::{Reply, Request},
    time::Instant,
};

const LARGE: u64 = 1 << 20;
const CLIENT: ClientId = ClientId(1);
const SECOND: u64 = 1_000_000_000;

/// Nodes 1, 2, ..., which have met each other.
struct Cluster {
    nodes: BTreeMap<NodeId, Node>,
    now: Instant,
    queue: VecDeque<(NodeId, Event)>,
    replies: BTreeMap<RequestId, Result<Reply, Error>>,
    /// Requested transfers: requester, instance and source.
    fetches: BTreeMap<ServeId, (NodeId, Instance, NodeId)>,
    /// The number of each transfer at its receiver.
    fetch_ids: BTreeMap<ServeId, FetchId>,
    /// The instances at the sources of requested transfers.
    fetched: BTreeMap<ServeId, Instance>,
    /// Transfers in progress.
    serving: BTreeSet<ServeId>,
    /// Nodes that fold the parts of an instance. The parts circulate once all of them have the
    /// order.
    contributors: BTreeMap<Instance, Vec<NodeId>>,
    by_parts: BTreeSet<ServeId>,
    /// Fold orders, in the order in which they were given.
    folds: Vec<(NodeId, FoldOrder)>,
    /// Whether folds continue until they are stopped, and the folds that do.
    keeps_folding: bool,
    folding: Vec<(NodeId, Event)>,
    /// What nodes have done, as text.
    done: Vec<String>,
    /// A node that does not receive the end of reduces.
    deaf: Option<NodeId>,
    /// A slow node, and its pending events.
    slow: Option<(NodeId, VecDeque<Event>)>,
    /// A path on which messages are held back: from a node to another one.
    broken: Option<(NodeId, NodeId, VecDeque<Event>)>,
    /// Nodes whose shells have no memory; and the number of copies for which any shell refuses
    /// memory at first.
    without_memory: BTreeSet<NodeId>,
    refusals: u32,
    /// The disks.
    disk: spill::Disk,
    counted: u64,
    /// Objects that were lost with leaving nodes.
    lost: BTreeMap<NodeId, LostObjects>,
}

impl Cluster {
    fn new(size: u64) -> Self {
        Self::with_capacity(size, 1 << 30)
    }

    fn with_capacity(size: u64, capacity: u64) -> Self {
        Self::in_slices(size, capacity, Slice::default())
    }

    /// The same, with nodes that handle a membership change in slices of this size.
    fn in_slices(size: u64, capacity: u64, slice: Slice) -> Self {
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            now: Instant(SECOND),
            queue: VecDeque::new(),
            replies: BTreeMap::new(),
            fetches: BTreeMap::new(),
            fetch_ids: BTreeMap::new(),
            fetched: BTreeMap::new(),
            serving: BTreeSet::new(),
            contributors: BTreeMap::new(),
            by_parts: BTreeSet::new(),
            folds: Vec::new(),
            keeps_folding: false,
            folding: Vec::new(),
            done: Vec::new(),
            deaf: None,
            slow: None,
            broken: None,
            without_memory: BTreeSet::new(),
            refusals: 0,
            disk: spill::Disk::default(),
            counted: 0,
            lost: BTreeMap::new(),
        };
        let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
        for id in 1..=size {
            let config = Config { slice, ..Config::new(capacity, link) };
            cluster.join(id, config);
        }
        assert!(cluster.nodes.values().all(|node| node.members().iter().count() as u64 == size));
        cluster
    }

    /// A node joins through node 1.
    fn join(&mut self, id: u64, config: Config) {
        self.nodes.insert(NodeId(id), Node::new(member(id), config));
        if id > 1 {
            self.tell(id, Event::PeerUp { member: member(1) });
            self.tell(1, Event::PeerUp { member: member(id) });
        }
    }

    /// The number of the last open question of a node.
    fn question_of(&self, node: u64) -> QuestionId {
        *self.nodes[&NodeId(node)].questions.last().expect("it waits for an answer")
    }

    /// Delivers an event to a node, and handles everything that follows.
    fn tell(&mut self, node: u64, event: Event) {
        self.queue.push_back((NodeId(node), event));
        while let Some((node, event)) = self.queue.pop_front().or_else(|| self.next_end()) {
            if let Some((slow, waiting)) = &mut self.slow
                && *slow == node
            {
                waiting.push_back(event);
                continue;
            }
            if let Some((from, to, waiting)) = &mut self.broken
                && *to == node
                && matches!(event, Event::Message { from: sender, .. } if sender == *from)
            {
                waiting.push_back(event);
                continue;
            }
            let Some(to) = self.nodes.get_mut(&node) else {
                if let Event::FetchRequested { serve, .. } = event {
                    let (requester, ..) = self.fetches[&serve];
                    let fetch = self.fetch_ids[&serve];
                    let failed = Event::FetchFailed { fetch, not_here: false };
                    self.queue.push_back((requester, failed));
                }
                continue;
            };
            let mut actions = Vec::new();
            to.handle(self.now, event, &mut actions);
            for action in actions {
                self.carry_out(node, action);
            }
        }
    }

    /// A node receives nothing of another one for a while.
    fn break_path(&mut self, from: u64, to: u64) {
        self.broken = Some((NodeId(from), NodeId(to), VecDeque::new()));
    }

    /// Delivers all messages that were held back.
    fn mend_path(&mut self) {
        let Some((_, to, waiting)) = self.broken.take() else { return };
        waiting.into_iter().for_each(|event| self.tell(to.0, event));
    }

    /// A node receives nothing for a while.
    fn slow_down(&mut self, node: u64) {
        self.slow = Some((NodeId(node), VecDeque::new()));
    }

    /// Of all pending events, the slow node handles only that another node leaves.
    fn hear_of_leaving(&mut self) {
        let Some((node, mut waiting)) = self.slow.take() else { return };
        let is_it =
            |event: &Event| matches!(event, Event::Message { message: Message::Leaving, .. });
        let at = waiting.iter().position(is_it).expect("another node leaves");
        let event = waiting.remove(at).expect("it is there");
        self.tell(node.0, event);
        self.slow = Some((node, waiting));
    }

    /// Ends the folds that continued.
    fn end_folds(&mut self) {
        self.keeps_folding = false;
        for (node, event) in core::mem::take(&mut self.folding) {
            self.tell(node.0, event);
        }
    }

    fn has_left(&self, node: u64) -> bool {
        let left = format!("n{node} left");
        self.done.contains(&left)
    }

    /// Delivers all pending events to the slow node.
    fn catch_up(&mut self) {
        let Some((node, waiting)) = self.slow.take() else { return };
        waiting.into_iter().for_each(|event| self.tell(node.0, event));
    }

    /// Kills a node; all others detect it.
    fn kill(&mut self, node: u64) {
        self.nodes.remove(&NodeId(node));
        self.notice_failure(node);
    }

    fn notice_failure(&mut self, node: u64) {
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tell(other.0, Event::PeerUnreachable { node: NodeId(node), is_dead: true });
        }
    }

    /// A name in its own group with these two owners.
    fn owned_name(&self, first: u64, second: u64, suffix: &str) -> String {
        let members = self.nodes[&NodeId(1)].members();
        let owners =
            crate::members::Owners { primary: NodeId(first), backup: Some(NodeId(second)) };
        let mut names = (0..).map(|group| format!("group{group}/{suffix}"));
        names.find(|name| members.owners(&name.parse().unwrap()) == owners).unwrap()
    }

    /// Sends the request without a deadline and cancels it, for a client that ends, and with a
    /// deadline. Each gets a reply, and nothing is left.
    fn assert_ends(
        &mut self,
        node: u64,
        ask: &Request,
        is_right: fn(&Result<Reply, Error>) -> bool,
    ) {
        let cancelled = self.ask(node, ask.clone());
        assert!(!self.replies.contains_key(&cancelled), "{ask:?} waits");
        self.tell(node, Event::Cancelled { client: CLIENT, request: cancelled });
        let orphaned = self.ask(node, ask.clone());
        self.tell(node, Event::ClientDisconnected { client: CLIENT, process: None });
        let late = self.ask_until(node, ask.clone(), Some(self.now + SECOND));
        assert!(!self.replies.contains_key(&late), "{ask:?} waits");
        self.wait(SECOND);
        for request in [cancelled, orphaned, late] {
            assert!(is_right(self.reply(request)), "{:?}", self.reply(request));
        }
        self.assert_at_rest();
    }

    /// Ends a transfer whose source has the whole copy, or nothing any more.
    fn next_end(&mut self) -> Option<(NodeId, Event)> {
        for serve in self.serving.clone() {
            let (node, instance, source) = self.fetches[&serve];
            let (sent, fetch) = (self.fetched[&serve], self.fetch_ids[&serve]);
            let copy = self.nodes.get(&source).and_then(|node| node.table().get(sent));
            let event = match copy.filter(|copy| !copy.doomed) {
                Some(copy)
                    if copy.is_complete()
                        || self.by_parts.contains(&serve) && self.goes_round(instance) =>
                {
                    Event::Fetched { fetch }
                }
                Some(_) => continue,
                None => Event::FetchFailed { fetch, not_here: false },
            };
            self.serving.remove(&serve);
            self.queue.push_back((source, Event::ServeEnded { serve }));
            return Some((node, event));
        }
        None
    }

    fn goes_round(&self, instance: Instance) -> bool {
        let has = |node: &NodeId| {
            let copy = self.nodes.get(node).and_then(|node| node.table().get(instance));
            copy.is_some_and(|copy| !copy.doomed)
        };
        self.contributors.get(&instance).is_some_and(|contributors| contributors.iter().all(has))
    }

    fn carry_out(&mut self, node: NodeId, action: Action) {
        let event = match action {
            Action::Send { to, message } => {
                if let Message::RingReduce(order) = &message {
                    let contributors = order.contributors.iter().map(|(node, _)| *node).collect();
                    self.contributors.insert(order.instance, contributors);
                }
                if self.deaf == Some(to) && matches!(message, Message::EndEpoch { .. }) {
                    return;
                }
                self.queue.push_back((to, Event::Message { from: node, message }));
                return;
            }
            Action::Reply { request, reply: answer, .. } => {
                let before = self.replies.insert(request, answer);
                assert_eq!(before, None, "{request:?} was answered twice");
                return;
            }
            Action::Fetch(FetchOrder { fetch, id, instance, source, in_parts, range, .. }) => {
                self.counted += 1;
                let serve = ServeId(self.counted);
                self.fetch_ids.insert(serve, fetch);
                if in_parts {
                    self.by_parts.insert(serve);
                }
                self.fetches.insert(serve, (node, instance, source));
                let instance = range.map_or(instance, |range| range.of);
                self.fetched.insert(serve, instance);
                self.queue.push_back((source, Event::FetchRequested { serve, id, instance }));
                return;
            }
            Action::Serve { serve, instance, .. } => {
                let (to, _, from) = self.fetches[&serve];
                self.done.push(format!("{from:?} sends {instance} to {to:?}"));
                self.serving.insert(serve);
                return;
            }
            Action::Refuse { serve } => {
                let ((to, ..), fetch) = (self.fetches[&serve], self.fetch_ids[&serve]);
                let failed = Event::FetchFailed { fetch, not_here: true };
                self.queue.push_back((to, failed));
                return;
            }
            Action::StartFold { order, .. } => {
                let key = order.key;
                self.folds.push((node, order));
                let event = Event::FoldEnded { key, failure: None };
                if self.keeps_folding {
                    self.folding.push((node, event));
                    return;
                }
                event
            }
            Action::Log(LogEvent::ReduceRestarted { detail, .. }) => {
                self.done.push(format!("{node:?} begins a reduce again: {detail}"));
                return;
            }
            Action::Log(LogEvent::MessageRejected { from, message }) => {
                self.done.push(format!("{node:?} refuses {message:?} of {from:?}"));
                return;
            }
            Action::FoldInline { reduce, epoch, inputs, .. } => {
                let result = inputs[0].clone();
                let event = Event::FoldedInline { reduce, epoch, result };
                if self.keeps_folding {
                    self.folding.push((node, event));
                    return;
                }
                event
            }
            Action::Inspect { to, number, inspection } => {
                let report = format!("{inspection:?} of {node:?}");
                Event::Inspected { to, number, report }
            }
            Action::CreateSlot { instance, .. } => {
                if self.without_memory.contains(&node) || self.refusals > 0 {
                    self.refusals = self.refusals.saturating_sub(1);
                    let detail = "the control group /a/group has no more".into();
                    Event::SlotRefused { instance, detail }
                } else {
                    Event::SlotReady { instance }
                }
            }
            Action::Spill { .. } | Action::Unspill { .. } | Action::DropSpilled { .. } => {
                let Some(event) = self.disk.carry_out(node, action) else { return };
                event
            }
            Action::Left { lost } => {
                self.lost.insert(node, lost);
                self.done.push(format!("{node:?} left"));
                self.nodes.remove(&node);
                return;
            }
            _ => return,
        };
        self.queue.push_back((node, event));
    }

    fn ask(&mut self, node: u64, ask: Request) -> RequestId {
        self.ask_until(node, ask, None)
    }

    fn ask_until(&mut self, node: u64, ask: Request, deadline: Option<Instant>) -> RequestId {
        self.counted += 1;
        let request = RequestId(self.counted);
        self.tell(node, Event::Request { client: CLIENT, request, body: ask, deadline });
        request
    }

    fn wait(&mut self, ns: u64) {
        self.now = self.now + ns;
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.tell(node.0, Event::DeadlinePassed);
        }
    }

    fn reply(&self, request: RequestId) -> &Result<Reply, Error> {
        self.replies.get(&request).expect("it is answered")
    }

    fn put_small(&mut self, node: u64, name: Option<&str>) -> ObjectId {
        let id = name.map(|name| name.parse().unwrap());
        let bytes: Inline = vec![7; 8].into();
        let ask = Request::Put { id, meta: array(8), bytes, ttl_ns: None };
        let request = self.ask(node, ask);
        let Ok(Reply::Put { id }) = self.reply(request) else { panic!("{:?}", self.replies) };
        id.clone()
    }

    fn create(&mut self, node: u64, name: Option<&str>) -> (ObjectId, Instance) {
        let id = name.map(|name| name.parse().unwrap());
        let request = self.ask(node, Request::Create { id, meta: array(LARGE), ttl_ns: None });
        let Ok(Reply::Created { id, instance }) = self.reply(request) else {
            panic!("{:?}", self.replies)
        };
        (id.clone(), *instance)
    }

    fn put_large(&mut self, node: u64, name: Option<&str>) -> ObjectId {
        let (id, instance) = self.create(node, name);
        let request = self.ask(node, Request::Seal { instance });
        assert_eq!(self.reply(request), &Ok(Reply::Put { id: id.clone() }));
        id
    }

    fn get(&mut self, node: u64, id: &ObjectId) -> RequestId {
        self.ask(node, Request::Get { id: id.clone() })
    }

    fn has(&self, node: u64, id: &ObjectId) -> bool {
        self.nodes[&NodeId(node)].table().current(id).is_some()
    }

    fn assert_at_rest(&self) {
        for node in self.nodes.values() {
            assert_eq!(node.unfinished().collect::<Vec<_>>(), Vec::<String>::new());
            assert_eq!(node.open_requests(), 0);
        }
    }
}

fn member(id: u64) -> Member {
    let address = core::net::SocketAddr::from(([127, 0, 0, 1], id as u16));
    Member { id: NodeId(id), address, place: None }
}

fn array(size: u64) -> Meta {
    Meta::array(Dtype::Float32, vec![size / 4]).unwrap()
}

fn named(text: &str) -> ObjectId {
    text.parse().unwrap()
}

fn is_timeout(reply: &Result<Reply, Error>) -> bool {
    matches!(reply, Err(Error::Timeout { .. }))
}

fn got(reply: &Result<Reply, Error>) -> Instance {
    let Ok(Reply::Got { instance, .. }) = reply else { panic!("{reply:?}") };
    *instance
}

#[test]
fn a_small_object_is_read_everywhere_and_kept_where_it_was_put() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_small(1, None);
    for node in 1..=3 {
        let request = cluster.get(node, &id);
        got(cluster.reply(request));
    }
    assert!(cluster.has(1, &id) && !cluster.has(2, &id) && !cluster.has(3, &id));
    cluster.assert_at_rest();
}

#[test]
fn a_large_object_comes_to_its_reader_and_is_pinned_until_its_release() {
    let mut cluster = Cluster::new(2);
    let id = cluster.put_large(1, None);
    let request = cluster.get(2, &id);
    let instance = got(cluster.reply(request));
    assert_eq!(cluster.done, [format!("n1 sends {instance} to n2")]);
    let pins = |cluster: &Cluster| cluster.nodes[&NodeId(2)].table().get(instance).unwrap().readers;
    assert_eq!(pins(&cluster), 1);
    cluster.ask(2, Request::Release { instance });
    assert_eq!(pins(&cluster), 0);
    cluster.ask(2, Request::Release { instance });
    assert_eq!(pins(&cluster), 0, "a second release changes nothing");
    cluster.assert_at_rest();
}

#[test]
fn a_reader_waits_for_a_name_without_an_object() {
    let mut cluster = Cluster::new(3);
    let id = "policy/1".parse().unwrap();
    let request = cluster.get(3, &id);
    assert!(!cluster.replies.contains_key(&request));
    assert_eq!(cluster.put_large(2, Some("policy/1")), id);
    got(cluster.reply(request));
    cluster.ask(3, Request::Release { instance: got(cluster.reply(request)) });
    cluster.assert_at_rest();
}

#[test]
fn a_receiver_follows_a_copy_that_is_still_being_put() {
    let mut cluster = Cluster::new(2);
    let (id, instance) = cluster.create(1, None);
    let request = cluster.get(2, &id);
    assert_eq!(cluster.done, [format!("n1 sends {instance} to n2")], "before it is sealed");
    assert!(!cluster.replies.contains_key(&request));
    cluster.ask(1, Request::Seal { instance });
    assert_eq!(got(cluster.reply(request)), instance);
}

#[test]
fn following_ends_with_the_get_beside_it() {
    let mut cluster = Cluster::new(3);
    let id = "policy/1".parse().unwrap();
    let get = cluster.get(3, &id);
    let follow = cluster.ask(3, Request::Follow { id: id.clone() });
    assert!(!cluster.replies.contains_key(&follow));
    cluster.put_small(1, Some("policy/1"));
    assert!(cluster.reply(get).is_ok());
    assert_eq!(cluster.reply(follow), &Ok(Reply::Done));
    for node in 1..=3 {
        let late = cluster.ask(node, Request::Follow { id: id.clone() });
        assert_eq!(cluster.reply(late), &Ok(Reply::Done), "node {node} has nothing more to come");
    }
    cluster.assert_at_rest();
}

#[test]
fn a_put_that_is_given_up_fails_its_readers() {
    let mut cluster = Cluster::new(2);
    let (id, instance) = cluster.create(1, None);
    let request = cluster.get(2, &id);
    cluster.ask(1, Request::Abort { instance });
    assert!(matches!(cluster.reply(request), Err(Error::ObjectLost { .. })));
    assert!(cluster.nodes.values().all(|node| node.table().used() == 0));
    cluster.assert_at_rest();
}

#[test]
fn a_name_is_taken_until_it_is_deleted() {
    let mut cluster = Cluster::new(3);
    cluster.put_small(1, Some("x"));
    let again =
        Request::Create { id: Some("x".parse().unwrap()), meta: array(LARGE), ttl_ns: None };
    let request = cluster.ask(2, again);
    assert!(matches!(cluster.reply(request), Err(Error::NameTaken { holder: NodeId(1), .. })));
    let request = cluster.ask(3, Request::Delete { ids: vec!["x".parse().unwrap()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    cluster.put_large(2, Some("x"));
    cluster.assert_at_rest();
}

#[test]
fn a_deletion_ends_all_copies_but_not_the_one_that_is_read() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(1, None);
    let reading = cluster.get(2, &id);
    let instance = got(cluster.reply(reading));
    let request = cluster.ask(3, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    assert_eq!(cluster.nodes[&NodeId(1)].table().used(), 0);
    assert!(cluster.nodes[&NodeId(2)].table().get(instance).is_some_and(|copy| copy.doomed));
    let late = cluster.get(2, &id);
    assert_eq!(cluster.reply(late), &Err(Error::ObjectDeleted { id }));
    cluster.ask(2, Request::Release { instance });
    assert_eq!(cluster.nodes[&NodeId(2)].table().used(), 0);
    cluster.assert_at_rest();
}

#[test]
fn latest_waits_for_a_newer_name() {
    let mut cluster = Cluster::new(3);
    cluster.put_small(1, Some("policy/1"));
    let latest = |after| Request::Latest { prefix: "policy/".into(), after };
    let at_once = cluster.ask(2, latest(None));
    assert_eq!(cluster.reply(at_once), &Ok(Reply::Latest { name: "policy/1".parse().unwrap() }));
    let later = cluster.ask(2, latest(Some(1)));
    assert!(!cluster.replies.contains_key(&later));
    cluster.put_small(3, Some("policy/2"));
    assert_eq!(cluster.reply(later), &Ok(Reply::Latest { name: "policy/2".parse().unwrap() }));
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_lists_its_lost_inputs() {
    let mut cluster = Cluster::new(3);
    let there: Vec<ObjectId> = [1, 2, 3].map(|node| cluster.put_small(node, None)).into();
    let late: Vec<ObjectId> = ["late/1", "late/2"].map(|name| name.parse().unwrap()).into();
    let ask = |cluster: &mut Cluster, count| {
        let inputs = there.iter().chain(&late).cloned().collect();
        let request =
            cluster.ask(1, Request::Reduce { inputs, op: Op::Sum, count, id: None, ttl_ns: None });
        let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
        id
    };
    let lost = |cluster: &mut Cluster, id: &ObjectId| {
        let request = cluster.ask(1, Request::LostInputs { id: id.clone() });
        cluster.reply(request).clone()
    };
    let (done, waiting, all) = (ask(&mut cluster, 3), ask(&mut cluster, 4), ask(&mut cluster, 5));
    for id in [&done, &waiting, &all] {
        assert_eq!(lost(&mut cluster, id), Ok(Reply::Inputs { ids: Vec::new() }));
    }
    cluster.ask(2, Request::Delete { ids: vec![there[2].clone()] });
    let told = Ok(Reply::Inputs { ids: vec![there[2].clone()] });
    assert_eq!(lost(&mut cluster, &waiting), told);
    // A reduce that can no longer succeed reports it too, and a get returns the error.
    assert_eq!(lost(&mut cluster, &all), told);
    let get = cluster.get(1, &all);
    assert_eq!(cluster.reply(get), &Err(Error::ObjectDeleted { id: there[2].clone() }));
    // A finished reduce reports the inputs that were lost until then.
    assert_eq!(lost(&mut cluster, &done), Ok(Reply::Inputs { ids: Vec::new() }));
    late.iter().for_each(|name| drop(cluster.put_small(2, Some(name.to_string().as_str()))));
    let get = cluster.get(1, &waiting);
    assert!(cluster.reply(get).is_ok());
    assert_eq!(lost(&mut cluster, &waiting), told);
    let other = lost(&mut cluster, &there[0]);
    assert!(matches!(other, Err(Error::InvalidArgument(_))), "{other:?}");
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_folds_at_the_nodes_of_its_inputs() {
    let mut cluster = Cluster::new(3);
    let inputs: Vec<ObjectId> = (1..=3).map(|node| cluster.put_large(node, None)).collect();
    let request = cluster.ask(
        1,
        Request::Reduce { inputs: inputs.clone(), op: Op::Sum, count: 3, id: None, ttl_ns: None },
    );
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let at: BTreeSet<NodeId> = cluster.folds.iter().map(|(node, _)| *node).collect();
    assert_eq!(at, BTreeSet::from([NodeId(1), NodeId(2), NodeId(3)]));
    let request = cluster.ask(1, Request::Inputs { id: id.clone() });
    let Ok(Reply::Inputs { ids }) = cluster.reply(request) else { panic!() };
    assert_eq!(ids.iter().collect::<BTreeSet<_>>(), inputs.iter().collect());
    let request = cluster.get(2, &id);
    let instance = got(cluster.reply(request));
    cluster.ask(2, Request::Release { instance });
    cluster.assert_at_rest();
}

#[test]
fn a_reduce_of_small_inputs_needs_no_transfer() {
    let mut cluster = Cluster::new(3);
    let inputs: Vec<ObjectId> = (1..=3).map(|node| cluster.put_small(node, None)).collect();
    let request =
        cluster.ask(2, Request::Reduce { inputs, op: Op::Max, count: 2, id: None, ttl_ns: None });
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let request = cluster.get(3, &id);
    got(cluster.reply(request));
    assert!(cluster.folds.is_empty() && cluster.done.is_empty());
    cluster.assert_at_rest();
}

/// The bytes of small inputs are at the coordinator.
#[test]
fn a_reduce_of_small_inputs_does_not_restart_when_their_node_fails() {
    let mut cluster = Cluster::new(4);
    let inputs: Vec<ObjectId> = (0..2).map(|_| cluster.put_small(3, None)).collect();
    cluster.keeps_folding = true;
    let request = Request::Reduce { inputs, op: Op::Max, count: 2, id: None, ttl_ns: None };
    let Ok(Reply::Reducing { id }) = cluster.asks(1, request) else { panic!() };
    assert_eq!(cluster.folding.len(), 1);
    cluster.kill(3);
    cluster.end_folds();
    let request = cluster.get(2, &id);
    got(cluster.reply(request));
    assert_eq!(cluster.done, [""; 0]);
}

#[test]
fn the_result_of_a_reduce_can_be_deleted_before_its_inputs_are_there() {
    let mut cluster = Cluster::new(2);
    let inputs = vec!["never".parse().unwrap()];
    let request =
        cluster.ask(1, Request::Reduce { inputs, op: Op::Sum, count: 1, id: None, ttl_ns: None });
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    let reader = cluster.get(2, &id);
    let request = cluster.ask(2, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    assert_eq!(cluster.reply(reader), &Err(Error::ObjectDeleted { id }));
    cluster.assert_at_rest();
}

#[test]
fn a_leaving_node_hands_over_its_pinned_copies() {
    let mut cluster = Cluster::new(3);
    let (small, large) = (cluster.put_small(3, None), cluster.put_large(3, None));
    cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    assert_eq!(cluster.done.last().map(String::as_str), Some("n3 left"));
    for id in [small, large] {
        let pinned_copies = cluster.nodes.values().filter(|node| {
            node.table().iter().any(|(_, copy)| copy.id == id && copy.pinned && copy.is_complete())
        });
        assert_eq!(pinned_copies.count(), 1, "one node keeps {id}");
        for node in 1..=2 {
            let request = cluster.get(node, &id);
            got(cluster.reply(request));
        }
    }
}

/// Goal: a leaving node does not wait for the adoption of an object that is deleted meanwhile.
#[test]
fn a_deletion_unblocks_a_leaving_node() {
    let mut cluster = Cluster::new(3);
    let id = named(&cluster.owned_name(2, 1, "x/1"));
    cluster.put_large(3, Some(&id.to_string()));
    cluster.slow_down(1);
    cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    cluster.hear_of_leaving();
    assert!(!cluster.done.iter().any(|what| what == "n3 left"), "node 1 has not taken it over");
    cluster.ask(2, Request::Delete { ids: vec![id] });
    assert!(cluster.done.iter().any(|what| what == "n3 left"));
}

#[test]
fn an_object_in_progress_can_be_sealed_while_its_node_leaves() {
    let mut cluster = Cluster::new(3);
    let (id, instance) = cluster.create(3, None);
    let reader = cluster.get(1, &id);
    let (unsealed, _) = cluster.create(3, None);
    cluster.tell(3, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    let has_left = |cluster: &Cluster| cluster.done.iter().any(|what| what == "n3 left");
    let refused = cluster.asks(3, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    assert!(matches!(refused, Err(Error::NodeDown(_))));
    assert!(!has_left(&cluster));
    assert_eq!(cluster.asks(3, Request::Seal { instance }), Ok(Reply::Put { id: id.clone() }));
    got(cluster.reply(reader));
    assert!(!has_left(&cluster), "a client is filling the other");
    cluster.wait(SECOND);
    assert!(has_left(&cluster));
    let late = cluster.get(2, &id);
    got(cluster.reply(late));
    let lost = cluster.get(2, &unsealed);
    cluster.wait(SECOND);
    assert!(matches!(cluster.reply(lost), Err(Error::ObjectLost { .. })));
}

#[test]
fn a_late_seal_is_handed_over_while_its_node_is_leaving() {
    let mut cluster = Cluster::new(2);
    let held_up = cluster.owned_name(1, 2, "x/1");
    cluster.put_large(2, Some(&held_up));
    let (id, instance) = cluster.create(2, None);
    cluster.slow_down(1);
    cluster.tell(2, Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    cluster.wait(2 * SECOND);
    assert_eq!(cluster.asks(2, Request::Seal { instance }), Ok(Reply::Put { id: id.clone() }));
    cluster.catch_up();
    assert!(cluster.done.iter().any(|what| what == "n2 left"));
    let late = cluster.get(1, &id);
    got(cluster.reply(late));
}

#[test]
fn objects_of_a_failed_node_are_lost_and_no_request_hangs() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(3, None);
    cluster.nodes.remove(&NodeId(3));
    cluster.tell(1, Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    cluster.tell(2, Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    let request = cluster.get(1, &id);
    assert!(!cluster.replies.contains_key(&request), "somebody might have a copy");
    cluster.wait(2 * SECOND);
    assert!(matches!(cluster.reply(request), Err(Error::ObjectLost { .. })));
    cluster.assert_at_rest();
}

#[test]
fn reports_about_a_dead_node_do_not_restore_it() {
    let mut cluster = Cluster::new(3);
    cluster.nodes.remove(&NodeId(3));
    cluster.tell(1, Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    let old_news = Message::Members(vec![member(3)]);
    cluster.tell(1, Event::Message { from: NodeId(2), message: old_news });
    assert!(!cluster.nodes[&NodeId(1)].members().contains(NodeId(3)));
    cluster.tell(1, Event::PeerUp { member: member(3) });
    assert!(cluster.nodes[&NodeId(1)].members().contains(NodeId(3)), "unless it comes itself");
}

#[test]
fn a_put_waits_for_room_and_gets_it_when_something_is_deleted() {
    let mut cluster = Cluster::with_capacity(1, LARGE + LARGE / 2);
    let first = cluster.put_large(1, None);
    let until = Some(cluster.now + SECOND);
    let create = || Request::Create { id: None, meta: array(LARGE), ttl_ns: None };
    let impatient = cluster.ask_until(1, create(), until);
    cluster.wait(SECOND);
    assert!(matches!(cluster.reply(impatient), Err(Error::StoreFull { .. })));
    let patient = cluster.ask(1, create());
    assert!(!cluster.replies.contains_key(&patient));
    cluster.ask(1, Request::Delete { ids: vec![first] });
    assert!(matches!(cluster.reply(patient), Ok(Reply::Created { .. })));
}

#[test]
fn whatever_waits_for_room_in_vain_ends_with_store_full() {
    let mut cluster = Cluster::with_capacity(2, LARGE + LARGE / 2);
    cluster.put_large(1, None);
    let there = cluster.put_large(2, None);
    let until = Some(cluster.now + SECOND);
    let get = cluster.ask_until(1, Request::Get { id: there.clone() }, until);
    let reduce = |until| {
        (
            Request::Reduce {
                inputs: vec![there.clone()],
                op: Op::Sum,
                count: 1,
                id: None,
                ttl_ns: None,
            },
            until,
        )
    };
    let (ask, deadline) = reduce(until);
    let limited = cluster.ask_until(1, ask, deadline);
    let (ask, _) = reduce(None);
    let patient = cluster.ask(1, ask);
    let results: Vec<ObjectId> = [limited, patient]
        .into_iter()
        .map(|request| match cluster.reply(request) {
            Ok(Reply::Reducing { id }) => id.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let of_limited = cluster.get(1, &results[0]);
    let of_patient = cluster.ask_until(1, Request::Get { id: results[1].clone() }, until);
    let inputs = cluster.ask_until(1, Request::Inputs { id: results[1].clone() }, until);
    cluster.wait(SECOND);
    for request in [get, of_limited, of_patient, inputs] {
        let Err(Error::StoreFull { needed, capacity, pinned, .. }) = cluster.reply(request) else {
            panic!("{:?}", cluster.reply(request));
        };
        assert_eq!((*needed, *capacity), (LARGE, LARGE + LARGE / 2));
        assert!((LARGE..*capacity).contains(pinned));
    }
}

#[test]
fn a_put_that_waits_for_memory_does_not_speak_of_room_or_of_a_name() {
    let mut cluster = Cluster::new(1);
    let now = cluster.now;
    let node = cluster.nodes.get_mut(&NodeId(1)).unwrap();
    let (client, request) = (ClientId(1), RequestId(77));
    let (ask, deadline) =
        (Request::Create { id: None, meta: array(LARGE), ttl_ns: None }, Some(now + SECOND));
    let mut out = Vec::new();
    node.handle(now, Event::Request { client, request, body: ask, deadline }, &mut out);
    assert!(out.iter().any(|action| matches!(action, Action::CreateSlot { .. })));
    out.clear();
    node.handle(now + SECOND, Event::DeadlinePassed, &mut out);
    let said = out.iter().find_map(|action| match action {
        Action::Reply { reply: Err(error), .. } => Some(error.to_string()),
        _ => None,
    });
    let said = said.unwrap();
    assert!(
        said.starts_with("timed out after 1 s waiting for memory for @")
            && said.ends_with("the node is still allocating it"),
        "{said}"
    );
}

#[test]
fn a_copy_without_readers_is_evicted() {
    let mut cluster = Cluster::with_capacity(2, LARGE + LARGE / 2);
    let id = cluster.put_large(1, None);
    let request = cluster.get(2, &id);
    let instance = got(cluster.reply(request));
    let create = cluster.ask(2, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    assert!(!cluster.replies.contains_key(&create), "it is being read");
    cluster.ask(2, Request::Release { instance });
    assert!(matches!(cluster.reply(create), Ok(Reply::Created { .. })));
    assert!(!cluster.has(2, &id) && cluster.has(1, &id));
}

#[test]
fn explain_reports_an_object_that_waits_for_capacity() {
    let capacity = LARGE + LARGE / 2;
    let mut cluster = Cluster::with_capacity(3, capacity);
    let (first, second) = (cluster.put_large(1, None), cluster.put_large(3, None));
    let lacks = |cluster: &mut Cluster, id: &ObjectId| {
        let request = cluster.ask(2, Request::Explain { id: id.clone() });
        let Ok(Reply::Explained { lacks, .. }) = cluster.reply(request) else { panic!() };
        *lacks
    };
    assert_eq!(lacks(&mut cluster, &second), None, "nobody asks for it");
    cluster.get(2, &first);
    let waits = cluster.get(2, &second);
    assert!(!cluster.replies.contains_key(&waits), "the first is being read");
    assert_eq!(lacks(&mut cluster, &first), None);
    assert_eq!(lacks(&mut cluster, &second), Some((LARGE, capacity)));
    let put = Request::Create { id: Some(named("here/1")), meta: array(LARGE), ttl_ns: None };
    cluster.ask(2, put);
    assert_eq!(lacks(&mut cluster, &named("here/1")), Some((LARGE, capacity)));
}

#[test]
fn no_object_waits_behind_one_that_can_not_fit() {
    let mut cluster = Cluster::with_capacity(1, LARGE + LARGE / 2);
    cluster.put_large(1, None);
    let large = cluster.ask(1, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    let small = cluster.ask(1, Request::Create { id: None, meta: array(LARGE / 4), ttl_ns: None });
    assert!(!cluster.replies.contains_key(&large));
    assert!(matches!(cluster.reply(small), Ok(Reply::Created { .. })));
}

#[test]
fn a_client_that_dies_leaves_nothing_behind() {
    let mut cluster = Cluster::new(2);
    let id = cluster.put_large(1, None);
    cluster.create(2, None);
    cluster.get(2, &id);
    cluster.get(2, &"never".parse().unwrap());
    cluster.tell(2, Event::ClientDisconnected { client: CLIENT, process: None });
    let left =
        cluster.nodes[&NodeId(2)].table().iter().map(|(_, copy)| (copy.id.clone(), copy.readers));
    assert_eq!(left.collect::<Vec<_>>(), [(id, 0)], "a copy that may be evicted");
    cluster.assert_at_rest();
}

#[test]
fn every_question_is_answered_by_its_deadline() {
    let mut cluster = Cluster::new(2);
    let until = Some(cluster.now + SECOND);
    let never: ObjectId = "never/1".parse().unwrap();
    let reduce = Request::Reduce {
        inputs: vec![never.clone()],
        op: Op::Sum,
        count: 1,
        id: None,
        ttl_ns: None,
    };
    let request = cluster.ask_until(1, reduce, until);
    let Ok(Reply::Reducing { id: result }) = cluster.reply(request).clone() else { panic!() };
    let requests = [
        cluster.ask_until(1, Request::Get { id: never }, until),
        cluster.ask_until(1, Request::Latest { prefix: "never/".into(), after: None }, until),
        cluster.ask(1, Request::Inputs { id: result.clone() }),
        cluster.get(2, &result),
    ];
    assert!(requests.iter().all(|request| !cluster.replies.contains_key(request)));
    cluster.wait(SECOND);
    for request in requests {
        assert!(matches!(cluster.reply(request), Err(Error::Timeout { .. })));
    }
    cluster.assert_at_rest();
}

fn alone(id: u64) -> Node {
    let link = Link { latency_ns: 80_000, bytes_per_second: 125_000_000 };
    Node::new(member(id), Config::new(1 << 30, link))
}

/// The order of a transfer of a whole copy, with its number.
fn whole(fetch: u64, id: &ObjectId, instance: Instance, source: u64) -> Action {
    let (fetch, id, source) = (FetchId(fetch), id.clone(), NodeId(source));
    let (ranges, in_parts, digest, range) = (None, false, None, None);
    Action::Fetch(FetchOrder { fetch, id, instance, source, ranges, in_parts, digest, range })
}

/// Node 2, which was assigned node 1 as the source of a large object, and a function that passes
/// events to it, answers as those to its last question. The function returns the resulting actions,
/// except messages.
fn receiver() -> (ObjectId, Instance, impl FnMut(Event) -> Vec<Action>) {
    let mut node = alone(2);
    let mut step = move |mut event| {
        if let Event::Message { message: Message::Answer { number, .. }, .. } = &mut event {
            *number = *node.questions.last().unwrap_or(number);
        }
        let mut actions = Vec::new();
        node.handle(Instant(0), event, &mut actions);
        actions.retain(|action| !matches!(action, Action::Send { .. } | Action::Log(_)));
        actions
    };
    let (id, instance) =
        (ObjectId::Minted { node: NodeId(1), serial: 1 }, Instance { node: NodeId(1), serial: 2 });
    step(Event::PeerUp { member: member(1) });
    let (request, ask) = (RequestId(1), Request::Get { id: id.clone() });
    step(Event::Request { client: CLIENT, request, body: ask, deadline: None });
    let actions = step(located(&id, instance, 1));
    assert_eq!(actions, [Action::CreateSlot { instance, size: LARGE, writer: None }]);
    (id, instance, step)
}

/// Goal: a node declines a source for a get that is over, so that its owner sends no reader there.
#[test]
fn a_source_for_a_get_that_is_over_is_declined() {
    let mut cluster = Cluster::new(3);
    let name = cluster.owned_name(1, 2, "x");
    let id = cluster.put_large(2, Some(&name));
    let holders = |cluster: &Cluster| cluster.nodes[&NodeId(1)].directory().holders(&id);
    cluster.break_path(1, 3);
    let request = cluster.get(3, &id);
    assert_eq!(holders(&cluster), [NodeId(2), NodeId(3)], "its owner has assigned a source");
    cluster.tell(3, Event::Cancelled { client: CLIENT, request });
    assert_eq!(holders(&cluster), [NodeId(2), NodeId(3)], "the answer is on its way");
    cluster.mend_path();
    assert_eq!(holders(&cluster), [NodeId(2)]);
    assert!(cluster.fetches.is_empty());
    cluster.assert_at_rest();
}

/// Node 1 assigns a source of a large object.
fn located(id: &ObjectId, instance: Instance, source: u64) -> Event {
    let source = Source::Holder { node: NodeId(source), reason: Reason::OnlyHolder };
    let (id, meta) = (id.clone(), Meta::bytes(LARGE));
    let located = Located { id, instance, meta, source, lifetime: None };
    let (number, answer) = (QuestionId(0), Answer::Located(Box::new(located)));
    Event::Message { from: NodeId(1), message: Message::Answer { number, answer } }
}

#[test]
fn a_receiver_that_comes_before_the_memory_is_ready_is_kept_waiting() {
    let (id, instance, mut step) = receiver();
    let serve = ServeId(7);
    assert_eq!(step(Event::FetchRequested { serve, id: id.clone(), instance }), []);
    let actions = step(Event::SlotReady { instance });
    let fetch = whole(1, &id, instance, 1);
    assert_eq!(actions, [fetch, Action::Serve { serve, instance, relayed: true }]);
}

/// Goal: a copy is fetched once it has memory, and a transfer from a failed source is ended.
#[test]
fn a_receiver_of_a_sender_that_is_lost_has_memory_first() {
    let (id, instance, mut step) = receiver();
    let forgotten = || Event::Message { from: NodeId(1), message: Message::StateDropped };
    assert_eq!(step(forgotten()), [], "nothing is under way yet");
    assert_eq!(step(Event::SlotReady { instance }), [whole(1, &id, instance, 1)]);
    assert_eq!(step(forgotten()), [Action::StopFetch { fetch: FetchId(1) }]);
    assert_eq!(step(forgotten()), [], "it is sought elsewhere already");
}

/// Goal: an object that arrives with a digest mismatch is fetched again, and is corrupt once a
/// source has sent it so twice.
#[test]
fn a_corrupt_copy_is_fetched_from_another_sender_and_ends_when_there_is_none() {
    let (id, instance, mut step) = receiver();
    step(Event::SlotReady { instance });
    let differs = |fetch| Event::CopyCorrupt { fetch: FetchId(fetch) };
    assert_eq!(step(differs(9)), [], "there is no such transfer");
    let anew =
        [Action::FreeSlot { instance }, Action::CreateSlot { instance, size: LARGE, writer: None }];
    assert_eq!(step(differs(1)), anew, "readers on the way keep the memory of before");
    assert_eq!(step(Event::SlotReady { instance }), [], "the owner is asked");
    let located = |source| located(&id, instance, source);
    let fetch = |fetch, source| whole(fetch, &id, instance, source);
    assert_eq!(step(located(3)), [fetch(2, 3)]);
    // Another source continues after the third.
    let redirect = |source| {
        let message = Message::Redirect { id: id.clone(), instance, source: NodeId(source) };
        Event::Message { from: NodeId(1), message }
    };
    let stop = |fetch| Action::StopFetch { fetch: FetchId(fetch) };
    assert_eq!(step(redirect(4)), [stop(2), fetch(3, 4)]);
    assert_eq!(step(differs(2)), [], "that was given up before");
    assert_eq!(step(differs(3)), anew);
    step(Event::SlotReady { instance });
    assert_eq!(step(located(3)), [fetch(4, 3)], "it is not known which of the two it was");
    assert_eq!(step(differs(4)), anew);
    step(Event::SlotReady { instance });
    assert_eq!(step(located(4)), [fetch(5, 4)]);
    assert_eq!(step(redirect(3)), [], "that one is avoided");
    assert_eq!(step(differs(5)), anew);
    step(Event::SlotReady { instance });
    assert_eq!(step(located(1)), [fetch(6, 1)], "the owner knows no other");
    let ended = step(differs(6));
    let senders = vec![NodeId(1), NodeId(3), NodeId(4)];
    let answer = Err(Error::ObjectCorrupt { id: id.clone(), senders });
    let reply = Action::Reply { client: CLIENT, request: RequestId(1), reply: answer };
    assert!(ended.contains(&reply), "{ended:?}");
    assert!(ended.contains(&Action::FreeSlot { instance }), "{ended:?}");
}

/// Goal: an inline object that arrives with a digest mismatch is requested from the other owner.
#[test]
fn a_corrupt_small_object_comes_from_the_other_owner() {
    let mut node = alone(2);
    for other in [1, 3] {
        node.handle(Instant(0), Event::PeerUp { member: member(other) }, &mut Vec::new());
    }
    let minted = |serial| ObjectId::Minted { node: NodeId(1), serial };
    let is_owned = |id: &ObjectId| node.world.members().owners(id).backup == Some(NodeId(3));
    let id = (1..).map(minted).find(is_owned).unwrap();
    let mut step = |event| {
        let mut actions = Vec::new();
        node.handle(Instant(0), event, &mut actions);
        actions
    };
    let (request, ask) = (RequestId(1), Request::Get { id: id.clone() });
    let asks = |actions: &[Action]| -> Vec<(NodeId, bool)> {
        let asked = |action: &Action| match action {
            Action::Send {
                to,
                message: Message::Ask { question: Question::Locate(locate), .. },
            } => Some((*to, locate.seen_at.is_some())),
            _ => None,
        };
        actions.iter().filter_map(asked).collect()
    };
    let asked = step(Event::Request { client: CLIENT, request, body: ask, deadline: None });
    assert_eq!(asks(&asked), [(NodeId(1), false)], "the node that minted it owns it");
    let differs = |source| Event::InlineCorrupt { id: id.clone(), source };
    assert_eq!(asks(&step(differs(NodeId(1)))), [(NodeId(3), true)], "the second has it too");
    assert_eq!(asks(&step(differs(NodeId(3)))), [(NodeId(1), true)]);
    let ended = step(differs(NodeId(1)));
    let answer = Err(Error::ObjectCorrupt { id, senders: vec![NodeId(1), NodeId(3)] });
    let reply = Action::Reply { client: CLIENT, request, reply: answer };
    assert!(ended.contains(&reply), "{ended:?}");
}

#[test]
fn a_receiver_goes_on_with_the_node_that_stepped_in_between() {
    let (id, instance, mut step) = receiver();
    let redirect = |instance, source| {
        let message = Message::Redirect { id: id.clone(), instance, source: NodeId(source) };
        Event::Message { from: NodeId(1), message }
    };
    let fetch = |fetch, source| whole(fetch, &id, instance, source);
    assert_eq!(step(redirect(instance, 3)), [], "it has no memory yet");
    assert_eq!(step(Event::SlotReady { instance }), [fetch(1, 3)]);
    let stop = Action::StopFetch { fetch: FetchId(1) };
    assert_eq!(step(redirect(instance, 4)), [stop, fetch(2, 4)]);
    let other = Instance { serial: 9, ..instance };
    assert_eq!(step(redirect(other, 5)), [], "that is of another object");

    let failed = |fetch| Event::FetchFailed { fetch: FetchId(fetch), not_here: false };
    assert_eq!(step(failed(1)), [], "it was given up before");
    step(failed(2));
    assert_eq!(
        step(redirect(instance, 4)),
        [],
        "who failed is not asked again unless there is nobody else"
    );
}
