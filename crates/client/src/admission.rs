//! The credentials with which a node joins: certificates, a token, or the secret of this user.

use std::{
    fs::{File, OpenOptions, hard_link, remove_file},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_node::CertificateFiles;
use rustix::{fs::OFlags, process::getuid};

use crate::{
    error::{Error, ErrorKind, Result},
    settings::{
        address::is_loopback,
        secrets::{MAKE_ONE, TOKEN_BYTES, checked_token, new_token, read_tokens},
        source::Found,
    },
    sockets::runtime_dir,
};

/// Name of the file in the runtime directory.
const NAME: &str = "secret";

/// The admission of a node with that secret, in words.
const OF_USER: &str = "the secret of this user on this host";

/// An addition to the error of a node that was rejected; empty if its settings have credentials. An error that does not
/// mention a token has another reason.
pub(crate) fn hint(admission: &str, error: &str) -> &'static str {
    if admission == OF_USER && error.contains("token") {
        "; without a token in its settings, a node uses a secret that only this user's nodes on the same host share"
    } else {
        ""
    }
}

/// The settings of credentials.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) token: Found<String>,
    pub(crate) token_file: Found<PathBuf>,
    pub(crate) certificate: Found<PathBuf>,
    pub(crate) key: Found<PathBuf>,
    pub(crate) ca: Found<PathBuf>,
    pub(crate) crl: Found<PathBuf>,
    pub(crate) no_auth: Found<bool>,
    pub(crate) require_capability: Found<bool>,
}

/// The credentials that a node presents and accepts.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) tokens: Vec<String>,
    pub(crate) certificates: Option<CertificateFiles>,
    /// The same in words.
    pub(crate) admission: String,
}

impl Credentials {
    /// Whether the settings have a token or a certificate.
    pub(crate) fn is_any_set(&self) -> bool {
        let files = [&self.token_file, &self.certificate, &self.key, &self.ca, &self.crl];
        self.token.value.is_some() || files.iter().any(|file| file.value.is_some())
    }

    /// Determines the credentials of a node that listens on an address, if any.
    ///
    /// # Errors
    /// `InvalidArgument` if other hosts can reach the node and it has no credentials, two settings contradict each
    /// other, or a file is not usable; `Internal` if another user owns or can read this user's secret.
    pub(crate) fn admission(self, listen: Option<&str>) -> Result<Admission> {
        let certificates = self.certificates()?;
        let tokens = match listen {
            Some(listen) if certificates.is_none() => self.tokens(listen)?,
            _ => Vec::new(),
        };
        if self.require_capability.value == Some(true) && tokens.is_empty() {
            let message = format!(
                "require_capability ({}) needs a token, which verifies capabilities: set token_file ({MAKE_ONE})",
                self.require_capability.origin
            );
            return Err(Error::argument(message));
        }
        let is_given = self.token.value.is_some() || self.token_file.value.is_some();
        let admission = match &certificates {
            Some(files) => format!("certificates of {}", files.ca.display()),
            None if listen.is_none() => "none: no other node can reach this one".into(),
            None if tokens.is_empty() => "none: every node that can reach this one may join".into(),
            None if is_given => "a token".into(),
            None => OF_USER.into(),
        };
        Ok(Admission { tokens, certificates, admission })
    }

    /// The files of the certificate, key, CA and revocation list; None if the settings have none of them.
    fn certificates(&self) -> Result<Option<CertificateFiles>> {
        let files = [
            ("certificate", &self.certificate),
            ("key", &self.key),
            ("ca", &self.ca),
            ("crl", &self.crl),
        ];
        let Some((name, given)) = files.iter().find(|(_, file)| file.value.is_some()) else {
            return Ok(None);
        };
        let origin = &given.origin;
        let others = [
            ("token", self.token.value.is_some(), &self.token.origin),
            ("token_file", self.token_file.value.is_some(), &self.token_file.origin),
            ("no_auth", self.no_auth.value == Some(true), &self.no_auth.origin),
        ];
        if let Some((other, _, other_origin)) = others.iter().find(|(_, is_set, _)| *is_set) {
            return Err(exclusive(name, origin, other, other_origin));
        }
        let [certificate, key, ca] =
            [&self.certificate, &self.key, &self.ca].map(|file| file.value.clone());
        let (Some(certificate), Some(key), Some(ca)) = (certificate, key, ca) else {
            let message = format!(
                "{name} ({origin}) is set without the others: set certificate, key and ca (create them with: hoplite \
                 certs)"
            );
            return Err(Error::argument(message));
        };
        Ok(Some(CertificateFiles { certificate, key, ca, crl: self.crl.value.clone() }))
    }

    /// The tokens of a node without certificates; none only with `no_auth`.
    fn tokens(&self, listen: &str) -> Result<Vec<String>> {
        match (&self.token.value, &self.token_file.value) {
            (Some(_), Some(_)) => {
                Err(exclusive("token", &self.token.origin, "token_file", &self.token_file.origin))
            }
            (Some(token), None) => Ok(vec![checked_token("token", token)?]),
            (None, Some(file)) => read_tokens(file),
            (None, None) if self.no_auth.value == Some(true) => Ok(Vec::new()),
            (None, None) if is_loopback(listen) => Ok(vec![user_secret()?]),
            (None, None) => Err(Error::argument(format!(
                "other hosts can reach {listen}, and the node has no credentials: set the same token on all nodes of \
                 the cluster ({MAKE_ONE}), or certificates of one CA (hoplite certs); or set no_auth if everyone on \
                 the network may read and write every object"
            ))),
        }
    }
}

fn exclusive(name: &str, origin: &str, other: &str, other_origin: &str) -> Error {
    Error::argument(format!(
        "{name} ({origin}) and {other} ({other_origin}) are mutually exclusive: set only one of them"
    ))
}

/// The secret of this user on this host, which Python's nodes use too; created if there is none.
fn user_secret() -> Result<String> {
    let path = runtime_dir()?.join(NAME);
    let failed = |error: io::Error| {
        let message = format!(
            "can't read the secret of this user in {} ({error}): remove it, or set a token ({MAKE_ONE})",
            path.display()
        );
        Error::new(ErrorKind::HostError, message)
    };
    match read(&path).map_err(failed)? {
        Some(found) => return checked(&path, &found),
        None => create(&path, &new_token()?).map_err(failed)?,
    }
    checked(&path, &read(&path).map_err(failed)?.unwrap_or_default())
}

/// Writes a secret unless another process does so first: the first link wins.
fn create(path: &Path, token: &str) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let made = path.with_file_name(format!("{NAME}-{}-{now}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&made)?;
    let linked = file.write_all(token.as_bytes()).and_then(|()| hard_link(&made, path));
    remove_file(&made)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Reads the file of a secret; None if it is missing. Does not follow a link or block on a pipe.
fn read(path: &Path) -> io::Result<Option<String>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = File::options().read(true).custom_flags(flags.bits() as i32).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let metadata = file.metadata()?;
    let is_mine = metadata.uid() == getuid().as_raw() && metadata.mode() & 0o077 == 0;
    if !metadata.is_file() || !is_mine {
        return Err(io::Error::other("it must be a file that only this user can read"));
    }
    let mut content = String::new();
    file.take(TOKEN_BYTES as u64 + 1).read_to_string(&mut content)?;
    Ok(Some(content))
}

fn checked(path: &Path, secret: &str) -> Result<String> {
    let shown = path.display();
    checked_token("the secret", secret).map_err(|_| {
        let message = format!("{shown} is corrupt: remove it and restart this user's nodes");
        Error::new(ErrorKind::HostError, message)
    })
}
