//! Folds that run at this node, for its own reduces or those of others, and what each reads.
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
}

/// A fold that is over.
pub(super) struct Ended {
    pub(super) inputs: Vec<Instance>,
    pub(super) was_stopped: bool,
}

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

    /// How many a coordinator has ordered.
    pub(super) fn ordered_by(&self, coordinator: NodeId) -> usize {
        self.folds.range(FoldKey::all_of(coordinator)).count()
    }

    /// The folds of an attempt.
    pub(super) fn of(&self, reduce: ReduceId, epoch: u32) -> Vec<FoldKey> {
        self.that(|key| key.is_of(reduce, epoch))
    }

    pub(super) fn begin(&mut self, key: FoldKey, inputs: Vec<Instance>) {
        self.folds.insert(key, Fold { inputs, is_stopped: false });
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
        let Fold { inputs, is_stopped } = self.folds.remove(key)?;
        Some(Ended { inputs, was_stopped: is_stopped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;

    fn key() -> FoldKey {
        FoldKey::result(ReduceId { node: NodeId(1), serial: 1 }, 0)
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
