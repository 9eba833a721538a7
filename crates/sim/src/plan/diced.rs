//! Generates a plan at random: objects of a few sizes, their readers, membership changes, limits. It does not run the
//! plan.

use hoplite_proto::{
    directory::Slice,
    id::Name,
    meta::{Dtype, Meta},
    node::Config,
    reduce::{cost::Link, shape::Degree},
    selection::Selection,
    time::Instant,
};

use super::{
    Act, Class, DETECTION_NS, Fate, MICROSECOND, MILLISECOND, Make, PUBLISHED, Plan, Spec, name,
};
use crate::{dice::Dice, payload::SMALL_BYTES, shell::BLOCK_BYTES};

impl Plan {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        // Some plans last as long as faults do.
        let most = if dice.chance(10) { 12_000 } else { 1500 };
        let horizon = dice.between(20, most) * MILLISECOND;
        let mut plan = Self {
            nodes: if dice.chance(10) { dice.between(7, 12) } else { dice.between(1, 6) },
            apart_until: None,
            has_jobs: false,
            reserves: false,
            has_slots: false,
            is_damaged: false,
            config: config(dice),
            slot_failures: if dice.chance(10) { 4 } else { 0 },
            disk: None,
            objects: Vec::new(),
            acts: Vec::new(),
            end: Instant(horizon * 2),
        };
        let mut classes = classes(dice);
        // A few busy clusters; failures are easier to read in small ones.
        let (puts, reduces) = if dice.chance(20) { (60, 20) } else { (16, 6) };
        for _ in 0..dice.between(2, puts) {
            plan.add_put(horizon, &mut classes, dice);
        }
        for _ in 0..dice.below(reduces) {
            plan.add_reduce(horizon, &mut classes, dice);
        }
        plan.add_rivals(horizon, &classes, dice);
        for object in 0..plan.objects.len() {
            plan.add_readers(object, horizon, dice);
        }
        plan.add_versions(horizon, &classes, dice);
        plan.add_allreduce(horizon, dice);
        plan.add_waits(horizon, dice);
        plan.add_partitions(horizon, &classes, dice);
        plan.add_changes(horizon, dice);
        plan.add_lifetimes(horizon, dice);
        plan.limit_capacity(dice);
        plan.add_disks(dice);
        plan.acts.sort_by_key(|(at, _)| *at);
        plan.limit_small(dice);
        plan.reserves = dice.chance(25);
        plan.has_slots = dice.chance(25);
        plan
    }

    fn add_put(&mut self, horizon: u64, classes: &mut [Class], dice: &mut Dice) {
        let class = dice.below(classes.len() as u64) as usize;
        let name = dice.chance(50).then(|| {
            let group = dice.below(4);
            // Sometimes a name that is already taken.
            let number = if dice.chance(10) { 0 } else { self.objects.len() };
            name(&format!("group{group}/x{number}"))
        });
        let fate = match dice.below(100) {
            0..6 => Fate::Aborted,
            6..10 => Fate::Orphaned,
            _ => Fate::Sealed,
        };
        let pace_ns = match dice.below(3) {
            0 => 0,
            1 => dice.between(5, 500) * MICROSECOND,
            _ => dice.between(1, 10) * MILLISECOND,
        };
        let meta = classes[class].meta.clone();
        let object =
            self.add_object(Spec { name, meta, make: Make::Put { fate, pace_ns }, ttl_ns: None });
        classes[class].objects.push(object);
        let when = dice.below(horizon);
        self.add(when, Act::Make { object, at: dice.below(64) });
        if dice.chance(10) {
            let copies = dice.between(2, 4) as u32;
            self.add(
                when + dice.below(50 * MILLISECOND),
                Act::Replicate { object, replicas: copies },
            );
        }
    }

    fn add_reduce(&mut self, horizon: u64, classes: &mut [Class], dice: &mut Dice) {
        let class = dice.below(classes.len() as u64) as usize;
        let name = dice.chance(40).then(|| {
            let group = dice.below(4);
            name(&format!("group{group}/r{}", self.objects.len()))
        });
        let object = self.add_fold(name, class, horizon, classes, dice);
        classes[class].objects.extend(object);
    }

    /// Adds a reduce of objects of one class, if it has any.
    fn add_fold(
        &mut self,
        name: Option<Name>,
        class: usize,
        horizon: u64,
        classes: &[Class],
        dice: &mut Dice,
    ) -> Option<usize> {
        let mut inputs = classes[class].objects.clone();
        dice.shuffle(&mut inputs);
        inputs.truncate(dice.between(1, 8) as usize);
        if dice.chance(4)
            && let Some(other) = dice.pick(&classes[0].objects)
            && !inputs.contains(&other)
        {
            inputs.push(other);
        }
        if inputs.is_empty() {
            return None;
        }
        let all = inputs.len() as u64;
        let count = if dice.chance(50) { all } else { dice.between(1, all) } as usize;
        let timeout_ns = dice.chance(40).then(|| self.timeout(horizon, dice));
        let cancel_ns = (name.is_some() && dice.chance(10))
            .then(|| dice.below(2 * self.config.link.latency_ns));
        let make = Make::Reduce { inputs, count, timeout_ns, cancel_ns };
        let meta = classes[class].meta.clone();
        let object = self.add_object(Spec { name, meta, make, ttl_ns: None });
        // A small object holds at most 64 tags, and reduces of reduces multiply them.
        if self.tags(object) > SMALL_BYTES as usize / 8 {
            self.objects.pop();
            return None;
        }
        let begin = dice.below(horizon);
        self.add(begin, Act::Make { object, at: dice.below(64) });
        if dice.chance(50) {
            self.add(begin + dice.below(horizon), Act::Inputs { object });
        }
        if dice.chance(20) {
            // Perhaps while the reduce still waits for its name.
            self.add(begin + dice.below(MILLISECOND), Act::Inputs { object });
        }
        Some(object)
    }

    /// Returns the timeout of a request: usually long, sometimes within one round trip.
    fn timeout(&self, horizon: u64, dice: &mut Dice) -> u64 {
        let most = if dice.chance(20) { 4 * self.config.link.latency_ns } else { 2 * horizon };
        dice.between(1, most)
    }

    /// Adds puts and reduces that compete for the same few names. They are not inputs of reduces.
    fn add_rivals(&mut self, horizon: u64, classes: &[Class], dice: &mut Dice) {
        if !dice.chance(40) {
            return;
        }
        let names = dice.between(1, 3);
        let when = dice.below(horizon);
        for _ in 0..dice.between(2, 8) {
            let number = dice.below(names);
            let name = Some(name(&format!("group{number}/rival{number}")));
            let class = dice.below(classes.len() as u64) as usize;
            let before = self.acts.len();
            if dice.chance(60) {
                self.add_fold(name, class, horizon, classes, dice);
            } else {
                let meta = classes[class].meta.clone();
                let make = Make::Put { fate: Fate::Sealed, pace_ns: 5 * MICROSECOND };
                let object = self.add_object(Spec { name, meta, make, ttl_ns: None });
                self.add(dice.below(horizon), Act::Make { object, at: dice.below(64) });
            }
            if dice.chance(40) && before < self.acts.len() {
                // All at the same time.
                self.acts[before].0 = Instant(when + dice.below(4 * self.config.link.latency_ns));
            }
        }
    }

    /// Maximum number of tags of puts in an object.
    fn tags(&self, object: usize) -> usize {
        match &self.objects[object].make {
            Make::Put { .. } => 1,
            Make::Reduce { inputs, .. } => inputs.iter().map(|input| self.tags(*input)).sum(),
        }
    }

    fn add_readers(&mut self, object: usize, horizon: u64, dice: &mut Dice) {
        if dice.chance(30) {
            // All nodes at the same time.
            let when = dice.below(horizon);
            for at in 0..self.nodes {
                self.add_get(object, when + dice.below(2 * MILLISECOND), at, dice);
            }
        }
        for _ in 0..dice.below(5) {
            let (when, at) = (dice.below(horizon * 3 / 2), dice.below(64));
            self.add_get(object, when, at, dice);
        }
        if dice.chance(25) {
            self.add(dice.below(horizon * 3 / 2), Act::Delete { object, at: dice.below(64) });
        }
        if dice.chance(25) {
            let (when, at) = (dice.below(horizon * 3 / 2), dice.below(64));
            let (timeout_ns, cancel_ns) = self.end_of_question(dice);
            let with_get = dice.chance(70);
            self.add(when, Act::Follow { object, at, with_get, timeout_ns, cancel_ns });
        }
        if dice.chance(25) {
            let (when, at) = (dice.below(horizon * 3 / 2), dice.below(64));
            let (timeout_ns, cancel_ns) = self.end_of_question(dice);
            let changes = dice.below(5) as u32;
            self.add(when, Act::Locations { object, at, changes, timeout_ns, cancel_ns });
        }
    }

    /// Returns the timeout of a request, and when the client cancels it.
    fn end_of_question(&self, dice: &mut Dice) -> (Option<u64>, Option<u64>) {
        let timeout_ns = match dice.below(20) {
            0 => Some(0),
            1..8 => Some(dice.below(horizon_of(self))),
            _ => None,
        };
        (timeout_ns, dice.chance(15).then(|| dice.below(horizon_of(self))))
    }

    fn add_waits(&mut self, horizon: u64, dice: &mut Dice) {
        for _ in 0..dice.below(8) {
            let mut objects: Vec<usize> = (0..self.objects.len()).collect();
            dice.shuffle(&mut objects);
            objects.truncate(dice.between(1, 10) as usize);
            let count = dice.between(0, objects.len() as u64) as usize;
            let (timeout_ns, cancel_ns) = self.end_of_question(dice);
            let at = dice.below(64);
            let act = Act::Wait { objects, count, at, timeout_ns, cancel_ns };
            self.add(dice.below(horizon * 3 / 2), act);
        }
    }

    pub(crate) fn add_get(&mut self, object: usize, when: u64, at: u64, dice: &mut Dice) {
        let (timeout_ns, cancel_ns) = self.end_of_question(dice);
        let read_ns = if dice.chance(50) { 0 } else { dice.below(200 * MILLISECOND) };
        let selection = dice.chance(20).then(|| self.selection(object, dice));
        self.add(when, Act::Get { object, at, selection, timeout_ns, cancel_ns, read_ns });
    }

    /// Some rows of an object; perhaps none or all.
    fn selection(&self, object: usize, dice: &mut Dice) -> Selection {
        let meta = &self.objects[object].meta;
        let rows = meta.size / meta.dtype().map_or(1, |dtype| dtype.size());
        let mut bound = || {
            let place = dice.below(rows + 2) as i64;
            match dice.below(4) {
                0 => None,
                1 => Some(-place),
                _ => Some(place),
            }
        };
        Selection { start: bound(), stop: bound() }
    }

    /// Adds weights that are published repeatedly under names with version numbers.
    fn add_versions(&mut self, horizon: u64, classes: &[Class], dice: &mut Dice) {
        if !dice.chance(40) {
            return;
        }
        for version in 0..dice.between(1, 6) {
            if dice.chance(20) {
                let name = Some(name(&format!("{PUBLISHED}{version}")));
                let class = dice.below(classes.len() as u64) as usize;
                if let Some(object) = self.add_fold(name, class, horizon, classes, dice) {
                    self.add_readers(object, horizon, dice);
                }
            }
            if dice.chance(15) {
                // A gap in the versions, or only a reduce.
                continue;
            }
            let meta = Meta::array(Dtype::Int64, vec![SMALL_BYTES / 8]).unwrap_or(Meta::bytes(8));
            let make = Make::Put { fate: Fate::Sealed, pace_ns: 0 };
            let name = Some(name(&format!("{PUBLISHED}{version}")));
            let object = self.add_object(Spec { name, meta, make, ttl_ns: None });
            self.add(dice.below(horizon), Act::Make { object, at: dice.below(64) });
            self.add_readers(object, horizon, dice);
        }
        for _ in 0..dice.between(1, 6) {
            let after = dice.chance(60).then(|| dice.below(5));
            let timeout_ns = dice.below(horizon);
            let at = dice.below(64);
            let act = Act::Latest { after, at, timeout_ns };
            self.add(dice.below(horizon), act);
        }
        for _ in 0..dice.below(4) {
            let (version, keep, at) = (dice.below(8), dice.between(1, 3), dice.below(64));
            let timeout_ns = dice.chance(30).then(|| self.timeout(horizon, dice));
            let act = Act::Prune { version, retain: keep, at, timeout_ns };
            self.add(dice.below(horizon * 3 / 2), act);
        }
    }

    /// Adds a sum to which each node contributes and that each node wants, large enough for a ring.
    fn add_allreduce(&mut self, horizon: u64, dice: &mut Dice) {
        if !dice.chance(45) || self.nodes < 3 {
            return;
        }
        // Sometimes so large that the ring divides its parts again.
        let blocks = if dice.chance(10) {
            64 * self.nodes + dice.between(1, 20)
        } else {
            dice.between(4, 8) * self.nodes
        };
        let size = blocks * BLOCK_BYTES + 8 * dice.between(1, 8192);
        let Some(meta) = Meta::array(Dtype::Int64, vec![size / 8]) else { return };
        if dice.chance(60) {
            self.config.degree = None;
        }
        let (begin, spread) = (dice.below(horizon), dice.pick(&[50, 1000, 20_000]).unwrap_or(1));
        let soon = |dice: &mut Dice| begin + dice.below(spread * MICROSECOND);
        let pace_ns = if dice.chance(70) { 0 } else { dice.below(500 * MICROSECOND) };
        // Sometimes the caller has no input of its own; sometimes there is an additional late input.
        let seats = self.nodes - u64::from(self.nodes > 3 && dice.chance(30));
        let mut inputs = Vec::new();
        for at in 0..seats + u64::from(dice.chance(20)) {
            let make = Make::Put { fate: Fate::Sealed, pace_ns };
            let object =
                self.add_object(Spec { name: None, meta: meta.clone(), make, ttl_ns: None });
            inputs.push(object);
            let when = soon(dice);
            self.add(when, Act::Make { object, at });
            if dice.chance(10) {
                self.add(when + dice.below(10 * MILLISECOND), Act::Delete { object, at });
            }
        }
        let count = seats as usize;
        let make = Make::Reduce { inputs, count, timeout_ns: None, cancel_ns: None };
        let object = self.add_object(Spec { name: None, meta, make, ttl_ns: None });
        // Mostly after all inputs exist.
        let late = if dice.chance(70) { (spread + 40_000) * MICROSECOND } else { 0 };
        let when = soon(dice) + late;
        self.add(when, Act::Make { object, at: self.nodes - 1 });
        for at in 0..self.nodes {
            if dice.chance(90) {
                let when = soon(dice) + late;
                self.add_get(object, when, at, dice);
            }
        }
        if dice.chance(20) {
            let when = soon(dice) + late + dice.below(20 * MILLISECOND);
            self.add(when, Act::Delete { object, at: dice.below(64) });
        }
        if dice.chance(20) {
            let when = soon(dice) + late + dice.below(20 * MILLISECOND);
            self.add(when, Act::Crash { at: dice.below(64) });
        }
    }

    /// Adds nodes and clients that come and go.
    fn add_changes(&mut self, horizon: u64, dice: &mut Dice) {
        let mut some = |percent: u64, most: u64, act: &dyn Fn(u64) -> Act| {
            if !dice.chance(percent) {
                return;
            }
            for _ in 0..dice.between(1, most) {
                let when = dice.below(horizon * 3 / 2);
                self.acts.push((Instant(when), act(dice.below(64))));
            }
        };
        some(30, 3, &|at| Act::ClientDies { at });
        some(30, 3, &|_| Act::Join);
        some(30, 2, &|at| Act::Leave { at });
        some(20, 2, &|at| Act::Crash { at });
        some(15, 6, &|at| Act::Break { at });
        some(10, 3, &|at| Act::Restart { at, pause_ns: at * 20 * MILLISECOND });
        self.add_faults(horizon, dice);
    }

    /// Reduces the capacity in some clusters, so that nodes cannot hold everything.
    fn limit_capacity(&mut self, dice: &mut Dice) {
        let largest = self.objects.iter().map(|spec| spec.meta.size).max().unwrap_or(0);
        if dice.chance(40) {
            self.config.capacity = (largest + 4096) * dice.between(10, 60) / 10;
        }
    }

    /// Reduces the owners' budget for bytes of small objects in half of the clusters, sometimes to nothing.
    fn limit_small(&mut self, dice: &mut Dice) {
        if dice.chance(50) {
            self.config.inline_capacity = Some(dice.below(9) * SMALL_BYTES);
        }
    }
}

