//! Progress of one request that waits for several objects.
//!
//! Does not know how owners are queried, nor other requests.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::id::ObjectId;

/// The objects that a client waits for, and which of them have come.
#[derive(Clone, Debug)]
pub(crate) struct WaitProgress {
    /// Objects that have not come, with their positions in the request.
    missing: BTreeMap<ObjectId, u32>,
    /// Positions of objects that have come, in the order of their arrival.
    ready: Vec<u32>,
    count: usize,
}

impl WaitProgress {
    /// Creates the state without arrivals; `missing` has the positions in the request.
    pub(super) const fn new(missing: BTreeMap<ObjectId, u32>, count: usize) -> Self {
        Self { missing, ready: Vec::new(), count }
    }

    /// Objects that have not come, in the order of the request.
    pub(crate) fn missing(&self) -> Vec<ObjectId> {
        let mut missing: Vec<_> = self.missing.iter().collect();
        missing.sort_unstable_by_key(|(_, place)| **place);
        missing.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// The number of objects that must still come.
    pub(crate) fn left(&self) -> usize {
        self.count.saturating_sub(self.ready.len())
    }

    /// Whether the requested number of objects has come.
    pub(super) fn is_over(&self) -> bool {
        self.ready.len() >= self.count
    }

    /// The first objects that came, at most the requested number.
    pub(crate) fn ready(&self) -> Vec<u32> {
        self.ready.iter().take(self.count).copied().collect()
    }

    /// Records that an object has come, or cannot come any more. Returns whether the request is
    /// complete.
    pub(super) fn settle(&mut self, id: &ObjectId) -> bool {
        self.ready.extend(self.missing.remove(id));
        self.is_over()
    }
}
