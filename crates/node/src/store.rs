//! The memory of a node: a slot for each copy that is too large to travel inside messages, and word of its growth.
//!
//! Which copies there are, and which may go, is decided by the table of `hoplite-proto`.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{id::Instance, limits::BLOCK_BYTES, ranges::Ranges, wire::Header};
use hoplite_shm::{Arena, ShmError, Slot, WriterId, file_size_limit};
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::{
    config::EXTENT_BYTES,
    sync::{lock, until},
};

/// A copy in memory. A holder may go on reading when the store has let go of it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slot: Slot,
    /// Whose turn it is to receive what is missing.
    pub(crate) receiving: tokio::sync::Mutex<()>,
    /// Checksums of the frames in which it came, by where they begin.
    sums: Mutex<HashMap<u64, Sum>>,
    changed: Notify,
    /// How many wait for more of it.
    followers: AtomicUsize,
    /// How many transfers shared the busiest link on the way of what came last.
    upstream: AtomicU16,
    /// The store let go of it before it was complete: the rest will not come.
    abandoned: AtomicBool,
}

/// The checksum of a frame that was received and found right.
#[derive(Clone, Copy, Debug)]
struct Sum {
    length: u32,
    checksum: u32,
}

/// The rest of a copy will not come.
#[derive(Debug)]
pub(crate) struct Abandoned;

impl Held {
    /// What came last shared the busiest link on its way with `shares - 1` other transfers.
    pub(crate) fn came_beside(&self, shares: u16) {
        self.upstream.store(shares, Ordering::Relaxed);
    }

    /// How many transfers share the busiest link on the way to this copy; none does once it is complete.
    pub(crate) fn shares_upstream(&self) -> u16 {
        if self.slot.is_complete() { 0 } else { self.upstream.load(Ordering::Relaxed) }
    }

    /// More of the copy is there: wakes all that follow it.
    pub(crate) fn grew(&self) {
        self.changed.notify_waiters();
    }

    /// More of the copy is there, and the tasks that wait for it run before this one goes on: a relay that first took all
    /// that has come would pass it on in gulps.
    pub(crate) async fn grew_in_turn(&self) {
        self.grew();
        if self.followers.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// The first `whole` bytes of what came for the place `at`, in these frames, are what was sent.
    pub(crate) fn remember_sums(&self, at: u64, whole: u64, frames: &[Header]) {
        let mut sums = lock(&self.sums);
        for Header { offset, length, checksum, .. } in frames.iter().copied() {
            if offset.saturating_add(length.into()) <= at + whole {
                sums.insert(offset, Sum { length, checksum });
            }
        }
    }

    /// The checksum of the bytes from `at` on if they came as one frame of this length: that of its first sender, so that
    /// the receiver sees what happened to them anywhere on their way.
    pub(crate) fn known_sum(&self, at: u64, length: usize) -> Option<u32> {
        let known = lock(&self.sums).get(&at).copied();
        Some(known.filter(|sum| sum.length as usize == length)?.checksum)
    }

    /// Waits until all blocks of `range` are there, and returns them.
    pub(crate) async fn wait(&self, range: Range<u64>) -> Result<&[u8], Abandoned> {
        // Of a complete copy every block is: to be registered each time would cost more than the look.
        if let Some(bytes) = self.slot.ready(range.clone()) {
            return Ok(bytes);
        }
        let _following = Following::new(&self.followers);
        let look = || match self.slot.ready(range.clone()) {
            None if self.is_abandoned() => Some(Err(Abandoned)),
            bytes => bytes.map(Ok),
        };
        until(&self.changed, look).await
    }

    /// Whether the rest of it will not come.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until something is so that comes with word of growth; false if the rest of the copy will not come.
    pub(crate) async fn until(&self, is_so: impl Fn() -> bool) -> bool {
        let look = || if is_so() { Some(true) } else { self.is_abandoned().then_some(false) };
        until(&self.changed, look).await
    }

    /// What of the copy is there.
    pub(crate) fn ready(&self) -> Ranges {
        let (len, progress) = (self.slot.len(), self.slot.progress());
        if progress.is_complete() {
            return Ranges::full(len);
        }
        let mut ranges = Ranges::full(progress.prefix());
        let first = progress.prefix() / BLOCK_BYTES;
        for block in (first..progress.blocks()).filter(|block| progress.is_ready(*block)) {
            let start = block * BLOCK_BYTES;
            ranges.insert(start..(start + BLOCK_BYTES).min(len));
        }
        ranges
    }
}

/// Counts who waits, for as long as it lives.
struct Following<'a>(&'a AtomicUsize);

impl<'a> Following<'a> {
    fn new(followers: &'a AtomicUsize) -> Self {
        followers.fetch_add(1, Ordering::Relaxed);
        Self(followers)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All copies in memory.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) arena: Arena,
    capacity: u64,
    held: Mutex<HashMap<Instance, Arc<Held>>>,
    created: Notify,
}

/// Bytes of memory that a store of `capacity` takes at most. Beside its bytes a copy has a header, and its end is rounded
/// up: 3 % and 12 MiB, in which even a small store holds objects of every size.
const fn memory_max(capacity: u64) -> u64 {
    capacity.saturating_add(capacity / 32).saturating_add(12 << 20)
}

/// How long a copy waits for memory that processes are about to unmap, before what may be evicted is.
const LEAVING_PATIENCE: Duration = Duration::from_secs(3);

