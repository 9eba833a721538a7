//! The reduces that clients of this node asked for: each from its first input until its result is complete or void, the
//! results that wait for room, and what became of the inputs.
//!
//! What a reduce decides is in [`crate::reduce`]. Does not know copies, nor how a step is carried out.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};

use crate::{
    directory::Directory,
    id::{Instance, NodeId, ObjectId, ReduceId},
    lifetime::Terms,
    machines::{
        watches::{Listener, Watches},
        world::World,
    },
    message::FoldKey,
    reduce::{Around, Reduce, Step},
    table::Table,
    time::Instant,
    timed::Timed,
};

#[derive(Debug, Default)]
pub(crate) struct Coordinator {
    all: Timed<ReduceId, Reduce>,
    by_result: BTreeMap<ObjectId, ReduceId>,
    /// How long results are to live, if not until they are deleted.
    terms: BTreeMap<ReduceId, Box<Terms>>,
    /// Results of current attempts that have no room or memory yet.
    targets: BTreeMap<ReduceId, Target>,
    /// What went into results that are held here.
    folded: BTreeMap<ObjectId, Inputs>,
    /// The inputs that were lost of reduces that failed, the last one last.
    failed: VecDeque<(ObjectId, Vec<ObjectId>)>,
}

/// The result of an attempt: what will be folded into it once there is room.
#[derive(Debug)]
pub(crate) struct Target {
    instance: Instance,
    pub(crate) key: FoldKey,
    pub(crate) local: Vec<Instance>,
    pub(crate) children: Vec<(NodeId, u32)>,
}

/// Reduces that failed and of which the node still knows which inputs were lost.
const FAILED_MAX: usize = 256;

/// What became of the inputs of a reduce that is over.
#[derive(Debug)]
struct Inputs {
    folded: Vec<ObjectId>,
    lost: Vec<ObjectId>,
}

