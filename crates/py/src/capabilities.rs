//! Capabilities for `hoplite.capabilities`: texts in, texts out, times in seconds since 1970.

use hoplite_node::{
    capability::{self, Bounds},
    proto::id::BadRef,
};
use pyo3::prelude::*;

use crate::errors;

/// Makes a capability of a cluster's token.
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

/// Makes a capability that allows less.
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

/// The prefix, the verbs and the end that a capability says.
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
