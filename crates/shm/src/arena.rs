//! All extents of a node, and the slots placed in them. Knows memory and writers, not objects or eviction.
//!
//! ```text
//! extent of the pool:     made and sealed -> slots for the node -> free, and goes when idle
//! extent of a writer:     made -> mapped by the writer -> sealed -> slots for that writer -> free or retired -> unmapped
//! ```
//! A client that has an extent mapped writable could change anything in it, and so could every process that it forked.
//! So an extent serves one writer only, for as long as there is the extent: no other bytes ever lie in it.
//!
//! Which extent serves an object, and which go, is decided by [`places`].

mod places;
mod sizes;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use self::places::Places;
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
    /// Held while a thread makes an extent that others may share.
    making: Mutex<()>,
    /// Memory of an extent that is gone counts no more.
    left: Condvar,
    /// What the system has left.
    available: Available,
}

#[derive(Debug)]
struct State {
    places: Places,
    /// The task in [`Arena::spare`].
    waiting: Option<Waker>,
    extents: BTreeMap<ExtentId, Extent>,
    /// Extents that are gone, and of which no process was told.
    gone: Vec<ExtentId>,
}

/// Where there is room: an extent, its memory and an offset in it.
type Placed = (ExtentId, Arc<Mapping>, u64);

/// The memory of an extent.
#[derive(Debug)]
struct Extent {
    mapping: Arc<Mapping>,
    /// For reading only, once the extent is sealed.
    fd: Arc<OwnedFd>,
    /// None: of the pool.
    writer: Option<WriterId>,
    sealed: bool,
}

impl Arena {
    /// Returns an arena without memory and without a bound, whose extents for several objects will be of up to
    /// `extent_bytes`, rounded up to whole pages: the first few are smaller, so that the first object does not wait for
    /// memory that no object needs yet.
    ///
    /// A large object gets an extent of its own.
    pub fn new(extent_bytes: u64) -> Self {
        Self::bounded(extent_bytes, u64::MAX, u64::MAX)
    }

