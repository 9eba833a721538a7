//! What a node can be told when it starts.

use std::{path::PathBuf, time::Duration};

use hoplite_proto::{place::Place, reduce::cost::Link};
use hoplite_shm::memory_limit;

/// Settings of a node; each has a default that works on one host.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Address and port to listen on; port 0 takes a free one. An address that other hosts can reach needs `tokens`,
    /// `certificates` or `insecure`. None opens no port: the node is a cluster of its own, for the processes of its host.
    pub listen: Option<String>,
    /// The address that others are told, where it differs from `listen`: containers, NAT, 0.0.0.0.
    pub advertise: Option<String>,
    /// Addresses of members to join; one that answers is enough. Empty begins a cluster.
    pub join: Vec<String>,
    /// Name of the cluster, compared when nodes meet.
    pub cluster: String,
    /// Secrets that all nodes share, of which the first is the one that this node proves; further ones are accepted too,
    /// while a token is replaced. They never cross the wire.
    pub tokens: Vec<String>,
    /// Certificates, which nodes show each other in place of a token.
    pub certificates: Option<CertificateFiles>,
    /// How nodes are admitted, in words, for the status.
    pub admission: String,
    /// Whether frames are sent without encryption; all nodes of a cluster have to say the same.
    pub is_plain: bool,
    /// Whether a node without a token or certificates may listen where other hosts can reach it.
    pub insecure: bool,
    /// Whether a process that attaches has to have a capability. That needs `tokens`.
    pub confine: bool,
    /// Bytes of objects the node may hold; none takes 30 % of what this process may use at most.
    pub capacity: Option<u64>,
    /// Where originals go that were not used for long when others need their room; none keeps all in memory.
    pub spill: Option<SpillConfig>,
    /// Path of the Unix socket for other processes of this host; none opens no socket.
    pub socket: Option<PathBuf>,
    /// Where the node stands; objects go from group to group once, and on from there.
    pub place: Option<Place>,
    /// Whether the node takes part in surveys, if no member is told its place.
    pub surveys: bool,
    /// After how long a member that falls silent, frozen or cut off, counts as dead. One that ended is noticed at once.
    pub detection: Duration,
    /// Latency and bandwidth that are assumed until transfers have shown them.
    pub link: Link,
}

/// Where a node spills to.
#[derive(Clone, Debug)]
pub struct SpillConfig {
    /// A folder on a disk, for this node alone. It is made if it is missing.
    pub folder: PathBuf,
    /// Bytes of files; none takes 80 % of what is free there at the start.
    pub limit: Option<u64>,
    /// Whether what is in it when the node ends is there again at the next start.
    pub keep: bool,
}

/// The files of a node that shows a certificate, as PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The node's certificate, followed by those that lead from it to the CA.
    pub certificate: PathBuf,
    /// Its key, which no other user can read.
    pub key: PathBuf,
    /// The CAs that issue certificates of members.
    pub ca: PathBuf,
    /// A list of revocations for each CA, which is read again when it changes; none revokes nothing.
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
            is_plain: false,
            insecure: false,
            confine: false,
            capacity: None,
            spill: None,
            socket: None,
            place: None,
            surveys: false,
            detection: DETECTION,
            link: LINK_ASSUMED,
        }
    }
}

/// 10 Gbit/s with 50 us one way: what the cloud machines of the papers have. Only the first transfers use it.
const LINK_ASSUMED: Link = Link { latency_ns: 50_000, bytes_per_second: 1_250_000_000 };

/// Longer than a busy host lets a process wait for its turn, and than a link needs to be plugged in again.
const DETECTION: Duration = Duration::from_secs(3);

/// Bytes of the longest extent of shared memory that several objects share. New memory costs some 0.7 ms per MiB whatever
/// the size; in 64 MiB a thousand small objects take one descriptor.
pub(crate) const EXTENT_BYTES: u64 = 64 * 1024 * 1024;

/// The share of the host's memory that a node may fill by default, in percent.
const CAPACITY_PERCENT: u64 = 30;

/// 30 % of what this process may use: of the memory of the host, of its control groups, or of what it may map.
pub(crate) fn default_capacity() -> u64 {
    // 1 GiB where nothing can be read: less than any machine that moves large objects.
    let memory = match memory_limit() {
        (u64::MAX, _) => 1 << 30,
        (memory, _) => memory,
    };
    memory / 100 * CAPACITY_PERCENT
}

/// What is wrong with a capacity that this process will never have the memory for.
pub(crate) fn excess(capacity: u64) -> Option<String> {
    let (memory, limit) = memory_limit();
    (capacity > memory).then(|| {
        format!("{limit} has {memory} bytes of memory, less than the capacity: puts beyond that wait for memory")
    })
}
