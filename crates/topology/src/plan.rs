//! Plans a low-cost order of the machines for an algorithm, with a lower bound of the cost.

pub use crate::request::{Error, Method, Plan, Request};

use crate::{job::Job, matrix::Matrix, network::Network, random::Random, schedule::Algorithm};

/// Up to this number of arrangements, all are tried, so the best one is optimal.
const ARRANGEMENTS_MAX: usize = 50_000;

/// Finds an order: by trying all arrangements if there are few, otherwise by a search.
///
/// # Errors
/// The request is not valid.
pub fn plan(
    network: &Network,
    request: &Request,
    is_over: &dyn Fn() -> bool,
) -> Result<Plan, Error> {
    let is_small = arrangements(network.rtt.len(), request.ranks) <= ARRANGEMENTS_MAX;
    if !is_small || request.method == Method::Paper {
        return search(network, request, is_over);
    }
    let job = checked(network, request)?;
    let cost_given = job.cost(&given(request));
    let (order, cost, cost_worst) = job.all();
    Ok(Plan { order, cost, cost_given, cost_worst, bound: cost, is_exhaustive: true })
}

/// Finds an order by a search, even if there are few machines.
///
/// # Errors
/// The request is not valid.
pub fn search(
    network: &Network,
    request: &Request,
    is_over: &dyn Fn() -> bool,
) -> Result<Plan, Error> {
    let job = checked(network, request)?;
    let given = given(request);
    let cost_given = job.cost(&given);
    let mut random = Random::new(request.seed);
    let (order, bound) = match (request.algorithm, &request.start) {
        (_, Some(start)) => (job.mend(start, &mut random), job.bound()),
        _ if request.method == Method::Paper => {
            (job.as_the_paper(&mut random, is_over), job.bound())
        }
        (Algorithm::Ring, None) => job.ring(&mut random, is_over),
        (_, None) => (job.search(&mut random, is_over), job.bound()),
    };
    // The given order may be the best one, and the search may end with a worse one.
    let order = if job.cost(&order) <= cost_given { order } else { given };
    let cost = job.cost(&order);
    let cost_worst = match request.start {
        Some(_) => cost_given,
        None => job.worst(&mut random, is_over).max(cost_given),
    };
    Ok(Plan { order, cost, cost_given, cost_worst, bound: bound.min(cost), is_exhaustive: false })
}

/// Returns the cost of each hop of a ring of all machines, and the factor of their sum. No ring costs less than that
/// factor times the shortest ring.
///
/// # Errors
/// Not all machines take part.
pub fn hops(network: &Network, request: &Request) -> Result<(Matrix, f64), Error> {
    let (ranks, machines) = (request.ranks, network.rtt.len());
    if ranks != machines {
        return Err(Error::Ranks { ranks, machines });
    }
    let job = Job::new(network, request)?;
    Ok((job.hop_costs().into_owned(), job.ring_scale()))
}

fn given(request: &Request) -> Vec<u32> {
    (0..request.ranks as u32).collect()
}

fn checked<'a>(network: &'a Network, request: &'a Request) -> Result<Job<'a>, Error> {
    let (ranks, machines) = (request.ranks, network.rtt.len());
    if ranks == 0 || ranks > machines {
        return Err(Error::Ranks { ranks, machines });
    }
    if let Some(start) = &request.start {
        check_start(start, ranks, machines)?;
    }
    Job::new(network, request)
}

/// Improves the initial order of a request and returns it with its cost. It computes no bound and no worst order, and
/// therefore takes milliseconds.
///
/// # Errors
/// The request has no initial order, or is not valid.
pub fn mend(network: &Network, request: &Request) -> Result<(Vec<u32>, f64), Error> {
    let start = request.start.as_deref().unwrap_or_default();
    check_start(start, request.ranks, network.rtt.len())?;
    let job = Job::new(network, request)?;
    let mended = job.mend(start, &mut Random::new(request.seed));
    let order = if job.cost(&mended) <= job.cost(start) { mended } else { start.to_vec() };
    let cost = job.cost(&order);
    Ok((order, cost))
}

fn check_start(start: &[u32], ranks: usize, machines: usize) -> Result<(), Error> {
    let mut sorted = start.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let is_order = start.len() == ranks
        && sorted.len() == ranks
        && sorted.iter().all(|&machine| (machine as usize) < machines);
    if is_order { Ok(()) } else { Err(Error::Start { ranks, machines }) }
}

/// Number of ways to assign ranks to machines; `usize::MAX` if it overflows.
fn arrangements(machines: usize, ranks: usize) -> usize {
    (0..ranks).try_fold(1usize, |count, at| count.checked_mul(machines - at)).unwrap_or(usize::MAX)
}
