//! Simulates folds: each block of the result is folded as soon as that block of every input and every child has
//! arrived.
//!
//! A position buffers a bounded window of blocks for its parent. The caller's own fold writes into a slot.

use std::collections::VecDeque;

use hoplite_proto::{
    id::{Instance, NodeId, ReduceId},
    inline::Inline,
    message::{FoldKey, FoldOrder},
    node::{Event, FOLD_STALL_NS},
};

use crate::{
    payload::{Content, Piece},
    plan::MICROSECOND,
    shell::{Child, FlowTarget, Folding, SlotId, Source, WINDOW_BLOCKS, blocks_in},
    verdict::Mutation,
    world::{NotHere, SimEvent, World},
};

impl World {
    pub(crate) fn start_fold(
        &mut self,
        node: NodeId,
        order: FoldOrder,
        target: Option<(Instance, u64)>,
    ) {
        let FoldOrder { key, inputs, children, size, part, .. } = order;
        let (is_part, part) = (part != (0..size), blocks_in(&part));
        let is_result = key.position == FoldKey::RESULT;
        if children.len() > 2 && !is_result {
            self.fail(format!("position {key:?} has {} children", children.len()));
        }
        if self.shell.fold_at.contains_key(&(node, key))
            || self.shell.folded_at.contains(&(node, key))
        {
            return self.fail(format!("{node:?} starts the fold {key:?} twice"));
        }
        let Some(host) = self.hosts.get(&node) else { return };
        let slot = |input: &Instance| {
            let in_memory = host.slots.get(input).copied();
            // An input that is being read back may be spilled again.
            let is_whole = in_memory.is_some_and(|slot| self.shell.slots[slot].is_full());
            self.file_of(node, *input).filter(|_| !is_whole).or(in_memory)
        };
        let slots: Option<Vec<SlotId>> = inputs.iter().map(slot).collect();
        let target = target.map(|(instance, _)| host.slots.get(&instance).copied());
        let (Some(slots), false) = (slots, target == Some(None)) else {
            return self.fail(format!("{node:?} folds {inputs:?}, but some have no slot"));
        };
        let fold = self.next_number();
        for slot in &slots {
            self.shell.slots[*slot].folds.insert(fold);
        }
        let mut flows = Vec::new();
        for (child, (from, position)) in children.into_iter().enumerate() {
            let key = FoldKey { position, ..key };
            let what = FlowTarget::Stream { key, parent: fold, child };
            let flow = self.open_flow(from, node, what, size, part.clone().collect());
            flows.push(Child { flow, arrived: VecDeque::new(), count: part.start });
        }
        let parent = self.shell.early.remove(&(node, key));
        self.shell.folds.insert(
            fold,
            Folding {
                host: node,
                key,
                part: part.clone(),
                inputs: slots,
                children: flows,
                target: target.flatten(),
                window_max: if is_part { part.len().max(WINDOW_BLOCKS) } else { WINDOW_BLOCKS },
                next: part.start,
                window: VecDeque::new(),
                parent: None,
                waits_since: self.now,
            },
        );
        self.shell.fold_at.insert((node, key), fold);
        self.after(FOLD_STALL_NS, SimEvent::FoldStalls { fold });
        self.pump_fold(fold);
        if let Some(flow) = parent {
            self.stream_requested(flow, node, key);
        }
    }

    /// A parent requests the stream of a position, perhaps before the position has its order.
    pub(crate) fn stream_requested(&mut self, flow: u64, node: NodeId, key: FoldKey) {
        if self.shell.folded_at.contains(&(node, key)) {
            return self.break_flow(flow, NotHere(true));
        }
        let Some(fold) = self.shell.fold_at.get(&(node, key)).copied() else {
            self.shell.early.insert((node, key), flow);
            return;
        };
        let Some(folding) = self.shell.folds.get_mut(&fold) else { return };
        if folding.parent.replace(flow).is_some() {
            self.fail(format!("{key:?} at {node:?} has two parents"));
        }
        if let Some(flow) = self.shell.flows.get_mut(&flow) {
            flow.source = Some(Source::Fold(fold));
        }
        self.pump_flow(flow);
    }

    /// Folds all blocks that are ready.
    pub(crate) fn pump_fold(&mut self, fold: u64) {
        loop {
            let Some(folding) = self.shell.folds.get(&fold) else { return };
            let is_blocked = folding.target.is_none() && folding.window.len() >= folding.window_max;
            if folding.next >= folding.part.end || is_blocked {
                return;
            }
            let next = folding.next;
            let slots = folding.inputs.iter().map(|slot| &self.shell.slots[*slot]);
            let mut parts: Vec<&Content> = Vec::new();
            let mut is_lost = false;
            for slot in slots {
                let block = slot.block(next);
                is_lost |= block.is_none() && slot.is_freed;
                parts.extend(block);
            }
            if is_lost {
                return self.fold_over(fold, Some("an input was dropped".into()));
            }
            parts.extend(folding.children.iter().filter_map(|child| child.arrived.front()));
            if parts.len() < folding.inputs.len() + folding.children.len() {
                return;
            }
            if self.sabotage == Some(Mutation::FoldsLess) && parts.len() > 1 {
                parts.pop();
            }
            let content = Content::fold(parts.into_iter());
            self.folded_block(fold, content);
        }
    }

