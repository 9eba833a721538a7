//! A member that says anything, in a cluster whose other nodes work: they must go on as if it were not there.
//!
//! Its node does what every node does, and answers what it is asked, but for one in five that does not say whether it keeps
//! what it was asked to; beside that it says what [`crate::lies`] makes up, about
//! what there is. No lie may make another node panic, give its clients other bytes, lose another member, or keep a client
//! from an object that exists. Of what is the hostile member's own nothing is checked: objects of which it is an owner, names
//! that it may put and delete as any client may, and what is folded from those. When it is gone nothing of it is left.

use std::collections::BTreeSet;

use hoplite_proto::{
    directory::Slice,
    id::{NodeId, ObjectId, ReduceId},
    members::Members,
    meta::{Dtype, Meta},
    node::{Action, Config, Kind},
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    Record, Sabotage, Verdict,
    case::Case,
    dice::Dice,
    payload::SMALL_BYTES,
    plan::{
        Act, DETECTION_NS, Fate, MICROSECOND, MILLISECOND, Make, PUBLISHED, Plan, SECOND, Spec,
        name,
    },
    shell::BLOCK_BYTES,
    trace::Trace,
    users::Purpose,
    world::{Happening, World},
};

/// What is known of the hostile member, and what it knows.
#[derive(Debug)]
pub(crate) struct Hostile {
    pub(crate) node: NodeId,
    /// Until when it lies.
    until: Instant,
    /// Whether it leaves in the end, which it says like anything else.
    pub(crate) may_leave: bool,
    /// Whether it says nothing when it is asked to keep an object.
    pub(crate) is_mute: bool,
    /// Attempts of reduces that were folded anywhere.
    pub(crate) reduces: BTreeSet<(ReduceId, u32)>,
    /// Lies that were not listened to.
    pub(crate) refused: u64,
    pub(crate) told: u64,
}

/// The last lie is told so long before everything is to be at rest.
const LIES_NS: u64 = 4 * SECOND;

/// How long an honest client may wait for what exists: longer than a member that is not there takes to be missed, and a
/// sender that has nothing to be avoided, several times.
const PATIENCE_NS: u64 = 60 * SECOND;

/// Simulates a cluster with a hostile member that follows from `seed`.
pub fn hostile(seed: u64, record: Record, sabotage: Option<Sabotage>) -> Verdict {
    let plan = plan(&mut Dice::new(seed.rotate_left(17)));
    let case = Case { seed, plan };
    let mut world = World::new(&case, Trace::of(record), sabotage);
    // The highest: of two objects under one name the lower stays.
    let node = NodeId(case.plan.nodes);
    let until = Instant(LIES_NS);
    let (may_leave, is_mute) = (seed.is_multiple_of(8), seed % 5 == 4);
    let (reduces, refused, told) = (BTreeSet::new(), 0, 0);
    world.hostile = Some(Hostile { node, until, may_leave, is_mute, reduces, refused, told });
    world.after(MILLISECOND, Happening::Lie);
    case.finish(world, World::check_hostile_end)
}

/// Objects that are put, read and folded, and nothing that goes wrong.
fn plan(dice: &mut Dice) -> Plan {
    let link = Link { latency_ns: 200 * MICROSECOND, bytes_per_second: 125_000_000 };
    let slice = Slice { entries: 2, pause_ns: MILLISECOND };
    let detection_ns = Some(DETECTION_NS);
    let config = Config { detection_ns, slice, ..Config::new(1 << 34, link) };
    let mut plan = Plan::empty(dice.between(4, 8), config, Instant(LIES_NS + SECOND));
    let large = dice.between(2, 12) * BLOCK_BYTES;
    for size in [SMALL_BYTES, large] {
        let Some(meta) = Meta::array(Dtype::Int64, vec![size / 8]) else { continue };
        let mut puts = Vec::new();
        for _ in 0..dice.between(3, 10) {
            puts.push(plan.add_honest_put(&meta, dice));
        }
        for _ in 0..dice.below(4) {
            dice.shuffle(&mut puts);
            let inputs = puts[..dice.between(2, puts.len().min(5) as u64) as usize].to_vec();
            let count = inputs.len();
            let make = Make::Reduce { inputs, count, patience_ns: None, cancel_ns: None };
            let name = dice.chance(40).then(|| name(&format!("sum{}/x", plan.objects.len())));
            let object = plan.add_object(Spec { name, meta: meta.clone(), make, ttl_ns: None });
            plan.add(dice.below(LIES_NS), Act::Make { object, at: dice.below(64) });
        }
    }
    for object in 0..plan.objects.len() {
        for _ in 0..dice.between(1, 4) {
            plan.add_patient_get(object, dice);
        }
        if dice.chance(20) {
            plan.add(dice.below(LIES_NS), Act::Keep { object, copies: dice.between(2, 3) as u32 });
        }
        let (at, when) = (dice.below(64), dice.below(LIES_NS));
        if dice.chance(20) {
            let (patience_ns, cancel_ns, changes) = (None, None, 2);
            plan.add(when, Act::Locations { object, at, changes, patience_ns, cancel_ns });
        }
        if dice.chance(20) {
            let (objects, count, patience_ns, cancel_ns) = (vec![object], 1, None, None);
            plan.add(when, Act::Wait { objects, count, at, patience_ns, cancel_ns });
        }
    }
    for _ in 0..3 {
        let (at, after, patience_ns) = (dice.below(64), None, LIES_NS);
        plan.add(dice.below(LIES_NS), Act::Latest { after, at, patience_ns });
    }
    plan.acts.sort_by_key(|(at, _)| *at);
    plan.limit_small(dice);
    plan
}

