//! Names that are put on both sides of a cut, or in two clusters that meet later: one of the objects stays, the same one
//! everywhere, unless it is deleted or its node ends.

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
    /// Some clusters are cut in two, or are two at first, while the same names are put on both sides.
    pub(crate) fn add_halves(&mut self, horizon: u64, classes: &[Class], dice: &mut Dice) {
        if !dice.chance(20) || self.nodes < 2 {
            return;
        }
        // Those who are cut off put most of their names after the others have missed them.
        let (first, last) = if dice.chance(50) {
            let meeting = dice.between(100 * MILLISECOND, horizon);
            self.apart_until = Some(Instant(meeting));
            (0, meeting)
        } else {
            let (when, time_ns) = (dice.below(horizon), dice.between(4, 9) * SECOND);
            self.add(when, Act::Fault { at: dice.below(64), fault: Fault::Halves, time_ns });
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
                    self.add(when + dice.below(SECOND), Act::Keep { object, copies });
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
    /// Two clusters become one.
    pub(crate) fn meet(&mut self) {
        self.are_apart = false;
        let [one, other] = [0, 1].map(|side| {
            let mut up = self.hosts.keys().copied().filter(|id| self.is_up(*id));
            up.find(|id| id.0 % 2 == side)
        });
        if let (Some(one), Some(other)) = (one, other) {
            self.trace.line(self.now, Some(one), "world", || format!("calls {other:?}"));
            self.dial(one, other);
        }
    }

    /// When everything is at rest: what was put, and did not end, is there. Asks for it everywhere.
    pub(crate) fn check_kept_names(&mut self) {
        let existing = self.existing();
        let mut must: BTreeSet<ObjectId> =
            self.users.by_id.keys().filter(|id| self.must_exist(id)).cloned().collect();
        if let Some(lost) = must.iter().find(|id| !existing.contains_key(*id)) {
            return self.fail(format!("{lost:?} is nowhere, and was put and not deleted"));
        }
        // Large objects without a name are many in some plans, and take longer than the simulation.
        let is_roomy = !self.is_tight() && self.plan.slot_failures == 0;
        must.retain(|id| is_roomy && id.minter().is_none());
        for id in &must {
            for node in self.staying() {
                let client = self.client_of(node);
                let ask = hoplite_proto::ask::Ask::Get { id: id.clone() };
                let purpose = Purpose::Get { id: id.clone(), hold_ns: 0 };
                self.ask(node, client, ask, purpose, None);
            }
        }
        self.users.must_exist = must.into_iter().map(|id| (id, None)).collect();
    }

    /// What is there everywhere is the same everywhere.
    pub(crate) fn check_same(&mut self, node: NodeId, id: &ObjectId, instance: Instance) {
        let Some(known) = self.users.must_exist.get_mut(id) else { return };
        let known = *known.get_or_insert(instance);
        if known != instance {
            self.fail(format!("{id:?} was got as {instance} at {node:?}, elsewhere as {known}"));
        }
    }

    /// Whether one of the objects that were put under an id has to be there.
    fn must_exist(&self, id: &ObjectId) -> bool {
        let begun = || self.users.objects_of(id).filter(|object| object.node.is_some());
        let staying = self.staying();
        let stays = |object: &Object| object.node.is_some_and(|node| staying.contains(&node));
        let is_clear = |object: &Object| {
            let is_whole = matches!(object.spec.make, Make::Put { fate: Fate::Sealed, .. });
            // It may take the name from another, and end with its node.
            is_whole && (object.is_refused || object.is_made && stays(object))
        };
        !self.users.is_delete_asked(id)
            && !self.may_lose_files()
            && begun().all(is_clear)
            && begun().any(|object| object.is_made && !object.is_refused)
    }

    /// Whether an error of a question for what is there everywhere can be right.
    pub(crate) fn may_fail(&self, id: &ObjectId, error: &Error) -> bool {
        !self.users.must_exist.contains_key(id) || matches!(error, Error::Timeout { .. })
    }
}
