//! Implements `_native.Client`: one method per verb.

use std::{
    borrow::Cow,
    os::fd::{IntoRawFd, RawFd},
    path::PathBuf,
    sync::{Mutex, RwLock},
    time::Instant,
};

use hoplite_node::{
    Client as Native, Error, Value, address_of,
    proto::{
        error::Quoted,
        id::{BadRef, NodeId, ObjectId},
        limits::INLINE_BYTES_MAX,
        message::Holding,
        request::Location,
        selection::Selection,
    },
};
use pyo3::{
    prelude::*,
    types::{PyList, PyString},
};

use crate::{
    arguments::{self, EncodedValue},
    buffer::{Exported, Growing, Space, View},
    errors,
    wait::{Pending, aside, wait, wait_saying},
};

/// A client of a node, until it is closed.
#[pyclass(frozen)]
pub(crate) struct Client(RwLock<Option<Native>>);

impl Client {
    pub(crate) fn new(native: Native) -> Self {
        Self(RwLock::new(Some(native)))
    }

    fn open(&self, py: Python<'_>) -> PyResult<Native> {
        let client = self.0.read().ok().and_then(|client| client.clone());
        let client = client.ok_or_else(|| errors::of(py, &Error::Closed))?;
        if client.is_forked() {
            return Err(errors::of(py, &Error::Forked));
        }
        Ok(client)
    }
}

/// Attaches to the node of this host at the Unix socket `path`. A capability, if given, restricts the client's
/// requests.
#[pyfunction]
#[pyo3(signature = (path, timeout=None, capability=None))]
pub(crate) fn connect(
    py: Python<'_>,
    path: &str,
    timeout: Option<f64>,
    capability: Option<String>,
) -> PyResult<Client> {
    let timeout = arguments::timeout(py, timeout)?;
    let path = PathBuf::from(path);
    let attached = aside(py, "hoplite-attach", move || match capability {
        None => Native::attach(&path, timeout),
        Some(text) => Native::attach_with_capability(&path, text, timeout),
    })?;
    attached.map(Client::new).map_err(|error| errors::of(py, &error))
}

/// Pins everything that the clients of this process read, before a fork. Returns descriptors; the pins end when no
/// process has them open.
#[pyfunction]
pub(crate) fn hold_all(py: Python<'_>) -> Vec<RawFd> {
    py.detach(Native::pin_for_fork).into_iter().map(IntoRawFd::into_raw_fd).collect()
}

/// Computes the digest of the concatenation of `parts`.
#[pyfunction]
pub(crate) fn digest(py: Python<'_>, parts: Vec<Bound<'_, PyAny>>) -> PyResult<[u8; 32]> {
    let parts = Exported::of_all(&parts)?;
    Ok(py.detach(|| {
        let bytes: Vec<&[u8]> = parts.iter().map(Exported::bytes).collect();
        hoplite_node::digest(&bytes).0
    }))
}

#[pymethods]
impl Client {
    /// Whether the node is gone; true if the client is closed.
    fn is_node_gone(&self) -> bool {
        let client = self.0.read().ok().and_then(|client| client.clone());
        client.is_none_or(|client| client.is_closed())
    }

    /// Whether all members of the node's cluster are authenticated over encrypted connections, or the node does not
    /// listen. False if the client is closed.
    fn is_authenticated(&self) -> bool {
        let client = self.0.read().ok().and_then(|client| client.clone());
        client.is_some_and(|client| client.is_authenticated())
    }

