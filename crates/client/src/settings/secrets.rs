//! Files with secrets, and tokens: the shared secrets of clusters.
//!
//! A token is [`PREFIX`], followed in base64url by 32 random bytes and their CRC-32.

use std::{
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustix::{
    io::retry_on_intr,
    process::getuid,
    rand::{GetRandomFlags, getrandom},
};

use super::paths::expanded;
use crate::error::{Error, ErrorKind, Result};

/// The number is the version of the format.
const PREFIX: &str = "hpt1_";
const SECRET_BYTES: usize = 32;
/// Three bytes are four letters of base64.
pub(crate) const TOKEN_BYTES: usize = PREFIX.len() + (SECRET_BYTES + 4) / 3 * 4;
const FILE_BYTES_MAX: u64 = 4096;

/// Advice for messages.
pub(crate) const MAKE_ONE: &str = "create one with: hoplite token new";

/// Creates a token from 256 random bits.
///
/// # Errors
/// `HostError` if the kernel has no random bytes.
pub(crate) fn new_token() -> Result<String> {
    let mut secret = [0; SECRET_BYTES];
    retry_on_intr(|| getrandom(&mut secret, GetRandomFlags::empty())).map_err(|error| {
        let message = format!("can't create a token ({error}): set a token");
        Error::new(ErrorKind::HostError, message)
    })?;
    Ok(encoded(&secret))
}

/// Checks a token. The error does not reveal it.
///
/// # Errors
/// `InvalidArgument` if `hoplite token new` did not create it, or it has a typo.
pub(crate) fn checked_token(what: &str, text: &str) -> Result<String> {
    let invalid = |message: String| Err(Error::argument(message));
    let Some(secret) = text.strip_prefix(PREFIX) else {
        let message = "was not created by hoplite, so others may guess it";
        return invalid(format!("{what} {message}: {MAKE_ONE}"));
    };
    if text.len() != TOKEN_BYTES {
        let length = text.chars().count();
        return invalid(format!(
            "{what} has {length} characters instead of {TOKEN_BYTES}: copy it again, or {MAKE_ONE}"
        ));
    }
    let secret = URL_SAFE_NO_PAD.decode(secret).unwrap_or_default();
    if encoded(secret.get(..SECRET_BYTES).unwrap_or_default()) != text {
        return invalid(format!(
            "{what} has a typo (checksum mismatch): copy it again, or {MAKE_ONE}"
        ));
    }
    Ok(text.into())
}

fn encoded(secret: &[u8]) -> String {
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode([secret, &crc_32(secret).to_le_bytes()].concat()))
}

/// CRC-32 (ISO-HDLC). Bit by bit, as a secret is short: a second algorithm of crc-fast, which computes the checksums of
/// frames, would add the tables of all its algorithms to the library, half a megabyte.
fn crc_32(bytes: &[u8]) -> u32 {
    let shifted = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shifted))
}

/// Reads a file with one or two tokens: a node presents the first, and accepts all.
///
/// # Errors
/// `InvalidArgument` if the file is not readable, other users can read it, or its contents are not valid.
pub(crate) fn read_tokens(path: &Path) -> Result<Vec<String>> {
    let path = expanded(path);
    let content = read_private(&path, "the tokens", "a token")?;
    let lines = content.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
    let shown = path.display();
    let tokens = lines
        .map(|(at, line)| checked_token(&format!("{shown}, line {}", at + 1), line))
        .collect::<Result<Vec<_>>>()?;
    if matches!(tokens.len(), 1 | 2) {
        return Ok(tokens);
    }
    let message = format!("{shown} must have 1 or 2 tokens, but has {}: {MAKE_ONE}", tokens.len());
    Err(Error::argument(message))
}

/// Reads a file with a secret.
///
/// # Errors
/// `InvalidArgument` if the file is not readable, or other users can read it.
pub(crate) fn read_private(path: &Path, what: &str, secret: &str) -> Result<String> {
    let unreadable =
        |error| Error::argument(format!("can't read {what} in {}: {error}", path.display()));
    let file = File::open(path).map_err(unreadable)?;
    check_private(path, &file.metadata().map_err(unreadable)?, secret)?;
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(unreadable)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// Rejects a file with a secret that other users can read or write. The group of a file of root may read it.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_private(path: &Path, metadata: &Metadata, secret: &str) -> Result<()> {
    let (shown, owner) = (path.display(), metadata.uid());
    if owner != 0 && owner != getuid().as_raw() {
        let message = format!("{shown} contains {secret} and belongs to another user ({owner})");
        return Err(Error::argument(format!("{message}: run chown and chmod 600 on it")));
    }
    if metadata.mode() & if owner == 0 { 0o037 } else { 0o077 } != 0 {
        let message = format!("{shown} contains {secret}, and other users can read or write it");
        return Err(Error::argument(format!("{message}: run chmod 600 {shown}")));
    }
    Ok(())
}

/// Rejects a file that every user can write.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_trusted(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() && metadata.mode() & 0o002 != 0 {
        let shown = path.display();
        let message = format!("every user can write {shown}: run chmod o-w {shown}");
        return Err(Error::argument(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token that `hoplite.new_token()` created.
    const OF_PYTHON: &str = "hpt1_YXf3mmsmc1ELF3pXzq49mQf4KaA174YhtpB9L59iC6H7NYy5";

    #[test]
    fn tokens_are_those_of_python() {
        assert_eq!(checked_token("token", OF_PYTHON).unwrap(), OF_PYTHON);
        let own = new_token().unwrap();
        assert_eq!(checked_token("token", &own).unwrap(), own);
        assert_ne!(own, new_token().unwrap());
    }

    #[test]
    fn wrong_tokens_are_rejected_without_revealing_them() {
        let typo = OF_PYTHON.replacen(&OF_PYTHON[10..11], "_", 1);
        let reason = |text: &str| checked_token("token", text).unwrap_err().to_string();
        assert!(reason(&typo).contains("has a typo"), "{}", reason(&typo));
        assert!(reason("hpt1_short").contains("10 characters instead of 53"));
        assert!(reason("password").contains("was not created by hoplite"));
        assert!(!reason("password").contains("password"));
        assert!(!reason(&typo).contains(&typo));
    }
}
