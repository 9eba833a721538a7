//! Damages what hosts send, and checks what follows.

use hoplite_proto::{
    id::{Instance, NodeId, ObjectId},
    limits::CORRUPT_BLOCKS_MAX,
    message::{Located, Message, Source},
    node::Event,
    question::Answer,
    table::Residency,
    time::Instant,
};

use super::{CORRUPT, WRONG};
use crate::{
    payload::Content,
    plan::{Fault, SECOND},
    shell::{Flow, FlowTarget},
    users::Purpose,
    world::{NotHere, World},
};

/// How long a holder must have been complete to count as one that a requester could have had as its
/// source.
const KNOWN_NS: u64 = SECOND / 4;

impl World {
    /// Makes a host send damaged bytes for a while.
    pub(crate) fn damage(&mut self, node: NodeId, fault: Fault, until: Instant) {
        self.trace.line(self.now, Some(node), "world", || format!("{fault:?} until {until}"));
        match fault {
            Fault::Blocks { percent } => drop(self.damage.blocks.insert(node, (percent, until))),
            Fault::Copies { percent } => drop(self.damage.copies.insert(node, (percent, until))),
            _ => {}
        }
    }

    /// The content of a block of a flow as it arrives.
    pub(crate) fn as_sent(&mut self, flow: u64, content: Content) -> Content {
        if !self.plan.is_damaged {
            return content;
        }
        let Some(Flow { from, to, what, .. }) = self.shell.flows.get(&flow) else { return content };
        let (now, from, to) = (self.now, *from, *to);
        // Ranges and parts of results have no digest.
        if let FlowTarget::Copy { id, instance, ordered: false, range: None, .. } = what
            && let Some(host) = self.hosts.get(&from)
            && host.node.table().get(*instance).is_some_and(|copy| copy.meta.digest.is_some())
        {
            let id = id.clone();
            if content.is_wrong()
                || self.damage.is_hit(now, |damage| damage.copies.get(&from).copied())
            {
                self.damage.wrong.insert((id, to, from));
                return Content::of(WRONG);
            }
        }
        if self.damage.is_hit(now, |damage| damage.blocks.get(&from).copied()) {
            return Content::of(CORRUPT);
        }
        content
    }

    /// Records whether a transfer ends with the check of a digest.
    pub(crate) fn expect_digest(&mut self, node: NodeId, instance: Instance, has_digest: bool) {
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        if let Some(slot) = slot {
            self.shell.slots[slot].has_digest = has_digest;
        }
    }

    /// A block has arrived that does not match its checksum. As in a real node, the connection
    /// closes.
    pub(crate) fn block_corrupt(&mut self, flow: u64) {
        let Some(Flow { from, to, .. }) = self.shell.flows.get(&flow) else { return };
        let (source, node, now) = (*from, *to, self.now);
        let (count, since) = self.damage.counted.entry((node, source)).or_default();
        *count += 1;
        if *count == CORRUPT_BLOCKS_MAX {
            *since = Some(now);
        }
        self.deliver(node, Event::BlockCorrupt { source });
        self.break_flow(flow, NotHere(false));
    }

    /// The event of a message that arrives: the bytes of a small object may not match its digest.
    pub(crate) fn event_of(&mut self, from: NodeId, to: NodeId, message: Message) -> Event {
        let now = self.now;
        if let Message::Answer { answer: Answer::Located(located), .. } = &message
            && let Located { id, meta, source: Source::Inline(_), .. } = &**located
            && meta.digest.is_some()
            && self.damage.is_hit(now, |damage| damage.copies.get(&from).copied())
        {
            self.damage.wrong.insert((id.clone(), to, from));
            return Event::InlineCorrupt { id: id.clone(), source: from };
        }
        Event::Message { from, message }
    }

    /// Records that the transfer of a copy failed.
    pub(crate) fn note_failed(&mut self, instance: Instance, node: NodeId, source: NodeId) {
        if self.plan.is_damaged {
            self.damage.failed.insert((instance, node, source));
        }
    }

