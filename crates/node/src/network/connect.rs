//! Control connections from this node, one to each other member, reconnected when they break.
//!
//! A connection goes through a relay if the member can't be reached directly.
//! [`hoplite_proto::reconnect`] decides when to retry and when to give up. Messages in flight may
//! be lost with a connection, so the state machine is notified of each new one and repeats what
//! matters.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    failed_members::ReconnectFailure,
    id::NodeId,
    members::Member,
    node::Event,
    reconnect::{Failure, Next, Reconnect},
    wire::Role,
};
use tokio::time::sleep;
use tracing::{debug, error, info};

use super::{handshake, outbox::Outbox, relay, shared::Network};
use crate::{channel::Channel, engine::tasks::Task, error::LinkError, repeats::log_once};

/// Starts the task that connects to a member.
pub(crate) fn add(network: &Arc<Network>, member: Member) {
    let outbox = Arc::new(Outbox::default());
    let talking = run_connection(network.clone(), member, outbox.clone());
    network.peers.add(member, outbox, network.tasks.spawn(Task::Connection, talking));
}

/// Contacts a lost node once. If it replies, both sides treat each other as new members and open
/// new connections.
pub(crate) fn call(network: &Arc<Network>, member: Member) {
    let caller = network.clone();
    network.tasks.spawn(Task::Reconnect, async move {
        let helpers = relay::HELPERS_TO_FAILED;
        caller.events.send(match relay::call(&caller, member, Role::Join, helpers).await {
            Ok((met, _)) => Event::PeerUp { member: met.member },
            Err(error) => {
                debug!(node = %member.id, %error, "a failed member is still unreachable");
                log_revoked(&caller, member.id, &error);
                log_replaced(member, &error);
                Event::ReconnectFailed { node: member.id, failure: reconnect_failure(&error) }
            }
        });
    });
}

/// Sends the messages queued for a member while it is reachable.
async fn run_connection(network: Arc<Network>, member: Member, outbox: Arc<Outbox>) {
    let mut reconnect = Reconnect::default();
    loop {
        let is_again = reconnect.is_again();
        let role = if is_again { Role::ControlReconnect } else { Role::Control };
        sleep(Duration::from_nanos(reconnect.pause_ns())).await;
        let (channel, via) = match connect(&network, member, role).await {
            Ok(connected) => connected,
            Err(error) if ends(&network, member, &outbox, &mut reconnect, &error) => return,
            Err(_) => continue,
        };
        if is_again {
            network.events.send(Event::PeerUp { member });
        }
        reconnect.connected(network.events.now(), via.is_none());
        let look_again = Duration::from_nanos(reconnect.look_again_ns());
        let mut is_needless = false;
        tokio::select! {
            pumped = outbox.pump(Arc::new(channel.stream), channel.seal) => match pumped {
                Ok(()) => return,
                Err(error) => debug!(node = %member.id, %error, "the connection to a member broke"),
            },
            () = relay::is_needless(&network, member, look_again), if via.is_some() => {
                log_once!(
                    info, member.id, node = %member.id,
                    "a member can be reached directly again"
                );
                is_needless = true;
            }
            // An unresponsive relay accepts all bytes and forwards none.
            () = network.peers.lost(via.unwrap_or(member.id)), if via.is_some() => {
                debug!(node = %member.id, "the relay to a member is gone");
            }
        }
        outbox.disconnect();
        reconnect.broke(network.events.now(), is_needless);
    }
}

/// Handles a connection to a member that could not be opened. Returns whether to try no more.
fn ends(
    network: &Network,
    member: Member,
    outbox: &Outbox,
    reconnect: &mut Reconnect,
    error: &LinkError,
) -> bool {
    let node = member.id;
    log_revoked(network, node, error);
    let next = reconnect.failed(failure(error));
    if next == Next::Retry {
        debug!(%node, %error, "could not connect to a member, retrying");
        return false;
    }
    if outbox.is_closed() {
        // The member was removed or replaced: the result of this connection no longer matters.
        return true;
    }
    let (cause, address) = (format!("{node} {}", error.class()), member.address);
    log_once!(info, cause, %node, %address, %error, "a member can't be reached");
    let is_dead = next == Next::GiveUp;
    network.events.send(Event::PeerUnreachable { node, is_dead });
    if !is_dead {
        // Other members may reach it: the failure detector decides whether it is dead. Drop the
        // queue: this node sends its state again when the member is reachable.
        outbox.forget();
        return false;
    }
    let failure = reconnect_failure(error);
    if failure == ReconnectFailure::Replaced {
        network.events.send(Event::ReconnectFailed { node, failure });
    }
    true
}

/// Records that a member rejects this node's certificate as revoked. The member's list may be
/// wrong, so this node continues.
fn log_revoked(network: &Network, node: NodeId, error: &LinkError) {
    if let LinkError::Revoked(said) = error
        && network.own_revocation.note_by(node, said)
    {
        error!(%node, said, "another node reports the certificate of this node as revoked");
    }
}

/// Logs, once for each failed member, that its process has certainly ended.
fn log_replaced(member: Member, error: &LinkError) {
    if let LinkError::Replaced { by, .. } = error {
        let (node, address) = (member.id, member.address);
        info!(
            %node, %address, %by,
            "another node listens at the address of a failed member: not reconnecting to it"
        );
    }
}

fn reconnect_failure(error: &LinkError) -> ReconnectFailure {
    match error {
        LinkError::Replaced { .. } => ReconnectFailure::Replaced,
        error if handshake::is_elsewhere(error) => ReconnectFailure::Refused,
        _ => ReconnectFailure::Unreachable,
    }
}

fn failure(error: &LinkError) -> Failure {
    if handshake::is_elsewhere(error) {
        Failure::ProcessGone
    } else if handshake::is_unreachable(error) {
        Failure::Unreachable
    } else {
        Failure::Other
    }
}

/// Opens a control connection to a member; also returns the relay, if it is not direct.
async fn connect(
    network: &Arc<Network>,
    member: Member,
    role: Role,
) -> Result<(Channel, Option<NodeId>), LinkError> {
    let (met, via) = relay::call(network, member, role, relay::HELPERS).await?;
    if let Some(round_trip) = met.round_trip.filter(|_| via.is_none()) {
        network.link.round_trip(round_trip);
    }
    handshake::expect_answers(&met.channel.stream, network.identity.silence)?;
    network.own_revocation.accepted_by(member.id);
    network.peers.note_reached(member.id, via);
    network.peers.note_outgoing_session(member.id, met.session);
    Ok((met.channel, via))
}