impl Plan {
    fn add_honest_put(&mut self, meta: &Meta, dice: &mut Dice) -> usize {
        let number = self.objects.len();
        let name = match dice.below(3) {
            0 => None,
            1 => Some(name(&format!("group{}/x{number}", dice.below(6)))),
            _ => Some(name(&format!("{PUBLISHED}{number}"))),
        };
        let make = Make::Put { fate: Fate::Sealed, pace_ns: dice.below(2) * MILLISECOND };
        let object = self.add_object(Spec { name, meta: meta.clone(), make, ttl_ns: None });
        self.add(dice.below(LIES_NS), Act::Make { object, at: dice.below(64) });
        object
    }

    fn add_patient_get(&mut self, object: usize, dice: &mut Dice) {
        let (at, hold_ns) = (dice.below(64), dice.below(50) * MILLISECOND);
        let (patience_ns, cancel_ns) = (None, None);
        let get = Act::Get { object, at, patience_ns, cancel_ns, hold_ns };
        self.add(dice.below(LIES_NS), get);
    }
}

impl World {
    /// The hostile member, if there is one.
    pub(crate) fn is_hostile(&self, node: NodeId) -> bool {
        self.hostile.as_ref().is_some_and(|hostile| hostile.node == node)
    }

    /// Whether an object is the hostile member's own, or it may do with it what any client may do, or it is folded from such.
    pub(crate) fn is_its_game(&self, id: &ObjectId) -> bool {
        let Some(hostile) = &self.hostile else { return false };
        let is_open_name = id.minter().is_none() && id.owner_hash().is_multiple_of(4);
        let its = |id: &ObjectId| self.acquainted().owners(id).contains(hostile.node);
        let is_folded_of_its = || {
            self.users.objects_of(id).any(|object| match &object.spec.make {
                Make::Reduce { inputs, .. } => inputs.iter().any(|input| {
                    let input = self.users.objects[*input].id.as_ref();
                    input.is_some_and(|input| self.is_its_game(input))
                }),
                Make::Put { .. } => false,
            })
        };
        id.minter() == Some(hostile.node) || is_open_name || its(id) || is_folded_of_its()
    }

    /// All members there ever were.
    fn acquainted(&self) -> Members {
        let mut all = self.hosts.values().map(|host| host.member);
        let mut members = Members::new(all.next().expect("there are hosts"));
        all.for_each(|member| assert!(members.insert(member)));
        members
    }

