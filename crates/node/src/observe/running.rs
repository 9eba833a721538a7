//! What runs on the node now: transfers, folds, reduces, waits, and what each process read last.

use std::{collections::HashMap, hash::Hash};

use hoplite_proto::{
    id::{ClientId, Instance, NodeId, ObjectId, RequestId, ServeId},
    message::FoldKey,
    meta::Op,
    reduce::{cost::DegreeReason, shape::Degree},
    request::Waiting,
    time::Instant,
};
use serde::Serialize;

use super::{
    events::{Choice, Process, Subject, beginning, degree_name, position_in_tree},
    json::{Json, text, texts},
};

/// Entries of what the state machine may never report as ended. Beyond this number they begin anew.
pub(super) const UNENDED_MAX: usize = 16_384;

/// Number of prefixes whose newest read version is remembered.
const READS_MAX: usize = 1024;

/// A copy that arrives.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) id: ObjectId,
    pub(super) source: NodeId,
    pub(super) choice: Choice,
    pub(super) bytes: u64,
    pub(super) received: u64,
    pub(super) since: Instant,
    /// Whether it arrives now; otherwise it waits for another source.
    pub(super) is_running: bool,
}

/// A copy that is sent.
#[derive(Debug)]
pub(super) struct Serve {
    pub(super) id: ObjectId,
    pub(super) instance: Instance,
    pub(super) reader: Option<NodeId>,
    pub(super) since: Instant,
    pub(super) is_granted: bool,
}

#[derive(Debug)]
pub(super) struct Fold {
    pub(super) result: ObjectId,
    pub(super) children: Box<[NodeId]>,
    pub(super) inputs: Box<[ObjectId]>,
    pub(super) since: Instant,
}

/// A reduce of a client of this node.
#[derive(Debug)]
pub(super) struct RunningReduce {
    pub(super) epoch: u32,
    pub(super) shape: ReduceShape,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) enum ReduceShape {
    /// Its inputs have not come.
    Unknown,
    Tree(Degree, Box<DegreeReason>),
    Ring(u64),
}

/// A request of a client.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) request: RequestId,
    pub(super) client: ClientId,
    pub(super) verb: &'static str,
    pub(super) subject: Subject,
    pub(super) since: Instant,
    /// Of a put: its size. Of a reduce: the number of inputs.
    pub(super) size: u64,
    /// Of a reduce: how many of them to fold, and the operation.
    pub(super) reduce: Option<(u32, Op)>,
}

/// A file that is written or read.
#[derive(Debug)]
pub(super) struct FileTransfer {
    pub(super) id: ObjectId,
    pub(super) bytes: u64,
    pub(super) since: Instant,
}

/// The newest version of a prefix that a process read.
#[derive(Debug)]
struct Read {
    version: u64,
    process: Process,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) transfers: HashMap<Instance, Transfer>,
    pub(super) serves: HashMap<ServeId, Serve>,
    pub(super) folds: HashMap<FoldKey, Fold>,
    pub(super) reduces: HashMap<ObjectId, RunningReduce>,
    pub(super) waits: HashMap<RequestId, (OpenRequest, Process)>,
    pub(super) spills: HashMap<Instance, FileTransfer>,
    pub(super) unspills: HashMap<Instance, FileTransfer>,
    /// Sources that were chosen and have not begun to send.
    pub(super) chosen: HashMap<ObjectId, Choice>,
    reads: HashMap<ClientId, HashMap<Box<str>, Read>>,
    reads_count: usize,
}

/// Inserts an entry whose end may never be seen.
pub(super) fn insert_bounded<K: Eq + Hash, V>(all: &mut HashMap<K, V>, key: K, value: V) {
    if all.len() >= UNENDED_MAX {
        all.clear();
    }
    all.insert(key, value);
}

impl Running {
    /// A client got this version.
    pub(super) fn read(
        &mut self,
        now: Instant,
        client: ClientId,
        prefix: &str,
        version: u64,
        process: impl FnOnce() -> Process,
    ) {
        let known = self.reads.get_mut(&client).and_then(|all| all.get_mut(prefix));
        if let Some(known) = known {
            if version > known.version {
                (known.version, known.since) = (version, now);
            }
            return;
        }
        if self.reads_count >= READS_MAX {
            self.drop_old_reads();
        }
        let read = Read { version, process: process(), since: now };
        self.reads.entry(client).or_default().insert(prefix.into(), read);
        self.reads_count += 1;
    }

