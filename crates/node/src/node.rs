//! A node in this process: starts it, creates clients, and leaves the cluster.

mod port;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use hoplite_proto::{
    id::NodeId,
    members::Member,
    node::{Config, Event, LEAVE_TIMEOUT_NS, Node as Machine, SpilledCopy},
    table::file_bytes,
};
use hoplite_shm::process_id;
use tokio::{
    runtime::{Builder, Runtime},
    task::AbortHandle,
};
use tracing::{info, warn};

use self::port::{advertised, bind, checked, listen_at};
use crate::{
    config::{LINK_ASSUMED, NodeConfig, default_capacity, excess},
    counters::Counters,
    disk::{Disk, file::SpillFile, folder::Folder},
    engine::{
        event_loop::EventLoop,
        event_sender::EventSender,
        tasks::{Supervisor, Task},
    },
    error::Error,
    limited::Limited,
    link::LinkMeter,
    local::{client::Client, programs::Programs, server, socket::ListeningSocket},
    network::{
        certificates,
        control::Control,
        handshake::{self, Identity, NO_ADDRESS, address_of},
        join,
        listen::{self, Serve},
        own_cluster::OwnCluster,
        own_revocation::OwnRevocation,
        peers::Peers,
        proofs::Token,
        revocation,
        shared::{Network, Traffic},
        survey::Survey,
        tls::NodeKey,
    },
    shared_epoll::SharedEpoll,
    shell::Shell,
    store::Store,
    sync::lock,
    transfer::{congestion, send, shared::Transfers, tcp},
    trim,
};

/// A node in this process. Dropping it closes it with a short timeout; [`Node::close`] hands its
/// objects over first.
pub struct Node {
    engine: Arc<EventLoop<Shell>>,
    socket: Option<Arc<ListeningSocket>>,
    running: Mutex<Option<Running>>,
    /// The process that started it: a forked child has the node's memory but none of its threads.
    process: u32,
}

struct Running {
    runtime: Runtime,
    accepting: Vec<AbortHandle>,
}

/// Limit of threads that move bytes. On two cores one thread is enough for what links carry, and a
/// second would mostly be woken by the first. With more than four, the host's network is slower
/// than the threads.
const THREADS_MAX: usize = 4;

/// Limit of blocking threads, which allocate memory and fold small inputs. More would share the
/// host's memory bandwidth, and create separate extents where one is enough for all waiting copies.
const SLOW_THREADS_MAX: usize = 4;

/// Timeout for the tasks of a closed node, which have finished their work by then.
const TASKS_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for handing over objects when a node is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

