//! The Python module `hoplite_topology._native`, which binds `hoplite-topology`. It has no logic: it converts arguments
//! and errors, and releases the interpreter.

mod rings;
mod search;
mod topology;

use pyo3::prelude::*;

/// The extension module; the package `hoplite_topology` is its documented interface.
#[pymodule(gil_used = false, name = "_native")]
mod native {
    #[pymodule_export]
    use super::{
        rings::Rings,
        topology::{Topology, collective_pairs, make_data_centre},
    };

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        super::topology::fill_cells(module.py())
    }
}
