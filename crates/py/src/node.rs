//! Implements `_native.Node`: a node in this process.

use std::{path::PathBuf, sync::Arc};

use hoplite_node::{CertificateFiles, Error, Node as Native, NodeConfig, SpillConfig};
use pyo3::prelude::*;

use crate::{arguments, client::Client, errors, wait::aside};

/// The settings of a node by name, as `hoplite.Node` passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Options {
    listen: Option<String>,
    advertise: Option<String>,
    join: Vec<String>,
    cluster: String,
    tokens: Vec<String>,
    certificates: Option<Certificates>,
    admission: String,
    no_encryption: bool,
    no_auth: bool,
    require_capability: bool,
    capacity: Option<u64>,
    spill: Option<PathBuf>,
    spill_limit: Option<u64>,
    spill_persistent: bool,
    socket: PathBuf,
    place: Option<Vec<(String, u8)>>,
    surveys: bool,
    detection_timeout: f64,
}

impl Options {
    fn config(self, py: Python<'_>) -> PyResult<NodeConfig> {
        let spill = self.spill.map(|folder| SpillConfig {
            folder,
            limit: self.spill_limit,
            persistent: self.spill_persistent,
        });
        Ok(NodeConfig {
            listen: self.listen,
            advertise: self.advertise,
            join: self.join,
            cluster: self.cluster,
            tokens: self.tokens,
            certificates: self.certificates.map(certificate_files),
            admission: self.admission,
            no_encryption: self.no_encryption,
            no_auth: self.no_auth,
            require_capability: self.require_capability,
            capacity: self.capacity,
            spill,
            socket: Some(self.socket),
            place: arguments::place(py, self.place)?,
            surveys: self.surveys,
            detection: arguments::timeout(py, Some(self.detection_timeout))?.unwrap_or_default(),
        })
    }
}

/// The settings that decide whether a node is admitted, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Credentials {
    cluster: String,
    tokens: Vec<String>,
    certificates: Option<Certificates>,
    no_encryption: bool,
}

/// Uses the cells of the names of settings; see [`crate::cells`].
pub(crate) fn fill_cells(py: Python<'_>) -> PyResult<()> {
    let example = c"dict(
        listen=None, advertise=None, join=(), cluster='', tokens=(), certificates=None, admission='',
        no_encryption=False, no_auth=False, require_capability=False, capacity=None, spill=None,
        spill_limit=None, spill_persistent=False, socket='', place=None, surveys=False,
        detection_timeout=0.0)";
    let example = py.eval(example, None, None)?;
    example.extract::<Options>()?;
    example.extract::<Credentials>()?;
    Ok(())
}

/// Files of the certificate, key, CA and revocation list.
type Certificates = (PathBuf, PathBuf, PathBuf, Option<PathBuf>);

fn certificate_files((certificate, key, ca, crl): Certificates) -> CertificateFiles {
    CertificateFiles { certificate, key, ca, crl }
}

/// Checks whether the node at an address would admit a node with these settings; joins nothing. Returns why it would
/// not; `None` if it would.
#[pyfunction]
pub(crate) fn check_peer(
    py: Python<'_>,
    credentials: Credentials,
    address: String,
) -> PyResult<Option<String>> {
    let Credentials { cluster, tokens, certificates, no_encryption } = credentials;
    let certificates = certificates.map(certificate_files);
    let config =
        NodeConfig { cluster, tokens, certificates, no_encryption, ..NodeConfig::default() };
    let checked = aside(py, "hoplite-check", move || hoplite_node::check_peer(&config, &address))?;
    match checked {
        Ok(_) => Ok(None),
        Err(Error::Join(reason)) => Ok(Some(reason)),
        Err(error) => Err(errors::of(py, error)),
    }
}

/// A node in this process.
#[pyclass(frozen)]
pub(crate) struct Node {
    native: Arc<Native>,
    process: u32,
}

#[pymethods]
impl Node {
    #[new]
    fn new(py: Python<'_>, options: Options) -> PyResult<Self> {
        let config = options.config(py)?;
        let started = aside(py, "hoplite-start", move || Native::start(config))?;
        let native = started.map_err(|error| errors::of(py, error))?;
        Ok(Self { native: Arc::new(native), process: std::process::id() })
    }

    /// The address at which other nodes reach this one, as host:port; `None` if it does not listen on TCP.
    #[getter]
    fn address(&self) -> Option<String> {
        self.native.address().map(|address| address.to_string())
    }

    /// The path of the Unix socket for processes of this host; empty if there is none.
    #[getter]
    fn socket(&self) -> String {
        self.native.socket().map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// The node id in hex; each start of a node has a new one.
    #[getter]
    fn id(&self) -> String {
        self.native.id().to_string()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.native.is_closed()
    }

    /// Why the node failed; `None` if it did not.
    #[getter]
    fn failure(&self) -> Option<String> {
        self.native.failure()
    }

    /// Returns a client in this process.
    fn client(&self, py: Python<'_>) -> PyResult<Client> {
        Client::new(self.native.client()).map_err(|error| errors::of(py, error))
    }

    /// Leaves the cluster after handing over what only this node holds. Returns whether other nodes took all of it.
    #[pyo3(signature = (timeout=None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let grace = arguments::timeout(py, timeout)?;
        if self.process != std::process::id() {
            // A forked child has the node's memory but none of its threads.
            return Ok(true);
        }
        let native = self.native.clone();
        aside(py, "hoplite-close", move || native.close(grace))
    }
}
