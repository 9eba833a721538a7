//! Folds that run at this node, for its own reduces or those of others: what each reads, and for whom it waits.
//!
//! Does not know copies: the caller pins and unpins the inputs.

use alloc::{collections::BTreeMap, vec::Vec};

use crate::{
    id::{Instance, NodeId, ReduceId},
    message::FoldKey,
};

/// All folds of this node.
#[derive(Debug, Default)]
pub(super) struct Worker {
    folds: BTreeMap<FoldKey, Fold>,
}

/// A fold that runs here; its inputs are pinned until it ends.
#[derive(Debug)]
struct Fold {
    inputs: Vec<Instance>,
    is_stopped: bool,
    /// What the nodes of its children have brought while it waited for them.
    waits: BTreeMap<NodeId, Wait>,
}

/// What a child has brought while its parent waited for it.
#[derive(Debug, Default)]
struct Wait {
    ns: u64,
    bytes: u64,
}

/// A fold that is over.
pub(super) struct Ended {
    pub(super) inputs: Vec<Instance>,
    pub(super) was_stopped: bool,
}

/// How long a child is waited for before that is reported, and reported again: 200 ms. The coordinator then begins the sum
/// anew with another input, which takes as long as the sum itself; to wait as long as for a copy would be too long.
const REPORT_NS: u64 = 200_000_000;

impl Worker {
    pub(super) fn len(&self) -> usize {
        self.folds.len()
    }

    pub(super) fn contains(&self, key: &FoldKey) -> bool {
        self.folds.contains_key(key)
    }

    /// Whether every fold that still runs was told to stop.
    pub(super) fn is_done(&self) -> bool {
        self.folds.values().all(|fold| fold.is_stopped)
    }

    /// The folds of which this is true.
    pub(super) fn that(&self, is_it: impl Fn(&FoldKey) -> bool) -> Vec<FoldKey> {
        self.folds.keys().filter(|key| is_it(key)).copied().collect()
    }

    /// The folds of an attempt.
    pub(super) fn of(&self, reduce: ReduceId, epoch: u32) -> Vec<FoldKey> {
        self.that(|key| key.is_of(reduce, epoch))
    }

    pub(super) fn begin(&mut self, key: FoldKey, inputs: Vec<Instance>) {
        self.folds.insert(key, Fold { inputs, is_stopped: false, waits: BTreeMap::new() });
    }

    /// A fold shall stop; whether it runs and was not told so before.
    pub(super) fn stop(&mut self, key: FoldKey) -> bool {
        let running = self.folds.get_mut(&key).filter(|fold| !fold.is_stopped);
        running.is_some_and(|fold| !core::mem::replace(&mut fold.is_stopped, true))
    }

    /// What a fold reads here.
    pub(super) fn inputs(&self, key: &FoldKey) -> &[Instance] {
        self.folds.get(key).map_or(&[], |fold| &fold.inputs)
    }

    pub(super) fn end(&mut self, key: &FoldKey) -> Option<Ended> {
        let Fold { inputs, is_stopped, .. } = self.folds.remove(key)?;
        Some(Ended { inputs, was_stopped: is_stopped })
    }

    /// A fold has waited so long for the stream of a child, which brought so many bytes meanwhile; the bytes per second, if
    /// the coordinator is to hear of them.
    pub(super) fn waited(
        &mut self,
        key: &FoldKey,
        node: NodeId,
        ns: u64,
        bytes: u64,
    ) -> Option<u64> {
        let wait = self.folds.get_mut(key)?.waits.entry(node).or_default();
        (wait.ns, wait.bytes) = (wait.ns + ns, wait.bytes + bytes);
        if wait.ns < REPORT_NS {
            return None;
        }
        let rate = u128::from(wait.bytes) * 1_000_000_000 / u128::from(wait.ns);
        *wait = Wait::default();
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> FoldKey {
        FoldKey::result(ReduceId { node: NodeId(1), serial: 1 }, 0)
    }

    #[test]
    fn a_child_is_reported_each_200_ms_with_what_it_brought_since() {
        let mut worker = Worker::default();
        assert_eq!(worker.waited(&key(), NodeId(2), REPORT_NS, 0), None, "no such fold");
        worker.begin(key(), Vec::new());
        assert_eq!(worker.waited(&key(), NodeId(2), REPORT_NS / 2, 100), None);
        assert_eq!(worker.waited(&key(), NodeId(3), REPORT_NS / 2, 0), None, "another child");
        assert_eq!(worker.waited(&key(), NodeId(2), REPORT_NS / 2, 100), Some(1000));
        assert_eq!(worker.waited(&key(), NodeId(2), REPORT_NS, 0), Some(0), "it begins anew");
    }

    #[test]
    fn a_fold_is_stopped_once_and_runs_until_it_ends() {
        let mut worker = Worker::default();
        worker.begin(key(), Vec::new());
        assert!(worker.stop(key()) && !worker.stop(key()));
        assert!(worker.is_done() && worker.contains(&key()));
        assert!(worker.end(&key()).is_some_and(|ended| ended.was_stopped));
        assert!(worker.end(&key()).is_none());
    }
}
