//! Simulates long runs of whole programs: a step must take as long after an hour as at the beginning.
//!
//! Servers and workers run closed loops ([`crate::programs`]) on a network without randomness, except for the hiccups
//! of a run. Times are virtual, without the cost of processors and kernels. The bound of a step follows from the bytes
//! that one link must carry.

use std::{cell::RefCell, collections::BTreeMap, future::poll_fn, rc::Rc, task::Poll};

use hoplite_proto::{
    id::{NodeId, ObjectId},
    meta::{Dtype, Meta},
    node::{Config, Event},
    reduce::cost::Link,
    time::Instant,
};

use crate::{
    dice::Dice,
    payload::Tag,
    plan::{DETECTION_NS, Fault, MILLISECOND, Plan, SECOND},
    programs::Client,
    trace::Trace,
    verdict::Record,
    world::World,
};

/// Communication pattern of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All workers get each object that the server puts.
    Broadcast,
    /// Four broadcasts at the same time, from four hosts to all others.
    Broadcasts,
    /// Parameter server: sums the first half of the gradients into new weights, which workers get when they are ready.
    Asynchronous,
    /// Like `Asynchronous`, but a gradient that no step has used counts for the next step.
    Pending,
    /// Like `Asynchronous`, with all gradients.
    Synchronous,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 5] =
        [Self::Broadcast, Self::Broadcasts, Self::Asynchronous, Self::Pending, Self::Synchronous];

    /// Number of programs of this kind that run at once, each with its server on its own host.
    const fn jobs(self) -> u64 {
        if matches!(self, Self::Broadcasts) { 4 } else { 1 }
    }

    /// Minimum number of sequential object transfers per step.
    pub const fn bound(self) -> u64 {
        match self {
            Self::Broadcast => 1,
            Self::Broadcasts => 4,
            Self::Asynchronous | Self::Pending | Self::Synchronous => 2,
        }
    }
}

/// A fault during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No fault.
    None,
    /// Sometimes two hosts cannot communicate for up to a quarter of a second, as after a lost packet.
    Hiccups,
    /// One host is partitioned for two seconds, later another one.
    Cut,
    /// One worker computes for two seconds, later another one.
    Late,
    /// One host is frozen for two seconds, later another one.
    Freeze,
    /// One host's link has a tenth of its rate for five seconds, later another one's.
    Slow,
}

impl Trouble {
    /// All faults.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Hiccups, Self::Late, Self::Cut, Self::Freeze, Self::Slow];

    const fn fault(self) -> Option<Fault> {
        match self {
            Self::None | Self::Hiccups | Self::Late => None,
            Self::Cut => Some(Fault::Off),
            Self::Freeze => Some(Fault::Freeze),
            Self::Slow => Some(Fault::Slow { times: 10 }),
        }
    }

    /// Duration of each fault.
    const fn lasts_ns(self) -> u64 {
        match self {
            Self::None | Self::Hiccups => 0,
            Self::Late | Self::Cut | Self::Freeze => 2 * SECOND,
            Self::Slow => 5 * SECOND,
        }
    }
}

/// Steps at which a fault begins, and its host.
const FAULTS: [(u64, u64); 2] = [(15, 3), (40, 5)];

/// After a fault, steps must be back to normal within this many steps, up to this percentage.
const SETTLING_STEPS: usize = 5;
const SETTLED_PERCENT: u64 = 115;

/// One step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Start of the step.
    pub begun: Instant,
    /// Duration of the step.
    pub took_ns: u64,
}

/// Parameters of a long run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Communication pattern.
    pub pattern: Pattern,
    /// Fault during the run.
    pub trouble: Trouble,
    /// Number of hosts; the first one runs the server.
    pub hosts: u64,
    /// Size of each object.
    pub bytes: u64,
    /// Number of steps.
    pub steps: u64,
    /// Rate and latency of the links.
    pub link: Link,
    /// Seed of the hiccups.
    pub seed: u64,
}

impl Run {
    /// Eight hosts with links of 500 Mbit/s and objects of 16 MiB.
    pub const fn new(pattern: Pattern, trouble: Trouble, steps: u64, seed: u64) -> Self {
        let link = Link { latency_ns: 80_000, bytes_per_second: 62_500_000 };
        Self { pattern, trouble, hosts: 8, bytes: 16 << 20, steps, link, seed }
    }

    /// Time that one link needs for an object.
    pub const fn transfer_ns(&self) -> u64 {
        self.bytes * SECOND / self.link.bytes_per_second
    }

    /// Minimum duration of a step.
    pub const fn bound_ns(&self) -> u64 {
        self.transfer_ns() * self.pattern.bound()
    }

