//! Settings of a node.

use std::{path::PathBuf, time::Duration};

use hoplite_proto::{place::Place, reduce::cost::Link};
use hoplite_shm::memory_limit;
use rustix::process::{Resource, getrlimit};

/// Settings of a node; every default works on one host.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Address and port to listen on; port 0 selects a free one. An address that other hosts can
    /// reach requires `tokens`, `certificates` or `no_auth`. None does not listen: the node is a
    /// cluster of its own, for the processes of its host.
    pub listen: Option<String>,
    /// The address that other nodes connect to, if it differs from `listen`: containers, NAT,
    /// 0.0.0.0.
    pub advertise: Option<String>,
    /// Addresses of members to join; one that replies is enough. Empty starts a cluster.
    pub join: Vec<String>,
    /// Name of the cluster, compared in the handshake.
    pub cluster: String,
    /// Secrets that all nodes share. This node proves the first, and accepts the others too, for
    /// rotation. They never cross the wire.
    pub tokens: Vec<String>,
    /// Certificates, with which nodes authenticate each other instead of a token.
    pub certificates: Option<CertificateFiles>,
    /// Description of how nodes are admitted, for the status.
    pub admission: String,
    /// Disables encryption of frames; all nodes of a cluster need the same setting.
    pub no_encryption: bool,
    /// Allows a node without a token or certificates to listen where other hosts can reach it.
    pub no_auth: bool,
    /// Requires a capability of attached processes. Needs `tokens`.
    pub require_capability: bool,
    /// Limit of the bytes of objects; None uses 30 % of the memory available to this process.
    pub capacity: Option<u64>,
    /// Folder for pinned copies, least recently used first, when others need their memory; None
    /// keeps all in memory.
    pub spill: Option<SpillConfig>,
    /// Path of the Unix socket for other processes of this host; None creates no socket.
    pub socket: Option<PathBuf>,
    /// Racks or zones of the node; each object crosses between them once.
    pub place: Option<Place>,
    /// Takes part in surveys of shared links, if no member has a configured place.
    pub surveys: bool,
    /// Time after which an unresponsive or partitioned member is declared dead. An ended process is
    /// detected at once.
    pub detection: Duration,
}

/// Settings of spilling to disk.
#[derive(Clone, Debug)]
pub struct SpillConfig {
    /// A folder on a disk, for this node alone. It is created if it is missing.
    pub folder: PathBuf,
    /// Limit of the bytes of files; None uses 80 % of the free space at the start.
    pub limit: Option<u64>,
    /// Keeps the files at the end of the node for its next start.
    pub persistent: bool,
}

/// The PEM files of a node with a certificate.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The node's certificate, followed by the chain to the CA.
    pub certificate: PathBuf,
    /// Its private key, which no other user can read.
    pub key: PathBuf,
    /// The CAs that issue certificates of members.
    pub ca: PathBuf,
    /// Revocation lists, one per CA, re-read when the file changes; None revokes nothing.
    pub crl: Option<PathBuf>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            listen: Some("127.0.0.1:0".into()),
            advertise: None,
            join: Vec::new(),
            cluster: "default".into(),
            tokens: Vec::new(),
            certificates: None,
            admission: String::new(),
            no_encryption: false,
            no_auth: false,
            require_capability: false,
            capacity: None,
            spill: None,
            socket: None,
            place: None,
            surveys: false,
            detection: DETECTION,
        }
    }
}

/// The link until transfers have measured it: 10 Gbit/s with 50 us one way, as in the cloud
/// machines of the papers.
pub(crate) const LINK_ASSUMED: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };

/// Longer than a busy host delays a process, and than replugging a cable takes.
const DETECTION: Duration = Duration::from_secs(3);

/// Size of extents of shared memory that several objects share. New memory costs about 0.7 ms per
/// MiB, whatever the size; in 64 MiB a thousand small objects take one descriptor.
pub(crate) const EXTENT_BYTES: u64 = 64 * 1024 * 1024;

/// Percentage of the host's memory that a node may use by default.
const CAPACITY_PERCENT: u64 = 30;

/// The default capacity: 30 % of the memory available to this process, limited by the host, its
/// control groups, or its address space.
pub(crate) fn default_capacity() -> u64 {
    // Assume 1 GiB if the limit is unknown: less than any machine that moves large objects.
    let memory = match memory_limit() {
        (u64::MAX, _) => 1 << 30,
        (memory, _) => memory,
    };
    memory / 100 * CAPACITY_PERCENT
}

/// This process's limit of open files.
pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Describes a capacity for which this process will never have the memory.
pub(crate) fn excess(capacity: u64) -> Option<String> {
    let (memory, limit) = memory_limit();
    (capacity > memory).then(|| {
        format!(
            "{limit} has {memory} bytes of memory, less than the capacity, so some puts will wait \
             for memory: reduce the capacity"
        )
    })
}
