//! Creates and reads capabilities for `hoplite.capabilities`, as text; times are seconds since 1970.

use hoplite_node::{
    capability::{self, Bounds},
    proto::id::BadRef,
};
use pyo3::prelude::*;

use crate::errors;

/// Creates a capability from a cluster token.
#[pyfunction]
#[pyo3(signature = (token, prefix, verbs=None, until=None))]
pub(crate) fn grant_capability(
    py: Python<'_>,
    token: &str,
    prefix: String,
    verbs: Option<Vec<String>>,
    until: Option<u64>,
) -> PyResult<String> {
    told(py, capability::grant(token, &Bounds { prefix: Some(prefix), verbs, until }))
}

/// Creates a capability with fewer rights from another one.
#[pyfunction]
#[pyo3(signature = (text, prefix=None, verbs=None, until=None))]
pub(crate) fn narrow_capability(
    py: Python<'_>,
    text: &str,
    prefix: Option<String>,
    verbs: Option<Vec<String>>,
    until: Option<u64>,
) -> PyResult<String> {
    told(py, capability::narrow(text, &Bounds { prefix, verbs, until }))
}

/// Returns the prefix, the verbs and the expiry of a capability.
#[pyfunction]
pub(crate) fn read_capability(
    py: Python<'_>,
    text: &str,
) -> PyResult<(String, Vec<String>, Option<u64>)> {
    let read = told(py, capability::read(text))?;
    let verbs = read.verbs().iter().map(ToString::to_string).collect();
    Ok((read.prefix().into(), verbs, read.until()))
}

fn told<T>(py: Python<'_>, result: Result<T, BadRef>) -> PyResult<T> {
    result.map_err(|error| errors::argument(py, &error))
}
