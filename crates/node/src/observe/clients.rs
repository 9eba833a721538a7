//! What is known of clients: their processes, the request that one of them made last, and the
//! newest version of each prefix that each has read.

use std::collections::HashMap;

use hoplite_proto::{
    id::{ClientId, Name, NodeId, RequestId, ServeId},
    meta::Op,
    time::Instant,
};
use serde::Serialize;

use super::events::{Process, Subject};

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

/// What is looked up in the rest of the node, only for what is recorded.
pub(crate) trait Lookup {
    /// The process of a client.
    fn process(&self, client: ClientId) -> Option<u32>;
    /// The node that requested a copy.
    fn reader(&self, serve: ServeId) -> Option<NodeId>;
}

/// Number of prefixes whose newest read version is remembered.
const READS_MAX: usize = 1024;

/// The newest version of a prefix that a client read, and when.
#[derive(Debug)]
struct Read {
    version: u64,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    /// The request that the state machine handles now, or has left without a reply.
    pub(super) current: Option<OpenRequest>,
    processes: HashMap<ClientId, Process>,
    /// The last version that a client got.
    last_read: Option<(ClientId, Name)>,
    reads: HashMap<ClientId, HashMap<Box<str>, Read>>,
    read_count: usize,
}

impl Clients {
    pub(super) fn forget(&mut self, client: ClientId) {
        self.processes.remove(&client);
        self.read_count -= self.reads.remove(&client).map_or(0, |reads| reads.len());
    }

    pub(super) fn process(&mut self, client: ClientId, lookup: &impl Lookup) -> Process {
        *self.processes.entry(client).or_insert_with(|| lookup.process(client))
    }

    /// A client got a named object.
    pub(super) fn has_read(
        &mut self,
        now: Instant,
        client: ClientId,
        name: &Name,
        lookup: &impl Lookup,
    ) {
        // Many clients get one object again and again.
        if self.last_read.as_ref().is_some_and(|(who, last)| (*who, last) == (client, name)) {
            return;
        }
        let Some(version) = name.version() else { return };
        self.last_read = Some((client, name.clone()));
        let known = self.reads.get_mut(&client).and_then(|reads| reads.get_mut(name.group()));
        if let Some(known) = known {
            if version > known.version {
                *known = Read { version, since: now };
            }
            return;
        }
        if self.read_count >= READS_MAX {
            self.drop_old_reads();
        }
        self.process(client, lookup);
        let reads = self.reads.entry(client).or_default();
        reads.insert(name.group().into(), Read { version, since: now });
        self.read_count += 1;
    }

    /// Drops the older half: a client may get objects of ever new prefixes.
    fn drop_old_reads(&mut self) {
        let all = self.reads.values().flat_map(HashMap::values);
        let mut times: Vec<Instant> = all.map(|read| read.since).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2];
        self.reads.values_mut().for_each(|reads| reads.retain(|_, read| read.since > middle));
        self.read_count = self.reads.values().map(HashMap::len).sum();
    }

    /// A row for each prefix of each client.
    pub(super) fn reads(&self, unix: impl Fn(Instant) -> f64) -> impl Iterator<Item = ReadRow<'_>> {
        let all =
            self.reads.iter().flat_map(|(client, reads)| reads.iter().map(move |it| (client, it)));
        all.map(move |(client, (prefix, read))| {
            let process = self.processes.get(client).copied().flatten();
            ReadRow { prefix, version: read.version, process, since: unix(read.since) }
        })
    }

    /// The number of clients with a known process.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.processes.len()
    }
}

#[derive(Serialize)]
pub(super) struct ReadRow<'a> {
    prefix: &'a str,
    version: u64,
    process: Process,
    since: f64,
}
