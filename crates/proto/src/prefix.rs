//! The refs that begin with a text. Ids are sorted by number and precede all names, which are
//! sorted by their text: the names under a prefix are next to each other.

use alloc::string::ToString;
use core::ops::Bound;

use crate::id::ObjectId;

/// The text with which refs begin; the empty text matches all.
pub(crate) struct RefPrefix<'a> {
    text: &'a str,
    /// The first name that can match; `None` if generated ids can match too.
    first: Option<ObjectId>,
}

impl<'a> RefPrefix<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let first = text.parse().ok().filter(|id: &ObjectId| id.minter().is_none());
        Self { text, first }
    }

    /// Where the refs after `after` that can match begin.
    pub(crate) fn begin(&self, after: Option<&ObjectId>) -> Bound<ObjectId> {
        match (after, &self.first) {
            (Some(after), Some(first)) if after < first => Bound::Included(first.clone()),
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(first)) => Bound::Included(first.clone()),
            (None, None) => Bound::Unbounded,
        }
    }

    /// Whether the ref begins with the text.
    pub(crate) fn has(&self, id: &ObjectId) -> bool {
        match id {
            ObjectId::Named(name) => name.as_str().starts_with(self.text),
            minted @ ObjectId::Minted { .. } => {
                self.text.is_empty() || minted.to_string().starts_with(self.text)
            }
        }
    }

    /// Whether neither this ref, which follows [`Self::begin`], nor a later one begins with the
    /// text.
    pub(crate) fn ends_before(&self, id: &ObjectId) -> bool {
        self.first.is_some() && !self.has(id)
    }
}
