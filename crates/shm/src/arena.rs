//! Owns all extents of a node and allocates slots in them. It handles memory and writers, not objects or eviction.
//!
//! ```text
//! extent of the pool:   created and sealed -> slots for the node -> free -> unmapped when idle
//! extent of a writer:   created -> mapped by the writer -> sealed -> slots for that writer -> free, retired -> unmapped
//! ```
//! A client with a writable mapping of an extent could change anything in it, and so could every process that it
//! forked. Therefore an extent serves one writer only, for its whole lifetime: it never contains other bytes.
//!
//! [`extent_table`] decides which extent serves an object, and which extents are unmapped.

mod extent_table;
mod sizes;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use self::extent_table::ExtentTable;
use self::sizes::Sizes;
use crate::available::{Available, Limit};
use crate::error::ShmError;
use crate::extent::{ArenaStats, ExtentId, WriterId};
use crate::mapping::{self, MAPPING_BYTES_MAX, Mapping};
use crate::slot::{self, Slot, slot_bytes};
use crate::units::PAGE_BYTES;

/// The extents of one node; clones share them.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Held while a thread creates an extent that others may share.
    making: Mutex<()>,
    /// Notified when the memory of an unmapped extent stops counting.
    left: Condvar,
    /// Estimate of the memory that the system has left.
    available: Available,
}

#[derive(Debug)]
struct State {
    places: ExtentTable,
    /// The task that waits in [`Arena::spare`].
    waiting: Option<Waker>,
    extents: BTreeMap<ExtentId, Extent>,
    /// Unmapped extents that have not been reported to any process yet.
    gone: Vec<ExtentId>,
}

/// An allocated place: the extent, its memory and the offset in it.
type Placed = (ExtentId, Arc<Mapping>, u64);

/// The memory of an extent.
#[derive(Debug)]
struct Extent {
    mapping: Arc<Mapping>,
    /// Opened read-only once the extent is sealed.
    fd: Arc<OwnedFd>,
    /// `None` for the pool.
    writer: Option<WriterId>,
    sealed: bool,
}

impl Arena {
    /// Creates an arena without memory and without a bound. Shared extents are at most `extent_bytes` long, rounded up
    /// to whole pages. The first few are smaller, so that the first object does not wait for memory that no object
    /// needs yet.
    ///
    /// A large object gets its own extent.
    pub fn new(extent_bytes: u64) -> Self {
        Self::bounded(extent_bytes, u64::MAX, u64::MAX)
    }

