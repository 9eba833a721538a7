//! Benchmark of the longest event: how long one event of a node with very many objects holds its event loop.
//!
//! Run it with `make bench-owner`. Every other event of the node, probes and replies included, waits as long. Times are those of
//! the thread on a processor, so that other programs of the machine don't change them. Arguments name the parts to run.

use std::{collections::BTreeMap, env, process, time::Duration};

use hoplite_proto::{
    error::Error,
    id::{ClientId, Instance, NodeId, ObjectId, QuestionId, RequestId},
    lifetime::Lease,
    members::Member,
    message::{Announce, Found, Message, Progress},
    meta::{Dtype, Meta, Op},
    node::{Action, Config, Event, LEAVE_TIMEOUT_NS, Node},
    question::{Answer, Question},
    reduce::cost::Link,
    request::{Reply, Request},
    time::Instant,
};
use rustix::time::{ClockId, clock_gettime};

const STORED: u64 = 200_000;
const HANDED_OVER: u64 = 100_000;
/// Inputs of a reduce, those that it folds, those that arrive, and those that are then lost.
const INPUTS: u64 = 65_000;
const FOLDED: u32 = 50_000;
const ARRIVED: usize = 49_000;
const LOST: usize = 10_000;
/// Each program waits for the next version of its own policy, while other names are announced.
const PROGRAMS: u64 = 10_000;
const ANNOUNCED: u64 = 1_000_000;
/// What a node holds while members come and go: objects of its own, leases of its clients and those it owns, objects that
/// clients wait for, replicas of its objects elsewhere, and replicas that it hosts or receives.
const MEMBERS: u64 = 1000;
const OBJECTS: u64 = 1_000_000;
const LEASES: u64 = 100_000;
const WATCHED: u64 = 60_000;
const REPLICATED: u64 = 50_000;
const HOSTED: u64 = 50_000;
/// Deletions that a leaving node passes on.
const DELETED: u64 = 100_000;
const LINK: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("a debug build can't measure speed: run make bench-owner");
        process::exit(2);
    }
    println!("longest event in ms, and all events in s");
    let parts: [(&str, fn()); 5] = [
        ("inspections", inspections),
        ("changes", changes),
        ("leave", || [8, MEMBERS].into_iter().for_each(leave)),
        ("inputs", lost_inputs),
        ("announcements", announcements),
    ];
    let chosen: Vec<String> = env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|it| it == name);
    parts.into_iter().filter(|(name, _)| is_chosen(name)).for_each(|(_, run)| run());
}

/// The time that this thread has run.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One node, and what its events took.
struct Timed {
    node: Node,
    now: u64,
    requests: u64,
    longest: Duration,
    whole: Duration,
}

impl Timed {
    fn new(members: u64) -> Self {
        let mut node = Node::new(member(1), Config::new(1 << 40, LINK));
        let mut actions = Vec::new();
        for member in (2..=members).map(member) {
            node.handle(Instant::default(), Event::PeerUp { member }, &mut actions);
        }
        let (longest, whole) = (Duration::ZERO, Duration::ZERO);
        Self { node, now: 1_000_000_000, requests: 0, longest, whole }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.now += 1000;
        let begun = cpu_time();
        self.node.handle(Instant(self.now), event, &mut actions);
        self.took(cpu_time().saturating_sub(begun));
        actions
    }

    fn took(&mut self, time: Duration) {
        self.longest = self.longest.max(time);
        self.whole += time;
    }

    fn ask(&mut self, body: Request) -> Vec<Action> {
        self.requests += 1;
        let (client, request) = (ClientId(1), RequestId(self.requests));
        self.handle(Event::Request { client, request, body, deadline: None })
    }

    /// Handles deadlines until nothing is due within a millisecond.
    fn settle(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let is_due =
            |timed: &Self| timed.node.deadline().is_some_and(|at| at.0 <= timed.now + 1_000_000);
        while is_due(self) {
            actions.extend(self.handle(Event::DeadlinePassed));
        }
        actions
    }

    fn receive(&mut self, from: NodeId, message: Message) -> Vec<Action> {
        self.handle(Event::Message { from, message })
    }

    fn put(&mut self, count: u64) {
        let small = || Request::Put {
            id: None,
            meta: Meta::bytes(3),
            bytes: vec![7, 8, 9].into(),
            ttl_ns: None,
        };
        for _ in 0..count {
            let actions = self.ask(small());
            let is_put = |action: &Action| {
                matches!(action, Action::Reply { reply: Ok(Reply::Put { .. }), .. })
            };
            assert!(actions.iter().any(is_put), "{actions:?}");
        }
    }

    fn announce(&mut self, name: String, serial: u64) -> Vec<Action> {
        let announce = Announce {
            id: name.parse().expect("a name"),
            instance: Instance { node: NodeId(2), serial },
            meta: Meta::bytes(1 << 20),
            pinned: true,
            progress: Progress::Complete,
            claim: true,
            lifetime: None,
        };
        self.receive(NodeId(2), Message::Announce(announce))
    }

