//! Tests of the recorder: events in, rows out. A state machine without other members makes the
//! actions.

use hoplite_proto::{
    broadcast::Reason,
    error::Error,
    id::{ClientId, FetchId, Instance, Name, NodeId, ObjectId, RequestId, ServeId},
    limits::INLINE_BYTES_MAX,
    members::Member,
    message::{FoldKey, FoldOrder, Message},
    meta::{Dtype, Meta, Op},
    node::{Action, Config, Event, FetchOrder, LogEvent, Node as Machine},
    request::Request,
    time::Instant,
};
use serde_json::Value;

mod bounds;

use super::{
    clients::Lookup,
    events::{EVENTS_MAX, What},
    recorder::Recorder,
    report,
};
use crate::config::LINK_ASSUMED;

const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);
const CLIENT: ClientId = ClientId(7);
const COPY: Instance = Instance { node: OTHER, serial: 5 };

struct Known;

impl Lookup for Known {
    fn process(&self, client: ClientId) -> Option<u32> {
        Some(client.0 as u32 * 100)
    }

    fn reader(&self, _: ServeId) -> Option<NodeId> {
        Some(OTHER)
    }
}

struct Scene {
    machine: Machine,
    recorder: Recorder,
    now: Instant,
    requests: u64,
}

impl Scene {
    fn new() -> Self {
        let member = Member { id: ME, address: ([127, 0, 0, 1], 7420).into(), place: None };
        let machine = Machine::new(member, Config::new(1 << 30, LINK_ASSUMED));
        Self { machine, recorder: Recorder::default(), now: Instant(0), requests: 0 }
    }

    /// Passes an event, a second after the last; returns the actions.
    fn event(&mut self, event: Event) -> Vec<Action> {
        self.now = self.now + 1_000_000_000;
        self.recorder.event(self.now, &event, &self.machine, &Known);
        let mut actions = Vec::new();
        self.machine.handle(self.now, event, &mut actions);
        actions.iter().for_each(|action| self.recorder.action(action, &self.machine, &Known));
        actions
    }

    fn action(&mut self, action: Action) {
        self.recorder.action(&action, &self.machine, &Known);
    }

    fn ask(&mut self, body: Request) -> Vec<Action> {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.event(Event::Request { client: CLIENT, request, body, deadline: None })
    }

    fn put(&mut self, name: &str) {
        let id = Some(named(name));
        let meta = Meta::bytes(1);
        self.ask(Request::Put { id, meta, bytes: vec![1].into(), ttl_ns: None });
    }

    /// Writes a large object; returns its instance.
    fn write(&mut self, name: &str, size: u64) -> Instance {
        let instance = self.create(name, size).0.expect("there is capacity");
        self.event(Event::SlotReady { instance });
        self.ask(Request::Seal { instance });
        instance
    }

    /// Creates a large object; returns its instance once there is capacity, and the actions.
    fn create(&mut self, name: &str, size: u64) -> (Option<Instance>, Vec<Action>) {
        let (id, meta) = (Some(named(name)), Meta::bytes(size));
        let actions = self.ask(Request::Create { id, meta, ttl_ns: None });
        let slot = actions.iter().find_map(|action| match action {
            Action::CreateSlot { instance, .. } => Some(*instance),
            _ => None,
        });
        (slot, actions)
    }

