//! Binds `hoplite-topology`, which assigns ranks to machines.

use hoplite_topology::{
    clusters, cost,
    fabric::{Fabric, Links},
    matrix::Matrix,
    network::{Model, Network},
    plan::{self, Method, Request},
    schedule::{Algorithm, Halving, Schedule, double_tree_parents},
    synthetic::{self, DataCentre},
    why,
};
use pyo3::prelude::*;

use crate::{
    rings::Rings,
    search::{Clock, check_order, invalid},
};

/// Machines, the round-trip times between them, and their links.
#[pyclass(frozen, module = "hoplite_topology._native")]
pub(crate) struct Topology(Network);

/// An algorithm in Python's representation.
#[derive(FromPyObject)]
pub(crate) struct Wanted {
    algorithm: String,
    library: String,
    base: usize,
    bytes: f64,
}

impl Wanted {
    fn algorithm(&self) -> PyResult<Algorithm> {
        Ok(match (self.algorithm.as_str(), self.library.as_str()) {
            ("ring", _) => Algorithm::Ring,
            ("double-tree", _) => Algorithm::DoubleTree,
            ("bcube", _) => Algorithm::BCube { base: self.base },
            ("halving-doubling", "mpi") => Algorithm::HalvingDoubling(Halving::Mpi),
            ("halving-doubling", "gloo") => Algorithm::HalvingDoubling(Halving::Gloo),
            ("halving-doubling", "lightgbm") => Algorithm::HalvingDoubling(Halving::LightGbm),
            (name, library) => {
                return Err(invalid(format!("no algorithm {name} of {library}")));
            }
        })
    }
}

/// The options of a search in Python's representation.
#[derive(FromPyObject)]
pub(crate) struct Searched {
    model: String,
    ranks: usize,
    seed: u64,
    seconds: f64,
    seconds_max: f64,
    gap: f64,
    method: String,
    start: Option<Vec<u32>>,
}

/// Uses the cells in which PyO3 keeps the names of fields and a type. It fills them on first use: a child that is
/// forked while a thread of its parent does so would wait forever for that thread.
pub(crate) fn fill_cells(py: Python<'_>) -> PyResult<()> {
    let example = c"type('Example', (), dict(
        algorithm='', library='', base=0, bytes=0.0, model='', ranks=0, seed=0, seconds=0.0,
        seconds_max=0.0, gap=0.0, method='', start=None))";
    let example = py.eval(example, None, None)?;
    example.extract::<Wanted>()?;
    example.extract::<Searched>()?;
    drop(wrap_pyfunction!(collective_pairs, py)?.call1((py.None(),)));
    Ok(())
}

/// An order with its costs and bound.
#[derive(IntoPyObject)]
pub(crate) struct Found {
    order: Vec<u32>,
    cost: f64,
    cost_given: f64,
    cost_worst: f64,
    bound: f64,
    is_exhaustive: bool,
    is_cut: bool,
    seconds: f64,
}

#[pymethods]
impl Topology {
    #[new]
    fn new(
        rtt: Vec<f64>,
        machines: usize,
        cluster: Vec<u32>,
        nic: f64,
        uplinks: Vec<f64>,
    ) -> PyResult<Self> {
        let rtt = Matrix::new(machines, rtt).map_err(invalid)?;
        let is_whole = cluster.len() == machines && uplinks.len() >= clusters::count(&cluster);
        if !is_whole || !uplinks.iter().chain([&nic]).all(|&rate| rate > 0.0) {
            return Err(invalid("each machine needs a cluster, and each link a rate above 0"));
        }
        Ok(Self(Network { rtt, cluster, nic, uplinks }))
    }

    /// The levels of clusters separated by gaps between the times, the smallest clusters first.
    fn clusters_by_gaps(&self, py: Python<'_>) -> Vec<Vec<u32>> {
        py.detach(|| clusters::by_gaps(&self.0.rtt))
    }

    /// The clusters found by k-means.
    fn clusters_by_means(&self, py: Python<'_>, seed: u64) -> Vec<u32> {
        py.detach(|| clusters::by_means(&self.0.rtt, seed))
    }

    /// Searches an order with low cost.
    fn plan(&self, py: Python<'_>, wanted: Wanted, search: Searched) -> PyResult<Found> {
        let request = Request {
            model: model(&search.model)?,
            algorithm: wanted.algorithm()?,
            ranks: search.ranks,
            bytes: wanted.bytes,
            seed: search.seed,
            seconds: search.seconds,
            gap: search.gap,
            method: if search.method == "paper" { Method::Paper } else { Method::Search },
            start: search.start,
        };
        let (found, clock) = py.detach(|| {
            let clock = Clock::new(search.seconds_max);
            let found = plan::plan(&self.0, &request, &|| clock.is_over());
            (found, clock)
        });
        let (seconds, is_cut) = clock.read()?;
        let found = found.map_err(invalid)?;
        Ok(Found {
            order: found.order,
            cost: found.cost,
            cost_given: found.cost_given,
            cost_worst: found.cost_worst,
            bound: found.bound,
            is_exhaustive: found.is_exhaustive,
            is_cut,
            seconds,
        })
    }

