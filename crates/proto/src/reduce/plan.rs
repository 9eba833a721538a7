//! The plan of one attempt: fold the arrived inputs on this node, in a tree or as a ring, and on
//! which nodes.
//!
//! Finding inputs and handling failed attempts is in [`super::inputs`].

use alloc::{collections::BTreeMap, vec::Vec};
use core::cmp::Reverse;

use super::{
    assign::{Contributor, Plan, PlanShape, Tree},
    cost::choose_degree,
    inputs::{Arrival, InputWait, Reduce},
    ring,
    shape::Shape,
    step::{PlanContext, Step},
};
use crate::{
    id::{Instance, NodeId},
    limits::{INLINE_BYTES_MAX, WINDOW_BYTES},
    message::{FoldKey, FoldOrder},
    mutants::{self, Mutant},
    pipeline::frame_bytes,
    time::Instant,
};

impl Reduce {
    /// Chooses arrived inputs, up to the count, and orders the folds that are final.
    pub(super) fn advance(
        &mut self,
        now: Instant,
        context: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        let has_all = self.chosen.len() == self.count;
        if has_all || self.arrived_count() == 0 || self.is_searching() {
            return;
        }
        let size = self.meta().map_or(0, |meta| meta.size);
        if size <= INLINE_BYTES_MAX {
            return self.advance_small(steps);
        }
        // Wait until every owner has replied once. Before that, existing inputs would look like
        // late ones, and those of one node would get a position each.
        if self.plan.is_none() && self.unanswered > 0 {
            return;
        }
        if self.plan.is_some() {
            self.assign_late_arrivals();
            return self.order(steps);
        }
        // Positions that wait for an input fill their windows and then stop. An object larger than
        // a window gains nothing by an early start, and would share the links with the transfers
        // that produce the missing inputs.
        if size > WINDOW_BYTES && self.arrived_count() < self.count {
            return;
        }
        self.look_up_evicted(context, steps);
        if self.unanswered > 0 {
            return;
        }
        let groups = self.groups();
        if self.uses_ring(size, &groups, context) {
            return self.start_ring(size, groups, context, steps);
        }
        if self.is_worth_waiting(now, size, &groups, context) {
            return;
        }
        self.begin_tree(size, groups, context, steps);
        self.order(steps);
    }

    fn advance_small(&mut self, steps: &mut Vec<Step>) {
        if self.arrived_count() < self.count {
            return;
        }
        self.choose();
        self.plan = Some(Plan { shape: PlanShape::Inline, frame: 0 });
        let twice = usize::from(mutants::is_active(Mutant::FoldsInputTwice));
        let chosen = self.chosen[..twice].iter().chain(&self.chosen);
        steps.push(Step::FoldInline(chosen.filter_map(|arrival| arrival.inline.clone()).collect()));
    }

    /// Arrived inputs of the fold, grouped by node.
    fn groups(&self) -> Vec<Contributor<NodeId, Instance>> {
        let mut groups: Vec<Contributor<NodeId, Instance>> = Vec::new();
        let mut by_node: BTreeMap<NodeId, usize> = BTreeMap::new();
        for arrival in self.arrived().take(self.count) {
            let at = *by_node.entry(arrival.holder).or_insert(groups.len());
            if at == groups.len() {
                groups.push(Contributor { node: arrival.holder, inputs: Vec::new() });
            }
            groups[at].inputs.push(arrival.instance);
        }
        groups
    }

    /// Whether this attempt may run as a ring. A forced degree requires a tree, and the next
    /// attempt after a failure uses one too, since a ring may fail for lack of capacity.
    ///
    /// The coordinator owns the ids that it generates, and so receives the requests for the result.
    /// It does not own most names.
    fn may_use_ring(&self) -> bool {
        let is_minted = self.result.minter() == Some(self.me);
        let is_first = self.forced_degree.is_none() && self.epoch == 0;
        is_minted && is_first && self.count <= ring::INPUTS_MAX
    }

    fn uses_ring(
        &self,
        size: u64,
        groups: &[Contributor<NodeId, Instance>],
        PlanContext { link, wants, .. }: PlanContext<'_>,
    ) -> bool {
        let nodes: Vec<NodeId> = groups.iter().map(|group| group.node).collect();
        // A contributor may start anywhere in its inputs, so they must be complete.
        let is_whole = |arrival: &Arrival| arrival.complete;
        self.may_use_ring()
            && self.arrived_count() >= self.count
            && self.arrived().take(self.count).all(is_whole)
            && ring::is_best(size, &nodes, self.me, link, wants)
    }

