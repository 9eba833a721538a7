//! The TLS 1.3 handshake of two nodes: each shows that it has the key of which its id is the hash, and both get secrets
//! that no other process has, also one that sits between them.
//!
//! Keys are raw public keys (RFC 7250), made anew at each start of a node: what they stand for is said inside by the token
//! ([`super::proofs`]). After the handshake frames are protected by [`crate::sealing`]. Knows keys, not greetings.

use std::{io, sync::Arc};

use hoplite_proto::id::NodeId;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, ring as provider,
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::{error::LinkError, sealing::Secret};

/// The key of one start of a node.
#[derive(Clone)]
pub(crate) struct NodeKey {
    id: NodeId,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the key of node {}", self.id)
    }
}

/// A connection after its TLS handshake.
pub(crate) struct Secured {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The node at the other end, by its key.
    pub(crate) peer: NodeId,
    /// What only the two ends of this TLS connection know, for proofs inside it: `tls-exporter` of RFC 9266.
    pub(crate) binding: Secret,
    /// Another such secret, for the keys of frames.
    pub(crate) secret: Secret,
}

impl Secured {
    /// The connection without TLS, for frames that are protected otherwise. The other side has said nothing more on it.
    pub(crate) fn into_inner(self) -> TcpStream {
        match self.stream {
            TlsStream::Client(stream) => stream.into_inner().0,
            TlsStream::Server(stream) => stream.into_inner().0,
        }
    }
}

impl NodeKey {
    /// Makes a key.
    ///
    /// # Errors
    /// The system's source of entropy fails.
    pub(crate) fn new() -> io::Result<Self> {
        let made =
            ring::signature::Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new());
        let made = made.map_err(|_| io::Error::other("the system gives no entropy for a key"))?;
        let private = PrivatePkcs8KeyDer::from(made.as_ref());
        let key = provider::sign::any_eddsa_type(&private).map_err(io::Error::other)?;
        let public =
            key.public_key().ok_or_else(|| io::Error::other("the key has no public part"))?;
        let id = id_of(public.as_ref());
        let certificate = CertificateDer::from(public.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![certificate], key));
        let cryptography = Arc::new(provider::default_provider());
        let verifier = Arc::new(AnyKey::new(&cryptography));
        let mut client = ClientConfig::builder_with_provider(cryptography.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified.clone(),
            )));
        // Nodes that have met go on by a secret of their own, which saves more: see `Greeting::Resume`.
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(cryptography)
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { id, client: Arc::new(client), server: Arc::new(server) })
    }

    /// The id of a node with this key.
    pub(crate) const fn id(&self) -> NodeId {
        self.id
    }

    /// Shakes hands as the caller.
    ///
    /// # Errors
    /// The other side did not, or the connection ended.
    pub(crate) async fn call(&self, stream: TcpStream) -> Result<Secured, LinkError> {
        // Keys have no names.
        let name = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
        let stream = TlsConnector::from(self.client.clone()).connect(name, stream).await?;
        let (_, tls) = stream.get_ref();
        let peer = peer(tls.peer_certificates())?;
        let (binding, secret) = secrets(|label| tls.export_keying_material([0; 32], label, None))?;
        Ok(Secured { stream: stream.into(), peer, binding, secret })
    }

    /// Shakes hands as the called.
    ///
    /// # Errors
    /// The other side did not, or the connection ended.
    pub(crate) async fn answer(&self, stream: TcpStream) -> Result<Secured, LinkError> {
        let stream = TlsAcceptor::from(self.server.clone()).accept(stream).await?;
        let (_, tls) = stream.get_ref();
        let peer = peer(tls.peer_certificates())?;
        let (binding, secret) = secrets(|label| tls.export_keying_material([0; 32], label, None))?;
        Ok(Secured { stream: stream.into(), peer, binding, secret })
    }
}

/// The id of the node that has a key: the beginning of the key's SHA-256.
fn id_of(public: &[u8]) -> NodeId {
    let hash: [u8; 32] = Sha256::digest(public).into();
    NodeId(u64::from_le_bytes(hash[..8].try_into().unwrap_or_default()))
}

fn peer(keys: Option<&[CertificateDer<'_>]>) -> Result<NodeId, LinkError> {
    let key = keys.and_then(<[_]>::first);
    let key = key.ok_or_else(|| io::Error::other("the other side has shown no key"))?;
    Ok(id_of(key))
}

fn secrets(
    export: impl Fn(&[u8]) -> Result<Secret, rustls::Error>,
) -> Result<(Secret, Secret), LinkError> {
    let export = |label: &[u8]| export(label).map_err(io::Error::other);
    Ok((export(b"EXPORTER-Channel-Binding")?, export(b"EXPORTER-hoplite-frames")?))
}

/// Takes any key, and checks that the other side has it: who may have which id is looked at where the id is said.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyKey {
    fn new(cryptography: &CryptoProvider) -> Self {
        Self { algorithms: cryptography.signature_verification_algorithms }
    }

    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

const NO_OLD_TLS: &str = "nodes speak TLS 1.3";

/// What callers and called check alike of a signature: both traits of rustls ask it.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::Error::General(NO_OLD_TLS.into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.verify(message, key, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn shaken(one: &NodeKey, two: &NodeKey) -> (Secured, Secured) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calling = async { one.call(TcpStream::connect(address).await.unwrap()).await };
        let called = async { two.answer(listener.accept().await.unwrap().0).await };
        let (one, two) = tokio::join!(calling, called);
        (one.unwrap(), two.unwrap())
    }

    #[tokio::test]
    async fn both_sides_know_each_other_and_secrets_of_this_connection() {
        let (one, two) = (NodeKey::new().unwrap(), NodeKey::new().unwrap());
        assert_ne!(one.id(), two.id());
        let (calling, called) = shaken(&one, &two).await;
        assert_eq!((calling.peer, called.peer), (two.id(), one.id()));
        assert_eq!((calling.binding, calling.secret), (called.binding, called.secret));
        assert_ne!(calling.binding, calling.secret);
        let (again, _called) = shaken(&one, &two).await;
        assert!(again.binding != calling.binding && again.secret != calling.secret);
    }
}
