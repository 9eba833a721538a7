//! The memory of a node: a slot for each copy that is too large to travel inside messages, and
//! notifications of its growth.
//!
//! The table of `hoplite-proto` decides which copies exist and which are evicted.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hoplite_proto::{id::Instance, limits::BLOCK_BYTES, ranges::Ranges, wire::Header};
use hoplite_shm::{Arena, Ready, ShmError, Slot, WriteGuard, WriterId, file_size_limit};
use tokio::sync::Notify;

use crate::{
    backing::{Backing, Claim},
    config::{EXTENT_BYTES, descriptors},
    sync::{lock, until},
};

/// A copy in memory. Its users may continue to read after the store has removed it.
#[derive(Debug)]
pub(crate) struct StoredCopy {
    slot: Slot,
    /// The ranges that transfers receive.
    receiving: ReceivedRanges,
    /// Checksums of the received frames, by offset.
    sums: Mutex<HashMap<u64, Sum>>,
    changed: Notify,
    /// Number of tasks that wait for more of it.
    followers: AtomicUsize,
    /// Number of transfers that shared the busiest link on the path of the last bytes received.
    upstream: AtomicU16,
    /// The store removed it before it was complete: the rest will not come.
    abandoned: AtomicBool,
}

/// The checksum of a received and verified frame.
#[derive(Clone, Copy, Debug)]
struct Sum {
    length: u32,
    checksum: u32,
}

/// The rest of a copy will not come.
#[derive(Debug)]
pub(crate) struct Abandoned;

/// A range of a copy in memory that one task fills in place.
#[derive(Debug)]
pub(crate) struct MemoryClaim<'a> {
    guard: WriteGuard<'a>,
    stored: &'a StoredCopy,
}

impl Backing for StoredCopy {
    type Claim<'a> = MemoryClaim<'a>;

    fn len(&self) -> u64 {
        self.slot.len()
    }

    fn is_ready(&self, range: Range<u64>) -> bool {
        self.slot.progress().is_range_ready(range)
    }

    fn claim(&self, range: Range<u64>) -> Option<MemoryClaim<'_>> {
        Some(MemoryClaim { guard: self.slot.claim(range)?, stored: self })
    }

    fn view(&self, range: Range<u64>) -> Option<Ready<'_>> {
        self.slot.ready(range)
    }
}

impl Claim for MemoryClaim<'_> {
    fn range(&self) -> Range<u64> {
        self.guard.range()
    }

    fn place(&mut self, most: u64) -> &mut [u8] {
        let end = self.guard.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        &mut self.guard[..end]
    }

    fn commit(&mut self, bytes: u64) -> io::Result<()> {
        if self.guard.commit_front(bytes) > 0 {
            self.stored.grew();
        }
        Ok(())
    }
}

impl StoredCopy {
    /// Its memory, for processes of this host.
    pub(crate) const fn shared(&self) -> &Slot {
        &self.slot
    }

    /// Whether every byte is ready.
    pub(crate) fn is_complete(&self) -> bool {
        self.slot.is_complete()
    }

    /// Records that the last bytes shared the busiest link on their path with `shares - 1` other
    /// transfers.
    pub(crate) fn came_beside(&self, shares: u16) {
        self.upstream.store(shares, Ordering::Relaxed);
    }

    /// Number of transfers that share the busiest link on the path to this copy; 0 once it is
    /// complete.
    pub(crate) fn shares_upstream(&self) -> u16 {
        if self.is_complete() { 0 } else { self.upstream.load(Ordering::Relaxed) }
    }

    /// Wakes all tasks that follow the copy, after it has grown.
    pub(crate) fn grew(&self) {
        self.changed.notify_waiters();
    }

