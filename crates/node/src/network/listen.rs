//! Accepts connections of other nodes: performs the handshake, then hands each connection to the
//! part of the node for its role.
//!
//! Does not know what they carry afterwards.

use std::{io, sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    node::Event,
    wire::{MacBytes, Role, WireError},
};
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use super::{
    certificates::PeerCertificate,
    connection_limit::{ConnectionPermit, PendingHandshakes, handshakes_max, places_max},
    handshake::{
        PeerConnection,
        acceptor::{self, Accepted},
    },
    relay,
    shared::Network,
};
use crate::{
    channel::Channel, engine::tasks::Task, error::LinkError, fork_safe, limited::LimitKey,
    repeats::log_once,
};

/// Serves a payload connection of a node, given the peer's certificate and the connection's place
/// within the limit.
pub(crate) type Serve =
    Arc<dyn Fn(NodeId, Channel, Option<Arc<PeerCertificate>>, ConnectionPermit) + Send + Sync>;

/// Accepts connections until the node ends.
pub(crate) async fn accept(network: Arc<Network>, listener: TcpListener, serve: Serve) {
    let mut handshakes = PendingHandshakes::default();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (called, serve) = (network.clone(), serve.clone());
                let welcoming = network.tasks.spawn(Task::Handshake, async move {
                    if let Err(error) = welcome(&called, stream, &serve).await {
                        match error {
                            LinkError::Full(node, _) => {
                                let limit = "PAYLOAD_CONNECTIONS_MAX";
                                called.limited.note(LimitKey::Member(node), limit);
                            }
                            // The initiator logs this: it looked for a node whose address this node
                            // now has.
                            LinkError::Declined(_) | LinkError::Replaced { .. } => {
                                debug!(%address, %error, "a connection was meant for another node");
                                return;
                            }
                            LinkError::OtherCluster { node, .. } => {
                                called.counters.strangers.add(1);
                                log_once!(warn, node, %error, "refused a node of another cluster");
                                return;
                            }
                            LinkError::Wire(WireError::OtherVersion { .. }) => {
                                called.counters.strangers.add(1);
                                // By address only: a stranger can send any version.
                                let cause = address.ip();
                                log_once!(
                                    warn, cause, %address, %error,
                                    "refused a node of another version"
                                );
                                return;
                            }
                            // Such as a check of whether the port is open, which sends nothing.
                            LinkError::Io(ref broken) if is_hang_up(broken.kind()) => {
                                called.counters.strangers.add(1);
                                debug!(%address, %error, "a connection ended before its handshake");
                                return;
                            }
                            _ => called.counters.strangers.add(1),
                        }
                        let cause = format!("{} {}", address.ip(), error.class());
                        log_once!(info, cause, %address, %error, "refused a connection");
                    }
                });
                if handshakes.admit(address.ip(), handshakes_max(), welcoming.abort_handle()) {
                    network.counters.strangers.add(1);
                    debug!(%address, "too many handshakes: dropped the oldest");
                }
            }
            Err(error) => {
                // Most likely no descriptors are left: initiators retry, and so does this node.
                log_once!(info, error.kind(), %error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn is_hang_up(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

async fn welcome(
    network: &Arc<Network>,
    stream: TcpStream,
    serve: &Serve,
) -> Result<(), LinkError> {
    let admit = |node, nonce: &[u8; 16], pass: &MacBytes| network.peers.admit(node, nonce, pass);
    let most = places_max();
    let permit = |node| network.connection_limit.take(node, most);
    let met = match acceptor::accept(&network.identity, stream, admit, permit).await? {
        Accepted::Handshake(met) => met,
        Accepted::Resumed(node, channel, session, permit) => {
            serve(node, channel, session.shown, permit);
            return Ok(());
        }
    };
    let PeerConnection { channel, member, role, turn, session, permit, .. } = met;
    match role {
        Role::Control | Role::ControlReconnect => {
            // Store the connection first: the node may fail again before its first message is read.
            let stream = fork_safe::raise(channel.stream.into_std()?);
            let kept = network.control.keep(member.id, turn, stream, channel.open);
            let Some(kept) = kept else { return Ok(()) };
            network.peers.note_incoming_session(member.id, session);
            network.events.send(if role == Role::ControlReconnect {
                Event::PeerReconnected { member }
            } else {
                Event::PeerUp { member }
            });
            network.control.listen(kept)?;
        }
        Role::Join => network.events.send(Event::PeerUp { member }),
        Role::Relay => {
            let helper = network.clone();
            network.tasks.spawn(Task::Relay, async move {
                let _place = permit;
                if let Err(error) =
                    relay::relay(&helper, channel, member.id, session.shown.as_deref()).await
                {
                    debug!(node = %member.id, %error, "relaying for a member failed");
                }
            });
        }
        Role::Payload => {
            if let Some(permit) = permit {
                serve(member.id, channel, session.shown, permit);
            }
        }
    }
    Ok(())
}
