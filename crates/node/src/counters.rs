//! Counters of a node, which only grow. docs/counters.md explains them to users.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts of a running node.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[doc = $doc])* pub(crate) $name: Counter,)*
        }

        /// The values of a node's counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct CounterValues {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Payload sent to other nodes from objects that this node's own clients put.
    bytes_direct,
    /// Payload sent from copies that came over the network or are computed by a reduce, complete or
    /// still growing.
    bytes_relayed,
    /// Partial sums sent to the next position of a reduce.
    bytes_partial,
    /// Payload of any kind sent while other transfers shared the link out of this node.
    bytes_shared,
    /// Payload received as copies: the senders count it as direct or relayed.
    bytes_received,
    /// Partial sums received from positions of a reduce: the senders count them as partial.
    bytes_partial_received,
    /// Input bytes folded here for a reduce of another node.
    bytes_folded_remote,
    /// Input bytes folded here for a reduce of this node.
    bytes_folded_local,
    /// Copies received completely.
    fetches,
    /// Transfers of copies that failed and were requested again.
    fetches_failed,
    /// Copies sent.
    serves,
    /// Transfers that this node aborted because the peer sent or accepted too little.
    transfers_slow,
    /// Payload connections that were closed because they had been idle and then brought no reply.
    connections_silent,
    /// Requests for a copy that was not here.
    refusals,
    /// Blocks whose bytes did not match their checksum.
    blocks_corrupt,
    /// Objects received completely that did not match their announced digest.
    copies_corrupt,
    /// Control messages sent.
    messages_sent,
    /// Control messages received.
    messages_received,
    /// Control messages dropped because they were malformed or their sender was not an owner.
    messages_refused,
    /// Copies evicted.
    evictions,
    /// Number of times that a copy got no memory, though the capacity allowed it.
    memory_refused,
    /// Pinned copies written to disk.
    spills,
    /// Pinned copies read back from disk.
    unspills,
    /// Pinned copies that could not be written to disk, and files that could not be read.
    spill_failures,
    /// Attempts of reduces that were restarted.
    reduces_restarted,
    /// Nodes that did not confirm a replica in time.
    replicas_late,
    /// Connections that did not use the protocol, or were refused: of other nodes, and of processes
    /// of this host.
    strangers,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
}
