//! Converts Python arguments to the types of the Rust API.

use std::{borrow::Cow, time::Duration};

use hoplite_node::proto::{
    id::{Name, ObjectId},
    meta::{Digest, Dtype, Form, Kind, Meta, Op},
    place::{Group, Place},
};
use pyo3::{prelude::*, types::PyString};

use crate::errors;

/// Converts seconds to a timeout; `None` means no timeout.
pub(crate) fn timeout(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            let message = format!(
                "timeout is {seconds}: pass at least 0 seconds, or None to wait without a limit"
            );
            Err(errors::raise(py, "InvalidArgument", message))
        }
        // Infinity, or too large for a `Duration`: no timeout.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).ok()),
    }
}

/// Converts seconds to a time to live, counted from when the object is complete. `None` means until it is deleted.
pub(crate) fn ttl(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else { return Ok(None) };
    let ttl = Duration::try_from_secs_f64(seconds).ok().filter(|ttl| !ttl.is_zero());
    ttl.map(Some).ok_or_else(|| {
        let message = format!("ttl is {seconds}: pass more than 0 seconds, or None");
        errors::raise(py, "InvalidArgument", message)
    })
}

pub(crate) fn object(py: Python<'_>, text: &str) -> PyResult<ObjectId> {
    text.parse().map_err(|error| errors::argument(py, &error))
}

pub(crate) fn objects(py: Python<'_>, texts: &[String]) -> PyResult<Vec<ObjectId>> {
    texts.iter().map(|text| object(py, text)).collect()
}

/// Converts the location of a node: each group's name, outermost first, and how many transfers its link carries at
/// once.
pub(crate) fn place(py: Python<'_>, groups: Option<Vec<(String, u8)>>) -> PyResult<Option<Place>> {
    let Some(groups) = groups else { return Ok(None) };
    let groups: Vec<Group> =
        groups.into_iter().map(|(label, carries)| Group { label, carries }).collect();
    Place::new(&groups).map(Some).map_err(|error| errors::argument(py, &error))
}

/// Parses the ref of a new object: a name, or a reserved ref.
pub(crate) fn name(py: Python<'_>, text: Option<&str>) -> PyResult<Option<ObjectId>> {
    text.map(|text| object(py, text)).transpose()
}

/// Parses a name to reserve.
pub(crate) fn reservable(py: Python<'_>, text: Option<&str>) -> PyResult<Option<Name>> {
    text.map(|text| text.parse().map_err(|error| errors::argument(py, &error))).transpose()
}

/// Raises `InvalidArgument` if `text` is not a valid name or ref. Callers check before they create anything.
#[pyfunction]
pub(crate) fn check_name(py: Python<'_>, text: &str) -> PyResult<()> {
    name(py, Some(text)).map(drop)
}

/// Whether a ref is one of a slot.
#[pyfunction]
pub(crate) fn is_slot(text: &str) -> bool {
    text.parse().is_ok_and(|id: ObjectId| id.is_slot())
}

/// Returns the bytes per element of a dtype, or `None` if the dtype is unknown.
#[pyfunction]
pub(crate) fn item_bytes(dtype: &Bound<'_, PyString>) -> Option<u64> {
    // Text that is not valid Unicode cannot be a dtype either.
    dtype.to_string_lossy().parse().ok().map(Dtype::size)
}

pub(crate) fn op(py: Python<'_>, text: &str) -> PyResult<Op> {
    text.parse().map_err(|error: hoplite_node::proto::meta::UnknownOp| {
        errors::raise(py, "UnknownOp", error.to_string())
    })
}

/// Metadata of a value as `hoplite.values.encode` returns it: `kind` is `bytes`, or the dtype of an array of `shape`.
#[derive(FromPyObject)]
pub(crate) struct EncodedValue {
    kind: String,
    shape: Vec<u64>,
    form: String,
    pub(crate) nbytes: u64,
    digest: Option<[u8; 32]>,
}

impl EncodedValue {
    pub(crate) fn meta(self, py: Python<'_>) -> PyResult<Meta> {
        let form: Form = self.form.parse().map_err(|error| {
            let error: hoplite_node::proto::meta::UnknownForm = error;
            errors::argument(py, &error)
        })?;
        let meta = if self.kind == "bytes" {
            Some(Meta::bytes(self.nbytes))
        } else {
            let dtype: Dtype = self.kind.parse().map_err(|error| {
                let error: hoplite_node::proto::meta::UnknownDtype = error;
                errors::raise(py, "UnsupportedDtype", error.to_string())
            })?;
            Meta::array(dtype, self.shape).filter(|meta| meta.size == self.nbytes)
        };
        let meta = meta.map(|meta| Meta {
            digest: self.digest.map(|digest| Box::new(Digest(digest))),
            ..meta.with_form(form)
        });
        let meta = meta.filter(Meta::is_consistent);
        meta.ok_or_else(|| {
            let message =
                format!("{} bytes do not match {} and the given shape", self.nbytes, self.kind);
            errors::raise(py, "InvalidArgument", message)
        })
    }
}

/// Memory of the caller as `hoplite.values.writable` returns it.
#[derive(FromPyObject)]
pub(crate) struct Memory<'py> {
    pub(crate) data: Bound<'py, PyAny>,
    /// `bytes`, which takes any object of its size, or the dtype of an array of `shape`.
    pub(crate) kind: String,
    pub(crate) shape: Vec<u64>,
}

/// Uses the cells of the names of fields; see [`crate::cells`].
pub(crate) fn fill_cells(py: Python<'_>) -> PyResult<()> {
    let example = py.eval(
        c"type('Example', (), dict(kind='', shape=(), form='', nbytes=0, digest=None, data=None))",
        None,
        None,
    )?;
    example.extract::<EncodedValue>()?;
    example.extract::<Memory<'_>>()?;
    Ok(())
}

/// Returns kind and shape of an object, the inverse of [`EncodedValue::meta`].
pub(crate) fn kind(meta: &Meta) -> (Cow<'static, str>, &[u64]) {
    match &meta.kind {
        Kind::Bytes => ("bytes".into(), &[]),
        Kind::Array { dtype, shape } if dtype.unit().is_none() => (dtype.name().into(), shape),
        Kind::Array { dtype, shape } => (dtype.to_string().into(), shape),
    }
}
