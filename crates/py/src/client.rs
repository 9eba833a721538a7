//! `_native.Client`: one method for each verb.

use std::{
    borrow::Cow,
    os::fd::{IntoRawFd, RawFd},
    path::PathBuf,
    sync::{Mutex, RwLock},
};

use hoplite_node::{
    Client as Native, Error, Value, address_of,
    proto::{
        ask::Location,
        error::Quoted,
        id::{BadRef, NodeId, ObjectId},
        lifetime::Job,
        limits::INLINE_BYTES_MAX,
        message::Holding,
    },
};
use pyo3::{
    prelude::*,
    types::{PyList, PyString},
};

use crate::{
    arguments::{self, What},
    buffer::{Exported, Growing, Space, View},
    errors,
    wait::{Pending, aside, wait, wait_saying},
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
        let client = client.ok_or_else(|| errors::of(py, &Error::Closed))?;
        if client.is_forked() {
            return Err(errors::of(py, &Error::Forked));
        }
        Ok(client)
    }
}

/// Attaches to the node of this host that serves the Unix socket at `path`, to ask no more than a capability allows, if there
/// is one.
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
        Some(text) => Native::attach_confined(&path, text, timeout),
    })?;
    attached.map(Client::new).map_err(|error| errors::of(py, &error))
}

/// Pins what all clients of this process read, until no process has the descriptors that this returns: before a fork.
#[pyfunction]
pub(crate) fn hold_all(py: Python<'_>) -> Vec<RawFd> {
    py.detach(Native::hold_all).into_iter().map(IntoRawFd::into_raw_fd).collect()
}

/// The digest of bytes in several parts, one after the other.
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
    /// Whether the node is gone; of a closed client, true.
    fn is_node_gone(&self) -> bool {
        let client = self.0.read().ok().and_then(|client| client.clone());
        client.is_none_or(|client| client.is_closed())
    }

    /// Whether all members of the node's cluster have proved who they are; of a closed client, false.
    fn is_authenticated(&self) -> bool {
        let client = self.0.read().ok().and_then(|client| client.clone());
        client.is_some_and(|client| client.is_authenticated())
    }

    /// Puts a value of which `what` says what it is, and waits until it is in the store.
    fn put(
        &self,
        py: Python<'_>,
        what: What,
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
        let writer = wait(py, || client.start_create(name, meta, ttl, timeout))?;
        // Receivers of the object get what is copied while the rest still is.
        let sealing = py.detach(|| {
            let bytes: Vec<&[u8]> = parts.iter().map(Exported::bytes).collect();
            writer.write_parts(&bytes)?;
            writer.seal()
        });
        let sealing = sealing.map_err(|error| errors::of(py, &error))?;
        Ok(wait(py, || sealing)?.to_string())
    }

    /// Begins to put a value of at most `INLINE_BYTES_MAX` bytes.
    fn start_put(
        &self,
        py: Python<'_>,
        what: What,
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

    /// Begins to ask for a ref of what will be put.
    fn start_promise(&self, py: Python<'_>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let waiting = py.detach(|| client.start_promise());
        Ok(Pending::new(waiting, text))
    }

    /// Begins to ask for the space of a larger value.
    fn start_create(
        &self,
        py: Python<'_>,
        what: What,
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

    /// Begins to wait for the memory of an object that a get, begun beside this, brings here.
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

    /// Begins to ask which inputs of a reduce can't come any more.
    fn start_lost(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_lost(&id, timeout));
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

    /// Begins to delete what is older than `name` but for the newest `keep - 1`.
    fn start_prune(
        &self,
        py: Python<'_>,
        name: &str,
        keep: u64,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let name = name.parse().map_err(|error: BadRef| errors::argument(py, &error))?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_prune(name, keep, timeout));
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
        // Every number is newer than one below zero.
        let after = u64::try_from(after).ok();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_latest(prefix, after, timeout));
        Ok(Pending::new(waiting, |py, name| {
            Ok(PyString::new(py, name.as_str()).into_any().unbind())
        }))
    }

    /// Begins to ask who holds an object; with `known`, pairs of node and whether its copy is complete, only for news.
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

    /// Begins to ask why an object is not here.
    fn start_explain(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_explain(&id));
        Ok(Pending::new(waiting, |py, state| Ok(PyString::new(py, &state).into_any().unbind())))
    }

    /// Begins to ask whether an object waits for room: the bytes that it needs, and those of the whole store.
    fn start_lacks(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_lacks(&id));
        Ok(Pending::new(waiting, |py, lacks| Ok(lacks.into_pyobject(py)?.unbind())))
    }

    /// Begins to see to it that `copies` nodes hold an object that was put at this one; how many do then.
    fn start_keep(
        &self,
        py: Python<'_>,
        r#ref: &str,
        copies: u32,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_keep(&id, copies, timeout));
        Ok(Pending::new(waiting, |py, copies| Ok(copies.into_pyobject(py)?.into_any().unbind())))
    }

    /// Begins to say that what this client makes from now on is of a job.
    fn start_join(&self, py: Python<'_>, job: &str, cleanup: bool) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let name = job.parse().map_err(|error: BadRef| errors::argument(py, &error))?;
        let waiting = py.detach(|| client.start_join(Job { name, cleanup }));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Begins to take a lease of an object.
    fn start_take_lease(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_take_lease(&id));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Begins to return a lease.
    fn start_return_lease(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_return_lease(&id));
        Ok(Pending::new(waiting, |py, ()| Ok(py.None())))
    }

    /// Begins to ask which nodes keep where an object is: their ids, the first owner's first.
    fn start_owners(&self, py: Python<'_>, r#ref: &str) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let waiting = py.detach(|| client.start_owners(&id));
        Ok(Pending::new(waiting, |py, nodes| {
            let nodes: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
            Ok(PyList::new(py, nodes)?.into_any().unbind())
        }))
    }

    /// Begins to ask how the node is, as JSON.
    fn start_status(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_describe(timeout));
        Ok(Pending::new(waiting, |py, json| Ok(PyString::new(py, &json).into_any().unbind())))
    }

    /// The copies of the node, as JSON.
    fn start_objects(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_objects(timeout));
        Ok(Pending::new(waiting, |py, rows| {
            Ok(PyString::new(py, &hoplite_node::describe_objects(&rows)).into_any().unbind())
        }))
    }

    /// Begins to ask for a page of the living objects that a member owns: a JSON list, and what the next one begins behind.
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
            errors::raise(py, "InvalidArgument", format!("{} is no id of a node", Quoted(owner)))
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

    /// Ends every wait of the client.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let client = self.0.write().ok().and_then(|mut client| client.take());
            if let Some(client) = client {
                client.close();
            }
        });
    }
}

/// The bytes of several buffers end to end, copied only if there are several.
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