    /// Lets the tasks that follow the copy run before this one continues: otherwise a relay would
    /// receive everything available first, and forward it in bursts.
    pub(crate) async fn yield_to_followers(&self) {
        if self.followers.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until no other transfer receives any of these bytes: a stopped one may still be ending.
    pub(crate) async fn take(self: &Arc<Self>, bytes: Ranges) -> TakenRanges {
        let ReceivedRanges { taken, released } = &self.receiving;
        until(released, || {
            let mut taken = lock(taken);
            let is_free = taken.intersect(&bytes).is_empty();
            is_free.then(|| bytes.iter().for_each(|range| taken.insert(range)))
        })
        .await;
        TakenRanges { stored: self.clone(), bytes }
    }

    /// Stores the checksums of frames received from `at` on. Only their first `whole` bytes are
    /// verified.
    pub(crate) fn remember_sums(&self, at: u64, whole: u64, frames: &[Header]) {
        let mut sums = lock(&self.sums);
        for Header { offset, length, checksum, .. } in frames.iter().copied() {
            if offset.saturating_add(length.into()) <= at + whole {
                sums.insert(offset, Sum { length, checksum });
            }
        }
    }

    /// The checksum of the bytes from `at` on, if they arrived as one frame of this length. It is
    /// that of the original sender, so the receiver detects corruption anywhere on the path.
    pub(crate) fn known_sum(&self, at: u64, length: usize) -> Option<u32> {
        let known = lock(&self.sums).get(&at).copied();
        Some(known.filter(|sum| sum.length as usize == length)?.checksum)
    }

    /// Waits until all blocks of `range` are ready.
    pub(crate) async fn wait(&self, range: Range<u64>) -> Result<(), Abandoned> {
        // For a complete copy this succeeds at once; registering each time would cost more.
        if self.is_ready(range.clone()) {
            return Ok(());
        }
        let _following = Following::new(&self.followers);
        if self.until(|| self.is_ready(range.clone())).await { Ok(()) } else { Err(Abandoned) }
    }

    /// Whether the rest of it will not come.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until a condition is true, and checks it after each notification of growth. Returns
    /// false if the rest of the copy will not come.
    pub(crate) async fn until(&self, is_so: impl Fn() -> bool) -> bool {
        let look = || if is_so() { Some(true) } else { self.is_abandoned().then_some(false) };
        until(&self.changed, look).await
    }

    /// The ready ranges of the copy.
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

/// The ranges of a copy that transfers receive, each until its tasks have ended.
#[derive(Debug, Default)]
struct ReceivedRanges {
    taken: Mutex<Ranges>,
    released: Notify,
}

/// The ranges that one transfer receives.
#[derive(Debug)]
pub(crate) struct TakenRanges {
    stored: Arc<StoredCopy>,
    bytes: Ranges,
}

impl Drop for TakenRanges {
    fn drop(&mut self) {
        let ReceivedRanges { taken, released } = &self.stored.receiving;
        let mut taken = lock(taken);
        self.bytes.iter().for_each(|range| taken.remove(range));
        drop(taken);
        released.notify_waiters();
    }
}

/// Counts a waiting task while it exists.
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
    stored: Mutex<HashMap<Instance, Arc<StoredCopy>>>,
    created: Notify,
}

/// Limit of the memory of a store of `capacity` bytes. In addition to its bytes, a copy has a
/// header and is rounded up: 3 % and 12 MiB, with which even a small store holds objects of every
/// size.
const fn memory_max(capacity: u64) -> u64 {
    capacity.saturating_add(capacity / 32).saturating_add(12 << 20)
}

/// How long a copy waits for memory that processes are about to unmap, before cached copies are
/// evicted.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(3);

/// Limit of extents with one large object each: 4096, as many as the smallest such objects that
/// fill the store, or a quarter of this process's descriptors, as attached processes take half.
/// Each extent takes a descriptor here and a mapping in every process that reads it.
fn extents_max() -> u64 {
    (descriptors() / 4).clamp(16, 4096)
}

impl Store {
    pub(crate) fn new(capacity: u64) -> Self {
        let extent_bytes = EXTENT_BYTES.min(file_size_limit());
        Self {
            arena: Arena::bounded(extent_bytes, memory_max(capacity), extents_max()),
            capacity,
            stored: Mutex::default(),
            created: Notify::new(),
        }
    }

