//! Copies that wait for capacity, and the order in which they are admitted.
//!
//! They are admitted in order of arrival, but none waits behind one that does not fit. That one may
//! never fit, and admitting the others may be what lets a client delete objects. Copies are indexed
//! by size, so that a change of the free capacity costs the same however many wait. Does not know
//! how much is free.

use alloc::{boxed::Box, collections::BTreeMap};

use super::sizes::{Sizes, Sum};
use crate::{
    id::{Instance, ObjectId},
    inline::Inline,
    lifetime::Terms,
    meta::Meta,
    table::{COPY_OVERHEAD_BYTES, State},
};

/// A new copy that waits for capacity.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    /// Its object.
    pub(crate) id: ObjectId,
    /// The metadata of the object.
    pub(crate) meta: Meta,
    /// The bytes of a small object.
    pub(crate) inline: Option<Inline>,
    /// What fills it, or that it is complete as soon as it is admitted.
    pub(crate) state: State,
    /// The lifetime of the object; `None` if it lives until it is deleted.
    pub(crate) terms: Option<Box<Terms>>,
}

/// The waiting copies, by the capacity that they need.
#[derive(Debug, Default)]
pub(crate) struct CapacityQueue {
    /// By size; copies of one size by their tickets.
    by_size: BTreeMap<u64, BTreeMap<u64, Instance>>,
    sums: Sizes,
    waiting: BTreeMap<Instance, QueuedCopy>,
    last_ticket: u64,
    /// Number of waiting copies that are only on disk, and capacity for all of them.
    returning: usize,
    returning_bytes: u64,
}

#[derive(Debug)]
struct QueuedCopy {
    size: u64,
    ticket: u64,
    /// `None` for a copy that is only on disk and comes back.
    pending: Option<PendingCopy>,
}

impl CapacityQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.waiting.contains_key(&instance)
    }

    /// The description of a new copy that waits for capacity.
    pub(crate) fn pending(&self, instance: Instance) -> Option<&PendingCopy> {
        self.waiting.get(&instance)?.pending.as_ref()
    }

    /// The bytes that a copy waits for, without its overhead.
    pub(crate) fn size(&self, instance: Instance) -> Option<u64> {
        self.waiting.get(&instance).map(|it| it.size)
    }

    /// The number of waiting copies that are only on disk.
    pub(crate) const fn count_returning(&self) -> usize {
        self.returning
    }

    /// Appends a copy: a new one, or one that comes back from disk.
    pub(crate) fn push(&mut self, instance: Instance, size: u64, pending: Option<PendingCopy>) {
        self.remove(instance);
        self.last_ticket += 1;
        if pending.is_none() {
            self.returning += 1;
            self.returning_bytes += size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        self.by_size.entry(size).or_default().insert(self.last_ticket, instance);
        self.waiting.insert(instance, QueuedCopy { size, ticket: self.last_ticket, pending });
        self.sum(size);
    }

    /// Removes a copy. Returns its description if it is a new one; the outer `None` means that it
    /// did not wait.
    pub(crate) fn remove(&mut self, instance: Instance) -> Option<Option<PendingCopy>> {
        let QueuedCopy { size, ticket, pending } = self.waiting.remove(&instance)?;
        if pending.is_none() {
            self.returning -= 1;
            self.returning_bytes -= size.saturating_add(COPY_OVERHEAD_BYTES);
        }
        if let Some(same) = self.by_size.get_mut(&size) {
            same.remove(&ticket);
            if same.is_empty() {
                self.by_size.remove(&size);
            }
        }
        self.sum(size);
        Some(pending)
    }

    /// Updates the sum of the copies that wait for one size.
    fn sum(&mut self, size: u64) {
        let same = self.by_size.get(&size);
        let sum = same.and_then(|same| {
            let (ticket, _) = same.first_key_value()?;
            let each = size.saturating_add(COPY_OVERHEAD_BYTES);
            Some(Sum { first: (*ticket, size), bytes: each.saturating_mul(same.len() as u64) })
        });
        self.sums.set(size, sum);
    }

    /// The first waiting copy for which `size` bytes are enough, and its size.
    pub(crate) fn first_within(&self, size: u64) -> Option<(Instance, u64)> {
        let (ticket, size) = self.sums.within(size)?.first;
        Some((*self.by_size.get(&size)?.get(&ticket)?, size))
    }

    /// The total capacity of the waiting copies for which `size` bytes are enough, less the
    /// overhead of one copy.
    pub(crate) fn bytes_within(&self, size: u64) -> u64 {
        let bytes = self.sums.within(size).map_or(0, |sum| sum.bytes);
        bytes.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// The same for all copies that are only on disk.
    pub(crate) const fn returning_bytes(&self) -> u64 {
        self.returning_bytes.saturating_sub(COPY_OVERHEAD_BYTES)
    }

    /// The waiting copies for which `size` bytes are enough, the largest first.
    pub(crate) fn largest_within(&self, size: u64) -> impl Iterator<Item = (Instance, u64)> {
        let sizes = self.by_size.range(..=size).rev();
        sizes.flat_map(|(size, same)| same.values().map(|instance| (*instance, *size)))
    }
}
