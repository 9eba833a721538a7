//! Measures the cost of orders of 512 machines over time, and their distance from the bound; times are for one core.
//!
//! `make bench-topology` runs it. Words after `--` select algorithms by name, and a number selects the seed. Three
//! artificial data centers, by seed ([`hoplite_topology::synthetic`]).

use std::{
    env, process,
    time::{Duration, Instant},
};

use hoplite_topology::{
    matrix::Matrix,
    network::{Model, Network},
    plan::{Method, Plan, Request, plan},
    schedule::{Algorithm, Halving},
    synthetic::{DataCentre, data_centre},
};

const MACHINES: usize = 512;
const SEEDS: [u64; 3] = [1, 2, 3];
const SECONDS: f64 = 4.0;
const OTHERS: [(&str, Algorithm); 4] = [
    ("halving-doubling", Algorithm::HalvingDoubling(Halving::Mpi)),
    ("bcube, base 4", Algorithm::BCube { base: 4 }),
    ("bcube, base 8", Algorithm::BCube { base: 8 }),
    ("double-tree", Algorithm::DoubleTree),
];

fn main() {
    if cfg!(debug_assertions) {
        eprintln!(
            "a debug build does not show the real speed: run cargo bench -p hoplite-topology"
        );
        process::exit(2);
    }
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let names: Vec<&String> = words.iter().filter(|word| word.parse::<u64>().is_err()).collect();
    let seeds: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|word| name.contains(*word));
    println!("{MACHINES} machines of an artificial data center, costs in us of the paper's model");
    for seed in SEEDS.into_iter().filter(|seed| seeds.is_empty() || seeds.contains(seed)) {
        let it = DataCentre { machines: MACHINES, ..DataCentre::default() };
        let network = Network::of_times(data_centre(&it, seed).0);
        println!("data center {seed}");
        if is_wanted("ring") {
            ring(&network);
        }
        for (name, algorithm) in OTHERS.into_iter().filter(|other| is_wanted(other.0)) {
            other(&network, name, algorithm);
        }
    }
}

fn request(algorithm: Algorithm) -> Request {
    Request {
        model: Model::Paper,
        algorithm,
        ranks: MACHINES,
        bytes: 1e8,
        seed: 1,
        seconds: 1e9,
        gap: 0.0,
        method: Method::Search,
        start: None,
    }
}

/// Makes a plan within a time limit. Returns it with the time taken.
fn within(network: &Network, request: &Request, seconds: f64) -> (Plan, f64) {
    let begun = Instant::now();
    let is_over = || begun.elapsed() > Duration::from_secs_f64(seconds);
    let found = plan(network, request, &is_over).expect("a plan of 512 machines");
    (found, begun.elapsed().as_secs_f64())
}

fn ring(network: &Network) {
    let (proven, seconds) =
        within(network, &Request { gap: 1e-4, ..request(Algorithm::Ring) }, 10.0);
    println!(
        "  ring, 10 s at most: {:.1}, at most {:.4} % from the best, after {seconds:.2} s with the worst order ({:.0})",
        proven.cost,
        percent(proven.cost, proven.bound),
        proven.cost_worst
    );
    let (quick, seconds) =
        within(network, &Request { seconds: 0.1, ..request(Algorithm::Ring) }, 0.1);
    println!(
        "  ring, {seconds:.2} s: {:.1}, {:.3} % above that bound; by its own bound {:.3} %",
        quick.cost,
        percent(quick.cost, proven.bound),
        percent(quick.cost, quick.bound)
    );
    changed(network, request(Algorithm::Ring), &proven);
}

fn other(network: &Network, name: &str, algorithm: Algorithm) {
    // The same time for both methods: first measure the work of one nominal second on this machine, then scale.
    let timed = |method| {
        let mut wanted = Request { method, seconds: 1.0, ..request(algorithm) };
        let (_, second) = within(network, &wanted, 60.0);
        wanted.seconds = SECONDS / second;
        within(network, &wanted, 60.0)
    };
    let (paper, paper_seconds) = timed(Method::Paper);
    let (ours, our_seconds) = timed(Method::Search);
    println!(
        "  {name}: {:.1} in {our_seconds:.1} s, the paper's annealing {:.1} in {paper_seconds:.1} s: {:.1} % better; \
         at most {:.0} % from the best; given {:.0}, worst {:.0}",
        ours.cost,
        paper.cost,
        100.0 * (1.0 - ours.cost / paper.cost),
        percent(ours.cost, ours.bound),
        ours.cost_given,
        ours.cost_worst
    );
    changed(network, request(algorithm), &ours);
}

/// Measures the improvement of an order after machine 5 moves to the place of machine 80.
fn changed(network: &Network, request: Request, before: &Plan) {
    let rtt = Matrix::of(MACHINES, |a, b| {
        let [a, b] = [a, b].map(|machine| if machine == 5 { 80 } else { machine });
        if a == b { 10.0 } else { network.rtt.at(a, b) }
    });
    let network = Network::of_times(rtt);
    let unmended = Request { seconds: 0.0, start: Some(before.order.clone()), ..request };
    let mut best = f64::INFINITY;
    let mut found = None;
    for _ in 0..5 {
        let begun = Instant::now();
        found = Some(hoplite_topology::plan::mend(&network, &unmended));
        best = best.min(begun.elapsed().as_secs_f64());
    }
    let cost = found.map_or(f64::NAN, |found| found.expect("an order").1);
    println!("    one machine changed: improved in {:.1} ms to {cost:.1}", 1e3 * best);
}

fn percent(cost: f64, bound: f64) -> f64 {
    100.0 * (cost / bound - 1.0)
}
