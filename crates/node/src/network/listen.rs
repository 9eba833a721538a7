//! Connections that other nodes make to this one, whatever they are for.

use std::sync::Arc;

use hoplite_proto::{node::Event, wire::Role};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info};

use crate::{
    engine::Core,
    error::LinkError,
    fork_safe,
    network::handshake::{self, Met},
    network::relay,
    transfer::send,
};

/// Accepts for ever.
pub(crate) async fn accept(core: Arc<Core>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let core = core.clone();
                tokio::spawn(async move {
                    if let Err(error) = welcome(&core, stream).await {
                        core.counters.strangers.add(1);
                        info!(%address, %error, "a connection was not let in");
                    }
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: those who wait for us try again, and so do we.
                info!(%error, "could not accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

async fn welcome(core: &Arc<Core>, stream: TcpStream) -> Result<(), LinkError> {
    let admit = |node, nonce: &[u8; 16], pass: &[u8; 32]| core.peers.admit(node, nonce, pass);
    let Met { stream, member, role, turn, session, .. } =
        handshake::answer(&core.identity, stream, admit).await?;
    match role {
        Role::Control | Role::ControlAgain => {
            // Kept first: the node may be lost again before its first message is taken.
            let kept = core.control.keep(member.id, turn, fork_safe::raise(stream.into_std()?));
            let Some(kept) = kept else { return Ok(()) };
            core.peers.was_called(member.id, session);
            core.drive(if role == Role::ControlAgain {
                Event::PeerAgain { member }
            } else {
                Event::PeerUp { member }
            });
            core.control.listen(kept)?;
        }
        Role::Meet => core.drive(Event::PeerUp { member }),
        Role::Detour => {
            let core = core.clone();
            drop(tokio::spawn(async move {
                if let Err(error) = relay::pass_on(&core, stream, member.id).await {
                    debug!(node = %member.id, %error, "was not passed on");
                }
            }));
        }
        Role::Payload => {
            let core = core.clone();
            drop(tokio::spawn(async move {
                tokio::select! {
                    result = send::serve(&core, stream) => if let Err(error) = result {
                        debug!(node = %member.id, %error, "a payload connection ended");
                    },
                    // One that is frozen takes nothing, and its kernel keeps the connection.
                    () = core.peers.gone(member.id) => {}
                }
            }));
        }
    }
    Ok(())
}
