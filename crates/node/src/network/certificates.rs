//! The certificates that nodes show each other in place of a token: this node's own, the CA that has to have issued those of
//! the others, and the list of those that are revoked, which is read again.
//!
//! Knows files and certificates, not connections. How a certificate is shown is in [`super::tls`].

mod issue;

use std::{
    collections::BTreeMap,
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
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
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
        pem::{Error as PemError, PemObject},
    },
    server::{
        ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::CertifiedKey,
};
use tokio::sync::watch;
use tracing::{error, info};

use self::issue::Issue;
use crate::{config::CertificateFiles, error::Error, sync::lock};

/// Bytes of the longest file that is read: a list of a million certificates is half as long.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What a file of a key may not be for others: of this user anything; of root a group may read it, as of a service.
const CLOSED: u32 = 0o077;
const CLOSED_OF_ROOT: u32 = 0o037;

/// What no file may be for other users. A group may: many users have one of their own.
const WRITABLE: u32 = 0o002;

type Chain = Vec<CertificateDer<'static>>;

/// Whose certificates a node takes.
#[derive(Debug)]
pub(crate) struct Trust {
    files: CertificateFiles,
    cryptography: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    own: Chain,
    list: Mutex<List>,
    /// How often another list took the place of one.
    changes: watch::Sender<u64>,
}

/// The list of revocations that is in force.
#[derive(Debug)]
struct List {
    verifiers: Vec<Arc<dyn ClientCertVerifier>>,
    /// What was read last, also if it is no list; or why nothing could be.
    read: Result<Vec<u8>, String>,
    /// Why it is not in force, if it is not.
    problem: Option<String>,
    /// The newest list of each issuer that was in force, by the issuer's DER.
    newest: BTreeMap<Vec<u8>, Issue>,
}

/// A file of lists of revocations that may come into force.
struct Made {
    verifiers: Vec<Arc<dyn ClientCertVerifier>>,
    issues: Vec<(Vec<u8>, Issue)>,
}

/// What a node has shown, and by which list it was last looked at.
#[derive(Debug)]
pub(crate) struct Shown {
    chain: Chain,
    at: UnixTime,
    looked: AtomicU64,
    is_barred: AtomicBool,
}

impl Shown {
    /// `looked` is the number of the list by which the handshake began.
    pub(super) fn new(chain: &[CertificateDer<'_>], looked: u64) -> Self {
        Self {
            chain: chain.iter().cloned().map(CertificateDer::into_owned).collect(),
            at: UnixTime::now(),
            looked: looked.into(),
            is_barred: false.into(),
        }
    }
}

/// Reads the files of a node; its own certificate has to be one that it would take from another.
///
/// # Errors
/// [`Error::Certificates`] names the file, what is wrong with it and what to do.
pub(crate) fn load(files: &CertificateFiles) -> Result<(CertifiedKey, Arc<Trust>), Error> {
    let (certified, trust) = read_all(files).map_err(Error::Certificates)?;
    trust.check_own().map_err(|error| {
        let (shown, wrong) = (files.certificate.display(), trust.wrong(&error));
        Error::Certificates(format!(
            "other nodes would not take the certificate {shown}: it {wrong}"
        ))
    })?;
    Ok((certified, trust))
}

/// Reads the files of a node, and does not look whether its certificate is good.
pub(super) fn read_all(files: &CertificateFiles) -> Result<(CertifiedKey, Arc<Trust>), String> {
    let cryptography = Arc::new(provider::default_provider());
    let own = certificates("certificate", &files.certificate)?;
    let key = private_key(&files.key)?;
    let certified = CertifiedKey::from_der(own.clone(), key, &cryptography);
    let (shown, with) = (files.certificate.display(), files.key.display());
    let certified = certified.map_err(|error| match error {
        TlsError::InconsistentKeys(_) => format!(
            "the key {with} is not that of the certificate {shown}: name the two files that were made together"
        ),
        TlsError::InvalidCertificate(_) => {
            format!("the certificate {shown} can't be read ({error}): make it again, of version 3")
        }
        _ => format!("the key {with} can't be used: {error}"),
    })?;
    Ok((certified, Arc::new(Trust::new(files.clone(), cryptography, own)?)))
}

impl Trust {
    /// Does not look whether `own` is good.
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
        let read = files.crl.as_deref().map(|crl| read("list of revocations", crl)).transpose()?;
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

