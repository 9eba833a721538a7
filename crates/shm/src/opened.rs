//! Lists the slots opened in one mapping, so that no place is opened twice and no two overlap. The stored type is
//! opaque.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

type Thing = dyn Any + Send + Sync;

/// For each entry, by its start: its end and a weak reference. An entry without strong references counts as gone.
#[derive(Debug, Default)]
pub(crate) struct Opened(BTreeMap<u64, (u64, Weak<Thing>)>);

impl Opened {
    /// Returns the entry with exactly these bounds, if it is open.
    pub(crate) fn find(&self, offset: u64, end: u64) -> Option<Arc<Thing>> {
        let (other_end, thing) = self.0.get(&offset)?;
        // Upgrade only to return it: if the last clone were dropped here, it would lock this list again.
        if *other_end == end { thing.upgrade() } else { None }
    }

    /// Returns the start of an open entry that overlaps the range.
    pub(crate) fn overlapping(&self, offset: u64, end: u64) -> Option<u64> {
        // Live entries do not overlap each other, so the last one that starts before the end decides.
        let before = self.0.range(..end).rev();
        let (&other, (other_end, _)) =
            before.into_iter().find(|(_, (_, thing))| thing.strong_count() > 0)?;
        (*other_end > offset).then_some(other)
    }

    pub(crate) fn insert(&mut self, offset: u64, end: u64, thing: Weak<Thing>) {
        self.0.insert(offset, (end, thing));
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the entry at `offset` if it is the one at this address.
    pub(crate) fn forget(&mut self, offset: u64, address: *const ()) {
        if self.0.get(&offset).is_some_and(|(_, known)| known.as_ptr().cast::<()>() == address) {
            self.0.remove(&offset);
        }
    }
}