    /// Drops the older half: a client may get objects of ever new prefixes.
    fn drop_old_reads(&mut self) {
        let all = self.reads.values().flat_map(HashMap::values);
        let mut times: Vec<(u64, usize)> = all.map(|read| (read.since.0, 0)).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2].0;
        self.reads_count = 0;
        for prefixes in self.reads.values_mut() {
            prefixes.retain(|_, read| read.since.0 > middle);
            self.reads_count += prefixes.len();
        }
    }

    pub(super) fn forget_reads(&mut self, client: ClientId) {
        if !self.reads.is_empty() {
            self.reads_count -= self.reads.remove(&client).map_or(0, |all| all.len());
        }
    }

    pub(super) fn write_reads(&self, json: &mut Json, unix: &dyn Fn(Instant) -> f64) {
        #[derive(Serialize)]
        struct Row<'a> {
            prefix: &'a str,
            version: u64,
            process: Process,
            since: f64,
        }
        let rows = self.reads.values().flatten().map(|(prefix, read)| {
            let Read { version, process, since } = *read;
            Row { prefix, version, process, since: unix(since) }
        });
        json.list("reads", rows, ROWS_BYTES_MAX);
    }

    /// Writes all lists, and how many rows of each were omitted.
    pub(super) fn write(
        &self,
        json: &mut Json,
        unix: &dyn Fn(Instant) -> f64,
        describe: impl Fn(RequestId) -> Option<Waiting>,
    ) {
        let transfers = self.transfers.iter().filter(|(_, transfer)| transfer.is_running);
        let transfers = rows(
            json,
            "transfers",
            transfers,
            |(_, it)| it.since,
            |_, (instance, it)| TransferRow {
                id: &it.id,
                instance: *instance,
                source: it.source,
                choice: it.choice,
                bytes: it.bytes,
                received: it.received,
                since: unix(it.since),
            },
        );
        let folds = rows(
            json,
            "folds",
            self.folds.iter(),
            |(_, it)| it.since,
            |_, (key, it)| FoldRow {
                result: &it.result,
                epoch: key.epoch,
                position: key.position,
                parent: (),
                children: &it.children,
                inputs: &it.inputs,
                since: unix(it.since),
            },
        );
        let reduces = rows(
            json,
            "reduces",
            self.reduces.iter(),
            |(_, it)| it.since,
            |_, (result, it)| {
                let (degree, reason) = match &it.shape {
                    ReduceShape::Unknown => (None, "its inputs have not come".into()),
                    ReduceShape::Tree(degree, reason) => {
                        (Some(degree_name(*degree).into()), reason.to_string())
                    }
                    ReduceShape::Ring(parts) => (
                        Some(format!("ring of {parts}")),
                        "most contributing nodes wait for the result".into(),
                    ),
                };
                ReduceRow { result, epoch: it.epoch, degree, reason, since: unix(it.since) }
            },
        );
        // The oldest come first.
        let waits = rows(
            json,
            "waits",
            self.waits.values(),
            |it| it.0.since,
            |index, (open, process)| {
                let wait = (index < DESCRIBED_MAX).then(|| describe(open.request)).flatten();
                let (what, state) = wait.map(|wait| (wait.what, wait.state)).unzip();
                let text = |text: Option<String>| text.map(|text| beginning(&text));
                WaitRow {
                    verb: open.verb,
                    subject: &open.subject,
                    process: *process,
                    since: unix(open.since),
                    what: text(what),
                    state: text(state),
                }
            },
        );
        self.write_reads(json, unix);
        json.field("omitted", Omitted { transfers, folds, reduces, waits });
    }
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

#[derive(Serialize)]
struct FoldRow<'a> {
    #[serde(serialize_with = "text")]
    result: &'a ObjectId,
    epoch: u32,
    #[serde(serialize_with = "position_in_tree")]
    position: u32,
    parent: (),
    #[serde(serialize_with = "texts")]
    children: &'a [NodeId],
    #[serde(serialize_with = "texts")]
    inputs: &'a [ObjectId],
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

/// How many rows each list lacks.
#[derive(Serialize)]
struct Omitted {
    transfers: usize,
    folds: usize,
    reduces: usize,
    waits: usize,
}

/// Maximum number of waits that a report describes.
const DESCRIBED_MAX: usize = 100;

/// Number of rows, and about the number of bytes, of one list.
const ROWS_MAX: usize = 1000;
const ROWS_BYTES_MAX: usize = 256 * 1024;

/// Writes a list, the longest running first. Returns how many rows it omitted.
fn rows<T: Copy, R: Serialize>(
    json: &mut Json,
    name: &str,
    all: impl Iterator<Item = T>,
    since: impl Fn(&T) -> Instant,
    row: impl Fn(usize, T) -> R,
) -> usize {
    let mut all: Vec<T> = all.collect();
    all.sort_by_key(|row| since(row).0);
    let first = all.iter().take(ROWS_MAX).enumerate();
    all.len() - json.list(name, first.map(|(index, each)| row(index, *each)), ROWS_BYTES_MAX)
}
