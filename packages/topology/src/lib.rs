//! Registers `hoplite-topology` with Python as `hoplite_topology._native`. No logic: arguments in, errors out, the
//! interpreter released.

mod rings;
mod search;
mod topology;

use pyo3::prelude::*;

/// The extension module; `hoplite_topology` is its documented face.
#[pymodule(gil_used = false, name = "_native")]
mod native {
    #[pymodule_export]
    use super::{
        rings::Rings,
        topology::{Topology, collective_pairs, make_data_centre},
    };
}