    fn begin(&mut self) {
        (self.longest, self.whole) = (Duration::ZERO, Duration::ZERO);
    }

    fn report(&self, what: &str) {
        let (longest_ms, whole_s) = (self.longest.as_secs_f64() * 1e3, self.whole.as_secs_f64());
        println!("{longest_ms:>10.3} {whole_s:>8.3}  {what}");
    }
}

/// What a report of metrics reads of the state machine.
fn inspections() {
    let mut timed = Timed::new(1);
    timed.put(STORED);
    timed.begin();
    for _ in 0..20 {
        let begun = cpu_time();
        let status = timed.node.status();
        let census = *timed.node.table().census();
        let queues = timed.node.queues();
        timed.took(cpu_time().saturating_sub(begun));
        let complete: u64 = census.states().map(|(_, objects, _)| objects).sum();
        assert_eq!((status.counts.objects, complete, census.pinned()), (STORED, STORED, STORED));
        assert!(status.counts.owned == STORED && queues.iter().all(|(_, count)| *count == 0));
    }
    timed.report(&format!("20 reports of metrics by a node with {STORED} objects"));
}

/// Members come and go, while a node has very much that others hold or need.
fn changes() {
    let mut timed = Timed::new(MEMBERS);
    let name = |kind: &str, number: u64| -> ObjectId {
        format!("{kind}-{}/{number}", number % 64).parse().expect("a name")
    };
    timed.put(OBJECTS);
    timed.report(&format!("a node of {MEMBERS} gets {OBJECTS} objects"));
    timed.begin();
    for number in 0..LEASES {
        timed.ask(Request::AcquireLease { id: name("lease", number) });
        let (lease, is_held) = (Lease::Object(name("held", number)), true);
        timed.receive(NodeId(2 + number % 2), Message::LeaseUpdate { lease, is_held });
    }
    let ids = (0..WATCHED).map(|number| name("watched", number)).collect();
    timed.report(&format!("and {LEASES} leases"));
    timed.begin();
    timed.ask(Request::Wait { ids, count: 1 });
    timed.settle();
    timed.report(&format!("and a wait for {WATCHED} objects"));
    timed.begin();
    for serial in 1..=REPLICATED {
        let id = ObjectId::Minted { node: NodeId(1), serial };
        for action in timed.ask(Request::Replicate { id: id.clone(), replicas: 2 }) {
            if let Action::Send { to, message: Message::StoreReplica { id, instance, .. } } = action
            {
                timed.receive(to, Message::ReplicaReply { id, instance, accepted: true });
            }
        }
    }
    for serial in 1..=HOSTED {
        let (node, meta) = (NodeId(2), Meta::bytes(3));
        let inline = Some(vec![7, 8, 9].into()).filter(|_| serial % 2 == 0);
        let meta = if inline.is_some() { meta } else { Meta::bytes(1 << 20) };
        let (id, instance) = (ObjectId::Minted { node, serial }, Instance { node, serial });
        let (lifetime, may_wait) = (None, false);
        let message = Message::StoreReplica { id, instance, meta, inline, lifetime, may_wait };
        timed.receive(node, message);
    }
    timed.settle();
    timed.report(&format!("and {REPLICATED} replicated objects and {HOSTED} replicas of others"));
    let with = format!("a node of {MEMBERS} with {OBJECTS} objects and {LEASES} leases");
    let from = |node, message| Event::Message { from: NodeId(node), message };
    let events = [
        ("a member fails", Event::PeerUnreachable { node: NodeId(2), is_dead: true }),
        ("a member joins", Event::PeerUp { member: member(MEMBERS + 1) }),
        ("a member reconnects", Event::PeerReconnected { member: member(3) }),
        ("a member begins to leave", from(4, Message::Leaving)),
        ("it leaves", from(4, Message::Leave)),
        ("a failed member returns", Event::PeerUp { member: member(2) }),
    ];
    for (what, event) in events {
        timed.begin();
        timed.handle(event);
        timed.report(&format!("{what}, first event of {with}"));
        timed.settle();
        timed.report(&format!("{what}, all events"));
    }
    timed.now += 5_001_000_000;
    timed.begin();
    timed.settle();
    timed.report("leases of the failed member end");
    timed.begin();
    timed.handle(Event::ClientDisconnected { client: ClientId(1), process: None });
    timed.report("a client with all of these leases and waits ends, first event");
    timed.settle();
    timed.report("a client ends, all events");
}

