//! Connections that other nodes make to this one, whatever they are for.

use std::sync::Arc;

use hoplite_proto::{
    message::Message,
    node::Event,
    wire::{FrameKind, Role, WireError},
};
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
};
use tracing::{debug, info};

use crate::{
    driver::Core,
    error::LinkError,
    frame,
    greet::{self, Met},
    send,
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
    let Met { stream, member, role, .. } = greet::answer(&core.identity, stream).await?;
    let core_of_task = core.clone();
    match role {
        Role::Control => {
            let hearing = tokio::spawn(async move {
                core_of_task.drive(Event::PeerUp { member });
                if let Err(error) = hear(&core_of_task, stream, member.id).await {
                    debug!(node = %member.id, %error, "its control connection ended");
                }
            });
            core.peers.keep_incoming(member.id, hearing.abort_handle());
        }
        Role::Payload => {
            drop(tokio::spawn(async move {
                if let Err(error) = send::serve(&core_of_task, stream).await {
                    debug!(node = %member.id, %error, "a payload connection ended");
                }
            }));
        }
    }
    Ok(())
}

async fn hear(
    core: &Arc<Core>,
    stream: TcpStream,
    from: hoplite_proto::id::NodeId,
) -> Result<(), LinkError> {
    let mut reader = BufReader::with_capacity(64 * 1024, stream);
    while let Some(header) = frame::read_header(&mut reader).await? {
        if header.kind != FrameKind::Control {
            return Err(WireError::Unexpected(format!("{:?}", header.kind)).into());
        }
        let message: Message = frame::read_body(&mut reader, &header).await?;
        if !message.is_sound() {
            return Err(WireError::Unexpected("a message that contradicts itself".into()).into());
        }
        core.counters.messages_received.add(1);
        core.drive(Event::Message { from, message });
    }
    Ok(())
}
