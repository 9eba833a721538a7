//! Rate reports of arriving objects to their owners.

use super::Node;
use crate::{
    event::LogEvent,
    id::{FetchId, Instance, NodeId, ObjectId},
    machines::{fetches::Fetch, pulls::IncomingTransfer},
    message::{Message, RateReport},
    rate::{Rate, StallReport},
    table::State,
};

impl Node {
    /// A transfer begins, possibly with blocks from an earlier source.
    pub(super) fn begin_to_receive(&mut self, id: &ObjectId, instance: Instance) {
        let Some(size) = self.copies.get(instance).map(|copy| copy.meta.size) else { return };
        self.pulls.receive(id, instance, size, self.world.now());
    }

    /// More of a copy has arrived.
    pub(super) fn fetch_grew(&mut self, fetch: FetchId, received: u64, missing: u64, shares: u16) {
        let Some(Fetch { instance, source }) = self.fetches.get(fetch) else { return };
        if self.range_reads.has_copy(instance) {
            return;
        }
        let Some(copy) = self.copies.get(instance) else { return };
        // The previous transfer may report its last bytes late.
        if copy.state != State::Flowing(Some(source)) {
            return;
        }
        let id = copy.id.clone();
        let now = self.world.now();
        let Some(rate) = self.pulls.grew(&id, received, missing, shares, now) else { return };
        if !self.ring_results.contains(instance) {
            let owner = self.world.members().owners(&id).primary;
            self.report(owner, id, rate);
        }
    }

    /// Nothing has arrived for a while.
    pub(super) fn report_stall(&mut self, id: &ObjectId) {
        let Some((instance, due)) = self.pulls.stalled(id, self.world.now()) else { return };
        if self.ring_results.contains(instance) {
            return;
        }
        let owners = self.world.members().owners(id);
        let told = match due {
            StallReport::ToPrimary => Some(owners.primary),
            StallReport::ToBackup => owners.backup,
        };
        if let Some(owner) = told {
            self.report(owner, id.clone(), Rate::STALLED);
        }
    }

    fn report(&mut self, owner: NodeId, id: ObjectId, rate: Rate) {
        let Some(arriving) = self.pulls.arriving(&id) else { return };
        let IncomingTransfer { instance, missing, usual } = arriving;
        let Some(State::Flowing(Some(source))) = self.copies.get(instance).map(|copy| copy.state)
        else {
            return;
        };
        let rate_reported = RateReport { id, instance, source, rate, missing, usual };
        self.world.send(owner, Message::RateReport(rate_reported));
    }

    /// Whether an owner assigned the source that this node already receives from, because it has no
    /// better one.
    pub(super) fn keeps_source(
        &mut self,
        id: &ObjectId,
        instance: Instance,
        source: NodeId,
    ) -> bool {
        let state = self.copies.get(instance).map(|copy| copy.state);
        let is_arriving =
            self.pulls.arriving(id).is_some_and(|arriving| arriving.instance == instance);
        let is_same = is_arriving && state == Some(State::Flowing(Some(source)));
        if is_same {
            self.pulls.sender_confirmed(id);
        }
        is_same
    }

    /// A block from a member did not match its checksum.
    pub(super) fn block_corrupt(&mut self, source: NodeId) {
        if self.world.members().contains(source)
            && let Some(blocks) = self.pulls.block_corrupt(source)
        {
            self.world.note(LogEvent::SourceAvoided { node: source, blocks });
        }
    }
}
