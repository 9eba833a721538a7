//! A node embedded in this process: the store of its host, and a member of a cluster.

use std::{fmt, path::Path, sync::Arc, thread, time::Duration};

use hoplite_node::Node as Native;
use tokio::runtime::Handle;

use crate::{
    attachment::Attachment,
    client::{Client, ClientOptions},
    error::{Error, ErrorKind, Result},
    options::NodeOptions,
};

/// A node embedded in this process: a shared-memory store for the processes of this host, and a cluster member.
///
/// [`Node::close`] hands over the objects that only it holds; dropping it does so for at most 2 s.
pub struct Node {
    native: Arc<Native>,
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// `AddressInUse`, `InvalidArgument` for a setting that is not valid, `JoinError`, `Internal`.
    pub fn start(options: NodeOptions) -> Result<Self> {
        let config = options.config()?;
        let native = outside_runtimes(|| Native::start(config))?;
        Ok(Self { native: Arc::new(native) })
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
        if self.is_closed() {
            let message = format!("node {} is closed: start another", self.id());
            return Err(Error::new(ErrorKind::NodeDown, message));
        }
        let terms = options.terms_embedded()?;
        let path = self.socket().map(Path::to_owned);
        Attachment::new(self.native.client(), path, terms, None).map(Client::new)
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
