//! Pulls: objects in transfer to this node, each from the request for a source until its last byte.
//!
//! One pull ([`super::pull_state`]) serves all local readers and all receivers behind this node.
//!
//! Also records the sources to avoid: those that failed a pull, and those that sent corrupt blocks.
//! Each corrupt block is fetched again, from any source. A relay passes on the checksums of the
//! first source, so a corrupt block was changed by the direct source or on the way from it.
//!
//! Does not know which copies are here, nor which readers wait.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use crate::{
    id::{Instance, NodeId, ObjectId},
    limits::CORRUPT_BLOCKS_MAX,
    machines::pull_state::{DigestMismatch, Pull, PullPhase, PullTimeout},
    members::Members,
    message::ReceiveRate,
    mutants::{self, Mutant},
    rate::{REMEMBERED_NS, Rate, SLOW_TIMES, StallReport},
    time::Instant,
    timed::Timed,
};

/// All objects in transfer to this node.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    all: Timed<ObjectId, Pull>,
    /// The number of corrupt blocks that each member has sent.
    corrupt: BTreeMap<NodeId, u32>,
    /// The rate at which this node receives from healthy sources, in bytes per second, once it was
    /// measured.
    usual_rate: Option<u64>,
    /// That this node receives slowly, as reported by an owner.
    slow: Option<SlowNotice>,
}

/// An object that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IncomingTransfer {
    pub(crate) instance: Instance,
    /// Bytes that are still missing.
    pub(crate) missing: u64,
    /// The rate at which this node usually received before, in bytes per second.
    pub(crate) usual: Option<u64>,
}

/// A report that this node receives slowly.
#[derive(Clone, Copy, Debug)]
struct SlowNotice {
    /// How many times slower than others.
    times: u64,
    /// The rate at the time of the report, and that time.
    bytes_per_second: u64,
    at: Instant,
}

impl Pulls {
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    pub(crate) fn contains(&self, id: &ObjectId) -> bool {
        self.all.contains_key(id)
    }

    /// Objects that this node requests or receives.
    pub(crate) fn ids(&self) -> Vec<ObjectId> {
        self.all.keys().cloned().collect()
    }

    /// The object after another one, or the first, that this node requests or receives.
    pub(crate) fn next_after(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        self.all.next_after(after)
    }

    fn phase(&self, id: &ObjectId) -> Option<&PullPhase> {
        self.all.get(id).map(|pull| &pull.phase)
    }

    pub(crate) fn is_locating(&self, id: &ObjectId) -> bool {
        matches!(self.phase(id), Some(PullPhase::Locating { .. }))
    }

    pub(crate) fn is_receiving(&self, id: &ObjectId) -> bool {
        matches!(self.phase(id), Some(PullPhase::Receiving { .. }))
    }

    /// The instance that was located, while it waits for capacity or memory.
    pub(crate) fn located(&self, id: &ObjectId) -> Option<Instance> {
        match self.phase(id)? {
            PullPhase::Located(instance) => Some(*instance),
            _ => None,
        }
    }

    /// The instances that arrive.
    pub(crate) fn receiving(&self) -> impl Iterator<Item = Instance> {
        self.all.values().filter_map(|pull| match pull.phase {
            PullPhase::Receiving { instance, .. } => Some(instance),
            _ => None,
        })
    }

    /// Describes the progress in words.
    pub(crate) fn state(&self, id: &ObjectId, members: &Members) -> Option<String> {
        self.all.get(id).map(|pull| pull.state(members.owners(id).primary))
    }

    fn begin(&mut self, id: &ObjectId, phase: PullPhase) {
        self.all.insert(id.clone(), Pull::new(phase));
    }

    /// Begins to look for an object; the caller still has to send the request to its owner.
    pub(crate) fn seek(&mut self, id: &ObjectId) {
        self.begin(id, PullPhase::Locating { backup_at: None });
    }

    /// Begins to receive an instance whose source is known.
    pub(crate) fn seek_at(&mut self, id: &ObjectId, instance: Instance) {
        self.begin(id, PullPhase::Located(instance));
    }

    /// Ends a pull.
    pub(crate) fn end(&mut self, id: &ObjectId) -> Option<PullPhase> {
        self.all.remove(id).map(|pull| pull.phase)
    }

    /// Marks the owner as requested. Returns the sources to avoid, and the last one that had no
    /// such copy.
    #[allow(clippy::type_complexity)]
    pub(crate) fn begin_locate(
        &mut self,
        id: &ObjectId,
        backup_at: Option<Instant>,
    ) -> Option<(Vec<NodeId>, Option<(NodeId, Instance)>)> {
        let avoid = self.avoided(id);
        self.all.update(id, |pull| {
            pull.phase = PullPhase::Locating { backup_at };
            (avoid, pull.not_here.take())
        })
    }

