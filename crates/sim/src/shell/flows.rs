//! Flows of blocks from one host to another, limited by credit and links.

use hoplite_proto::{
    id::{FetchId, Instance, NodeId, ServeId},
    node::{Event, FETCH_PROGRESS_NS, FetchOrder},
};

use super::{
    BLOCK_BYTES, CREDIT_BLOCKS, Flow, FlowTarget, Gathered, SlotId, Source, WINDOW_BLOCKS,
    blocks_in,
};
use crate::{
    payload::{Content, Piece, Tag},
    plan::MICROSECOND,
    verdict::Mutation,
    world::{NotHere, SimEvent, World},
};

impl World {
    pub(super) fn fetch(&mut self, node: NodeId, order: FetchOrder) {
        let FetchOrder { fetch, id, instance, source, ranges, in_parts: ordered, range, .. } =
            order;
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(sink) = host.slots.get(&instance).copied() else {
            return self.fail(format!("{node:?} fetches {instance} without a slot"));
        };
        if host.fetches.insert(fetch, instance).is_some() {
            return self.fail(format!("{node:?} gives the number {fetch:?} to two transfers"));
        }
        let size = self.shell.slots[sink].size;
        let missing = self.shell.slots[sink].missing();
        let wanted: Vec<u32> = match ranges {
            Some(ranges) => ranges.iter().flat_map(blocks_in).collect(),
            None => missing,
        };
        let fills =
            |flow: &&Flow| matches!(flow.what, FlowTarget::Copy { sink: it, .. } if it == sink);
        let mut others = self.shell.flows.values().filter(fills);
        if others.any(|flow| flow.wanted[flow.next..].iter().any(|block| wanted.contains(block))) {
            return self.fail(format!("{node:?} fetches a block of {instance} twice"));
        }
        let what = FlowTarget::Copy { id, instance, fetch, sink, serve: None, ordered, range };
        self.open_flow(source, node, what, size, wanted);
        if !ordered {
            self.check_sources(node, instance, true);
        }
    }

    /// Requests blocks from a host.
    pub(crate) fn open_flow(
        &mut self,
        from: NodeId,
        to: NodeId,
        what: FlowTarget,
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
        self.pass_fetch(&opened);
        self.shell.flows.insert(flow, opened);
        let delay_ns = self.passage_ns(to, from);
        self.after(delay_ns, SimEvent::FlowRequested { flow });
        flow
    }

    pub(crate) fn flow_requested(&mut self, number: u64) {
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        let from = flow.from;
        if !self.hosts.get(&from).is_some_and(|host| host.is_up) {
            return self.break_flow(number, NotHere(false));
        }
        let sent = flow.what.sent();
        match &mut flow.what {
            FlowTarget::Copy { instance, ordered: true, .. }
                if !self.hosts[&from].slots.contains_key(instance) =>
            {
                let early = self.shell.early_copies.entry((from, *instance)).or_default();
                early.push(number);
            }
            FlowTarget::Copy { id, instance, serve, .. } => {
                self.shell.counted += 1;
                let asked = ServeId(self.shell.counted);
                *serve = Some(asked);
                let (id, instance) = (id.clone(), sent.unwrap_or(*instance));
                self.shell.serves.insert(asked, number);
                self.deliver(from, Event::FetchRequested { serve: asked, id, instance });
            }
            FlowTarget::Stream { key, .. } => {
                let key = *key;
                self.stream_requested(number, from, key);
            }
        }
    }

    pub(super) fn serve(&mut self, node: NodeId, serve: ServeId, instance: Instance) {
        // Stopped meanwhile: its end has been reported, or will be.
        let Some(number) = self.shell.serves.get(&serve).copied() else { return };
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        let Some(slot) = slot else {
            return self.fail(format!("{node:?} serves {instance}, which has no slot"));
        };
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.source = Some(Source::Slot(slot));
        self.shell.slots[slot].flows.insert(number);
        self.pump_flow(number);
    }

