//! Accepts connections of other nodes: performs the handshake, then hands each connection to the part of the node for
//! its role.
//!
//! Does not know what they carry afterwards.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    node::Event,
    wire::{MacBytes, Role},
};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info};

use super::{
    admission::{Callers, callers_max},
    certificates::Shown,
    handshake::{
        Met,
        called::{self, Answered},
    },
    places::{Place, places_max},
    relay,
    shared::Network,
};
use crate::{channel::Channel, engine::task::Task, error::LinkError, fork_safe, limited::Whose};

/// Serves a payload connection of a node, given the peer's certificate and the connection's place within the limit.
pub(crate) type Serve = Arc<dyn Fn(NodeId, Channel, Option<Arc<Shown>>, Place) + Send + Sync>;

/// Accepts connections until the node ends.
pub(crate) async fn accept(network: Arc<Network>, listener: TcpListener, serve: Serve) {
    let mut callers = Callers::default();
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (called, serve) = (network.clone(), serve.clone());
                let welcoming = network.tasks.spawn(Task::Welcome, async move {
                    if let Err(error) = welcome(&called, stream, &serve).await {
                        match error {
                            LinkError::Full(node, _) => {
                                let limit = "PAYLOAD_CONNECTIONS_MAX";
                                called.limited.note(Whose::Member(node), limit);
                            }
                            // The initiator logs this: it looked for a node whose address this node now has.
                            LinkError::Declined(_) | LinkError::Replaced { .. } => {
                                debug!(%address, %error, "a connection was meant for another node");
                                return;
                            }
                            _ => called.counters.strangers.add(1),
                        }
                        info!(%address, %error, "refused a connection");
                    }
                });
                if callers.admit(address.ip(), callers_max(), welcoming.abort_handle()) {
                    network.counters.strangers.add(1);
                    debug!(%address, "too many handshakes: dropped the oldest");
                }
            }
            Err(error) => {
                // Most likely no descriptors are left: initiators retry, and so does this node.
                info!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn welcome(
    network: &Arc<Network>,
    stream: TcpStream,
    serve: &Serve,
) -> Result<(), LinkError> {
    let admit = |node, nonce: &[u8; 16], pass: &MacBytes| network.peers.admit(node, nonce, pass);
    let most = places_max();
    let place = |node| network.places.take(node, most);
    let met = match called::answer(&network.identity, stream, admit, place).await? {
        Answered::Met(met) => met,
        Answered::Resumed(node, channel, session, place) => {
            serve(node, channel, session.shown, place);
            return Ok(());
        }
    };
    let Met { channel, member, role, turn, session, place, .. } = met;
    match role {
        Role::Control | Role::ControlAgain => {
            // Store the connection first: the node may fail again before its first message is read.
            let stream = fork_safe::raise(channel.stream.into_std()?);
            let kept = network.control.keep(member.id, turn, stream, channel.open);
            let Some(kept) = kept else { return Ok(()) };
            network.peers.note_caller(member.id, session);
            network.facts.tell(if role == Role::ControlAgain {
                Event::PeerAgain { member }
            } else {
                Event::PeerUp { member }
            });
            network.control.listen(kept)?;
        }
        Role::Meet => network.facts.tell(Event::PeerUp { member }),
        Role::Detour => {
            let helper = network.clone();
            network.tasks.spawn(Task::Relay, async move {
                let _place = place;
                if let Err(error) =
                    relay::pass_on(&helper, channel, member.id, session.shown.as_deref()).await
                {
                    debug!(node = %member.id, %error, "relaying for a member failed");
                }
            });
        }
        Role::Payload => {
            if let Some(place) = place {
                serve(member.id, channel, session.shown, place);
            }
        }
    }
    Ok(())
}
