//! Benchmark of an owner on one core: rate of directory requests, each with decoding and encoding, and memory per
//! object.
//!
//! Run it with `make bench-owner`. One of eight nodes owns a million names that the others put; every reply is checked.

use std::{
    collections::BTreeSet,
    fs, process,
    time::{Duration, Instant as Clock},
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, QuestionId},
    members::{Member, Members},
    message::{Announce, Message, Progress, ReceiveRate, Source},
    meta::{Dtype, Meta},
    node::{Action, Config, Event, Node},
    question::{Answer, Locate, Question},
    reduce::cost::Link,
    time::Instant,
    wire,
};

const NODES: u64 = 8;
const OBJECTS: usize = 1_000_000;
/// Number of names that are looked up and deleted; the others remain.
const SAMPLED: usize = 200_000;
/// Number of lookups of a source among the holders of one object.
const ASKED: u32 = 1000;
const LINK: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };

/// A request for a source.
fn locate(id: &ObjectId) -> Message {
    let (id, avoid, not_here) = (id.clone(), Vec::new(), None);
    let locate = Locate { id, avoid, not_here, receives: ReceiveRate::default(), seen_at: None };
    Message::Ask { number: QuestionId(2), question: Question::Locate(Box::new(locate)) }
}

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("a debug build can't measure speed: run make bench-owner");
        process::exit(2);
    }
    let mut owner = Owner::new(NODES);
    let ids = owner.names();
    let before = resident_bytes();
    let puts = ids.iter().zip(1..).map(|(id, serial)| owner.put(id, serial)).sum();
    let bytes = resident_bytes().saturating_sub(before) / OBJECTS as u64;
    println!("one owner of {OBJECTS} names among {NODES} nodes, on one core");
    println!("{:>10.0} puts per second", rate(OBJECTS, puts));
    println!("{bytes:>10} bytes of memory per object, including its name of 30 bytes");
    // Not in memory order, since a requester does not know it.
    let sample = || ids.iter().step_by(OBJECTS / SAMPLED);
    let asked = sample().map(|id| owner.locate(id)).sum();
    println!("{:>10.0} source lookups per second", rate(SAMPLED, asked));
    let listed = sample().map(|id| owner.locations(id)).sum();
    println!("{:>10.0} holder lists per second", rate(SAMPLED, listed));
    let gone = sample().map(|id| owner.delete(id)).sum();
    println!("{:>10.0} deletions per second", rate(SAMPLED, gone));
    let (longest, whole) = owner.lose(holder(1), &ids);
    println!(
        "{:>10.1} ms at most until a reply after a member failed",
        longest.as_secs_f64() * 1e3
    );
    println!("{:>10.1} s until all entries of its objects are updated", whole.as_secs_f64());
    for (shape, arity) in [("a chain", 1), ("a binary tree", 2)] {
        println!("us per source lookup for one object, whose holders form {shape}");
        for holders in [8, 64, 512, 4096] {
            let took = Owner::new(holders + 3).locate_among(holders, arity);
            println!(
                "{:>10.1} with {holders} holders",
                took.as_secs_f64() * 1e6 / f64::from(ASKED)
            );
        }
    }
}

/// One node, and the messages of the others.
struct Owner {
    node: Node,
    members: Members,
    begun: Clock,
    actions: Vec<Action>,
    /// The number of the last deletion.
    asked: u64,
}

impl Owner {
    fn new(nodes: u64) -> Self {
        let member = |number: u64| Member {
            id: NodeId(number),
            address: ([127, 0, 0, 1], 6000 + number as u16).into(),
            place: None,
        };
        let config = Config::new(1 << 30, LINK);
        let (mut node, mut members) = (Node::new(member(1), config), Members::new(member(1)));
        let (begun, mut actions) = (Clock::now(), Vec::new());
        for member in (2..=nodes).map(member) {
            node.handle(Instant::default(), Event::PeerUp { member }, &mut actions);
            members.insert(member);
        }
        actions.clear();
        Self { node, members, begun, actions, asked: 1 }
    }

    /// Names that this node owns, sorted by the numbers in them.
    fn names(&self) -> Vec<ObjectId> {
        let all = (0..).map(|number| {
            let name = format!("gradients/worker-{}/{number:09}", number % 64);
            ObjectId::Named(name.parse().expect("a name"))
        });
        all.filter(|id| self.members.owners(id).primary == NodeId(1)).take(OBJECTS).collect()
    }

    fn put(&mut self, id: &ObjectId, serial: u64) -> Duration {
        let (node, meta) = (holder(serial), Meta::array(Dtype::Float32, vec![1024, 1024]));
        let announce = Announce {
            id: id.clone(),
            instance: Instance { node, serial },
            meta: meta.expect("a size"),
            pinned: true,
            progress: Progress::Complete,
            claim: true,
            lifetime: None,
        };
        let (took, answers) = self.say(node, &Message::Announce(announce));
        assert!(
            matches!(&answers[..], [(to, Message::Claimed { taken_by: None, .. })] if *to == node),
            "{answers:?}"
        );
        took
    }

    fn locate(&mut self, id: &ObjectId) -> Duration {
        self.locate_by(NodeId(NODES), id)
    }

