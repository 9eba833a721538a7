//! Control connections to the other members, one from here to each, made again when they break.
//!
//! By way of another member if it must be; when to try again and when to give up is decided by
//! [`hoplite_proto::reconnect`]. What was under way may be lost with a connection, so the machine is told of each new one
//! and says again what matters.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    node::Event,
    reconnect::{Failure, Next, Reconnect},
    redial::CallFailure,
    wire::Role,
};
use tokio::time::sleep;
use tracing::{debug, error, info};

use super::{handshake, outbox::Outbox, relay, shared::Network};
use crate::{channel::Channel, engine::task::Task, error::LinkError};

/// Begins to connect to a member.
pub(crate) fn add(network: &Arc<Network>, member: Member) {
    let outbox = Arc::new(Outbox::default());
    let talking = talk(network.clone(), member, outbox.clone());
    network.peers.add(member, outbox, network.tasks.spawn(Task::Redial, talking));
}

/// Calls a node that was lost. If it answers, it and this one meet as if they never had; both connect anew.
pub(crate) fn call(network: &Arc<Network>, member: Member) {
    let caller = network.clone();
    network.tasks.spawn(Task::Call, async move {
        let helpers = relay::HELPERS_TO_THE_LOST;
        caller.facts.tell(match relay::call(&caller, member, Role::Meet, helpers).await {
            Ok((met, _)) => Event::PeerUp { member: met.member },
            Err(error) => {
                debug!(node = %member.id, %error, "is still lost");
                note_revoked(&caller, member.id, &error);
                note_replaced(member, &error);
                Event::CallFailed { node: member.id, failure: call_failure(&error) }
            }
        });
    });
}

/// Sends what is queued for a member for as long as it can be reached.
async fn talk(network: Arc<Network>, member: Member, outbox: Arc<Outbox>) {
    let mut reconnect = Reconnect::default();
    loop {
        let is_again = reconnect.is_again();
        let role = if is_again { Role::ControlAgain } else { Role::Control };
        sleep(Duration::from_nanos(reconnect.pause_ns())).await;
        let (channel, via) = match connect(&network, member, role).await {
            Ok(connected) => connected,
            Err(error) => {
                note_revoked(&network, member.id, &error);
                let next = reconnect.failed(failure(&error));
                if next == Next::Try {
                    debug!(node = %member.id, %error, "no connection");
                    continue;
                }
                if outbox.is_closed() {
                    // The member was let go of, or replaced: what becomes of this connection tells nothing.
                    return;
                }
                info!(node = %member.id, address = %member.address, %error, "can't be reached");
                let is_dead = next == Next::GiveUp;
                network.facts.tell(Event::PeerLost { node: member.id, is_dead });
                if is_dead {
                    let failure = call_failure(&error);
                    if failure == CallFailure::Replaced {
                        network.facts.tell(Event::CallFailed { node: member.id, failure });
                    }
                    return;
                }
                // Others may reach it: all of them decide whether it lives. What it is to know is said again when it can
                // be reached, and is not kept until then.
                outbox.forget();
                continue;
            }
        };
        if is_again {
            network.facts.tell(Event::PeerUp { member });
        }
        reconnect.connected(network.facts.now(), via.is_none());
        let look_again = Duration::from_nanos(reconnect.look_again_ns());
        let mut is_needless = false;
        tokio::select! {
            pumped = outbox.pump(Arc::new(channel.stream), channel.seal) => match pumped {
                Ok(()) => return,
                Err(error) => debug!(node = %member.id, %error, "connection broke"),
            },
            () = relay::is_needless(&network, member, look_again), if via.is_some() => {
                info!(node = %member.id, "can be reached directly again");
                is_needless = true;
            }
            // A helper that stands still takes all that it is sent, and passes nothing on.
            () = network.peers.lost(via.unwrap_or(member.id)), if via.is_some() => {
                debug!(node = %member.id, "the member that helped to reach it is gone");
            }
        }
        outbox.disconnect();
        reconnect.broke(network.facts.now(), is_needless);
    }
}

/// A member that does not take this node's certificate any more says why. Its list may be the wrong one, so this node goes on.
fn note_revoked(network: &Network, node: NodeId, error: &LinkError) {
    if let LinkError::Revoked(said) = error
        && network.barred.note_by(node, said)
    {
        error!(%node, said, "the certificate of this node is revoked, as another node says");
    }
}

/// The process of a member has ended for certain: the log says so, once for each such member.
fn note_replaced(member: Member, error: &LinkError) {
    if let LinkError::Replaced { by, .. } = error {
        let (node, address) = (member.id, member.address);
        info!(%node, %address, %by, "another node listens at the address of a lost one, which is not called again");
    }
}

fn call_failure(error: &LinkError) -> CallFailure {
    match error {
        LinkError::Replaced { .. } => CallFailure::Replaced,
        error if handshake::is_elsewhere(error) => CallFailure::Refused,
        _ => CallFailure::Unanswered,
    }
}

fn failure(error: &LinkError) -> Failure {
    if handshake::is_elsewhere(error) {
        Failure::Elsewhere
    } else if handshake::is_unreachable(error) {
        Failure::Unreachable
    } else {
        Failure::Other
    }
}

/// A control connection to a member, and by way of which node it goes, if not directly.
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
    network.barred.let_in_by(member.id);
    network.peers.note_reached(member.id, via);
    network.peers.note_call(member.id, met.session);
    Ok((met.channel, via))
}