    /// Whether a question is about something of the hostile member's.
    pub(crate) fn is_of_its_game(&self, purpose: &Purpose) -> bool {
        if self.hostile.is_none() {
            return false;
        }
        let of = |object: usize| {
            let made = &self.users.objects[object];
            let inputs = match &made.spec.make {
                Make::Reduce { inputs, .. } => inputs.clone(),
                Make::Put { .. } => Vec::new(),
            };
            let ids = [object].into_iter().chain(inputs);
            ids.filter_map(|object| self.users.objects[object].id.clone())
                .any(|id| self.is_its_game(&id))
        };
        match purpose {
            Purpose::Put { object, .. }
            | Purpose::Create { object, .. }
            | Purpose::Seal { object, .. }
            | Purpose::Reduce { object }
            | Purpose::Inputs { object }
            | Purpose::Keep { object, .. } => of(*object),
            Purpose::Get { id, .. } | Purpose::Follow { id } | Purpose::Locations { id, .. } => {
                self.is_its_game(id)
            }
            Purpose::Latest { prefix, .. } => {
                let any = format!("{prefix}0").parse().ok();
                any.is_some_and(|id| self.is_its_game(&id))
            }
            Purpose::Wait { ids, .. } => ids.iter().any(|id| self.is_its_game(id)),
            Purpose::Abort | Purpose::Join | Purpose::Delete { .. } | Purpose::Prune => false,
        }
    }

    /// An honest node does something because of a lie.
    pub(crate) fn look_at_order(&mut self, node: NodeId, action: &Action) {
        if matches!(action, Action::AddPeer(_) | Action::DropPeer { .. }) {
            self.agreed_since = self.now;
        }
        let Some(hostile) = &mut self.hostile else { return };
        match action {
            Action::StartFold { order, .. } => {
                hostile.reduces.insert((order.key.reduce, order.key.epoch));
            }
            Action::DropPeer { node: peer, .. }
                if node != hostile.node && *peer != hostile.node =>
            {
                let is_there = self.hosts.get(peer).is_some_and(|host| host.is_up);
                if is_there {
                    self.fail(format!("{node:?} takes {peer:?}, which lives, for dead"));
                }
            }
            _ => {}
        }
    }

    /// A node did not listen to a message: where every node says what it may, that is a mistake, unless they do not agree on
    /// who is a member.
    pub(crate) fn look_at_refusal(&mut self, node: NodeId, from: NodeId, kind: Kind) {
        if let Some(hostile) = &mut self.hostile {
            if from == hostile.node {
                hostile.refused += 1;
            }
        } else if !self.users.is_shrunk && self.now.since(self.agreed_since) > SECOND {
            self.fail(format!("{node:?} refuses {kind:?} of {from:?}, though all agree"));
        }
    }

    /// The hostile member says something, and again a moment later.
    pub(crate) fn lie(&mut self) {
        let Some(Hostile { node, until, .. }) = self.hostile else { return };
        if self.now >= until || !self.is_up(node) {
            return;
        }
        let honest: Vec<NodeId> = self.staying();
        if let Some(to) = self.dice.pick(&honest)
            && let Some(message) = self.make_up(to)
        {
            if let Some(hostile) = &mut self.hostile {
                hostile.told += 1;
            }
            self.send(node, to, message);
        }
        let pause_ns = self.dice.below(4 * MILLISECOND);
        self.after(pause_ns, Happening::Lie);
    }

    /// After the last lie: whatever exists can be had everywhere. Then the hostile member dies, and nothing of it is left.
    pub(crate) fn check_hostile_end(&mut self) {
        let mut end = self.plan.end + PATIENCE_NS;
        self.run_until(end);
        for id in self.existing().into_keys().filter(|id| !self.is_its_game(id)).collect::<Vec<_>>()
        {
            for node in self.staying() {
                let client = self.client_of(node);
                let ask = hoplite_proto::ask::Ask::Get { id: id.clone() };
                self.ask(node, client, ask, Purpose::Get { id: id.clone(), hold_ns: 0 }, None);
            }
        }
        end = end + PATIENCE_NS;
        self.run_until(end);
        let open = self.users.questions.iter().filter(|(_, asked)| !asked.is_answered);
        let stuck = open.filter(|(_, asked)| !self.is_of_its_game(&asked.purpose));
        let stuck: Vec<String> = stuck
            .filter(|(_, asked)| !matches!(asked.purpose, Purpose::Locations { .. }))
            .map(|(request, asked)| format!("{request:?} at {:?}: {:?}", asked.node, asked.purpose))
            .collect();
        if !stuck.is_empty() {
            return self.fail(format!("a lie keeps clients waiting: {}", stuck.join("; ")));
        }
        let Some(hostile) = self.hostile.as_ref().map(|hostile| hostile.node) else { return };
        self.users.is_shrunk = true;
        self.stop_host(hostile, true);
        end = end + PATIENCE_NS;
        self.run_until(end);
        self.clear_away(end + PATIENCE_NS);
    }
}
