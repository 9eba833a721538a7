//! Payload over TCP: frames of [`super::blocks`] on encrypted connections, which later transfers
//! use again.

use std::sync::Arc;

use hoplite_proto::{
    id::NodeId,
    wire::{self, Fetch, FrameKind, Header, WireError},
};
use hoplite_shm::Ready;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
};

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
    network::{payload, shared::Network},
    sealing::{Open, Seal},
};

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
        let channel = payload::open(&network, node, &request).await?;
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

    fn keep(self) {
        self.network.peers.keep_idle(self.node, self.channel);
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
}

/// Splits a connection that a receiver opened.
pub(crate) fn split(Channel { stream, seal, open }: Channel) -> (TcpRequests, TcpOutgoing) {
    let (reader, writer) = stream.into_split();
    (TcpRequests { stream: reader, open }, TcpOutgoing { stream: writer, seal })
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
    async fn send(
        &mut self,
        streams: &Streams,
        frames: &[(u64, Ready<'_>)],
        headers: Headers<'_>,
    ) -> Result<(), LinkError> {
        let Self { stream, seal } = self;
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
