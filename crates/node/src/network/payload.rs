//! Payload connections to other members: one that is idle, or a new one.

use std::{io, sync::Arc};

use hoplite_proto::{id::NodeId, wire::Role};
use tokio::net::TcpStream;
use tracing::debug;

use super::{handshake, relay, shared::Network};
use crate::{channel::Channel, error::LinkError};

/// Asks a node for something, on a payload connection that is idle or a new one: `first` is what it is sent, a frame
/// that is not sealed.
///
/// # Errors
/// Why there is no connection.
pub(crate) async fn open(
    network: &Arc<Network>,
    node: NodeId,
    first: &[u8],
) -> Result<Channel, LinkError> {
    while let Some(mut channel) = network.peers.take_idle(node) {
        // One that the other side closed meanwhile has an end to read.
        if matches!(channel.stream.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
            channel.send(first.to_vec()).await?;
            return Ok(channel);
        }
    }
    if let Some(session) = network.peers.session(node) {
        let stream = connect(network, node).await?;
        match handshake::resume(&network.identity, stream, node, &session, first).await {
            // It has forgotten this node, or not heard the end of its handshake yet.
            Err(LinkError::Refused(said)) => debug!(%node, said, "shakes hands anew"),
            other => return other,
        }
    }
    let stream = connect(network, node).await?;
    let met = handshake::call_over(&network.identity, stream, Role::Payload, Some(node)).await?;
    let mut channel = met.channel;
    channel.send(first.to_vec()).await?;
    Ok(channel)
}

/// Connects to a member as its control connection is.
async fn connect(network: &Arc<Network>, node: NodeId) -> Result<TcpStream, LinkError> {
    match network.peers.route(node)? {
        (_, Some(helper)) => relay::through(network, helper, node).await,
        (address, None) => handshake::connect(address).await,
    }
}
