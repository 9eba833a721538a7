//! What was opened in one mapping, so that the same place is not opened twice and no two overlap. Does not know what it is.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

type Thing = dyn Any + Send + Sync;

/// Where each begins, to where it ends and what it is. One that has no clones left counts as gone.
#[derive(Debug, Default)]
pub(crate) struct Opened(BTreeMap<u64, (u64, Weak<Thing>)>);

impl Opened {
    /// What is open from here to there.
    pub(crate) fn find(&self, offset: u64, end: u64) -> Option<Arc<Thing>> {
        let (other_end, thing) = self.0.get(&offset)?;
        // Upgraded only to be returned: dropped here as the last clone it would lock this list again.
        if *other_end == end { thing.upgrade() } else { None }
    }

    /// Where something begins that is open in a part of it.
    pub(crate) fn overlapping(&self, offset: u64, end: u64) -> Option<u64> {
        // Those alive do not overlap each other, so the last of them that starts before the end decides.
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

    /// Forgets what begins here if it is this one, at its address.
    pub(crate) fn forget(&mut self, offset: u64, address: *const ()) {
        if self.0.get(&offset).is_some_and(|(_, known)| known.as_ptr().cast::<()>() == address) {
            self.0.remove(&offset);
        }
    }
}
