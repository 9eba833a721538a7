//! Simulates the shell of a node: performs its actions on virtual memory and links. It contains slots, and flows of
//! blocks into them. Folds are in [`crate::fold`].
//!
//! ```text
//!   a flow:   FlowAsked --> (request to the sender's node) --Serve--> blocks --> FetchOver, ServeEnded
//!                                  |                           |
//!                                  +--- Refuse                 +--- its slot was freed, a host failed
//! ```

mod flows;
mod orders;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
};

use hoplite_proto::{
    id::{FetchId, Instance, NodeId, ObjectId, ServeId},
    limits::WINDOW_BYTES,
    message::FoldKey,
    node::{RangeSource, SpilledCopy},
    time::Instant,
    wire::FetchTarget,
};

use crate::payload::Content;

pub(crate) type SlotId = usize;

/// Bytes of one transferred unit: here one block; a real frame has several.
pub(crate) const BLOCK_BYTES: u64 = 64 * 1024;

/// Number of partial results that a position buffers for its parent.
pub(crate) const WINDOW_BLOCKS: usize = (WINDOW_BYTES / BLOCK_BYTES) as usize;

/// The slots, flows and folds of all hosts.
#[derive(Debug, Default)]
pub(crate) struct Shell {
    /// All slots that ever existed.
    pub(crate) slots: Vec<Slot>,
    pub(crate) flows: BTreeMap<u64, Flow>,
    pub(crate) folds: BTreeMap<u64, Folding>,
    pub(crate) fold_at: BTreeMap<(NodeId, FoldKey), u64>,
    /// Folds that have ended, in any way.
    pub(crate) folded_at: BTreeSet<(NodeId, FoldKey)>,
    /// Flows that wait for a fold to start.
    pub(crate) early: BTreeMap<(NodeId, FoldKey), u64>,
    /// Flows that wait until their sender has the slot of the result.
    early_copies: BTreeMap<(NodeId, Instance), Vec<u64>>,
    /// Results received in parts, which become complete when all parts are here.
    gathered: BTreeMap<SlotId, Gathered>,
    /// The flow of each request to a node.
    serves: BTreeMap<ServeId, u64>,
    /// The content of each instance, the same at every node.
    pub(crate) contents: BTreeMap<Instance, Content>,
    /// How often a holder refused a copy to a receiver.
    pub(crate) refusals: BTreeMap<(NodeId, NodeId, Instance), u32>,
    counted: u64,
}

/// Memory for a copy. It fills from the front, or from the beginning of each part of a scattered result.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) host: NodeId,
    pub(crate) instance: Instance,
    pub(crate) size: u64,
    blocks: Vec<Option<Content>>,
    /// Number of blocks present.
    filled: u32,
    /// Its node has recorded it as complete.
    pub(crate) is_complete: bool,
    pub(crate) is_freed: bool,
    /// The last allocation failed.
    is_refused: bool,
    /// Whether its node expects a digest of what arrives.
    pub(crate) has_digest: bool,
    /// Flows and folds that read it.
    pub(crate) flows: BTreeSet<u64>,
    pub(crate) folds: BTreeSet<u64>,
}

impl Slot {
    /// An empty slot, which is complete.
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
            has_digest: false,
            flows: BTreeSet::new(),
            folds: BTreeSet::new(),
        }
    }

    /// A slot with the same blocks.
    pub(crate) fn copied(&self) -> Self {
        let (blocks, filled, size) = (self.blocks.clone(), self.filled, self.size);
        Self { blocks, filled, size, ..Self::empty(self.host, self.instance) }
    }

    /// Whether a block is wrong, which only the digest of the whole object reveals.
    pub(crate) fn is_wrong(&self) -> bool {
        self.blocks.iter().flatten().any(Content::is_wrong)
    }

    /// Number of blocks when complete.
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

    /// The content of a range of bytes, once all blocks with them are present.
    fn content(&self, bytes: Range<u64>) -> Option<&Content> {
        let mut blocks = (bytes.start / BLOCK_BYTES) as u32..blocks_of(bytes.end);
        let mut content = self.block(blocks.next()?)?;
        for block in blocks {
            let next = self.block(block)?;
            content = if next.is_wrong() { next } else { content };
        }
        Some(content)
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.end()).filter(|index| self.block(*index).is_none()).collect()
    }
}

pub(crate) fn blocks_of(size: u64) -> u32 {
    size.div_ceil(BLOCK_BYTES) as u32
}

/// The blocks of a range of bytes that starts at a block.
pub(crate) fn blocks_in(bytes: &Range<u64>) -> Range<u32> {
    blocks_of(bytes.start)..blocks_of(bytes.end)
}

