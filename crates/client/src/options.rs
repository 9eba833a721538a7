//! The options of a node.

use std::{path::PathBuf, time::Duration};

use hoplite_node::{NodeConfig, SpillConfig};

use crate::{
    admission::{Admission, Credentials},
    error::{Error, Result},
    settings::{
        address::{checked_listen, scoped, towards},
        kinds,
        source::{Found, Settings},
    },
};

/// The options of a node, with the names and defaults of `hoplite.Node` in Python. One that is None is read from the
/// variable HOPLITE_<NAME>, then from the settings file in `config` or HOPLITE_CONFIG; docs/settings.md lists them. The
/// settings `topology` and `topology_host` have no effect here: use `rack`.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Address and TCP port for other nodes. Port 0 selects a free port. Without it, the node listens only if another
    /// option configures clustering.
    pub listen: Option<String>,
    /// Address that other nodes use, if it differs from `listen`.
    pub advertise: Option<String>,
    /// Addresses of nodes of the cluster; one that replies is enough. Without it the node starts a cluster.
    pub join: Option<Vec<String>>,
    /// Size limit of the store in bytes, at least 1 MiB; by default 30 % of the memory of the host or cgroup.
    pub capacity: Option<u64>,
    /// Directory on a disk, for this node alone, for objects that do not fit into memory.
    pub spill: Option<PathBuf>,
    /// Size limit of the files in `spill` in bytes; by default 80 % of the free space.
    pub spill_limit: Option<u64>,
    /// Whether to keep the objects that no other node holds in `spill` when this node ends.
    pub spill_persistent: Option<bool>,
    /// Name of the cluster; only nodes with the same name join.
    pub cluster: Option<String>,
    /// Shared secret of the cluster, from `hoplite token new`. The default, on loopback, is a secret of this user.
    pub token: Option<String>,
    /// File with the token, mode 0600. A second line adds a second accepted token.
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate of this node, used instead of a token.
    pub certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate, mode 0600.
    pub key: Option<PathBuf>,
    /// PEM file with the CA that issued the certificates of all nodes.
    pub ca: Option<PathBuf>,
    /// PEM file with the CA's revocation list.
    pub crl: Option<PathBuf>,
    /// Whether to send to other nodes without encryption.
    pub no_encryption: Option<bool>,
    /// Whether any node that can reach this one may join.
    pub no_auth: Option<bool>,
    /// Whether to reject processes of this host that attach without a capability.
    pub require_capability: Option<bool>,
    /// Rack or zone of this host.
    pub rack: Option<String>,
    /// Time after which an unresponsive node is declared dead, at least 0.5 s; 3 s by default.
    pub detection_timeout: Option<Duration>,
    /// Unix socket for processes of this host. By default this user's socket, or one of this node alone if another
    /// node serves that.
    pub socket: Option<PathBuf>,
    /// TOML file of settings.
    pub config: Option<PathBuf>,
}

impl NodeOptions {
    /// The configuration of the node apart from its socket, and that socket if it is set. `with_socket` if the setting
    /// counts too.
    ///
    /// # Errors
    /// `InvalidArgument`, `JoinError`, and those of [`Credentials::admission`].
    pub(crate) fn config(self, with_socket: bool) -> Result<(NodeConfig, Option<PathBuf>)> {
        let settings = Settings::load(self.config.as_deref())?;
        let listen = settings.find("listen", self.listen, kinds::text)?;
        let advertise = settings.find("advertise", self.advertise, kinds::text)?;
        let join = settings.find("join", self.join, kinds::list)?;
        let cluster = settings.find("cluster", self.cluster, kinds::text)?;
        let credentials = Credentials {
            token: settings.find("token", self.token, kinds::text)?,
            token_file: settings.find("token_file", self.token_file, kinds::path)?,
            certificate: settings.find("certificate", self.certificate, kinds::path)?,
            key: settings.find("key", self.key, kinds::path)?,
            ca: settings.find("ca", self.ca, kinds::path)?,
            crl: settings.find("crl", self.crl, kinds::path)?,
            no_auth: settings.find("no_auth", self.no_auth, kinds::flag)?,
            require_capability: settings.find(
                "require_capability",
                self.require_capability,
                kinds::flag,
            )?,
        };
        let no_encryption = settings
            .find("no_encryption", self.no_encryption, kinds::flag)?
            .value
            .unwrap_or_default();
        let no_auth = credentials.no_auth.value.unwrap_or_default();
        let require_capability = credentials.require_capability.value.unwrap_or_default();
        let is_clustered = no_encryption
            || no_auth
            || join.value.as_ref().is_some_and(|join| !join.is_empty())
            || credentials.is_any_set()
            || advertise.value.is_some()
            || cluster.value.is_some();
        let seeds = |join: Vec<String>| join.iter().map(|seed| scoped("join", seed)).collect();
        let join: Vec<_> = join.checked(seeds)?.value.unwrap_or_default();
        let is_advertised = advertise.value.is_some();
        let listen = match listen.checked(|text| checked_listen(&text, is_advertised))?.value {
            Some(listen) => Some(listen),
            None if is_clustered => Some(towards(&join)?),
            None => None,
        };
        let capacity = settings.find("capacity", self.capacity, kinds::size)?;
        let rack = settings.find("rack", self.rack, kinds::text)?.value;
        let detection =
            settings.find("detection_timeout", self.detection_timeout, kinds::seconds)?;
        let spill = spill(
            settings.find("spill", self.spill, kinds::path)?,
            settings.find("spill_limit", self.spill_limit, kinds::size)?,
            settings.find("spill_persistent", self.spill_persistent, kinds::flag)?,
        )?;
        let socket = match with_socket {
            true => settings.find("socket", self.socket, kinds::path)?.value,
            false => self.socket,
        };
        let Admission { tokens, certificates, admission } =
            credentials.admission(listen.as_deref())?;
        let base = NodeConfig::default();
        let config = NodeConfig {
            listen,
            advertise: advertise.value,
            join,
            cluster: cluster.value.unwrap_or(base.cluster),
            tokens,
            certificates,
            admission,
            no_encryption,
            no_auth,
            require_capability,
            capacity: capacity.checked(kinds::checked_capacity)?.value,
            spill,
            socket: None,
            surveys: true,
            place: rack.map(kinds::place).transpose()?,
            detection: detection.checked(kinds::checked_detection)?.value.unwrap_or(base.detection),
        };
        Ok((config, socket))
    }
}

/// The spill directory; rejects its settings if there is none.
fn spill(
    folder: Found<PathBuf>,
    limit: Found<u64>,
    persistent: Found<bool>,
) -> Result<Option<SpillConfig>> {
    let is_persistent = persistent.value.unwrap_or_default();
    let Some(folder) = folder.value else {
        let useless = [
            ("spill_limit", limit.value.is_some(), limit.origin),
            ("spill_persistent", is_persistent, persistent.origin),
        ];
        return match useless.into_iter().find(|(_, is_set, _)| *is_set) {
            None => Ok(None),
            Some((name, _, origin)) => Err(Error::argument(format!(
                "{name} ({origin}) has no effect without a spill directory: set spill"
            ))),
        };
    };
    let limit = limit.value.map(|bytes| kinds::checked_size("spill_limit", bytes)).transpose()?;
    Ok(Some(SpillConfig { folder, limit, persistent: is_persistent }))
}
