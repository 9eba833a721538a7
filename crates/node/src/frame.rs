//! Frames on a socket: headers, bodies and their checksums. Knows bytes, not what they mean.

use std::io::{self, IoSlice};

use crc_fast::{CrcAlgorithm, checksum};
use hoplite_proto::wire::{self, FrameKind, HEADER_BYTES, Header, WireError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::LinkError;

/// CRC-32C of a body.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms return their value in the low half.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A frame with a body of control data, ready to be written.
pub(crate) fn frame<T: Serialize>(kind: FrameKind, transfer: u64, body: &T) -> Vec<u8> {
    let body = wire::encode(body);
    let length = body.len() as u32;
    let header = Header { kind, length, checksum: crc(&body), transfer, offset: 0 };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(&body);
    bytes
}

/// A frame that is only a header.
pub(crate) fn bare(kind: FrameKind, transfer: u64, offset: u64) -> [u8; HEADER_BYTES] {
    Header { kind, length: 0, checksum: crc(&[]), transfer, offset }.encode()
}

/// Reads the next header; none at an orderly end of the stream.
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
    }
    Ok(Some(Header::decode(&bytes)?))
}

/// Reads the body that belongs to a header, and checks it.
pub(crate) async fn read_body<R, T>(reader: &mut R, header: &Header) -> Result<T, LinkError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    let mut bytes = vec![0; header.length as usize];
    reader.read_exact(&mut bytes).await?;
    check(header, &bytes)?;
    Ok(wire::decode(&bytes)?)
}

/// Whether `body` is what the header says.
pub(crate) fn check(header: &Header, body: &[u8]) -> Result<(), WireError> {
    let ours = crc(body);
    if ours == header.checksum {
        Ok(())
    } else {
        Err(WireError::Checksum { theirs: header.checksum, ours })
    }
}

/// Reads a frame of one kind.
pub(crate) async fn read_frame<R, T>(reader: &mut R, kind: FrameKind) -> Result<T, LinkError>
where
    R: AsyncRead + Unpin,
    T: DeserializeOwned,
{
    let header = read_header(reader).await?;
    let header = header.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    if header.kind != kind {
        let said = format!("{} instead of {kind}", header.kind);
        return Err(WireError::Unexpected(said).into());
    }
    read_body(reader, &header).await
}

/// Writes all of several pieces, with as few system calls as the socket lets.
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

    #[test]
    fn the_checksum_is_crc_32c() {
        // The check value of CRC-32C (iSCSI, RFC 3720 appendix B.4).
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }

    #[tokio::test]
    async fn a_frame_reads_back_and_a_flipped_bit_does_not() {
        let mut bytes = frame(FrameKind::Control, 7, &vec![1u8, 2, 3]);
        let read: Vec<u8> = read_frame(&mut bytes.as_slice(), FrameKind::Control).await.unwrap();
        assert_eq!(read, [1, 2, 3]);
        *bytes.last_mut().unwrap() ^= 1;
        let error = read_frame::<_, Vec<u8>>(&mut bytes.as_slice(), FrameKind::Control).await;
        assert!(matches!(error, Err(LinkError::Wire(WireError::Checksum { .. }))));
    }

    #[tokio::test]
    async fn a_stream_that_ends_inside_a_frame_is_an_error() {
        let bytes = frame(FrameKind::Control, 0, &Message::Leave);
        assert!(read_header(&mut &bytes[..0]).await.unwrap().is_none());
        assert!(read_header(&mut &bytes[..9]).await.is_err());
        let cut = &bytes[..bytes.len() - 1];
        assert!(read_frame::<_, Message>(&mut &cut[..], FrameKind::Control).await.is_err());
    }
}
