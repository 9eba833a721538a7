//! Revocation without a restart: re-reads the revocation list and removes the members whose
//! certificates are in it. A node whose own certificate is in it stops, so that its clients get the
//! reason.
//!
//! Does not know certificates, nor what follows from the removal of a member.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use hoplite_proto::node::Event;
use tokio::time::{Instant, sleep};
use tracing::{error, info};

use super::{certificates::Trust, shared::Network};
use crate::engine::tasks::Task;

/// Interval between reads of the list, of at most a few megabytes. docs/security.md guarantees 5 s
/// for the whole reaction.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a node continues after its own certificate is revoked. The other nodes have the same
/// time to read the list, so that they remove it for the revocation and not as crashed. A list
/// copied by mistake can be replaced meanwhile.
const END_AFTER: Duration = Duration::from_secs(5);

/// Reason of the removal, as `hoplite status` displays it.
const REVOKED: &str = "its certificate is revoked";

/// Watches the list until the node ends.
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
        // Includes peers admitted under the previous list whose sessions were recorded only now.
        let shown = network.peers.certificates().into_iter();
        let wait_until_revoked =
            shown.filter(|(_, shown)| trust.revokes(shown)).map(|(node, _)| node);
        for node in wait_until_revoked.collect::<BTreeSet<_>>() {
            info!(%node, "removing a member: its certificate is revoked");
            network.events.send(Event::PeerRevoked { node, reason: REVOKED.into() });
        }
        if network.own_revocation.note_here(own.clone()) {
            match &own {
                Some(said) => error!("{said}; the node stops in {} s", END_AFTER.as_secs()),
                None => info!("the certificate of this node is no longer revoked"),
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
