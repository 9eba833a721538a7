//! Encryption of the frames of one connection: each side encrypts the frames that it sends and
//! decrypts those that it receives.
//!
//! AES-128-GCM as in TLS 1.3 (RFC 8446 5.2 and 5.3): a key for each connection and direction, the
//! frame number as nonce, and the start of the header as associated data. The keys come from the
//! exporter of a TLS connection, like those of DTLS-SRTP (RFC 5764). The checksum would reveal
//! information about the bytes, so it is masked as QUIC masks packet numbers (RFC 9001 5.4). Knows
//! frames, not sockets.

use hoplite_proto::wire::{HEADER_BYTES, Header, SIGNED_BYTES, WireError};
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey, quic},
    hmac,
};

use crate::frame;

/// The secret of one direction of a connection.
pub(crate) type Secret = [u8; 32];

/// Bytes encrypted with one key: a third of what RFC 8446 5.5 allows, 2^24.5 records of 2^14 bytes.
/// Then the next key is derived; both sides count, so no message is needed.
const KEY_BYTES_MAX: u64 = 1 << 37;

/// Frames encrypted with one key: 2^24.5 are allowed, however short they are.
const KEY_FRAMES_MAX: u64 = 1 << 24;

/// Encrypts the frames that a node sends over one connection.
#[derive(Debug)]
pub(crate) struct Seal(Option<Direction>);

/// Decrypts the frames that a node receives over one connection.
#[derive(Debug)]
pub(crate) struct Open(Option<Direction>);

/// One direction of a connection.
struct Direction {
    secret: Secret,
    key: LessSafeKey,
    mask: quic::HeaderProtectionKey,
    /// Frames and bytes encrypted or decrypted with this key.
    frames: u64,
    bytes: u64,
}

impl std::fmt::Debug for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Direction")
    }
}

impl Seal {
    /// Derives keys from `secret`; None leaves frames unencrypted.
    pub(crate) fn new(secret: Option<Secret>) -> Self {
        Self(secret.map(Direction::new))
    }

    /// Whether frames are not encrypted.
    pub(crate) const fn is_disabled(&self) -> bool {
        self.0.is_none()
    }

    /// Encrypts a frame in place. Frames must be sent in the order of these calls.
    pub(crate) fn seal(&mut self, header: &mut Header, body: &mut [u8]) {
        let Some(direction) = &mut self.0 else { return };
        let (nonce, mask) = direction.step(body.len());
        header.checksum ^= mask;
        let signed = header.encode();
        let sealed = direction.key.seal_in_place_separate_tag(
            nonce,
            Aad::from(&signed[..SIGNED_BYTES]),
            body,
        );
        let tag = sealed.unwrap_or_else(|_| unreachable!("a frame is shorter than 64 GiB"));
        header.tag.copy_from_slice(tag.as_ref());
    }

    /// Encrypts a frame that is contiguous with its header.
    pub(crate) fn seal_whole(&mut self, frame: &mut [u8]) {
        let Some((head, body)) = frame.split_first_chunk_mut::<HEADER_BYTES>() else { return };
        if let Ok(mut header) = Header::decode(head) {
            self.seal(&mut header, body);
            *head = header.encode();
        }
    }
}

impl Open {
    /// Derives keys from `secret`; None expects unencrypted frames.
    pub(crate) fn new(secret: Option<Secret>) -> Self {
        Self(secret.map(Direction::new))
    }

    /// As [`Self::decrypt`], and verifies the checksum.
    ///
    /// # Errors
    /// [`WireError::NotAuthentic`] or [`WireError::Checksum`]; the bytes are then meaningless.
    pub(crate) fn open(&mut self, header: &mut Header, body: &mut [u8]) -> Result<(), WireError> {
        self.decrypt(header, body)?;
        frame::check(header, body)
    }

    /// Decrypts a frame in place, and verifies its authentication tag. Frames must be passed in the
    /// order received.
    ///
    /// # Errors
    /// [`WireError::NotAuthentic`]; the bytes are then meaningless.
    pub(crate) fn decrypt(
        &mut self,
        header: &mut Header,
        body: &mut [u8],
    ) -> Result<(), WireError> {
        if let Some(direction) = &mut self.0 {
            let (nonce, mask) = direction.step(body.len());
            let signed = header.encode();
            let (aad, tag) = (Aad::from(&signed[..SIGNED_BYTES]), Tag::from(header.tag));
            direction
                .key
                .open_in_place_separate_tag(nonce, aad, tag, body, 0..)
                .map_err(|_| WireError::NotAuthentic(header.kind))?;
            header.checksum ^= mask;
        }
        Ok(())
    }
}

impl Direction {
    fn new(secret: Secret) -> Self {
        let (key, mask) = (derive(&secret, &[b"key"]), derive(&secret, &[b"mask"]));
        let wrong = "AES-128 has keys of 16 bytes";
        let key = UnboundKey::new(&AES_128_GCM, &key[..16]);
        let mask = quic::HeaderProtectionKey::new(&quic::AES_128, &mask[..16]);
        Self {
            secret,
            key: LessSafeKey::new(key.unwrap_or_else(|_| unreachable!("{wrong}"))),
            mask: mask.unwrap_or_else(|_| unreachable!("{wrong}")),
            frames: 0,
            bytes: 0,
        }
    }