impl FlowTarget {
    /// The instance of a copy at the sender.
    fn sent(&self) -> Option<Instance> {
        match self {
            Self::Copy { instance, range, .. } => Some(range.map_or(*instance, |range| range.of)),
            Self::Stream { .. } => None,
        }
    }

    /// The bytes of the sender's copy that a block of the receiver's copy consists of.
    fn place(&self, block: u32, size: u64) -> Range<u64> {
        let start = match self {
            Self::Copy { range: Some(range), .. } => range.start,
            _ => 0,
        };
        let (first, end) = (u64::from(block) * BLOCK_BYTES, u64::from(block + 1) * BLOCK_BYTES);
        start + first..start + end.min(size)
    }
}

/// An ordered stream of blocks from one host to another.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) what: FlowTarget,
    /// Size of the object in bytes.
    pub(crate) size: u64,
    /// The blocks to send.
    wanted: Vec<u32>,
    /// Where the blocks come from, once the sender has accepted.
    pub(crate) source: Option<Source>,
    /// Number of blocks sent.
    next: usize,
    /// Blocks that are sent and not yet received, within the receiver's window.
    pub(crate) in_flight: u32,
    /// A block of it occupies the sender's link.
    is_on_wire: bool,
    /// Bytes received, and when the receiver last reported them to its node.
    received: u64,
    told: Instant,
}

impl Flow {
    /// What its request names: the bytes in the sender's copy, or a position.
    pub(crate) fn target(&self) -> FetchTarget {
        match &self.what {
            FlowTarget::Copy { id, instance, ordered, .. } => {
                let ranges = self.wanted.iter().map(|block| self.what.place(*block, self.size));
                let instance = self.what.sent().unwrap_or(*instance);
                FetchTarget::Copy {
                    id: id.clone(),
                    instance,
                    ranges: ranges.collect(),
                    ordered: *ordered,
                }
            }
            FlowTarget::Stream { key, .. } => FetchTarget::Partial(*key),
        }
    }
}

#[derive(Debug)]
pub(crate) enum FlowTarget {
    Copy {
        id: ObjectId,
        instance: Instance,
        fetch: FetchId,
        sink: SlotId,
        serve: Option<ServeId>,
        /// Whether the sender produces the copy, and may not have the order yet.
        ordered: bool,
        /// Where the copy is in that of the sender, if it is a range of it.
        range: Option<RangeSource>,
    },
    /// The partial result of a position, for its parent.
    Stream { key: FoldKey, parent: u64, child: usize },
}

/// A fetch that has received all its parts.
#[derive(Debug)]
struct Gathered {
    node: NodeId,
    fetch: FetchId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Slot(SlotId),
    Fold(u64),
}

/// Blocks of a copy in flight at a time. The credit of a real stream, 4 MiB, would hide most effects of shared links on
/// short objects.
pub(crate) const CREDIT_BLOCKS: u32 = 8;

/// A copy on the disk of a host.
#[derive(Debug)]
pub(crate) struct File {
    /// The metadata in the file.
    pub(crate) kept: SpilledCopy,
    /// Its blocks, separate from those of the copies in memory.
    pub(crate) slot: SlotId,
    pub(crate) number: u64,
    pub(crate) is_written: bool,
}

/// One running position of a reduce.
#[derive(Debug)]
pub(crate) struct Folding {
    pub(crate) host: NodeId,
    pub(crate) key: FoldKey,
    /// Its range of blocks.
    pub(crate) part: Range<u32>,
    pub(crate) inputs: Vec<SlotId>,
    pub(crate) children: Vec<Child>,
    /// The slot of the result, for the caller's own fold.
    pub(crate) target: Option<SlotId>,
    /// The next block to fold.
    pub(crate) next: u32,
    /// Maximum number of blocks folded before the parent takes some.
    pub(crate) window_max: usize,
    /// Blocks folded and not yet sent to the parent.
    pub(crate) window: VecDeque<Content>,
    /// The flow to the parent.
    pub(crate) parent: Option<u64>,
    /// When it last folded a block, or reported that it waits.
    pub(crate) waits_since: Instant,
}

#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) flow: u64,
    pub(crate) arrived: VecDeque<Content>,
    pub(crate) count: u32,
}

impl Folding {
    /// Blocks of a child that have arrived and cannot be folded yet.
    pub(crate) fn waiting(&self, child: usize) -> usize {
        self.children.get(child).map_or(0, |child| child.arrived.len())
    }
}
