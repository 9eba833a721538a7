//! How many objects of which nothing is known have an entry because one member asks for them.
//!
//! Counts what each member has opened, and looks at the entries only when that is as many as it may have: most of them are
//! known or forgotten by then. Does not know what is asked.

use alloc::collections::BTreeMap;

use crate::{id::NodeId, limits::UNKNOWN_MAX, time::Instant};

/// Between two looks at all entries on behalf of one member: each takes tens of milliseconds when there are a million.
const RECOUNT_NS: u64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Unknown {
    by: BTreeMap<NodeId, Opened>,
}

#[derive(Debug, Default)]
struct Opened {
    count: usize,
    /// When its entries may be counted anew.
    recount_at: Instant,
}

impl Unknown {
    /// Whether a member may have one more entry opened; `count` tells how many there are that only it asks for.
    pub(super) fn may_open(
        &mut self,
        now: Instant,
        node: NodeId,
        count: impl FnOnce() -> usize,
    ) -> bool {
        let opened = self.by.entry(node).or_default();
        if opened.count >= UNKNOWN_MAX && opened.recount_at <= now {
            opened.count = count();
            opened.recount_at = now + RECOUNT_NS;
        }
        let may_open = opened.count < UNKNOWN_MAX;
        opened.count += usize::from(may_open);
        may_open
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        self.by.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_so_many_entries_opened_as_are_not_known_by_then() {
        let (mut unknown, node, now) = (Unknown::default(), NodeId(2), Instant(1));
        assert!((0..UNKNOWN_MAX).all(|_| unknown.may_open(now, node, || unreachable!())));
        assert!(!unknown.may_open(now, node, || UNKNOWN_MAX));
        assert!(!unknown.may_open(now, node, || unreachable!()), "it was counted just now");
        assert!(unknown.may_open(now, NodeId(3), || unreachable!()));
        assert!(unknown.may_open(now + RECOUNT_NS, node, || 5));
        assert_eq!(unknown.by[&node].count, 6);
    }
}
