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
    /// Whether a member has as many entries opened as it may have, as far as that was counted.
    pub(super) fn is_full(&self, node: NodeId) -> bool {
        self.by.get(&node).is_some_and(|opened| opened.count >= UNKNOWN_MAX)
    }

    /// The same once its entries are counted anew, unless that was done just now; `count` tells how many there are that only
    /// it asks for.
    pub(super) fn is_full_again(
        &mut self,
        now: Instant,
        node: NodeId,
        count: impl FnOnce() -> usize,
    ) -> bool {
        let opened = self.by.entry(node).or_default();
        if opened.recount_at <= now {
            opened.count = count();
            opened.recount_at = now + RECOUNT_NS;
        }
        opened.count >= UNKNOWN_MAX
    }

    /// An entry was opened because a member asks.
    pub(super) fn opened(&mut self, node: NodeId) {
        self.by.entry(node).or_default().count += 1;
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
        assert!(!unknown.is_full(node));
        (0..UNKNOWN_MAX).for_each(|_| unknown.opened(node));
        assert!(unknown.is_full(node) && !unknown.is_full(NodeId(3)));
        assert!(unknown.is_full_again(now, node, || UNKNOWN_MAX));
        assert!(unknown.is_full_again(now, node, || unreachable!()), "it was counted just now");
        assert!(!unknown.is_full_again(now + RECOUNT_NS, node, || 5));
        assert!(!unknown.is_full(node));
        assert_eq!(unknown.by[&node].count, 5);
    }
}
