//! Transfers to this node by number, each from one source into one copy.
//!
//! Does not know why a copy arrives, nor what happens when a source fails.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::id::{FetchId, Instance, NodeId};

/// All transfers to this node.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    all: BTreeMap<FetchId, Fetch>,
    by_copy: BTreeSet<(Instance, FetchId)>,
    last: u64,
}

/// A transfer to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    /// The copy that it fills.
    pub(crate) instance: Instance,
    pub(crate) source: NodeId,
}

impl Fetches {
    /// Begins a transfer.
    pub(crate) fn begin(&mut self, instance: Instance, source: NodeId) -> FetchId {
        self.last += 1;
        let fetch = FetchId(self.last);
        self.all.insert(fetch, Fetch { instance, source });
        self.by_copy.insert((instance, fetch));
        fetch
    }

    pub(crate) fn get(&self, fetch: FetchId) -> Option<Fetch> {
        self.all.get(&fetch).copied()
    }

    /// Ends a transfer. Returns `None` if it was stopped before.
    pub(crate) fn end(&mut self, fetch: FetchId) -> Option<Fetch> {
        let ended = self.all.remove(&fetch)?;
        self.by_copy.remove(&(ended.instance, fetch));
        Some(ended)
    }

    /// Ends the transfers into a copy, and returns them.
    pub(crate) fn end_all(&mut self, instance: Instance) -> Vec<FetchId> {
        let into = (instance, FetchId(0))..=(instance, FetchId(u64::MAX));
        let into: Vec<FetchId> = self.by_copy.range(into).map(|(_, fetch)| *fetch).collect();
        for fetch in &into {
            self.end(*fetch);
        }
        into
    }
}
