//! Extents that the node has freed but processes still map. Their memory is free once the last
//! process has unmapped it.
//!
//! Does not know which processes map them, nor their contents.

use std::{collections::HashMap, sync::Mutex};

use hoplite_shm::{Arena, ExtentId};

use crate::sync::lock;

/// Number of processes that map each extent.
#[derive(Debug)]
pub(crate) struct RetiredExtents {
    arena: Arena,
    mapped_by: Mutex<HashMap<ExtentId, usize>>,
}

impl RetiredExtents {
    pub(crate) fn new(arena: Arena) -> Self {
        Self { arena, mapped_by: Mutex::default() }
    }

    /// Takes newly freed extents, for processes to be notified. Each counts as mapped until one
    /// call of [`unmapped`](Self::unmapped).
    pub(crate) fn take(&self) -> Vec<ExtentId> {
        let gone = self.arena.take_gone();
        let mut mapped_by = lock(&self.mapped_by);
        mapped_by.extend(gone.iter().map(|extent| (*extent, 1)));
        gone
    }

    /// Counts another process that maps an extent and will be notified.
    pub(crate) fn mapped(&self, extent: ExtentId) {
        *lock(&self.mapped_by).entry(extent).or_default() += 1;
    }

    /// Counts a process that unmapped an extent.
    pub(crate) fn unmapped(&self, extent: ExtentId) {
        let mut mapped_by = lock(&self.mapped_by);
        let Some(count) = mapped_by.get_mut(&extent) else { return };
        *count -= 1;
        if *count == 0 {
            mapped_by.remove(&extent);
            drop(mapped_by);
            self.arena.left(extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_until_the_last_process_has_unmapped_it() {
        let arena = Arena::bounded(1 << 20, 10 << 20, 4096);
        let leaving = RetiredExtents::new(arena.clone());
        drop(arena.allocate(8 << 20, None).unwrap());
        arena.trim();
        let mapped = || arena.stats().mapped_bytes >> 20;
        let gone = leaving.take();
        let [extent] = gone[..] else { panic!("{gone:?}") };
        leaving.mapped(extent);
        leaving.mapped(extent);
        leaving.unmapped(extent);
        leaving.unmapped(extent);
        assert_eq!(mapped(), 8);
        assert!(arena.allocate(8 << 20, None).is_err());
        leaving.unmapped(extent);
        assert_eq!(mapped(), 0);
        assert!(arena.allocate(8 << 20, None).is_ok());
        leaving.unmapped(extent);
    }
}
