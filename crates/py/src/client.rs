//! Implements `_native.Client`: one method per verb.

use std::{borrow::Cow, path::PathBuf, sync::RwLock, time::Instant};

use hoplite_node::{
    Client as Native, Error, PendingReply, Value, address_of,
    proto::{
        error::Quoted,
        id::{BadRef, Instance, NodeId, ObjectId},
        inspection::Inspection,
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
    arguments::{self, EncodedValue, Memory},
    buffer::{Exported, Home, Space, View},
    errors, verb,
    wait::{Pending, aside, wait},
};

/// A client of a node, until it is closed.
#[pyclass(frozen)]
pub(crate) struct Client(RwLock<Option<Open>>);

/// An open client: for single requests, and for verbs of several steps.
struct Open {
    native: Native,
    core: hoplite::Client,
}

impl Client {
    pub(crate) fn new(native: Native) -> hoplite::Result<Self> {
        let core = hoplite::Client::from_raw(native.clone(), false)?;
        Ok(Self(RwLock::new(Some(Open { native, core }))))
    }

    /// The client, unless it is closed.
    fn native(&self) -> Option<Native> {
        Some(self.0.read().ok()?.as_ref()?.native.clone())
    }

    fn open(&self, py: Python<'_>) -> PyResult<Native> {
        let client = self.native().ok_or_else(|| errors::of(py, Error::Closed))?;
        if client.is_forked() {
            return Err(errors::of(py, Error::Forked));
        }
        Ok(client)
    }

    /// Sends the put of a value of at most `INLINE_BYTES_MAX` bytes.
    fn put_small(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        parts: &[Bound<'_, PyAny>],
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<PendingReply<ObjectId>> {
        let client = self.open(py)?.in_passing();
        let parts = Exported::of_all(parts)?;
        let (name, timeout) = (arguments::name(py, name)?, arguments::timeout(py, timeout)?);
        let ttl = arguments::ttl(py, ttl)?;
        let bytes = joined(&parts);
        let value = Value::with_meta(&bytes, what.meta(py)?);
        let value = value.map_err(|error| errors::of(py, error))?;
        Ok(py.detach(|| client.start_put_small(name, &value, ttl, timeout)))
    }

    fn core(&self, py: Python<'_>) -> PyResult<hoplite::Client> {
        self.open(py)?;
        let core = self.0.read().ok().and_then(|open| Some(open.as_ref()?.core.clone()));
        core.ok_or_else(|| errors::of(py, Error::Closed))
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
    let native = attached.map_err(|error| errors::of(py, error))?;
    Client::new(native).map_err(|error| errors::of(py, error))
}

#[pymethods]
impl Client {
    /// Whether the node is gone; true if the client is closed.
    fn is_node_gone(&self) -> bool {
        self.native().is_none_or(|client| client.is_closed())
    }

    /// Whether all members of the node's cluster are authenticated over encrypted connections, or the node does not
    /// listen. False if the client is closed.
    fn is_authenticated(&self) -> bool {
        self.native().is_some_and(|client| client.is_authenticated())
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
            let value = Value::with_meta(&bytes, meta).map_err(|error| errors::of(py, error))?;
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
        let sealing = sealing.map_err(|error| errors::of(py, error))?;
        Ok(wait(py, || sealing)?.to_string())
    }

    /// Puts a value, once somebody waits. The reply is the ref, and the number of nodes that keep a copy; 0 if unknown.
    #[allow(clippy::too_many_arguments)]
    fn start_put(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        parts: Vec<Bound<'_, PyAny>>,
        name: Option<String>,
        replicas: u32,
        retain: Option<u64>,
        ttl: Option<f64>,
        exist_ok: bool,
        newest: bool,
        digest: bool,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let is_plain = replicas == 1 && retain.is_none() && !exist_ok && !newest && !digest;
        if is_plain && what.nbytes <= INLINE_BYTES_MAX {
            let waiting = self.put_small(py, what, &parts, name.as_deref(), ttl, timeout)?;
            let then = |py: Python<'_>, id: ObjectId| {
                Ok((id.to_string(), 1).into_pyobject(py)?.into_any().unbind())
            };
            return Ok(Pending::new(waiting, then));
        }
        let client = self.core(py)?;
        let meta = what.meta(py)?;
        let (ttl, timeout) = (arguments::ttl(py, ttl)?, arguments::timeout(py, timeout)?);
        let home = Home::default();
        let parts = Exported::of_all(&parts)?
            .into_iter()
            .map(|part| Box::new(home.lend(part)) as _)
            .collect();
        let value = hoplite::Value::of_parts(meta, parts).map_err(|error| errors::of(py, error))?;
        Ok(verb::pending(
            client,
            home,
            timeout.is_none(),
            move |client| {
                let put = client.put(value).replicas(replicas).retain(retain).ttl(ttl);
                let put = put.exist_ok(exist_ok).newest(newest).digest(digest).timeout(timeout);
                match name {
                    Some(name) => put.name(name),
                    None => put,
                }
            },
            |py, made| {
                let made = (made.as_str(), made.replicas().unwrap_or_default());
                Ok(made.into_pyobject(py)?.into_any().unbind())
            },
        ))
    }

    /// Starts a put of a value of at most `INLINE_BYTES_MAX` bytes.
    fn start_put_small(
        &self,
        py: Python<'_>,
        what: EncodedValue,
        parts: Vec<Bound<'_, PyAny>>,
        name: Option<&str>,
        ttl: Option<f64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        Ok(Pending::new(self.put_small(py, what, &parts, name, ttl, timeout)?, text))
    }

    /// Starts a reservation of a name, or of a new ref.
    fn start_reserve(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let name = arguments::reservable(py, name)?;
        let timeout = arguments::timeout(py, timeout)?;
        let client = self.open(py)?.in_passing();
        let waiting = py.detach(|| client.start_reserve(name, timeout));
        Ok(Pending::new(waiting, text))
    }

    /// Starts a request for slots.
    fn start_slots(&self, py: Python<'_>, count: u32) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let waiting = py.detach(|| client.start_slots(count));
        Ok(Pending::new(waiting, texts))
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
        wait(py, || client.start_get(&id, limit)).map(View)
    }

    fn start_get(&self, py: Python<'_>, r#ref: &str, timeout: Option<f64>) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let id = arguments::object(py, r#ref)?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_get(&id, timeout));
        let then = |py: Python<'_>, view| Ok(Py::new(py, View(view))?.into_any());
        Ok(Pending::new(waiting, then))
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
        Ok(Pending::new(waiting, then))
    }

    /// Copies an object, or rows or bytes of it, into the memory `out` while it arrives, once somebody waits.
    fn start_get_into(
        &self,
        py: Python<'_>,
        r#ref: &str,
        out: Memory<'_>,
        start: Option<i64>,
        stop: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        arguments::object(py, r#ref)?;
        let limit = arguments::timeout(py, timeout)?;
        let (home, text) = (Home::default(), r#ref.to_owned());
        let (memory, kind, shape) =
            (home.lend(Exported::writable(&out.data)?), out.kind, out.shape);
        Ok(verb::pending(
            self.core(py)?,
            home,
            limit.is_none(),
            move |client| {
                let get = client.get_into(text, memory).timeout(limit);
                let get = if start.or(stop).is_some() { get.part(start, stop) } else { get };
                if kind == "bytes" { get } else { get.expect(&kind, &shape) }
            },
            |py, _| Ok(py.None()),
        ))
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

    /// Starts a report of a member, or of this node: its metrics, or its recent events after number `after` and what
    /// runs now. The reply is JSON.
    fn start_inspect(
        &self,
        py: Python<'_>,
        what: &str,
        node: Option<&str>,
        after: u64,
        limit: u32,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let inspection = match what {
            "metrics" => Inspection::Metrics,
            "activity" => Inspection::Activity { after, limit },
            other => {
                let said = format!("what is {}: use \"activity\" or \"metrics\"", Quoted(other));
                return Err(errors::raise(py, "InvalidArgument", said));
            }
        };
        let node = node.map(|node| node_id(py, node)).transpose()?;
        let timeout = arguments::timeout(py, timeout)?;
        let waiting = py.detach(|| client.start_inspect(node, inspection, timeout));
        Ok(Pending::new(waiting, |py, json| Ok(PyString::new(py, &json).into_any().unbind())))
    }

    /// Starts to list one page of the copies of this node. The reply is a JSON list, and the copy after which the next
    /// page begins: its ref, and the node and number of its instance.
    fn start_objects(
        &self,
        py: Python<'_>,
        prefix: &str,
        after: Option<(&str, u64, u64)>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let client = self.open(py)?.in_passing();
        let after = after.map(|(id, node, serial)| {
            let instance = Instance { node: NodeId(node), serial };
            arguments::object(py, id).map(|id| (id, instance))
        });
        let (after, timeout) = (after.transpose()?, arguments::timeout(py, timeout)?);
        let waiting = py.detach(|| client.start_objects(prefix, after, timeout));
        Ok(Pending::new(waiting, |py, (rows, next)| {
            let next = next.map(|(id, Instance { node, serial })| (id.to_string(), node.0, serial));
            let page = (hoplite_node::describe_objects(&rows), next);
            Ok(page.into_pyobject(py)?.into_any().unbind())
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
        let owner = node_id(py, owner)?;
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
            let open = self.0.write().ok().and_then(|mut open| open.take());
            if let Some(open) = open {
                open.native.close();
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

fn node_id(py: Python<'_>, text: &str) -> PyResult<NodeId> {
    u64::from_str_radix(text, 16).map(NodeId).map_err(|_| {
        let said = format!("{} is not a node id: pass its hexadecimal digits", Quoted(text));
        errors::raise(py, "InvalidArgument", said)
    })
}

fn texts(py: Python<'_>, ids: Vec<ObjectId>) -> PyResult<Py<PyAny>> {
    let texts = ids.iter().map(ToString::to_string);
    Ok(PyList::new(py, texts.collect::<Vec<_>>())?.into_any().unbind())
}

fn text(py: Python<'_>, id: ObjectId) -> PyResult<Py<PyAny>> {
    Ok(PyString::new(py, &id.to_string()).into_any().unbind())
}
