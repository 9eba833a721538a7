//! A node in this process: starts, is used through clients, leaves.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    node::{Config, LEAVE_PATIENCE_NS},
};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::{Builder, Runtime},
    task::AbortHandle,
};
use tracing::info;

use crate::{
    config::{NodeConfig, default_capacity},
    engine::{Core, lock},
    error::Error,
    fork_safe,
    local::client::Client,
    local::server,
    local::socket,
    network::control::Control,
    network::handshake::{self, Identity},
    network::join::{self, resolve},
    network::listen,
};

/// A node in this process. Dropping it closes it without much patience; [`Node::close`] hands over first.
pub struct Node {
    core: Arc<Core>,
    socket: Option<PathBuf>,
    running: Mutex<Option<Running>>,
    /// A fork of this process has the node's memory but none of its threads.
    process: u32,
}

struct Running {
    runtime: Runtime,
    accepting: Vec<AbortHandle>,
}

/// Threads that move bytes. On two cores one is enough for what links carry, and a second would mostly be woken by the
/// first; beyond four a host's network is slower than they are.
const THREADS_MAX: usize = 4;

/// How long a node that is dropped may take to hand over.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

impl Node {
    /// Starts a node and joins the cluster that `config` names.
    ///
    /// # Errors
    /// [`Error::AddressInUse`], [`Error::Listen`] for an address that can't be used or is reachable by others without
    /// a token, [`Error::Join`] if no named member lets this node in.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let listen = resolve(&config.listen)
            .map_err(|detail| Error::Listen { address: config.listen.clone(), detail })?;
        let is_open = config.token.is_none() && !config.insecure;
        if !listen.ip().is_loopback() && is_open {
            return Err(Error::Listen {
                address: config.listen,
                detail: "other hosts can reach it: give all nodes of the cluster the same token, or say insecure \
                         if everybody on the network may read and write every object"
                    .into(),
            });
        }
        let threads = std::thread::available_parallelism()
            .map_or(1, |cores| (cores.get() / 2).clamp(1, THREADS_MAX));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("hoplite")
            .enable_all()
            .build()
            .map_err(|error| Error::Listen {
                address: config.listen.clone(),
                detail: error.to_string(),
            })?;
        let started = runtime.block_on(begin(&config, listen));
        match started {
            Ok((core, accepting)) => {
                let running = Mutex::new(Some(Running { runtime, accepting }));
                Ok(Self { core, socket: config.socket, running, process: std::process::id() })
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Where other nodes reach this one.
    pub fn address(&self) -> SocketAddr {
        self.core.identity.member.address
    }

    /// The identity of this start of the node.
    pub fn id(&self) -> NodeId {
        self.core.identity.member.id
    }

    /// Where other processes of this host attach, if they can.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// A client in this process.
    pub fn client(&self) -> Client {
        Client::embedded(self.core.clone())
    }

    /// Whether the node has been closed.
    pub fn is_closed(&self) -> bool {
        self.core.is_closed()
    }

    /// Leaves the cluster and ends. First other members take over what only this node holds, for at most `patience`,
    /// 60 s if none; whether they have all of it. Who waits on this node is told that it is down. Views stay valid.
    pub fn close(&self, patience: Option<Duration>) -> bool {
        let Some(running) = self.stop_accepting() else { return true };
        let patience = patience.unwrap_or(Duration::from_nanos(LEAVE_PATIENCE_NS));
        let has_left = running.runtime.block_on(end(&self.core, &running.accepting, patience));
        running.runtime.shutdown_background();
        has_left
    }

    /// Takes what runs, and the socket's path out of the way while nobody else can have taken it; none if the node was
    /// closed before, or belongs to the process that this one was forked from.
    fn stop_accepting(&self) -> Option<Running> {
        let running = lock(&self.running).take()?;
        if self.process != std::process::id() {
            // Its threads are not here to be waited for, and its sockets are the parent's.
            std::mem::forget(running);
            return None;
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        Some(running)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Inside another runtime there is no waiting for ours; the others notice that this node is gone.
        if tokio::runtime::Handle::try_current().is_ok() {
            if let Some(running) = self.stop_accepting() {
                self.core.close();
                running.runtime.shutdown_background();
            }
        } else {
            self.close(Some(DROP_PATIENCE));
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.id()).field("address", &self.address()).finish()
    }
}

async fn begin(
    config: &NodeConfig,
    listen: SocketAddr,
) -> Result<(Arc<Core>, Vec<AbortHandle>), Error> {
    let failed = |error: std::io::Error| Error::Listen {
        address: config.listen.clone(),
        detail: error.to_string(),
    };
    let listener = bind(listen, &config.listen)?;
    let bound = listener.local_addr().map_err(failed)?;
    let address = advertised(config, bound)?;
    let mut id = [0; 8];
    handshake::entropy(&mut id).map_err(failed)?;
    let member = Member { id: NodeId(u64::from_le_bytes(id)), address, rack: config.rack };
    let identity = Identity {
        member,
        cluster: config.cluster.clone(),
        token: config.token.clone(),
        silence: config
            .detection
            .saturating_mul(2)
            .clamp(Duration::from_secs(1), handshake::SILENCE_MAX),
        turns: Arc::default(),
    };
    let control = Control::new().map_err(failed)?;
    // Last of what can fail before there is something to be ended, so that a node that does not start leaves no socket behind.
    let local_listener = match &config.socket {
        Some(path) => Some(socket::bind(path)?),
        None => None,
    };
    let capacity = config.capacity.unwrap_or_else(default_capacity);
    let detection_ns = u64::try_from(config.detection.as_nanos()).ok();
    let machine = Config { capacity, link: config.link, degree: config.degree, detection_ns };
    info!(node = %identity.member.id, %address, cluster = identity.cluster, capacity, "begins");
    let core = Core::new(identity, machine, control, tokio::runtime::Handle::current());
    let mut accepting = vec![tokio::spawn(listen::accept(core.clone(), listener)).abort_handle()];
    if let Some(local_listener) = local_listener {
        accepting.push(tokio::spawn(server::accept(core.clone(), local_listener)).abort_handle());
    }
    let joined = match Control::start(&core).map_err(failed) {
        Ok(()) => join::join(&core, &config.join).await,
        Err(error) => Err(error),
    };
    if let Err(error) = joined {
        end(&core, &accepting, Duration::ZERO).await;
        if let Some(socket) = &config.socket {
            let _ = std::fs::remove_file(socket);
        }
        return Err(error);
    }
    if !config.join.is_empty() {
        let seeking = tokio::spawn(join::seek(core.clone(), config.join.clone()));
        accepting.push(seeking.abort_handle());
    }
    Ok((core, accepting))
}

async fn end(core: &Arc<Core>, accepting: &[AbortHandle], patience: Duration) -> bool {
    let has_left = core.leave(patience).await;
    accepting.iter().for_each(AbortHandle::abort);
    // Receivers that were served when this node left get the rest, as far as a moment allows.
    let until = Instant::now() + patience.min(Duration::from_secs(5));
    while core.has_serves() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    core.peers.close(Duration::from_millis(500)).await;
    core.close();
    has_left
}

fn bind(listen: SocketAddr, said: &str) -> Result<TcpListener, Error> {
    let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        // A node that restarts on its port must not wait for the kernel to forget the old connections.
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        // Whoever calls again when this process was killed is to be refused, not kept waiting.
        TcpListener::from_std(fork_safe::raise(socket.listen(1024)?.into_std()?))
    });
    bound.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::AddressInUse {
            address: said.into(),
            detail: "another process listens there".into(),
        },
        _ => Error::Listen { address: said.into(), detail: error.to_string() },
    })
}

fn advertised(config: &NodeConfig, bound: SocketAddr) -> Result<SocketAddr, Error> {
    let address = match &config.advertise {
        // A port that is not said is the one that is listened on.
        Some(said) => match said.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, bound.port()),
            Err(_) => resolve(said)
                .map_err(|detail| Error::Advertise { address: said.clone(), detail })?,
        },
        None => bound,
    };
    if address.ip().is_unspecified() {
        return Err(Error::Listen {
            address: config.listen.clone(),
            detail: "others can't reach a node at this address: listen on one of the host's addresses, or say which \
                     one to advertise"
                .into(),
        });
    }
    let port = if address.port() == 0 { bound.port() } else { address.port() };
    Ok(SocketAddr::new(address.ip(), port))
}
