//! Converts errors to the exceptions of `hoplite.errors`, which Python defines.

use hoplite::ErrorKind;
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyType},
};

/// Returns the exception for an error.
pub(crate) fn of(py: Python<'_>, error: impl Into<hoplite::Error>) -> PyErr {
    let error = error.into();
    let class = match error.kind() {
        ErrorKind::HostError | ErrorKind::Internal => "HopliteError",
        kind => kind.name(),
    };
    raise(py, class, error.to_string())
}

/// Returns `InvalidArgument` with the text of `error`.
pub(crate) fn argument(py: Python<'_>, error: &dyn std::error::Error) -> PyErr {
    raise(py, "InvalidArgument", error.to_string())
}

/// Exception classes by name, loaded when this module is imported. During interpreter shutdown nothing can be imported
/// and modules are emptied, but finalizers may still need `NodeDown`.
static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// Loads the classes of `hoplite.errors`.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    let classes = py.import("hoplite.errors")?.dict().copy()?;
    CLASSES.get_or_init(py, || classes.unbind());
    Ok(())
}

/// Returns an exception of the class `name` of `hoplite.errors`.
pub(crate) fn raise(py: Python<'_>, name: &str, message: String) -> PyErr {
    let class = CLASSES.get(py).and_then(|classes| classes.bind(py).get_item(name).ok().flatten());
    match class.and_then(|class| class.cast_into::<PyType>().ok()) {
        Some(class) => PyErr::from_type(class, (message,)),
        // If `hoplite.errors` is not loaded, the message still gets through.
        None => PyRuntimeError::new_err(message),
    }
}
