//! Reads the files of certificates, keys and revocation lists, and refuses those that others can
//! change or read. Does not know what is in them.

use std::{
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
};

use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
    pem::{Error as PemError, PemObject},
};

/// Longest accepted file, in bytes. A list of one million certificates is half as long.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Mode bits that a key file must not have. If root owns the file, its group may read it, such as
/// the group of a service.
const CLOSED: u32 = 0o077;
const CLOSED_OF_ROOT: u32 = 0o037;

/// Mode bits that no file may have. A group may write it: many users have a group of their own.
const WRITABLE: u32 = 0o002;

/// Reads a file that is public but decides which nodes are admitted.
pub(super) fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    read_if(what, path, |metadata| {
        let shown = path.display();
        let is_open = metadata.mode() & WRITABLE != 0;
        is_open.then(|| format!("every user can write the {what} {shown}: run chmod o-w {shown}"))
    })
}

/// Reads a file, unless `refused` rejects its owner or mode.
fn read_if(
    what: &str,
    path: &Path,
    refused: impl Fn(&Metadata) -> Option<String>,
) -> Result<Vec<u8>, String> {
    let unread = |error: io::Error| format!("the {what} {} can't be read: {error}", path.display());
    // A pipe would block the node, and a folder would give a less clear error.
    if !std::fs::metadata(path).map_err(unread)?.is_file() {
        return Err(unread(io::Error::other("not a regular file")));
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

/// Reads the certificates of a file: any number as PEM, or one as DER.
pub(super) fn certificates(
    what: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let none = "contains no certificate: a certificate begins with -----BEGIN CERTIFICATE-----";
    taken_apart(what, path, &read(what, path)?, none)
}

/// Reads the revocation lists of a file: any number as PEM, or one as DER.
pub(super) fn lists(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let none = "contains no list: a list begins with -----BEGIN X509 CRL-----";
    taken_apart("revocation list", path, bytes, none)
}

fn taken_apart<T: PemObject + From<Vec<u8>>>(
    what: &str,
    path: &Path,
    bytes: &[u8],
    none: &str,
) -> Result<Vec<T>, String> {
    let wrong = |why: &str| format!("the {what} {} {why}", path.display());
    let all: Result<Vec<T>, PemError> = T::pem_slice_iter(bytes).collect();
    let mut all = all.map_err(|_| wrong("is corrupt: not valid PEM"))?;
    if all.is_empty() && is_der(bytes) {
        all.push(bytes.to_vec().into());
    }
    if all.is_empty() { Err(wrong(none)) } else { Ok(all) }
}

fn is_der(bytes: &[u8]) -> bool {
    const SEQUENCE: u8 = 0x30;
    bytes.first() == Some(&SEQUENCE)
}

/// Reads a private key from a file that only this user can read.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let shown = path.display();
    let me = rustix::process::getuid().as_raw();
    let bytes = read_if("key", path, |metadata| {
        let owner = metadata.uid();
        let closed = if owner == 0 { CLOSED_OF_ROOT } else { CLOSED };
        if owner != 0 && owner != me {
            Some(format!(
                "the key {shown} belongs to another user ({owner}): run chown and chmod 600 on it"
            ))
        } else if metadata.mode() & closed != 0 {
            Some(format!("other users can read or write the key {shown}: run chmod 600 {shown}"))
        } else {
            None
        }
    })?;
    match PrivateKeyDer::from_pem_slice(&bytes) {
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) if bytes.windows(9).any(|part| part == b"ENCRYPTED") => {
            Err(format!(
                "the key {shown} is encrypted, and a node can't prompt for a password: decrypt it \
                 (openssl pkey)"
            ))
        }
        Err(PemError::NoItemsFound) => Err(format!(
            "the file {shown} contains no private key: a key begins with -----BEGIN PRIVATE \
             KEY-----"
        )),
        Err(_) => Err(format!("the key {shown} is corrupt: not valid PEM")),
    }
}