    /// Puts a value with the metadata `what`, and waits until it is stored.
    fn put(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        parts: Vec<Bound<'_, PyAny>>,
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<String> {
        let client = self.open(py)?;
        let parts = Exported::of_all(&parts)?;
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let ttl = arguments::ttl(py, ttl)?;
        let meta = what.meta(py)?;
        if meta.size <= INLINE_BYTES_MAX {
            let bytes = joined(&parts);
            let value = Value::with_meta(&bytes, meta).map_err(|error| errors::of(py, &error))?;
            return Ok(wait(py, || client.start_put_small(name, &value, ttl, timeout))?.to_string());
        }
        let begun = Instant::now();
        let writer = wait(py, || client.start_create(name, meta, ttl, timeout))?;
        // Other hosts can receive the object while it is being copied.
        let sealing = py.detach(|| {
            let bytes: Vec<&[u8]> = parts.iter().map(Exported::bytes).collect();
            writer.write_parts(&bytes)?;
            writer.seal(timeout.map(|timeout| timeout.saturating_sub(begun.elapsed())))
        });
        let sealing = sealing.map_err(|error| errors::of(py, &error))?;
        Ok(wait(py, || sealing)?.to_string())
    }

    /// Starts a put of a value of at most `INLINE_BYTES_MAX` bytes.
    fn start_put(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        parts: Vec<Bound<'_, PyAny>>,
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let parts = Exported::of_all(&parts)?;
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let ttl = arguments::ttl(py, ttl)?;
        let bytes = joined(&parts);
        let value = Value::with_meta(&bytes, what.meta(py)?);
        let value = value.map_err(|error| errors::of(py, &error))?;
        let waiting = py.detach(|| client.start_put_small(name, &value, ttl, timeout));
        Ok(Pending::new(waiting, text))
    }

    /// Starts a reservation of a ref.
    fn start_reserve(&self, py: Python<'_>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let waiting = py.detach(|| client.start_reserve());
        Ok(Pending::new(waiting, text))
    }

    /// Starts to allocate memory for a value of more than `INLINE_BYTES_MAX` bytes.
    fn start_create(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let ttl = arguments::ttl(py, ttl)?;
        let meta = what.meta(py)?;
        let waiting = py.detach(|| client.start_create(name, meta, ttl, timeout));
        Ok(Pending::new(waiting, |py, writer| Ok(Py::new(py, Space::new(writer))?.into_any())))
    }

    #[pyo3(name = "get")]
    fn fetch(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<View> {
        let client = self.open(py)?;
        let id = arguments::object(py, r#ref)?;
        let limit = arguments::timeout(py, timeout)?;
        let about = limit.is_none().then_some((&client, &id));
        wait_saying(py, || client.start_get(&id, limit), about).map(View)
    }

    fn start_get(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_get(&id, timeout));
        let then = |py: Python<'_>, view| Ok(Py::new(py, View(view))?.into_any());
        Ok(match timeout {
            None => Pending::about(client, id, waiting, then),
            Some(_) => Pending::new(waiting, then),
        })
    }

    /// Starts a get of the rows or bytes of an object from `start` to `stop`, as in a Python slice with step 1.
    #[pyo3(signature = (r#ref, start, stop, timeout))]
    fn start_get_range(
        &self,
        py: Python<'_>,
        r#ref: &str,
        start: Option<i64>,
        stop: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let (selection, timeout) = (Selection { start, stop }, arguments::timeout(py, timeout)?);
        let waiting = py.detach(|| client.start_get_range(&id, selection, timeout));
        let then = |py: Python<'_>, view| Ok(Py::new(py, View(view))?.into_any());
        Ok(match timeout {
            None => Pending::about(client, id, waiting, then),
            Some(_) => Pending::new(waiting, then),
        })
    }

    /// Starts to wait for the memory of an object that a concurrent get transfers to this host.
    fn start_follow(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let limit = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_follow(&id, limit));
        let then = |py: Python<'_>, growing| match growing {
            Some(growing) => Ok(Py::new(py, Growing(Mutex::new(Some(growing))))?.into_any()),
            None => Ok(py.None()),
        };
        Ok(match limit {
            None => Pending::about(client, id, waiting, then),
            Some(_) => Pending::new(waiting, then),
        })
    }

