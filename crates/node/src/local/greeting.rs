//! The beginning of an attachment: opens the socket of a node and exchanges greetings.

use std::{
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    time::Duration,
};

use hoplite_proto::{error::Error as CallError, members::Member};
use hoplite_shm::{Peer, fill_standard_descriptors, peer, recv_with_fds, send_with_fds};
use rustix::net::{Shutdown, shutdown};

use super::{
    protocol::{FromNode, LOCAL_VERSION, ReplyReader, ToNode, frame},
    socket,
};
use crate::error::Error;

/// A connection to a node that has admitted this process.
pub(super) struct Greeted {
    pub(super) stream: UnixStream,
    /// Messages may have followed the greeting.
    pub(super) incoming: ReplyReader,
    pub(super) member: Member,
    pub(super) is_authenticated: bool,
    /// The node's process; None if it is in a PID namespace invisible to this process.
    pub(super) node_process: Option<u32>,
}

/// Timeout of a node's greeting. A node replies from memory; longer means that it is unresponsive.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// Time, within the timeout, for a node without a free place to report why this process has none.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(250);

/// Attaches to the node that serves `path`, optionally restricted to a capability.
///
/// # Errors
/// [`Error::Attach`] if no node, or a node of another release, serves the path;
/// [`CallError::NotAllowed`] if the node rejects the capability, or requires one.
pub(super) fn greet(
    path: &Path,
    capability: Option<String>,
    timeout: Option<Duration>,
) -> Result<Greeted, Error> {
    let fail = |error: io::Error| cannot_attach(path, &error);
    let (stream, node_process) = open(path).map_err(fail)?;
    let mut incoming = ReplyReader::default();
    let greeting = exchange(&stream, &mut incoming, capability, timeout).map_err(fail)?;
    let (member, is_authenticated) = match greeting {
        FromNode::Welcome { member, is_authenticated } => (member, is_authenticated),
        FromNode::Refused { said } => return Err(fail(io::Error::other(said))),
        FromNode::NotAllowed { said } => return Err(CallError::NotAllowed(said).into()),
        _ => {
            let said = "the process that serves it replied without a greeting: check that it \
                        is a node";
            return Err(fail(io::Error::other(said)));
        }
    };
    Ok(Greeted { stream, incoming, member, is_authenticated, node_process })
}

/// The error of an attachment that failed, with its remedy.
pub(super) fn cannot_attach(path: &Path, error: &io::Error) -> Error {
    let detail = match error.kind() {
        io::ErrorKind::NotFound => "there is no socket: start a node with `hoplite node`".into(),
        io::ErrorKind::ConnectionRefused => {
            "the node that served it is gone: start one with `hoplite node`".into()
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the node does not reply".into(),
        io::ErrorKind::PermissionDenied => format!(
            "its file belongs to another user ({error}): run this process as the node's user, also \
             in a container"
        ),
        io::ErrorKind::InvalidData => format!(
            "the process that serves it uses another protocol ({error}): use a node of the same \
             release"
        ),
        _ => error.to_string(),
    };
    Error::Attach { path: path.display().to_string(), detail }
}

/// Connects to the socket at `path`. Also returns the node's process, unless it is in a PID
/// namespace invisible to this process.
fn open(path: &Path) -> io::Result<(UnixStream, Option<u32>)> {
    // Also here: a program may have closed one since its client attached for the first time.
    fill_standard_descriptors()?;
    let stream = UnixStream::connect(path)?;
    // Verify the user before trusting any byte from it.
    let Peer { user, process } = peer(stream.as_fd())?;
    if socket::is_stranger(user) {
        return Err(io::Error::other(format!(
            "user {user} serves it, but this process runs as user {}: attach to a node of your own \
             user",
            socket::own_user()
        )));
    }
    Ok((stream, process))
}

/// Sends this process's greeting and returns that of the node.
fn exchange(
    stream: &UnixStream,
    incoming: &mut ReplyReader,
    capability: Option<String>,
    timeout: Option<Duration>,
) -> io::Result<FromNode> {
    let greeting_timeout = timeout.unwrap_or(GREETING_TIMEOUT).max(Duration::from_millis(1));
    let refusal_timeout = REFUSAL_TIMEOUT.min(greeting_timeout / 2);
    stream.set_read_timeout(Some(greeting_timeout - refusal_timeout))?;
    let version = LOCAL_VERSION;
    let hello = match capability {
        None => ToNode::Hello { version },
        Some(capability) => ToNode::HelloRestricted { version, capability },
    };
    // A node that refuses at once has closed the connection by now, after sending the reason.
    let _ = send_with_fds(stream, &frame(&hello), &[]);
    let mut greeting = incoming.next(stream, recv_with_fds);
    let is_late = greeting.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    if is_late {
        // A node at its limit of attachments waits for a free place. It refuses a process that
        // gives up.
        stream.set_read_timeout(Some(refusal_timeout))?;
        shutdown(stream, Shutdown::Write)?;
        greeting = incoming.next(stream, recv_with_fds);
    }
    let greeting = greeting?.ok_or_else(|| io::Error::other("the node closed the connection"))?;
    if is_late && matches!(greeting, FromNode::Welcome { .. }) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(None)?;
    Ok(greeting)
}