    /// Checks that step times return to their initial value soon after each fault, and at the end.
    ///
    /// # Errors
    /// The steps that take longer.
    pub fn check(&self, steps: &[Step]) -> Result<(), String> {
        let undisturbed = median(&steps[..FAULTS[0].0 as usize]);
        let is_settled = |step: &Step| step.took_ns * 100 <= undisturbed * SETTLED_PERCENT;
        let mut ends = FAULTS.iter().map(|(at, _)| *at as usize).chain([steps.len()]).skip(1);
        for (at, _) in FAULTS.iter().filter(|_| self.trouble != Trouble::Hiccups) {
            let over = steps[*at as usize].begun + self.trouble.lasts_ns();
            let settled = steps.iter().position(|step| step.begun >= over).unwrap_or(steps.len());
            let until = ends.next().unwrap_or(steps.len());
            let late = (settled + SETTLING_STEPS..until).find(|at| !is_settled(&steps[*at]));
            if let Some(late) = late {
                let took_ns = steps[late].took_ns;
                return Err(format!(
                    "step {late} takes {took_ns} ns instead of {undisturbed}; the fault ended before step {settled}"
                ));
            }
        }
        let last = median(&steps[steps.len().saturating_sub(100)..]);
        if last * 100 > undisturbed * 110 || last * 100 > self.bound_ns() * SETTLED_PERCENT {
            let bound = self.bound_ns();
            return Err(format!(
                "the last steps take {last} ns, the first {undisturbed}, and the bound is {bound}"
            ));
        }
        Ok(())
    }

    /// Runs all steps.
    ///
    /// # Errors
    /// The finding of a checker, or that the run did not end.
    pub fn go(&self, record: Record) -> Result<Vec<Step>, String> {
        let config = Config { detection_ns: Some(DETECTION_NS), ..Config::new(1 << 40, self.link) };
        let end = Instant(100_000 * SECOND);
        let mut world = World::calm(Plan::empty(self.hosts, config, end), false);
        world.trace = Trace::of(record);
        for node in world.staying() {
            world.deliver(node, Event::LinkMeasured { link: self.link, has_bandwidth: true });
        }
        let steps = Rc::new(RefCell::new(Vec::new()));
        self.start(&mut world, &steps);
        world.run_programs();
        while world.failure.is_none() && (steps.borrow().len() as u64) < self.steps {
            let before = steps.borrow().len();
            world.run_until(world.now + 120 * SECOND);
            if steps.borrow().len() == before && world.failure.is_none() {
                return Err(format!("step {before} takes longer than two minutes"));
            }
        }
        match world.failure {
            Some(failure) => Err(failure),
            None => Ok(steps.take()),
        }
    }

    fn start(&self, world: &mut World, steps: &Rc<RefCell<Vec<Step>>>) {
        let meta = Meta::array(Dtype::Int64, vec![self.bytes / 8]).expect("whole elements");
        let mut number = 0;
        for home in 0..self.pattern.jobs() {
            let wanted = Rc::new(RefCell::new(vec![0; self.hosts as usize]));
            // Only the steps of the first server count.
            let steps = if home == 0 { steps.clone() } else { Rc::default() };
            let (run, meta, done) = (*self, meta.clone(), Rc::default());
            let job = Job { run, home, meta, done, wanted, steps };
            // The server runs last: it sees everything that its workers have done.
            let workers = (0..self.hosts).rev().filter(|host| *host != home);
            for host in workers.chain([home]) {
                number += 1;
                let client = world.programs.client(NodeId(host + 1), number);
                match host == home {
                    true => world.programs.add(job.clone().serve(client)),
                    false => world.programs.add(job.clone().work(client, host)),
                }
            }
        }
    }
}

/// One server and its workers.
#[derive(Clone, Debug)]
struct Job {
    run: Run,
    /// The host of the server.
    home: u64,
    meta: Meta,
    /// Number of workers that received the version of each step.
    done: Rc<RefCell<BTreeMap<u64, u64>>>,
    /// For each host, the gradient that no step has used yet.
    wanted: Rc<RefCell<Vec<u64>>>,
    steps: Rc<RefCell<Vec<Step>>>,
}

impl Job {
    async fn serve(self, client: Client) {
        let mut dice = Dice::new(self.run.seed);
        let workers = self.run.hosts - 1;
        self.publish(&client, 0).await;
        for step in 0..self.run.steps {
            let begun = client.now();
            self.disturb(&client, step, &mut dice);
            match self.run.pattern {
                Pattern::Broadcast | Pattern::Broadcasts => {
                    if step > 0 {
                        self.publish(&client, step).await;
                    }
                    self.all_done(step).await;
                }
                Pattern::Asynchronous | Pattern::Pending => {
                    self.update(&client, step, workers.div_ceil(2)).await
                }
                Pattern::Synchronous => self.update(&client, step, workers).await,
            }
            let took_ns = client.now().since(begun);
            self.steps.borrow_mut().push(Step { begun, took_ns });
        }
    }

