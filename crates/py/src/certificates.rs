//! Creates certificates, keys and revocation lists for `hoplite.tools.certificates`, as PEM; times are seconds since
//! 1970.

use std::time::{Duration, SystemTime};

use hoplite_certs::{Authority, Error, Subject};
use pyo3::prelude::*;

use crate::errors;

/// Creates a CA; returns its certificate and key.
#[pyfunction]
pub(crate) fn make_authority(
    py: Python<'_>,
    name: &str,
    serial: &[u8],
    begin: u64,
    end: u64,
) -> PyResult<(String, String)> {
    let subject = Subject { name, serial, begin: time(begin), end: time(end) };
    let made = told(py, Authority::make(&subject))?;
    Ok((made.certificate, made.key))
}

/// Issues a certificate for a node, signed by this CA; returns the certificate and its key.
#[pyfunction]
pub(crate) fn issue_certificate(
    py: Python<'_>,
    authority: (String, String),
    name: &str,
    serial: &[u8],
    begin: u64,
    end: u64,
) -> PyResult<(String, String)> {
    let subject = Subject { name, serial, begin: time(begin), end: time(end) };
    let issuer = told(py, Authority::new(&authority.0, &authority.1))?;
    let made = told(py, issuer.issue(&subject))?;
    Ok((made.certificate, made.key))
}

/// Creates the revocation list of a CA. Each entry is a serial number and the time of its revocation.
#[pyfunction]
pub(crate) fn revoke_certificates(
    py: Python<'_>,
    authority: (String, String),
    number: u64,
    revoked: Vec<(Vec<u8>, u64)>,
    begin: u64,
    end: u64,
) -> PyResult<String> {
    let issuer = told(py, Authority::new(&authority.0, &authority.1))?;
    let revoked: Vec<_> = revoked.into_iter().map(|(serial, when)| (serial, time(when))).collect();
    told(py, issuer.revoke(number, &revoked, time(begin), time(end)))
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn told<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| errors::argument(py, &error))
}
