//! Tests plans of random networks: incremental evaluators, bounds, and numbers of machines for which all orders can be
//! tried.

use hoplite_topology::{
    cost::{self, lanes},
    exchange::Exchange,
    matrix::Matrix,
    network::{Model, Network},
    plan::{Error, Method, Plan, Request, plan, search},
    random::Random,
    schedule::{Algorithm, Halving, Schedule},
    search::Evaluate,
    synthetic::{DataCentre, data_centre},
    trees::Trees,
};
use proptest::prelude::*;

const MODELS: [Model; 3] = [Model::Paper, Model::AlphaBeta, Model::Congestion];
const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::Ring,
    Algorithm::HalvingDoubling(Halving::Mpi),
    Algorithm::HalvingDoubling(Halving::Gloo),
    Algorithm::HalvingDoubling(Halving::LightGbm),
    Algorithm::DoubleTree,
    Algorithm::BCube { base: 2 },
    Algorithm::BCube { base: 3 },
];

fn network(machines: usize, seed: u64) -> Network {
    let mut random = Random::new(seed);
    let cluster: Vec<u32> = (0..machines).map(|_| random.below(3) as u32).collect();
    let rtt = Matrix::of(machines, |a, b| {
        let far = if cluster[a] == cluster[b] { 10.0 } else { 60.0 };
        far * (0.8 + 0.4 * random.unit())
    });
    let uplinks = (0..3).map(|_| 500.0 + 3000.0 * random.unit()).collect();
    Network { rtt, cluster, nic: 1250.0, uplinks }
}

fn request(model: Model, algorithm: Algorithm, ranks: usize) -> Request {
    Request {
        model,
        algorithm,
        ranks,
        bytes: 1e6,
        seed: 1,
        seconds: 0.02,
        gap: 0.0,
        method: Method::Search,
        start: None,
    }
}

fn planned(network: &Network, request: &Request) -> Plan {
    plan(network, request, &|| false).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn evaluators_agree_with_the_reference_cost(
        ranks in 2usize..20,
        spare in 0usize..3,
        seed in 0u64..1000,
        model in 0usize..3,
    ) {
        let (network, model) = (network(ranks + spare, seed), MODELS[model]);
        let mut random = Random::new(seed);
        let start: Vec<u32> = (0..(ranks + spare) as u32).collect();
        for algorithm in ALGORITHMS {
            let mut evaluator: Box<dyn Evaluate> = match algorithm {
                Algorithm::Ring => continue,
                Algorithm::DoubleTree => Box::new(Trees::new(&network, model, 1e6, ranks, &start)),
                _ => match Schedule::new(algorithm, ranks) {
                    Ok(schedule) => {
                        let lanes = lanes(&schedule, 1e6);
                        Box::new(Exchange::new(&network, model, lanes, ranks, &start))
                    }
                    Err(_) => continue,
                },
            };
            for _ in 0..200 {
                let (a, b) = (random.below(ranks), random.below(ranks + spare));
                if a == b {
                    continue;
                }
                let soft = evaluator.soft();
                let then = evaluator.try_swap(a, b);
                if random.below(2) == 0 {
                    evaluator.undo();
                    prop_assert!((evaluator.soft() - soft).abs() <= 1e-6 * soft);
                } else {
                    evaluator.keep();
                    prop_assert!((evaluator.soft() - then).abs() <= 1e-6 * then);
                }
                let order = evaluator.order()[..ranks].to_vec();
                let full = cost::cost(&network, model, algorithm, &order, 1e6).unwrap();
                let hard = evaluator.hard();
                prop_assert!((hard - full).abs() <= 1e-9 * full, "{algorithm:?}: {hard} not {full}");
            }
            let (before, order) = (evaluator.soft(), evaluator.order().to_vec());
            evaluator.set_order(&order);
            prop_assert!((evaluator.soft() - before).abs() <= 1e-6 * before);
        }
    }

    #[test]
    fn plans_are_orders_between_their_bound_and_the_worst(
        ranks in 1usize..40,
        spare in 0usize..4,
        seed in 0u64..1000,
    ) {
        let network = network(ranks + spare, seed);
        for model in MODELS {
            for algorithm in ALGORITHMS {
                if Schedule::new(algorithm, ranks).is_err() {
                    continue;
                }
                let wanted = Request { seconds: 0.004, ..request(model, algorithm, ranks) };
                let found = search(&network, &wanted, &|| false).unwrap();
                let mut sorted = found.order.clone();
                sorted.sort_unstable();
                sorted.dedup();
                prop_assert_eq!(sorted.len(), ranks);
                prop_assert!(sorted.iter().all(|&machine| (machine as usize) < ranks + spare));
                let full = cost::cost(&network, model, algorithm, &found.order, 1e6).unwrap();
                prop_assert!((full - found.cost).abs() <= 1e-9 * full);
                prop_assert!(found.bound <= found.cost, "{algorithm:?} {model:?}: {found:?}");
                prop_assert!(found.cost <= found.cost_given && found.cost_given <= found.cost_worst);
            }
        }
    }
}

