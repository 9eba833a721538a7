//! What a real shell does with the orders of its node, on virtual memory and links: slots, and flows of blocks into
//! them. Folds are in [`crate::fold`].
//!
//! ```text
//!   a flow:   FlowAsked --> (asked the sender's node) --Serve--> blocks --> FetchOver, ServeEnded
//!                                  |                      |
//!                                  +--- Refuse            +--- its slot was freed, a host died
//! ```

mod flows;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, ServeId},
    limits::WINDOW_BYTES,
    message::FoldKey,
    node::{Action, Event, Note},
    time::Instant,
};

use crate::{
    fold::Folding,
    payload::{Content, Piece},
    plan::MICROSECOND,
    world::{Happening, World},
};

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

impl World {
    pub(crate) fn carry_out(&mut self, node: NodeId, action: Action) {
        match action {
            Action::Reply { client, request, answer } => {
                self.answered(node, client, request, answer);
            }
            Action::CreateSlot { instance, size, .. } => self.create_slot(node, instance, size),
            Action::FreeSlot { instance } => self.free_slot(node, instance),
            Action::Spill { kept } => self.spill(node, *kept),
            Action::Unspill { instance } => self.unspill(node, instance),
            Action::DropSpilled { instance } => self.drop_spilled(node, instance),
            Action::Fetch { id, instance, source, parts, .. } => {
                self.fetch(node, id, instance, source, parts);
            }
            Action::StopFetch { instance } => self.stop_fetch(node, instance),
            Action::Serve { serve, instance, .. } => self.serve(node, serve, instance),
            Action::Refuse { serve } => self.refuse(serve),
            Action::StartFold { order, target } => self.start_fold(node, order, target),
            Action::StopFold { key } => self.stop_fold(node, key),
            Action::FoldInline { reduce, epoch, inputs, .. } => {
                self.fold_inline(node, reduce, epoch, &inputs);
            }
            Action::Note(Note::ReduceRestarted { id, detail, .. }) if !self.may_restart => {
                self.fail(format!("{id:?} is reduced again without a fault: {detail}"));
            }
            Action::Note(Note::KeeperLate { id, node }) if !self.may_restart => {
                self.fail(format!("{node:?} does not say whether it keeps {id:?}"));
            }
            Action::Note(Note::MessageRefused { from, message }) => {
                self.check_message_refusal(node, from, &message);
            }
            Action::Note(Note::Limited { whose, limit }) if limit != "SMALL_SHARE" => {
                self.fail(format!("{whose:?} meets the limit {limit} at {node:?}"));
            }
            Action::Note(_) => {}
            Action::Send { .. }
            | Action::AddPeer(_)
            | Action::DropPeer { .. }
            | Action::Call(_)
            | Action::Left { .. } => {
                self.carry_out_peer(node, action);
            }
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.shell.counted += 1;
        self.shell.counted
    }

    /// The node of a host learns something a little later.
    pub(crate) fn tell_soon(&mut self, node: NodeId, event: Event) {
        let delay_ns = self.dice.below(50 * MICROSECOND);
        self.after(delay_ns, Happening::Tell { node, event });
    }

    fn create_slot(&mut self, node: NodeId, instance: Instance, size: u64) {
        let before = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        if let Some(slot) = before.filter(|slot| self.shell.slots[*slot].is_refused) {
            self.shell.slots[slot].is_refused = false;
            return self.take_slot(node, slot);
        }
        let slot = self.shell.slots.len();
        self.shell.slots.push(Slot {
            host: node,
            instance,
            size,
            blocks: vec![None; blocks_of(size) as usize],
            filled: 0,
            is_complete: false,
            is_freed: false,
            is_refused: false,
            flows: BTreeSet::new(),
            folds: BTreeSet::new(),
        });
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if host.slots.insert(instance, slot).is_some() {
            self.fail(format!("node {node:?} takes memory for {instance} twice"));
        }
        for flow in self.shell.early_copies.remove(&(node, instance)).unwrap_or_default() {
            self.flow_asked(flow);
        }
        self.take_slot(node, slot);
    }

    fn take_slot(&mut self, node: NodeId, slot: SlotId) {
        let delay_ns = self.dice.below(50 * MICROSECOND);
        self.after(delay_ns, Happening::SlotTaken { node, slot });
    }

    pub(crate) fn slot_taken(&mut self, node: NodeId, slot: SlotId) {
        if self.shell.slots[slot].is_freed {
            return;
        }
        let instance = self.shell.slots[slot].instance;
        let event = if self.dice.chance(self.plan.slot_failures) {
            let detail = "the dice said so".into();
            if self.dice.chance(75) {
                self.shell.slots[slot].is_refused = true;
                Event::SlotRefused { instance, detail }
            } else {
                Event::SlotFailed { instance, detail }
            }
        } else {
            Event::SlotReady { instance }
        };
        self.tell(node, event);
    }

    fn free_slot(&mut self, node: NodeId, instance: Instance) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(slot) = host.slots.remove(&instance) else { return };
        let Slot { is_complete, .. } = self.shell.slots[slot];
        self.shell.slots[slot].is_freed = true;
        let flows: Vec<u64> = self.shell.slots[slot].flows.iter().copied().collect();
        let folds: Vec<u64> = self.shell.slots[slot].folds.iter().copied().collect();
        if is_complete && !(flows.is_empty() && folds.is_empty()) {
            self.fail(format!("node {node:?} frees {instance}, which {flows:?}, {folds:?} read"));
        }
        if let Some(reader) = self.users.reader_of(node, instance) {
            self.fail(format!("node {node:?} frees {instance}, which {reader:?} reads"));
        }
        self.stop_fetch(node, instance);
        flows.into_iter().for_each(|flow| self.pump_flow(flow));
        folds.into_iter().for_each(|fold| self.pump_fold(fold));
    }

    /// A block comes into a copy; who waits for it goes on.
    pub(crate) fn write_slot(&mut self, number: SlotId, piece: Piece) {
        let slot = &mut self.shell.slots[number];
        if slot.is_freed {
            return;
        }
        let (instance, host) = (slot.instance, slot.host);
        if slot.block(piece.index).is_some() || piece.index >= slot.end() {
            let index = piece.index;
            return self.fail(format!("block {index} comes to {instance} at {host:?} twice"));
        }
        let known =
            self.shell.contents.entry(instance).or_insert_with(|| piece.content.clone()).clone();
        if !known.is_same(&piece.content) {
            let what = format!(
                "block {} of {instance} at {host:?} holds {:?} and not {known:?}",
                piece.index, piece.content
            );
            return self.fail(what);
        }
        slot.blocks[piece.index as usize] = Some(piece.content);
        slot.filled += 1;
        let is_full = slot.is_full();
        let flows: Vec<u64> = slot.flows.iter().copied().collect();
        let folds: Vec<u64> = slot.folds.iter().copied().collect();
        flows.into_iter().for_each(|flow| self.pump_flow(flow));
        folds.into_iter().for_each(|fold| self.pump_fold(fold));
        if is_full && let Some(gathered) = self.shell.gathered.remove(&number) {
            self.all_here(gathered);
        }
    }
}
