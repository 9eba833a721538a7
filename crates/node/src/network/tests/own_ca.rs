//! A CA in a folder, for tests: issues valid and invalid certificates.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    sync::atomic::{AtomicU8, AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use hoplite_certs::{Authority, Subject};

use crate::config::CertificateFiles;

static MADE: AtomicUsize = AtomicUsize::new(0);

/// A CA. Dropping it removes its folder.
pub(crate) struct Ca {
    pub(crate) folder: PathBuf,
    key: String,
    issued: AtomicU8,
}

/// A period of validity, in hours from now.
pub(crate) fn hours(from: i64, to: i64) -> (SystemTime, SystemTime) {
    let at = |hours: i64| {
        let apart = Duration::from_secs(3600 * hours.unsigned_abs());
        if hours < 0 { SystemTime::now() - apart } else { SystemTime::now() + apart }
    };
    (at(from), at(to))
}

impl Ca {
    pub(crate) fn new() -> Self {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("hoplite-ca-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let (begin, end) = hours(-9, 9);
        // All CAs have one name, so that only signatures distinguish them.
        let made = Authority::make(&Subject { name: "ca", serial: &[1], begin, end }).unwrap();
        let ca = Self { folder, key: made.key, issued: AtomicU8::new(1) };
        ca.write("ca.crt", &made.certificate);
        ca
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
        path
    }

    /// Creates the files of a node with a period of validity; returns them and the serial number of
    /// the certificate.
    pub(crate) fn node(&self, (begin, end): (SystemTime, SystemTime)) -> (CertificateFiles, u8) {
        let serial = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        let subject = Subject { name: "node", serial: &[serial], begin, end };
        let made = self.authority().issue(&subject).unwrap();
        (self.files(serial, &made.certificate, &made.key), serial)
    }

    /// Creates the files of a node whose certificate is only for clients.
    pub(crate) fn client(&self) -> CertificateFiles {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut issuer = rcgen::CertificateParams::default();
        issuer.distinguished_name = rcgen::DistinguishedName::new();
        issuer.distinguished_name.push(rcgen::DnType::CommonName, "ca");
        let issuer = rcgen::Issuer::new(issuer, rcgen::KeyPair::from_pem(&self.key).unwrap());
        let mut params = rcgen::CertificateParams::default();
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let serial = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        self.files(serial, &certificate, &key.serialize_pem())
    }

    fn files(&self, serial: u8, certificate: &str, key: &str) -> CertificateFiles {
        CertificateFiles {
            certificate: self.write(&format!("{serial}.crt"), certificate),
            key: self.write(&format!("{serial}.key"), key),
            ca: self.folder.join("ca.crt"),
            crl: None,
        }
    }

    /// The text of a revocation list; all have the same CRL number.
    pub(crate) fn list(&self, serials: &[u8]) -> String {
        self.numbered_list(1, serials)
    }

    /// The text of a revocation list with a CRL number.
    pub(crate) fn numbered_list(&self, number: u64, serials: &[u8]) -> String {
        let revoked: Vec<_> = serials.iter().map(|one| (vec![*one], SystemTime::now())).collect();
        let (begin, end) = hours(0, 9);
        self.authority().revoke(number, &revoked, begin, end).unwrap()
    }

    fn authority(&self) -> Authority {
        Authority::new("ca", &self.key).unwrap()
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}
