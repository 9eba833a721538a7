//! The TLS 1.3 handshake of two nodes. Each proves that it has the key whose hash is its id. Both
//! get secrets that no other process has, not even a man in the middle.
//!
//! Keys are raw public keys (RFC 7250), generated at each start of a node; the token, proved inside
//! TLS, authenticates them ([`super::proofs`]). Or the keys are those of certificates
//! ([`super::certificates`]), which this module verifies. Then each start of a node has a random
//! number, and the id is the hash of key and number. After the handshake, [`crate::sealing`]
//! protects frames. Knows keys, not greetings.

use std::{io, sync::Arc, time::Duration};

use hoplite_proto::{id::NodeId, meta::Digest, wire::START_BYTES};
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig,
    SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature,
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{
        CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ParsedCertificate,
        ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{
    certificates::{PeerCertificate, Trust},
    proofs::nonce,
};
use crate::{digest::digest, error::LinkError, sealing::Secret};

/// The random number of one start of a node.
pub(crate) type Start = [u8; START_BYTES as usize];

/// The TLS key and configuration of a node.
#[derive(Clone)]
pub(crate) struct NodeKey {
    id: NodeId,
    /// Present with certificates, whose keys outlive one start of a node.
    start: Option<Start>,
    trust: Option<Arc<Trust>>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the key of node {}", self.id)
    }
}

/// A connection after the TLS handshake.
pub(crate) struct Secured {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The peer's id, derived from its key.
    pub(crate) peer: NodeId,
    /// The peer's certificate, if it presented one.
    pub(crate) shown: Option<Arc<PeerCertificate>>,
    /// A secret of this TLS connection, for proofs inside it: `tls-exporter` of RFC 9266.
    pub(crate) binding: Secret,
    /// Another secret, for the frame keys.
    pub(crate) secret: Secret,
}

impl Secured {
    /// Removes TLS, for frames with their own encryption. The peer must not have sent anything more
    /// on it.
    pub(crate) fn into_inner(self) -> TcpStream {
        match self.stream {
            TlsStream::Client(stream) => stream.into_inner().0,
            TlsStream::Server(stream) => stream.into_inner().0,
        }
    }
}

impl NodeKey {
    /// Generates a raw key.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub(crate) fn new() -> io::Result<Self> {
        let made =
            ring::signature::Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new());
        let made =
            made.map_err(|_| io::Error::other("the system's random number generator failed"))?;
        let private = PrivatePkcs8KeyDer::from(made.as_ref());
        let key = provider::sign::any_eddsa_type(&private).map_err(io::Error::other)?;
        let public =
            key.public_key().ok_or_else(|| io::Error::other("the key has no public part"))?;
        let id = id_of(public.as_ref(), None);
        let certificate = CertificateDer::from(public.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![certificate], key));
        let resolvers = (
            Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified.clone())) as Arc<_>,
            Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)) as Arc<_>,
        );
        Self::of(id, None, None, resolvers)
    }

    /// Uses the key of a certificate, and the trusted certificates of other nodes.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub(crate) fn certified(own: CertifiedKey, trust: Arc<Trust>) -> io::Result<Self> {
        let start = Some(nonce()?);
        let shown = own.end_entity_cert().map_err(io::Error::other)?;
        let id = id_of(&public_key(shown).map_err(io::Error::other)?, start.as_ref());
        let resolver = Arc::new(SingleCertAndKey::from(own));
        Self::of(id, start, Some(trust), (resolver.clone() as Arc<_>, resolver as Arc<_>))
    }

    fn of(
        id: NodeId,
        start: Option<Start>,
        trust: Option<Arc<Trust>>,
        (of_initiator, of_acceptor): (Arc<dyn ResolvesClientCert>, Arc<dyn ResolvesServerCert>),
    ) -> io::Result<Self> {
        let cryptography = Arc::new(provider::default_provider());
        let algorithms = cryptography.signature_verification_algorithms;
        let verifier = Arc::new(Verifier { algorithms, trust: trust.clone() });
        let mut client = ClientConfig::builder_with_provider(cryptography.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(of_initiator);
        // Sessions of our own save more than TLS resumption: see `Greeting::Resume`.
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(cryptography)
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(of_acceptor);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { id, start, trust, client: Arc::new(client), server: Arc::new(server) })
    }

    /// The id of this node.
    pub(crate) const fn id(&self) -> NodeId {
        self.id
    }

    /// The same node without a client certificate: test only.
    #[cfg(test)]
    pub(crate) fn without_certificate(&self) -> Self {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        let verifier = Arc::new(Verifier { algorithms, trust: self.trust.clone() });
        let client = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Self { client: Arc::new(client), ..self.clone() }
    }

    /// The start number, if the key belongs to a certificate.
    pub(crate) const fn start(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// The trusted certificates, if this node uses certificates.
    pub(crate) const fn trust(&self) -> Option<&Arc<Trust>> {
        self.trust.as_ref()
    }

    /// Completes when a presented certificate is revoked.
    pub(crate) async fn wait_until_revoked(&self, shown: Option<&PeerCertificate>) {
        match (&self.trust, shown) {
            (Some(trust), Some(shown)) => trust.wait_until_revoked(shown).await,
            _ => std::future::pending().await,
        }
    }

    /// Performs the TLS handshake as the initiator; `start` is the peer's start number.
    ///
    /// # Errors
    /// The peer's handshake failed, its certificate was rejected, or the connection ended.
    pub(crate) async fn initiate(
        &self,
        stream: TcpStream,
        start: Option<&Start>,
    ) -> Result<Secured, LinkError> {
        let list = self.list_number();
        // Required by the API; keys have no host names.
        let name = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
        let connected = TlsConnector::from(self.client.clone()).connect(name, stream).await;
        let stream = connected.map_err(|error| self.explain(error.into()))?;
        let (_, tls) = stream.get_ref();
        let (peer, shown) = self.peer(tls.peer_certificates(), start, list)?;
        let (binding, secret) = secrets(|label| tls.export_keying_material([0; 32], label, None))?;
        Ok(Secured { stream: stream.into(), peer, shown, binding, secret })
    }

    /// Performs the TLS handshake as the acceptor; `start` is the peer's start number.
    ///
    /// # Errors
    /// The peer's handshake failed, its certificate was rejected, or the connection ended.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        start: Option<&Start>,
    ) -> Result<Secured, LinkError> {
        let list = self.list_number();
        let accepting = TlsAcceptor::from(self.server.clone()).accept(stream).into_fallible();
        let stream = match accepting.await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                let_it_read(stream).await;
                return Err(self.explain(error.into()));
            }
        };
        let (_, tls) = stream.get_ref();
        let (peer, shown) = self.peer(tls.peer_certificates(), start, list)?;
        let (binding, secret) = secrets(|label| tls.export_keying_material([0; 32], label, None))?;
        Ok(Secured { stream: stream.into(), peer, shown, binding, secret })
    }

    fn list_number(&self) -> u64 {
        self.trust.as_ref().map_or(0, |trust| trust.list_number())
    }

    /// The peer's id and certificate, from what it presented.
    fn peer(
        &self,
        shown: Option<&[CertificateDer<'_>]>,
        start: Option<&Start>,
        list: u64,
    ) -> Result<(NodeId, Option<Arc<PeerCertificate>>), LinkError> {
        let shown = shown.filter(|shown| !shown.is_empty());
        let shown = shown.ok_or_else(|| io::Error::other("the peer presented no key"))?;
        if self.trust.is_none() {
            return Ok((id_of(&shown[0], None), None));
        }
        let key = public_key(&shown[0]).map_err(io::Error::other)?;
        Ok((id_of(&key, start), Some(Arc::new(PeerCertificate::new(shown, list)))))
    }

    /// Converts a TLS error to the reason why one side rejects the other's certificate.
    pub(crate) fn explain(&self, error: LinkError) -> LinkError {
        let Some(trust) = &self.trust else { return error };
        let LinkError::Io(told) = &error else { return error };
        let told = told.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match told {
            Some(rustls::Error::AlertReceived(alert)) => match trust.refused(*alert) {
                Some(said) if *alert == AlertDescription::CertificateRevoked => {
                    LinkError::Revoked(said)
                }
                Some(said) => LinkError::Refused(said),
                None => error,
            },
            Some(
                wrong @ (rustls::Error::InvalidCertificate(_)
                | rustls::Error::InvalidCertRevocationList(_)
                | rustls::Error::NoCertificatesPresented),
            ) => LinkError::Certificate(trust.wrong(wrong)),
            _ => error,
        }
    }
}