    /// Sums the first `count` gradients and publishes the next weights.
    async fn update(&self, client: &Client, step: u64, count: u64) {
        let inputs: BTreeMap<ObjectId, (u64, Tag)> = (1..self.run.hosts)
            .map(|host| (host, self.number_of(host, step)))
            .map(|(host, number)| (gradient(host, number), (host, gradient_tag(host, number))))
            .collect();
        let made = async {
            let sum = client.sum(inputs.keys().cloned().collect(), count as u32, None).await?;
            let reading = client.get(&sum).await?;
            let folded = client.inputs(&sum).await?;
            let known = || folded.iter().filter_map(|id| inputs.get(id));
            known().for_each(|(host, _)| self.wanted.borrow_mut()[*host as usize] += 1);
            let mut tags: Vec<Tag> = known().map(|(_, tag)| *tag).collect();
            tags.sort_unstable();
            if tags.len() as u64 != count || reading.tags() != tags {
                client.fail(format!("{sum} holds {:?}, not the sum of {folded:?}", reading.tags()));
            }
            client.release(&reading);
            self.publish(client, step + 1).await;
            client.delete([vec![sum], folded].concat()).await
        };
        if let Err(error) = made.await {
            client.fail(format!("step {step} failed: {error}"));
        }
    }

    /// Returns the gradient of a host that counts for a step.
    fn number_of(&self, host: u64, step: u64) -> u64 {
        match self.run.pattern {
            Pattern::Pending => self.wanted.borrow()[host as usize],
            _ => step,
        }
    }

    fn prefix(&self) -> String {
        format!("policy{}/", self.home)
    }

    fn weights(&self, version: u64) -> ObjectId {
        ObjectId::Named(format!("{}{version}", self.prefix()).parse().expect("a name"))
    }

    async fn publish(&self, client: &Client, version: u64) {
        let id = self.weights(version);
        let made = async {
            client.put(Some(id.clone()), self.meta.clone(), weights_tag(version)).await?;
            client.prune(&id, 2).await
        };
        if let Err(error) = made.await {
            client.fail(format!("{id} was not published: {error}"));
        }
    }

    async fn work(self, client: Client, host: u64) {
        let (mut version, mut made) = (None, None);
        loop {
            let Ok(newest) = client.latest(&self.prefix(), version).await else { continue };
            version = Some(newest);
            // The version may be pruned before it arrives.
            let Ok(reading) = client.get(&self.weights(newest)).await else { continue };
            if reading.tags() != [weights_tag(newest)] {
                client.fail(format!("version {newest} holds {:?}", reading.tags()));
            }
            client.release(&reading);
            if matches!(self.run.pattern, Pattern::Broadcast | Pattern::Broadcasts) {
                *self.done.borrow_mut().entry(newest).or_default() += 1;
                continue;
            }
            let number = self.number_of(host, newest);
            let (id, tag) = (gradient(host, number), gradient_tag(host, number));
            if made.as_ref() == Some(&id) {
                continue;
            }
            if self.run.trouble == Trouble::Late && FAULTS.contains(&(newest, host)) {
                client.sleep(self.run.trouble.lasts_ns()).await;
            }
            let put = client.put(Some(id.clone()), self.meta.clone(), tag).await;
            let before = made.replace(id);
            let deleted = client.delete(before.into_iter().collect()).await;
            if let Err(error) = put.and(deleted) {
                client.fail(format!("the gradient of version {newest} was not put: {error}"));
            }
        }
    }

    /// Waits until every worker has the version.
    async fn all_done(&self, version: u64) {
        poll_fn(|_| {
            let done = self.done.borrow().get(&version).copied().unwrap_or(0);
            match done == self.run.hosts - 1 {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    fn disturb(&self, client: &Client, step: u64, dice: &mut Dice) {
        if self.run.trouble == Trouble::Hiccups && self.home == 0 && dice.chance(10) {
            let slow = Fault::Slow { times: dice.between(2, 10) };
            let fault = if dice.chance(50) { Fault::Pair } else { slow };
            client.disturb(dice.below(64), fault, dice.between(20, 400) * MILLISECOND);
        }
        if let Some(fault) = self.run.trouble.fault().filter(|_| self.home == 0)
            && let Some((_, host)) = FAULTS.iter().find(|(at, _)| *at == step)
        {
            client.disturb(*host, fault, self.run.trouble.lasts_ns());
        }
    }
}

/// Median duration of steps.
pub fn median(steps: &[Step]) -> u64 {
    let mut times: Vec<u64> = steps.iter().map(|step| step.took_ns).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

const fn weights_tag(version: u64) -> Tag {
    Tag((1 << 40) + version)
}

fn gradient(host: u64, version: u64) -> ObjectId {
    ObjectId::Named(format!("grad/w{host}/{version}").parse().expect("a name"))
}

const fn gradient_tag(host: u64, version: u64) -> Tag {
    Tag((version + 1) * 1000 + host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No fault may slow down a run for longer than it lasts.
    #[test]
    fn every_pattern_recovers_from_every_fault() {
        let all = Pattern::ALL.iter().flat_map(|p| Trouble::ALL.map(|t| (*p, t)));
        // A debug build has time for every seventh pair: each pattern, and each fault but one.
        let step = if cfg!(debug_assertions) { 7 } else { 1 };
        for (pattern, trouble) in all.step_by(step) {
            let run = Run::new(pattern, trouble, 120, 7);
            assert_eq!(
                run.go(Record::Nothing).and_then(|steps| run.check(&steps)),
                Ok(()),
                "{pattern:?}, {trouble:?}"
            );
        }
    }
}
