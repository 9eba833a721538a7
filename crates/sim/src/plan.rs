//! Plans of simulations: the cluster, the objects, the requests with their times, and the faults.
//!
//! Everything is decided here before the first event, except what depends on replies (ids, nodes that still exist).

mod diced;

use hoplite_proto::{id::Name, meta::Meta, node::Config, selection::Selection, time::Instant};

use serde::{Deserialize, Serialize};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Detection time of failed members.
pub(crate) const DETECTION_NS: u64 = 3 * SECOND;

/// Prefix of names with version numbers.
pub(crate) const PUBLISHED: &str = "policy/";

/// A whole simulation before it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Nodes that exist from the start.
    pub(crate) nodes: u64,
    /// Until then, nodes with even and odd numbers are two clusters; `None` if they are one from the start.
    #[serde(default)]
    pub(crate) apart_until: Option<Instant>,
    pub(crate) config: Config,
    /// Probability that a slot allocation fails, in percent.
    pub(crate) slot_failures: u64,
    /// The disk of each node, if nodes have one.
    #[serde(default)]
    pub(crate) disk: Option<Disk>,
    pub(crate) objects: Vec<Spec>,
    pub(crate) acts: Vec<(Instant, Act)>,
    /// Whether some clients join a job.
    #[serde(default)]
    pub(crate) has_jobs: bool,
    /// Whether clients reserve the names of their puts some time before.
    #[serde(default)]
    pub(crate) reserves: bool,
    /// Whether puts without a name fill slots of other clients.
    #[serde(default)]
    pub(crate) has_slots: bool,
    /// Whether hosts may send damaged bytes, and objects have digests.
    #[serde(default)]
    pub(crate) is_damaged: bool,
    /// End of the plan: no act starts later.
    pub(crate) end: Instant,
}

/// The disk of each host.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Limit of the bytes in files.
    pub(crate) limit: u64,
    /// Probability that a write or a read fails, in percent.
    pub(crate) failures: u64,
    /// Time per block.
    pub(crate) block_ns: u64,
    /// Whether a restarted node finds the files of its predecessor.
    pub(crate) persistent: bool,
}

/// A temporary fault of hosts and links.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A host is unresponsive: its process is stopped, or the machine is busy.
    Freeze,
    /// The link of a host is slower by this factor.
    Slow { times: u64 },
    /// One node and all others cannot reach each other.
    Off,
    /// One node receives nothing from the others, but they receive from it.
    NoReceive,
    /// Two nodes cannot reach each other.
    Pair,
    /// One node receives nothing from another one, but that one receives from it.
    OneWay,
    /// About half of the nodes and the others cannot reach each other.
    Partition,
    /// This percentage of the blocks that a host sends do not match their checksums.
    Blocks { percent: u64 },
    /// This percentage of the blocks and small objects that a host sends are wrong, which only digests reveal.
    Copies { percent: u64 },
}

/// An object that a client creates, unless something fails.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: Option<Name>,
    pub(crate) meta: Meta,
    pub(crate) make: Make,
    /// Time to live, from its completion.
    #[serde(default)]
    pub(crate) ttl_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Make {
    Put {
        fate: Fate,
        /// Time between two blocks.
        pace_ns: u64,
    },
    Reduce {
        inputs: Vec<usize>,
        count: usize,
        timeout_ns: Option<u64>,
        /// When the request itself is canceled; only a request for a name is still open then.
        cancel_ns: Option<u64>,
    },
}

/// What a client does with an object that it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fate {
    Sealed,
    /// Aborted after some blocks.
    Aborted,
    /// The client fails after some blocks.
    Orphaned,
}

