//! Connections that other nodes make to this one: the handshake, and to whom each goes then.
//!
//! Does not know what is said over them afterwards.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{id::NodeId, node::Event, wire::Role};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info};

use super::{
    handshake::{self, Met},
    relay,
    shared::Network,
};
use crate::{engine::task::Task, error::LinkError, fork_safe};

/// Takes a payload connection that a node has made.
pub(crate) type Serve = Arc<dyn Fn(NodeId, TcpStream) + Send + Sync>;

/// Accepts for ever.
pub(crate) async fn accept(network: Arc<Network>, listener: TcpListener, serve: Serve) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let (called, serve) = (network.clone(), serve.clone());
                network.tasks.spawn(Task::Welcome, async move {
                    if let Err(error) = welcome(&called, stream, &serve).await {
                        called.counters.strangers.add(1);
                        info!(%address, %error, "a connection was not let in");
                    }
                });
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
    let admit = |node, nonce: &[u8; 16], pass: &[u8; 32]| network.peers.admit(node, nonce, pass);
    let Met { stream, member, role, turn, session, .. } =
        handshake::answer(&network.identity, stream, admit).await?;
    match role {
        Role::Control | Role::ControlAgain => {
            // Kept first: the node may be lost again before its first message is taken.
            let stream = fork_safe::raise(stream.into_std()?);
            let Some(kept) = network.control.keep(member.id, turn, stream) else { return Ok(()) };
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
                if let Err(error) = relay::pass_on(&helper, stream, member.id).await {
                    debug!(node = %member.id, %error, "was not passed on");
                }
            });
        }
        Role::Payload => serve(member.id, stream),
    }
    Ok(())
}
