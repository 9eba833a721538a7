//! Runs the search method of each algorithm, and its lower bound.

use std::borrow::Cow;

use crate::{
    clusters, cost,
    exchange::Exchange,
    matrix::Matrix,
    network::{Model, Network},
    packing,
    random::Random,
    request::{Error, Request},
    rings::{self, Effort},
    rounds_bound,
    schedule::{self, Algorithm, Halving, Schedule},
    search::{self, Aim, Evaluate, Search},
    trees::Trees,
    trees_bound,
};

/// Work per second of the time limit, as measured on a core of a few years ago. Counts instead of a clock make the
/// order the same on a faster machine.
const KICKS_A_SECOND: f64 = 30_000.0;
/// Divided by the number of machines, because larger rings have slower cases. The same holds for steps.
const CASES_A_SECOND: f64 = 15_000.0;
const STEPS_A_SECOND: f64 = 300_000.0;
const TRIES_A_SECOND: f64 = 400_000.0;
/// Limits per machine; more work does not improve a small search.
const KICKS_EACH: u64 = 4_000;
const TRIES_EACH: u64 = 30_000;
/// Up to this many machines, the search also restarts from random orders.
const FEW: usize = 32;
const RESTARTS: u64 = 9;
/// Steps of the bound on the whole matrix before the search. More follow after it.
const STEPS: usize = 120;
/// Limits for improving an order that was good before a few machines changed: kicks of a ring, tries of other orders.
const MENDING_KICKS: u64 = 100;
const MENDING_TRIES: u64 = 3_000;