/// Time that a refused initiator has to read the reason.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Limit of bytes that a refused initiator may have sent: a certificate and a greeting.
const UNREAD_BYTES_MAX: u64 = 64 * 1024;

/// Closes a connection after reading the rest: TCP may discard the last bytes sent if it closes
/// with unread data.
async fn let_it_read(mut stream: TcpStream) {
    let reading = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(UNREAD_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _ = timeout(READ_TIMEOUT, reading).await;
}

/// The id of the node with a key: the first 8 bytes of the SHA-256 of the key and the start number.
fn id_of(public: &[u8], start: Option<&Start>) -> NodeId {
    let Digest(hash) = digest(&[public, start.map_or(&[][..], |start| start)]);
    NodeId(u64::from_le_bytes(hash[..8].try_into().unwrap_or_default()))
}

/// The public key of a certificate, encoded like a raw public key.
fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, rustls::Error> {
    Ok(ParsedCertificate::try_from(certificate)?.subject_public_key_info().as_ref().to_vec())
}

fn secrets(
    export: impl Fn(&[u8]) -> Result<Secret, rustls::Error>,
) -> Result<(Secret, Secret), LinkError> {
    let export = |label: &[u8]| export(label).map_err(io::Error::other);
    Ok((export(b"EXPORTER-Channel-Binding")?, export(b"EXPORTER-hoplite-frames")?))
}

/// Verifies that the peer has the private key that it presents. Without certificates any key is
/// accepted; the handshake compares the claimed id with it.
#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    trust: Option<Arc<Trust>>,
}

impl Verifier {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.trust.as_ref().map_or(Ok(()), |trust| trust.check(certificate, rest, now))
    }

    fn verify(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.trust.is_some() {
            return verify_tls13_signature(message, certificate, signed, &self.algorithms);
        }
        let key = SubjectPublicKeyInfoDer::from(certificate.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

const NO_OLD_TLS: &str = "nodes use TLS 1.3";

/// The signature checks of both traits of rustls, which are the same for clients and servers.
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
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.verify(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            match self.trust {
                Some(_) => self.algorithms.supported_schemes(),
                None => vec![SignatureScheme::ED25519],
            }
        }

        fn requires_raw_public_keys(&self) -> bool {
            self.trust.is_none()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(certificate, rest, now).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(certificate, rest, now).map(|()| ClientCertVerified::assertion())
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
        let calling =
            async { one.initiate(TcpStream::connect(address).await.unwrap(), two.start()).await };
        let called = async { two.accept(listener.accept().await.unwrap().0, one.start()).await };
        let (one, two) = tokio::join!(calling, called);
        (one.unwrap(), two.unwrap())
    }

    #[tokio::test]
    async fn both_sides_derive_the_same_connection_secrets() {
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