    /// The number of the list that is in force.
    pub(crate) fn list_number(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Whether the list of revocations is read again and again.
    pub(crate) const fn has_list(&self) -> bool {
        self.files.crl.is_some()
    }

    /// The file of the list of revocations, and why what is in it now is not in force.
    pub(crate) fn list(&self) -> Option<(&Path, Option<String>)> {
        let problem = lock(&self.list).problem.clone();
        self.files.crl.as_deref().map(|crl| (crl, problem))
    }

    /// Whether a certificate is good, with what leads from it to the CA.
    pub(super) fn check(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError> {
        let verifiers = lock(&self.list).verifiers.clone();
        self.check_by(&verifiers, certificate, rest, now)
    }

    /// Each node calls others and is called by them, so that its certificate has to be good for both.
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

    /// Why other nodes will not let this one in: the list that is in force names its own certificate.
    pub(super) fn own_revocation(&self) -> Option<String> {
        let is_revoked = matches!(
            self.check_own(),
            Err(TlsError::InvalidCertificate(CertificateError::Revoked))
        );
        let (own, crl) = (self.files.certificate.display(), self.files.crl.as_ref()?.display());
        is_revoked.then(|| {
            format!("certificate revoked: {crl} names {own}, that of this node: make another (hoplite certs node)")
        })
    }

    /// Reads the list of revocations again. One that is none, not of the CA of this node, or older than one that was in
    /// force, does not come into force.
    pub(super) fn read_again(&self) {
        let Some(crl) = &self.files.crl else { return };
        let read = read("list of revocations", crl);
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
                info!(file = %crl.display(), "another list of revocations is in force");
            }
            Err(problem) => {
                error!("{problem}; the list that was read before stays in force");
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

    /// Whether what a node has shown is revoked by now.
    pub(crate) fn bars(&self, shown: &Shown) -> bool {
        let number = self.list_number();
        if shown.looked.load(Ordering::Acquire) < number {
            // By the time of its handshake: that a certificate expires ends no connection.
            if self.check(&shown.chain[0], &shown.chain[1..], shown.at).is_err() {
                shown.is_barred.store(true, Ordering::Release);
            }
            shown.looked.fetch_max(number, Ordering::AcqRel);
        }
        shown.is_barred.load(Ordering::Acquire)
    }

    /// Ends when what a node has shown is revoked.
    pub(super) async fn barred(&self, shown: &Shown) {
        let mut changes = self.changes.subscribe();
        while !self.bars(shown) {
            // The sender is part of this.
            let _ = changes.changed().await;
        }
    }

    /// What is wrong with a certificate, for "it ...".
    pub(super) fn wrong(&self, error: &TlsError) -> String {
        use CertificateError as E;
        let ca = self.files.ca.display();
        let crl = self.files.crl.as_deref().unwrap_or(Path::new("")).display();
        match error {
            TlsError::NoCertificatesPresented => "is missing: give it --cert, --key and --ca".into(),
            TlsError::InvalidCertRevocationList(_) => format!(
                "can't be looked up in {crl}: the list has to be of version 2 and signed by the CA that issued the \
                 certificate"
            ),
            TlsError::InvalidCertificate(error) => match error {
                E::Expired | E::ExpiredContext { .. } => {
                    "has expired: make another (hoplite certs node) and restart the node".into()
                }
                E::NotValidYet | E::NotValidYetContext { .. } => {
                    "is not valid yet: set the clocks of the hosts, or make another".into()
                }
                E::Revoked => format!("is revoked by {crl}: make another (hoplite certs node)"),
                E::UnknownRevocationStatus => format!(
                    "was issued by a CA of which {crl} has no list: add the list of that CA to the file"
                ),
                E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
                    "is not for both serverAuth and clientAuth, and nodes call and are called: make another with both"
                        .into()
                }
                E::UnknownIssuer => not_issued(&ca),
                #[allow(deprecated)]
                E::BadSignature => not_issued(&ca),
                other => format!("is not taken: {other}"),
            },
            other => format!("is not taken: {other}"),
        }
    }

    /// Why another node does not take this node's certificate.
    pub(super) fn refused(&self, alert: AlertDescription) -> Option<String> {
        use AlertDescription as A;
        let why: String = match alert {
            A::CertificateExpired => {
                "by its clock it has expired or is not valid yet: make another, or set the clocks"
                    .into()
            }
            A::CertificateRevoked => {
                "it is revoked there: make another (hoplite certs node)".into()
            }
            A::UnknownCA | A::DecryptError => {
                "no CA that it trusts has issued it, or it has no list of revocations of \
                                               that CA: give all nodes the same --ca and --crl"
                    .into()
            }
            A::UnsupportedCertificate => "it is not for both serverAuth and clientAuth".into(),
            A::BadCertificate | A::CertificateUnknown => "it can't use it".into(),
            A::AccessDenied => "it admits no node that shows it".into(),
            _ => return None,
        };
        let own = self.files.certificate.display();
        Some(format!("it does not take the certificate {own}: {why}"))
    }
}

impl List {
    fn enforce(&mut self, made: Made) {
        (self.verifiers, self.problem) = (made.verifiers, None);
        self.newest.extend(made.issues);
    }

    /// An older list may leave out a certificate that was revoked since.
    fn check_newer(&self, crl: &Path, made: &Made) -> Result<(), String> {
        let older = made.issues.iter().find_map(|(issuer, issue)| {
            self.newest
                .get(issuer)
                .filter(|newest| issue.is_older(newest))
                .map(|newest| (issue, newest))
        });
        older.map_or(Ok(()), |(issue, newest)| {
            Err(format!(
                "the list of revocations {} is older ({issue}) than the one that was in force ({newest}), and may leave \
                 out what was revoked since: copy the newest list there",
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
            format!(
                "the list of revocations {} is damaged: it has no issuer or no date",
                crl.display()
            )
        })?;
        Ok(Self { verifiers, issues })
    }
}

fn not_issued(ca: &std::path::Display<'_>) -> String {
    format!("was issued by no CA in {ca}: give all nodes certificates of the same CA")
}

/// What looks at a certificate: of what a node shows first, whether it is revoked has to be known; of what leads from there to
/// the CA, it counts where a list says so, for many CAs publish no list of their own intermediates.
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
                "the list of revocations {crl} is of version 1: make one of version 2 (openssl ca -gencrl -crlexts)"
            )
        }
        other => format!("the list of revocations {crl} can't be used: {other}"),
    }
}

/// Reads a file that is no secret, but that decides who gets in.
fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    read_if(what, path, |facts| {
        let shown = path.display();
        let is_open = facts.mode() & WRITABLE != 0;
        is_open.then(|| format!("every user can write the {what} {shown}: chmod o-w {shown}"))
    })
}

