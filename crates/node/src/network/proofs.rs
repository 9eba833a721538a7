//! Proofs of a handshake: that a node has the cluster's token, and that two nodes share a session.
//!
//! A proof is an HMAC-SHA256 (RFC 2104) over a secret of one TLS connection and everything that one
//! side claims. It is not valid on another connection, from another node, for another role or in
//! the other direction. Knows bytes, not connections.

use std::{collections::HashSet, io, sync::Arc};

use hoplite_proto::{
    id::NodeId,
    wire::{MacBytes, Role},
};

use super::certificates::PeerCertificate;
use crate::sealing::{Open, Seal, Secret, derive, hmac, is_hmac};

/// A secret that all nodes of a cluster share.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The text, from which capabilities are derived.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The end of a connection that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Initiator,
    Acceptor,
}

impl Side {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Initiator => b"caller",
            Self::Acceptor => b"called",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// The claims that a proof of the token covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProofContext<'a> {
    /// Channel binding of the TLS connection.
    pub(super) binding: &'a Secret,
    pub(super) initiator: NodeId,
    pub(super) acceptor: NodeId,
    pub(super) role: Role,
    /// Name of the initiator's cluster.
    pub(super) cluster: &'a str,
}

impl ProofContext<'_> {
    fn message(&self, side: Side) -> Vec<u8> {
        let parts: [&[u8]; 7] = [
            b"hoplite token ",
            side.name(),
            self.binding,
            &self.initiator.0.to_le_bytes(),
            &self.acceptor.0.to_le_bytes(),
            &[self.role as u8],
            self.cluster.as_bytes(),
        ];
        parts.concat()
    }

    /// Proves that this node, on its `side`, has a token.
    pub(super) fn prove(&self, token: &Token, side: Side) -> MacBytes {
        hmac(token.0.as_bytes(), &self.message(side))
    }

    /// Whether the peer, on its `side`, has proved that it has a token.
    pub(super) fn is_proof(&self, token: &Token, side: Side, proof: &MacBytes) -> bool {
        is_hmac(token.0.as_bytes(), &self.message(side), proof)
    }
}

/// A secret shared by two nodes after a handshake, and the certificate that the peer presented.
#[derive(Clone)]
pub(crate) struct SharedSecret {
    secret: Secret,
    pub(crate) shown: Option<Arc<PeerCertificate>>,
}

impl SharedSecret {
    /// Creates a session from the TLS connection of a handshake.
    pub(super) const fn new(secret: Secret, shown: Option<Arc<PeerCertificate>>) -> Self {
        Self { secret, shown }
    }

    /// The frame keys of one connection, for a node on its `side`: of the handshake's own
    /// connection, or of a later one with its nonce. `no_encryption` disables encryption.
    pub(super) fn keys(
        &self,
        side: Side,
        nonce: Option<&[u8; 16]>,
        no_encryption: bool,
    ) -> (Seal, Open) {
        let nonce: &[u8] = nonce.map_or(&[], |nonce| nonce);
        let key = |side: Side| {
            (!no_encryption).then(|| derive(&self.secret, &[side.name(), b" ", nonce]))
        };
        (Seal::new(key(side)), Open::new(key(side.other())))
    }

    /// Proves that this node, on its `side`, has the session secret.
    pub(super) fn prove(&self, side: Side, nonce: &[u8; 16]) -> MacBytes {
        hmac(&self.secret, &pass(side, nonce))
    }

    pub(super) fn is_proof(&self, side: Side, nonce: &[u8; 16], proof: &MacBytes) -> bool {
        is_hmac(&self.secret, &pass(side, nonce), proof)
    }
}

/// What the proof of a session covers.
fn pass(side: Side, nonce: &[u8; 16]) -> Vec<u8> {
    let parts: [&[u8]; 3] = [b"hoplite pass ", side.name(), nonce];
    parts.concat()
}

impl std::fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// The acceptor's state of a session.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(super) session: SharedSecret,
    /// Accepted nonces.
    seen: HashSet<[u8; 16]>,
}