    /// Records since when the copies of a node are complete.
    pub(crate) fn note_complete_since(&mut self, node: NodeId) {
        if !self.plan.is_damaged {
            return;
        }
        let (now, Some(host)) = (self.now, self.hosts.get(&node)) else { return };
        let table = host.node.table();
        let is_complete = |copy: &hoplite_proto::table::Copy| {
            copy.is_complete() && copy.residency == Residency::Memory && !copy.doomed
        };
        self.damage.complete.retain(|(at, instance), _| {
            *at != node || table.get(*instance).is_some_and(is_complete)
        });
        for (instance, _) in table.iter().filter(|(_, copy)| is_complete(copy)) {
            self.damage.complete.entry((node, instance)).or_insert(now);
        }
    }

    /// A node that got too many corrupt blocks from a source may use it only if no other node has
    /// the object.
    pub(crate) fn check_source(&mut self, node: NodeId, id: &ObjectId, source: NodeId) {
        let counted = self.damage.counted.get(&(node, source));
        let Some(since) = counted.and_then(|(_, since)| *since) else { return };
        // An owner may have assigned it before.
        let asked = self.asked_since(node, id).filter(|asked| *asked > since + KNOWN_NS);
        let Some(asked) = asked else { return };
        // Copies with wrong bytes count like corrupt blocks, if they came from one source.
        let has_sent_wrong = |other: &NodeId| {
            self.damage.wrong.iter().any(|(_, to, from)| (to, from) == (&node, other))
        };
        let is_avoided = |other: &NodeId| {
            let counted = self.damage.counted.get(&(node, *other));
            *other == source
                || counted.is_some_and(|(count, _)| *count >= CORRUPT_BLOCKS_MAX)
                || has_sent_wrong(other)
        };
        let others = self.holders_since(node, id, asked);
        if let Some(other) = others.into_iter().find(|other| !is_avoided(other)) {
            self.fail(format!(
                "{node:?} receives {id:?} from {source:?}, which sends corrupt blocks, but {other:?} has it"
            ));
        }
    }

    /// An object may be reported as corrupt only if every holder sent wrong bytes.
    pub(crate) fn check_corrupt(
        &self,
        node: NodeId,
        id: &ObjectId,
        asked: Instant,
        senders: &[NodeId],
    ) -> Result<(), String> {
        let has_sent = |sender: &NodeId| self.damage.wrong.contains(&(id.clone(), node, *sender));
        if senders.is_empty() || !senders.iter().all(has_sent) {
            return Err(format!("not all of {senders:?} sent wrong bytes"));
        }
        let others = self.holders_since(node, id, asked);
        match others.into_iter().find(|other| !senders.contains(other)) {
            Some(other) => Err(format!("{other:?} has the object, and sent no wrong bytes")),
            None => Ok(()),
        }
    }

    /// When a client of a node sent its first open request for an object; `None` without one.
    fn asked_since(&self, node: NodeId, id: &ObjectId) -> Option<Instant> {
        let open = self.users.requests.values().filter(|asked| {
            let is_it = matches!(&asked.purpose, Purpose::Get { id: wanted, .. } if wanted == id);
            is_it && asked.node == node && !asked.is_answered
        });
        open.map(|asked| asked.at).min()
    }

    /// Other nodes from which a node could have had an object since a request. Empty while other
    /// faults explain that it could not.
    fn holders_since(&self, node: NodeId, id: &ObjectId, asked: Instant) -> Vec<NodeId> {
        if self.users.is_shrunk || self.users.objects_of(id).count() > 1 {
            return Vec::new();
        }
        let owners = self.hosts[&node].node.members().owners(id);
        let is_holder = |other: NodeId, instance: Instance| {
            let Some(host) = self.hosts.get(&other).filter(|host| host.is_up) else { return false };
            let Some(copy) = host.node.table().get(instance) else { return false };
            let is_known = copy.inline.is_none() || owners.contains(other);
            copy.id == *id
                && is_known
                && other != node
                && !self.damage.failed.contains(&(instance, node, other))
                && !self.damage.wrong.contains(&(id.clone(), node, other))
        };
        let complete = self.damage.complete.iter();
        let long = complete.filter(|(_, since)| **since + KNOWN_NS < asked);
        let holders = long.filter(|((other, instance), _)| is_holder(*other, *instance));
        holders.map(|((other, _), _)| *other).collect()
    }
}

