//! What a node has done so far, as numbers that only grow. For users they are explained in docs/counters.md.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counts of a running node.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[doc = $doc])* pub(crate) $name: Counter,)*
        }

        /// What the counters of a node said at one moment.
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
    /// Payload sent from copies that came over the network or are made by a reduce, complete or still growing.
    bytes_relayed,
    /// Partial sums sent to the next position of a reduce.
    bytes_partial,
    /// Payload of any kind that was sent while other transfers shared the link out of this node.
    bytes_shared,
    /// Payload received as copies: what others have counted as direct or relayed.
    bytes_received,
    /// Partial sums received from positions of a reduce: what others have counted as partial.
    bytes_partial_received,
    /// Input bytes folded here for a reduce of another node.
    bytes_folded_remote,
    /// Input bytes folded here for a reduce of this node.
    bytes_folded_local,
    /// Copies received completely.
    fetches,
    /// Transfers of copies that broke off and were asked for again.
    fetches_failed,
    /// Copies sent.
    serves,
    /// Transfers that this node ended since the other end gave or took too little.
    transfers_slow,
    /// Requests for a copy that was not here.
    refusals,
    /// Blocks whose bytes differed from their checksum.
    blocks_corrupt,
    /// Objects that came whole, with another digest than their maker announced.
    copies_corrupt,
    /// Control messages sent.
    messages_sent,
    /// Control messages received.
    messages_received,
    /// Control messages that were received and not listened to, for their sender may not say them.
    messages_refused,
    /// Copies evicted.
    evictions,
    /// How often there was no memory for a copy, though the capacity had room for it.
    memory_refused,
    /// Originals written to disk.
    spills,
    /// Originals that came back from disk.
    unspills,
    /// Originals that could not be written to disk, and files that could not be read.
    spill_failures,
    /// Attempts of reduces that had to begin again.
    reduces_restarted,
    /// Nodes that were asked to keep an original of this one, and did not answer in time.
    keepers_late,
    /// Connections that did not speak the protocol, or were refused: of other nodes, and of processes of this host.
    strangers,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }
}
