//! Functions that find the node of a process: `connect` attaches to a given node, and `init` looks for one and starts
//! one if there is none.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    attachment::Attachment,
    client::{Client, ClientOptions},
    error::{Error, Result},
};

/// Prefix of an address that is the path of a Unix socket.
pub(crate) const UNIX: &str = "unix:";

/// Attaches to the node of this host that serves a Unix socket: `unix:` and its path, or the path alone. Waits at most
/// `timeout` until it replies, or without limit.
///
/// # Errors
/// `ConnectError` if no node served the socket in time; `InvalidArgument` if the address is not a path; `NotAllowed`.
pub fn connect(address: &str, options: ClientOptions, timeout: Option<Duration>) -> Result<Client> {
    let path = address.strip_prefix(UNIX).unwrap_or(address);
    if path.is_empty() || (path == address && !path.starts_with(['/', '.'])) {
        let message = format!(
            "address {address:?} is not a socket path: use \"unix:/path\", or init for other addresses"
        );
        return Err(Error::argument(message));
    }
    attached(Path::new(path), options, timeout)
}

/// Attaches to this host's node.
///
/// # Errors
/// As [`connect`].
pub fn init(
    address: Option<&str>,
    options: ClientOptions,
    timeout: Option<Duration>,
) -> Result<Client> {
    connect(address.unwrap_or_default(), options, timeout)
}

fn attached(path: &Path, options: ClientOptions, timeout: Option<Duration>) -> Result<Client> {
    let terms = options.terms()?;
    let native = Attachment::attach(path, terms.capability.as_ref(), timeout)?;
    Attachment::new(native, Some(PathBuf::from(path)), terms, None).map(Client::new)
}
