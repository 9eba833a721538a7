//! Greetings: messages of a handshake, before frames are encrypted. Does not know which nodes are
//! admitted.

use hoplite_proto::wire::{self, FrameKind, Greeting, Header, WireError};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    channel,
    error::LinkError,
    frame,
    network::tls::{NodeKey, Start},
    sealing::Open,
};

/// Sends a greeting.
pub(super) async fn send_greeting<W>(writer: &mut W, greeting: &Greeting) -> Result<(), LinkError>
where
    W: AsyncWrite + Unpin,
{
    writer.write_all(&frame::frame(FrameKind::Greeting, 0, greeting)).await?;
    Ok(writer.flush().await?)
}

/// Reads a greeting.
pub(super) async fn receive_greeting<R: AsyncRead + Unpin>(
    reader: &mut R,
) -> Result<Greeting, LinkError> {
    channel::read_frame(reader, &mut Open::new(None), FrameKind::Greeting).await
}

/// The frame that a node sends before TLS.
pub(super) fn secure(key: &NodeKey) -> Vec<u8> {
    match key.start() {
        Some(start) => frame::frame(FrameKind::Secure, 0, start),
        None => frame::bare(FrameKind::Secure, 0, 0),
    }
}

/// Reads the peer's start number; None if it uses no certificate.
pub(super) async fn read_start(
    stream: &mut TcpStream,
    header: Header,
) -> Result<Option<Start>, LinkError> {
    if header.length == 0 {
        return Ok(None);
    }
    read_plain(stream, header).await.map(Some)
}

/// Reads the body of a frame that is not encrypted.
pub(super) async fn read_plain<T: DeserializeOwned>(
    stream: &mut TcpStream,
    mut header: Header,
) -> Result<T, LinkError> {
    let body = channel::read_body(stream, &mut Open::new(None), &mut header).await?;
    Ok(wire::decode(&body)?)
}

/// Why two nodes can't authenticate each other: one uses certificates and the other does not.
pub(super) fn unlike(key: &NodeKey, other: Option<&Start>) -> Option<String> {
    match (key.start(), other) {
        (Some(_), None) => Some(
            "nodes of this cluster use certificates, but one of these two nodes has none: start \
             that node with --certificate, --key and --ca"
                .into(),
        ),
        (None, Some(_)) => Some(
            "nodes of this cluster use no certificates, but one of these two nodes does: configure \
             certificates, or one token, on all nodes"
                .into(),
        ),
        _ => None,
    }
}

/// Reads the frame before TLS, with the peer's start number, or the refusal.
pub(super) async fn receive_secure(stream: &mut TcpStream) -> Result<Option<Start>, LinkError> {
    let header = channel::expect_header(stream).await?;
    match header.kind {
        FrameKind::Secure => read_start(stream, header).await,
        FrameKind::Greeting => Err(unexpected(read_plain(stream, header).await?)),
        other => Err(WireError::Unexpected(other.to_string()).into()),
    }
}

/// Sends the reason of a refusal.
pub(super) async fn refuse<W: AsyncWrite + Unpin>(writer: &mut W, said: String) -> LinkError {
    // The peer may be gone already; only the refusal matters here.
    let _ = send_greeting(writer, &Greeting::Refused(said.clone())).await;
    LinkError::Refused(said)
}

/// Sends an error as the reason of a refusal.
pub(super) async fn refuse_with<W: AsyncWrite + Unpin>(
    writer: &mut W,
    error: LinkError,
) -> LinkError {
    refuse(writer, error.to_string()).await;
    error
}

/// The error for an unexpected greeting.
pub(super) fn unexpected(greeting: Greeting) -> LinkError {
    let what = match greeting {
        Greeting::Refused(said) => return LinkError::Refused(said),
        Greeting::Hello(_) => "a hello",
        Greeting::Welcome(_) => "a welcome",
        Greeting::OtherCluster(_) => "a cluster id",
        Greeting::Resume(_) => "a session proof",
        Greeting::Resumed(_) => "a resumption",
        Greeting::Admitted => "a relay confirmation",
        Greeting::Relay(_) => "a relay request",
        Greeting::Ping => "a ping",
        Greeting::Pong => "a pong",
    };
    WireError::Unexpected(what.into()).into()
}
