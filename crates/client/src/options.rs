//! The options of a node.

use std::{path::PathBuf, time::Duration};

use hoplite_node::{NodeConfig, SpillConfig};

use crate::error::Result;

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
    pub(crate) fn config(self) -> Result<NodeConfig> {
        let spill = self.spill.map(|folder| SpillConfig {
            folder,
            limit: self.spill_limit,
            persistent: self.spill_persistent.unwrap_or_default(),
        });
        let base = NodeConfig::default();
        Ok(NodeConfig {
            listen: self.listen,
            advertise: self.advertise,
            join: self.join.unwrap_or_default(),
            cluster: self.cluster.unwrap_or(base.cluster),
            tokens: self.token.into_iter().collect(),
            no_encryption: self.no_encryption.unwrap_or_default(),
            no_auth: self.no_auth.unwrap_or_default(),
            require_capability: self.require_capability.unwrap_or_default(),
            capacity: self.capacity,
            spill,
            socket: self.socket,
            detection: self.detection_timeout.unwrap_or(base.detection),
            ..NodeConfig::default()
        })
    }
}
