//! What will be tried in a simulation: the cluster, the objects, who asks for what and when, what goes wrong.
//!
//! Everything is decided here, before the first event, but for what depends on answers (ids, who is still there).

mod diced;

use hoplite_proto::{id::Name, meta::Meta, node::Config, time::Instant};

use serde::{Deserialize, Serialize};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// After how long a silent member counts as dead.
pub(crate) const DETECTION_NS: u64 = 3 * SECOND;

/// What names with numbers are published under.
pub(crate) const PUBLISHED: &str = "policy/";

/// A whole simulation before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Nodes that are there from the start.
    pub(crate) nodes: u64,
    /// Those of even and of odd numbers are two clusters until then, if they are not one from the start.
    #[serde(default)]
    pub(crate) apart_until: Option<Instant>,
    pub(crate) config: Config,
    /// How often a slot can't be had, in percent.
    pub(crate) slot_failures: u64,
    /// The disk of each node, if they have one.
    #[serde(default)]
    pub(crate) disk: Option<Disk>,
    pub(crate) objects: Vec<Spec>,
    pub(crate) acts: Vec<(Instant, Act)>,
    /// Whether some clients are of a job.
    #[serde(default)]
    pub(crate) has_jobs: bool,
    /// When nothing new begins any more.
    pub(crate) end: Instant,
}

/// The disk of each host.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Disk {
    /// Bytes of files.
    pub(crate) limit: u64,
    /// How often a write or a read fails, in percent.
    pub(crate) failures: u64,
    /// How long a block takes.
    pub(crate) block_ns: u64,
    /// Whether a node that begins where another one was finds the files of that.
    pub(crate) keep: bool,
}

/// What hosts and cables do for a while.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// A host stands still: its process is stopped, or the machine is busy with something else.
    Freeze,
    /// The link of a host carries so many times less.
    Slow { times: u64 },
    /// One and all others hear nothing of each other.
    Off,
    /// One hears nothing of all others, which hear it.
    Deaf,
    /// One and another hear nothing of each other.
    Pair,
    /// One hears nothing of another, which hears it.
    OneWay,
    /// About half and the others hear nothing of each other.
    Halves,
}

/// An object that will be made, if all goes well.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) name: Option<Name>,
    pub(crate) meta: Meta,
    pub(crate) make: Make,
    /// How long it lives from when it is complete.
    #[serde(default)]
    pub(crate) ttl_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Make {
    Put {
        fate: Fate,
        /// Between two blocks.
        pace_ns: u64,
    },
    Reduce {
        inputs: Vec<usize>,
        count: usize,
        patience_ns: Option<u64>,
        /// When the question itself is taken back; only one for a name is still open then.
        cancel_ns: Option<u64>,
    },
}

/// What a client does with an object that it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fate {
    Sealed,
    /// Given up after some blocks.
    Aborted,
    /// The client dies after some blocks.
    Orphaned,
}

/// What a client does. Objects are numbers in [`Plan::objects`]; `at` chooses a node among those that are there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    Make {
        object: usize,
        at: u64,
    },
    Get {
        object: usize,
        at: u64,
        patience_ns: Option<u64>,
        cancel_ns: Option<u64>,
        /// How long it is read.
        hold_ns: u64,
    },
    /// Reads an object while it arrives; `with_get`: and asks for it, too.
    Follow {
        object: usize,
        at: u64,
        with_get: bool,
        patience_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    Wait {
        objects: Vec<usize>,
        count: usize,
        at: u64,
        patience_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    /// Asks who holds an object, and so many times again when that has changed.
    Locations {
        object: usize,
        at: u64,
        changes: u32,
        patience_ns: Option<u64>,
        cancel_ns: Option<u64>,
    },
    Inputs {
        object: usize,
    },
    /// Asks for more copies where it was put.
    Keep {
        object: usize,
        copies: u32,
    },
    Delete {
        object: usize,
        at: u64,
    },
    Prune {
        /// The number of the name under [`PUBLISHED`].
        version: u64,
        keep: u64,
        at: u64,
        patience_ns: Option<u64>,
    },
    Latest {
        after: Option<u64>,
        at: u64,
        patience_ns: u64,
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
    /// A process dies, and another one begins at its address.
    Restart {
        at: u64,
        pause_ns: u64,
    },
    /// The connections of two nodes break, and with them is lost what was on its way.
    Break {
        at: u64,
    },
    /// What hosts and cables do for a while.
    Fault {
        at: u64,
        fault: Fault,
        time_ns: u64,
    },
}

impl Act {
    /// The objects that it is about.
    pub(crate) fn objects_mut(&mut self) -> Vec<&mut usize> {
        match self {
            Self::Make { object, .. }
            | Self::Get { object, .. }
            | Self::Follow { object, .. }
            | Self::Locations { object, .. }
            | Self::Inputs { object }
            | Self::Keep { object, .. }
            | Self::Delete { object, .. } => vec![object],
            Self::Wait { objects, .. } => objects.iter_mut().collect(),
            Self::Prune { .. }
            | Self::Latest { .. }
            | Self::ClientDies { .. }
            | Self::Join
            | Self::Leave { .. }
            | Self::Crash { .. }
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
    /// One in which nothing is made yet: one cluster, whose nodes have the memory that they ask for and no disk, and no jobs.
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
            end,
        }
    }

    /// The objects that something is done with, or that something is folded from.
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
