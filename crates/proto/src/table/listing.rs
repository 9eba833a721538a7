//! Listing of the copies of a node, page by page.
//!
//! A page has a maximum number of rows, and of copies scanned for it, so that no listing blocks a
//! node with many copies.

use alloc::vec::Vec;
use core::ops::Bound;

use super::{CopyKey, Table};
use crate::{
    id::{Instance, NodeId},
    limits::{LISTED_MAX, LOOKED_AT_MAX},
    prefix::RefPrefix,
};

impl Table {
    /// Copies whose refs begin with `prefix`, sorted by id and instance, starting after `after`. At
    /// most [`LISTED_MAX`] of at most [`LOOKED_AT_MAX`] that it looks at. Also returns the last one
    /// that it looked at, if others follow.
    pub fn page(&self, prefix: &str, after: Option<&CopyKey>) -> (Vec<CopyKey>, Option<CopyKey>) {
        let prefix = RefPrefix::new(prefix);
        let first = Instance { node: NodeId(0), serial: 0 };
        let (begin, of_others) = match (prefix.begin(after.map(|(id, _)| id)), after) {
            // Another copy of the same object may follow.
            (Bound::Excluded(id), Some(after)) => {
                (Bound::Included(id), Bound::Excluded(after.clone()))
            }
            (Bound::Included(id), _) => (Bound::Included(id.clone()), Bound::Included((id, first))),
            _ => (Bound::Unbounded, Bound::Unbounded),
        };
        let mut current = self.current.range((begin, Bound::Unbounded)).peekable();
        let mut others = self.others.range((of_others, Bound::Unbounded)).peekable();
        let mut page = Vec::new();
        for looked_at in 1.. {
            let is_other = match (current.peek(), others.peek()) {
                (None, None) => break,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((id, instance)), Some((other, its))) => (other, its) < (*id, *instance),
            };
            let next = if is_other {
                others.next().map(|(id, instance)| (id, instance))
            } else {
                current.next()
            };
            let Some((id, instance)) = next.filter(|(id, _)| !prefix.ends_before(id)) else {
                break;
            };
            let key = (id.clone(), *instance);
            if after.is_none_or(|after| key > *after) && prefix.has(id) {
                page.push(key.clone());
            }
            if page.len() == LISTED_MAX || looked_at == LOOKED_AT_MAX {
                return (page, Some(key));
            }
        }
        (page, None)
    }
}
