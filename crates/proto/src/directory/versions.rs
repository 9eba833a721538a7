//! Names that end in a number, by prefix: the newest one is found without a walk through the
//! others.
//!
//! Has each name with a live object, and some whose object is gone since. Does not know entries.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
};
use core::ops::Bound;

use crate::id::{Name, ObjectId};

/// A number and the name that ends in it.
pub(super) type Version = (u64, Name);

/// The names of each prefix, in order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Versions {
    by_prefix: BTreeMap<Box<str>, BTreeSet<Version>>,
}

impl Versions {
    pub(super) fn insert(&mut self, id: &ObjectId) {
        if let ObjectId::Named(name) = id
            && let Some((prefix, version)) = name.prefix_and_version()
        {
            self.by_prefix.entry(prefix.into()).or_default().insert((version, name.clone()));
        }
    }

    pub(super) fn remove(&mut self, id: &ObjectId) {
        if let ObjectId::Named(name) = id
            && let Some((prefix, version)) = name.prefix_and_version()
            && let Some(versions) = self.by_prefix.get_mut(prefix)
        {
            versions.remove(&(version, name.clone()));
            if versions.is_empty() {
                self.by_prefix.remove(prefix);
            }
        }
    }

    /// The newest version below a prefix, or the newest before another one.
    pub(super) fn before(&self, prefix: &str, other: Option<&Version>) -> Option<Version> {
        let end = other.map_or(Bound::Unbounded, Bound::Excluded);
        let versions = self.by_prefix.get(prefix)?;
        versions.range::<Version, _>((Bound::Unbounded, end)).next_back().cloned()
    }

    /// The oldest version below a prefix, or the oldest after another one.
    pub(super) fn after(&self, prefix: &str, other: Option<&Version>) -> Option<Version> {
        let begin = other.map_or(Bound::Unbounded, Bound::Excluded);
        let versions = self.by_prefix.get(prefix)?;
        versions.range::<Version, _>((begin, Bound::Unbounded)).next().cloned()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_prefix.values().map(BTreeSet::len).sum()
    }
}