/// A request with the lanes of its schedule, which are computed once.
pub(crate) struct Job<'a> {
    network: &'a Network,
    request: &'a Request,
    lanes: Vec<cost::Lane>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(network: &'a Network, request: &'a Request) -> Result<Self, Error> {
        let lanes = match request.algorithm {
            Algorithm::Ring | Algorithm::DoubleTree => Vec::new(),
            algorithm => cost::lanes(&Schedule::new(algorithm, request.ranks)?, request.bytes),
        };
        Ok(Self { network, request, lanes })
    }

    pub(crate) fn cost(&self, order: &[u32]) -> f64 {
        let Request { model, bytes, .. } = *self.request;
        match self.request.algorithm {
            Algorithm::Ring => cost::ring(self.network, model, order, bytes),
            Algorithm::DoubleTree => cost::double_tree(self.network, model, order, bytes),
            _ => cost::rounds(self.network, model, &self.lanes, order),
        }
    }

    /// Returns the evaluator for an order of all machines; the first `ranks` take part.
    fn evaluator(&self, order: &[u32]) -> Box<dyn Evaluate + '_> {
        let Request { model, bytes, ranks, .. } = *self.request;
        match self.request.algorithm {
            Algorithm::DoubleTree => Box::new(Trees::new(self.network, model, bytes, ranks, order)),
            Algorithm::Ring => Box::new(RingCosts::new(self, order)),
            _ => Box::new(Exchange::new(self.network, model, self.lanes.clone(), ranks, order)),
        }
    }

    /// Appends the machines that an order omits.
    fn with_spare(&self, order: &[u32]) -> Vec<u32> {
        let mut is_in = vec![false; self.network.rtt.len()];
        order.iter().for_each(|&machine| is_in[machine as usize] = true);
        let spare = (0..is_in.len() as u32).filter(|&machine| !is_in[machine as usize]);
        order.iter().copied().chain(spare).collect()
    }

    /// Tries all arrangements. Returns the best order, its cost, and the cost of the worst.
    pub(crate) fn all(&self) -> (Vec<u32>, f64, f64) {
        fn visit(
            job: &Job<'_>,
            order: &mut Vec<u32>,
            is_in: &mut [bool],
            found: &mut (Vec<u32>, f64, f64),
        ) {
            if order.len() == job.request.ranks {
                let cost = job.cost(order);
                found.2 = found.2.max(cost);
                if cost < found.1 {
                    (found.0, found.1) = (order.clone(), cost);
                }
                return;
            }
            for machine in 0..is_in.len() {
                if !is_in[machine] {
                    is_in[machine] = true;
                    order.push(machine as u32);
                    visit(job, order, is_in, found);
                    order.pop();
                    is_in[machine] = false;
                }
            }
        }
        let mut found = (Vec::new(), f64::INFINITY, 0.0);
        visit(self, &mut Vec::new(), &mut vec![false; self.network.rtt.len()], &mut found);
        found
    }

    fn tries(&self) -> u64 {
        let most = TRIES_EACH * self.network.rtt.len() as u64;
        ((self.request.seconds * TRIES_A_SECOND) as u64).min(most)
    }

    fn search_of<'b>(
        &self,
        near: &'b [Vec<u32>],
        aim: Aim,
        tries: u64,
        is_over: &'b dyn Fn() -> bool,
    ) -> Search<'b> {
        Search { near, aim, tries, is_over }
    }

    /// Returns initial orders: clusters next to each other, also aligned to blocks of powers of the base.
    fn starts(&self) -> Vec<Vec<u32>> {
        let Request { algorithm, ranks, .. } = *self.request;
        let rtt = &self.network.rtt;
        let chosen = if ranks < rtt.len() {
            packing::choose(rtt, ranks)
        } else {
            (0..ranks as u32).collect()
        };
        let part = rtt.part(&chosen);
        let base = if let Algorithm::BCube { base } = algorithm { base } else { 2 };
        let beside = packing::side_by_side(&part);
        let mut starts = vec![beside.clone()];
        for level in clusters::by_gaps(&part).into_iter().take(2) {
            starts.push(packing::aligned(&beside, &level, base));
        }
        let count = starts.len();
        if algorithm == Algorithm::HalvingDoubling(Halving::LightGbm)
            && ranks.is_power_of_two()
            && ranks > 1
        {
            // The farthest ranks exchange most: use the same blocks with the bits of the rank reversed.
            for at in 0..count {
                let bits = ranks.ilog2();
                let turned = |rank: u32| starts[at][(rank.reverse_bits() >> (32 - bits)) as usize];
                starts.push((0..ranks as u32).map(turned).collect());
            }
        }
        let real = |order: Vec<u32>| order.into_iter().map(|at| chosen[at as usize]).collect();
        starts.into_iter().map(real).collect()
    }

    pub(crate) fn search(&self, random: &mut Random, is_over: &dyn Fn() -> bool) -> Vec<u32> {
        let starts = self.starts();
        let best = starts.iter().min_by(|a, b| self.cost(a).total_cmp(&self.cost(b)));
        let start = self.with_spare(&best.cloned().unwrap_or_default());
        let near = self.network.rtt.nearest(16);
        let runs = if start.len() <= FEW { 1 + RESTARTS } else { 1 };
        let search = self.search_of(&near, Aim::Best, self.tries() / runs, is_over);
        let mut evaluator = self.evaluator(&start);
        let mut best =
            (search::improve(&mut *evaluator, &search, random), evaluator.order().to_vec());
        // With few machines, few swaps lead out of a local minimum: restart from other orders.
        for _ in 1..runs {
            let mut order = start.clone();
            random.shuffle(&mut order);
            evaluator.set_order(&order);
            let cost = search::improve(&mut *evaluator, &search, random);
            if cost < best.0 {
                best = (cost, evaluator.order().to_vec());
            }
        }
        best.1.truncate(self.request.ranks);
        best.1
    }

    pub(crate) fn as_the_paper(&self, random: &mut Random, is_over: &dyn Fn() -> bool) -> Vec<u32> {
        let start: Vec<u32> = (0..self.network.rtt.len() as u32).collect();
        let search = self.search_of(&[], Aim::Best, self.tries(), is_over);
        let mut evaluator = self.evaluator(&start);
        search::as_the_paper(&mut *evaluator, &search, random);
        evaluator.order()[..self.request.ranks].to_vec()
    }

    pub(crate) fn mend(&self, start: &[u32], random: &mut Random) -> Vec<u32> {
        if self.request.algorithm == Algorithm::Ring {
            let hops = self.hop_costs();
            if start.len() == hops.len() {
                return rings::mend(&hops, start, MENDING_KICKS, random);
            }
            let part = hops.part(start);
            let order = rings::mend(
                &part,
                &(0..start.len() as u32).collect::<Vec<_>>(),
                MENDING_KICKS,
                random,
            );
            return order.into_iter().map(|at| start[at as usize]).collect();
        }
        let near = self.network.rtt.nearest(16);
        let search = self.search_of(&near, Aim::Best, MENDING_TRIES, &|| false);
        let mut evaluator = self.evaluator(&self.with_spare(start));
        search::mend(&mut *evaluator, &search, random);
        evaluator.order()[..self.request.ranks].to_vec()
    }

    /// Cost of each hop of the ring by itself.
    pub(crate) fn hop_costs(&self) -> Cow<'_, Matrix> {
        if self.request.model == Model::Paper {
            return Cow::Borrowed(&self.network.rtt);
        }
        let part = self.request.bytes / self.request.ranks as f64;
        Cow::Owned(Matrix::of(self.network.rtt.len(), |a, b| {
            let transfer = self.network.transfer_us(self.request.model, a, b, part);
            match self.request.model {
                Model::Congestion => transfer + part * self.network.byte_us(a, b),
                _ => transfer,
            }
        }))
    }

    pub(crate) fn ring(&self, random: &mut Random, is_over: &dyn Fn() -> bool) -> (Vec<u32>, f64) {
        let Request { ranks, seconds, gap, model, .. } = *self.request;
        let hops = self.hop_costs();
        let machines = hops.len();
        let all: Vec<u32> = (0..machines as u32).collect();
        let chosen = if ranks < machines { packing::choose(&hops, ranks) } else { all };
        let most = KICKS_EACH * ranks as u64;
        let a_second = |count: f64| (seconds * count / ranks as f64) as usize;
        let effort = Effort {
            kicks: ((seconds * KICKS_A_SECOND) as u64).min(most),
            steps: if ranks < machines { 1 } else { a_second(STEPS_A_SECOND).min(STEPS) },
            cases: if ranks < machines { 0 } else { a_second(CASES_A_SECOND) },
            gap,
        };
        let ring = rings::solve(&hops.part(&chosen), &effort, random, is_over);
        let mut order: Vec<u32> = ring.order.iter().map(|&at| chosen[at as usize]).collect();
        if ranks < machines {
            order = self.exchange_chosen(&hops, order, random);
            return (order, self.bound());
        }
        let scale = self.ring_scale();
        if model == Model::Congestion {
            // Fewer crossings between clusters can be worth more than short hops.
            let most = hops.max();
            let apart = Matrix::of(machines, |a, b| {
                hops.at(a, b) + if self.network.crosses(a, b) { most } else { 0.0 }
            });
            let effort = Effort { cases: 0, ..effort };
            let other = rings::solve(&apart, &effort, random, is_over).order;
            if self.cost(&other) < self.cost(&order) {
                order = other;
            }
        }
        (order, self.bound().max(scale * ring.bound))
    }

    /// The factor of the sum of hops in the cost of a ring.
    pub(crate) fn ring_scale(&self) -> f64 {
        let ranks = self.request.ranks as f64;
        if self.request.model == Model::Paper { 1.0 } else { 2.0 * (ranks - 1.0) / ranks }
    }

    /// Replaces machines by cheaper spare ones until no replacement helps, and shortens the ring after each pass.
    fn exchange_chosen(&self, hops: &Matrix, mut order: Vec<u32>, random: &mut Random) -> Vec<u32> {
        let ranks = order.len();
        if ranks < 3 {
            return order;
        }
        for _ in 0..8 {
            let mut spare = self.with_spare(&order).split_off(ranks);
            let before = self.cost(&order);
            for rank in 0..ranks {
                let ends = [order[(rank + ranks - 1) % ranks], order[(rank + 1) % ranks]];
                let price = |machine: u32| {
                    ends.iter().map(|&end| hops.at(end as usize, machine as usize)).sum::<f64>()
                };
                let best =
                    (0..spare.len()).min_by(|&a, &b| price(spare[a]).total_cmp(&price(spare[b])));
                if let Some(best) = best.filter(|&best| price(spare[best]) < price(order[rank])) {
                    std::mem::swap(&mut spare[best], &mut order[rank]);
                }
            }
            let part = hops.part(&order);
            let start: Vec<u32> = (0..ranks as u32).collect();
            let shorter = rings::mend(&part, &start, MENDING_KICKS, random);
            order = shorter.into_iter().map(|at| order[at as usize]).collect();
            if self.cost(&order) >= before * (1.0 - 1e-9) {
                break;
            }
        }
        order
    }

    /// Lower bound of the cost of every order; for a ring only a bound that is quick to compute.
    pub(crate) fn bound(&self) -> f64 {
        let Request { model, algorithm, ranks, bytes, .. } = *self.request;
        let network = self.network;
        if ranks < 2 {
            return 0.0;
        }
        match algorithm {
            Algorithm::Ring => self.ring_bound(),
            Algorithm::DoubleTree => trees_bound::bound(network, model, ranks, bytes),
            Algorithm::HalvingDoubling(_) => {
                let (all, others): (Vec<_>, Vec<_>) =
                    self.lanes.iter().cloned().partition(|lane| lane.both);
                let sides = vec![2; ranks.ilog2() as usize];
                rounds_bound::bound(network, model, &all, &sides, 1 << ranks.ilog2())
                    + rounds_bound::bound_of_others(network, model, &others)
            }
            Algorithm::BCube { base } => {
                let sides = schedule::bcube_sides(ranks, base).unwrap_or_default();
                rounds_bound::bound(network, model, &self.lanes, &sides, ranks)
            }
        }
    }

    /// Each machine has two hops, so a ring costs at least half of each machine's two cheapest hops. Sums the machines
    /// for which that is least.
    fn ring_bound(&self) -> f64 {
        let Request { model, ranks, bytes, .. } = *self.request;
        let hops = self.hop_costs();
        let mut halves: Vec<f64> = (0..hops.len())
            .map(|machine| {
                let [mut first, mut second] = [f64::INFINITY; 2];
                for (other, &cost) in hops.row(machine).iter().enumerate() {
                    if other != machine && cost < second {
                        (first, second) = (first.min(cost), first.max(cost));
                    }
                }
                // With two machines, the ring uses the same hop twice.
                (first + if second.is_finite() { second } else { first }) / 2.0
            })
            .collect();
        halves.select_nth_unstable_by(ranks - 1, f64::total_cmp);
        let sum = self.ring_scale() * halves[..ranks].iter().sum::<f64>();
        if model == Model::Paper {
            return sum;
        }
        let mut slowest = 1.0 / self.network.nic;
        if ranks == hops.len() && self.network.uplinks.len() > 1 {
            // The ring leaves each cluster at least once.
            slowest = self.network.uplinks.iter().map(|up| 1.0 / up).fold(slowest, f64::max);
        }
        sum.max(2.0 * (ranks - 1) as f64 * bytes / ranks as f64 * slowest)
    }

    /// The highest cost found for any order.
    pub(crate) fn worst(&self, random: &mut Random, is_over: &dyn Fn() -> bool) -> f64 {
        let ranks = self.request.ranks;
        let all: Vec<u32> = (0..self.network.rtt.len() as u32).collect();
        let mut found = 0.0_f64;
        for _ in 0..8 {
            let mut order = all.clone();
            random.shuffle(&mut order);
            found = found.max(self.cost(&order[..ranks]));
        }
        if self.request.algorithm == Algorithm::Ring {
            let hops = self.hop_costs();
            let order = rings::longest(&hops.part(&all[..ranks]), random, is_over);
            return found.max(self.cost(&order));
        }
        let near = Vec::new();
        let search = self.search_of(&near, Aim::Worst, self.tries() / 10, is_over);
        let mut evaluator = self.evaluator(&all);
        found.max(search::improve(&mut *evaluator, &search, random))
    }
}