/// A node leaves, and the other members take over its copies.
fn leave(members: u64) {
    let mut timed = Timed::new(members);
    timed.put(HANDED_OVER);
    for request in 0..DELETED {
        let id = format!("deleted-{}/{request}", request % 64).parse().expect("a name");
        let question = Question::Delete { id, pruned: false };
        timed.receive(NodeId(2), Message::Ask { number: QuestionId(request), question });
    }
    timed.settle();
    timed.begin();
    let mut event = Some(Event::LeaveRequested { timeout_ns: LEAVE_TIMEOUT_NS });
    let (mut handed_over, mut has_left) = (0, false);
    while let Some(next) = event.take() {
        let is_end = |action: &Action| matches!(action, Action::Left { .. });
        for action in timed.handle(next) {
            has_left |= is_end(&action);
            let Action::Send { to, message } = action else { continue };
            let actions = match message {
                Message::StoreReplica { id, instance, .. } => {
                    handed_over += 1;
                    timed.receive(to, Message::ReplicaReply { id, instance, accepted: true })
                }
                Message::Leaving => timed.receive(to, Message::Drained),
                _ => continue,
            };
            has_left |= actions.iter().any(is_end);
        }
        let is_due = |at: &Instant| at.0 <= timed.now + 1_000_000;
        event = timed.node.deadline().filter(is_due).map(|_| Event::DeadlinePassed);
        event = event.filter(|_| !has_left);
    }
    assert!(has_left && handed_over == HANDED_OVER, "{handed_over}");
    timed.report(&format!("a node of {members} with {HANDED_OVER} copies leaves"));
}

/// A first-k reduce loses inputs that have arrived.
fn lost_inputs() {
    let mut timed = Timed::new(8);
    let inputs: Vec<ObjectId> =
        (0..INPUTS).map(|serial| ObjectId::Minted { node: NodeId(2), serial }).collect();
    let count = FOLDED;
    let body =
        Request::Reduce { inputs: inputs.clone(), op: Op::Sum, count, id: None, ttl_ns: None };
    let asked = timed.ask(body).into_iter().chain(timed.settle());
    let watched = asked.filter_map(|action| match action {
        Action::Send { message: Message::Ask { number, question }, .. } => {
            Some((question.subject()?, number))
        }
        _ => None,
    });
    let numbers: BTreeMap<ObjectId, QuestionId> = watched.collect();
    timed.report(&format!("a reduce of {FOLDED} of {INPUTS} inputs begins"));
    timed.begin();
    for (id, serial) in inputs.iter().zip(1..) {
        let meta = Meta::array(Dtype::Float32, vec![1 << 20]).expect("a size");
        let (node, holder) = (NodeId(2), NodeId(2 + serial % 7));
        let instance = Instance { node, serial };
        let found = Found { instance, meta, holder, inline: None, complete: true };
        let answer = match serial as usize <= ARRIVED {
            true => Answer::Found(Box::new(found)),
            false => Answer::Pending,
        };
        timed.receive(NodeId(2), Message::Answer { number: numbers[id], answer });
    }
    timed.report(&format!("{ARRIVED} of them arrive"));
    timed.begin();
    for id in &inputs[..LOST] {
        let error = Error::ObjectLost { id: id.clone(), detail: "its node failed".into() };
        let answer = Answer::Gone(error);
        timed.receive(NodeId(2), Message::Answer { number: numbers[id], answer });
    }
    timed.report(&format!("{LOST} of those are lost"));
    timed.begin();
    timed.handle(Event::PeerUnreachable { node: NodeId(3), is_dead: true });
    timed.settle();
    timed.report("a member with a seventh of the others fails");
}

/// Programs wait for the next version under their prefixes, while other names are announced.
fn announcements() {
    let mut timed = Timed::new(2);
    for program in 0..PROGRAMS {
        let prefix = format!("policy-{program}/").parse().expect("a prefix");
        let question = Question::Latest { prefix, after: None };
        let number = QuestionId(program);
        let actions = timed.receive(NodeId(2), Message::Ask { number, question });
        assert_eq!(sent(&actions), 1, "{actions:?}");
    }
    timed.report(&format!("{PROGRAMS} programs wait for a version under their prefixes"));
    timed.begin();
    for serial in 0..ANNOUNCED {
        let actions = timed.announce(format!("gradients-{}/{serial}", serial % 64), serial);
        assert_eq!(sent(&actions), 1, "{actions:?}");
    }
    timed.report(&format!("{ANNOUNCED} other names are announced"));
    timed.begin();
    for program in 0..PROGRAMS {
        let actions = timed.announce(format!("policy-{program}/1"), ANNOUNCED + program);
        assert_eq!(sent(&actions), 2, "{actions:?}");
    }
    timed.report(&format!("{PROGRAMS} versions are announced"));
}

/// Number of messages among these actions.
fn sent(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Send { .. })).count()
}

fn member(number: u64) -> Member {
    let address = ([127, 0, (number >> 8) as u8, number as u8], 6000).into();
    Member { id: NodeId(number), address, place: None }
}