    /// Objects that this node has requested from an owner and that are not located yet.
    pub(crate) fn locating(&self) -> Vec<ObjectId> {
        let is_locating = |pull: &Pull| matches!(pull.phase, PullPhase::Locating { .. });
        self.all.iter().filter(|(_, pull)| is_locating(pull)).map(|(id, _)| id.clone()).collect()
    }

    /// Records that the backup owner gets the request too.
    pub(crate) fn backup_requested(&mut self, id: &ObjectId) {
        self.all.update(id, |pull| {
            if let PullPhase::Locating { backup_at } = &mut pull.phase {
                *backup_at = None;
            }
        });
    }

    /// Records that an owner has located the object.
    pub(crate) fn saw(&mut self, id: &ObjectId) {
        self.all.update(id, |pull| pull.seen = true);
    }

    /// Whether the object was located since the pull began.
    pub(crate) fn has_seen(&self, id: &ObjectId) -> bool {
        self.all.get(id).is_some_and(|pull| pull.seen)
    }

    /// Records that an owner keeps the request. Returns whether a pull of the object exists.
    pub(crate) fn acknowledged(&mut self, id: &ObjectId) -> bool {
        let known = self.all.update(id, |pull| {
            if let PullPhase::Locating { backup_at } = &mut pull.phase {
                *backup_at = None;
            }
        });
        known.is_some()
    }

    /// Records that the object was located: it waits for capacity, or its owner has sent its bytes.
    /// Returns false if no pull of it exists.
    pub(crate) fn locate_at(&mut self, id: &ObjectId, instance: Instance) -> bool {
        self.all.update(id, |pull| pull.phase = PullPhase::Located(instance)).is_some()
    }

    /// Pauses a pull whose offered source cannot be used now; its owner gets another request later.
    pub(crate) fn pause(&mut self, id: &ObjectId, now: Instant) {
        self.all.update(id, |pull| pull.pause(now));
    }

    /// Begins a transfer of an object of `size` bytes, of which another source may have sent a part
    /// before.
    pub(crate) fn receive(&mut self, id: &ObjectId, instance: Instance, size: u64, now: Instant) {
        let usual = self.usual_rate;
        self.all.update(id, |pull| pull.receive(instance, size, usual, now));
    }

    /// Handles an object that arrived complete with the wrong digest. Returns `None` if no pull of
    /// it exists.
    pub(crate) fn mismatched(&mut self, id: &ObjectId, source: NodeId) -> Option<DigestMismatch> {
        self.all.update(id, |pull| pull.mismatched(source))
    }

    /// Sources from which it arrived with the wrong digest.
    pub(crate) fn corrupt_senders(&self, id: &ObjectId) -> Vec<NodeId> {
        self.all.get(id).map_or_else(Vec::new, |pull| pull.corrupt.clone())
    }

    /// Whether this source has failed before, or sends corrupt blocks.
    pub(crate) fn avoids(&self, id: &ObjectId, node: NodeId) -> bool {
        self.all.get(id).is_some_and(|pull| pull.avoid.contains(&node))
            || self.unreliable().any(|other| other == node)
    }

    /// Records that a source failed. Returns whether it is the first failure of this pull, `None`
    /// if no pull exists.
    pub(crate) fn failed(
        &mut self,
        id: &ObjectId,
        source: NodeId,
        not_here: Option<(NodeId, Instance)>,
        now: Instant,
    ) -> Option<bool> {
        self.all.update(id, |pull| {
            if !pull.avoid.contains(&source) {
                pull.avoid.push(source);
            }
            pull.not_here = not_here;
            pull.pause(now);
            pull.failures == 1
        })
    }

    /// The pulls that are due, by their deadlines.
    pub(crate) fn due(&self, now: Instant) -> Vec<ObjectId> {
        self.all.due(now)
    }

    /// Returns why a pull is due.
    pub(crate) fn overdue(&self, id: &ObjectId) -> Option<PullTimeout> {
        self.all.get(id).map(|pull| match &pull.phase {
            PullPhase::Locating { .. } => PullTimeout::Reply,
            PullPhase::Receiving { .. } => PullTimeout::Stalled,
            PullPhase::Located(_) | PullPhase::Backoff { .. } => PullTimeout::Backoff,
        })
    }

    pub(crate) const fn set_usual_rate(&mut self, rate: Option<u64>) {
        self.usual_rate = rate;
    }

    /// Records progress, while `shares - 1` other transfers share the link. Returns the rate, if a
    /// report to the owner is due.
    pub(crate) fn grew(
        &mut self,
        id: &ObjectId,
        received: u64,
        missing_now: u64,
        shares: u16,
        now: Instant,
    ) -> Option<Rate> {
        let rate = self.all.update(id, |pull| {
            let PullPhase::Receiving { meter, missing, usual, .. } = &mut pull.phase else {
                return None;
            };
            *missing = missing_now;
            meter.grew(now, received, shares, *usual)
        });
        let rate = rate.flatten()?;
        // It is no longer slow, compared with the rate of others at the time of the report, which
        // was `times` times higher.
        self.slow.take_if(|slow| {
            slow.bytes_per_second.saturating_mul(slow.times)
                < rate.fair().saturating_mul(SLOW_TIMES)
        });
        Some(rate)
    }

