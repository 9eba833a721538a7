//! Revocation without a restart: the list of revocations is read again, and the members whose certificates it names are lost.
//!
//! Does not know what a certificate is, nor what becomes of what a lost member had.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use hoplite_proto::node::Event;
use tracing::info;

use super::{certificates::Trust, shared::Network};
use crate::engine::task::Task;

/// Between two looks at the list, of at most a few megabytes. docs/security.md promises 5 s for all that follows.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a member is lost, as `hoplite status` shows it.
const REVOKED: &str = "its certificate is revoked";

/// Looks at the list for ever.
pub(crate) async fn watch(network: Arc<Network>, trust: Arc<Trust>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let read = trust.clone();
        let reading = network.tasks.spawn_blocking(Task::Revocation, move || read.read_again());
        if !matches!(reading.await, Ok(Some(()))) {
            return;
        }
        // Also one that was admitted while the list before was in force, and is noted only now.
        let shown = network.peers.shown().into_iter();
        let barred = shown.filter(|(_, shown)| trust.bars(shown)).map(|(node, _)| node);
        for node in barred.collect::<BTreeSet<_>>() {
            info!(%node, "is no member any more: its certificate is revoked");
            network.facts.tell(Event::PeerBarred { node, reason: REVOKED.into() });
        }
    }
}