fn horizon_of(plan: &Plan) -> u64 {
    plan.end.0 / 2
}

fn config(dice: &mut Dice) -> Config {
    let latency_ns = dice.pick(&[20, 100, 1000, 5000]).unwrap_or(100) * MICROSECOND;
    let bytes_per_second = dice.pick(&[12_500_000, 125_000_000, 1_250_000_000]).unwrap_or(1);
    let degrees = [None, None, Some(Degree::Chain), Some(Degree::Binary), Some(Degree::Star)];
    Config {
        degree: dice.pick(&degrees).flatten(),
        detection_ns: Some(DETECTION_NS),
        slice: Slice { entries: 2, pause_ns: 2 * latency_ns },
        ..Config::new(1 << 34, Link { latency_ns, bytes_per_second })
    }
}

/// Returns classes of objects: small ones, and two sizes of large ones.
fn classes(dice: &mut Dice) -> Vec<Class> {
    let most = if dice.chance(10) { 200 } else { 40 };
    let blocks = [dice.between(2, 8), dice.between(4, most)];
    // Full blocks and a partial one.
    let large = blocks.map(|blocks| (blocks - 1) * BLOCK_BYTES + 8 * dice.between(1, 8192));
    [SMALL_BYTES, large[0], large[1]]
        .into_iter()
        .map(|size| {
            let array = Meta::array(Dtype::Int64, vec![size / 8]);
            // Bytes that are not an array cannot be folded.
            let meta = array.filter(|_| !dice.chance(3)).unwrap_or(Meta::bytes(size));
            Class { meta, objects: Vec::new() }
        })
        .collect()
}
