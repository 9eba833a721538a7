//! Python arguments as the types of the Rust API.

use std::time::Duration;

use hoplite_node::proto::{
    id::{Name, ObjectId},
    meta::{Dtype, Kind, Meta, Op},
};
use pyo3::prelude::*;

use crate::errors;

/// Seconds as Python gives them; none waits for as long as it takes.
pub(crate) fn timeout(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            let said = format!("timeout is {seconds}: give seconds from 0 on, or None to wait");
            Err(errors::raise(py, "InvalidArgument", said))
        }
        // Infinity, or more than the age of the universe.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).ok()),
    }
}

pub(crate) fn object(py: Python<'_>, text: &str) -> PyResult<ObjectId> {
    text.parse().map_err(|error| errors::argument(py, &error))
}

pub(crate) fn objects(py: Python<'_>, texts: &[String]) -> PyResult<Vec<ObjectId>> {
    texts.iter().map(|text| object(py, text)).collect()
}

pub(crate) fn name(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Name>> {
    text.map(|text| text.parse().map_err(|error| errors::argument(py, &error))).transpose()
}

pub(crate) fn op(py: Python<'_>, text: &str) -> PyResult<Op> {
    text.parse().map_err(|error: hoplite_node::proto::meta::UnknownOp| {
        errors::raise(py, "UnknownOp", error.to_string())
    })
}

/// `kind` is `bytes`, or the dtype of an array of `shape`.
pub(crate) fn meta(py: Python<'_>, kind: &str, shape: Vec<u64>, size: u64) -> PyResult<Meta> {
    if kind == "bytes" {
        return Ok(Meta::bytes(size));
    }
    let dtype: Dtype = kind.parse().map_err(|error: hoplite_node::proto::meta::UnknownDtype| {
        errors::raise(py, "UnsupportedDtype", error.to_string())
    })?;
    Meta::array(dtype, shape).filter(|meta| meta.size == size && meta.is_consistent()).ok_or_else(
        || {
            errors::raise(
                py,
                "InvalidArgument",
                format!("{size} bytes are no {kind} array of that shape"),
            )
        },
    )
}

/// The other way round: `kind` and shape of what was got.
pub(crate) fn kind(meta: &Meta) -> (&'static str, &[u64]) {
    match &meta.kind {
        Kind::Bytes => ("bytes", &[]),
        Kind::Array { dtype, shape } => (dtype.name(), shape),
    }
}
