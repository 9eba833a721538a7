//! Functions that find the node of a process: `connect` attaches to a given node, and `init` looks for one and starts
//! one if there is none.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::Duration,
};

use crate::{
    attachment::Attachment,
    client::{Client, ClientOptions},
    error::{Error, ErrorKind, Result},
    node::Node,
    options::NodeOptions,
    process::fill_standard_descriptors,
    settings::{
        address::check,
        kinds,
        source::{Found, Settings},
    },
    sockets,
};

/// Prefix of an address that is the path of a Unix socket.
const UNIX: &str = "unix:";

/// The address of this host's node.
const LOCAL: &str = "local";

/// A node that was found can leave before this process attaches to it; give up after this many in a row.
const ATTEMPTS: u32 = 5;

/// Time for an embedded node to hand over its objects at the end of the last client.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Attaches to the node of this host that serves a Unix socket: `unix:` and its path, or the path alone. Waits at most
/// `timeout` until it replies, or without limit. It never starts a node.
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
    fill_standard_descriptors()?;
    let options = options.with(&Settings::load(None)?)?;
    attached(&sockets::wait_for(&[path.into()], timeout)?, options, timeout)
}

/// Attaches this process to a node; starts an embedded node if there is none.
///
/// Without an address, the first of these that exists is used: the address in HOPLITE_ADDRESS; in a Slurm job, the node
/// of that job on this host; this user's node on this host (`hoplite node`); a node that another process of this user
/// has embedded; a new embedded node, which takes its settings from the environment and from the file in
/// HOPLITE_CONFIG. An embedded node serves a socket, so that other processes find it. It ends with the last client of
/// this process that uses it.
///
/// `address` is `local`, which waits for this host's node; `unix:/path`, which waits for the node that serves this
/// socket; or `host:port`, several separated by commas, which starts an embedded node that joins that cluster.
///
/// # Errors
/// `ConnectError`, `InvalidArgument`, `JoinError`, `NotAllowed`, and those of [`Node::start`].
pub fn init(
    address: Option<&str>,
    options: ClientOptions,
    timeout: Option<Duration>,
) -> Result<Client> {
    fill_standard_descriptors()?;
    let settings = Settings::load(None)?;
    let address = settings.find("address", address.map(String::from), kinds::text)?;
    let address = address.checked(checked_address)?.value;
    let mut options = options.with(&settings)?;
    options.job = settings.find("job", options.job, kinds::text)?.value;
    let search = Search {
        options,
        timeout,
        socket: settings.find("socket", None, kinds::path)?.value,
        cluster: settings.find("cluster", None, kinds::text)?,
        leave: settings.find("leave_timeout", None, kinds::seconds)?.value.unwrap_or(LEAVE_TIMEOUT),
    };
    search.client(address.as_deref())
}

/// Checks the syntax of an address of [`init`].
fn checked_address(address: String) -> Result<String> {
    if address.is_empty() {
        return Err(Error::argument("address is empty: omit it, or use \"local\""));
    }
    match address.strip_prefix(UNIX) {
        Some("") => {
            let message = format!("address {address:?} has no path: use \"unix:/path\"");
            return Err(Error::argument(message));
        }
        None if address != LOCAL => {
            for seed in kinds::list("address", &address)? {
                check("address", &seed).map_err(|error| {
                    Error::argument(format!(
                        "{error}, or \"local\" for the node of this host, or \"unix:/path\" for the node that serves \
                         that socket"
                    ))
                })?;
            }
        }
        _ => {}
    }
    Ok(address)
}

/// The node that `init` started in this process.
pub(crate) struct Embedded {
    node: Node,
    /// The addresses that it joined.
    seeds: Vec<String>,
    leave: Duration,
    process: u32,
}

static EMBEDDED: Mutex<Weak<Embedded>> = Mutex::new(Weak::new());

/// The locked node of this process.
pub(crate) type LockedNode = MutexGuard<'static, Weak<Embedded>>;

