//! The newest version of each prefix that processes of this host read.

use std::collections::HashMap;

use hoplite_proto::{id::ClientId, time::Instant};
use serde::Serialize;

use super::events::Process;

/// Number of prefixes whose newest read version is remembered.
const READS_MAX: usize = 1024;

/// The newest version of a prefix that a process read.
#[derive(Debug)]
struct Read {
    version: u64,
    process: Process,
    since: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Reads {
    by_client: HashMap<ClientId, HashMap<Box<str>, Read>>,
    count: usize,
}

impl Reads {
    /// A client got this version.
    pub(super) fn note(
        &mut self,
        now: Instant,
        client: ClientId,
        prefix: &str,
        version: u64,
        process: impl FnOnce() -> Process,
    ) {
        let known = self.by_client.get_mut(&client).and_then(|all| all.get_mut(prefix));
        if let Some(known) = known {
            if version > known.version {
                (known.version, known.since) = (version, now);
            }
            return;
        }
        if self.count >= READS_MAX {
            self.drop_old();
        }
        let read = Read { version, process: process(), since: now };
        self.by_client.entry(client).or_default().insert(prefix.into(), read);
        self.count += 1;
    }

    /// Drops the older half: a client may get objects of ever new prefixes.
    fn drop_old(&mut self) {
        let all = self.by_client.values().flat_map(HashMap::values);
        let mut times: Vec<(u64, usize)> = all.map(|read| (read.since.0, 0)).collect();
        times.sort_unstable();
        let middle = times[times.len() / 2].0;
        self.count = 0;
        for prefixes in self.by_client.values_mut() {
            prefixes.retain(|_, read| read.since.0 > middle);
            self.count += prefixes.len();
        }
    }

    pub(super) fn forget(&mut self, client: ClientId) {
        if !self.by_client.is_empty() {
            self.count -= self.by_client.remove(&client).map_or(0, |all| all.len());
        }
    }

    /// A row for each prefix of each process.
    pub(super) fn rows(&self, unix: impl Fn(Instant) -> f64) -> impl Iterator<Item = ReadRow<'_>> {
        self.by_client.values().flatten().map(move |(prefix, read)| {
            let Read { version, process, since } = *read;
            ReadRow { prefix, version, process, since: unix(since) }
        })
    }
}

#[derive(Serialize)]
pub(super) struct ReadRow<'a> {
    prefix: &'a str,
    version: u64,
    process: Process,
    since: f64,
}