    /// Limit of the bytes of objects.
    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Allocates memory for a copy. May take long: new memory costs 0.7 ms per MiB, and evicted
    /// memory is free only after the processes notified by `tell_gone` have unmapped it.
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
            let remaining = LEAVING_TIMEOUT.saturating_sub(begun.elapsed());
            match allocated {
                Err(ShmError::NoMemory { .. }) if self.arena.wait_for_left(lefts, remaining) => {}
                slot => {
                    self.insert(instance, slot?);
                    return Ok(());
                }
            }
        }
    }

    /// Allocates memory for a copy without waiting, if previously used memory is free.
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
        let (receiving, abandoned) = (ReceivedRanges::default(), AtomicBool::new(false));
        let sums = Mutex::default();
        let upstream = AtomicU16::new(0);
        let stored = StoredCopy { slot, receiving, sums, changed, followers, upstream, abandoned };
        // If the same copy was removed and requested again meanwhile, keep the slot that was ready
        // first.
        lock(&self.stored).entry(instance).or_insert_with(|| Arc::new(stored));
        self.created.notify_waiters();
    }

    /// Waits until a copy has memory.
    pub(crate) async fn wait_for(&self, instance: Instance) -> Arc<StoredCopy> {
        until(&self.created, || self.get(instance)).await
    }

    pub(crate) fn get(&self, instance: Instance) -> Option<Arc<StoredCopy>> {
        lock(&self.stored).get(&instance).cloned()
    }

    /// The memory of a copy.
    pub(crate) fn slot(&self, instance: Instance) -> Option<Slot> {
        lock(&self.stored).get(&instance).map(|stored| stored.slot.clone())
    }

    /// Removes a copy; its memory is free when the last reader is gone.
    pub(crate) fn free(&self, instance: Instance) {
        let stored = lock(&self.stored).remove(&instance);
        if let Some(stored) = stored.filter(|stored| !stored.is_complete()) {
            stored.abandoned.store(true, Ordering::Release);
            stored.grew();
        }
    }

    /// Removes all copies.
    pub(crate) fn clear(&self) {
        let all: Vec<Instance> = lock(&self.stored).keys().copied().collect();
        all.into_iter().for_each(|instance| self.free(instance));
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{id::NodeId, wire::FrameKind};

    use super::*;

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    #[test]
    fn received_frames_keep_their_checksums() {
        let store = Store::new(1 << 30);
        store.create(INSTANCE, 3 * BLOCK_BYTES, None, || {}).unwrap();
        let stored = store.get(INSTANCE).unwrap();
        let header = |block: u64| Header {
            offset: block * BLOCK_BYTES,
            ..Header::new(FrameKind::Blocks, BLOCK_BYTES as u32, 1000 + block as u32)
        };
        // The last frame was corrupt.
        stored.remember_sums(0, 2 * BLOCK_BYTES, &[header(0), header(1), header(2)]);
        let bytes = vec![7; 2 * BLOCK_BYTES as usize];
        let block = &bytes[..BLOCK_BYTES as usize];
        let sums = [0, 1, 2].map(|number| stored.known_sum(number * BLOCK_BYTES, block.len()));
        assert_eq!(sums, [Some(1000), Some(1001), None]);
        assert_eq!(stored.known_sum(0, bytes.len()), None, "frames of another length");
    }

    #[tokio::test]
    async fn reader_follows_growing_copy_until_it_is_abandoned() {
        let store = Store::new(1 << 30);
        store.create(INSTANCE, 3 * BLOCK_BYTES, None, || {}).unwrap();
        let stored = store.get(INSTANCE).unwrap();
        let reader = tokio::spawn({
            let stored = stored.clone();
            async move {
                stored.wait(0..BLOCK_BYTES).await.unwrap();
                let first = stored.view(0..BLOCK_BYTES).unwrap().to_vec()[0];
                (first, stored.wait(0..3 * BLOCK_BYTES).await.is_err())
            }
        });
        stored.write(0, &[7; BLOCK_BYTES as usize]).unwrap();
        assert_eq!(stored.ready(), Ranges::full(BLOCK_BYTES));
        store.free(INSTANCE);
        assert_eq!(reader.await.unwrap(), (7, true));
    }
}
