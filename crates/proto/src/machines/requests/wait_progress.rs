//! Progress of one request that waits for several objects.
//!
//! Does not know how owners are queried, nor other requests.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{ObjectId, RequestId},
    machines::{
        watches::{Listener, Watches},
        world::World,
    },
};

/// The objects that a client waits for, and which of them have come.
#[derive(Clone, Debug)]
pub(crate) struct WaitProgress {
    /// Objects that have not come, with their positions in the request.
    missing: BTreeMap<ObjectId, u32>,
    /// Positions of objects that have come, in the order of their arrival.
    ready: Vec<u32>,
    count: usize,
    /// Objects about which no owner has replied. A request past its deadline still waits for these replies for a short
    /// time.
    unanswered: BTreeSet<ObjectId>,
}

impl WaitProgress {
    /// Creates the state without arrivals; `missing` has the positions in the request.
    pub(super) const fn new(missing: BTreeMap<ObjectId, u32>, count: usize) -> Self {
        Self { missing, ready: Vec::new(), count, unanswered: BTreeSet::new() }
    }

    /// Objects that have not come, in the order of the request.
    pub(crate) fn missing(&self) -> Vec<ObjectId> {
        let mut missing: Vec<_> = self.missing.iter().collect();
        missing.sort_unstable_by_key(|(_, place)| **place);
        missing.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// Marks all missing objects as unanswered.
    pub(super) fn begin_to_ask(&mut self) {
        self.unanswered = self.missing.keys().cloned().collect();
    }

    /// Records that an owner has replied about an object. Returns whether that is the first reply.
    pub(super) fn answered(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id)
    }

    /// The number of objects that must still come.
    pub(crate) fn left(&self) -> usize {
        self.count.saturating_sub(self.ready.len())
    }

    /// Whether the requested number of objects has come.
    pub(super) fn is_over(&self) -> bool {
        self.ready.len() >= self.count
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The first objects that came, at most the requested number.
    pub(crate) fn ready(&self) -> Vec<u32> {
        self.ready.iter().take(self.count).copied().collect()
    }

    /// Ends the request: stops the watches of objects that have not come.
    pub(crate) fn stop(&self, request: RequestId, watches: &mut Watches, world: &mut World) {
        for id in self.missing.keys() {
            watches.stop(id, Listener::Request(request), world);
        }
    }

    /// Records that an object has come, or cannot come any more. Returns whether the request is complete.
    pub(super) fn settle(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id);
        self.ready.extend(self.missing.remove(id));
        self.is_over()
    }
}