impl Coordinator {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// How many results have no room or memory.
    pub(crate) fn unfinished_results(&self) -> usize {
        self.targets.len()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    pub(crate) fn due(&self, now: Instant) -> Vec<ReduceId> {
        self.all.due(now)
    }

    pub(crate) fn keys(&self) -> Vec<ReduceId> {
        self.all.keys().copied().collect()
    }

    pub(crate) fn get(&self, key: ReduceId) -> Option<&Reduce> {
        self.all.get(&key)
    }

    /// How long the result of a reduce is to live.
    pub(crate) fn terms(&self, key: ReduceId) -> Option<Box<Terms>> {
        self.terms.get(&key).cloned()
    }

    /// The results of all reduces.
    pub(crate) fn results(&self) -> Vec<ObjectId> {
        self.by_result.keys().cloned().collect()
    }

    /// The reduce that makes an object.
    pub(crate) fn maker(&self, id: &ObjectId) -> Option<ReduceId> {
        self.by_result.get(id).copied()
    }

    /// The reduce that makes an object, as it stands.
    pub(crate) fn making(&self, id: &ObjectId) -> Option<&Reduce> {
        self.get(self.maker(id)?)
    }

    /// The reduce, if this is its attempt.
    pub(crate) fn current(&self, key: ReduceId, epoch: u32) -> Option<&Reduce> {
        self.get(key).filter(|reduce| reduce.epoch() == epoch)
    }

    /// The nodes where reduces have a seat.
    pub(crate) fn seats(&self) -> BTreeSet<NodeId> {
        self.all.values().flat_map(Reduce::nodes).collect()
    }

    /// The attempts that read an input at a node.
    pub(crate) fn depending_on(&self, node: NodeId) -> Vec<(ReduceId, u32)> {
        let hit = self.all.iter().filter(|(_, reduce)| reduce.depends_on(node));
        hit.map(|(key, reduce)| (*key, reduce.epoch())).collect()
    }

    /// Begins a reduce, whose result no other here makes.
    pub(crate) fn begin(&mut self, key: ReduceId, reduce: Reduce, terms: Option<Box<Terms>>) {
        self.terms.extend(terms.map(|terms| (key, terms)));
        self.by_result.insert(reduce.result().clone(), key);
        self.all.insert(key, reduce);
    }

    /// Lets a reduce know something, and what of its surroundings it has to know to plan; the steps that it wants done.
    pub(crate) fn advise(
        &mut self,
        key: ReduceId,
        directory: &Directory,
        table: &Table,
        world: &World,
        fact: impl FnOnce(&mut Reduce, Around<'_>, Instant, &mut Vec<Step>),
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        self.all.update(&key, |reduce| {
            let result = reduce.result().clone();
            let wants = |node: NodeId| directory.is_awaited(&result, node);
            let (members, link) = (world.members(), world.config().link);
            let holds = |instance: Instance| table.holds(instance);
            let around = Around { members, holds: &holds, link, wants: &wants };
            fact(reduce, around, world.now(), &mut steps);
        });
        steps
    }

    /// An attempt failed; what is to be done about it.
    pub(crate) fn attempt_failed(
        &mut self,
        key: ReduceId,
        epoch: u32,
        detail: String,
        is_lost: bool,
        now: Instant,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        self.all.update(&key, |reduce| reduce.failed(now, epoch, detail, is_lost, &mut steps));
        steps
    }

    /// A position waits for the stream of a child; what is to be done about it.
    pub(crate) fn starves(
        &mut self,
        (key, epoch): (ReduceId, u32),
        from: NodeId,
        node: NodeId,
        now: Instant,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        self.all.update(&key, |reduce| {
            if reduce.epoch() == epoch {
                reduce.starves(now, from, node, &mut steps);
            }
        });
        steps
    }

    /// A node that a position waits for lives.
    pub(crate) fn alive(&mut self, (key, epoch): (ReduceId, u32), from: NodeId) {
        self.all.update(&key, |reduce| {
            if reduce.epoch() == epoch {
                reduce.answered(from);
            }
        });
    }

    /// The result of the current attempt waits for room; false if there is no such reduce.
    pub(crate) fn await_room(
        &mut self,
        instance: Instance,
        key: ReduceId,
        local: Vec<Instance>,
        children: Vec<(NodeId, u32)>,
    ) -> bool {
        let Some(epoch) = self.get(key).map(Reduce::epoch) else { return false };
        let target = Target { instance, key: FoldKey::result(key, epoch), local, children };
        self.targets.insert(key, target);
        true
    }

    /// There is room and memory for a result.
    pub(crate) fn take_target(&mut self, id: &ObjectId, instance: Instance) -> Option<Target> {
        let key = self.maker(id)?;
        self.targets.get(&key).filter(|target| target.instance == instance)?;
        self.targets.remove(&key)
    }

    /// The instance that waits for room or memory to become this result.
    pub(crate) fn instance_of(&self, id: &ObjectId) -> Option<Instance> {
        self.targets.get(&self.maker(id)?).map(|target| target.instance)
    }

    /// An attempt is void; the instance of its result, if nothing is folded into it yet.
    pub(crate) fn drop_target(&mut self, key: FoldKey) -> Option<Instance> {
        self.targets.get(&key.reduce).filter(|target| target.key == key)?;
        self.targets.remove(&key.reduce).map(|target| target.instance)
    }

    /// Ends a reduce: it listens to no input any more.
    pub(crate) fn forget(
        &mut self,
        key: ReduceId,
        watches: &mut Watches,
        world: &mut World,
    ) -> Option<Reduce> {
        let reduce = self.all.remove(&key)?;
        self.terms.remove(&key);
        self.by_result.remove(reduce.result());
        for input in reduce.candidates() {
            watches.stop(input, Listener::Reduce(key), world);
        }
        Some(reduce)
    }

    /// A result is complete; what it was made of.
    pub(crate) fn remember_folded(&mut self, reduce: &Reduce) -> Vec<ObjectId> {
        let (folded, lost) = (reduce.folded(), reduce.lost());
        self.folded.insert(reduce.result().clone(), Inputs { folded: folded.clone(), lost });
        folded
    }

    /// A result is no more.
    pub(crate) fn forget_folded(&mut self, id: &ObjectId) {
        self.folded.remove(id);
    }

    pub(crate) fn remember_failed(&mut self, reduce: &Reduce) {
        if self.failed.len() >= FAILED_MAX {
            self.failed.pop_front();
        }
        self.failed.push_back((reduce.result().clone(), reduce.lost()));
    }

    /// What went into a result that is here.
    pub(crate) fn folded(&self, id: &ObjectId) -> Option<&[ObjectId]> {
        self.folded.get(id).map(|inputs| &inputs.folded[..])
    }

    /// Which inputs of a reduce can't come any more, or could not when it ended.
    pub(crate) fn lost(&self, id: &ObjectId) -> Option<Vec<ObjectId>> {
        if let Some(reduce) = self.making(id) {
            return Some(reduce.lost());
        }
        let folded = self.folded.get(id).map(|inputs| &inputs.lost);
        let failed = || self.failed.iter().rev().find(|(result, _)| result == id);
        folded.or_else(|| failed().map(|(_, lost)| lost)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Op;

    fn result(serial: u64) -> ObjectId {
        ObjectId::Minted { node: NodeId(1), serial }
    }

    fn reduce(serial: u64) -> (ReduceId, Reduce) {
        let key = ReduceId { node: NodeId(1), serial };
        let (me, input, now) = (NodeId(1), result(1_000_000 + serial), Instant::default());
        let inputs = &[input][..];
        let reduce =
            Reduce::new(me, key, result(serial), Op::Sum, inputs, 1, now, Some(now + serial), None);
        (key, reduce.0)
    }

    #[test]
    fn the_first_deadline_of_all_reduces_is_known() {
        let mut coordinator = Coordinator::default();
        for serial in [30, 10, 20] {
            let (key, reduce) = reduce(serial);
            coordinator.begin(key, reduce, None);
        }
        assert_eq!(coordinator.deadline(), Some(Instant(10)));
        let due = coordinator.due(Instant(20));
        assert_eq!(due.iter().map(|key| key.serial).collect::<Vec<_>>(), [10, 20]);
        assert_eq!(coordinator.maker(&result(30)), Some(reduce(30).0));
    }

    #[test]
    fn what_was_lost_of_the_last_reduces_that_failed_is_remembered() {
        let mut coordinator = Coordinator::default();
        let last = FAILED_MAX as u64;
        (0..=last).for_each(|serial| coordinator.remember_failed(&reduce(serial).1));
        assert_eq!(coordinator.lost(&result(0)), None);
        assert_eq!(coordinator.lost(&result(last)), Some(Vec::new()));
    }
}