#[cfg(test)]
mod tests {
    use hoplite_proto::{
        meta::{Digest, Meta},
        mutants::Mutant,
        node::Config,
        reduce::cost::Link,
    };

    use super::*;
    use crate::{
        case::Case,
        dice::Dice,
        payload::SMALL_BYTES,
        plan::{Act, Fate, Make, Plan, Spec},
        shell::BLOCK_BYTES,
        verdict::{Mutation, Record},
    };

    /// Clusters of which every one has damage.
    fn damaged(seed: u64) -> Case {
        let mut case = Case::new(seed);
        if !case.plan.is_damaged {
            case.plan.add_damage(&mut Dice::new(seed));
        }
        case
    }

    #[test]
    fn clusters_with_damage_pass_all_checks() {
        for seed in 0..crate::TESTED / 2 {
            assert_eq!(damaged(seed).run(Record::Nothing, None).failure, None, "seed {seed}");
        }
    }

    /// Six nodes. The second sends wrong bytes while the last four get an object that the first has
    /// made. The copy of the second is cached, so it is chosen first.
    fn one_wrong_holder(bytes: u64) -> Case {
        let link = Link { latency_ns: 100_000, bytes_per_second: 125_000_000 };
        let mut plan = Plan::empty(6, Config::new(1 << 34, link), Instant(20 * SECOND));
        let meta = Meta::bytes(bytes).with_digest(Digest([7; 32]));
        let make = Make::Put { fate: Fate::Sealed, pace_ns: 0 };
        let object = plan.add_object(Spec { name: None, meta, make, ttl_ns: None });
        let get = |at| {
            let (timeout_ns, cancel_ns, read_ns) = (None, None, 0);
            Act::Get { object, at, selection: None, timeout_ns, cancel_ns, read_ns }
        };
        plan.add(SECOND, Act::Make { object, at: 0 });
        plan.add(2 * SECOND, get(1));
        let fault = Fault::Copies { percent: 100 };
        plan.add(4 * SECOND, Act::Fault { at: 1, fault, time_ns: 9 * SECOND });
        (2..6).for_each(|at| plan.add(5 * SECOND, get(at)));
        plan.is_damaged = true;
        Case { seed: 1, plan }
    }

    /// Returns the failure with a mutant; without it, there must be none.
    fn failure(case: Case, bug: Mutant) -> String {
        assert_eq!(case.run(Record::Nothing, None).failure, None);
        let failure = case.run(Record::Nothing, Some(Mutation::Node(bug))).failure;
        failure.unwrap_or_else(|| panic!("{bug:?} is not detected"))
    }

    #[test]
    fn wrong_bytes_that_are_taken_are_detected() {
        let failure = failure(one_wrong_holder(8 * BLOCK_BYTES), Mutant::IgnoresDigests);
        assert!(failure.contains("wrong bytes"), "{failure}");
    }

    #[test]
    fn an_object_reported_as_corrupt_too_early_is_detected() {
        let bug = Mutant::GivesUpAfterOneCorruptCopy;
        let failure = failure(one_wrong_holder(8 * BLOCK_BYTES), bug);
        assert!(failure.contains("sent no wrong bytes"), "{failure}");
    }

    /// The request to the backup owner, which follows after a second anyway, hides a lost one.
    #[test]
    fn a_small_object_with_wrong_bytes_comes_from_the_other_owner() {
        assert_eq!(one_wrong_holder(SMALL_BYTES).run(Record::Nothing, None).failure, None);
    }

    #[test]
    fn a_source_that_should_be_avoided_is_detected() {
        let sabotage = Some(Mutation::Node(Mutant::TrustsCorruptSources));
        let mut all = (0..100).map(damaged);
        let failure = all.find_map(|case| case.run(Record::Nothing, sabotage).failure);
        assert!(failure.is_some_and(|failure| failure.contains("which sends corrupt blocks")));
    }
}