    /// Computes the nonce of the next frame, and the mask of its checksum.
    fn step(&mut self, bytes: usize) -> (Nonce, u32) {
        if self.frames >= KEY_FRAMES_MAX || self.bytes >= KEY_BYTES_MAX {
            *self = Self::new(derive(&self.secret, &[b"next"]));
        }
        let mut number = [0; 16];
        number[..8].copy_from_slice(&self.frames.to_le_bytes());
        self.frames += 1;
        self.bytes += bytes as u64;
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&number[..12]);
        // The sample has the length that the function requires, so this does not fail.
        let mask = self.mask.new_mask(&number).unwrap_or_default();
        (
            Nonce::assume_unique_for_key(nonce),
            u32::from_le_bytes([mask[0], mask[1], mask[2], mask[3]]),
        )
    }
}

/// Derives a secret for one purpose: HMAC-SHA256, like the expansion of HKDF (RFC 5869) of one
/// block.
pub(crate) fn derive(secret: &Secret, purpose: &[&[u8]]) -> Secret {
    hmac(secret, &[&b"hoplite "[..], &purpose.concat()].concat())
}

/// HMAC-SHA256 (RFC 2104) of a message.
pub(crate) fn hmac(key: &[u8], message: &[u8]) -> Secret {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut bytes = Secret::default();
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

/// Whether a tag is the HMAC-SHA256 of a message, compared in constant time.
pub(crate) fn is_hmac(key: &[u8], message: &[u8], tag: &Secret) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), message, tag).is_ok()
}

#[cfg(test)]
mod tests {
    use hoplite_proto::wire::FrameKind;

    use super::*;

    const SECRET: Secret = [7; 32];

    fn sealed(seal: &mut Seal, body: &[u8]) -> (Header, Vec<u8>) {
        let mut header = Header::new(FrameKind::Blocks, body.len() as u32, frame::crc(body));
        let mut body = body.to_vec();
        seal.seal(&mut header, &mut body);
        (header, body)
    }

    #[test]
    fn encrypted_frame_hides_bytes_and_checksum() {
        let (mut seal, mut open) = (Seal::new(Some(SECRET)), Open::new(Some(SECRET)));
        let plain = [5; 1000];
        let mut wire = Vec::new();
        for _ in 0..3 {
            let (mut header, mut body) = sealed(&mut seal, &plain);
            assert!(body != plain && header.checksum != frame::crc(&plain));
            assert!(!wire.contains(&body), "the same bytes look different each time");
            wire.push(body.clone());
            assert_eq!(open.open(&mut header, &mut body), Ok(()));
            assert_eq!((header.checksum, body.as_slice()), (frame::crc(&plain), plain.as_slice()));
        }
    }

    #[test]
    fn changed_bit_order_or_key_is_rejected() {
        let change = |change: &dyn Fn(&mut Header, &mut Vec<u8>)| {
            let (mut seal, mut open) = (Seal::new(Some(SECRET)), Open::new(Some(SECRET)));
            let (mut header, mut body) = sealed(&mut seal, &[1, 2, 3]);
            change(&mut header, &mut body);
            open.open(&mut header, &mut body)
        };
        let wrong = Err(WireError::NotAuthentic(FrameKind::Blocks));
        assert_eq!(change(&|_, _| {}), Ok(()));
        assert_eq!(change(&|_, body| body[1] ^= 1), wrong);
        assert_eq!(change(&|header, _| header.offset += 1), wrong);
        assert_eq!(change(&|header, _| header.transfer += 1), wrong);
        assert_eq!(change(&|header, _| header.checksum ^= 1), wrong);
        assert_eq!(change(&|header, _| header.tag[0] ^= 1), wrong);
        let (mut seal, mut open) = (Seal::new(Some(SECRET)), Open::new(Some(SECRET)));
        let (_first, (mut header, mut body)) = (sealed(&mut seal, &[1]), sealed(&mut seal, &[2]));
        assert_eq!(open.open(&mut header, &mut body), wrong);
        let (mut header, mut body) = sealed(&mut Seal::new(Some([8; 32])), &[1]);
        assert_eq!(Open::new(Some(SECRET)).open(&mut header, &mut body), wrong);
    }

    #[test]
    fn both_sides_change_keys_at_the_same_frame() {
        for (frames, bytes) in [(KEY_FRAMES_MAX - 1, 0), (0, KEY_BYTES_MAX - 1)] {
            let (mut seal, mut open) = (Seal::new(Some(SECRET)), Open::new(Some(SECRET)));
            for Direction { frames: at, bytes: had, .. } in
                [&mut seal.0, &mut open.0].into_iter().flatten()
            {
                (*at, *had) = (frames, bytes);
            }
            for _ in 0..3 {
                let (mut header, mut body) = sealed(&mut seal, &[1, 2, 3]);
                assert_eq!(open.open(&mut header, &mut body), Ok(()));
            }
            assert_eq!(seal.0.unwrap().frames, 2, "of the second key");
        }
    }

    #[test]
    fn unencrypted_connection_verifies_only_checksums() {
        let (mut seal, mut open) = (Seal::new(None), Open::new(None));
        let (mut header, mut body) = sealed(&mut seal, &[1, 2, 3]);
        assert_eq!(body, [1, 2, 3]);
        assert_eq!(open.open(&mut header, &mut body), Ok(()));
        body[0] ^= 1;
        assert!(matches!(open.open(&mut header, &mut body), Err(WireError::Checksum { .. })));
    }
}