    /// Creates an arena whose extents take at most `bound` bytes, with about `extents_max` extents of one large object
    /// each.
    pub fn bounded(extent_bytes: u64, bound: u64, extents_max: u64) -> Self {
        let extent_bytes = extent_bytes.clamp(PAGE_BYTES, MAPPING_BYTES_MAX / 2);
        let extent_bytes = extent_bytes.next_multiple_of(PAGE_BYTES);
        let places = ExtentTable::new(Sizes { extent_bytes, bound, extents_max });
        let (extents, gone, waiting) = (BTreeMap::new(), Vec::new(), None);
        let state = State { places, waiting, extents, gone };
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            making: Mutex::default(),
            left: Condvar::new(),
            available: Available::default(),
        }))
    }

    /// Allocates a slot for `len` bytes, none of them ready (an empty slot is complete).
    ///
    /// With a writer, the slot is in an extent that serves only that writer, and this process cannot claim any of it.
    /// Previously used memory is preferred, because it is warm. Otherwise a new extent is created, which takes about
    /// 0.7 ms per MiB, and free extents are unmapped for it if necessary. The payload is not zeroed.
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] and [`ShmError::TooLarge`].
    pub fn allocate(&self, len: u64, writer: Option<WriterId>) -> Result<Slot, ShmError> {
        let bytes = slot_bytes(len).ok_or(ShmError::TooLarge { len, max: MAPPING_BYTES_MAX })?;
        if let Some(slot) = self.allocate_warm(len, writer) {
            return Ok(slot);
        }
        // Concurrent small requests share the extent that the first one creates; a large request does not wait.
        let is_sharing = self.state().places.is_shared(bytes, writer);
        let _turn =
            is_sharing.then(|| self.0.making.lock().unwrap_or_else(PoisonError::into_inner));
        if is_sharing && let Some(slot) = self.allocate_warm(len, writer) {
            return Ok(slot);
        }
        let placed = match self.make(bytes, writer, false) {
            Err(ShmError::NoMemory { limit, .. })
                if !matches!(limit, Limit::Bound | Limit::FileSize) =>
            {
                // Memory that others have freed may be enough for this object alone.
                self.trim();
                self.make(bytes, writer, true)?
            }
            other => other?,
        };
        Ok(self.slot_at(placed, len, writer))
    }

    /// Allocates a slot in existing memory, which takes microseconds; `None` if there is no space in it.
    pub fn allocate_warm(&self, len: u64, writer: Option<WriterId>) -> Option<Slot> {
        let mut state = self.state();
        let (id, offset) = state.places.place(slot_bytes(len)?, writer)?;
        let mapping = state.extents.get(&id)?.mapping.clone();
        drop(state);
        Some(self.slot_at((id, mapping, offset), len, writer))
    }

    fn slot_at(&self, placed: Placed, len: u64, writer: Option<WriterId>) -> Slot {
        let (extent, mapping, offset) = placed;
        let lease = Allocation { arena: Arc::downgrade(&self.0), extent, offset };
        let slot = Slot::new(mapping, offset, len, writer.is_none(), Some(Box::new(lease)));
        slot.reset();
        slot
    }

    /// Returns true if the node allocates one large object after another and no thread creates the extent of the next
    /// one. The caller must then call [`make_ahead`](Self::make_ahead).
    pub fn begin_ahead(&self) -> bool {
        self.state().places.begin_ahead()
    }

    /// Creates memory for the next large object in advance, while objects keep requesting more. It takes 0.5 ms per MiB
    /// in a separate thread. The memory counts as free. No extent is unmapped for it, and lack of space for it is not
    /// an error. It creates no extents for writers: a writer would still wait for its own mapping, which takes as long.
    pub fn make_ahead(&self) {
        loop {
            let Some(wanted) = self.state().places.reserve_ahead() else { return };
            let made = self.extent(wanted.len, None);
            let mut state = self.state();
            match made {
                Ok(mut extent) => {
                    let id = state.places.add_ahead(wanted);
                    extent.set_id(id);
                    state.extents.insert(id, extent);
                }
                Err(_) => state.places.give_up(wanted),
            }
        }
    }

    /// Returns the descriptor of an extent's memory for `client` to map, and its length. `None` if the extent is
    /// unknown or was trimmed.
    ///
    /// Until a writer's extent [`is_sealed`](Self::is_sealed), a process with the descriptor can map it writable, so
    /// only that writer gets it. The descriptor of a sealed extent is read-only.
    pub fn descriptor(&self, extent: ExtentId, client: WriterId) -> Option<(Arc<OwnedFd>, u64)> {
        let state = self.state();
        let extent = state.extents.get(&extent)?;
        let may_have = extent.sealed || extent.writer == Some(client);
        may_have.then(|| (extent.fd.clone(), extent.mapping.len()))
    }

    /// Whether no process can map the extent writable any more; false for an unknown extent.
    pub fn is_sealed(&self, extent: ExtentId) -> bool {
        self.state().extents.get(&extent).is_some_and(|extent| extent.sealed)
    }

    /// Denies new writable mappings of an extent of `writer`. Call it after that writer has reported that it has mapped
    /// the extent.
    ///
    /// Extents of the pool are sealed from the start. Sealing twice is not an error.
    ///
    /// # Errors
    /// [`ShmError::UnknownExtent`]; [`ShmError::NotItsExtent`] if the extent belongs to another writer or to the pool.
    pub fn seal(&self, extent: ExtentId, writer: WriterId) -> Result<(), ShmError> {
        let mut state = self.state();
        let found = state.extents.get_mut(&extent).ok_or(ShmError::UnknownExtent { extent })?;
        if found.writer != Some(writer) {
            return Err(ShmError::NotItsExtent { extent });
        }
        found.seal()
    }

    /// Retires the extents of a writer that has ended: free ones are unmapped now, others with their last slot.
    ///
    /// None of them ever serves another writer or the pool. A writable mapping may still exist after the process has
    /// ended, because a child that it forked has the same mappings.
    pub fn retire(&self, writer: WriterId) {
        self.0.let_go(|places| places.retire(writer));
    }

    /// Returns the total memory and the memory in slots.
    pub fn stats(&self) -> ArenaStats {
        self.state().places.stats()
    }

    /// Returns wholly free extents to the system.
    ///
    /// The memory is free once the processes that mapped the extents or hold their descriptors release them too. Report
    /// the [unmapped extents](Self::take_gone) to them.
    pub fn trim(&self) {
        self.0.let_go(ExtentTable::take_idle);
    }

    /// Unmaps extents that have been free for five to six calls of this, except for the most recent 32 MiB plus 1/16 of
    /// the used memory. Call it regularly while there is memory to [spare](Self::spare).
    pub fn trim_idle(&self) {
        self.0.let_go(ExtentTable::take_idle_for_long);
        self.0.left.notify_all();
    }

    /// Waits until there is memory that enough calls of [`trim_idle`](Self::trim_idle) would return. For one task at a
    /// time.
    pub async fn spare(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.places.has_spare() {
                return Poll::Ready(());
            }
            state.waiting = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Returns the extents unmapped since the last call, for any reason. Their memory counts until [`left`](Self::left)
    /// is called for them, or for two to three calls of [`trim_idle`](Self::trim_idle).
    pub fn take_gone(&self) -> Vec<ExtentId> {
        std::mem::take(&mut self.state().gone)
    }

    /// Records that no process maps an unmapped extent any more.
    pub fn left(&self, extent: ExtentId) {
        self.state().places.left(extent);
        self.0.left.notify_all();
    }

    /// Number of extents for which [`left`](Self::left) was recorded.
    pub fn lefts(&self) -> u64 {
        self.state().places.lefts().0
    }

    /// Waits for at most `time` until [`lefts`](Self::lefts) exceeds `before`. Returns false on timeout, or if no
    /// extent is leaving.
    pub fn wait_for_left(&self, before: u64, time: Duration) -> bool {
        let is_waiting = |state: &mut State| state.places.lefts() == (before, true);
        let waited = self.0.left.wait_timeout_while(self.state(), time, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.places.lefts().0 != before
    }

    /// Creates an extent and allocates space for a slot of `bytes` in it.
    fn make(
        &self,
        bytes: u64,
        writer: Option<WriterId>,
        is_tight: bool,
    ) -> Result<Placed, ShmError> {
        let mut wanted = None;
        self.0.let_go(|places| {
            let mut gone = Vec::new();
            wanted = places.reserve(bytes, writer, is_tight, &mut gone);
            gone
        });
        let Some(wanted) = wanted else {
            let state = self.state();
            let stats = state.places.stats();
            let available = state.places.bound().saturating_sub(stats.mapped_bytes);
            return Err(ShmError::NoMemory { wanted: bytes, available, limit: Limit::Bound });
        };
        // Without the lock: committing pages takes a while, and other requests may fit into existing memory.
        let made = self.extent(wanted.len, writer);
        let mut state = self.state();
        let mut extent = match made {
            Ok(extent) => extent,
            Err(error) => {
                state.places.give_up(wanted);
                return Err(error);
            }
        };
        let id = state.places.add(wanted, writer);
        extent.set_id(id);
        let mapping = extent.mapping.clone();
        state.extents.insert(id, extent);
        // Under the same lock, so that no other thread takes the new space first.
        let offset = state.places.place_in(id, bytes);
        Ok((id, mapping, offset.expect("an extent holds what it was made for")))
    }

    /// Creates the memory of an extent that is not registered yet.
    fn extent(&self, len: u64, writer: Option<WriterId>) -> Result<Extent, ShmError> {
        let (mapping, fd) = Mapping::create_of(len, &self.0.available, writer.is_none())?;
        let (mapping, fd) = (Arc::new(mapping), Arc::new(fd));
        let mut extent = Extent { mapping, fd, writer, sealed: false };
        if writer.is_none() {
            extent.seal()?;
        }
        Ok(extent)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unmaps the extents that `choose` removed from the places.
    fn let_go(&self, choose: impl FnOnce(&mut ExtentTable) -> Vec<ExtentId>) {
        let mut state = self.state();
        let gone = choose(&mut state.places);
        let waiting = if state.places.has_spare() { state.waiting.take() } else { None };
        let extents: Vec<Extent> = gone.iter().filter_map(|id| state.extents.remove(id)).collect();
        // Unmapping takes a while; do it without the lock.
        drop(state);
        drop(extents);
        waiting.into_iter().for_each(Waker::wake);
        if !gone.is_empty() {
            // Report them only now: memory that no process maps may be reused for another extent at once.
            self.state().gone.extend(gone);
        }
    }
}

impl Extent {
    fn set_id(&mut self, id: ExtentId) {
        Arc::get_mut(&mut self.mapping).expect("a new extent has no slots").set_extent(id);
    }

    fn seal(&mut self) -> Result<(), ShmError> {
        if !self.sealed {
            Mapping::seal(&self.fd)?;
            // Without /proc, the seal alone protects the memory.
            if let Ok(readonly) = mapping::reopen_readonly(&self.fd) {
                self.fd = Arc::new(readonly);
            }
            self.sealed = true;
        }
        Ok(())
    }
}

/// Frees the place of a slot when the slot is dropped.
#[derive(Debug)]
struct Allocation {
    arena: Weak<Inner>,
    extent: ExtentId,
    offset: u64,
}

impl slot::Allocation for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // If the arena is gone, the slot's own reference to the mapping frees the memory.
        let Some(arena) = self.arena.upgrade() else { return };
        arena.let_go(|places| {
            let is_over = places.free(self.extent, self.offset);
            if is_over { vec![self.extent] } else { Vec::new() }
        });
    }
}

#[cfg(test)]
mod tests;