    pub(super) fn refuse(&mut self, serve: ServeId) {
        if let Some(number) = self.shell.serves.remove(&serve) {
            if let Some(Flow { from, to, what, .. }) = self.shell.flows.get(&number)
                && let Some(instance) = what.sent()
            {
                self.check_refusal(*to, *from, instance);
            }
            self.break_flow(number, NotHere(true));
        }
    }

    /// Sends the next block, if it exists and the receiver has credit for it.
    pub(crate) fn pump_flow(&mut self, number: u64) {
        let Some(flow) = self.shell.flows.get(&number) else { return };
        let Some(source) = flow.source else { return };
        if flow.next == flow.wanted.len()
            && flow.in_flight == 0
            && matches!(flow.what, FlowTarget::Copy { .. })
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
                match slot.content(flow.what.place(next, flow.size)) {
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
            Some(Mutation::ServesOtherBytes) if next == 1 => Content::of(Tag(u64::MAX)),
            _ => content,
        };
        let content = self.as_sent(number, content);
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.next += 1;
        flow.in_flight += 1;
        flow.is_on_wire = true;
        let bytes = BLOCK_BYTES.min(flow.size - u64::from(next) * BLOCK_BYTES);
        let passage = self.net.pass(self.now, from, to, bytes);
        let piece = Piece { index: next, content };
        self.at(passage.sent, SimEvent::BlockSent { flow: number });
        self.at(passage.arrived, SimEvent::BlockArrived { flow: number, piece });
        if let Source::Fold(fold) = source {
            // There is space for one more partial result.
            self.pump_fold(fold);
        }
    }

