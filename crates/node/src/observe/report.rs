//! Writes what was recorded as JSON. `python/hoplite/activity.py` defines its Python types.

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{id::NodeId, node::Node as Machine, time::Instant};

use super::{json::Json, recorder::Recorder};

/// Maximum number of events in one report.
const EVENTS_MAX: usize = 5000;

/// Bytes of events in one report, about; a report with all its lists fits into a message.
const EVENTS_BYTES_MAX: usize = 2 << 20;

/// Time after which a report describes what a request waits for: one second.
const DESCRIBED_AFTER_NS: u64 = 1_000_000_000;

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
    let limit = EVENTS_MAX.min(limit as usize);
    json.object(|json| {
        json.time("time", now);
        json.text("node", &me);
        json.number("first", recorder.events.first());
        json.number("next", recorder.events.next());
        json.key("events").list(|json| {
            recorder.events.write(json, after, limit, EVENTS_BYTES_MAX, &unix);
        });
        recorder.running.write(json, &unix, |request| {
            machine.wait_of(request).filter(|wait| wait.waited_ns >= DESCRIBED_AFTER_NS)
        });
    });
    json.into_text()
}

/// What the rest of the node adds to its metrics.
pub(crate) struct Parts<'a> {
    /// The status, as JSON.
    pub(crate) status: String,
    /// The state machine.
    pub(crate) machine: &'a Machine,
    /// Bytes received from each member, and sent to it.
    pub(crate) peers: &'a HashMap<NodeId, (u64, u64)>,
}

/// Writes counters, latencies and the status.
pub(crate) fn metrics(recorder: &Recorder, me: NodeId, parts: &Parts<'_>) -> String {
    let (now, unix) = clock(recorder);
    let mut json = Json::default();
    json.object(|json| {
        json.time("time", now);
        json.text("node", &me);
        json.text("version", &env!("CARGO_PKG_VERSION"));
        json.time("started", unix(Instant(0)));
        json.key("status").raw(&parts.status);
        recorder.totals.write(json, recorder.events.next());
        let census = parts.machine.table().census();
        json.key("states").object(|json| {
            for (name, objects, bytes) in census.states() {
                json.key(name).object(|json| {
                    json.number("objects", objects);
                    json.number("bytes", bytes);
                });
            }
        });
        json.number("pins", census.pinned());
        json.key("queues").object(|json| {
            for (name, count) in parts.machine.queues() {
                json.number(name, count);
            }
        });
        json.key("peers").object(|json| {
            for (node, (received, sent)) in parts.peers {
                json.key(&node.to_string()).object(|json| {
                    json.number("received", *received);
                    json.number("sent", *sent);
                });
            }
        });
        json.key("latencies").object(|json| recorder.latencies.write(json));
        recorder.running.write_reads(json, &unix);
    });
    json.into_text()
}
