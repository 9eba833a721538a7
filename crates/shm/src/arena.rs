//! All extents of a node, and the slots placed in them. Knows memory and writers, not capacity or eviction.
//!
//! ```text
//! extent of the pool:     made and sealed -> slots for the node -> trimmed when free
//! extent of a writer:     made -> mapped by the writer -> sealed -> slots for that writer -> retired -> unmapped
//! ```
//! A client that has an extent mapped writable could change anything in it, and so could every process that it forked.
//! So an extent serves one writer only, for as long as there is the extent: no other bytes ever lie in it.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::mapping::{self, MAPPING_BYTES_MAX, Mapping};
use crate::slot::slot_bytes;
use crate::{Allocator, PAGE_BYTES, ShmError, Slot};

/// An extent of one arena. Never used again after the extent is trimmed; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentId(pub u64);

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extent {}", self.0)
    }
}

/// A client process that fills slots itself. Never use a number again for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// How much memory an arena has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Number of extents.
    pub extents: u64,
    /// Bytes of memory in them, all committed.
    pub mapped_bytes: u64,
    /// Bytes in slots, with their headers and rounding.
    pub used_bytes: u64,
}

/// The extents of one node; clones share them.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    extent_bytes: u64,
    state: Mutex<State>,
    /// Held while a thread makes an extent that others may share.
    making: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    last_id: u64,
    extents: BTreeMap<ExtentId, Extent>,
}

/// Bytes of the first extent of the pool and of each writer: 3 ms, where 64 MiB take 45 ms.
const FIRST_EXTENT_BYTES: u64 = 4 << 20;

/// Where there is room: an extent, its memory and an offset in it.
type Placed = (ExtentId, Arc<Mapping>, u64);

#[derive(Debug)]
struct Extent {
    mapping: Arc<Mapping>,
    /// For reading only, once the extent is sealed.
    fd: Arc<OwnedFd>,
    allocator: Allocator,
    /// None: of the pool.
    writer: Option<WriterId>,
    sealed: bool,
    /// Goes with its last slot.
    is_retired: bool,
}

impl Arena {
    /// Returns an arena without memory, whose extents will be of up to `extent_bytes`, rounded up to whole pages: the
    /// first few are smaller, so that the first object does not wait for memory that no object needs yet.
    ///
    /// An object that does not fit gets an extent of its own size.
    pub fn new(extent_bytes: u64) -> Self {
        let extent_bytes = extent_bytes.clamp(PAGE_BYTES, MAPPING_BYTES_MAX / 2);
        let extent_bytes = extent_bytes.next_multiple_of(PAGE_BYTES);
        Self(Arc::new(Inner { extent_bytes, state: Mutex::default(), making: Mutex::default() }))
    }

    /// Reserves a slot for `len` bytes, of which none is ready (an empty one is complete).
    ///
    /// With a writer it lies in an extent that serves that writer alone; this process cannot claim any of it. Space that
    /// was used before is taken first, as it is warm; else a new extent is made, which takes some 0.7 ms per MiB. The
    /// payload is not zeroed.
    ///
    /// # Errors
    /// [`ShmError::NoMemory`] and [`ShmError::TooLarge`].
    pub fn allocate(&self, len: u64, writer: Option<WriterId>) -> Result<Slot, ShmError> {
        let bytes = slot_bytes(len).ok_or(ShmError::TooLarge { len, max: MAPPING_BYTES_MAX })?;
        if let Some(slot) = self.allocate_warm(len, writer) {
            return Ok(slot);
        }
        // Small requests that come together share the extent that the first one makes; a large request does not wait.
        let is_sharing = bytes < self.next_extent_bytes(writer);
        let _turn =
            is_sharing.then(|| self.0.making.lock().unwrap_or_else(PoisonError::into_inner));
        if is_sharing && let Some(slot) = self.allocate_warm(len, writer) {
            return Ok(slot);
        }
        let extent = self.make(bytes.max(self.next_extent_bytes(writer)), writer)?;
        let mut state = self.state();
        state.insert(extent);
        // Under the same lock, so that no other thread takes the new space first.
        let placed = state.place(bytes, writer);
        drop(state);
        match placed {
            Some(placed) => Ok(self.slot_at(placed, len, writer)),
            None => unreachable!("{bytes} bytes do not fit in an extent made for them"),
        }
    }

    /// The same out of memory that is there already, which takes microseconds; none if there is no room in it.
    pub fn allocate_warm(&self, len: u64, writer: Option<WriterId>) -> Option<Slot> {
        let placed = self.state().place(slot_bytes(len)?, writer)?;
        Some(self.slot_at(placed, len, writer))
    }