/// Recomputes the full cost of a ring at each swap; only for the paper's annealing.
struct RingCosts<'a> {
    job: &'a Job<'a>,
    order: Vec<u32>,
    tried: (usize, usize),
}

impl<'a> RingCosts<'a> {
    fn new(job: &'a Job<'a>, order: &[u32]) -> Self {
        Self { job, order: order.to_vec(), tried: (0, 0) }
    }
}

impl Evaluate for RingCosts<'_> {
    fn ranks(&self) -> usize {
        self.job.request.ranks
    }

    fn order(&self) -> &[u32] {
        &self.order
    }

    fn set_order(&mut self, order: &[u32]) {
        self.order.copy_from_slice(order);
    }

    fn hard(&mut self) -> f64 {
        self.soft()
    }

    fn soft(&self) -> f64 {
        self.job.cost(&self.order[..self.ranks()])
    }

    fn try_swap(&mut self, a: usize, b: usize) -> f64 {
        self.tried = (a, b);
        self.order.swap(a, b);
        self.soft()
    }

    fn keep(&mut self) {}

    fn undo(&mut self) {
        self.order.swap(self.tried.0, self.tried.1);
    }

    fn partner(&self, rank: usize, _: &mut Random) -> usize {
        (rank + 1) % self.ranks()
    }

    fn critical(&mut self, _: &mut Random) -> (usize, usize) {
        (0, 1 % self.ranks())
    }
}
