//! Opens payload connections to other members: reuses an idle one, or connects.

use std::{io, sync::Arc, time::Duration};

use hoplite_proto::{id::NodeId, limits::IDLE_REPLY_TIMEOUT_NS, wire::Role};
use tokio::{net::TcpStream, time::sleep};
use tracing::debug;

use super::{handshake, relay, shared::Network};
use crate::{channel::Channel, error::LinkError, repeats::log_once};

/// Time for the first bytes of a reply on a connection that was idle.
const IDLE_REPLY_TIMEOUT: Duration = Duration::from_nanos(IDLE_REPLY_TIMEOUT_NS);

/// Sends a request to a node on an idle or new payload connection. `first` is the request, an
/// unencrypted frame.
///
/// A firewall may have forgotten an idle connection, and still acknowledge what is sent on it. If
/// the reply on it does not begin in time, the request is sent once more on a new connection, and
/// the first reply is used. If no new one can be opened, the node itself is unresponsive or
/// unreachable, and the caller waits on the idle one.
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
        let read = channel.stream.try_read(&mut [0; 1]);
        if !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            continue;
        }
        channel.send(first.to_vec()).await?;
        let opening = async {
            sleep(IDLE_REPLY_TIMEOUT).await;
            open_new(network, node, first).await
        };
        let opened = tokio::select! {
            biased;
            readable = channel.stream.readable() => return Ok(readable.map(|()| channel)?),
            opened = opening => opened,
        };
        let Ok(opened) = opened else { return Ok(channel) };
        network.counters.connections_silent.add(1);
        log_once!(
            info, node, %node,
            "no reply on a payload connection that was idle: using a new one"
        );
        network.peers.close_idle(node);
        return Ok(opened);
    }
    open_new(network, node, first).await
}

/// Sends a request to a node on a new payload connection.
async fn open_new(
    network: &Arc<Network>,
    node: NodeId,
    first: &[u8],
) -> Result<Channel, LinkError> {
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
