//! Errors as the exceptions of `hoplite.errors`, which Python defines: one class for each variant.

use hoplite_node::{Error, proto::error::Error as CallError};
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    types::{PyString, PyType},
};

/// The exception for an error.
pub(crate) fn of(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::Call(call) => match call {
            CallError::Timeout { .. } => "GetTimeout",
            CallError::ObjectLost { .. } | CallError::TooFewInputs { .. } => "ObjectLost",
            CallError::ObjectDeleted { .. } => "ObjectDeleted",
            CallError::NameTaken { .. } => "NameTaken",
            CallError::StoreFull { .. } | CallError::NoMemory { .. } => "StoreFull",
            CallError::ShapeMismatch { .. } => "ShapeMismatch",
            CallError::Unreducible { .. } => "UnsupportedDtype",
            CallError::InvalidArgument(_) => "InvalidArgument",
            CallError::NodeDown(_) => "NodeDown",
            _ => "HopliteError",
        },
        Error::AddressInUse { .. } => "AddressInUse",
        Error::Listen { .. } => "InvalidArgument",
        Error::Join(_) => "JoinError",
        Error::Attach { .. } => "ConnectError",
        Error::Forked => "ForkedClient",
        _ => "HopliteError",
    };
    raise(py, class, error.to_string())
}

/// An argument that can't be meant.
pub(crate) fn argument(py: Python<'_>, error: &dyn std::error::Error) -> PyErr {
    raise(py, "InvalidArgument", error.to_string())
}

/// An exception of the class `name` of `hoplite.errors`.
pub(crate) fn raise(py: Python<'_>, name: &str, said: String) -> PyErr {
    let found = py
        .import("hoplite.errors")
        .and_then(|module| module.getattr(PyString::new(py, name)))
        .and_then(|class| Ok(class.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, (said,)),
        // Without the Python half there is still the message.
        Err(_) => PyRuntimeError::new_err(said),
    }
}
