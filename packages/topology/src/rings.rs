//! Proofs for rings, for `hoplite_topology.linear`, which solves linear programs between the calls.

use hoplite_topology::{
    cuts::{self, Cut},
    duals::{self, Duals},
    matrix::Matrix,
    random::Random,
    rings,
    tour::Graph,
};
use pyo3::prelude::*;

use crate::search::{Clock, check_order, invalid};

/// A set of machines that every ring enters, and its teeth.
type Set = (Vec<u32>, Vec<(u32, u32)>);
/// A set with its price.
type Priced = (Vec<u32>, Vec<(u32, u32)>, f64);
/// Edges with their reduced costs: the cost minus the prices on the edge.
type Beyond = Vec<(f64, u32, u32)>;

/// The cost of each hop in a ring of all machines.
#[pyclass(frozen, module = "hoplite_topology._native")]
pub(crate) struct Rings {
    hops: Matrix,
    scale: f64,
}

impl Rings {
    pub(crate) fn new(hops: Matrix, scale: f64) -> Self {
        Self { hops, scale }
    }

    fn check(&self, edges: &[(u32, u32)]) -> PyResult<()> {
        match edges.iter().find(|edge| edge.0 == edge.1 || self.is_none(edge.0.max(edge.1))) {
            Some((a, b)) => Err(invalid(format!("machines {a} and {b} are not a hop"))),
            None => Ok(()),
        }
    }

    fn is_none(&self, machine: u32) -> bool {
        machine as usize >= self.hops.len()
    }

    fn graph<'a>(&'a self, near: &'a [Vec<u32>]) -> Graph<'a> {
        Graph { len: self.hops.len(), costs: self.hops.cells(), near }
    }
}

#[pymethods]
impl Rings {
    /// The factor of the sum of the hops in the cost of a ring.
    #[getter]
    fn scale(&self) -> f64 {
        self.scale
    }

    /// The hops from each machine to its `count` nearest ones, without duplicates.
    fn near(&self, py: Python<'_>, count: usize) -> Vec<(u32, u32)> {
        py.detach(|| {
            let near = self.hops.nearest(count).into_iter().zip(0u32..);
            let mut edges: Vec<(u32, u32)> = near
                .flat_map(|(near, a)| near.into_iter().map(move |b| (a.min(b), a.max(b))))
                .collect();
            edges.sort_unstable();
            edges.dedup();
            edges
        })
    }

    /// The cost of each hop.
    fn costs(&self, edges: Vec<(u32, u32)>) -> PyResult<Vec<f64>> {
        self.check(&edges)?;
        Ok(edges.iter().map(|&(a, b)| self.hops.at(a as usize, b as usize)).collect())
    }

    /// The sum of the hops of an order.
    fn length(&self, order: Vec<u32>) -> PyResult<f64> {
        check_order(&order, self.hops.len())?;
        Ok(self.graph(&[]).cost(&order))
    }

    /// The sets with teeth that fractional hops violate.
    fn cuts(&self, py: Python<'_>, edges: Vec<(u32, u32)>, parts: Vec<f64>) -> PyResult<Vec<Set>> {
        self.check(&edges)?;
        if edges.len() != parts.len() {
            return Err(invalid("parts must have one value per hop"));
        }
        let found = py.detach(|| cuts::broken(self.hops.len(), &edges, &parts));
        Ok(found.iter().map(|cut| (cut.inside().to_vec(), cut.teeth().to_vec())).collect())
    }

    /// A lower bound for all rings with given hops, and the hops that are relevant to it.
    ///
    /// `fixed` has hops that are used or not used. If `known` is the cost of a ring, the result contains all hops that
    /// a shorter ring can have.
    fn bound(
        &self,
        py: Python<'_>,
        nodes: Vec<f64>,
        cuts: Vec<Priced>,
        fixed: Vec<(u32, u32, bool)>,
        among: Option<Vec<(u32, u32)>>,
        known: Option<f64>,
    ) -> PyResult<(f64, Beyond)> {
        let ends: Vec<(u32, u32)> = fixed.iter().map(|&(a, b, _)| (a, b)).collect();
        self.check(&ends)?;
        self.check(among.as_deref().unwrap_or_default())?;
        let len = self.hops.len();
        if nodes.len() != len {
            return Err(invalid("nodes must have one price per machine"));
        }
        let priced = |(inside, teeth, price)| Some((Cut::new(len, inside, teeth)?, price));
        let Some(cuts) = cuts.into_iter().map(priced).collect::<Option<Vec<_>>>() else {
            return Err(invalid("some ring violates one of the cuts"));
        };
        let found = py.detach(|| {
            let duals =
                Duals { nodes: &nodes, cuts: &cuts, fixed: &fixed, among: among.as_deref() };
            duals::bound(&self.hops, &duals, known)
        });
        Ok((found.bound, found.edges))
    }

    /// Searches a shorter order of the given hops and their reduced costs, within a time limit in seconds.
    fn shorten(
        &self,
        py: Python<'_>,
        start: (Vec<u32>, Vec<f64>),
        edges: Beyond,
        kicks: u64,
        seconds: f64,
        seed: u64,
    ) -> PyResult<Vec<u32>> {
        let (order, prices) = start;
        check_order(&order, self.hops.len())?;
        self.check(&edges.iter().map(|&(_, a, b)| (a, b)).collect::<Vec<_>>())?;
        if order.len() != self.hops.len() || prices.len() != order.len() {
            return Err(invalid(
                "the order must contain every machine, with one price per machine",
            ));
        }
        let (found, clock) = py.detach(|| {
            let clock = Clock::new(seconds);
            let found = rings::shorten_among(
                &self.hops,
                (&order, &prices),
                &edges,
                kicks,
                &mut Random::new(seed),
                &|| clock.is_over(),
            );
            (found, clock)
        });
        clock.read()?;
        Ok(found)
    }
}
