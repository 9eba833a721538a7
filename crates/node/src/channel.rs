//! A connection between two nodes after the handshake: a socket, and the encryption of frames in
//! both directions.
//!
//! Knows bytes and frames, not their meaning.

use std::io::{self, IoSlice};

use hoplite_proto::wire::{self, FrameKind, HEADER_BYTES, Header, MAGIC, VERSION, WireError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    error::LinkError,
    frame,
    sealing::{Open, Seal},
};

/// A connection between two nodes after the handshake.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) stream: TcpStream,
    pub(crate) seal: Seal,
    pub(crate) open: Open,
}

impl Channel {
    /// Sends a frame with a serialized body.
    pub(crate) async fn send_body<T: Serialize>(
        &mut self,
        kind: FrameKind,
        body: &T,
    ) -> Result<(), LinkError> {
        self.send(frame::frame(kind, 0, body)).await
    }

    /// Encrypts and sends a frame.
    pub(crate) async fn send(&mut self, mut frame: Vec<u8>) -> Result<(), LinkError> {
        self.seal.seal_whole(&mut frame);
        Ok(self.stream.write_all(&frame).await?)
    }

    /// Receives a frame of one kind.
    pub(crate) async fn receive_body<T: DeserializeOwned>(
        &mut self,
        kind: FrameKind,
    ) -> Result<T, LinkError> {
        read_frame(&mut self.stream, &mut self.open, kind).await
    }
}

/// Reads the next header; None at an orderly end of the stream.
pub(crate) async fn read_header<R>(reader: &mut R) -> Result<Option<Header>, LinkError>
where
    R: AsyncRead + Unpin,
{
    let mut bytes = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match reader.read(&mut bytes[filled..]).await? {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
        // Data of another protocol or version may be shorter than a header.
        if filled > MAGIC.len() && !(bytes.starts_with(&MAGIC) && bytes[4] == VERSION) {
            break;
        }
    }
    Ok(Some(Header::decode(&bytes)?))
}

/// Reads a header that must come.
pub(crate) async fn expect_header<R>(reader: &mut R) -> Result<Header, LinkError>
where
    R: AsyncRead + Unpin,
{
    let header = read_header(reader).await?;
    Ok(header.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?)
}

/// Reads and decrypts the body of a header.
pub(crate) async fn read_body<R>(
    reader: &mut R,
    open: &mut Open,
    header: &mut Header,
) -> Result<Vec<u8>, LinkError>
where
    R: AsyncRead + Unpin,
{
    let mut bytes = vec![0; header.length as usize];
    reader.read_exact(&mut bytes).await?;
    open.open(header, &mut bytes)?;
    Ok(bytes)
}

/// Reads a frame of one kind.
pub(crate) async fn read_frame<R, T>(
    reader: &mut R,
    open: &mut Open,
    kind: FrameKind,
) -> Result<T, LinkError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    let mut header = expect_header(reader).await?;
    if header.kind != kind {
        let said = format!("{} instead of {kind}", header.kind);
        return Err(WireError::Unexpected(said).into());
    }
    Ok(wire::decode(&read_body(reader, open, &mut header).await?)?)
}

/// Writes all pieces, with as few system calls as possible.
pub(crate) async fn write_pieces<W>(writer: &mut W, pieces: &mut [IoSlice<'_>]) -> io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    let mut rest = pieces;
    while !rest.is_empty() {
        let written = writer.write_vectored(rest).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hoplite_proto::message::Message;

    use super::*;

    fn plain() -> Open {
        Open::new(None)
    }

    #[tokio::test]
    async fn frame_round_trips_and_flipped_bit_is_rejected() {
        let kind = FrameKind::Control;
        for secret in [None, Some([1; 32])] {
            let mut bytes = frame::frame(kind, 7, &vec![1u8, 2, 3]);
            Seal::new(secret).seal_whole(&mut bytes);
            let mut open = Open::new(secret);
            let read: Vec<u8> = read_frame(&mut bytes.as_slice(), &mut open, kind).await.unwrap();
            assert_eq!(read, [1, 2, 3]);
            *bytes.last_mut().unwrap() ^= 1;
            let mut open = Open::new(secret);
            let error = read_frame::<_, Vec<u8>>(&mut bytes.as_slice(), &mut open, kind).await;
            let wrong = |error: &WireError| match secret {
                None => matches!(error, WireError::Checksum { .. }),
                Some(_) => *error == WireError::NotAuthentic(kind),
            };
            assert!(matches!(error, Err(LinkError::Wire(error)) if wrong(&error)));
        }
    }

    #[tokio::test]
    async fn stream_ending_inside_a_frame_is_an_error() {
        let bytes = frame::frame(FrameKind::Control, 0, &Message::Leave);
        assert!(read_header(&mut &bytes[..0]).await.unwrap().is_none());
        assert!(read_header(&mut &bytes[..9]).await.is_err());
        let cut = &bytes[..bytes.len() - 1];
        let read = read_frame::<_, Message>(&mut &cut[..], &mut plain(), FrameKind::Control).await;
        assert!(read.is_err());
    }
}
