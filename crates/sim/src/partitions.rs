//! Puts names on both sides of a partition, or in two clusters that merge later. One of the objects must survive, the
//! same one everywhere, unless it is deleted or its node ends.

use std::collections::BTreeSet;

use hoplite_proto::{
    error::Error,
    id::{Instance, NodeId, ObjectId},
    time::Instant,
};

use crate::{
    dice::Dice,
    plan::{
        Act, Class, DETECTION_NS, Fate, Fault, MICROSECOND, MILLISECOND, Make, Plan, SECOND, Spec,
        name,
    },
    users::{Object, Purpose},
    world::World,
};

impl Plan {
    /// Partitions some clusters, or starts them as two, while both sides put the same names.
    pub(crate) fn add_partitions(&mut self, horizon: u64, classes: &[Class], dice: &mut Dice) {
        if !dice.chance(20) || self.nodes < 2 {
            return;
        }
        // Partitioned nodes put most of their names after the others have declared them dead.
        let (first, last) = if dice.chance(50) {
            let meeting = dice.between(100 * MILLISECOND, horizon);
            self.apart_until = Some(Instant(meeting));
            (0, meeting)
        } else {
            let (when, time_ns) = (dice.below(horizon), dice.between(4, 9) * SECOND);
            self.add(when, Act::Fault { at: dice.below(64), fault: Fault::Partition, time_ns });
            let first = if dice.chance(80) { when + DETECTION_NS + SECOND / 2 } else { when };
            (first, when + time_ns)
        };
        for number in 0..dice.between(1, 6) {
            let group = if dice.chance(50) { number } else { 0 };
            let name = name(&format!("half{group}/x{number}"));
            for _ in 0..dice.between(2, 4) {
                let class = &classes[dice.below(classes.len() as u64) as usize];
                let pace_ns = if dice.chance(70) { 0 } else { dice.below(500 * MICROSECOND) };
                let make = Make::Put { fate: Fate::Sealed, pace_ns };
                let (name, meta) = (Some(name.clone()), class.meta.clone());
                let object = self.add_object(Spec { name, meta, make, ttl_ns: None });
                let when = dice.between(first, last);
                self.add(when, Act::Make { object, at: dice.below(64) });
                if dice.chance(30) {
                    let copies = dice.between(2, 3) as u32;
                    self.add(
                        when + dice.below(SECOND),
                        Act::Replicate { object, replicas: copies },
                    );
                }
                for _ in 0..dice.below(4) {
                    let when = when + dice.below(last + 5 * SECOND - when);
                    self.add_get(object, when, dice.below(64), dice);
                }
                if dice.chance(4) {
                    let when = when + dice.below(last + 5 * SECOND - when);
                    self.add(when, Act::Delete { object, at: dice.below(64) });
                }
            }
        }
    }
}

impl World {
    /// Merges the two clusters.
    pub(crate) fn heal(&mut self) {
        self.are_apart = false;
        let [one, other] = [0, 1].map(|side| {
            let mut up = self.hosts.keys().copied().filter(|id| self.is_up(*id));
            up.find(|id| id.0 % 2 == side)
        });
        if let (Some(one), Some(other)) = (one, other) {
            self.trace.line(self.now, Some(one), "world", || format!("connects to {other:?}"));
            self.dial(one, other);
        }
    }

    /// Checks, after the cluster has settled, that every object that was put and did not end exists. Requests these
    /// objects at all nodes.
    pub(crate) fn check_surviving_names(&mut self) {
        let existing = self.existing();
        let mut must: BTreeSet<ObjectId> =
            self.users.by_id.keys().filter(|id| self.must_exist(id)).cloned().collect();
        if let Some(lost) = must.iter().find(|id| !existing.contains_key(*id)) {
            return self.fail(format!("{lost:?} was put and not deleted, but does not exist"));
        }
        // Some plans have many large objects without a name, which take longer than the simulation.
        let is_roomy = !self.is_tight() && self.plan.slot_failures == 0;
        must.retain(|id| is_roomy && id.minter().is_none());
        for id in &must {
            for node in self.staying() {
                let client = self.client_of(node);
                let body = hoplite_proto::request::Request::Get { id: id.clone() };
                let purpose = Purpose::Get { id: id.clone(), selection: None, read_ns: 0 };
                self.ask(node, client, body, purpose, None);
            }
        }
        self.users.must_exist = must.into_iter().map(|id| (id, None)).collect();
    }

    /// Checks that an object that must exist has the same instance everywhere.
    pub(crate) fn check_same(&mut self, node: NodeId, id: &ObjectId, instance: Instance) {
        let Some(known) = self.users.must_exist.get_mut(id) else { return };
        let known = *known.get_or_insert(instance);
        if known != instance {
            self.fail(format!("several instances: a get of {id:?} returned {instance} at {node:?}, elsewhere {known}"));
        }
    }

    /// Whether one of the objects put under an id must exist.
    fn must_exist(&self, id: &ObjectId) -> bool {
        let begun = || self.users.objects_of(id).filter(|object| object.node.is_some());
        let staying = self.staying();
        let stays = |object: &Object| object.node.is_some_and(|node| staying.contains(&node));
        let may_end = |object: &Object| {
            let is_over = object.reserved_by.is_some_and(|client| self.users.is_gone(client));
            id.is_slot() && is_over
        };
        let is_clear = |object: &Object| {
            let is_whole = matches!(object.spec.make, Make::Put { fate: Fate::Sealed, .. });
            // Otherwise it may take the name from another object, and end with its node.
            // The node of a slot may not have received the end of its put before its client ended.
            is_whole && !may_end(object) && (object.is_refused || object.is_made && stays(object))
        };
        !self.users.is_delete_requested(id)
            && !self.may_lose_files()
            && begun().all(is_clear)
            && begun().any(|object| object.is_made && !object.is_refused)
    }

    /// Whether an error can be right for a request for an object that must exist.
    pub(crate) fn may_fail(&self, id: &ObjectId, error: &Error) -> bool {
        !self.users.must_exist.contains_key(id) || matches!(error, Error::Timeout { .. })
    }
}