/// Locks the node of this process, also for a fork.
pub(crate) fn lock() -> LockedNode {
    EMBEDDED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Embedded {
    /// The node of this process, if it runs.
    fn find() -> Option<Arc<Self>> {
        let embedded = lock().upgrade()?;
        (embedded.process == std::process::id() && !embedded.node.is_closed()).then_some(embedded)
    }

    fn client(self: Arc<Self>, options: ClientOptions) -> Result<Client> {
        let node = self.clone();
        self.node.client_with(options, Some(node))
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.node.close(Some(self.leave));
    }
}

/// What `init` looks for.
struct Search {
    options: ClientOptions,
    timeout: Option<Duration>,
    socket: Option<PathBuf>,
    cluster: Found<String>,
    leave: Duration,
}

impl Search {
    fn client(self, address: Option<&str>) -> Result<Client> {
        if let Some(address) = address {
            if let Some(path) = address.strip_prefix(UNIX) {
                return self.attached(&sockets::wait_for(&[path.into()], self.timeout)?);
            }
            if address == LOCAL {
                let paths = sockets::host_sockets(self.socket.as_deref())?;
                return self.attached(&sockets::wait_for(&paths, self.timeout)?);
            }
        }
        let seeds = address.map(|address| kinds::list("address", address)).transpose()?;
        if self.options.capability.is_some() {
            return self.restricted(seeds.is_some());
        }
        if let Some(own) = Embedded::find() {
            if seeds.iter().flatten().any(|seed| !own.seeds.contains(seed)) {
                let message = format!(
                    "this process already has a node, {:?}, which did not join that address: end its clients first",
                    own.node
                );
                return Err(Error::argument(message));
            }
            return self.checked(own.client(self.options.clone())?);
        }
        match seeds {
            Some(seeds) => self.started(Some(seeds)),
            None => self.meet(),
        }
    }

    /// A client with a capability, which a node in this process would not restrict.
    fn restricted(&self, has_seeds: bool) -> Result<Client> {
        if has_seeds {
            let message = "a capability restricts clients of a running node, but the address starts a new one: omit \
                           the capability or the address";
            return Err(Error::argument(message));
        }
        if let Some(path) = sockets::find(self.socket.as_deref())? {
            return self.attached(&path);
        }
        let message =
            "no node runs on this host, and a capability requires one: start it with hoplite node";
        Err(Error::new(ErrorKind::ConnectError, message))
    }

    /// Attaches to this host's node, or starts it, while other processes do the same.
    fn meet(&self) -> Result<Client> {
        let wanted = self.socket.as_deref();
        let mut attempt = 0;
        loop {
            let path = {
                // A node that is still joining serves its socket already. The lock is free once it has joined or
                // failed.
                let _turn = sockets::one_at_a_time(self.timeout)?;
                match sockets::find(wanted)? {
                    Some(path) => path,
                    None => return self.started(None),
                }
            };
            match self.attached(&path) {
                // The node left before this process attached: look again.
                Err(error)
                    if attempt + 1 < ATTEMPTS
                        && matches!(
                            error.kind(),
                            ErrorKind::ConnectError | ErrorKind::NodeDown
                        ) =>
                {
                    thread::sleep(Duration::from_millis(50) * attempt);
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// Starts an embedded node.
    fn started(&self, join: Option<Vec<String>>) -> Result<Client> {
        let usual = sockets::embedded_socket(self.socket.as_deref())?;
        let seeds = join.clone().unwrap_or_default();
        let options = NodeOptions { join, ..NodeOptions::default() };
        let node = Node::start_at(options, Some(&usual))?;
        let (leave, process) = (self.leave, std::process::id());
        let embedded = Arc::new(Embedded { node, seeds, leave, process });
        *lock() = Arc::downgrade(&embedded);
        embedded.client(self.options.clone())
    }

    fn attached(&self, path: &Path) -> Result<Client> {
        self.checked(attached(path, self.options.clone(), self.timeout)?)
    }

    /// Rejects a node of another cluster than the setting `cluster`, if that is set.
    fn checked(&self, client: Client) -> Result<Client> {
        let Some(wanted) = &self.cluster.value else { return Ok(client) };
        let status: serde_json::Value =
            serde_json::from_str(&client.status().wait()?).map_err(|error| {
                Error::new(ErrorKind::NodeDown, format!("its status is not JSON: {error}"))
            })?;
        let running = status["cluster"].as_str().unwrap_or_default();
        if running == wanted {
            return Ok(client);
        }
        Err(Error::argument(format!(
            "the node at {} belongs to cluster {running:?}, not to {wanted:?} ({}): unset the cluster, or start a node \
             of your own",
            client.socket().unwrap_or(Path::new("")).display(),
            self.cluster.origin
        )))
    }
}

fn attached(path: &Path, options: ClientOptions, timeout: Option<Duration>) -> Result<Client> {
    let terms = options.terms();
    let native = Attachment::attach(path, terms.capability.as_ref(), timeout)?;
    Attachment::new(native, Some(path.to_owned()), terms, None).map(Client::new)
}