/// Reads a file, unless there is a reason not to in its owner and mode.
fn read_if(
    what: &str,
    path: &Path,
    refused: impl Fn(&Metadata) -> Option<String>,
) -> Result<Vec<u8>, String> {
    let unread = |error: io::Error| format!("the {what} {} can't be read: {error}", path.display());
    // A pipe or a folder would hold up the node, or say something less clear.
    if !std::fs::metadata(path).map_err(unread)?.is_file() {
        return Err(unread(io::Error::other("it is no file")));
    }
    let file = File::open(path).map_err(unread)?;
    if let Some(said) = refused(&file.metadata().map_err(unread)?) {
        return Err(said);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let said = format!("it is longer than {FILE_BYTES_MAX} bytes");
        return Err(unread(io::Error::other(said)));
    }
    Ok(bytes)
}

/// The certificates of a file, as PEM or one as DER.
fn certificates(what: &str, path: &Path) -> Result<Chain, String> {
    let none = "holds no certificate: it begins with -----BEGIN CERTIFICATE-----";
    taken_apart(what, path, &read(what, path)?, none)
}

/// The lists of revocations of a file, as PEM or one as DER.
fn lists(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let none = "holds no list: it begins with -----BEGIN X509 CRL-----";
    taken_apart("list of revocations", path, bytes, none)
}

fn taken_apart<T: PemObject + From<Vec<u8>>>(
    what: &str,
    path: &Path,
    bytes: &[u8],
    none: &str,
) -> Result<Vec<T>, String> {
    let wrong = |why: &str| format!("the {what} {} {why}", path.display());
    let all: Result<Vec<T>, PemError> = T::pem_slice_iter(bytes).collect();
    let mut all = all.map_err(|_| wrong("is damaged: it is no PEM"))?;
    if all.is_empty() && is_der(bytes) {
        all.push(bytes.to_vec().into());
    }
    if all.is_empty() { Err(wrong(none)) } else { Ok(all) }
}

fn is_der(bytes: &[u8]) -> bool {
    const SEQUENCE: u8 = 0x30;
    bytes.first() == Some(&SEQUENCE)
}

/// The key of a file that only this user can read.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let shown = path.display();
    let me = rustix::process::getuid().as_raw();
    let bytes = read_if("key", path, |facts| {
        let owner = facts.uid();
        let closed = if owner == 0 { CLOSED_OF_ROOT } else { CLOSED };
        if owner != 0 && owner != me {
            Some(format!(
                "the key {shown} belongs to another user ({owner}): chown and chmod 600 it"
            ))
        } else if facts.mode() & closed != 0 {
            Some(format!("others can read or write the key {shown}: chmod 600 {shown}"))
        } else {
            None
        }
    })?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) if bytes.windows(9).any(|part| part == b"ENCRYPTED") => {
            Err(format!(
                "the key {shown} is encrypted, and a node asks for no password: decrypt it (openssl pkey)"
            ))
        }
        Err(PemError::NoItemsFound) => Err(format!(
            "the key {shown} holds no private key: it begins with -----BEGIN PRIVATE KEY-----"
        )),
        Err(_) => Err(format!("the key {shown} is damaged: it is no PEM")),
    }
}

#[cfg(test)]
mod tests;
