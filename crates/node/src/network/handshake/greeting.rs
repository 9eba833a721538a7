//! What both sides say before frames are sealed. Does not know who may be let in.

use hoplite_proto::wire::{FrameKind, Greeting, Header, WireError};
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

/// Says something before frames are sealed.
pub(super) async fn say<W>(writer: &mut W, greeting: &Greeting) -> Result<(), LinkError>
where
    W: AsyncWrite + Unpin,
{
    writer.write_all(&frame::frame(FrameKind::Greeting, 0, greeting)).await?;
    Ok(writer.flush().await?)
}

/// Hears what is said before frames are sealed.
pub(super) async fn hear<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Greeting, LinkError> {
    channel::read_frame(reader, &mut Open::new(None), FrameKind::Greeting).await
}

/// What a node says before TLS.
pub(super) fn secure(key: &NodeKey) -> Vec<u8> {
    match key.start() {
        Some(start) => frame::frame(FrameKind::Secure, 0, start),
        None => frame::bare(FrameKind::Secure, 0, 0),
    }
}

/// The number of the other node's start; none if it shows no certificate.
pub(super) async fn read_start(
    stream: &mut TcpStream,
    mut header: Header,
) -> Result<Option<Start>, LinkError> {
    if header.length == 0 {
        return Ok(None);
    }
    let body = channel::read_body(stream, &mut Open::new(None), &mut header).await?;
    Ok(Some(hoplite_proto::wire::decode(&body)?))
}

/// Why a node does not go on with one that proves itself in another way.
pub(super) fn unlike(key: &NodeKey, other: Option<&Start>) -> Option<String> {
    match (key.start(), other) {
        (Some(_), None) => Some(
            "nodes of this cluster show certificates, and one has none: start it with --cert, --key and --ca".into(),
        ),
        (None, Some(_)) => Some(
            "nodes of this cluster show no certificates, and one does: give all nodes certificates, or all a token"
                .into(),
        ),
        _ => None,
    }
}

/// Hears that TLS follows, and the number of the other node's start; or why not.
pub(super) async fn hear_secure(stream: &mut TcpStream) -> Result<Option<Start>, LinkError> {
    let header = channel::read_header(stream).await?;
    let mut header =
        header.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?;
    match header.kind {
        FrameKind::Secure => read_start(stream, header).await,
        FrameKind::Greeting => {
            let body = channel::read_body(stream, &mut Open::new(None), &mut header).await?;
            Err(unexpected(hoplite_proto::wire::decode(&body)?))
        }
        other => Err(WireError::Unexpected(other.to_string()).into()),
    }
}

/// Tells a process why it is not let in.
pub(super) async fn refuse<W: AsyncWrite + Unpin>(writer: &mut W, said: String) -> LinkError {
    // It may be gone already; that it was refused is what matters here.
    let _ = say(writer, &Greeting::Refused(said.clone())).await;
    LinkError::Refused(said)
}

/// Why the handshake ends with what the other side said.
pub(super) fn unexpected(greeting: Greeting) -> LinkError {
    let what = match greeting {
        Greeting::Refused(said) => return LinkError::Refused(said),
        Greeting::Hello(_) => "a caller's greeting",
        Greeting::Welcome(_) => "a welcome",
        Greeting::Resume(_) => "a pass",
        Greeting::Resumed(_) => "the answer to a pass",
        Greeting::Admitted => "an admission",
        Greeting::PassOn(_) => "a request to pass on",
        Greeting::Ping => "a ping",
        Greeting::Pong => "a pong",
    };
    WireError::Unexpected(what.into()).into()
}
