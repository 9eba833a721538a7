//! Performs the actions of a node, and manages slots.

use std::collections::BTreeSet;

use hoplite_proto::{
    id::{Instance, NodeId},
    node::{Action, Event, LogEvent},
};

use super::{Slot, SlotId, blocks_of};
use crate::{
    payload::Piece,
    plan::MICROSECOND,
    world::{SimEvent, World},
};

impl World {
    pub(crate) fn carry_out(&mut self, node: NodeId, action: Action) {
        match action {
            Action::Reply { client, request, reply } => {
                self.pass_local(&reply);
                self.answered(node, client, request, reply);
            }
            Action::CreateSlot { instance, size, .. } => self.create_slot(node, instance, size),
            Action::FreeSlot { instance } => self.free_slot(node, instance),
            Action::Spill { kept } => self.spill(node, *kept),
            Action::Unspill { instance } => self.unspill(node, instance),
            Action::DropSpilled { instance } => self.drop_spilled(node, instance),
            Action::Fetch(order) => {
                self.check_source(node, &order.id, order.source);
                self.expect_digest(node, order.instance, order.digest.is_some());
                self.fetch(node, order);
            }
            Action::StopFetch { fetch } => self.stop_fetch(node, fetch),
            Action::Serve { serve, instance, .. } => self.serve(node, serve, instance),
            Action::Refuse { serve } => self.refuse(serve),
            Action::StartFold { order, target } => self.start_fold(node, order, target),
            Action::StopFold { key } => self.stop_fold(node, key),
            Action::FoldInline { reduce, epoch, inputs, .. } => {
                self.fold_inline(node, reduce, epoch, &inputs);
            }
            Action::Inspect { to, number, .. } => {
                let report = String::new();
                self.deliver_soon(node, Event::Inspected { to, number, report });
            }
            Action::Survey { from, message } => self.survey_message(node, from, &message),
            Action::Log(LogEvent::ReduceRestarted { id, detail, .. }) if !self.may_restart => {
                self.fail(format!("the reduce of {id:?} restarted without a fault: {detail}"));
            }
            Action::Log(LogEvent::ReplicaLate { id, node }) if !self.may_restart => {
                self.fail(format!(
                    "{node:?} did not reply to the request to keep a replica of {id:?}"
                ));
            }
            Action::Log(LogEvent::MessageRejected { from, message }) => {
                self.check_message_refusal(node, from, &message);
            }
            Action::Log(LogEvent::Limited { whose, limit }) if limit != "INLINE_SHARE" => {
                self.fail(format!("{whose:?} reaches the limit {limit} at {node:?}"));
            }
            Action::Log(_) | Action::WorkEnded { .. } => {}
            Action::Send { .. }
            | Action::AddPeer(_)
            | Action::DropPeer { .. }
            | Action::Reconnect(_)
            | Action::Left { .. } => {
                self.carry_out_peer(node, action);
            }
        }
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.shell.counted += 1;
        self.shell.counted
    }

    /// Notifies the node of a host after a short delay.
    pub(crate) fn deliver_soon(&mut self, node: NodeId, event: Event) {
        let delay_ns = self.dice.below(50 * MICROSECOND);
        self.after(delay_ns, SimEvent::Deliver { node, event });
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
            has_digest: false,
            flows: BTreeSet::new(),
            folds: BTreeSet::new(),
        });
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if host.slots.insert(instance, slot).is_some() {
            self.fail(format!("{node:?} allocates memory for {instance} twice"));
        }
        for flow in self.shell.early_copies.remove(&(node, instance)).unwrap_or_default() {
            self.flow_requested(flow);
        }
        self.take_slot(node, slot);
    }

    fn take_slot(&mut self, node: NodeId, slot: SlotId) {
        let delay_ns = self.dice.below(50 * MICROSECOND);
        self.after(delay_ns, SimEvent::SlotTaken { node, slot });
    }

    pub(crate) fn slot_taken(&mut self, node: NodeId, slot: SlotId) {
        if self.shell.slots[slot].is_freed {
            return;
        }
        let instance = self.shell.slots[slot].instance;
        let event = if self.dice.chance(self.plan.slot_failures) {
            let detail = "injected failure".into();
            if self.dice.chance(75) {
                self.shell.slots[slot].is_refused = true;
                Event::SlotRefused { instance, detail }
            } else {
                Event::SlotFailed { instance, detail }
            }
        } else {
            Event::SlotReady { instance }
        };
        self.deliver(node, event);
    }

    fn free_slot(&mut self, node: NodeId, instance: Instance) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(slot) = host.slots.remove(&instance) else { return };
        let Slot { is_complete, .. } = self.shell.slots[slot];
        self.shell.slots[slot].is_freed = true;
        let flows: Vec<u64> = self.shell.slots[slot].flows.iter().copied().collect();
        let folds: Vec<u64> = self.shell.slots[slot].folds.iter().copied().collect();
        if is_complete && !(flows.is_empty() && folds.is_empty()) {
            self.fail(format!("{node:?} frees {instance}, which {flows:?}, {folds:?} read"));
        }
        if let Some(reader) = self.users.reader_of(node, instance) {
            self.fail(format!("{node:?} frees {instance}, which {reader:?} reads"));
        }
        if self.hosts.get(&node).is_some_and(|host| host.fetches.values().any(|it| *it == instance))
        {
            self.fail(format!("{node:?} frees {instance}, which still arrives"));
        }
        flows.into_iter().for_each(|flow| self.pump_flow(flow));
        folds.into_iter().for_each(|fold| self.pump_fold(fold));
    }

    /// Writes a block into a copy, unless it is there or has another content.
    pub(crate) fn write_slot(&mut self, number: SlotId, piece: Piece) {
        let slot = &mut self.shell.slots[number];
        if slot.is_freed {
            return;
        }
        let (instance, host) = (slot.instance, slot.host);
        if slot.block(piece.index).is_some() || piece.index >= slot.end() {
            let index = piece.index;
            return self.fail(format!("block {index} of {instance} arrives twice at {host:?}"));
        }
        if piece.content.is_wrong() && slot.has_digest {
            // Until the whole copy is here, nothing reveals it.
            return self.written(number, piece);
        }
        let known =
            self.shell.contents.entry(instance).or_insert_with(|| piece.content.clone()).clone();
        if !known.is_same(&piece.content) {
            let what = format!(
                "block {} of {instance} at {host:?} holds {:?}, expected {known:?}",
                piece.index, piece.content
            );
            return self.fail(what);
        }
        self.written(number, piece);
    }

    /// Stores a block, and continues what waited for it.
    fn written(&mut self, number: SlotId, piece: Piece) {
        let slot = &mut self.shell.slots[number];
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
