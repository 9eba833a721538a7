//! Listing of the live objects in this shard, page by page.
//!
//! A page has a maximum number of rows, and of entries scanned for it, so that a listing never
//! blocks an owner of a million objects.

use alloc::vec::Vec;
use core::ops::Bound;

use super::{context::Context, live::Live, state::Directory};
use crate::{
    id::ObjectId,
    limits::{LISTED_MAX, LOOKED_AT_MAX},
    message::Listed,
    prefix::RefPrefix,
    time::Instant,
};

impl Directory {
    /// Lists live objects that this node owns and whose refs begin with `prefix`, in order,
    /// starting after `after`. Also returns after which object the next page begins, if entries are
    /// left.
    pub(super) fn list(
        &self,
        context: &Context<'_>,
        prefix: &str,
        after: Option<&ObjectId>,
    ) -> (Vec<Listed>, Option<ObjectId>) {
        let (now, members) = (context.now, context.members);
        let prefix = RefPrefix::new(prefix);
        let range = self.entries.range((prefix.begin(after), Bound::Unbounded));
        let mut rows = Vec::new();
        for (looked_at, (id, entry)) in range.enumerate() {
            if prefix.ends_before(id) {
                break;
            }
            if let Some(live) = entry.live.as_ref().filter(|_| entry.is_alive() && prefix.has(id))
                && members.owners(id).contains(members.me())
            {
                rows.push(row(now, id, live));
            }
            if rows.len() == LISTED_MAX || looked_at + 1 == LOOKED_AT_MAX {
                return (rows, Some(id.clone()));
            }
        }
        (rows, None)
    }
}

fn row(now: Instant, id: &ObjectId, live: &Live) -> Listed {
    let count = |is_complete: bool| {
        let holders = live.tree.iter().filter(|(_, it)| it.complete == is_complete);
        u32::try_from(holders.count()).unwrap_or(u32::MAX)
    };
    Listed {
        id: id.clone(),
        meta: live.meta.clone(),
        complete: count(true),
        partial: count(false),
        age_ns: now.since(live.since),
        lifetime: live.terms.as_ref().map(|terms| terms.to_lifetime(now)),
    }
}
