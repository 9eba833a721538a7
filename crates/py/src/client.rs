//! `_native.Client`: one method for each verb.

use std::{path::PathBuf, sync::RwLock};

use hoplite_node::{Client as Native, Error, Value, proto::limits::INLINE_BYTES_MAX};
use pyo3::prelude::*;

use crate::{
    arguments,
    buffer::{Exported, View},
    errors,
    wait::{aside, wait},
};

/// A user of a node, until it is closed.
#[pyclass(frozen)]
pub(crate) struct Client(RwLock<Option<Native>>);

impl Client {
    pub(crate) fn new(native: Native) -> Self {
        Self(RwLock::new(Some(native)))
    }

    fn open(&self, py: Python<'_>) -> PyResult<Native> {
        let client = self.0.read().ok().and_then(|client| client.clone());
        let client =
            client.ok_or_else(|| errors::raise(py, "NodeDown", "this client is closed".into()))?;
        if client.is_forked() {
            return Err(errors::of(py, &Error::Forked));
        }
        Ok(client)
    }
}

/// Attaches to the node of this host that serves the Unix socket at `path`.
#[pyfunction]
#[pyo3(signature = (path, timeout=None))]
pub(crate) fn connect(py: Python<'_>, path: &str, timeout: Option<f64>) -> PyResult<Client> {
    let timeout = arguments::timeout(py, timeout)?;
    let path = PathBuf::from(path);
    let attached = aside(py, "hoplite-attach", move || Native::attach(&path, timeout))?;
    attached.map(Client::new).map_err(|error| errors::of(py, &error))
}

#[pymethods]
impl Client {
    fn put(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        kind: &str,
        shape: Vec<u64>,
        name: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<String> {
        let client = self.open(py)?;
        let data = Exported::of(data)?;
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let meta = arguments::meta(py, kind, shape, data.bytes().len() as u64)?;
        if meta.size <= INLINE_BYTES_MAX {
            let value =
                Value::with_meta(data.bytes(), meta).map_err(|error| errors::of(py, &error))?;
            return Ok(wait(py, || client.start_put_small(name, &value, timeout))?.to_string());
        }
        let writer = wait(py, || client.start_create(name, meta, timeout))?;
        // Receivers of the object get what is copied while the rest still is.
        let sealing = py.detach(|| {
            writer.write_all(data.bytes())?;
            writer.seal()
        });
        let sealing = sealing.map_err(|error| errors::of(py, &error))?;
        Ok(wait(py, || sealing)?.to_string())
    }

    #[pyo3(name = "get")]
    fn fetch(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<View> {
        let client = self.open(py)?;
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        wait(py, || client.start_get(&id, timeout)).map(View)
    }

    fn reduce(
        &self,
        py: Python<'_>,
        inputs: Vec<String>,
        op: &str,
        count: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<String> {
        let client = self.open(py)?;
        let (inputs, op) = (arguments::objects(py, &inputs)?, arguments::op(py, op)?);
        let timeout = arguments::timeout(py, timeout)?;
        // What is out of range is as wrong as zero, and is said in the same words.
        let count = count.map(|count| u32::try_from(count).unwrap_or(0));
        Ok(wait(py, || client.start_reduce(inputs, op, count, None, timeout))?.to_string())
    }

    fn inputs(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Vec<String>> {
        let client = self.open(py)?;
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let ids = wait(py, || client.start_inputs(&id, timeout))?;
        Ok(ids.iter().map(ToString::to_string).collect())
    }

    fn delete(&self, py: Python<'_>, refs: Vec<String>, timeout: Option<f64>) -> PyResult<()> {
        let client = self.open(py)?;
        let ids = arguments::objects(py, &refs)?;
        let timeout = arguments::timeout(py, timeout)?;
        wait(py, || client.start_delete(ids, timeout))
    }

    fn latest(
        &self,
        py: Python<'_>,
        prefix: &str,
        after: i64,
        timeout: Option<f64>,
    ) -> PyResult<String> {
        let client = self.open(py)?;
        // Every number is newer than one below zero.
        let after = u64::try_from(after).ok();
        let timeout = arguments::timeout(py, timeout)?;
        let name = wait(py, || client.start_latest(prefix, after, timeout))?;
        Ok(name.as_str().to_owned())
    }

    /// How the node is, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let client = self.open(py)?;
        py.detach(|| client.describe()).map_err(|error| errors::of(py, &error))
    }

    /// The copies of the node, as JSON.
    fn objects(&self, py: Python<'_>) -> PyResult<String> {
        let client = self.open(py)?;
        let rows = wait(py, || client.start_objects())?;
        Ok(hoplite_node::describe_objects(&rows))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let client = self.0.write().ok().and_then(|mut client| client.take());
            drop(client);
        });
    }
}
