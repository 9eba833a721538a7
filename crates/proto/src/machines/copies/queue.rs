//! Copies that wait for room, and which of them gets it when there is some.
//!
//! In order of arrival, but none waits behind one that does not fit: that one may never fit, and room for the others may be
//! what lets a client delete. They are kept by size, so that a change of what is free costs the same however many wait.
//! Does not know what is free.

use alloc::{boxed::Box, collections::BTreeMap};

use super::sizes::{Sizes, Sum};
use crate::{
    id::{Instance, NodeId, ObjectId},
    inline::Inline,
    lifetime::Terms,
    meta::Meta,
    table::{COPY_OVERHEAD_BYTES, State},
};

/// A copy that is to be here once there is room for it.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Of which object.
    pub(crate) id: ObjectId,
    /// What it will be.
    pub(crate) meta: Meta,
    /// Its bytes if they are few.
    pub(crate) inline: Option<Inline>,
    /// Who makes it, or that it is complete as soon as there is room.
    pub(crate) state: State,
    /// How long the object lives, if not until it is deleted.
    pub(crate) terms: Option<Box<Terms>>,
}

/// Those that wait for room, and for how much.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By size, and those of one size by their tickets.
    by_size: BTreeMap<u64, BTreeMap<u64, Instance>>,
    sums: Sizes,
    waiting: BTreeMap<Instance, Waiting>,
    last_ticket: u64,
    /// What those take that are on disk alone.
    returning: u64,
}

#[derive(Debug)]
struct Waiting {
    size: u64,
    ticket: u64,
    /// None for a copy that is on disk alone and comes back.
    wanted: Option<Wanted>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.waiting.contains_key(&instance)
    }

    /// What a new copy will be that waits for room.
    pub(crate) fn wanted(&self, instance: Instance) -> Option<&Wanted> {
        self.waiting.get(&instance)?.wanted.as_ref()
    }

    /// How many bytes a copy waits for, without what it costs beside them.
    pub(crate) fn size(&self, instance: Instance) -> Option<u64> {
        self.waiting.get(&instance).map(|it| it.size)
    }

    /// How many copies wait that are on disk alone.
    pub(crate) fn count_returning(&self) -> usize {
        self.waiting.values().filter(|it| it.wanted.is_none()).count()
    }

    /// An arriving copy that waits for room will come from another node.
    pub(crate) fn redirect(&mut self, instance: Instance, source: NodeId) -> bool {
        let wanted = self.waiting.get_mut(&instance).and_then(|it| it.wanted.as_mut());
        wanted.is_some_and(|wanted| {
            wanted.state = State::Flowing(Some(source));
            true
        })
    }

    /// Appends a copy: a new one, or one that comes back from disk.
    pub(crate) fn push(&mut self, instance: Instance, size: u64, wanted: Option<Wanted>) {
        self.remove(instance);
        self.last_ticket += 1;
        if wanted.is_none() {
            self.returning += size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        self.by_size.entry(size).or_default().insert(self.last_ticket, instance);
        self.waiting.insert(instance, Waiting { size, ticket: self.last_ticket, wanted });
        self.sum(size);
    }

    /// A copy waits no more; what it was to be, if it is a new one. None if it did not wait.
    pub(crate) fn remove(&mut self, instance: Instance) -> Option<Option<Wanted>> {
        let Waiting { size, ticket, wanted } = self.waiting.remove(&instance)?;
        if wanted.is_none() {
            self.returning -= size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        if let Some(same) = self.by_size.get_mut(&size) {
            same.remove(&ticket);
            if same.is_empty() {
                self.by_size.remove(&size);
            }
        }
        self.sum(size);
        Some(wanted)
    }

    /// Those that wait for a size have changed.
    fn sum(&mut self, size: u64) {
        let same = self.by_size.get(&size);
        let sum = same.and_then(|same| {
            let (ticket, _) = same.first_key_value()?;
            let each = size.saturating_add(COPY_OVERHEAD_BYTES);
            Some(Sum { first: (*ticket, size), bytes: each.saturating_mul(same.len() as u64) })
        });
        self.sums.set(size, sum);
    }

    /// The first of those that `size` bytes are enough for, and its size.
    pub(crate) fn first_within(&self, size: u64) -> Option<(Instance, u64)> {
        let (ticket, size) = self.sums.within(size)?.first;
        Some((*self.by_size.get(&size)?.get(&ticket)?, size))
    }

    /// What all those would take that `size` bytes are enough for, each alone, less what one copy costs beside its bytes.
    pub(crate) fn bytes_within(&self, size: u64) -> u64 {
        let bytes = self.sums.within(size).map_or(0, |sum| sum.bytes);
        bytes.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// The same of all that are on disk alone.
    pub(crate) const fn returning_bytes(&self) -> u64 {
        self.returning.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// From the largest on of those that `size` bytes are enough for.
    pub(crate) fn largest_within(&self, size: u64) -> impl Iterator<Item = (Instance, u64)> {
        let sizes = self.by_size.range(..=size).rev();
        sizes.flat_map(|(size, same)| same.values().map(|instance| (*instance, *size)))
    }
}