    /// The same whose extents take `bound` bytes at most, and of which some `extents_max` serve one large object each.
    pub fn bounded(extent_bytes: u64, bound: u64, extents_max: u64) -> Self {
        let extent_bytes = extent_bytes.clamp(PAGE_BYTES, MAPPING_BYTES_MAX / 2);
        let extent_bytes = extent_bytes.next_multiple_of(PAGE_BYTES);
        let places = Places::new(Sizes { extent_bytes, bound, extents_max });
        let (extents, gone, waiting) = (BTreeMap::new(), Vec::new(), None);
        let state = State { places, waiting, extents, gone };
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            making: Mutex::default(),
            left: Condvar::new(),
            available: Available::default(),
        }))
    }

    /// Reserves a slot for `len` bytes, of which none is ready (an empty one is complete).
    ///
    /// With a writer it lies in an extent that serves that writer alone; this process cannot claim any of it. Space that
    /// was used before is taken first, as it is warm; else a new extent is made, which takes some 0.7 ms per MiB, and
    /// free ones go for it if need be. The payload is not zeroed.
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] and [`ShmError::TooLarge`].
    pub fn allocate(&self, len: u64, writer: Option<WriterId>) -> Result<Slot, ShmError> {
        let bytes = slot_bytes(len).ok_or(ShmError::TooLarge { len, max: MAPPING_BYTES_MAX })?;
        if let Some(slot) = self.allocate_warm(len, writer) {
            return Ok(slot);
        }
        // Small requests that come together share the extent that the first one makes; a large request does not wait.
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
                // What others have let go of may be enough, for this object alone.
                self.trim();
                self.make(bytes, writer, true)?
            }
            other => other?,
        };
        Ok(self.slot_at(placed, len, writer))
    }

    /// The same out of memory that is there already, which takes microseconds; none if there is no room in it.
    pub fn allocate_warm(&self, len: u64, writer: Option<WriterId>) -> Option<Slot> {
        let mut state = self.state();
        let (id, offset) = state.places.place(slot_bytes(len)?, writer)?;
        let mapping = state.extents.get(&id)?.mapping.clone();
        drop(state);
        Some(self.slot_at((id, mapping, offset), len, writer))
    }

    fn slot_at(&self, placed: Placed, len: u64, writer: Option<WriterId>) -> Slot {
        let (extent, mapping, offset) = placed;
        let lease = Lease { arena: Arc::downgrade(&self.0), extent, offset };
        let slot = Slot::new(mapping, offset, len, writer.is_none(), Some(Box::new(lease)));
        slot.reset();
        slot
    }

    /// Whether the node asks for memory for one large object after the other, and no thread makes that of the next: then
    /// [`make_ahead`](Self::make_ahead) has to follow.
    pub fn begin_ahead(&self) -> bool {
        self.state().places.begin_ahead()
    }

    /// Makes memory for the next large object before that asks for it, as long as objects ask for more; 0.5 ms per MiB, in
    /// another thread than theirs. It counts as free memory. None goes for it, and where there is no room for it that is no
    /// error. A writer's is not made ahead: that writer would still wait for its own mapping of it, which takes as long.
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

    /// The descriptor of an extent's memory for `client` to map, and its length; None if the extent is unknown or was
    /// trimmed.
    ///
    /// Until an extent of a writer [`is_sealed`](Self::is_sealed) a process that has the descriptor can map it writable:
    /// for every client but that writer there is none. That of a sealed extent is open for reading only.
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

    /// Denies new writable mappings of an extent of `writer`. Call it when that writer says that it has mapped the extent.
    ///
    /// Extents of the pool are sealed from the start; sealing twice is no error.
    ///
    /// # Errors
    /// [`ShmError::UnknownExtent`], and [`ShmError::NotItsExtent`] for one of another writer or of the pool.
    pub fn seal(&self, extent: ExtentId, writer: WriterId) -> Result<(), ShmError> {
        let mut state = self.state();
        let found = state.extents.get_mut(&extent).ok_or(ShmError::UnknownExtent { extent })?;
        if found.writer != Some(writer) {
            return Err(ShmError::NotItsExtent { extent });
        }
        found.seal()
    }

    /// Lets go of the extents of a writer that is gone: of the free ones now, of each other with the last of its slots.
    ///
    /// None of them serves another writer or the pool. That a process has ended does not say that its memory is mapped writable nowhere:
    /// a child that it forked has the same mappings.
    pub fn retire(&self, writer: WriterId) {
        self.0.let_go(|places| places.retire(writer));
    }

    /// How much memory there is and how much is in slots.
    pub fn stats(&self) -> ArenaStats {
        self.state().places.stats()
    }

    /// Gives wholly free extents back to the system.
    ///
    /// The memory is free once the processes that mapped them, and those that hold their descriptors, let go too: tell
    /// them which are [gone](Self::take_gone).
    pub fn trim(&self) {
        self.0.let_go(Places::take_idle);
    }

    /// Gives back those that have been free for five to six calls of this, but for the latest 32 MiB and 1/16 of what is
    /// used: call it regularly while there is some to [spare](Self::spare).
    pub fn trim_idle(&self) {
        self.0.let_go(Places::take_idle_for_long);
        self.0.left.notify_all();
    }

    /// Ends when there is memory that [`trim_idle`](Self::trim_idle) gives back if it is called as often as needed. For one
    /// task at a time.
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

    /// The extents that are gone since this was called last, however they went. Their memory counts until it is said that it has
    /// [left](Self::left), or for two to three calls of [`trim_idle`](Self::trim_idle).
    pub fn take_gone(&self) -> Vec<ExtentId> {
        std::mem::take(&mut self.state().gone)
    }

    /// No process maps an extent any more that is gone.
    pub fn left(&self, extent: ExtentId) {
        self.state().places.left(extent);
        self.0.left.notify_all();
    }

    /// How many extents have left.
    pub fn lefts(&self) -> u64 {
        self.state().places.lefts().0
    }

    /// Waits until more extents have left than `before`, for `time` at most; false if none is about to or it takes longer.
    pub fn wait_for_left(&self, before: u64, time: Duration) -> bool {
        let is_waiting = |state: &mut State| state.places.lefts() == (before, true);
        let waited = self.0.left.wait_timeout_while(self.state(), time, is_waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.places.lefts().0 != before
    }

    /// Makes an extent, and takes space in it for a slot of `bytes`.
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
        // Not under the lock: committing the pages takes a while, and what others want may be there already.
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

    /// Makes the memory of an extent, which no place knows yet.
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

    /// Lets go of the memory of the extents that `choose` took out of the places.
    fn let_go(&self, choose: impl FnOnce(&mut Places) -> Vec<ExtentId>) {
        let mut state = self.state();
        let gone = choose(&mut state.places);
        let waiting = if state.places.has_spare() { state.waiting.take() } else { None };
        let extents: Vec<Extent> = gone.iter().filter_map(|id| state.extents.remove(id)).collect();
        // Unmapping takes a while: the lock is free meanwhile.
        drop(state);
        drop(extents);
        waiting.into_iter().for_each(Waker::wake);
        if !gone.is_empty() {
            // Only now: what no process maps may be taken for another extent at once.
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
            // Where there is no /proc the seal alone holds.
            if let Ok(readonly) = mapping::reopen_readonly(&self.fd) {
                self.fd = Arc::new(readonly);
            }
            self.sealed = true;
        }
        Ok(())
    }
}

/// Gives a place back when its slot is gone.
#[derive(Debug)]
struct Lease {
    arena: Weak<Inner>,
    extent: ExtentId,
    offset: u64,
}

impl slot::Lease for Lease {}

impl Drop for Lease {
    fn drop(&mut self) {
        // Without the arena the memory goes with the slot's own hold on the mapping.
        let Some(arena) = self.arena.upgrade() else { return };
        arena.let_go(|places| {
            let is_over = places.free(self.extent, self.offset);
            if is_over { vec![self.extent] } else { Vec::new() }
        });
    }
}

#[cfg(test)]
mod tests;