impl Node {
    /// Starts a node and joins the cluster that `config` names.
    ///
    /// # Errors
    /// [`Error::AddressInUse`]; [`Error::Certificates`]; [`Error::Listen`] for an address that
    /// can't be used, or that other hosts can reach without a token or certificates;
    /// [`Error::Spill`] for an unusable spill folder; [`Error::Join`] if no configured member
    /// admits this node.
    pub fn start(config: NodeConfig) -> Result<Self, Error> {
        let listen = config.listen.as_deref().map(|said| checked(&config, said)).transpose()?;
        if listen.is_none() && !config.join.is_empty() {
            let said = "the members could not connect to this node, which does not listen: set an \
                        address to listen on";
            return Err(Error::Join(said.into()));
        }
        let threads = std::thread::available_parallelism()
            .map_or(1, |cores| (cores.get() / 2).clamp(1, THREADS_MAX));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads(SLOW_THREADS_MAX)
            .thread_name("hoplite")
            .enable_all()
            .build()
            .map_err(|error| failed(&config, &error))?;
        let started = runtime.block_on(begin(&config, listen));
        match started {
            Ok((engine, accepting, socket)) => {
                let running = Mutex::new(Some(Running { runtime, accepting }));
                Ok(Self { engine, socket, running, process: process_id() })
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The address of this node for other nodes; None if it does not listen.
    pub fn address(&self) -> Option<SocketAddr> {
        address_of(&self.engine.shell.network.identity.member)
    }

    /// The id of this start of the node.
    pub fn id(&self) -> NodeId {
        self.engine.shell.network.identity.member.id
    }

    /// The socket for other processes of this host, if it has one.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(|socket| socket.path())
    }

    /// Creates a client in this process.
    pub fn client(&self) -> Client {
        Client::embedded(self.engine.shell.programs.clone())
    }

    /// Whether the node has been closed.
    pub fn is_closed(&self) -> bool {
        self.engine.shell.network.tasks.is_closed()
    }

    /// Why the node stopped by itself, if it did: a panic of one of its threads or tasks, or a
    /// revoked certificate.
    pub fn failure(&self) -> Option<String> {
        self.engine.shell.network.tasks.failure().map(String::from)
    }

    /// Makes a task of the node panic when it next runs: test only.
    #[cfg(feature = "mutants")]
    pub fn inject_panic(&self, task: crate::engine::tasks::Task) {
        self.engine.shell.network.tasks.inject_panic(task);
    }

    /// Leaves the cluster and stops. First other members take over the objects that only this node
    /// holds, for at most `grace`, by default 60 s. Returns whether they took all. Requests that
    /// wait on this node fail with `NodeDown`. Views stay valid.
    pub fn close(&self, grace: Option<Duration>) -> bool {
        let Some(running) = self.stop_accepting() else { return true };
        let grace = grace.unwrap_or(Duration::from_nanos(LEAVE_TIMEOUT_NS));
        let has_left = running.runtime.block_on(end(&self.engine.shell, &running.accepting, grace));
        // A process that sends a request after this finds no running node.
        running.runtime.shutdown_timeout(TASKS_TIMEOUT);
        has_left
    }

    /// Takes the running tasks, and removes the socket before another node can use its path. None
    /// if the node was already closed, or belongs to the parent of this forked process.
    fn stop_accepting(&self) -> Option<Running> {
        let running = lock(&self.running).take()?;
        if self.process != process_id() {
            // Its threads don't exist in this process, and its sockets belong to the parent.
            std::mem::forget(running);
            return None;
        }
        // A node that stopped by itself has removed it, and the path may be another node's by now.
        if let Some(socket) = self.socket.as_ref().filter(|_| self.failure().is_none()) {
            socket.remove();
        }
        Some(running)
    }
}

/// Checks whether the node at an address would admit a node with this configuration. The cluster
/// does not change.
///
/// # Errors
/// [`Error::Certificates`]; [`Error::Join`] with the reason if it would not.
pub fn check_peer(config: &NodeConfig, address: &str) -> Result<NodeId, Error> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(config, &error))?;
    let identity = identity(config, NO_ADDRESS, OwnCluster::visitor())?;
    runtime.block_on(join::check(&identity, address)).map_err(Error::Join)
}

impl Drop for Node {
    fn drop(&mut self) {
        // Inside another runtime this can't wait for the node's; the other nodes detect that this
        // one is gone.
        if tokio::runtime::Handle::try_current().is_ok() {
            if let Some(running) = self.stop_accepting() {
                self.engine.shell.close();
                running.runtime.shutdown_background();
            }
        } else {
            self.close(Some(DROP_TIMEOUT));
        }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.id()).field("address", &self.address()).finish()
    }
}

/// A node that accepts connections.
type Begun = (Arc<EventLoop<Shell>>, Vec<AbortHandle>, Option<Arc<ListeningSocket>>);

async fn begin(config: &NodeConfig, at: Option<SocketAddr>) -> Result<Begun, Error> {
    let failed = |error: std::io::Error| failed(config, &error);
    let said = config.listen.as_deref().unwrap_or_default();
    let bound = at.map(|address| bind(address, said)).transpose()?;
    let address = match &bound {
        Some(bound) => advertised(config, said, bound.local_addr().map_err(failed)?)?,
        None => NO_ADDRESS,
    };
    let identity = identity(config, address, OwnCluster::new().map_err(failed)?)?;
    let epoll = Arc::new(SharedEpoll::new().map_err(failed)?);
    let files = config.spill.as_ref().map(Folder::take).transpose()?;
    // Bind last of the steps that can fail, so that a node that does not start leaves no socket
    // behind.
    let (socket, local_listener) =
        config.socket.as_deref().map(ListeningSocket::bind).transpose()?.unzip();
    let socket = socket.map(Arc::new);
    let listener = bound.map(|bound| listen_at(bound, said)).transpose();
    let listener = listener.inspect_err(|_| socket.iter().for_each(|socket| socket.remove()))?;
    listener.iter().for_each(congestion::begin_without_bbr);
    let (engine, kept) = assemble(config, identity, files, epoll);
    let shell = &engine.shell;
    let tasks = &shell.network.tasks;
    if let Some(disk) = &shell.disk {
        if let Err(error) = disk.start(tasks) {
            shell.close();
            socket.iter().for_each(|socket| socket.remove());
            return Err(failed(error));
        }
        shell.network.events.send(Event::CopiesRecovered { all: kept });
    }
    start_tasks(shell);
    let mut accepting = Vec::new();
    if let Some(listener) = listener {
        let transfers = shell.transfers.clone();
        let serve: Serve = Arc::new(move |node, channel, shown, place| {
            send::start(&transfers, node, tcp::split(channel), shown, place);
        });
        let listening = listen::accept(shell.network.clone(), listener, serve);
        accepting.push(tasks.spawn(Task::Listen, listening).abort_handle());
    }
    if let Err(error) = join_members(config, shell).await {
        end(shell, &accepting, Duration::ZERO).await;
        socket.iter().for_each(|socket| socket.remove());
        return Err(error);
    }
    // Processes that connected meanwhile wait: alone, this node would take the objects of its
    // cluster for absent, and give their names away.
    if let (Some(socket), Some(local_listener)) = (&socket, local_listener) {
        let attaching = server::accept(shell.programs.clone(), local_listener, socket.clone());
        accepting.push(tasks.spawn(Task::Attach, attaching).abort_handle());
    }
    if !config.join.is_empty() {
        let seeking = join::retry_seeds(shell.network.clone(), config.join.clone());
        accepting.push(tasks.spawn(Task::SeedRetry, seeking).abort_handle());
    }
    tokio::spawn(end_if_failed(engine.clone(), accepting.clone(), socket.clone()));
    Ok((engine, accepting, socket))
}