    fn locate_by(&mut self, asker: NodeId, id: &ObjectId) -> Duration {
        let (took, answers) = self.say(asker, &locate(id));
        let [(to, Message::Answer { answer: Answer::Located(located), .. })] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(*to == asker && matches!(located.source, Source::Holder { .. }), "{answers:?}");
        took
    }

    /// Time of lookups of a source while `holders` nodes have parts of one object, each of which feeds `arity` others.
    fn locate_among(&mut self, holders: u64, arity: u64) -> Duration {
        let all = (0..).map(|number| format!("weights-{number}/1").parse().map(ObjectId::Named));
        let mut all = all.map(|id| id.expect("a name"));
        let id = all.find(|id| self.members.owners(id).primary == NodeId(1)).expect("a name");
        let (maker, asker) = (NodeId(2), NodeId(holders + 3));
        let instance = Instance { node: maker, serial: 1 };
        let meta = Meta::array(Dtype::Float32, vec![1024, 1024]).expect("a size");
        for holder in 0..holders {
            let source = holder.checked_sub(1).map(|it| NodeId(2 + it / arity));
            let (pinned, lifetime) = (holder == 0, None);
            let progress = source
                .map_or(Progress::Complete, |source| Progress::Partial { source: Some(source) });
            let (id, meta) = (id.clone(), meta.clone());
            let announce =
                Announce { id, instance, meta, pinned, progress, claim: pinned, lifetime };
            self.say(NodeId(2 + holder), &Message::Announce(announce));
        }
        let ask = |owner: &mut Self| {
            let took = owner.locate_by(asker, &id);
            owner.say(asker, &Message::Decline { id: id.clone() });
            took
        };
        (0..ASKED).map(|_| ask(self)).sum()
    }

    fn locations(&mut self, id: &ObjectId) -> Duration {
        let question = Question::Locations { id: id.clone(), known: None };
        let message = Message::Ask { number: QuestionId(1), question };
        let (took, answers) = self.say(NodeId(NODES), &message);
        let holders = match &answers[..] {
            [(_, Message::Answer { answer: Answer::Locations(holdings), .. })] => {
                holdings.iter().map(|holding| holding.node).collect::<BTreeSet<_>>()
            }
            other => panic!("{other:?}"),
        };
        // The node that put it, and a node that requested it before.
        assert!(holders.len() == 2 && holders.contains(&NodeId(NODES)), "{holders:?}");
        took
    }

    fn delete(&mut self, id: &ObjectId) -> Duration {
        let question = Question::Delete { id: id.clone(), pruned: false };
        self.asked += 1;
        let number = QuestionId(self.asked);
        let (took, answers) = self.say(NodeId(NODES), &Message::Ask { number, question });
        assert!(answers.iter().all(|(_, reply)| matches!(reply, Message::Drop { .. })));
        assert!(answers.len() == 2, "{answers:?}");
        took
    }

    /// A member fails while another sends requests all the time. Returns the longest time until a reply, and the time
    /// until nothing is left to do.
    fn lose(&mut self, node: NodeId, ids: &[ObjectId]) -> (Duration, Duration) {
        let start = Clock::now();
        let (mut longest, mut whole) = (Duration::ZERO, Duration::ZERO);
        let mut next = Some(Event::PeerUnreachable { node, is_dead: true });
        self.members.remove(node);
        for id in ids.iter().cycle().step_by(7919) {
            let before = Clock::now();
            let is_busy = next.is_some();
            if let Some(event) = next.take() {
                self.node.handle(self.now(), event, &mut self.actions);
                self.actions.clear();
            }
            let (_, answers) = self.say(NodeId(NODES), &locate(id));
            assert!(answers.iter().any(|(to, _)| *to == NodeId(NODES)), "{answers:?}");
            longest = longest.max(before.elapsed());
            if is_busy {
                whole = start.elapsed();
            }
            let is_due = self.node.directory().deadline().is_some_and(|at| at <= self.now());
            next = is_due.then_some(Event::DeadlinePassed);
            // The owner notifies requesters of lost objects after a second.
            if start.elapsed() > 2 * whole.max(Duration::from_secs(1)) {
                break;
            }
        }
        let left =
            ids.iter().filter(|id| self.node.directory().holders(id).contains(&node)).count();
        assert_eq!(left, 0, "entries still list the failed member as a holder");
        (longest, whole)
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }

    /// Handles an encoded message. Returns the time, and the decoded replies.
    fn say(&mut self, from: NodeId, message: &Message) -> (Duration, Vec<(NodeId, Message)>) {
        let bytes = wire::encode(message);
        let start = Clock::now();
        let message = wire::decode(&bytes).expect("what was encoded");
        self.node.handle(self.now(), Event::Message { from, message }, &mut self.actions);
        let answers: Vec<(NodeId, Vec<u8>)> = self
            .actions
            .drain(..)
            .filter_map(|action| match action {
                Action::Send { to, message } => Some((to, wire::encode(&message))),
                _ => None,
            })
            .collect();
        let took = start.elapsed();
        let decoded =
            |(to, bytes): (NodeId, Vec<u8>)| (to, wire::decode(&bytes).expect("a message"));
        (took, answers.into_iter().map(decoded).collect())
    }
}

/// One of the other nodes, except the last one, which sends the requests.
fn holder(serial: u64) -> NodeId {
    NodeId(2 + serial % (NODES - 2))
}

fn rate(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Resident memory of this process, as reported by the kernel.
fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * 4096
}
