//! What runs on the node now: transfers, folds, reduces, waits, and what each process read last.

use std::{cell::Cell, collections::HashMap, hash::Hash};

use hoplite_proto::{
    id::{ClientId, Instance, NodeId, ObjectId, RequestId, ServeId},
    message::FoldKey,
    meta::Op,
    reduce::{cost::DegreeReason, shape::Degree},
    request::Waiting,
    time::Instant,
};

use super::{
    events::{Choice, Process, Subject, beginning, degree_name, write_position, write_process},
    json::Json,
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
        let begin = json.len();
        json.key("reads").list(|json| {
            for (prefix, read) in self.reads.values().flatten() {
                if json.len() > begin + ROWS_BYTES_MAX {
                    break;
                }
                json.object(|json| {
                    json.text("prefix", prefix);
                    json.number("version", read.version);
                    write_process(json, read.process);
                    json.time("since", unix(read.since));
                });
            }
        });
    }

    /// Writes all lists, and how many rows of each were omitted.
    pub(super) fn write(
        &self,
        json: &mut Json,
        unix: &dyn Fn(Instant) -> f64,
        describe: impl Fn(RequestId) -> Option<Waiting>,
    ) {
        let described = Cell::new(0);
        let transfers = self.transfers.iter().filter(|(_, transfer)| transfer.is_running);
        let mut omitted = [0; 4];
        omitted[0] = rows(
            json,
            "transfers",
            transfers,
            |(_, it)| it.since,
            |json, row| {
                let (instance, transfer) = row;
                json.text("ref", &transfer.id);
                json.text("instance", instance);
                json.text("source", &transfer.source);
                transfer.choice.write(json);
                json.number("bytes", transfer.bytes);
                json.number("received", transfer.received);
                json.time("since", unix(transfer.since));
            },
        );
        omitted[1] = rows(
            json,
            "folds",
            self.folds.iter(),
            |(_, it)| it.since,
            |json, row| {
                let (key, fold) = row;
                json.text("result", &fold.result);
                json.number("epoch", key.epoch.into());
                write_position(json, key.position);
                json.maybe("parent", None);
                json.texts("children", &fold.children);
                json.texts("inputs", &fold.inputs);
                json.time("since", unix(fold.since));
            },
        );
        omitted[2] = rows(
            json,
            "reduces",
            self.reduces.iter(),
            |(_, it)| it.since,
            |json, row| {
                let (result, reduce) = row;
                json.text("result", result);
                json.number("epoch", reduce.epoch.into());
                match &reduce.shape {
                    ReduceShape::Unknown => {
                        json.maybe("degree", None);
                        json.text("reason", &"its inputs have not come");
                    }
                    ReduceShape::Tree(degree, reason) => {
                        json.text("degree", &degree_name(*degree));
                        json.text("reason", reason);
                    }
                    ReduceShape::Ring(parts) => {
                        json.text("degree", &format_args!("ring of {parts}"));
                        json.text("reason", &"most contributing nodes wait for the result");
                    }
                }
                json.time("since", unix(reduce.since));
            },
        );
        omitted[3] = rows(
            json,
            "waits",
            self.waits.values(),
            |it| it.0.since,
            |json, row| {
                let (open, process) = row;
                json.text("verb", &open.verb);
                open.subject.write(json);
                write_process(json, *process);
                json.time("since", unix(open.since));
                // The oldest come first.
                described.set(described.get() + 1);
                let wait = (described.get() <= DESCRIBED_MAX).then(|| describe(open.request));
                let wait = wait.flatten();
                let text = |text: &String| beginning(text);
                let (what, state) = (
                    wait.as_ref().map(|wait| text(&wait.what)),
                    wait.as_ref().map(|wait| text(&wait.state)),
                );
                json.maybe("what", what.as_ref().map(|what| what as _));
                json.maybe("state", state.as_ref().map(|state| state as _));
            },
        );
        self.write_reads(json, unix);
        json.key("omitted").object(|json| {
            for (name, count) in ["transfers", "folds", "reduces", "waits"].iter().zip(omitted) {
                json.number(name, count);
            }
        });
    }
}

/// Maximum number of waits that a report describes.
const DESCRIBED_MAX: usize = 100;

/// Number of rows, and about the number of bytes, of one list.
const ROWS_MAX: usize = 1000;
const ROWS_BYTES_MAX: usize = 256 * 1024;

/// Writes a list, the longest running first. Returns how many rows it omitted.
fn rows<T: Copy>(
    json: &mut Json,
    name: &str,
    all: impl Iterator<Item = T>,
    since: impl Fn(&T) -> Instant,
    write: impl Fn(&mut Json, T),
) -> u64 {
    let all: Vec<T> = all.collect();
    // Sorting numbers rather than rows keeps the library small.
    let mut order: Vec<(u64, usize)> =
        all.iter().enumerate().map(|(index, row)| (since(row).0, index)).collect();
    order.sort_unstable();
    let (begin, mut written) = (json.len(), 0);
    json.key(name).list(|json| {
        for (_, index) in order.iter().take(ROWS_MAX) {
            if json.len() > begin + ROWS_BYTES_MAX {
                break;
            }
            json.object(|json| write(json, all[*index]));
            written += 1;
        }
    });
    all.len() as u64 - written
}