/// Starts the tasks that run as long as the node.
fn start_tasks(shell: &Shell) {
    let (network, transfers) = (shell.network.clone(), shell.transfers.clone());
    let tasks = &shell.network.tasks;
    if let Some(trust) = network.identity.key.trust().filter(|trust| trust.has_list()) {
        tasks.spawn(Task::Revocation, revocation::watch(network.clone(), trust.clone()));
    }
    let (surveying, sending) = (network.clone(), transfers.clone());
    tasks.spawn(Task::Survey, async move {
        let is_busy = move || sending.streams.are_active();
        surveying.survey.run(&surveying.peers, is_busy).await;
    });
    tasks.spawn(Task::DeferredWrites, async move { network.peers.flush_late().await });
    let (programs, of_ending) = (shell.programs.clone(), shell.programs.clone());
    let tell_gone = move || programs.forget_gone();
    tasks.spawn(Task::Trim, async move {
        let Transfers { tasks, store, streams, .. } = &*transfers;
        let ended = || of_ending.requests_ended();
        trim::give_back(tasks, &store.arena, streams, ended, tell_gone).await;
    });
}

/// Begins to receive control messages, and joins the members that `config` names.
async fn join_members(config: &NodeConfig, shell: &Shell) -> Result<(), Error> {
    let (network, tasks) = (&shell.network, &shell.network.tasks);
    network.control.start().map_err(|error| failed(config, &error))?;
    tokio::select! {
        joined = join::join(network, &config.join) => joined,
        () = tasks.failed() => Err(Error::node_down(tasks.failure().unwrap_or_default())),
    }
}

/// Ends a node that stopped by itself: its clients get the reason, and other nodes treat it like an
/// ended process.
async fn end_if_failed(
    engine: Arc<EventLoop<Shell>>,
    accepting: Vec<AbortHandle>,
    socket: Option<Arc<ListeningSocket>>,
) {
    let shell = &engine.shell;
    shell.network.tasks.failed().await;
    accepting.iter().for_each(AbortHandle::abort);
    if let Some(socket) = socket {
        socket.remove();
    }
    shell.close();
    shell.programs.detach_all(shell.network.tasks.failure().unwrap_or_default());
    shell.network.peers.close(Duration::ZERO).await;
}

fn identity(
    config: &NodeConfig,
    address: SocketAddr,
    own_cluster: OwnCluster,
) -> Result<Identity, Error> {
    let key = match &config.certificates {
        Some(files) => {
            let (own, trust) = certificates::load(files)?;
            NodeKey::certified(own, trust)
        }
        None => NodeKey::new(),
    };
    let key = key.map_err(|error| failed(config, &error))?;
    Ok(Identity {
        member: Member { id: key.id(), address, place: config.place },
        key,
        cluster: config.cluster.clone(),
        own_cluster: Arc::new(own_cluster),
        tokens: config.tokens.iter().cloned().map(Token::from).collect(),
        admission: config.admission.clone(),
        no_encryption: config.no_encryption,
        silence: config
            .detection
            .saturating_mul(2)
            .clamp(Duration::from_secs(1), handshake::SILENCE_MAX),
        turns: Arc::default(),
    })
}

/// The folder for files of copies, and the copies in it that an earlier node has left.
type SpillFolder = (Folder, Vec<(SpilledCopy, SpillFile)>);

