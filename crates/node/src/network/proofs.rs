//! What nodes prove to each other in a handshake: that they know the cluster's token, and that they have met before.
//!
//! HMAC-SHA256 (RFC 2104) of nonces. Knows bytes, not connections.

use std::{collections::HashSet, io};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret of two nodes, of which one called the other.
#[derive(Clone)]
pub(crate) struct Session([u8; 32]);

impl Session {
    /// Of the nonces of a control connection between two nodes that know the same token, or none.
    pub(super) fn new(token: Option<&str>, of_caller: &[u8], of_called: &[u8]) -> Option<Self> {
        let token = token.unwrap_or_default();
        let mac = mac(token, b"session", of_caller, of_called)?;
        Some(Self(mac.finalize().into_bytes().into()))
    }

    fn mac(&self, side: &[u8], nonce: &[u8; 16]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(side);
        mac.update(nonce);
        Some(mac)
    }

    /// Proves to the other that this node, on its `side`, shares the secret.
    pub(super) fn prove(&self, side: &[u8], nonce: &[u8; 16]) -> Option<[u8; 32]> {
        Some(self.mac(side, nonce)?.finalize().into_bytes().into())
    }

    pub(super) fn is_proof(&self, side: &[u8], nonce: &[u8; 16], proof: &[u8; 32]) -> bool {
        self.mac(side, nonce).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// What the called knows of a caller that it has admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    session: Session,
    /// Nonces that have passed.
    seen: HashSet<[u8; 16]>,
}

/// Payload connections of one session. A node that needs more introduces itself anew.
const PASSES_MAX: usize = 65_536;

impl Admitted {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, seen: HashSet::new() }
    }

    /// Whether a pass is good, for this once; the proof that this node is the one it is meant for.
    pub(crate) fn admit(&mut self, nonce: &[u8; 16], pass: &[u8; 32]) -> Option<[u8; 32]> {
        let is_good = self.session.is_proof(b"caller", nonce, pass);
        let is_new = is_good && self.seen.len() < PASSES_MAX && self.seen.insert(*nonce);
        if is_new { self.session.prove(b"called", nonce) } else { None }
    }
}

/// A number that was not used before.
pub(super) fn nonce() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    entropy(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` from the system's source of entropy.
pub(crate) fn entropy(bytes: &mut [u8]) -> io::Result<()> {
    let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn mac(token: &str, side: &[u8], first: &[u8], second: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).ok()?;
    mac.update(b"hoplite 1 ");
    mac.update(side);
    mac.update(first);
    mac.update(second);
    Some(mac)
}

/// Proves that this node, on its `side`, knows the token; none without a token.
pub(super) fn proof(
    token: Option<&str>,
    side: &[u8],
    first: &[u8],
    second: &[u8],
) -> Option<[u8; 32]> {
    let mac = mac(token?, side, first, second)?;
    Some(mac.finalize().into_bytes().into())
}

/// Whether the other, on its `side`, has proved that it knows the token.
pub(super) fn knows_token(
    token: Option<&str>,
    side: &[u8],
    first: &[u8],
    second: &[u8],
    proof: Option<&[u8; 32]>,
) -> bool {
    match (token, proof) {
        (None, _) => true,
        (Some(_), None) => false,
        // Compared in constant time by the library.
        (Some(token), Some(proof)) => {
            mac(token, side, first, second).is_some_and(|mac| mac.verify_slice(proof).is_ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_good_once_and_in_its_session() {
        let session = Session::new(Some("secret"), &[1], &[2]).unwrap();
        let other = Session::new(Some("secret"), &[1], &[3]).unwrap();
        let mut admitted = Admitted::new(session.clone());
        let nonce = [7; 16];
        let pass = session.prove(b"caller", &nonce).unwrap();
        let proof = admitted.admit(&nonce, &pass).unwrap();
        assert!(session.is_proof(b"called", &nonce, &proof));
        assert_eq!(admitted.admit(&nonce, &pass), None, "it is said again");
        assert_eq!(admitted.admit(&[8; 16], &pass), None, "for another nonce");
        assert_eq!(admitted.admit(&[8; 16], &other.prove(b"caller", &[8; 16]).unwrap()), None);
        assert_eq!(admitted.admit(&[8; 16], &session.prove(b"called", &[8; 16]).unwrap()), None);
        assert!(admitted.admit(&[8; 16], &session.prove(b"caller", &[8; 16]).unwrap()).is_some());
    }
}