    fn has_credit(&self, flow: &Flow) -> bool {
        match flow.what {
            FlowTarget::Copy { .. } => flow.in_flight < CREDIT_BLOCKS,
            FlowTarget::Stream { parent, child, .. } => {
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
        if piece.content.is_corrupt() {
            return self.block_corrupt(number);
        }
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.in_flight -= 1;
        let is_last = flow.wanted.last() == Some(&piece.index);
        match flow.what {
            FlowTarget::Copy { sink, .. } => {
                self.write_slot(sink, piece);
                self.report_progress(number);
                self.pump_flow(number);
            }
            FlowTarget::Stream { parent, child, .. } => {
                if is_last {
                    // Finish before the parent processes the last block, which may end the parent too.
                    self.finish_stream(number);
                }
                self.stream_grows(parent, child, piece);
                self.pump_flow(number);
            }
        }
    }

    /// Reports the progress of a copy to the receiver's node at intervals.
    fn report_progress(&mut self, number: u64) {
        let now = self.now;
        let Some(flow) = self.shell.flows.get_mut(&number) else { return };
        flow.received += BLOCK_BYTES;
        if now.since(flow.told) < FETCH_PROGRESS_NS {
            return;
        }
        flow.told = now;
        let (received, node) = (flow.received, flow.to);
        let missing = (flow.wanted.len() as u64 * BLOCK_BYTES).saturating_sub(received);
        if let FlowTarget::Copy { fetch, .. } = flow.what {
            let shares = self.shares(number);
            self.deliver(node, Event::FetchProgress { fetch, received, missing, shares });
        }
    }

    /// Number of flows on the busiest link of a copy's path from the complete copy.
    fn shares(&self, number: u64) -> u16 {
        let upstream = |flow: &&Flow| match flow.source {
            Some(Source::Slot(slot)) => self.flow_into(slot),
            _ => None,
        };
        let way = std::iter::successors(self.shell.flows.get(&number), |flow| upstream(flow));
        // For a moment, copies may receive from each other in a cycle.
        let shares = way.take(self.hosts.len()).map(|flow| {
            let all = || self.shell.flows.values().filter(|other| other.source.is_some());
            let out = all().filter(|other| other.from == flow.from).count();
            out.max(all().filter(|other| other.to == flow.to).count())
        });
        shares.max().unwrap_or(1) as u16
    }

    /// The flow that fills a slot, if there is one.
    fn flow_into(&self, slot: SlotId) -> Option<&Flow> {
        let fills =
            |flow: &Flow| matches!(flow.what, FlowTarget::Copy { sink, .. } if sink == slot);
        self.shell.flows.values().find(|flow| fills(flow))
    }

    fn finish_copy(&mut self, number: u64) {
        let Some(flow) = self.close_flow(number) else { return };
        if let FlowTarget::Copy { fetch, sink, .. } = flow.what {
            let gathered = Gathered { node: flow.to, fetch };
            if self.shell.slots[sink].is_full() {
                self.all_here(gathered);
            } else {
                // Local folds fill the rest.
                self.shell.gathered.insert(sink, gathered);
            }
        }
    }

    pub(super) fn all_here(&mut self, gathered: Gathered) {
        let Gathered { node, fetch } = gathered;
        let (delay_ns, failed) = (self.dice.below(50 * MICROSECOND), None);
        self.after(delay_ns, SimEvent::FetchOver { node, fetch, failed });
    }

    /// Removes a flow. The sender is notified, the receiver is not.
    pub(crate) fn close_flow(&mut self, number: u64) -> Option<Flow> {
        let flow = self.shell.flows.remove(&number)?;
        if let Some(Source::Slot(slot)) = flow.source {
            self.shell.slots[slot].flows.remove(&number);
        }
        if let FlowTarget::Copy { serve: Some(serve), .. } = flow.what
            && self.shell.serves.remove(&serve).is_some()
        {
            let delay_ns = self.passage_ns(flow.to, flow.from);
            let (node, event) = (flow.from, Event::ServeEnded { serve });
            self.after(delay_ns, SimEvent::Deliver { node, event });
        }
        Some(flow)
    }

    /// Breaks a flow before its end. The receiver is notified.
    pub(crate) fn break_flow(&mut self, number: u64, not_here: NotHere) {
        let Some(flow) = self.close_flow(number) else { return };
        let (node, source) = (flow.to, flow.from);
        match flow.what {
            FlowTarget::Copy { fetch, instance, .. } => {
                self.note_failed(instance, node, source);
                let delay_ns = self.passage_ns(source, node);
                let failed = Some(not_here);
                self.after(delay_ns, SimEvent::FetchOver { node, fetch, failed });
            }
            FlowTarget::Stream { parent, .. } => {
                self.fold_over(parent, Some(format!("the stream from {source:?} broke")));
            }
        }
    }

    pub(crate) fn fetch_over(&mut self, node: NodeId, fetch: FetchId, failed: Option<NotHere>) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(instance) = host.fetches.remove(&fetch) else { return };
        let Some(slot) = host.slots.get(&instance).copied() else { return };
        let sink = &self.shell.slots[slot];
        let (is_wrong, has_digest) = (sink.is_wrong(), sink.has_digest);
        let is_corrupt = failed.is_none() && is_wrong && has_digest;
        let event = match failed {
            None if is_corrupt => Event::CopyCorrupt { fetch },
            None => Event::Fetched { fetch },
            Some(NotHere(not_here)) => Event::FetchFailed { fetch, not_here },
        };
        if let Some(copy) = host.node.table().get(instance)
            && failed.is_none()
            && !is_corrupt
            && host.is_up
        {
            // It may be evicted in the same event.
            self.users.came.insert(copy.id.clone());
        }
        self.deliver(node, event);
        // A copy made in parts is complete only when its node has been notified.
        let copy = self.hosts.get(&node).and_then(|host| host.node.table().get(instance));
        self.shell.slots[slot].is_complete = copy.is_some_and(|copy| copy.is_complete());
    }

    pub(super) fn stop_fetch(&mut self, node: NodeId, stopped: FetchId) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if host.fetches.remove(&stopped).is_none() {
            return;
        }
        let is_it = |flow: &Flow| {
            flow.to == node
                && matches!(flow.what, FlowTarget::Copy { fetch, .. } if fetch == stopped)
        };
        let flow = self.shell.flows.iter().find(|(_, flow)| is_it(flow));
        if let Some(flow) = flow.map(|(number, _)| *number) {
            self.close_flow(flow);
        }
    }

    /// Stops all flows and folds of a failed host.
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