/// Assembles the parts of a node. Also returns the copies that an earlier node has left in files.
fn assemble(
    config: &NodeConfig,
    identity: Identity,
    files: Option<SpillFolder>,
    epoll: Arc<SharedEpoll>,
) -> (Arc<EventLoop<Shell>>, Vec<SpilledCopy>) {
    let capacity = config.capacity.unwrap_or_else(default_capacity);
    if let Some(excess) = excess(capacity) {
        warn!(capacity, "{excess}");
    }
    let Member { id: node, address, .. } = identity.member;
    info!(%node, %address, cluster = identity.cluster, capacity, "node started");
    let detection_ns = u64::try_from(config.detection.as_nanos()).ok();
    let settings = Config { detection_ns, ..Config::new(capacity, LINK_ASSUMED) };
    let mut machine = Machine::new(identity.member, settings);
    let mut kept = Vec::new();
    let spilling = files.map(|(folder, left)| {
        let files: Vec<_>;
        (kept, files) = left.into_iter().unzip();
        let there: u64 = kept.iter().map(|kept| file_bytes(kept.meta.size)).sum();
        let said = config.spill.as_ref().and_then(|spill| spill.limit);
        let limit = said.unwrap_or_else(|| there + folder.usual_limit());
        machine.spill(limit, folder.is_kept());
        info!(folder = %folder.path().display(), limit, kept = kept.len(), "spilling to disk");
        let instances = kept.iter().map(|kept| kept.instance);
        (folder, instances.zip(files).collect())
    });
    let tasks = Supervisor::new(tokio::runtime::Handle::current());
    let make = |events: &EventSender| {
        let counters = Arc::new(Counters::default());
        let limited = Arc::new(Limited::default());
        let me = identity.member.id;
        let survey = Survey::new(me, config.surveys, events.clone(), counters.clone());
        let network = Arc::new(Network {
            identity,
            peers: Peers::new(limited.clone()),
            control: Arc::new(Control::new(epoll, events.clone(), counters.clone(), tasks.clone())),
            counters,
            limited,
            connection_limit: Arc::default(),
            own_revocation: OwnRevocation::default(),
            traffic: Traffic::default(),
            survey,
            events: events.clone(),
            link: Arc::new(LinkMeter::new(events.clone(), LINK_ASSUMED)),
            tasks: tasks.clone(),
        });
        let store = Arc::new(Store::new(settings.capacity));
        let transfers = Arc::new(Transfers::new(network.clone(), store.clone()));
        let disk = spilling.map(|(folder, there)| {
            Arc::new(Disk::new(folder, there, network.counters.clone(), events.clone()))
        });
        let programs = Programs::new(store, network, config.require_capability);
        Shell::new(transfers, Arc::new(programs), disk)
    };
    (EventLoop::new(machine, tasks.clone(), make), kept)
}

async fn end(shell: &Shell, accepting: &[AbortHandle], grace: Duration) -> bool {
    let has_left = shell.leave(grace).await;
    accepting.iter().for_each(AbortHandle::abort);
    // Receivers that were being served when this node left get the rest, within a few seconds.
    let rest = grace.min(Duration::from_secs(5));
    let _ = tokio::time::timeout(rest, shell.transfers.streams.idle()).await;
    shell.network.peers.close(Duration::from_millis(500)).await;
    shell.close();
    has_left
}

fn failed(config: &NodeConfig, error: &std::io::Error) -> Error {
    let address = config.listen.clone().unwrap_or_else(|| "no port".into());
    Error::Listen { address, detail: error.to_string() }
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use hoplite_proto::wire::Role;

    use super::*;

    /// Goal: a panic also ends the node in tasks that only connections of other nodes start. The
    /// other tasks are tested from outside. Method: a fake node requests a relay, or joins and is
    /// then lost.
    #[test]
    fn panic_in_task_started_by_a_peer_ends_the_node() {
        for (task, role) in [(Task::Relay, Role::Relay), (Task::Reconnect, Role::Join)] {
            let node = Node::start(NodeConfig::default()).unwrap();
            let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = closed.local_addr().unwrap();
            drop(closed);
            let key = NodeKey::new().unwrap();
            let other = Identity {
                member: Member { id: key.id(), address, place: None },
                key,
                cluster: NodeConfig::default().cluster,
                own_cluster: Arc::new(OwnCluster::new().unwrap()),
                tokens: Vec::new(),
                admission: String::new(),
                no_encryption: false,
                silence: handshake::SILENCE_MAX,
                turns: Arc::default(),
            };
            node.inject_panic(task);
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let failed = runtime.block_on(async {
                let address = node.address().unwrap();
                let _met = handshake::initiate(&other, address, role, None).await.unwrap();
                let failed = node.engine.shell.network.tasks.failed();
                tokio::time::timeout(Duration::from_secs(20), failed).await
            });
            assert!(failed.is_ok(), "{task}");
            assert!(node.failure().unwrap().contains(&task.to_string()));
        }
    }
}