/// Payload connections of one session; a node that needs more performs a new handshake. Accepted
/// nonces are stored to prevent replay: at most 1 MiB for each member. At a hundred new connections
/// a second, far more than reuse leaves, a session lasts ten minutes.
const PASSES_MAX: usize = 65_536;

impl Admitted {
    pub(crate) fn new(session: SharedSecret) -> Self {
        Self { session, seen: HashSet::new() }
    }

    /// Verifies a session proof, once per nonce; returns the session if it is valid.
    pub(crate) fn admit(&mut self, nonce: &[u8; 16], pass: &MacBytes) -> Option<SharedSecret> {
        let is_good = self.session.is_proof(Side::Initiator, nonce, pass);
        let is_new = is_good && self.seen.len() < PASSES_MAX && self.seen.insert(*nonce);
        is_new.then(|| self.session.clone())
    }
}

/// Generates a random nonce.
pub(super) fn nonce() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if filled == bytes.len() { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_proof_is_valid_once_and_only_in_its_session() {
        let (session, other) = (SharedSecret::new([1; 32], None), SharedSecret::new([2; 32], None));
        let mut admitted = Admitted::new(session.clone());
        let nonce = [7; 16];
        let pass = session.prove(Side::Initiator, &nonce);
        assert!(admitted.admit(&nonce, &pass).is_some());
        assert!(admitted.admit(&nonce, &pass).is_none(), "a replay");
        assert!(admitted.admit(&[8; 16], &pass).is_none(), "for another nonce");
        assert!(admitted.admit(&[8; 16], &other.prove(Side::Initiator, &[8; 16])).is_none());
        assert!(admitted.admit(&[8; 16], &session.prove(Side::Acceptor, &[8; 16])).is_none());
        assert!(admitted.admit(&[8; 16], &session.prove(Side::Initiator, &[8; 16])).is_some());
    }

    #[test]
    fn token_proof_is_valid_only_for_its_claim() {
        let (token, other) = (Token::from("one".to_string()), Token::from("two".to_string()));
        let (initiator, acceptor, role) = (NodeId(1), NodeId(2), Role::Control);
        let claim = ProofContext { binding: &[3; 32], initiator, acceptor, role, cluster: "c" };
        let proof = claim.prove(&token, Side::Initiator);
        assert!(claim.is_proof(&token, Side::Initiator, &proof));
        assert!(!claim.is_proof(&other, Side::Initiator, &proof));
        assert!(!claim.is_proof(&token, Side::Acceptor, &proof), "a reflection");
        for wrong in [
            ProofContext { binding: &[4; 32], ..claim },
            ProofContext { initiator: NodeId(9), ..claim },
            ProofContext { acceptor: NodeId(9), ..claim },
            ProofContext { role: Role::Join, ..claim },
            ProofContext { cluster: "d", ..claim },
        ] {
            assert!(!wrong.is_proof(&token, Side::Initiator, &proof), "{wrong:?}");
        }
    }

    #[test]
    fn session_keys_match_and_can_be_disabled() {
        let session = SharedSecret::new([1; 32], None);
        for nonce in [None, Some(&[5; 16])] {
            let (mut seal, _) = session.keys(Side::Initiator, nonce, false);
            let (mut own, mut open) = session.keys(Side::Acceptor, nonce, false);
            let sealed = |seal: &mut Seal| {
                let mut frame =
                    crate::frame::frame(hoplite_proto::wire::FrameKind::Control, 1, &7_u8);
                seal.seal_whole(&mut frame);
                let (head, body) = frame.split_first_chunk().unwrap();
                (hoplite_proto::wire::Header::decode(head).unwrap(), body.to_vec())
            };
            let (mut header, mut body) = sealed(&mut seal);
            assert_eq!(open.open(&mut header, &mut body), Ok(()));
            let (mut header, mut body) = sealed(&mut own);
            assert!(open.open(&mut header, &mut body).is_err(), "its own direction");
        }
        assert!(session.keys(Side::Initiator, None, true).0.is_disabled());
    }

    #[test]
    fn token_is_not_in_debug_output() {
        assert!(!format!("{:?}", Token::from("secret".to_string())).contains("secret"));
    }
}
