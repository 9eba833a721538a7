//! Counts requests that limits rejected, by member or process. docs/security-model.md explains the
//! limits to users.
//!
//! Does not know the limits.

use std::{collections::BTreeMap, sync::Mutex};

use hoplite_proto::id::NodeId;
use serde_json::{Value, json};

use crate::sync::lock;

/// Limit of rows; beyond it, the row with the lowest count is dropped.
const ROWS_MAX: usize = 1024;

/// The party that exceeded a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitKey {
    /// A member of the cluster.
    Member(NodeId),
    /// A process of this host; None if the kernel does not report which.
    Process(Option<u32>),
}

/// Number of rejections by each limit.
#[derive(Debug, Default)]
pub(crate) struct Limited {
    all: Mutex<BTreeMap<(LimitKey, &'static str), u64>>,
}

impl Limited {
    /// Counts a rejection by a limit.
    pub(crate) fn note(&self, whose: LimitKey, limit: &'static str) {
        let mut all = lock(&self.all);
        if all.len() >= ROWS_MAX
            && !all.contains_key(&(whose, limit))
            && let Some(least) = all.iter().min_by_key(|(_, count)| **count).map(|(key, _)| *key)
        {
            all.remove(&least);
        }
        *all.entry((whose, limit)).or_default() += 1;
    }

    /// One row for each limit that rejected a member or process.
    pub(crate) fn describe(&self) -> Vec<Value> {
        let all = lock(&self.all);
        let row = |((whose, limit), count): (&(LimitKey, &str), &u64)| {
            let (member, process) = match whose {
                LimitKey::Member(node) => (Some(node.to_string()), None),
                LimitKey::Process(pid) => (None, *pid),
            };
            json!({"member": member, "process": process, "limit": limit, "count": count})
        };
        all.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_counted_in_bounded_rows() {
        let limited = Limited::default();
        for _ in 0..3 {
            limited.note(LimitKey::Member(NodeId(1)), "A");
            limited.note(LimitKey::Process(Some(7)), "B");
        }
        for pid in 0..2 * ROWS_MAX as u32 {
            limited.note(LimitKey::Process(Some(pid)), "A");
        }
        let rows = limited.describe();
        assert_eq!(rows.len(), ROWS_MAX);
        let member = NodeId(1).to_string();
        assert!(
            rows.contains(&json!({"member": member, "process": null, "limit": "A", "count": 3}))
        );
        assert!(rows.contains(&json!({"member": null, "process": 7, "limit": "B", "count": 3})));
    }
}
