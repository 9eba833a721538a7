//! Connections that other nodes make to this one: the handshake, and to whom each goes then.
//!
//! Does not know what is said over them afterwards.

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
    handshake::{self, Answered, Met},
    relay,
    shared::Network,
};
use crate::{channel::Channel, engine::task::Task, error::LinkError, fork_safe};

/// Takes a payload connection that a node has made, and the certificate that it has shown.
pub(crate) type Serve = Arc<dyn Fn(NodeId, Channel, Option<Arc<Shown>>) + Send + Sync>;

/// Accepts for ever.
pub(crate) async fn accept(network: Arc<Network>, listener: TcpListener, serve: Serve) {
    let callers = Arc::new(Callers::default());
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (called, serve) = (network.clone(), serve.clone());
                let is_one_ended = callers.admit(address.ip(), callers_max(), |calling| {
                    let welcoming = network.tasks.spawn(Task::Welcome, async move {
                        let _calling = calling;
                        if let Err(error) = welcome(&called, stream, &serve).await {
                            called.counters.strangers.add(1);
                            info!(%address, %error, "a connection was not let in");
                        }
                    });
                    welcoming.abort_handle()
                });
                if is_one_ended {
                    network.counters.strangers.add(1);
                    debug!(%address, "too many callers: ended the one that had waited longest");
                }
            }
            Err(error) => {
                // Out of descriptors, most likely: the callers try again, and so does this node.
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
    let met = match handshake::answer(&network.identity, stream, admit).await? {
        Answered::Met(met) => met,
        Answered::Resumed(node, channel, session) => {
            serve(node, channel, session.shown);
            return Ok(());
        }
    };
    let Met { channel, member, role, turn, session, .. } = met;
    match role {
        Role::Control | Role::ControlAgain => {
            // Kept first: the node may be lost again before its first message is taken.
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
                if let Err(error) =
                    relay::pass_on(&helper, channel, member.id, session.shown.as_deref()).await
                {
                    debug!(node = %member.id, %error, "was not passed on");
                }
            });
        }
        Role::Payload => serve(member.id, channel, session.shown),
    }
    Ok(())
}
