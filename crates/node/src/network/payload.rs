//! Opens payload connections to other members: reuses an idle one, or connects.

use std::{io, sync::Arc};

use hoplite_proto::{id::NodeId, wire::Role};
use tokio::net::TcpStream;
use tracing::debug;

use super::{handshake, relay, shared::Network};
use crate::{channel::Channel, error::LinkError};

/// Sends a request to a node on an idle or new payload connection. `first` is the request, an unencrypted frame.
///
/// # Errors
/// The connection failed.
pub(crate) async fn open(
    network: &Arc<Network>,
    node: NodeId,
    first: &[u8],
) -> Result<Channel, LinkError> {
    while let Some(mut channel) = network.peers.take_idle(node) {
        // A connection that the peer closed meanwhile is readable.
        if matches!(channel.stream.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
            channel.send(first.to_vec()).await?;
            return Ok(channel);
        }
    }
    if let Some(session) = network.peers.session(node) {
        let stream = connect(network, node).await?;
        match handshake::resume(&network.identity, stream, node, &session, first).await {
            // The peer dropped this node's session, or has not finished their handshake yet.
            Err(LinkError::Refused(said)) => debug!(%node, said, "repeating the handshake"),
            other => return other,
        }
    }
    let stream = connect(network, node).await?;
    let met =
        handshake::initiate_over(&network.identity, stream, Role::Payload, Some(node)).await?;
    let mut channel = met.channel;
    channel.send(first.to_vec()).await?;
    Ok(channel)
}

/// Connects to a member, directly or through the same relay as its control connection.
async fn connect(network: &Arc<Network>, node: NodeId) -> Result<TcpStream, LinkError> {
    match network.peers.route(node)? {
        (_, Some(helper)) => relay::through(network, helper, node).await,
        (address, None) => handshake::connect(address).await,
    }
}
