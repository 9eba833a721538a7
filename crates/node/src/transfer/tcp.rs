//! Payload over TCP: frames of [`super::blocks`] on encrypted connections, which later transfers
//! use again.

use std::{io, sync::Arc, time::Duration};

use hoplite_proto::{
    id::NodeId,
    limits::IDLE_REPLY_TIMEOUT_NS,
    wire::{self, Fetch, FrameKind, Header, Role, WireError},
};
use hoplite_shm::Ready;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::sleep,
};
use tracing::debug;

use super::{
    blocks::{self, Arrivals},
    congestion,
    path::{Arrived, End, Headers, Incoming, Outgoing, PayloadPath, Request, Requests},
    streams::Streams,
};
use crate::{
    channel::{self, Channel},
    error::LinkError,
    frame,
    network::{handshake, relay, shared::Network},
    repeats::log_once,
    sealing::{Open, Seal},
};

/// Time for the first bytes of a reply on a connection that was idle.
const IDLE_REPLY_TIMEOUT: Duration = Duration::from_nanos(IDLE_REPLY_TIMEOUT_NS);

/// Payload connections to the other members.
pub(crate) struct Tcp(pub(crate) Arc<Network>);

/// A connection on which this node receives a transfer.
pub(crate) struct TcpIncoming {
    network: Arc<Network>,
    node: NodeId,
    transfer: u64,
    channel: Channel,
    arrivals: Arrivals,
}

impl PayloadPath for Tcp {
    type Incoming = TcpIncoming;

    async fn fetch(
        &self,
        node: NodeId,
        transfer: u64,
        fetch: &Fetch,
    ) -> Result<TcpIncoming, LinkError> {
        let request = frame::frame(FrameKind::Fetch, transfer, fetch);
        let (network, arrivals) = (self.0.clone(), Arrivals::default());
        let channel = open(&network, node, &request).await?;
        Ok(TcpIncoming { network, node, transfer, channel, arrivals })
    }
}

impl Incoming for TcpIncoming {
    async fn next(&mut self, places: &mut [&mut [u8]]) -> Result<Arrived, LinkError> {
        let Channel { stream, open, .. } = &mut self.channel;
        let (mut header, begun) = match self.arrivals.next(stream, places).await? {
            blocks::Arrival::Frames(headers) => return Ok(Arrived::Frames(headers)),
            blocks::Arrival::KeepAlive(mut header) => {
                open.open(&mut header, &mut [])?;
                return Ok(Arrived::KeepAlive);
            }
            blocks::Arrival::Other(header, begun) => (header, begun),
        };
        let begun = places.first().map_or(&[][..], |place| &place[..begun]);
        let body = channel::read_body(&mut begun.chain(stream), open, &mut header).await?;
        if header.transfer != self.transfer {
            let (theirs, ours) = (header.transfer, self.transfer);
            let said = format!("a frame of transfer {theirs} in transfer {ours}");
            return Err(WireError::Unexpected(said).into());
        }
        Ok(match header.kind {
            FrameKind::End => Arrived::Ended(End::Complete),
            FrameKind::Unavailable => Arrived::Ended(End::Unavailable(wire::decode(&body)?)),
            other => return Err(WireError::Unexpected(other.to_string()).into()),
        })
    }

    fn decrypt(&mut self, header: &mut Header, bytes: &mut [u8]) -> Result<(), WireError> {
        self.channel.open.decrypt(header, bytes)
    }

    async fn grant(&mut self, bytes: u64) -> Result<(), LinkError> {
        self.channel.send(frame::bare(FrameKind::Credit, self.transfer, bytes)).await
    }

    async fn request(&mut self, transfer: u64, fetch: &Fetch) -> Result<(), LinkError> {
        self.channel.send(frame::frame(FrameKind::Fetch, transfer, fetch)).await
    }

    fn follow(&mut self, transfer: u64) {
        self.transfer = transfer;
    }

    fn keep(self) {
        self.network.peers.keep_idle(self.node, self.channel);
    }
}

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
async fn open(network: &Arc<Network>, node: NodeId, first: &[u8]) -> Result<Channel, LinkError> {
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

/// The receiving half of a connection that a receiver opened.
pub(crate) struct TcpRequests {
    stream: OwnedReadHalf,
    open: Open,
}

/// The sending half of a connection that a receiver opened.
pub(crate) struct TcpOutgoing {
    stream: OwnedWriteHalf,
    seal: Seal,
    is_limited: bool,
}

/// Splits a connection that a receiver opened.
pub(crate) fn split(Channel { stream, seal, open }: Channel) -> (TcpRequests, TcpOutgoing) {
    let (reader, writer) = stream.into_split();
    (TcpRequests { stream: reader, open }, TcpOutgoing { stream: writer, seal, is_limited: false })
}

impl Requests for TcpRequests {
    async fn next(&mut self) -> Result<Option<Request>, LinkError> {
        let Some(mut header) = channel::read_header(&mut self.stream).await? else {
            return Ok(None);
        };
        let body = channel::read_body(&mut self.stream, &mut self.open, &mut header).await?;
        match header.kind {
            FrameKind::Fetch => Ok(Some(Request::Fetch(header.transfer, wire::decode(&body)?))),
            FrameKind::Credit => Ok(Some(Request::Credit(header.transfer, header.offset))),
            other => Err(WireError::Unexpected(other.to_string()).into()),
        }
    }
}

impl TcpOutgoing {
    /// Encrypts and sends a frame.
    async fn say(&mut self, mut frame: Vec<u8>) -> Result<(), LinkError> {
        self.seal.seal_whole(&mut frame);
        Ok(self.stream.write_all(&frame).await?)
    }
}

impl Outgoing for TcpOutgoing {
    fn limit_unsent(&mut self, is_limited: bool) {
        if self.is_limited != is_limited {
            self.is_limited = is_limited;
            congestion::limit_unsent(self.stream.as_ref(), is_limited);
        }
    }

    async fn send(
        &mut self,
        streams: &Streams,
        frames: &[(u64, Ready<'_>)],
        headers: Headers<'_>,
    ) -> Result<(), LinkError> {
        let Self { stream, seal, .. } = self;
        Ok(blocks::write(stream, seal, streams, frames, headers).await?)
    }

    async fn keep_alive(&mut self, transfer: u64) -> Result<(), LinkError> {
        self.say(frame::bare(FrameKind::KeepAlive, transfer, 0)).await
    }

    async fn end(&mut self, transfer: u64, end: &End) -> Result<(), LinkError> {
        self.say(match end {
            End::Complete => frame::bare(FrameKind::End, transfer, 0),
            End::Unavailable(why) => frame::frame(FrameKind::Unavailable, transfer, why),
        })
        .await?;
        congestion::suit_path(self.stream.as_ref());
        Ok(())
    }
}
