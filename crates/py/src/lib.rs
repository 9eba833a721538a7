//! Registers Hoplite with Python as `hoplite._native`. No logic: arguments in, errors out, the interpreter released.

#![deny(unsafe_code)]

mod arguments;
mod buffer;
mod client;
mod errors;
mod node;
mod wait;

use pyo3::prelude::*;

/// The extension module; `hoplite` is its documented face.
#[pymodule(gil_used = false, name = "_native")]
mod native {
    #[pymodule_export]
    use super::{
        buffer::View,
        client::{Client, connect},
        node::Node,
    };

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
