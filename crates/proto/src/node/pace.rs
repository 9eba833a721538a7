//! How fast objects come to this node: what it reports to their owners, and what becomes of that.

use alloc::vec::Vec;

use super::{
    Action, Node,
    get::{Phase, Pull},
};
use crate::{
    id::{Instance, NodeId, ObjectId},
    message::{Message, Paced},
    pace::{Due, Pace, REMEMBERED_NS, SLOW_TIMES},
    table::State,
    time::Instant,
};

/// That this node receives slowly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    /// How many times slower than others.
    pub(super) times: u64,
    /// What it received when that was found, and when it was.
    pub(super) bytes_per_second: u64,
    pub(super) at: Instant,
}

impl Node {
    /// A transfer begins, perhaps of what another sender has sent a part of.
    pub(super) fn begin_to_receive(&mut self, id: &ObjectId, instance: Instance) {
        let Some(size) = self.table.get(instance).map(|copy| copy.meta.size) else { return };
        let Some(pull) = self.pulls.get_mut(id) else { return };
        let missing = match pull.phase {
            Phase::Receiving { missing, .. } => missing,
            _ => size,
        };
        pull.phase = Phase::Receiving { instance, pace: Pace::new(self.now), missing };
    }

    /// More of a copy has arrived.
    pub(super) fn fetch_grew(
        &mut self,
        instance: Instance,
        source: NodeId,
        received: u64,
        missing_now: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(copy) = self.table.get(instance) else { return };
        // The transfer before this one may have told of its last bytes late.
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        let id = copy.id.clone();
        let Some(Pull { phase: Phase::Receiving { pace, missing, .. }, .. }) =
            self.pulls.get_mut(&id)
        else {
            return;
        };
        *missing = missing_now;
        let Some(rate) = pace.grew(self.now, received, self.usual_rate) else { return };
        // It is slow no more.
        self.slow.take_if(|slow| slow.bytes_per_second.saturating_mul(SLOW_TIMES) < rate);
        if !self.is_scattered(instance) {
            let owner = self.members.owners(&id).first;
            self.report(owner, id, rate, out);
        }
    }

    /// Nothing has arrived for a while.
    pub(super) fn report_stall(&mut self, id: &ObjectId, out: &mut Vec<Action>) {
        let Some(Pull { phase: Phase::Receiving { instance, pace, .. }, .. }) =
            self.pulls.get_mut(id)
        else {
            return;
        };
        let (instance, due) = (*instance, pace.expire(self.now));
        if self.is_scattered(instance) {
            return;
        }
        let owners = self.members.owners(id);
        match (due, owners.second) {
            (Some(Due::Stalled), _) => self.report(owners.first, id.clone(), 0, out),
            (Some(Due::Unanswered), Some(second)) => self.report(second, id.clone(), 0, out),
            (Some(Due::Unanswered), None) | (None, _) => {}
        }
    }

    fn report(
        &mut self,
        owner: NodeId,
        id: ObjectId,
        bytes_per_second: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(Pull { phase: Phase::Receiving { instance, missing, .. }, .. }) =
            self.pulls.get(&id)
        else {
            return;
        };
        let (instance, missing) = (*instance, *missing);
        let Some(State::Flowing(Some(source))) = self.table.get(instance).map(|copy| copy.state)
        else {
            return;
        };
        let usual = self.usual_rate;
        let paced = Paced { id, instance, source, bytes_per_second, missing, usual };
        self.send(owner, Message::Paced(paced), out);
    }

    /// How many times slower than others this node receives, as it tells the owners of what it asks for.
    pub(super) fn slowness(&self) -> u64 {
        let known = self.slow.filter(|slow| self.now.since(slow.at) < REMEMBERED_NS);
        known.map_or(1, |slow| slow.times)
    }

    /// Whether an owner names the sender that this node receives from already: it knows of none that is better.
    pub(super) fn stays_with(&mut self, id: &ObjectId, instance: Instance, source: NodeId) -> bool {
        let state = self.table.get(instance).map(|copy| copy.state);
        match self.pulls.get_mut(id) {
            Some(Pull { phase: Phase::Receiving { instance: arriving, pace, .. }, .. })
                if *arriving == instance && state == Some(State::Flowing(Some(source))) =>
            {
                pace.answered();
                true
            }
            _ => false,
        }
    }
}
