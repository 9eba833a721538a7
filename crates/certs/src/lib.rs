//! Creates CAs, node certificates and revocation lists as PEM.
//!
//! It reads no files, depends on no node and keeps no state. The caller passes the serial numbers and times.

use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber,
};

/// Creation failed: a name or a key is not valid.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] rcgen::Error);

/// The name in a certificate, and its period of validity.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// Its common name.
    pub name: &'a str,
    /// Serial number, unique for the issuer: the bytes of a positive number, most significant first.
    pub serial: &'a [u8],
    /// Start of validity.
    pub begin: SystemTime,
    /// End of validity, inclusive.
    pub end: SystemTime,
}

/// A certificate with its key, as PEM.
#[derive(Clone, Debug)]
pub struct Made {
    /// The certificate.
    pub certificate: String,
    /// The key: ECDSA on P-256, as PKCS #8.
    pub key: String,
}

/// A certificate authority that issues certificates.
#[derive(Debug)]
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// Creates a self-signed CA that may not certify other CAs.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn make(subject: &Subject<'_>) -> Result<Made, Error> {
        let key = KeyPair::generate()?;
        let mut params = params(subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Made { certificate, key: key.serialize_pem() })
    }

    /// Loads a CA that [`Authority::make`] created, from its name and key.
    ///
    /// # Errors
    /// The key is not valid.
    pub fn new(name: &str, key: &str) -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished(name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self(Issuer::new(params, KeyPair::from_pem(key)?)))
    }

    /// Issues a node certificate, valid both as a TLS client and as a TLS server.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn issue(&self, subject: &Subject<'_>) -> Result<Made, Error> {
        let key = KeyPair::generate()?;
        let mut params = params(subject);
        params.is_ca = IsCa::ExplicitNoCa;
        params.subject_alt_names =
            vec![rcgen::SanType::DnsName(subject.name.to_string().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.0)?.pem();
        Ok(Made { certificate, key: key.serialize_pem() })
    }

    /// Creates a revocation list of serial numbers and times. Its `number` must be higher than that of the previous
    /// list.
    ///
    /// # Errors
    /// The CA cannot sign the list.
    pub fn revoke(
        &self,
        number: u64,
        revoked: &[(Vec<u8>, SystemTime)],
        begin: SystemTime,
        end: SystemTime,
    ) -> Result<String, Error> {
        let revoked_certs = revoked.iter().map(|(serial, time)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(serial),
            revocation_time: (*time).into(),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: begin.into(),
            next_update: end.into(),
            crl_number: SerialNumber::from(number),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(&self.0)?.pem()?)
    }
}

fn params(subject: &Subject<'_>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = subject.begin.into();
    params.not_after = subject.end.into();
    params.serial_number = Some(SerialNumber::from_slice(subject.serial));
    params.distinguished_name = distinguished(subject.name);
    params
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}
