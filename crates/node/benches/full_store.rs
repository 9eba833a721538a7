//! Benchmark of the latency of a busy node: with a full store, with clients that wait for capacity, with many open
//! gets, while it reports what it does, and next to a client that creates 1 GiB. Also counts the node's threads while
//! thousands of objects arrive.
//!
//! `make bench-owner` runs it. It compares results with the objects put, and checks by counters that the timed events
//! happened.

use std::{
    env, fs,
    path::PathBuf,
    process::{self, Command},
    thread,
    time::{Duration, Instant},
};

use hoplite_node::{
    Client, Node, NodeConfig, PendingReply, Value,
    proto::{
        id::{Name, ObjectId},
        inspection::Inspection,
        meta::Meta,
        table::COPY_OVERHEAD_BYTES,
    },
};

const LARGE: usize = 40_000;
/// They take 4 GB on each of two nodes.
const EVICTABLE_MAX: usize = 100_000;
const SMALL: [u8; 3] = [1, 2, 3];
const SOON: Option<Duration> = Some(Duration::from_secs(60));

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("a debug build has no meaningful speed: run make bench-owner");
        process::exit(2);
    }
    println!("{}, {} cores, commit {}", processor(), cores(), commit());
    println!("times of one client in us: median, 99 %, maximum");
    // The arguments select the measurements.
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |word: &str| words.is_empty() || words.iter().any(|wanted| wanted == word);
    for copies in [1000, EVICTABLE_MAX].into_iter().filter(|_| is_wanted("evictions")) {
        let said = format!("put of 40 kB, {copies} cached copies");
        report(&said, evicting_puts(copies));
    }
    for waiting in [0, 200].into_iter().filter(|_| is_wanted("waiters")) {
        let (puts, deletes) = beside_waiters(50_000, waiting);
        report(&format!("put of 3 B, 50000 pinned, {waiting} wait for capacity"), puts);
        report(&format!("delete of 3 B, 50000 pinned, {waiting} wait for capacity"), deletes);
    }
    for open in [10, 40_000].into_iter().filter(|_| is_wanted("questions")) {
        let (answers, cancels) = open_questions(open);
        report(&format!("put and reply to a get, {open} gets open"), answers);
        report(&format!("cancellation of a get, {open} gets open"), cancels);
    }
    for open in [10, 40_000].into_iter().filter(|_| is_wanted("reports")) {
        report(&format!("report of 2500 events, {open} gets open"), reports(open));
    }
    if is_wanted("create") {
        let (alone, beside) = beside_a_large_create();
        report("put of 3 B, no other client", alone);
        report("put of 3 B, another client creates 1 GiB", beside);
    }
    if is_wanted("threads") {
        let most = threads_of_many_pulls();
        println!("{most:>8} threads at most in two nodes, 3000 objects of 40 kB in transfer");
    }
}

/// Starts a node with a socket.
fn node(name: &str, capacity: u64, join: Option<&Node>) -> Node {
    let socket = env::temp_dir().join(format!("hoplite-bench-{}-{name}", process::id()));
    let join =
        join.and_then(Node::address).map(|address| address.to_string()).into_iter().collect();
    let (capacity, socket) = (Some(capacity), Some(socket));
    Node::start(NodeConfig { capacity, socket, join, ..NodeConfig::default() }).expect("a node")
}

fn attach(node: &Node) -> Client {
    Client::attach(node.socket().expect("a socket"), SOON).expect("a reply")
}

fn put_small(client: &Client, id: Option<ObjectId>) -> ObjectId {
    client.put(id, Value::bytes(&SMALL), SOON).expect("capacity")
}

fn counter(node: &Node, name: &str) -> u64 {
    let told = node.client().start_describe(None).join().expect("a reply");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    told["counters"][name].as_u64().expect("a counter")
}

/// Gets objects, many at a time, and releases them.
fn read_all(client: &Client, ids: &[ObjectId], bytes: &[u8]) {
    for some in ids.chunks(500) {
        let waits: Vec<PendingReply<_>> =
            some.iter().map(|id| client.start_get(id, SOON)).collect();
        for wait in waits {
            assert!(wait.join().expect("the object").as_bytes() == bytes);
        }
    }
}

fn evicting_puts(copies: usize) -> Vec<Duration> {
    let cost = LARGE as u64 + COPY_OVERHEAD_BYTES;
    let first = node("first", 2 * copies as u64 * cost, None);
    let full = node("full", copies as u64 * cost, Some(&first));
    let (bytes, client) = (vec![7; LARGE], first.client());
    let put = |client: &Client| client.put(None, Value::bytes(&bytes), SOON).expect("capacity");
    let ids: Vec<ObjectId> = (0..copies).map(|_| put(&client)).collect();
    read_all(&full.client(), &ids, &bytes);
    let client = attach(&full);
    let times = (0..300).map(|_| timed(|| drop(put(&client)))).collect();
    // In a small store a put evicts more than one copy: an extent holds few of them.
    assert!(counter(&full, "evictions") >= 300);
    times
}