    fn activity(&mut self, after: u64, limit: u32) -> Value {
        self.event(Event::DeadlinePassed);
        let text = report::activity(&self.recorder, ME, &self.machine, after, limit);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn kinds(&mut self) -> Vec<String> {
        let activity = self.activity(0, u32::MAX);
        let rows = activity["events"].as_array().unwrap();
        rows.iter().map(|row| row["kind"].as_str().unwrap().into()).collect()
    }

    fn last(&mut self) -> Value {
        self.activity(0, u32::MAX)["events"].as_array().unwrap().last().unwrap().clone()
    }
}

fn named(name: &str) -> ObjectId {
    ObjectId::Named(name.parse::<Name>().unwrap())
}

#[test]
fn a_wait_states_what_is_missing() {
    let mut scene = Scene::new();
    scene.ask(Request::Get { id: named("late/1") });
    let wait = scene.activity(0, 10)["waits"][0].clone();
    assert_eq!((&wait["verb"], &wait["what"]), (&"get".into(), &"object late/1".into()));
    assert_eq!(wait["state"], "no client has put it");
    assert_eq!(scene.recorder.wait(RequestId(scene.requests)), ("get", Some(700)));
}

fn fetch(scene: &mut Scene, number: u64, source: NodeId) {
    fetch_copy(scene, number, COPY, source);
}

fn fetch_copy(scene: &mut Scene, number: u64, instance: Instance, source: NodeId) {
    let (fetch, id) = (FetchId(number), named("a"));
    let (ranges, in_parts, digest, range) = (None, false, None, None);
    let order = FetchOrder { fetch, id, instance, source, ranges, in_parts, digest, range };
    scene.action(Action::Fetch(order));
}

/// Goal: a transfer that had a row keeps it while others begin.
#[test]
fn the_oldest_transfers_are_those_in_the_report() {
    let mut scene = Scene::new();
    for serial in 0..1100 {
        scene.recorder.now = Instant(serial);
        fetch_copy(&mut scene, serial, Instance { serial, ..COPY }, OTHER);
    }
    let report = scene.activity(0, 1);
    let rows = report["transfers"].as_array().unwrap();
    let is_it = |(serial, row): (u64, &serde_json::Value)| {
        row["instance"] == Instance { serial, ..COPY }.to_string()
    };
    assert!((0..).zip(rows).all(is_it));
    let count = rows.len() as u64;
    assert!(count > 500 && report["omitted"]["transfers"] == 1100 - count, "{count}");
}

#[test]
fn a_put_is_an_event_and_a_get_at_once_is_none() {
    let mut scene = Scene::new();
    scene.put("a\"b/1");
    let put = scene.last();
    assert_eq!((&put["kind"], &put["ref"]), (&"put".into(), &"a\"b/1".into()));
    assert_eq!((&put["bytes"], &put["process"]), (&1.into(), &700.into()));
    scene.ask(Request::Get { id: named("a\"b/1") });
    let activity = scene.activity(0, 10);
    assert_eq!(activity["next"], 1);
    assert_eq!(activity["reads"][0]["prefix"], "a\"b");
    scene.event(Event::ClientDisconnected { client: CLIENT, process: None });
    assert_eq!(scene.activity(0, 10)["reads"].as_array().unwrap().len(), 0);
}

#[test]
fn a_get_that_is_not_answered_waits_until_its_reply() {
    let mut scene = Scene::new();
    scene.ask(Request::Get { id: named("a") });
    let activity = scene.activity(0, 10);
    let wait = &activity["waits"][0];
    assert_eq!((&wait["verb"], &wait["ref"]), (&"get".into(), &"a".into()));
    scene.put("a");
    assert!(scene.activity(0, 10)["waits"].as_array().unwrap().is_empty());
    assert_eq!(scene.kinds(), ["wait", "reply", "put"]);
    let seconds = scene.activity(1, 1)["events"][0]["seconds"].clone();
    assert_eq!(seconds, 2.0);
}

#[test]
fn a_request_that_fails_at_once_is_a_reply_with_its_error() {
    let mut scene = Scene::new();
    scene.ask(Request::Inputs { id: named("a") });
    let reply = scene.last();
    assert_eq!((&reply["kind"], &reply["verb"]), (&"reply".into(), &"inputs".into()));
    assert!(reply["error"].as_str().unwrap().contains("not the result of a reduce"));
    // A get without a timeout is a question.
    let (request, client) = (RequestId(99), CLIENT);
    let body = Request::Get { id: named("b") };
    scene.event(Event::Request { client, request, body, deadline: Some(Instant(0)) });
    assert_ne!(scene.last()["error"], Value::Null);
    let timeout = Error::Timeout { what: String::new(), waited_ns: 0, state: String::new() };
    let before = scene.activity(0, 1)["next"].clone();
    let body = Request::Get { id: named("c") };
    let asked = Event::Request { client, request, body, deadline: None };
    scene.recorder.event(scene.now, &asked, &scene.machine, &Known);
    scene.action(Action::Reply { client, request, reply: Err(timeout) });
    assert_eq!(scene.activity(0, 1)["next"], before);
}

#[test]
fn a_transfer_runs_until_it_has_arrived_and_a_second_source_resumes_it() {
    let mut scene = Scene::new();
    let reason = Reason::IdleRelay { depth: 2 };
    scene.action(Action::Log(LogEvent::SourceChosen { id: named("a"), source: OTHER, reason }));
    fetch(&mut scene, 1, OTHER);
    let (received, missing, shares) = (30, 70, 1);
    scene.event(Event::FetchProgress { fetch: FetchId(1), received, missing, shares });
    let transfer = scene.activity(0, 1)["transfers"][0].clone();
    assert_eq!((&transfer["received"], &transfer["bytes"]), (&30.into(), &100.into()));
    assert_eq!(transfer["choice"], "idle_relay");
    assert_eq!(transfer["reason"], "idle relay at depth 2");
    scene.event(Event::FetchFailed { fetch: FetchId(1), not_here: false });
    assert_eq!(scene.last()["received"], 30);
    assert!(scene.activity(0, 1)["transfers"].as_array().unwrap().is_empty());
    fetch(&mut scene, 2, NodeId(3));
    assert_eq!(scene.last()["resumed"], true);
    scene.event(Event::Fetched { fetch: FetchId(2) });
    let fetched = scene.last();
    assert_eq!(
        (&fetched["kind"], &fetched["source"]),
        (&"fetched".into(), &NodeId(3).to_string().into())
    );
    assert_eq!(scene.kinds(), ["source", "fetch", "fetch_failed", "fetch", "fetched"]);
}

#[test]
fn a_redirect_is_the_choice_of_the_next_source() {
    let mut scene = Scene::new();
    fetch(&mut scene, 1, OTHER);
    let (before, source) = (OTHER, NodeId(3));
    scene.action(Action::Log(LogEvent::SourceReplaced { id: named("a"), before, source }));
    scene.action(Action::StopFetch { fetch: FetchId(1) });
    fetch(&mut scene, 2, source);
    assert_eq!(scene.activity(0, 1)["transfers"][0]["choice"], "redirect");
    assert_eq!(scene.kinds(), ["fetch", "redirect", "fetch"]);
    scene.action(Action::FreeSlot { instance: COPY });
    assert!(scene.activity(0, 1)["transfers"].as_array().unwrap().is_empty());
}

#[test]
fn a_serve_has_its_reader_once_it_is_granted() {
    let mut scene = Scene::new();
    let here = scene.write("a", 2 * INLINE_BYTES_MAX);
    for (serve, instance) in [(ServeId(1), COPY), (ServeId(2), here)] {
        scene.event(Event::FetchRequested { serve, id: named("a"), instance });
        scene.event(Event::ServeEnded { serve });
    }
    assert_eq!(scene.kinds(), ["create", "reply", "seal", "serve", "served"]);
    let events = scene.activity(3, 2)["events"].clone();
    assert_eq!((&events[0]["reader"], &events[0]["ref"]), (&OTHER.to_string().into(), &"a".into()));
    assert_eq!((&events[1]["ref"], &events[1]["seconds"]), (&"a".into(), &1.0.into()));
}

#[test]
fn a_copy_that_is_written_to_a_file_has_its_time() {
    let mut scene = Scene::new();
    scene.machine.spill(1 << 40, false);
    let first = scene.write("a", 400 << 20);
    scene.write("b", 400 << 20);
    let (_, actions) = scene.create("c", 400 << 20);
    let is_first =
        |action: &Action| matches!(action, Action::Spill { kept } if kept.instance == first);
    assert!(actions.iter().any(is_first), "{actions:?}");
    scene.event(Event::Spilled { instance: first });
    let events = scene.activity(0, 9)["events"].as_array().unwrap().clone();
    let spilled = events.iter().find(|event| event["kind"] == "spilled").unwrap();
    assert_eq!((&spilled["ref"], &spilled["seconds"]), (&"a".into(), &1.0.into()));
}

#[test]
fn a_fold_runs_until_it_ends() {
    let mut scene = Scene::new();
    let input = scene.write("x", 2 * INLINE_BYTES_MAX);
    let member = Member { id: OTHER, address: ([127, 0, 0, 1], 7421).into(), place: None };
    scene.event(Event::PeerUp { member });
    let reduce = hoplite_proto::id::ReduceId { node: OTHER, serial: 1 };
    let key = FoldKey { reduce, epoch: 1, segment: 0, position: 4 };
    let size = 2 * INLINE_BYTES_MAX;
    let order = FoldOrder {
        key,
        result: named("sum"),
        inputs: vec![input],
        children: vec![(OTHER, 0), (NodeId(3), 1)],
        op: Op::Sum,
        dtype: Dtype::Float32,
        size,
        part: 0..size,
        frame: 1 << 16,
    };
    scene.event(Event::Message { from: OTHER, message: Message::Fold(order) });
    let fold = scene.activity(0, 1)["folds"][0].clone();
    assert_eq!((&fold["result"], &fold["position"]), (&"sum".into(), &4.into()));
    assert_eq!(fold["children"].as_array().unwrap().len(), 2);
    assert_eq!(fold["inputs"][0], "x");
    scene.event(Event::FoldEnded { key, failure: Some("stopped".into()) });
    assert_eq!(scene.last()["error"], "stopped");
    assert!(scene.activity(0, 1)["folds"].as_array().unwrap().is_empty());
}

#[test]
fn members_come_and_go_with_a_reason() {
    let mut scene = Scene::new();
    let member = Member { id: OTHER, address: ([127, 0, 0, 1], 7421).into(), place: None };
    scene.event(Event::PeerUp { member });
    scene.event(Event::PeerUnreachable { node: OTHER, is_dead: true });
    scene.event(Event::PeerUp { member });
    scene.event(Event::Message { from: OTHER, message: Message::Leave });
    let activity = scene.activity(0, 10);
    let rows = activity["events"].as_array().unwrap();
    let said: Vec<_> =
        rows.iter().map(|row| (row["state"].as_str(), row["why"].as_str())).collect();
    let joined = (Some("joined"), Some(""));
    let failed = (Some("failed"), Some("its process has ended"));
    assert_eq!(said, [joined, failed, joined, (Some("left"), Some(""))]);
}

#[test]
fn the_ring_keeps_the_newest_events_and_pages_follow_each_other() {
    let mut scene = Scene::new();
    let count = EVENTS_MAX as u64 + 10;
    (0..count).for_each(|number| scene.put(&format!("a{number}")));
    let activity = scene.activity(0, 3);
    assert_eq!((&activity["first"], &activity["next"]), (&10.into(), &count.into()));
    let serials = |activity: &Value| -> Vec<u64> {
        let rows = activity["events"].as_array().unwrap();
        rows.iter().map(|row| row["serial"].as_u64().unwrap()).collect()
    };
    assert_eq!(serials(&activity), [10, 11, 12]);
    assert_eq!(serials(&scene.activity(13, 2)), [13, 14]);
    assert_eq!(serials(&scene.activity(count - 1, 9)), [count - 1]);
    assert!(serials(&scene.activity(count, 9)).is_empty());
    assert!(serials(&scene.activity(u64::MAX, 9)).is_empty());
    assert!(scene.recorder.events.kept().all(|what| matches!(what, What::Put { .. })));
}

#[test]
fn lists_are_cut_and_say_how_much() {
    let mut scene = Scene::new();
    for number in 0..1500 {
        scene.ask(Request::Get { id: named(&format!("none/{number}")) });
    }
    let activity = scene.activity(0, 0);
    let waits = activity["waits"].as_array().unwrap();
    assert_eq!((waits.len(), &activity["omitted"]["waits"]), (1000, &500.into()));
    assert_eq!(waits[0]["ref"], "none/0");
    let long = format!("{}/", "x".repeat(1000));
    for number in 0..2000 {
        scene.ask(Request::Get { id: named(&format!("{long}{number}")) });
    }
    let text = report::activity(&scene.recorder, ME, &scene.machine, 0, u32::MAX);
    assert!(text.len() < 1 << 20, "{}", text.len());
}

#[test]
fn the_metrics_count_what_happened() {
    let mut scene = Scene::new();
    scene.put("a");
    scene.ask(Request::Delete { ids: vec![named("a")] });
    let status = serde_json::json!({});
    let peers = [(OTHER, (3, 4))].into();
    let text = report::metrics(&scene.recorder, ME, &scene.machine, &status, &peers);
    let metrics: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((&metrics["totals"]["puts"], &metrics["totals"]["deletes"]), (&1.into(), &1.into()));
    assert_eq!(metrics["peers"][OTHER.to_string()]["sent"], 4);
    assert_eq!(metrics["latencies"]["locate"]["bounds"].as_array().unwrap().len(), 21);
    assert_eq!(metrics["latencies"]["locate"]["counts"].as_array().unwrap().len(), 22);
}
