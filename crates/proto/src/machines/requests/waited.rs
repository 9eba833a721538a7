//! What one question for several objects has seen of them.
//!
//! Does not know how owners are asked, nor other questions.

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

/// What a client waits for, and what of it has been seen.
#[derive(Clone, Debug)]
pub(crate) struct Waited {
    /// Those that have not come, and their places in the question.
    missing: BTreeMap<ObjectId, u32>,
    /// Places of those that have, in the order in which they were seen.
    ready: Vec<u32>,
    count: usize,
    /// Those that no owner has spoken of: a question whose time is over waits for their word, if that is not long.
    unanswered: BTreeSet<ObjectId>,
}

impl Waited {
    /// Nothing has come so far; `missing` has the places in the question.
    pub(super) const fn new(missing: BTreeMap<ObjectId, u32>, count: usize) -> Self {
        Self { missing, ready: Vec::new(), count, unanswered: BTreeSet::new() }
    }

    /// Those that have not come, in the order of the question.
    pub(super) fn missing(&self) -> Vec<ObjectId> {
        let mut missing: Vec<_> = self.missing.iter().collect();
        missing.sort_unstable_by_key(|(_, place)| **place);
        missing.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// No owner has spoken of those that have not come.
    pub(super) fn begin_to_ask(&mut self) {
        self.unanswered = self.missing.keys().cloned().collect();
    }

    /// An owner has spoken of an object; whether that is news.
    pub(super) fn answered(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id)
    }

    /// Whether as many have come as were asked for.
    pub(super) fn is_over(&self) -> bool {
        self.ready.len() >= self.count
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The first that came, as many as were asked for.
    pub(crate) fn ready(&self) -> Vec<u32> {
        self.ready.iter().take(self.count).copied().collect()
    }

    /// The question is over: it does not listen any more to what has not come.
    pub(crate) fn stop(&self, request: RequestId, watches: &mut Watches, world: &mut World) {
        for id in self.missing.keys() {
            watches.stop(id, Listener::Request(request), world);
        }
    }

    /// An object has come, or can't; whether the question is over.
    pub(super) fn settle(&mut self, id: &ObjectId) -> bool {
        self.unanswered.remove(id);
        self.ready.extend(self.missing.remove(id));
        self.is_over()
    }
}
