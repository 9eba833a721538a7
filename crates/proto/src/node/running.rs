//! What runs on this node now, for reports. Each list is read lazily, so that a caller takes as
//! much as it shows.

use super::Node;
use crate::{
    id::{Instance, ServeId},
    machines::worker::Fold,
    message::FoldKey,
    reduce::Reduce,
    time::Instant,
};

impl Node {
    /// A fold that runs here.
    pub fn running_fold(&self, key: &FoldKey) -> Option<&Fold> {
        self.worker.get(key)
    }

    /// The folds that run here, in the order of their keys.
    pub fn running_folds(&self) -> impl Iterator<Item = (&FoldKey, &Fold)> {
        self.worker.running()
    }

    /// The reduces of this node's clients, the oldest first.
    pub fn reduces(&self) -> impl Iterator<Item = &Reduce> {
        self.coordinator.reduces()
    }

    /// The copy that a transfer to another node sends, and since when.
    pub fn running_serve(&self, serve: ServeId) -> Option<(Instance, Instant)> {
        self.readers.serve(serve)
    }
}
