//! Revocation without a restart: the list of revocations is read again, and the members whose certificates it names are lost.
//! A node whose own certificate it names ends itself, so that its clients hear why.
//!
//! Does not know what a certificate is, nor what becomes of what a lost member had.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use hoplite_proto::node::Event;
use tokio::time::{Instant, sleep};
use tracing::{error, info};

use super::{certificates::Trust, shared::Network};
use crate::engine::task::Task;

/// Between two looks at the list, of at most a few megabytes. docs/security.md promises 5 s for all that follows.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a node goes on whose own certificate is revoked: as long as docs/security.md lets the others take to read the
/// same list, so that they lose it for that and not as one that crashed. A list that was copied by mistake can be replaced.
const END_AFTER: Duration = Duration::from_secs(5);

/// Why a member is lost, as `hoplite status` shows it.
const REVOKED: &str = "its certificate is revoked";

/// Looks at the list until the node ends.
pub(crate) async fn watch(network: Arc<Network>, trust: Arc<Trust>) {
    let mut revoked_since = None;
    loop {
        sleep(LOOK_EVERY).await;
        let read = trust.clone();
        let looking = network.tasks.spawn_blocking(Task::Revocation, move || {
            read.read_again();
            read.own_revocation()
        });
        let Ok(Some(own)) = looking.await else { return };
        // Also one that was admitted while the list before was in force, and is noted only now.
        let shown = network.peers.shown().into_iter();
        let barred = shown.filter(|(_, shown)| trust.bars(shown)).map(|(node, _)| node);
        for node in barred.collect::<BTreeSet<_>>() {
            info!(%node, "is no member any more: its certificate is revoked");
            network.facts.tell(Event::PeerBarred { node, reason: REVOKED.into() });
        }
        if network.barred.note_here(own.clone()) {
            match &own {
                Some(said) => error!("{said}; the node ends in {} s", END_AFTER.as_secs()),
                None => info!("the certificate of this node is not revoked any more"),
            }
        }
        let Some(said) = own else {
            revoked_since = None;
            continue;
        };
        if revoked_since.get_or_insert_with(Instant::now).elapsed() >= END_AFTER {
            return network.tasks.end(said);
        }
    }
}
