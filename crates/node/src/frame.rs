//! Encodes frames: headers, bodies and their checksums. Knows neither sockets nor encryption.

use crc_fast::{CrcAlgorithm, checksum};
use hoplite_proto::wire::{self, FrameKind, HEADER_BYTES, Header, WireError};
use serde::Serialize;

/// CRC-32C of a body.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    // The 32-bit algorithms return their value in the low half.
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Encodes a frame with a serialized body, not encrypted.
pub(crate) fn frame<T: Serialize>(kind: FrameKind, transfer: u64, body: &T) -> Vec<u8> {
    let body = wire::encode(body);
    let header = Header { transfer, ..Header::new(kind, body.len() as u32, crc(&body)) };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(&body);
    bytes
}

/// Encodes a frame without a body, not encrypted.
pub(crate) fn bare(kind: FrameKind, transfer: u64, offset: u64) -> Vec<u8> {
    Header { transfer, offset, ..Header::new(kind, 0, crc(&[])) }.encode().to_vec()
}

/// Verifies that `body` matches the checksum of the header.
pub(crate) fn check(header: &Header, body: &[u8]) -> Result<(), WireError> {
    let ours = crc(body);
    if ours == header.checksum {
        Ok(())
    } else {
        Err(WireError::Checksum { theirs: header.checksum, ours })
    }
}

/// Verifies a decrypted frame of payload: its transfer, its place and its bytes.
pub(crate) fn verify(
    header: &Header,
    transfer: u64,
    place: u64,
    bytes: &[u8],
) -> Result<(), WireError> {
    check(header, bytes)?;
    if (header.transfer, header.offset) == (transfer, place) {
        return Ok(());
    }
    let Header { transfer: theirs, offset, .. } = *header;
    let said = format!("byte {offset} of transfer {theirs} instead of byte {place} of {transfer}");
    Err(WireError::Unexpected(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_32c() {
        // The check value of CRC-32C (iSCSI, RFC 3720 appendix B.4).
        assert_eq!(crc(b"123456789"), 0xe306_9283);
    }
}