/// Extents of one large object each, at least as many as the smallest such objects fill the store with: 4096, of which each
/// takes a descriptor here and a mapping in every process that reads it; or a quarter of the descriptors that this process
/// may open, as attached processes take half.
fn extents_max() -> u64 {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (descriptors / 4).clamp(16, 4096)
}

impl Store {
    pub(crate) fn new(capacity: u64) -> Self {
        let extent_bytes = EXTENT_BYTES.min(file_size_limit());
        Self {
            arena: Arena::bounded(extent_bytes, memory_max(capacity), extents_max()),
            capacity,
            held: Mutex::default(),
            created: Notify::new(),
        }
    }

    /// Bytes of objects that it may hold.
    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Takes memory for a copy. May take a while: new memory costs 0.7 ms per MiB, and what goes for it is free only when the
    /// processes that `tell_gone` tells have unmapped it.
    pub(crate) fn create(
        &self,
        instance: Instance,
        len: u64,
        writer: Option<WriterId>,
        tell_gone: impl Fn(),
    ) -> Result<(), ShmError> {
        if self.create_warm(instance, len, writer) {
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            let lefts = self.arena.lefts();
            let allocated = self.arena.allocate(len, writer);
            tell_gone();
            let patience = LEAVING_PATIENCE.saturating_sub(begun.elapsed());
            match allocated {
                Err(ShmError::NoMemory { .. }) if self.arena.wait_for_left(lefts, patience) => {}
                slot => {
                    self.insert(instance, slot?);
                    return Ok(());
                }
            }
        }
    }

    /// The same without a wait, if there is room in memory that was used before.
    pub(crate) fn create_warm(
        &self,
        instance: Instance,
        len: u64,
        writer: Option<WriterId>,
    ) -> bool {
        let slot = self.arena.allocate_warm(len, writer);
        slot.map(|slot| self.insert(instance, slot)).is_some()
    }

    fn insert(&self, instance: Instance, slot: Slot) {
        let (changed, followers) = (Notify::new(), AtomicUsize::new(0));
        let (receiving, abandoned) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        let sums = Mutex::default();
        let upstream = AtomicU16::new(0);
        let held = Held { slot, receiving, sums, changed, followers, upstream, abandoned };
        // If the same copy was given up and asked for again while memory was made, the first to be ready stays.
        lock(&self.held).entry(instance).or_insert_with(|| Arc::new(held));
        self.created.notify_waiters();
    }

    /// The copy, as soon as it has memory.
    pub(crate) async fn wait_for(&self, instance: Instance) -> Arc<Held> {
        until(&self.created, || self.get(instance)).await
    }

    pub(crate) fn get(&self, instance: Instance) -> Option<Arc<Held>> {
        lock(&self.held).get(&instance).cloned()
    }

    /// Lets go of a copy; its memory is free when the last reader is gone.
    pub(crate) fn free(&self, instance: Instance) {
        let held = lock(&self.held).remove(&instance);
        if let Some(held) = held.filter(|held| !held.slot.is_complete()) {
            held.abandoned.store(true, Ordering::Release);
            held.grew();
        }
    }

    /// Lets go of everything.
    pub(crate) fn clear(&self) {
        let all: Vec<Instance> = lock(&self.held).keys().copied().collect();
        all.into_iter().for_each(|instance| self.free(instance));
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{id::NodeId, wire::FrameKind};

    use super::*;

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    #[test]
    fn what_came_goes_on_with_the_checksum_that_it_came_with() {
        let store = Store::new(1 << 30);
        store.create(INSTANCE, 3 * BLOCK_BYTES, None, || {}).unwrap();
        let held = store.get(INSTANCE).unwrap();
        let header = |block: u64| Header {
            offset: block * BLOCK_BYTES,
            ..Header::new(FrameKind::Blocks, BLOCK_BYTES as u32, 1000 + block as u32)
        };
        // The last was not right.
        held.remember_sums(0, 2 * BLOCK_BYTES, &[header(0), header(1), header(2)]);
        let bytes = vec![7; 2 * BLOCK_BYTES as usize];
        let block = &bytes[..BLOCK_BYTES as usize];
        let sums = [0, 1, 2].map(|number| held.known_sum(number * BLOCK_BYTES, block.len()));
        assert_eq!(sums, [Some(1000), Some(1001), None]);
        assert_eq!(held.known_sum(0, bytes.len()), None, "frames of another length");
    }

    #[tokio::test]
    async fn a_reader_follows_a_copy_that_grows_and_is_told_when_it_will_not() {
        let store = Store::new(1 << 30);
        store.create(INSTANCE, 3 * BLOCK_BYTES, None, || {}).unwrap();
        let held = store.get(INSTANCE).unwrap();
        let reader = tokio::spawn({
            let held = held.clone();
            async move {
                let first = held.wait(0..BLOCK_BYTES).await.unwrap()[0];
                (first, held.wait(0..3 * BLOCK_BYTES).await.is_err())
            }
        });
        let mut block = held.slot.claim(0..BLOCK_BYTES).unwrap();
        block.fill(7);
        block.commit();
        held.grew();
        assert_eq!(held.ready(), Ranges::full(BLOCK_BYTES));
        store.free(INSTANCE);
        assert_eq!(reader.await.unwrap(), (7, true));
    }
}