/// Times of reports of a node with many waiting gets, described for a second, and 2500 events in each.
fn reports(open: usize) -> Vec<Duration> {
    let node = node("reported", 1 << 30, None);
    let (client, waiter) = (node.client(), attach(&node));
    let name = |number: usize| format!("missing/{number}").parse::<Name>().expect("a name");
    let ids = (0..open).map(|number| ObjectId::Named(name(number)));
    let gets: Vec<PendingReply<_>> = ids.map(|id| waiter.start_get(&id, None)).collect();
    (0..6000).for_each(|_| drop(put_small(&client, None)));
    thread::sleep(Duration::from_millis(1500));
    let activity = || Inspection::Activity { after: 0, limit: 5000 };
    let read = || client.start_inspect(None, activity(), SOON).join().expect("a report");
    let first: serde_json::Value = serde_json::from_str(&read()).expect("JSON");
    let rows = |name: &str| first[name].as_array().map_or(0, Vec::len);
    assert_eq!((rows("events"), rows("waits")), (2500, open.min(1000)));
    let times = (0..100).map(|_| timed(|| drop(read()))).collect();
    drop(gets);
    times
}

fn beside_waiters(objects: u64, waiting: usize) -> (Vec<Duration>, Vec<Duration>) {
    let free = 1 << 19;
    let node = node("waited", objects * (3 + COPY_OVERHEAD_BYTES) + free, None);
    let (owner, waiter, other) = (node.client(), attach(&node), attach(&node));
    let there: Vec<ObjectId> = (0..objects).map(|_| put_small(&owner, None)).collect();
    let meta = Meta::bytes(1 << 20);
    let waits: Vec<PendingReply<_>> =
        (0..waiting).map(|_| waiter.start_create(None, meta.clone(), None, None)).collect();
    // This request is handled after all of those.
    waiter.start_owners(&there[0]).join().expect("a reply");
    let mut ids = Vec::new();
    let puts = (0..50).map(|_| timed(|| ids.push(put_small(&other, None)))).collect();
    assert!(other.get(&ids[0], SOON).expect("the object").as_bytes() == SMALL);
    let delete = |id| other.start_delete(vec![id], SOON).join().expect("a reply");
    let deletes = ids.into_iter().map(|id| timed(|| delete(id))).collect();
    assert!(waits.iter().all(|wait| !wait.is_over()));
    (puts, deletes)
}

fn open_questions(open: usize) -> (Vec<Duration>, Vec<Duration>) {
    let first = node("first", 1 << 30, None);
    let second = node("second", 1 << 30, Some(&first));
    let (asker, putter) = (attach(&second), attach(&first));
    let id = |number: usize| -> ObjectId { format!("open/{number}/x").parse().expect("a name") };
    let mut waits: Vec<PendingReply<_>> =
        (0..open).map(|number| asker.start_get(&id(number), None)).collect();
    let fence = || asker.start_owners(&id(0)).join().expect("a reply");
    fence();
    let mut answers = Vec::new();
    for number in (0..open).rev().take(5.max(open / 200)) {
        let wait = waits.pop().expect("an open get");
        answers.push(timed(|| {
            put_small(&putter, Some(id(number)));
            assert!(wait.join().expect("the put object").as_bytes() == SMALL);
        }));
    }
    let cancels = (0..5.max(open / 200)).map(|_| {
        let wait = waits.pop();
        timed(|| {
            drop(wait);
            fence();
        })
    });
    (answers, cancels.collect())
}

fn beside_a_large_create() -> (Vec<Duration>, Vec<Duration>) {
    let node = node("large", 4 << 30, None);
    let (large, small) = (attach(&node), attach(&node));
    let put = || timed(|| drop(put_small(&small, None)));
    let alone = (0..2000).map(|_| put()).collect();
    let meta = Meta::bytes(1 << 30);
    let creating = thread::spawn(move || large.start_create(None, meta, None, SOON).join().is_ok());
    let mut beside = Vec::new();
    while !creating.is_finished() {
        beside.push(put());
    }
    assert!(creating.join().expect("no panic"), "the store had capacity for it");
    (alone, beside)
}

fn threads_of_many_pulls() -> usize {
    let first = node("first", 1 << 30, None);
    let second = node("second", 1 << 30, Some(&first));
    let (bytes, client) = (vec![7; LARGE], first.client());
    let put = || client.put(None, Value::bytes(&bytes), SOON).expect("capacity");
    let ids: Vec<ObjectId> = (0..3000).map(|_| put()).collect();
    let reader = second.client();
    let waits: Vec<PendingReply<_>> = ids.iter().map(|id| reader.start_get(id, SOON)).collect();
    let mut most = 0;
    for wait in waits {
        while !wait.is_over() {
            most = most.max(fs::read_dir("/proc/self/task").expect("Linux").count());
            thread::sleep(Duration::from_micros(200));
        }
        assert!(wait.join().expect("the object").as_bytes() == bytes);
    }
    most
}

fn timed(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    println!("{:>8.0} {:>8.0} {:>8.0} {what}, n = {}", at(50), at(99), at(100), times.len());
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn processor() -> String {
    let text = fs::read_to_string(PathBuf::from("/proc/cpuinfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("an unknown processor".into(), |line| line.trim_matches([':', ' ', '\t']).into())
}

fn commit() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    git.map_or("unknown".into(), |said| String::from_utf8_lossy(&said.stdout).trim().into())
}