    fn folded_block(&mut self, fold: u64, content: Content) {
        let Some(folding) = self.shell.folds.get_mut(&fold) else { return };
        let index = folding.next;
        (folding.next, folding.waits_since) = (index + 1, self.now);
        for child in &mut folding.children {
            child.arrived.pop_front();
        }
        let flows: Vec<u64> = folding.children.iter().map(|child| child.flow).collect();
        let (is_first, is_last) = (index == folding.part.start, folding.next == folding.part.end);
        match folding.target {
            Some(target) => {
                let (host, instance) = (folding.host, self.shell.slots[target].instance);
                if is_first {
                    let copy =
                        self.hosts.get(&host).and_then(|host| host.node.table().get(instance));
                    if let Some(id) = copy.map(|copy| copy.id.clone()) {
                        self.result_made(&id, &content);
                    }
                }
                self.write_slot(target, Piece { index, content });
                if is_last {
                    self.fold_over(fold, None);
                }
            }
            None => {
                folding.window.push_back(content);
                if let Some(parent) = folding.parent {
                    self.pump_flow(parent);
                }
            }
        }
        flows.into_iter().for_each(|flow| self.pump_flow(flow));
    }

    /// Reports to the node of a fold that it has waited long for a child.
    pub(crate) fn fold_stalls(&mut self, fold: u64) {
        let now = self.now;
        let Some(folding) = self.shell.folds.get_mut(&fold) else { return };
        if now.since(folding.waits_since) >= FOLD_STALL_NS {
            folding.waits_since = now;
            let is_full = folding.target.is_none() && folding.window.len() >= folding.window_max;
            let awaited = folding.children.iter().find(|child| child.arrived.is_empty());
            let flow = awaited.filter(|_| !is_full).map(|child| child.flow);
            let (host, key) = (folding.host, folding.key);
            if let Some(node) =
                flow.and_then(|flow| self.shell.flows.get(&flow)).map(|flow| flow.from)
            {
                self.deliver(host, Event::FoldStalled { key, node });
            }
        }
        if let Some(folding) = self.shell.folds.get(&fold) {
            self.at(folding.waits_since + FOLD_STALL_NS, SimEvent::FoldStalls { fold });
        }
    }

    /// Takes the next block for the parent, if it is folded.
    pub(crate) fn take_folded(&mut self, fold: u64, index: u32) -> Option<Content> {
        let folding = self.shell.folds.get_mut(&fold)?;
        assert_eq!(folding.next - folding.window.len() as u32, index, "a stream lost its place");
        folding.window.pop_front()
    }

    pub(crate) fn stream_grows(&mut self, parent: u64, child: usize, piece: Piece) {
        let Some(folding) = self.shell.folds.get_mut(&parent) else { return };
        let Some(child) = folding.children.get_mut(child) else { return };
        assert_eq!(child.count, piece.index, "a stream lost a block");
        child.count += 1;
        child.arrived.push_back(piece.content);
        self.pump_fold(parent);
    }

    /// Ends a position after its parent has received the whole stream.
    pub(crate) fn finish_stream(&mut self, number: u64) {
        let Some(flow) = self.shell.flows.remove(&number) else { return };
        if let Some(Source::Fold(fold)) = flow.source {
            self.fold_over(fold, None);
        }
    }

    pub(crate) fn stop_fold(&mut self, node: NodeId, key: FoldKey) {
        match self.shell.fold_at.get(&(node, key)).copied() {
            Some(fold) => self.fold_over(fold, Some("stopped".into())),
            // The fold has ended, and its node will be notified.
            None if self.shell.folded_at.contains(&(node, key)) => {}
            None => self.fail(format!("{node:?} stops {key:?}, which it never started")),
        }
    }

    /// Ends a fold, and with it the streams of its children and to its parent.
    pub(crate) fn fold_over(&mut self, fold: u64, failure: Option<String>) {
        let Some(folding) = self.shell.folds.remove(&fold) else { return };
        let (host, key) = (folding.host, folding.key);
        self.shell.fold_at.remove(&(host, key));
        self.shell.folded_at.insert((host, key));
        for slot in folding.inputs {
            self.shell.slots[slot].folds.remove(&fold);
        }
        let delay_ns = self.dice.below(50 * MICROSECOND);
        // A fold of a part alone does not complete the slot.
        let is_whole = |slot: &SlotId| folding.part == (0..self.shell.slots[*slot].end());
        let target = folding.target.filter(is_whole);
        self.after(delay_ns, SimEvent::FoldOver { node: host, key, failure, target });
        for child in folding.children {
            let Some(flow) = self.close_flow(child.flow) else { continue };
            match flow.source {
                Some(Source::Fold(below)) => {
                    // The parent reports the reason.
                    self.fold_over(below, None);
                }
                _ => {
                    let early = (
                        flow.from,
                        match flow.what {
                            FlowTarget::Stream { key, .. } => key,
                            FlowTarget::Copy { .. } => continue,
                        },
                    );
                    if self.shell.early.get(&early) == Some(&child.flow) {
                        self.shell.early.remove(&early);
                    }
                }
            }
        }
        if let Some(parent) = folding.parent {
            self.break_flow(parent, NotHere(false));
        }
    }

    pub(crate) fn fold_ended(
        &mut self,
        node: NodeId,
        key: FoldKey,
        failure: Option<String>,
        target: Option<SlotId>,
    ) {
        if let Some(target) = target.filter(|_| failure.is_none()) {
            let slot = &mut self.shell.slots[target];
            slot.is_complete = slot.is_full();
        }
        self.deliver(node, Event::FoldEnded { key, failure });
    }

    pub(crate) fn fold_inline(
        &mut self,
        node: NodeId,
        reduce: ReduceId,
        epoch: u32,
        inputs: &[Inline],
    ) {
        let contents: Vec<Content> = inputs.iter().map(Content::from_inline).collect();
        let result = Content::fold(contents.iter()).to_inline();
        self.deliver_soon(node, Event::FoldedInline { reduce, epoch, result });
    }
}