#[test]
fn searches_find_the_best_of_seven_and_bounds_stay_below_it() {
    for seed in 0..2 {
        let network = network(7, seed);
        for model in MODELS {
            for algorithm in ALGORITHMS {
                if Schedule::new(algorithm, 7).is_err() {
                    continue;
                }
                let wanted = request(model, algorithm, 7);
                let best = planned(&network, &wanted);
                assert!(best.is_exhaustive && best.bound == best.cost);
                let wanted = Request { seconds: 0.2, ..wanted };
                let found = search(&network, &wanted, &|| false).unwrap();
                let about = format!("{algorithm:?} {model:?} {seed}: {found:?} of {}", best.cost);
                assert!(0.0 < found.bound && found.bound <= best.cost * (1.0 + 1e-9), "{about}");
                // Where crossings and hops conflict, the search for a ring only compares two candidates.
                let slack = if (algorithm, model) == (Algorithm::Ring, Model::Congestion) {
                    0.1
                } else {
                    1e-9
                };
                assert!(found.cost <= best.cost * (1.0 + slack), "{about}");
            }
        }
    }
}

#[test]
fn bounds_of_full_cubes_and_trees_stay_below_the_best_of_eight() {
    for seed in 0..2 {
        let network = network(8, seed);
        for model in MODELS {
            for algorithm in [
                Algorithm::HalvingDoubling(Halving::Mpi),
                Algorithm::BCube { base: 4 },
                Algorithm::DoubleTree,
            ] {
                let wanted = request(model, algorithm, 8);
                let best = planned(&network, &wanted);
                assert!(best.is_exhaustive);
                let found = search(&network, &wanted, &|| false).unwrap();
                assert!(0.0 < found.bound && found.bound <= best.cost, "{algorithm:?} {model:?}");
            }
        }
    }
}

#[test]
fn a_seed_makes_one_plan_and_the_search_beats_the_papers() {
    let (rtt, _) = data_centre(&DataCentre { machines: 64, ..DataCentre::default() }, 3);
    let network = Network::of_times(rtt);
    for algorithm in [
        Algorithm::Ring,
        Algorithm::HalvingDoubling(Halving::Mpi),
        Algorithm::DoubleTree,
        Algorithm::BCube { base: 4 },
    ] {
        let wanted = Request { seconds: 0.3, ..request(Model::Paper, algorithm, 64) };
        let one = planned(&network, &wanted);
        assert_eq!(one, planned(&network, &wanted));
        let paper = planned(&network, &Request { method: Method::Paper, ..wanted });
        assert!(one.cost <= paper.cost, "{algorithm:?}: {} above {}", one.cost, paper.cost);
        assert!(one.cost < one.cost_given && one.cost_given < one.cost_worst);
    }
}

#[test]
fn the_work_of_a_tenth_of_a_second_brings_a_ring_of_512_near_the_shortest() {
    let network = Network::of_times(data_centre(&DataCentre::default(), 1).0);
    // The optimum, as proven by linear programs.
    let shortest = 7743.4;
    for seed in 0..3 {
        let wanted = Request { seconds: 0.1, seed, ..request(Model::Paper, Algorithm::Ring, 512) };
        let found = planned(&network, &wanted);
        assert!(found.cost <= 1.01 * shortest, "{} of seed {seed}", found.cost);
        assert!(found.bound <= shortest && found.cost <= 1.04 * found.bound, "{}", found.bound);
    }
}

#[test]
fn spare_machines_are_taken_where_they_are_nearer() {
    let (rtt, _) = data_centre(&DataCentre { machines: 40, ..DataCentre::default() }, 3);
    let network = Network::of_times(rtt);
    for algorithm in
        [Algorithm::Ring, Algorithm::HalvingDoubling(Halving::Mpi), Algorithm::DoubleTree]
    {
        let all = planned(&network, &request(Model::Paper, algorithm, 40));
        let some = planned(&network, &request(Model::Paper, algorithm, 32));
        assert!(some.cost < all.cost, "{algorithm:?}: {} of 32, {} of 40", some.cost, all.cost);
    }
}

#[test]
fn invalid_requests_are_refused_with_their_numbers() {
    let network = network(5, 1);
    let refused = |request: Request| plan(&network, &request, &|| false).unwrap_err();
    let ring = request(Model::Paper, Algorithm::Ring, 5);
    assert_eq!(
        refused(Request { ranks: 6, ..ring.clone() }),
        Error::Ranks { ranks: 6, machines: 5 }
    );
    assert_eq!(
        refused(Request { ranks: 0, ..ring.clone() }),
        Error::Ranks { ranks: 0, machines: 5 }
    );
    let cube = refused(request(Model::Paper, Algorithm::BCube { base: 4 }, 5)).to_string();
    assert!(cube.contains("use 4 or 8 ranks"), "{cube}");
    for start in [vec![0, 1, 2, 3], vec![0, 1, 2, 3, 3], vec![0, 1, 2, 3, 5]] {
        assert!(matches!(
            refused(Request { start: Some(start), ..ring.clone() }),
            Error::Start { ranks: 5, machines: 5 }
        ));
    }
}

#[test]
fn the_search_ends_when_the_time_is_up() {
    let (rtt, _) = data_centre(&DataCentre { machines: 128, ..DataCentre::default() }, 3);
    let network = Network::of_times(rtt);
    for algorithm in
        [Algorithm::Ring, Algorithm::HalvingDoubling(Halving::Mpi), Algorithm::DoubleTree]
    {
        let asked = std::cell::Cell::new(0);
        let wanted = Request { seconds: 1e9, ..request(Model::Paper, algorithm, 128) };
        let is_over = || {
            asked.set(asked.get() + 1);
            asked.get() > 3
        };
        let found = plan(&network, &wanted, &is_over).unwrap();
        assert!(
            asked.get() < 500,
            "{algorithm:?} checked {} times whether the time is up",
            asked.get()
        );
        assert!(found.bound <= found.cost);
    }
}