    /// Whether to wait a moment, since more inputs or more requests for the result would allow a
    /// ring.
    fn is_worth_waiting(
        &mut self,
        now: Instant,
        size: u64,
        groups: &[Contributor<NodeId, Instance>],
        PlanContext { link, wants, .. }: PlanContext<'_>,
    ) -> bool {
        let missing = self.count.saturating_sub(self.arrived_count());
        let nodes: Vec<NodeId> = groups.iter().map(|group| group.node).collect();
        let (wanting, others) = ring::askers(&nodes, self.me, wants);
        // One reader among many does not suggest more.
        let is_likely = wanting > 0 && 4 * wanting >= others;
        if !(self.may_use_ring() && is_likely && ring::is_gain(size, groups.len() + missing, link))
        {
            return false;
        }
        if self.input_wait == InputWait::NotStarted {
            let patience_ns = u64::try_from(link.transfer_ns(size) / 16).unwrap_or(u64::MAX);
            self.input_wait = InputWait::Until(now + patience_ns);
        }
        matches!(self.input_wait, InputWait::Until(until) if now < until)
    }

    fn start_ring(
        &mut self,
        size: u64,
        mut contributors: Vec<Contributor<NodeId, Instance>>,
        PlanContext { members, .. }: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        // Neighbors in this order send to each other, so that traffic leaves and enters each group
        // once.
        contributors.sort_by_key(|contributor| (members.place(contributor.node), contributor.node));
        self.choose();
        self.input_wait = InputWait::Expired;
        let nodes: Vec<NodeId> = contributors.iter().map(|contributor| contributor.node).collect();
        let frame = ring::frame_bytes(size, contributors.len()) as u32;
        self.plan = Some(Plan { shape: PlanShape::Ring(nodes), frame });
        steps.push(Step::StartRing(contributors));
    }

    /// Assigns the existing inputs to positions, sorted by rack, in a tree with a position for each
    /// missing input.
    fn begin_tree(
        &mut self,
        size: u64,
        mut groups: Vec<Contributor<NodeId, Instance>>,
        PlanContext { members, link, .. }: PlanContext<'_>,
        steps: &mut Vec<Step>,
    ) {
        self.input_wait = InputWait::Expired;
        let batch = self.arrived_count().min(self.count);
        let local: Vec<Instance> = groups
            .extract_if(.., |group| group.node == self.me)
            .flat_map(|mine| mine.inputs)
            .collect();
        // In a chain, neighbors send to each other, and the last node, nearest to the caller, sends
        // to it. The sum of a group therefore leaves it once, and enters each of the caller's
        // groups once.
        groups.sort_by_key(|group| {
            (Reverse(members.distance(group.node, self.me)), members.place(group.node))
        });
        self.choose();
        let positions = (groups.len() + self.count - batch) as u32;
        let (chosen, reason) = choose_degree(positions, size, link);
        let degree = self.forced_degree.unwrap_or(chosen);
        steps.push(Step::DegreeChosen(degree, reason));
        let mut tree = Tree::new(Shape { degree, positions });
        for Contributor { node, inputs } in groups {
            tree.contributor(node, inputs);
        }
        let frame = frame_bytes(size, link) as u32;
        self.plan = Some(Plan { shape: PlanShape::Tree { tree, local, reason }, frame });
    }

    fn assign_late_arrivals(&mut self) {
        let first = self.chosen.len();
        self.choose();
        let Some(Plan { shape: PlanShape::Tree { tree, local, .. }, .. }) = &mut self.plan else {
            return;
        };
        for arrival in &self.chosen[first..] {
            if arrival.holder == self.me {
                local.push(arrival.instance);
            } else {
                tree.contributor(arrival.holder, Vec::from([arrival.instance]));
            }
        }
    }

    fn order(&mut self, steps: &mut Vec<Step>) {
        let (Some(meta), Some(dtype)) = (self.meta(), self.dtype()) else { return };
        let (size, op, reduce, epoch) = (meta.size, self.op, self.key, self.epoch);
        let epoch = if mutants::is_active(Mutant::IgnoresEpochs) { 0 } else { epoch };
        let Some(Plan { shape: PlanShape::Tree { tree, local, .. }, frame }) = &mut self.plan
        else {
            return;
        };
        if self.chosen.len() == self.count {
            tree.close();
        }
        let result = &self.result;
        let fold = |key, inputs: Vec<Instance>, children| FoldOrder {
            key,
            result: result.clone(),
            inputs,
            children,
            op,
            dtype,
            size,
            part: 0..size,
            frame: *frame,
        };
        for order in tree.orders() {
            let key = FoldKey { reduce, epoch, segment: 0, position: order.position };
            steps.push(Step::Order(order.node, fold(key, order.inputs, order.children)));
        }
        if let Some(children) = tree.roots() {
            let key = FoldKey::result(reduce, self.epoch);
            steps.push(Step::Result(fold(key, local.clone(), children)));
        }
    }
}
