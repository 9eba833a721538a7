//! What a real shell does with the orders of its node, on virtual memory and links: slots, and flows of blocks into
//! them. Folds are in [`crate::fold`].
//!
//! ```text
//!   a flow:   FlowAsked --> (asked the sender's node) --Serve--> blocks --> FetchOver, ServeEnded
//!                                  |                      |
//!                                  +--- Refuse            +--- its slot was freed, a host died
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId, ServeId},
    limits::WINDOW_BYTES,
    message::FoldKey,
    node::{Action, Event, GROWTH_NS, Note},
    time::Instant,
};

use crate::{
    Sabotage,
    fold::Folding,
    payload::{Content, Piece, Tag},
    plan::MICROSECOND,
    world::{Happening, NotHere, World},
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
            Action::Note(Note::KeeperLate { id, node }) if self.hostile.is_none() => {
                self.fail(format!("{node:?} does not say whether it keeps {id:?}"));
            }
            Action::Note(Note::MessageRefused { from, kind }) => {
                self.look_at_refusal(node, from, kind);
            }
            Action::Note(Note::Limited { whose, limit })
                if self.hostile.is_none() && limit != "SMALL_SHARE" =>
            {
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

    fn fetch(
        &mut self,
        node: NodeId,
        id: ObjectId,
        instance: Instance,
        source: NodeId,
        parts: Option<Vec<Range<u64>>>,
    ) {
        let attempt = self.next_number();
        let Some(host) = self.hosts.get(&node) else { return };
        let Some(sink) = host.slots.get(&instance).copied() else {
            return self.fail(format!("node {node:?} fetches {instance} into no slot"));
        };
        let before = host.fetches.get(&instance).copied();
        if let Some(flow) = before.and_then(|before| self.flow_of(before)) {
            if self.shell.flows[&flow].from == source {
                return self.fail(format!("node {node:?} fetches {instance} twice at once"));
            }
            self.stop_fetch(node, instance);
        }
        if let Some(host) = self.hosts.get_mut(&node) {
            host.fetches.insert(instance, attempt);
        }
        let size = self.shell.slots[sink].size;
        let ordered = parts.is_some();
        let wanted: Vec<u32> = match parts {
            Some(parts) => parts.iter().flat_map(blocks_in).collect(),
            None => self.shell.slots[sink].missing(),
        };
        let what = What::Copy { id, instance, attempt, sink, serve: None, ordered };
        self.open_flow(source, node, what, size, wanted);
        if !ordered {
            self.check_feeds(node, instance, true);
        }
    }

    /// Asks a host for blocks.
    pub(crate) fn open_flow(
        &mut self,
        from: NodeId,
        to: NodeId,
        what: What,
        size: u64,
        wanted: Vec<u32>,
    ) -> u64 {
        let flow = self.next_number();
        let (source, next, in_flight, is_on_wire) = (None, 0, 0, false);
        let (received, told) = (0, self.now);
        let opened = Flow {
            from,
            to,
            what,
            size,
            wanted,
            source,
            next,
            in_flight,
            is_on_wire,
            received,
            told,
        };
        self.shell.flows.insert(flow, opened);
        let delay_ns = self.passage_ns(to, from);
        self.after(delay_ns, Happening::FlowAsked { flow });
        flow
    }

    pub(crate) fn flow_asked(&mut self, number: u64) {
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        let from = flow.from;
        if !self.hosts.get(&from).is_some_and(|host| host.is_up) {
            return self.break_flow(number, NotHere(false));
        }
        match &mut flow.what {
            What::Copy { instance, ordered: true, .. }
                if !self.hosts[&from].slots.contains_key(instance) =>
            {
                let early = self.shell.early_copies.entry((from, *instance)).or_default();
                early.push(number);
            }
            What::Copy { id, instance, serve, .. } => {
                self.shell.counted += 1;
                let asked = ServeId(self.shell.counted);
                *serve = Some(asked);
                let (id, instance) = (id.clone(), *instance);
                self.shell.serves.insert(asked, number);
                self.tell(from, Event::FetchAsked { serve: asked, id, instance });
            }
            What::Stream { key, .. } => {
                let key = *key;
                self.stream_asked(number, from, key);
            }
        }
    }

    fn serve(&mut self, node: NodeId, serve: ServeId, instance: Instance) {
        // Given up meanwhile: its end was told, or will be.
        let Some(number) = self.shell.serves.get(&serve).copied() else { return };
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        let Some(slot) = slot else {
            return self.fail(format!("node {node:?} serves {instance}, which has no slot"));
        };
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.source = Some(Source::Slot(slot));
        self.shell.slots[slot].flows.insert(number);
        self.pump_flow(number);
    }

    fn refuse(&mut self, serve: ServeId) {
        if let Some(number) = self.shell.serves.remove(&serve) {
            if let Some(Flow { from, to, what: What::Copy { instance, .. }, .. }) =
                self.shell.flows.get(&number)
            {
                self.check_refusal(*to, *from, *instance);
            }
            self.break_flow(number, NotHere(true));
        }
    }

    /// Sends the next block, if there is one and the receiver has room for it.
    pub(crate) fn pump_flow(&mut self, number: u64) {
        let Some(flow) = self.shell.flows.get(&number) else { return };
        let Some(source) = flow.source else { return };
        if flow.next == flow.wanted.len()
            && flow.in_flight == 0
            && matches!(flow.what, What::Copy { .. })
        {
            return self.finish_copy(number);
        }
        let Some(next) = flow.wanted.get(flow.next).copied() else { return };
        if flow.is_on_wire || !self.has_credit(flow) {
            return;
        }
        let (from, to) = (flow.from, flow.to);
        let content = match source {
            Source::Slot(slot) => {
                let slot = &self.shell.slots[slot];
                match slot.block(next) {
                    Some(content) => content.clone(),
                    None if slot.is_freed => return self.break_flow(number, NotHere(false)),
                    None => return,
                }
            }
            Source::Fold(fold) => match self.take_folded(fold, next) {
                Some(content) => content,
                None => return,
            },
        };
        let content = match self.sabotage {
            Some(Sabotage::ServesOtherBytes) if next == 1 => Content::of(Tag(u64::MAX)),
            _ => content,
        };
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.next += 1;
        flow.in_flight += 1;
        flow.is_on_wire = true;
        let bytes = BLOCK_BYTES.min(flow.size - u64::from(next) * BLOCK_BYTES);
        let passage = self.net.pass(self.now, from, to, bytes);
        let piece = Piece { index: next, content };
        self.at(passage.sent, Happening::BlockSent { flow: number });
        self.at(passage.arrived, Happening::BlockArrived { flow: number, piece });
        if let Source::Fold(fold) = source {
            // There is room for one more partial result.
            self.pump_fold(fold);
        }
    }

    fn has_credit(&self, flow: &Flow) -> bool {
        match flow.what {
            What::Copy { .. } => flow.in_flight < CREDIT_BLOCKS,
            What::Stream { parent, child, .. } => {
                let waiting = self.shell.folds.get(&parent).map_or(0, |fold| fold.waiting(child));
                (flow.in_flight as usize + waiting) < WINDOW_BLOCKS
            }
        }
    }

    pub(crate) fn block_sent(&mut self, number: u64) {
        if let Some(flow) = self.shell.flows.get_mut(&number) {
            flow.is_on_wire = false;
            self.pump_flow(number);
        }
    }

    pub(crate) fn block_arrived(&mut self, number: u64, piece: Piece) {
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.in_flight -= 1;
        let is_last = flow.wanted.last() == Some(&piece.index);
        match flow.what {
            What::Copy { sink, .. } => {
                self.write_slot(sink, piece);
                self.tell_growth(number);
                self.pump_flow(number);
            }
            What::Stream { parent, child, .. } => {
                if is_last {
                    // Before its parent sees the last of it, which may be the end of that too.
                    self.finish_stream(number);
                }
                self.stream_grows(parent, child, piece);
                self.pump_flow(number);
            }
        }
    }

    /// A receiver's node hears how far a copy is, every so often.
    fn tell_growth(&mut self, number: u64) {
        let now = self.now;
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.received += BLOCK_BYTES;
        if now.since(flow.told) < GROWTH_NS {
            return;
        }
        flow.told = now;
        let (source, received, node) = (flow.from, flow.received, flow.to);
        let missing = (flow.wanted.len() as u64 * BLOCK_BYTES).saturating_sub(received);
        if let What::Copy { instance, .. } = flow.what {
            self.tell(node, Event::FetchGrew { instance, source, received, missing });
        }
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

    fn finish_copy(&mut self, number: u64) {
        let Some(flow) = self.close_flow(number) else { return };
        if let What::Copy { instance, attempt, sink, .. } = flow.what {
            let gathered = Gathered { node: flow.to, instance, attempt, source: flow.from };
            if self.shell.slots[sink].is_full() {
                self.all_here(gathered);
            } else {
                // What is folded here comes into it too.
                self.shell.gathered.insert(sink, gathered);
            }
        }
    }

    fn all_here(&mut self, gathered: Gathered) {
        let Gathered { node, instance, attempt, source } = gathered;
        let (delay_ns, failed) = (self.dice.below(50 * MICROSECOND), None);
        self.after(delay_ns, Happening::FetchOver { node, instance, attempt, source, failed });
    }

    /// Takes a flow away; its sender is told, not its receiver.
    pub(crate) fn close_flow(&mut self, number: u64) -> Option<Flow> {
        let flow = self.shell.flows.remove(&number)?;
        if let Some(Source::Slot(slot)) = flow.source {
            self.shell.slots[slot].flows.remove(&number);
        }
        if let What::Copy { serve: Some(serve), .. } = flow.what
            && self.shell.serves.remove(&serve).is_some()
        {
            let delay_ns = self.passage_ns(flow.to, flow.from);
            let (node, event) = (flow.from, Event::ServeEnded { serve });
            self.after(delay_ns, Happening::Tell { node, event });
        }
        Some(flow)
    }

    /// A flow ends before its end; its receiver is told.
    pub(crate) fn break_flow(&mut self, number: u64, not_here: NotHere) {
        let Some(flow) = self.close_flow(number) else { return };
        let (node, source) = (flow.to, flow.from);
        match flow.what {
            What::Copy { instance, attempt, .. } => {
                let delay_ns = self.passage_ns(source, node);
                let failed = Some(not_here);
                self.after(
                    delay_ns,
                    Happening::FetchOver { node, instance, attempt, source, failed },
                );
            }
            What::Stream { parent, .. } => {
                self.fold_over(parent, Some(format!("the stream from {source:?} broke")));
            }
        }
    }

    pub(crate) fn fetch_over(
        &mut self,
        node: NodeId,
        instance: Instance,
        attempt: u64,
        source: NodeId,
        failed: Option<NotHere>,
    ) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if host.fetches.get(&instance) != Some(&attempt) {
            return;
        }
        host.fetches.remove(&instance);
        let Some(slot) = host.slots.get(&instance).copied() else { return };
        let event = match failed {
            None => Event::Fetched { instance },
            Some(NotHere(not_here)) => Event::FetchFailed { instance, source, not_here },
        };
        self.tell(node, event);
        // What was made in parts is complete only when its node hears so.
        let copy = self.hosts.get(&node).and_then(|host| host.node.table().get(instance));
        self.shell.slots[slot].is_complete = copy.is_some_and(|copy| copy.is_complete());
    }

    fn stop_fetch(&mut self, node: NodeId, instance: Instance) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(stopped) = host.fetches.remove(&instance) else { return };
        if let Some(flow) = self.flow_of(stopped) {
            self.close_flow(flow);
        }
    }

    /// The flow by which an attempt to receive a copy receives it.
    fn flow_of(&self, wanted: u64) -> Option<u64> {
        let is_it =
            |flow: &Flow| matches!(flow.what, What::Copy { attempt, .. } if attempt == wanted);
        self.shell.flows.iter().find(|(_, flow)| is_it(flow)).map(|(number, _)| *number)
    }

    /// A host is gone, and with it all that went through it.
    pub(crate) fn stop_flows_of(&mut self, node: NodeId) {
        let folds = self.shell.folds.iter().filter(|(_, fold)| fold.host == node);
        for fold in folds.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.fold_over(fold, None);
        }
        let flows =
            self.shell.flows.iter().filter(|(_, flow)| flow.from == node || flow.to == node);
        for number in flows.map(|(number, _)| *number).collect::<Vec<_>>() {
            match self.shell.flows.get(&number) {
                Some(flow) if flow.to == node => drop(self.close_flow(number)),
                Some(_) => self.break_flow(number, NotHere(false)),
                None => {}
            }
        }
        let Some(host) = self.hosts.get_mut(&node) else { return };
        host.fetches.clear();
        for slot in std::mem::take(&mut host.slots).into_values() {
            self.shell.slots[slot].is_freed = true;
        }
    }
}
