//! Exposes Hoplite to Python as `hoplite._native`.
//!
//! It converts arguments and errors and releases the interpreter lock. It contains no logic.

#![deny(unsafe_code)]

mod arguments;
mod buffer;
mod capabilities;
mod cells;
mod certificates;
mod client;
mod errors;
mod forks;
mod log;
mod node;
mod verb;
mod wait;

use pyo3::{prelude::*, types::PyTuple};

/// The extension module. Its public API is `hoplite`.
#[pymodule(gil_used = false, name = "_native")]
mod native {
    #[pymodule_export]
    use super::{
        arguments::{check_name, is_slot, item_bytes},
        buffer::{Space, View},
        capabilities::{grant_capability, narrow_capability, read_capability},
        certificates::{issue_certificate, make_authority, revoke_certificates},
        client::{Client, connect},
        forks::{after_fork_in_child, after_fork_in_parent, before_fork},
        log::log_to_stderr,
        node::{Node, check_peer},
        wait::{Inbox, Pending},
    };

    #[pymodule_init]
    fn init(module: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use hoplite_node::proto::{
            meta::{Dtype, Form, Op},
            narrow::Narrow,
        };

        use super::{PyModuleMethods, PyTuple};
        super::errors::load(module.py())?;
        super::cells::fill(module.py())?;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
        module.add("INLINE_BYTES_MAX", hoplite_node::proto::limits::INLINE_BYTES_MAX)?;
        module.add("COPY_OVERHEAD_BYTES", hoplite_node::proto::table::COPY_OVERHEAD_BYTES)?;
        let dtypes: Vec<_> = Dtype::all().map(Dtype::name).collect();
        module.add("DTYPES", PyTuple::new(module.py(), dtypes)?)?;
        let narrow = Narrow::ALL.iter().map(|narrow| narrow.name());
        module.add("NARROW_DTYPES", PyTuple::new(module.py(), narrow)?)?;
        module
            .add("FORMS", PyTuple::new(module.py(), Form::ALL.iter().map(|form| form.name()))?)?;
        module.add("OPS", PyTuple::new(module.py(), Op::ALL.iter().map(|op| op.name()))?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