/// An act of a client, or an event. Objects are indices of [`Plan::objects`]; `at` selects one of the existing nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    Make {
        object: usize,
        at: u64,
    },
    Get {
        object: usize,
        at: u64,
        /// The rows that the client wants; `None` wants the whole object.
        #[serde(default)]
        selection: Option<Selection>,
        timeout_ns: Option<u64>,
        cancel_ns: Option<u64>,
        /// How long the client reads it.
        read_ns: u64,
    },
    /// Reads an object while it arrives; `with_get` also sends a get for it.
    Follow {
        object: usize,
        at: u64,
        with_get: bool,
        timeout_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    Wait {
        objects: Vec<usize>,
        count: usize,
        at: u64,
        timeout_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    /// Requests the holders of an object, and again after each of `changes` changes.
    Locations {
        object: usize,
        at: u64,
        changes: u32,
        timeout_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    Inputs {
        object: usize,
    },
    /// Requests replicas at the node where the object was put.
    Replicate {
        object: usize,
        replicas: u32,
    },
    Delete {
        object: usize,
        at: u64,
    },
    Prune {
        /// Version number of the name under [`PUBLISHED`].
        version: u64,
        retain: u64,
        at: u64,
        timeout_ns: Option<u64>,
    },
    Latest {
        after: Option<u64>,
        at: u64,
        timeout_ns: u64,
    },
    ClientDies {
        at: u64,
    },
    Join,
    Leave {
        at: u64,
    },
    Crash {
        at: u64,
    },
    /// A member is barred from the cluster.
    Revoke {
        at: u64,
    },
    /// A client forks; its child ends after some time.
    Fork {
        at: u64,
        time_ns: u64,
    },
    /// A process fails, and another one starts at its address.
    Restart {
        at: u64,
        pause_ns: u64,
    },
    /// The connections of two nodes break; everything in flight on them is lost.
    Break {
        at: u64,
    },
    /// A temporary fault of hosts and links.
    Fault {
        at: u64,
        fault: Fault,
        time_ns: u64,
    },
}

impl Act {
    /// The objects of the act.
    pub(crate) fn objects_mut(&mut self) -> Vec<&mut usize> {
        match self {
            Self::Make { object, .. }
            | Self::Get { object, .. }
            | Self::Follow { object, .. }
            | Self::Locations { object, .. }
            | Self::Inputs { object }
            | Self::Replicate { object, .. }
            | Self::Delete { object, .. } => vec![object],
            Self::Wait { objects, .. } => objects.iter_mut().collect(),
            Self::Prune { .. }
            | Self::Latest { .. }
            | Self::ClientDies { .. }
            | Self::Join
            | Self::Leave { .. }
            | Self::Crash { .. }
            | Self::Revoke { .. }
            | Self::Fork { .. }
            | Self::Restart { .. }
            | Self::Break { .. }
            | Self::Fault { .. } => Vec::new(),
        }
    }
}

/// Objects of one size, which can be folded with each other.
pub(crate) struct Class {
    pub(crate) meta: Meta,
    objects: Vec<usize>,
}

impl Plan {
    /// An empty plan: one cluster, no objects, no failing allocations, no disks and no jobs.
    pub(crate) const fn empty(nodes: u64, config: Config, end: Instant) -> Self {
        Self {
            nodes,
            apart_until: None,
            config,
            slot_failures: 0,
            disk: None,
            objects: Vec::new(),
            acts: Vec::new(),
            has_jobs: false,
            reserves: false,
            has_slots: false,
            is_damaged: false,
            end,
        }
    }

    /// The objects that acts use, or that are inputs of reduces.
    pub(crate) fn named(&self) -> Vec<usize> {
        let mut acts = self.acts.clone();
        let acted = acts.iter_mut().flat_map(|(_, act)| act.objects_mut()).map(|object| *object);
        let mut named: Vec<usize> = acted.collect();
        for spec in &self.objects {
            if let Make::Reduce { inputs, .. } = &spec.make {
                named.extend(inputs);
            }
        }
        named
    }

    pub(crate) fn add(&mut self, at: u64, act: Act) {
        self.acts.push((Instant(at), act));
    }

    pub(crate) fn add_object(&mut self, spec: Spec) -> usize {
        self.objects.push(spec);
        self.objects.len() - 1
    }
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("names of the plan are names")
}
