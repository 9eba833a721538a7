//! A node embedded in this process: the store of its host, and a member of a cluster.

use std::{fmt, path::Path, sync::Arc, thread, time::Duration};

use hoplite_node::{Error as NodeError, Node as Native, NodeConfig};
use tokio::runtime::Handle;

use crate::{
    admission::hint,
    attachment::Attachment,
    client::{Client, ClientOptions},
    error::{Error, ErrorKind, Result},
    options::NodeOptions,
    process::fill_standard_descriptors,
    settings::{kinds, source::Settings},
    signals,
    sockets::{check_free, default_socket, free_path},
};

/// A node embedded in this process: a shared-memory store for the processes of this host, and a cluster member.
///
/// [`Node::close`] hands over the objects that only it holds; dropping it does so for at most 2 s.
pub struct Node {
    native: Native,
}

/// Other processes can take each free path for a socket before this one does; give up after this many in a row.
const ATTEMPTS: u32 = 10;

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// `AddressInUse`, `InvalidArgument` for a setting that is not valid, `JoinError`, `Internal`.
    pub fn start(options: NodeOptions) -> Result<Self> {
        Self::start_at(options, None)
    }

    /// Starts a node; without the option `socket` it serves the path `usual` if that is free.
    pub(crate) fn start_at(options: NodeOptions, usual: Option<&Path>) -> Result<Self> {
        fill_standard_descriptors()?;
        // `init` passes the socket of an embedded node, which the setting does not name.
        let (config, wanted) = options.config(usual.is_none())?;
        let usual = match usual {
            Some(usual) => usual.to_owned(),
            None => default_socket()?,
        };
        let mut attempt = 1;
        loop {
            let path = match &wanted {
                Some(wanted) => {
                    check_free(wanted)?;
                    wanted.clone()
                }
                None => free_path(&usual)?,
            };
            let at_path = NodeConfig { socket: Some(path), ..config.clone() };
            match outside_runtimes(|| signals::blocked(|| Native::start(at_path))) {
                Ok(native) => return Ok(Self { native }),
                // Another process took the path meanwhile. Any other path works.
                Err(NodeError::AddressInUse { .. }) if wanted.is_none() && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                Err(NodeError::Join(reason)) => {
                    let reason = format!("{reason}{}", hint(&config.admission, &reason));
                    return Err(NodeError::Join(reason).into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Identity of the node in hex, new at each start.
    pub fn id(&self) -> String {
        self.native.id().to_string()
    }

    /// Host and port that other nodes join; None if the node has no TCP port.
    pub fn address(&self) -> Option<String> {
        self.native.address().map(|address| address.to_string())
    }

    /// The Unix socket that processes of this host attach to.
    pub fn socket(&self) -> Option<&Path> {
        self.native.socket()
    }

    /// Whether the node has left or failed.
    pub fn is_closed(&self) -> bool {
        self.native.is_closed()
    }

    /// Why the node failed, if it did.
    pub fn failure(&self) -> Option<String> {
        self.native.failure()
    }

    /// Creates a client in this process. `reconnect` has no effect: a node in this process is not replaced.
    ///
    /// # Errors
    /// `NodeDown` if the node is closed; `InvalidArgument` for a capability, which can't restrict its own process.
    pub fn client(&self, options: ClientOptions) -> Result<Client> {
        let settings = Settings::load(None)?;
        let digest = settings.find("digest", options.digest, kinds::flag)?.value;
        let timeout = settings.find("timeout", options.timeout, kinds::seconds)?.value;
        self.client_with(ClientOptions { digest, timeout, ..options }, None)
    }

    /// Creates a client with complete options, which keeps `owner` alive.
    pub(crate) fn client_with(
        &self,
        options: ClientOptions,
        owner: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Client> {
        if options.capability.is_some() {
            let message = "a capability restricts clients of a node in another process, but this node runs in this \
                           process: omit the capability";
            return Err(Error::argument(message));
        }
        if self.is_closed() {
            let message = format!("node {} is closed: start another", self.id());
            return Err(Error::new(ErrorKind::NodeDown, message));
        }
        // A node in this process is not replaced when it ends.
        let terms = ClientOptions { reconnect: false, ..options }.terms();
        let path = self.socket().map(Path::to_owned);
        Attachment::new(self.native.client(), path, terms, owner).map(Client::new)
    }

    /// Leaves the cluster: hands over the objects that only this node holds, for at most `timeout`, by default 60 s,
    /// then frees its store. Views stay valid. Returns whether other nodes hold all of these objects, or no other node
    /// remains. Closing a closed node does nothing.
    pub fn close(&self, timeout: Option<Duration>) -> bool {
        outside_runtimes(|| self.native.close(timeout))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.id())
    }
}

/// Makes a call that blocks on the node's runtime, which a thread of another runtime can't do.
fn outside_runtimes<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    if Handle::try_current().is_err() {
        return call();
    }
    thread::scope(|scope| match scope.spawn(call).join() {
        Ok(result) => result,
        Err(panicked) => std::panic::resume_unwind(panicked),
    })
}