    /// The hops of rings of all machines, for a proof.
    fn rings(&self, wanted: Wanted, name: &str) -> PyResult<Rings> {
        let request = Request {
            model: model(name)?,
            algorithm: wanted.algorithm()?,
            ranks: self.0.rtt.len(),
            bytes: wanted.bytes,
            seed: 0,
            seconds: 0.0,
            gap: 0.0,
            method: Method::Search,
            start: None,
        };
        let (hops, scale) = plan::hops(&self.0, &request).map_err(invalid)?;
        Ok(Rings::new(hops, scale))
    }

    /// The cost of an order in a model.
    fn cost(&self, wanted: Wanted, name: &str, order: Vec<u32>) -> PyResult<f64> {
        self.check(&order)?;
        let (model, algorithm) = (model(name)?, wanted.algorithm()?);
        cost::cost(&self.0, model, algorithm, &order, wanted.bytes).map_err(invalid)
    }

    /// Explains why the second order is better than the first.
    fn reason(
        &self,
        wanted: Wanted,
        cluster: Vec<u32>,
        before: Vec<u32>,
        after: Vec<u32>,
    ) -> PyResult<String> {
        self.check(&before)?;
        self.check(&after)?;
        if cluster.len() != self.0.rtt.len() || before.len() != after.len() {
            return Err(invalid(
                "each machine needs a cluster, and both orders the same number of ranks",
            ));
        }
        let crossings =
            why::crossings(wanted.algorithm()?, &cluster, &before, &after).map_err(invalid)?;
        Ok(why::reason(&cluster, crossings))
    }

    /// The time of each order in microseconds, in a simulated fabric whose racks are the clusters.
    ///
    /// `links` has the number of uplinks per rack, the rate of each, and the maximum share of their background load.
    fn simulate(
        &self,
        py: Python<'_>,
        wanted: Wanted,
        links: (usize, f64, f64),
        seed: u64,
        orders: Vec<Vec<u32>>,
    ) -> PyResult<Vec<f64>> {
        orders.iter().try_for_each(|order| self.check(order))?;
        let (uplinks, uplink, background) = links;
        if uplinks == 0 || uplink.is_nan() || uplink <= 0.0 || !(0.0..1.0).contains(&background) {
            return Err(invalid(
                "each rack needs an uplink with a rate above 0, and a background below 1",
            ));
        }
        let algorithm = wanted.algorithm()?;
        let links = Links { nic: self.0.nic, uplinks, uplink, background };
        let rack = clusters::numbered(&self.0.cluster);
        let fabric = Fabric::new(&links, rack, self.0.rtt.clone(), seed);
        let mut times = Vec::with_capacity(orders.len());
        for order in orders {
            py.check_signals()?;
            let time = py.detach(|| match algorithm {
                Algorithm::Ring => Ok(fabric.ring_us(&order, wanted.bytes)),
                _ => Schedule::new(algorithm, order.len())
                    .map(|schedule| fabric.rounds_us(&schedule, &order, wanted.bytes)),
            });
            times.push(time.map_err(invalid)?);
        }
        Ok(times)
    }
}

impl Topology {
    fn check(&self, order: &[u32]) -> PyResult<()> {
        check_order(order, self.0.rtt.len())
    }
}

/// The round-trip times of a generated data center, row by row, and the rack of each machine.
#[pyfunction]
pub(crate) fn make_data_centre(machines: usize, seed: u64) -> PyResult<(Vec<f64>, Vec<u32>)> {
    if machines == 0 {
        return Err(invalid("a data center needs at least one machine"));
    }
    let (matrix, racks) =
        synthetic::data_centre(&DataCentre { machines, ..DataCentre::default() }, seed);
    Ok((matrix.cells().to_vec(), racks))
}

/// The pairs of ranks of each kind of round that counts; for trees, the pairs of rank and parent of each tree.
#[pyfunction]
pub(crate) fn collective_pairs(wanted: Wanted, ranks: usize) -> PyResult<Vec<Vec<(u32, u32)>>> {
    Ok(match wanted.algorithm()? {
        Algorithm::Ring => {
            vec![(0..ranks as u32).map(|rank| (rank, (rank + 1) % ranks as u32)).collect()]
        }
        Algorithm::DoubleTree => double_tree_parents(ranks)
            .iter()
            .map(|tree| {
                let pairs = tree.iter().enumerate();
                pairs.filter_map(|(rank, up)| up.map(|up| (rank as u32, up as u32))).collect()
            })
            .collect(),
        algorithm => {
            let schedule = Schedule::new(algorithm, ranks).map_err(invalid)?;
            cost::lanes(&schedule, wanted.bytes).into_iter().map(|lane| lane.pairs).collect()
        }
    })
}

fn model(name: &str) -> PyResult<Model> {
    match name {
        "paper" => Ok(Model::Paper),
        "alpha-beta" => Ok(Model::AlphaBeta),
        "congestion" => Ok(Model::Congestion),
        _ => Err(invalid(format!("no cost model {name}"))),
    }
}
