//! Members that were lost: they are called again, so that a cluster that was cut in two becomes one again by itself.
//!
//! Knows when whom to call; not how, nor what is said when one answers.

use alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

use crate::{id::NodeId, members::Member, time::Instant};

/// A member that was lost, and is called now and then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absentee {
    /// Who.
    pub member: Member,
    /// Since when.
    pub since: Instant,
    /// Why it counts as lost, in words.
    pub reason: String,
    pause_ns: u64,
    call_at: Instant,
    /// How often nobody, or somebody else, was at its address.
    refusals: u32,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Absentees {
    all: BTreeMap<NodeId, Absentee>,
    /// However many there are, there is no other call before this.
    next_call: Instant,
}

/// The pause before the first call, and before all later ones: what heals is noticed so late.
const PAUSE_MIN_NS: u64 = 500_000_000;
const PAUSE_MAX_NS: u64 = 10 * 1_000_000_000;

/// Between the calls of one node, to whomever.
const CALLS_APART_NS: u64 = 100_000_000;

/// A process that ended does not come back: after so many calls that were refused it is forgotten.
const REFUSALS_MAX: u32 = 8;

/// More are not remembered: the one that was lost first is forgotten.
const ABSENTEES_MAX: usize = 4096;

impl Absentees {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Absentee> {
        self.all.values()
    }

    /// A member was lost.
    pub(crate) fn insert(&mut self, now: Instant, member: Member, reason: String) {
        let (pause_ns, refusals) = (PAUSE_MIN_NS, 0);
        let call_at = now + pause_ns;
        let absentee = Absentee { member, since: now, reason, pause_ns, call_at, refusals };
        self.all.insert(member.id, absentee);
        if self.all.len() > ABSENTEES_MAX
            && let Some(oldest) = self.iter().min_by_key(|absentee| absentee.since)
        {
            let oldest = oldest.member.id;
            self.all.remove(&oldest);
        }
    }

    /// A node is there.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.all.remove(&node);
    }

    #[cfg(test)]
    fn contains(&self, node: NodeId) -> bool {
        self.all.contains_key(&node)
    }

    /// A call was not answered; `is_refused` if nobody, or somebody else, is there.
    pub(crate) fn call_failed(&mut self, node: NodeId, is_refused: bool) {
        let Some(absentee) = self.all.get_mut(&node) else { return };
        absentee.refusals = if is_refused { absentee.refusals + 1 } else { 0 };
        if absentee.refusals >= REFUSALS_MAX {
            self.all.remove(&node);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let first = self.iter().map(|absentee| absentee.call_at).min();
        first.map(|at| at.max(self.next_call))
    }

    /// Whom to call now.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<Member> {
        if self.next_call > now {
            return None;
        }
        let due = self.all.values_mut().filter(|absentee| absentee.call_at <= now);
        // Who was lost last is the likeliest to be back; many that never will be must not keep it waiting.
        let first = due.min_by_key(|absentee| (absentee.pause_ns, absentee.call_at))?;
        first.pause_ns = (2 * first.pause_ns).min(PAUSE_MAX_NS);
        first.call_at = now + first.pause_ns;
        self.next_call = now + CALLS_APART_NS;
        Some(first.member)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn member(number: u64) -> Member {
        Member { id: NodeId(number), address: ([10, 0, 0, 1], 7420).into(), rack: None }
    }

    /// Calls until `end`.
    fn calls(absentees: &mut Absentees, end: u64) -> Vec<(u64, u64)> {
        let mut calls = Vec::new();
        while let Some(due) = absentees.deadline().filter(|due| due.0 <= end) {
            if let Some(member) = absentees.expire(due) {
                calls.push((due.0, member.id.0));
            }
        }
        calls
    }

    #[test]
    fn the_lost_are_called_for_ever_and_ever_less_often() {
        let mut absentees = Absentees::default();
        absentees.insert(Instant(0), member(7), "cut".into());
        let calls = calls(&mut absentees, 100 * SECOND);
        assert_eq!(calls[0], (PAUSE_MIN_NS, 7));
        assert!(calls.windows(2).all(|pair| pair[1].0 - pair[0].0 <= PAUSE_MAX_NS));
        assert!((12..20).contains(&calls.len()), "{calls:?}");
        absentees.call_failed(NodeId(7), false);
        absentees.remove(NodeId(7));
        assert!(!absentees.contains(NodeId(7)));
        assert_eq!(absentees.deadline(), None);
    }

    #[test]
    fn many_are_called_one_after_the_other() {
        let mut absentees = Absentees::default();
        (1..=100).for_each(|number| absentees.insert(Instant(0), member(number), "cut".into()));
        let calls = calls(&mut absentees, 30 * SECOND);
        assert!(calls.windows(2).all(|pair| pair[1].0 - pair[0].0 >= CALLS_APART_NS));
        let mut called: Vec<u64> = calls.iter().map(|(_, node)| *node).collect();
        called.sort_unstable();
        called.dedup();
        assert_eq!(called.len(), 100);
    }

    #[test]
    fn a_process_that_ended_is_forgotten() {
        let mut absentees = Absentees::default();
        absentees.insert(Instant(0), member(1), "ended".into());
        (1..REFUSALS_MAX).for_each(|_| absentees.call_failed(NodeId(1), true));
        // A host that was away for a moment refuses nothing.
        absentees.call_failed(NodeId(1), false);
        (1..REFUSALS_MAX).for_each(|_| absentees.call_failed(NodeId(1), true));
        assert!(absentees.deadline().is_some());
        absentees.call_failed(NodeId(1), true);
        assert_eq!(absentees.deadline(), None);
    }

    #[test]
    fn the_first_to_go_is_forgotten_where_there_are_too_many() {
        let mut absentees = Absentees::default();
        let many = ABSENTEES_MAX as u64 + 1;
        (1..=many).for_each(|number| absentees.insert(Instant(number), member(number), "".into()));
        assert_eq!(absentees.iter().count(), ABSENTEES_MAX);
        assert!(!absentees.contains(NodeId(1)));
        assert!(absentees.contains(NodeId(many)));
    }
}
