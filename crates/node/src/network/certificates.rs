//! Certificates with which nodes authenticate each other instead of a token: this node's own
//! certificate, the CAs that it trusts, and the revocation list, which is re-read.
//!
//! Does not know connections. [`super::tls`] presents and receives the certificates.

mod files;
mod issue;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustls::{
    AlertDescription, CertRevocationListError, CertificateError, Error as TlsError, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::{CryptoProvider, ring as provider},
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime},
    server::{
        ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use tokio::sync::watch;
use tracing::{error, info};

use self::{
    files::{certificates, lists, private_key, read},
    issue::Issue,
};
use crate::{config::CertificateFiles, error::Error, sync::lock};

type Chain = Vec<CertificateDer<'static>>;

/// The certificates that a node trusts.
#[derive(Debug)]
pub(crate) struct Trust {
    files: CertificateFiles,
    cryptography: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    own: Chain,
    list: Mutex<List>,
    /// Number of times that a new list came into force.
    changes: watch::Sender<u64>,
}

/// The revocation list in force.
#[derive(Debug)]
struct List {
    verifiers: Vec<Arc<dyn ClientCertVerifier>>,
    /// Contents that were read last, even if they are not a valid list, or the read error.
    read: Result<Vec<u8>, String>,
    /// Why the contents read last are not in force; None if they are.
    problem: Option<String>,
    /// Newest list of each issuer that was in force, by the issuer's DER.
    newest: BTreeMap<Vec<u8>, Issue>,
}

/// The parsed revocation lists of a file, before they come into force.
struct Made {
    verifiers: Vec<Arc<dyn ClientCertVerifier>>,
    issues: Vec<(Vec<u8>, Issue)>,
}

/// The certificate chain that a peer presented, and the revocation list that it was last checked
/// against.
#[derive(Debug)]
pub(crate) struct PeerCertificate {
    chain: Chain,
    at: UnixTime,
    looked: AtomicU64,
    is_revoked: AtomicBool,
}

impl PeerCertificate {
    /// Stores a chain. `looked` is the number of the list in force when the handshake began.
    pub(super) fn new(chain: &[CertificateDer<'_>], looked: u64) -> Self {
        Self {
            chain: chain.iter().cloned().map(CertificateDer::into_owned).collect(),
            at: UnixTime::now(),
            looked: looked.into(),
            is_revoked: false.into(),
        }
    }
}

/// Reads the certificate files of this node and checks that other nodes will accept its
/// certificate.
///
/// # Errors
/// [`Error::Certificates`] names the file, the problem and the fix.
pub(crate) fn load(files: &CertificateFiles) -> Result<(CertifiedKey, Arc<Trust>), Error> {
    let (certified, trust) = read_all(files).map_err(Error::Certificates)?;
    trust.check_own().map_err(|error| {
        let (shown, wrong) = (files.certificate.display(), trust.wrong(&error));
        Error::Certificates(format!("other nodes would reject the certificate {shown}: it {wrong}"))
    })?;
    Ok((certified, trust))
}

/// Reads the certificate files of this node without verifying its certificate.
pub(super) fn read_all(files: &CertificateFiles) -> Result<(CertifiedKey, Arc<Trust>), String> {
    let cryptography = Arc::new(provider::default_provider());
    let own = certificates("certificate", &files.certificate)?;
    let key = private_key(&files.key)?;
    let certified = CertifiedKey::from_der(own.clone(), key, &cryptography);
    let (shown, with) = (files.certificate.display(), files.key.display());
    let certified = certified.map_err(|error| match error {
        TlsError::InconsistentKeys(_) => format!(
            "the key {with} does not match the certificate {shown}: use two files that were \
             created together"
        ),
        TlsError::InvalidCertificate(_) => {
            format!(
                "the certificate {shown} can't be parsed ({error}): create a version 3 \
                 certificate"
            )
        }
        _ => format!("the key {with} can't be used: {error}"),
    })?;
    Ok((certified, Arc::new(Trust::new(files.clone(), cryptography, own)?)))
}

impl Trust {
    /// Reads the CAs and the revocation list. Does not verify `own`.
    fn new(
        files: CertificateFiles,
        cryptography: Arc<CryptoProvider>,
        own: Chain,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for root in certificates("CA", &files.ca)? {
            let added = roots.add(root);
            added
                .map_err(|error| format!("the CA {} can't be used: {error}", files.ca.display()))?;
        }
        let roots = Arc::new(roots);
        let read = files.crl.as_deref().map(|crl| read("revocation list", crl)).transpose()?;
        let Made { verifiers, issues } = match (&files.crl, &read) {
            (Some(crl), Some(bytes)) => Made::new(&roots, &cryptography, crl, bytes)?,
            _ => {
                let verifiers = verifiers(&roots, &cryptography, Vec::new());
                let verifiers = verifiers.map_err(|error| unusable(Path::new(""), &error))?;
                Made { verifiers, issues: Vec::new() }
            }
        };
        let mut list = List {
            verifiers: Vec::new(),
            read: Ok(read.unwrap_or_default()),
            problem: None,
            newest: BTreeMap::new(),
        };
        list.enforce(Made { verifiers, issues });
        let (list, changes) = (Mutex::new(list), watch::Sender::new(0));
        Ok(Self { files, cryptography, roots, own, list, changes })
    }

    /// Number of the revocation list in force.
    pub(crate) fn list_number(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Whether a revocation list is configured, which is then re-read.
    pub(crate) const fn has_list(&self) -> bool {
        self.files.crl.is_some()
    }

    /// The revocation list file, and why its present contents are not in force.
    pub(crate) fn list(&self) -> Option<(&Path, Option<String>)> {
        let problem = lock(&self.list).problem.clone();
        self.files.crl.as_deref().map(|crl| (crl, problem))
    }

    /// Verifies a certificate and the chain `rest` from it to the CA.
    pub(super) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError> {
        let verifiers = lock(&self.list).verifiers.clone();
        self.check_by(&verifiers, certificate, rest, now)
    }

    /// Verifies a certificate for both TLS roles: each node opens and accepts connections.
    fn check_by(
        &self,
        verifiers: &[Arc<dyn ClientCertVerifier>],
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError> {
        for verifier in verifiers {
            verifier.verify_client_cert(certificate, rest, now)?;
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.cryptography.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, rest, now, algorithms)
    }

    fn check_own(&self) -> Result<(), TlsError> {
        self.check(&self.own[0], &self.own[1..], UnixTime::now())
    }

    /// Why other nodes reject this one: the list in force contains its own certificate.
    pub(super) fn own_revocation(&self) -> Option<String> {
        let is_revoked = matches!(
            self.check_own(),
            Err(TlsError::InvalidCertificate(CertificateError::Revoked))
        );
        let (own, crl) = (self.files.certificate.display(), self.files.crl.as_ref()?.display());
        is_revoked.then(|| {
            format!(
                "certificate revoked: {crl} lists {own}, the certificate of this node: create \
                 another (hoplite certs node)"
            )
        })
    }

    /// Re-reads the revocation list. A list that is not valid, does not cover the CA of this node's
    /// certificate, or is older than one that was in force, does not come into force.
    pub(super) fn read_again(&self) {
        let Some(crl) = &self.files.crl else { return };
        let read = read("revocation list", crl);
        if lock(&self.list).read == read {
            return;
        }
        let made = read.clone().and_then(|bytes| self.made(crl, &bytes));
        let mut list = lock(&self.list);
        list.read = read;
        match made.and_then(|made| list.check_newer(crl, &made).map(|()| made)) {
            Ok(made) => {
                list.enforce(made);
                drop(list);
                self.changes.send_modify(|number| *number += 1);
                info!(file = %crl.display(), "new revocation list in force");
            }
            Err(problem) => {
                error!("{problem}; the previous list stays in force");
                list.problem = Some(problem);
            }
        }
    }

    fn made(&self, crl: &Path, bytes: &[u8]) -> Result<Made, String> {
        let made = Made::new(&self.roots, &self.cryptography, crl, bytes)?;
        match self.check_by(&made.verifiers, &self.own[0], &self.own[1..], UnixTime::now()) {
            Err(
                error @ (TlsError::InvalidCertRevocationList(_)
                | TlsError::InvalidCertificate(CertificateError::UnknownRevocationStatus)),
            ) => Err(format!("the certificate of this node {}", self.wrong(&error))),
            _ => Ok(made),
        }
    }

    /// Whether a presented certificate is revoked by the list in force.
    pub(crate) fn revokes(&self, shown: &PeerCertificate) -> bool {
        let number = self.list_number();
        if shown.looked.load(Ordering::Acquire) < number {
            // Verified as of the time of the handshake, so that an expiry does not end a
            // connection.
            if self.check(&shown.chain[0], &shown.chain[1..], shown.at).is_err() {
                shown.is_revoked.store(true, Ordering::Release);
            }
            shown.looked.fetch_max(number, Ordering::AcqRel);
        }
        shown.is_revoked.load(Ordering::Acquire)
    }

    /// Completes when a presented certificate is revoked.
    pub(super) async fn wait_until_revoked(&self, shown: &PeerCertificate) {
        let mut changes = self.changes.subscribe();
        while !self.revokes(shown) {
            // The sender is a field of this struct, so this does not fail.
            let _ = changes.changed().await;
        }
    }

    /// Describes a verification error, to follow "the certificate" or "it".
    pub(super) fn wrong(&self, error: &TlsError) -> String {
        use CertificateError as E;
        let ca = self.files.ca.display();
        let crl = self.files.crl.as_deref().unwrap_or(Path::new("")).display();
        match error {
            TlsError::NoCertificatesPresented => "is missing: start the node with --certificate, \
                --key and --ca"
                .into(),
            TlsError::InvalidCertRevocationList(_) => format!(
                "can't be checked against {crl}: the list must have version 2 and be signed by the \
                 CA that issued the certificate"
            ),
            TlsError::InvalidCertificate(error) => match error {
                E::Expired | E::ExpiredContext { .. } => {
                    "has expired: create another (hoplite certs node) and restart the node".into()
                }
                E::NotValidYet | E::NotValidYetContext { .. } => {
                    "is not valid yet: set the clocks of the hosts, or create another".into()
                }
                E::Revoked => format!("is revoked by {crl}: create another (hoplite certs node)"),
                E::UnknownRevocationStatus => format!(
                    "was issued by a CA that has no list in {crl}: add the list of that CA to the \
                     file"
                ),
                E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
                    "is not for both serverAuth and clientAuth: create one with both, which nodes \
                     need"
                        .into()
                }
                E::UnknownIssuer => not_issued(&ca),
                #[allow(deprecated)]
                E::BadSignature => not_issued(&ca),
                other => format!("is not accepted: {other}"),
            },
            other => format!("is not accepted: {other}"),
        }
    }

    /// Describes the TLS alert by which a peer rejects this node's certificate.
    pub(super) fn refused(&self, alert: AlertDescription) -> Option<String> {
        use AlertDescription as A;
        let why: String = match alert {
            A::CertificateExpired => {
                "by the peer's clock it has expired or is not valid yet: create another, or set \
                 the clocks of the hosts"
                    .into()
            }
            A::CertificateRevoked => {
                "the peer's revocation list contains it: create another (hoplite certs node)".into()
            }
            A::UnknownCA | A::DecryptError => {
                "no CA that the peer trusts issued it, or the peer has no revocation list \
                 of that CA: use the same --ca and --crl on all nodes"
                    .into()
            }
            A::UnsupportedCertificate => {
                "it is not for both serverAuth and clientAuth: create one with both".into()
            }
            A::BadCertificate | A::CertificateUnknown => {
                "the peer can't verify it: create another (hoplite certs node)".into()
            }
            A::AccessDenied => {
                "the peer denies access to nodes that use it: check the log of the peer".into()
            }
            _ => return None,
        };
        let own = self.files.certificate.display();
        Some(format!("the peer rejects the certificate {own}: {why}"))
    }
}

impl List {
    fn enforce(&mut self, made: Made) {
        (self.verifiers, self.problem) = (made.verifiers, None);
        self.newest.extend(made.issues);
    }

    /// Rejects a list older than one that was in force: it may omit recent revocations.
    fn check_newer(&self, crl: &Path, made: &Made) -> Result<(), String> {
        let older = made.issues.iter().find_map(|(issuer, issue)| {
            self.newest
                .get(issuer)
                .filter(|newest| issue.is_older(newest))
                .map(|newest| (issue, newest))
        });
        older.map_or(Ok(()), |(issue, newest)| {
            Err(format!(
                "the revocation list {} is older ({issue}) than the previous list ({newest}) and \
                 may omit recent revocations: copy the newest list there",
                crl.display()
            ))
        })
    }
}

impl Made {
    fn new(
        roots: &Arc<RootCertStore>,
        cryptography: &Arc<CryptoProvider>,
        crl: &Path,
        bytes: &[u8],
    ) -> Result<Self, String> {
        let lists = lists(crl, bytes)?;
        let issues = lists.iter().map(|list| issue::read(list)).collect::<Option<Vec<_>>>();
        let verifiers = verifiers(roots, cryptography, lists);
        let verifiers = verifiers.map_err(|error| unusable(crl, &error))?;
        let issues = issues.ok_or_else(|| {
            format!("the revocation list {} is corrupt: it has no issuer or no date", crl.display())
        })?;
        Ok(Self { verifiers, issues })
    }
}

fn not_issued(ca: &std::path::Display<'_>) -> String {
    format!("was not issued by a CA in {ca}: use certificates of the same CA on all nodes")
}

/// Builds the verifiers of a certificate chain. The revocation status of the peer's own certificate
/// must be known. An intermediate CA is rejected only if a list revokes it, because many CAs
/// publish no list of their intermediates.
fn verifiers(
    roots: &Arc<RootCertStore>,
    cryptography: &Arc<CryptoProvider>,
    lists: Vec<CertificateRevocationListDer<'static>>,
) -> Result<Vec<Arc<dyn ClientCertVerifier>>, VerifierBuilderError> {
    let builder =
        || WebPkiClientVerifier::builder_with_provider(roots.clone(), cryptography.clone());
    if lists.is_empty() {
        return Ok(vec![builder().build()?]);
    }
    let first = builder().with_crls(lists.clone()).only_check_end_entity_revocation().build()?;
    let rest = builder().with_crls(lists).allow_unknown_revocation_status().build()?;
    Ok(vec![first, rest])
}

fn unusable(crl: &Path, error: &VerifierBuilderError) -> String {
    let crl = crl.display();
    match error {
        VerifierBuilderError::InvalidCrl(CertRevocationListError::UnsupportedCrlVersion) => {
            format!(
                "the revocation list {crl} has version 1: create one of version 2 (openssl ca \
                 -gencrl -crlexts)"
            )
        }
        other => format!("the revocation list {crl} can't be used: {other}"),
    }
}

#[cfg(test)]
mod tests;
