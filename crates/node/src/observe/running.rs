//! What runs on the node now, as rows: transfers, folds and reduces, and requests that wait.

use std::time::Duration;

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    node::{Fold, Node as Machine},
    reduce::{Reduce, ReduceShape},
    request::Waiting,
    time::Instant,
};
use serde::Serialize;

use super::{
    clients::OpenRequest,
    events::{Choice, FoldRow, Process, Subject, beginning, degree_name},
    json::{Json, Map, text},
    recorder::{Recorder, Transfer},
};

/// Number of rows, and about the number of bytes, of one list.
const ROWS_MAX: usize = 1000;
pub(super) const ROWS_BYTES_MAX: usize = 256 * 1024;

/// Maximum number of waits that a report describes, those of one second or more. It begins no
/// description once they have taken a millisecond: one that lists missing objects may have tens of
/// thousands.
const DESCRIBED_MAX: usize = 100;
const DESCRIBED_AFTER_NS: u64 = 1_000_000_000;
const DESCRIBE_TIME_MAX: Duration = Duration::from_millis(1);

/// Converts times of the state machine to seconds since 1970.
type Unix<'a> = &'a dyn Fn(Instant) -> f64;

/// Writes all lists, and how many rows of each were omitted.
pub(super) fn write(json: &mut Json, recorder: &Recorder, machine: &Machine, unix: Unix<'_>) {
    // A reader takes a transfer without a row for one that has ended. Thus those that begin may
    // lack one, not those that had one.
    let mut transfers: Vec<_> = recorder.transfers.iter().filter(|(_, it)| it.is_running).collect();
    transfers.sort_unstable_by_key(|(instance, it)| (it.since, instance.node, instance.serial));
    let all = [
        (transfers.len(), {
            let rows = transfers.iter().map(|(instance, it)| TransferRow::of(**instance, it, unix));
            list(json, "transfers", rows)
        }),
        (machine.running_folds().count(), {
            let rows = machine.running_folds().map(|(key, fold)| {
                let Fold { result, children, inputs, since, .. } = fold;
                let fold = FoldRow::of(result, key, children, inputs, machine);
                RunningFold { fold, since: unix(*since) }
            });
            list(json, "folds", rows)
        }),
        (machine.reduces().count(), {
            list(json, "reduces", machine.reduces().map(|reduce| ReduceRow::of(reduce, unix)))
        }),
        (recorder.waits.len(), {
            let until = std::time::Instant::now() + DESCRIBE_TIME_MAX;
            let rows = recorder.waits.values().enumerate().map(|(index, (open, process))| {
                let is_old = recorder.now.since(open.since) >= DESCRIBED_AFTER_NS;
                let may_describe = is_old && index < DESCRIBED_MAX;
                let is_described = may_describe && std::time::Instant::now() < until;
                let wait = is_described.then(|| machine.wait_of(open.request)).flatten();
                WaitRow::of(open, *process, wait, unix)
            });
            list(json, "waits", rows)
        }),
    ];
    json.list("reads", recorder.clients.reads(unix), ROWS_BYTES_MAX);
    let omitted = all.map(|(all, written)| all - written);
    let names = ["transfers", "folds", "reduces", "waits"];
    json.field("omitted", Map(names.into_iter().zip(omitted)));
}

/// Writes the first rows of a list. Returns their number.
fn list<T: Serialize>(json: &mut Json, name: &str, rows: impl Iterator<Item = T>) -> usize {
    json.list(name, rows.take(ROWS_MAX), ROWS_BYTES_MAX)
}

#[derive(Serialize)]
struct TransferRow<'a> {
    #[serde(rename = "ref", serialize_with = "text")]
    id: &'a ObjectId,
    #[serde(serialize_with = "text")]
    instance: Instance,
    #[serde(serialize_with = "text")]
    source: NodeId,
    #[serde(flatten)]
    choice: Choice,
    bytes: u64,
    received: u64,
    since: f64,
}

impl<'a> TransferRow<'a> {
    fn of(instance: Instance, transfer: &'a Transfer, unix: Unix<'_>) -> Self {
        let Transfer { ref id, source, choice, bytes, received, since, .. } = *transfer;
        Self { id, instance, source, choice, bytes, received, since: unix(since) }
    }
}

#[derive(Serialize)]
struct RunningFold {
    #[serde(flatten)]
    fold: FoldRow,
    since: f64,
}

#[derive(Serialize)]
struct ReduceRow<'a> {
    #[serde(serialize_with = "text")]
    result: &'a ObjectId,
    epoch: u32,
    degree: Option<String>,
    reason: String,
    since: f64,
}

impl<'a> ReduceRow<'a> {
    fn of(reduce: &'a Reduce, unix: Unix<'_>) -> Self {
        let (degree, reason) = match reduce.shape() {
            None => (None, "its inputs have not come".into()),
            Some(ReduceShape::Tree(degree, reason)) => {
                (Some(degree_name(degree).into()), reason.to_string())
            }
            Some(ReduceShape::Ring(parts)) => (
                Some(format!("ring of {parts}")),
                "most contributing nodes wait for the result".into(),
            ),
        };
        let (result, epoch, since) = (reduce.result(), reduce.epoch(), unix(reduce.since()));
        Self { result, epoch, degree, reason, since }
    }
}

#[derive(Serialize)]
struct WaitRow<'a> {
    verb: &'static str,
    #[serde(rename = "ref")]
    subject: &'a Subject,
    process: Process,
    since: f64,
    what: Option<Box<str>>,
    state: Option<Box<str>>,
}

impl<'a> WaitRow<'a> {
    fn of(open: &'a OpenRequest, process: Process, wait: Option<Waiting>, unix: Unix<'_>) -> Self {
        let (what, state) =
            wait.map(|wait| (beginning(&wait.what), beginning(&wait.state))).unzip();
        let (verb, subject, since) = (open.verb, &open.subject, unix(open.since));
        Self { verb, subject, process, since, what, state }
    }
}
