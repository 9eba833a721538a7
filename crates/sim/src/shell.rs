//! What a real shell does with the orders of its node, on virtual memory and links: slots, and flows of blocks into
//! them. Folds are in [`crate::fold`].
//!
//! ```text
//!   a flow:   FlowAsked --> (asked the sender's node) --Serve--> blocks --> FetchOver, ServeEnded
//!                                  |                      |
//!                                  +--- Refuse            +--- its slot was freed, a host died
//! ```

mod flows;
mod orders;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, ServeId},
    limits::WINDOW_BYTES,
    message::FoldKey,
    node::Kept,
    time::Instant,
};

use crate::payload::Content;

pub(crate) type SlotId = usize;

/// Bytes of what travels as one: here a block, of which a real frame has a few.
pub(crate) const BLOCK_BYTES: u64 = 64 * 1024;

/// Partial results that a position keeps for its parent.
pub(crate) const WINDOW_BLOCKS: usize = (WINDOW_BYTES / BLOCK_BYTES) as usize;

/// The slots, flows and folds of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Shell {
    /// All that ever were.
    pub(crate) slots: Vec<Slot>,
    pub(crate) flows: BTreeMap<u64, Flow>,
    pub(crate) folds: BTreeMap<u64, Folding>,
    pub(crate) fold_at: BTreeMap<(NodeId, FoldKey), u64>,
    /// Folds that are over, however they ended.
    pub(crate) folded_at: BTreeSet<(NodeId, FoldKey)>,
    /// Flows that wait for a fold to begin.
    pub(crate) early: BTreeMap<(NodeId, FoldKey), u64>,
    /// Flows that wait for their sender to hear what it makes.
    early_copies: BTreeMap<(NodeId, Instance), Vec<u64>>,
    /// Results that were received in parts, and are to be complete when all that is here is.
    gathered: BTreeMap<SlotId, Gathered>,
    /// Which flow a node was asked for.
    serves: BTreeMap<ServeId, u64>,
    /// What each instance holds, at every node alike.
    pub(crate) contents: BTreeMap<Instance, Content>,
    /// How often a receiver was refused a copy by a holder.
    pub(crate) refusals: BTreeMap<(NodeId, NodeId, Instance), u32>,
    counted: u64,
}

/// Memory for a copy, which fills from the front, or in each part of a scattered result from its beginning.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) host: NodeId,
    pub(crate) instance: Instance,
    pub(crate) size: u64,
    blocks: Vec<Option<Content>>,
    /// How many of them are there.
    filled: u32,
    /// Its node knows that it is complete.
    pub(crate) is_complete: bool,
    pub(crate) is_freed: bool,
    /// There was no memory for it when it was asked for last.
    is_refused: bool,
    /// Flows and folds that read it.
    pub(crate) flows: BTreeSet<u64>,
    pub(crate) folds: BTreeSet<u64>,
}

impl Slot {
    /// One without a byte, which is complete.
    pub(crate) fn empty(host: NodeId, instance: Instance) -> Self {
        Self {
            host,
            instance,
            size: 0,
            blocks: Vec::new(),
            filled: 0,
            is_complete: true,
            is_freed: false,
            is_refused: false,
            flows: BTreeSet::new(),
            folds: BTreeSet::new(),
        }
    }

    /// The same blocks elsewhere.
    pub(crate) fn copied(&self) -> Self {
        let (blocks, filled, size) = (self.blocks.clone(), self.filled, self.size);
        Self { blocks, filled, size, ..Self::empty(self.host, self.instance) }
    }

    /// How many blocks it will have.
    pub(crate) fn end(&self) -> u32 {
        blocks_of(self.size)
    }

    pub(crate) fn filled(&self) -> u32 {
        self.filled
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.end()
    }

    pub(crate) fn block(&self, index: u32) -> Option<&Content> {
        self.blocks.get(index as usize)?.as_ref()
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.end()).filter(|index| self.block(*index).is_none()).collect()
    }
}

pub(crate) fn blocks_of(size: u64) -> u32 {
    size.div_ceil(BLOCK_BYTES) as u32
}

/// The blocks of some bytes, which begin with one.
pub(crate) fn blocks_in(bytes: &Range<u64>) -> Range<u32> {
    blocks_of(bytes.start)..blocks_of(bytes.end)
}

/// Blocks that go from one host to another, in order.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) what: What,
    /// Bytes of the object.
    pub(crate) size: u64,
    /// The blocks that it consists of.
    wanted: Vec<u32>,
    /// Where its blocks come from, once the sender has agreed.
    pub(crate) source: Option<Source>,
    /// How many were sent.
    next: usize,
    /// Sent and not there yet, and in the receiver's window.
    pub(crate) in_flight: u32,
    /// A block of it waits for the sender's link.
    is_on_wire: bool,
    /// Bytes that came by it, and when its receiver last told of that.
    received: u64,
    told: Instant,
}

#[derive(Debug)]
pub(crate) enum What {
    Copy {
        id: ObjectId,
        instance: Instance,
        attempt: u64,
        sink: SlotId,
        serve: Option<ServeId>,
        /// Whether the sender makes it, and may have heard nothing of that.
        ordered: bool,
    },
    /// The result of a position, for its parent.
    Stream { key: FoldKey, parent: u64, child: usize },
}

/// All that was fetched of a copy has come.
#[derive(Debug)]
struct Gathered {
    node: NodeId,
    instance: Instance,
    attempt: u64,
    source: NodeId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Slot(SlotId),
    Fold(u64),
}

/// Blocks of a copy under way at a time. The credit of a real stream, 4 MiB, would hide most of what the shared links
/// do to short objects.
const CREDIT_BLOCKS: u32 = 8;

/// A copy on the disk of a host.
#[derive(Debug)]
pub(crate) struct File {
    /// What the file says of it.
    pub(crate) kept: Kept,
    /// Its blocks, beside those of the copies in memory.
    pub(crate) slot: SlotId,
    pub(crate) number: u64,
    pub(crate) is_written: bool,
}

/// One position of a reduce at work.
#[derive(Debug)]
pub(crate) struct Folding {
    pub(crate) host: NodeId,
    pub(crate) key: FoldKey,
    /// Its blocks.
    pub(crate) part: Range<u32>,
    pub(crate) inputs: Vec<SlotId>,
    pub(crate) children: Vec<Child>,
    /// The caller's own: the slot of the result.
    pub(crate) target: Option<SlotId>,
    /// The next block to fold.
    pub(crate) next: u32,
    /// How many it folds before the parent takes some.
    pub(crate) window_max: usize,
    /// Folded, and not sent to the parent yet.
    pub(crate) window: VecDeque<Content>,
    /// The flow to the parent.
    pub(crate) parent: Option<u64>,
    /// When it last folded a block, or told that it waits.
    pub(crate) waits_since: Instant,
}

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) flow: u64,
    pub(crate) arrived: VecDeque<Content>,
    pub(crate) count: u32,
}

impl Folding {
    /// Blocks of a child that have arrived and can't be folded yet.
    pub(crate) fn waiting(&self, child: usize) -> usize {
        self.children.get(child).map_or(0, |child| child.arrived.len())
    }
}