    fn slot_at(&self, placed: Placed, len: u64, writer: Option<WriterId>) -> Slot {
        let (extent, mapping, offset) = placed;
        let lease = Lease { arena: Arc::downgrade(&self.0), extent, offset };
        let slot = Slot::new(mapping, offset, len, writer.is_none(), Some(lease));
        slot.reset();
        slot
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
        let mut state = self.state();
        let mut free = Vec::new();
        for (id, extent) in &mut state.extents {
            if extent.writer == Some(writer) {
                extent.is_retired = true;
                if extent.allocator.is_empty() {
                    free.push(*id);
                }
            }
        }
        let free: Vec<Extent> = free.iter().filter_map(|id| state.extents.remove(id)).collect();
        drop(state);
        drop(free);
    }

    /// How much memory there is and how much is in slots.
    pub fn stats(&self) -> ArenaStats {
        let state = self.state();
        let sum = |bytes: fn(&Extent) -> u64| state.extents.values().map(bytes).sum();
        ArenaStats {
            extents: state.extents.len() as u64,
            mapped_bytes: sum(|extent| extent.mapping.len()),
            used_bytes: sum(|extent| extent.allocator.used()),
        }
    }

    /// Gives wholly free extents back to the system. Returns those that are gone.
    ///
    /// The memory is free once the processes that mapped them, and those that hold their descriptors, let go too: tell
    /// them.
    pub fn trim(&self) -> Vec<ExtentId> {
        let mut state = self.state();
        let free = state.extents.iter().filter(|(_, extent)| extent.allocator.is_empty());
        let gone: Vec<ExtentId> = free.map(|(id, _)| *id).collect();
        let extents: Vec<Extent> = gone.iter().filter_map(|id| state.extents.remove(id)).collect();
        // Unmapping takes a while: the lock is free meanwhile.
        drop(state);
        drop(extents);
        gone
    }

    /// Bytes of the next extent of the pool or of a writer, unless an object needs more: as much as there is already.
    fn next_extent_bytes(&self, writer: Option<WriterId>) -> u64 {
        let state = self.state();
        let ours = state.extents.values().filter(|extent| extent.writer == writer);
        let there: u64 = ours.map(|extent| extent.mapping.len()).sum();
        there.max(FIRST_EXTENT_BYTES).min(self.0.extent_bytes)
    }

    fn make(&self, bytes: u64, writer: Option<WriterId>) -> Result<Extent, ShmError> {
        // Not under the lock: committing the pages takes a while, and what others want may be there already.
        let (mapping, fd) = Mapping::create(bytes)?;
        let allocator = Allocator::new(mapping.len());
        let (mapping, fd) = (Arc::new(mapping), Arc::new(fd));
        let mut extent =
            Extent { mapping, fd, allocator, writer, sealed: false, is_retired: false };
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
}

impl State {
    fn insert(&mut self, mut extent: Extent) {
        self.last_id += 1;
        let id = ExtentId(self.last_id);
        let mapping = Arc::get_mut(&mut extent.mapping).expect("a new extent has no slots");
        mapping.set_extent(id);
        self.extents.insert(id, extent);
    }

    /// Takes space in the tightest extent of the writer, so that long free ranges stay whole for long objects.
    fn place(&mut self, bytes: u64, writer: Option<WriterId>) -> Option<Placed> {
        let (&id, extent) = self
            .extents
            .iter_mut()
            .filter(|(_, extent)| {
                extent.writer == writer && extent.allocator.largest_free() >= bytes
            })
            .min_by_key(|(_, extent)| extent.allocator.largest_free())?;
        let offset = extent.allocator.allocate(bytes, PAGE_BYTES)?;
        Some((id, extent.mapping.clone(), offset))
    }
}

impl Extent {
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

/// A slot's right to its place; gives it back on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    arena: Weak<Inner>,
    extent: ExtentId,
    offset: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Without the arena the memory goes with the slot's own hold on the mapping.
        let Some(arena) = self.arena.upgrade() else { return };
        let mut state = arena.state();
        let Some(extent) = state.extents.get_mut(&self.extent) else { return };
        extent.allocator.free(self.offset);
        if extent.is_retired && extent.allocator.is_empty() {
            let extent = state.extents.remove(&self.extent);
            drop(state);
            drop(extent);
        }
    }
}

#[cfg(test)]
mod tests;