    fn start_wait(
        &self,
        py: Python<'_>,
        refs: Vec<String>,
        count: u32,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let ids = arguments::objects(py, &refs)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_wait(ids, count, timeout));
        Ok(Pending::new(waiting, |py, ready| Ok(PyList::new(py, ready)?.into_any().unbind())))
    }

    #[allow(clippy::too_many_arguments)]
    fn start_reduce(
        &self,
        py: Python<'_>,
        inputs: Vec<String>,
        op: &str,
        count: Option<u32>,
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let (inputs, op) = (arguments::objects(py, &inputs)?, arguments::op(py, op)?);
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let ttl = arguments::ttl(py, ttl)?;
        let waiting = py.detach(|| client.start_reduce(inputs, op, count, name, ttl, timeout));
        Ok(Pending::new(waiting, text))
    }

    fn start_inputs(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_inputs(&id, timeout));
        Ok(Pending::new(waiting, texts))
    }

    /// Starts a lookup of the lost inputs of a reduce.
    fn start_lost(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_lost_inputs(&id, timeout));
        Ok(Pending::new(waiting, texts))
    }

    fn start_delete(
        &self,
        py: Python<'_>,
        refs: Vec<String>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let ids = arguments::objects(py, &refs)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_delete(ids, timeout));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Starts to delete all versions older than `name` except the newest `retain - 1`.
    fn start_prune(
        &self,
        py: Python<'_>,
        name: &str,
        retain: u64,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let name = name.parse().map_err(|error: BadRef| errors::argument(py, &error))?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_prune(name, retain, timeout));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    fn start_latest(
        &self,
        py: Python<'_>,
        prefix: &str,
        after: i64,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        // A negative number means any version.
        let after = u64::try_from(after).ok();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_latest(prefix, after, timeout));
        Ok(Pending::new(waiting, |py, name| {
            Ok(PyString::new(py, name.as_str()).into_any().unbind())
        }))
    }

    /// Starts a lookup of the nodes that hold an object. With `known`, pairs of node and whether its copy is complete,
    /// the reply waits until the list differs from it.
    fn start_locations(
        &self,
        py: Python<'_>,
        r#ref: &str,
        known: Option<Vec<(String, bool)>>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let known = known.map(|known| {
            let holding = |(node, complete): (String, bool)| {
                let node = NodeId(u64::from_str_radix(&node, 16).ok()?);
                Some(Holding { node, complete })
            };
            known.into_iter().filter_map(holding).collect()
        });
        let waiting = py.detach(|| client.start_locations(&id, known, timeout));
        Ok(Pending::new(waiting, |py, all| {
            let row = |location: Location| {
                let Location { member, complete } = location;
                let address = address_of(&member).map(|address| address.to_string());
                (member.id.to_string(), address, complete)
            };
            let rows: Vec<_> = all.into_iter().map(row).collect();
            Ok(PyList::new(py, rows)?.into_any().unbind())
        }))
    }

    /// Starts a query for the reason why an object has not arrived.
    fn start_explain(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_explain(&id));
        Ok(Pending::new(waiting, |py, state| Ok(PyString::new(py, &state).into_any().unbind())))
    }

    /// Starts a query whether an object waits for capacity: the bytes that it needs, and the capacity of the store.
    fn start_lacks(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_shortfall(&id));
        Ok(Pending::new(waiting, |py, lacks| Ok(lacks.into_pyobject(py)?.unbind())))
    }

    /// Starts to replicate an object put at this node to `replicas` nodes. The reply is the number of nodes that have it
    /// then.
    fn start_replicate(
        &self,
        py: Python<'_>,
        r#ref: &str,
        replicas: u32,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_replicate(&id, replicas, timeout));
        Ok(Pending::new(waiting, |py, copies| Ok(copies.into_pyobject(py)?.into_any().unbind())))
    }

    /// Starts to assign this client to a job: objects it creates from now on belong to the job.
    fn start_join(&self, py: Python<'_>, job: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let name = job.parse().map_err(|error: BadRef| errors::argument(py, &error))?;
        let waiting = py.detach(|| client.start_join(name));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Starts to take a lease of an object.
    fn start_acquire_lease(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_acquire_lease(&id));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Starts to return a lease.
    fn start_release_lease(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_release_lease(&id));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Starts a lookup of an object's owners: their node ids, the primary owner first.
    fn start_owners(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_owners(&id));
        Ok(Pending::new(waiting, |py, nodes| {
            let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
            Ok(PyList::new(py, nodes)?.into_any().unbind())
        }))
    }

    /// Starts a status query; the reply is JSON.
    fn start_status(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_describe(timeout));
        Ok(Pending::new(waiting, |py, json| Ok(PyString::new(py, &json).into_any().unbind())))
    }

    /// Starts to list the copies of this node; the reply is JSON.
    fn start_objects(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_objects(timeout));
        Ok(Pending::new(waiting, |py, rows| {
            Ok(PyString::new(py, &hoplite_node::describe_objects(&rows)).into_any().unbind())
        }))
    }

    /// Starts to list one page of the existing objects that a member owns. The reply is a JSON list, and the ref after
    /// which the next page begins.
    fn start_list(
        &self,
        py: Python<'_>,
        owner: &str,
        prefix: &str,
        after: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let owner = u64::from_str_radix(owner, 16).map(NodeId).map_err(|_| {
            errors::raise(
                py,
                "InvalidArgument",
                format!("{} is not a node id: pass its hexadecimal digits", Quoted(owner)),
            )
        })?;
        let after = after.map(|after| arguments::object(py, after)).transpose()?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_list(owner, prefix, after.as_ref(), timeout));
        Ok(Pending::new(waiting, |py, (rows, next)| {
            let next = next.map(|next| next.to_string());
            let page = (hoplite_node::describe_listed(&rows), next);
            Ok(page.into_pyobject(py)?.into_any().unbind())
        }))
    }

    /// Closes the client and ends all its waits.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let client = self.0.write().ok().and_then(|mut client| client.take());
            if let Some(client) = client {
                client.close();
            }
        });
    }
}

/// Returns the bytes of all buffers end to end. A single buffer is not copied.
fn joined(parts: &[Exported]) -> Cow<'_, [u8]> {
    match parts {
        [part] => Cow::Borrowed(part.bytes()),
        parts => parts.iter().flat_map(Exported::bytes).copied().collect(),
    }
}

fn texts(py: Python<'_>, ids: Vec<ObjectId>) -> PyResult<Py<PyAny>> {
    let texts = ids.iter().map(ToString::to_string);
    Ok(PyList::new(py, texts.collect::<Vec<_>>())?.into_any().unbind())
}

fn text(py: Python<'_>, id: ObjectId) -> PyResult<Py<PyAny>> {
    Ok(PyString::new(py, &id.to_string()).into_any().unbind())
}
