//! Writes what was recorded as JSON. `python/hoplite/activity.py` defines its Python types.

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{id::NodeId, node::Node as Machine, time::Instant};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    events::{CHOICES, What},
    json::{Json, Map},
    recorder::Recorder,
    running::{self, ROWS_BYTES_MAX},
    totals::{self, MEMBERSHIPS},
};

/// Maximum number of events in one report, which is written below the event loop's lock. Readers
/// continue with the next page.
const EVENTS_MAX: usize = 2500;

/// Bytes of events in one report, about; a report with all its lists fits into a message.
const EVENTS_BYTES_MAX: usize = 2 << 20;

/// Converts times of the state machine to seconds since 1970.
fn clock(recorder: &Recorder) -> (f64, impl Fn(Instant) -> f64 + use<>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let (unix, now) = (since.map_or(0.0, |since| since.as_secs_f64()), recorder.now);
    (unix, move |at: Instant| unix - now.since(at) as f64 / 1e9)
}

/// Writes recent events from number `after` on, at most `limit`, and what runs now.
pub(crate) fn activity(
    recorder: &Recorder,
    me: NodeId,
    machine: &Machine,
    after: u64,
    limit: u32,
) -> String {
    let (now, unix) = clock(recorder);
    let mut json = Json::default();
    json.field("time", now);
    json.field("node", me.to_string());
    json.field("first", recorder.events.first());
    json.field("next", recorder.events.next());
    let limit = EVENTS_MAX.min(limit as usize);
    let events = recorder.events.since(after).take(limit).map(|(serial, (at, what))| Row {
        serial,
        time: unix(*at),
        what,
    });
    json.list("events", events, EVENTS_BYTES_MAX);
    running::write(&mut json, recorder, machine, &unix);
    json.into_text()
}

#[derive(Serialize)]
struct Row<'a> {
    serial: u64,
    time: f64,
    #[serde(flatten)]
    what: &'a What,
}

/// Writes counters, latencies and the status. `peers` has the bytes received from each member, and
/// sent to it.
pub(crate) fn metrics(
    recorder: &Recorder,
    me: NodeId,
    machine: &Machine,
    status: &Value,
    peers: &HashMap<NodeId, (u64, u64)>,
) -> String {
    #[derive(Serialize)]
    struct Totals<'a> {
        #[serde(flatten)]
        totals: &'a totals::Totals,
        events: u64,
    }
    let (now, unix) = clock(recorder);
    let mut json = Json::default();
    json.field("time", now);
    json.field("node", me.to_string());
    json.field("version", env!("CARGO_PKG_VERSION"));
    json.field("started", unix(Instant(0)));
    json.field("status", status);
    let totals = &recorder.totals;
    json.field("totals", Totals { totals, events: recorder.events.next() });
    json.field("choices", Map(CHOICES.iter().zip(totals.choices)));
    json.field("memberships", Map(MEMBERSHIPS.iter().zip(totals.memberships)));
    let census = machine.table().census();
    let states = census.states().map(|(name, objects, bytes)| {
        (String::from(name), json!({ "objects": objects, "bytes": bytes }))
    });
    json.field("states", states.collect::<serde_json::Map<String, Value>>());
    json.field("pins", census.pinned());
    json.field("queues", Map(machine.queues().into_iter()));
    let peers = peers.iter().map(|(node, (received, sent))| {
        (node.to_string(), json!({ "received": received, "sent": sent }))
    });
    json.field("peers", Map(peers));
    json.field("latencies", Map(recorder.latencies.rows()));
    json.list("reads", recorder.clients.reads(&unix), ROWS_BYTES_MAX);
    json.into_text()
}