    /// Records that an owner found this node to receive `times` times slower than others.
    pub(crate) fn found_slow(&mut self, times: u64, bytes_per_second: u64, now: Instant) {
        self.slow = Some(SlowNotice { times, bytes_per_second, at: now });
    }

    /// The receive rate that this node includes in its requests to owners.
    pub(crate) fn receives(&self, now: Instant) -> ReceiveRate {
        let known = self.slow.filter(|slow| now.since(slow.at) < REMEMBERED_NS);
        ReceiveRate { slowness: known.map_or(1, |slow| slow.times), usual: self.usual_rate }
    }

    /// Handles a transfer in which nothing has arrived for a while. Returns the instance, and which
    /// owner gets the report.
    pub(crate) fn stalled(
        &mut self,
        id: &ObjectId,
        now: Instant,
    ) -> Option<(Instance, StallReport)> {
        let due = self.all.update(id, |pull| {
            let PullPhase::Receiving { instance, meter, .. } = &mut pull.phase else { return None };
            Some((*instance, meter.expire(now)?))
        });
        due.flatten()
    }

    /// The state of a transfer to this node.
    pub(crate) fn arriving(&self, id: &ObjectId) -> Option<IncomingTransfer> {
        match *self.phase(id)? {
            PullPhase::Receiving { instance, missing, usual, .. } => {
                Some(IncomingTransfer { instance, missing, usual })
            }
            _ => None,
        }
    }

    /// Records that an owner has no better source.
    pub(crate) fn sender_confirmed(&mut self, id: &ObjectId) {
        self.all.update(id, |pull| {
            if let PullPhase::Receiving { meter, .. } = &mut pull.phase {
                meter.answered();
            }
        });
    }

    /// Counts a corrupt block of a member. Returns the count when the member starts to be avoided.
    pub(crate) fn block_corrupt(&mut self, source: NodeId) -> Option<u32> {
        let count = self.corrupt.entry(source).or_default();
        *count = count.saturating_add(1);
        (*count == CORRUPT_BLOCKS_MAX).then_some(*count)
    }

    /// The number of corrupt blocks of each member.
    pub(crate) fn corrupt(&self) -> Vec<(NodeId, u32)> {
        self.corrupt.iter().map(|(node, blocks)| (*node, *blocks)).collect()
    }

    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.corrupt.remove(&node);
    }

    /// Members that send corrupt blocks: sources only of objects that no other node has.
    fn unreliable(&self) -> impl Iterator<Item = NodeId> {
        let trusts_all = mutants::is_active(Mutant::TrustsCorruptSources);
        let many = self.corrupt.iter().filter(|(_, count)| **count >= CORRUPT_BLOCKS_MAX);
        many.map(|(node, _)| *node).filter(move |_| !trusts_all)
    }

    /// Adds to the sources that failed a reader those that send corrupt blocks.
    pub(crate) fn with_unreliable(&self, mut failed: Vec<NodeId>) -> Vec<NodeId> {
        for node in self.unreliable() {
            if !failed.contains(&node) {
                failed.push(node);
            }
        }
        failed
    }

    /// Sources to use only if no other node has the object: those that failed, and those that send
    /// corrupt blocks.
    pub(crate) fn avoided(&self, id: &ObjectId) -> Vec<NodeId> {
        let failed = self.all.get(id).map_or_else(Vec::new, |pull| pull.avoid.clone());
        self.with_unreliable(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn id() -> ObjectId {
        ObjectId::Minted { node: NodeId(2), serial: 1 }
    }

    #[test]
    fn a_failed_source_is_avoided_and_retries_back_off() {
        let mut pulls = Pulls::default();
        pulls.seek(&id());
        let mut before = NOW;
        for (failures, expected) in [(1, 40_000_000), (2, 80_000_000), (3, 160_000_000)] {
            let is_first = pulls.failed(&id(), NodeId(2), None, before);
            assert_eq!(is_first, Some(failures == 1));
            let until = pulls.deadline().expect("it pauses");
            assert_eq!(until, before + expected);
            assert_eq!(pulls.due(until), [id()]);
            before = until;
        }
        assert_eq!(pulls.avoided(&id()), [NodeId(2)]);
    }

    #[test]
    fn members_that_send_corrupt_blocks_are_avoided_for_every_object() {
        let mut pulls = Pulls::default();
        let told = (0..2 * CORRUPT_BLOCKS_MAX).filter_map(|_| pulls.block_corrupt(NodeId(3)));
        assert_eq!(told.collect::<Vec<_>>(), [CORRUPT_BLOCKS_MAX], "reported once");
        assert_eq!(pulls.avoided(&id()), [NodeId(3)]);
        pulls.forget_node(NodeId(3));
        assert!(pulls.avoided(&id()).is_empty());
    }
}
