//! Structs of options that a caller fills, as the header declares them.
//!
//! Each begins with its size, so that a program compiled with an older header keeps working: fields past that size
//! take their defaults. `versioned` reads them.

use std::ffi::c_char;

use crate::{arguments::Flag, versioned::Versioned};

/// Options of `hoplite_node_start`. A field that is NULL, 0 or false falls back to the environment variable
/// `HOPLITE_<FIELD>`, then to the file that `HOPLITE_CONFIG` names, then to its default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// `sizeof(hoplite_node_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Address and TCP port for other nodes, such as "10.0.0.5:7777"; port 0 selects a free one. Without it, the node
    /// listens only if another option configures clustering.
    pub listen: *const c_char,
    /// Address that other nodes use, if it differs from `listen`.
    pub advertise: *const c_char,
    /// Addresses of nodes of the cluster, separated by commas; one that replies is enough. Without it, the node starts a
    /// cluster.
    pub join: *const c_char,
    /// Name of the cluster; only nodes with the same name join.
    pub cluster: *const c_char,
    /// Shared secret of the cluster, from `hoplite token new`. The default, on loopback, is a secret of this user.
    pub token: *const c_char,
    /// File that holds the token (mode 0600). A second line adds a second accepted token, for rotation.
    pub token_file: *const c_char,
    /// PEM file with the certificate of this node, used instead of a token.
    pub certificate: *const c_char,
    /// PEM file with the private key of the certificate (mode 0600).
    pub key: *const c_char,
    /// PEM file with the CA that issued the certificates of all nodes.
    pub ca: *const c_char,
    /// PEM file with the CA's revocation list.
    pub crl: *const c_char,
    /// Directory on a disk, for this node alone, for objects that do not fit into memory.
    pub spill: *const c_char,
    /// Rack or zone of this host; hosts in one rack use the same name.
    pub rack: *const c_char,
    /// Unix socket for processes of this host. By default this user's socket, or one of this node alone if another node
    /// serves that.
    pub socket: *const c_char,
    /// Size limit of the store in bytes, at least 1 MiB; by default 30 % of the memory of the host or cgroup.
    pub capacity: u64,
    /// Size limit of the files in `spill` in bytes; by default 80 % of the free space.
    pub spill_limit: u64,
    /// Seconds after which an unresponsive node is declared dead, at least 0.5; 3 by default.
    pub detection_timeout: f64,
    /// Keep the objects that no other node holds in `spill` when this node ends.
    pub spill_persistent: Flag,
    /// Send to other nodes without encryption.
    pub no_encryption: Flag,
    /// Disable authentication: any node that can reach this one may join.
    pub no_auth: Flag,
    /// Reject processes of this host that attach without a capability.
    pub require_capability: Flag,
}

/// Options of a client.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// `sizeof(hoplite_client_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Name that marks all objects that this client creates. They are deleted 5 s after the last client of the job has
    /// closed or failed. `HOPLITE_JOB` by default in `hoplite_init`.
    pub job: *const c_char,
    /// Capability that restricts this client, as its text or the path of its file; `HOPLITE_CAPABILITY` by default.
    pub capability: *const c_char,
    /// Do not attach to the next node on the same socket after the process of the node has ended.
    pub no_reconnect: Flag,
    /// Announce a SHA-256 digest with each put, which each receiver checks; `HOPLITE_DIGEST` by default.
    pub digest: Flag,
    /// Seconds that a call with `HOPLITE_DEFAULT_TIMEOUT` waits; the variable HOPLITE_TIMEOUT by default, or else no limit.
    pub default_timeout: f64,
}

/// Options of `hoplite_put`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PutOptions {
    /// `sizeof(hoplite_put_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Name of the object; NULL: a random one.
    pub name: *const c_char,
    /// Nodes that keep a copy until the object is deleted, this one included; 0 means 1.
    pub replicas: u32,
    /// Newest versions to retain under the prefix of the name, this one included; 0 retains all.
    pub retain: u64,
    /// Seconds from the completion of the object to its deletion; 0 means no limit.
    pub ttl: f64,
    /// Succeed if an object of this name exists already.
    pub exist_ok: Flag,
    /// Fail if a higher number exists under the prefix of the name.
    pub newest: Flag,
}

/// Options of `hoplite_create`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// `sizeof(hoplite_create_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Name of the object; NULL: a random one.
    pub name: *const c_char,
    /// Nodes that keep a copy until the object is deleted, this one included; 0 means 1.
    pub replicas: u32,
    /// Seconds from the completion of the object to its deletion; 0 means no limit.
    pub ttl: f64,
}

/// Options of `hoplite_get`: a part of the object along its first dimension, or of its bytes if it has no shape.
/// Negative bounds count from the end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GetOptions {
    /// `sizeof(hoplite_get_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Whether the part begins at `start` (else at 0).
    pub has_start: Flag,
    /// Whether the part ends before `stop` (else at the end).
    pub has_stop: Flag,
    /// First index of the part.
    pub start: i64,
    /// Index after the last one of the part.
    pub stop: i64,
}

/// Options of `hoplite_reduce`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReduceOptions {
    /// `sizeof(hoplite_reduce_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Inputs to fold: the first ones that exist; 0 folds all.
    pub count: u32,
    /// Name of the result; NULL: a random one.
    pub name: *const c_char,
    /// Seconds from the completion of the result to its deletion; 0 means no limit.
    pub ttl: f64,
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for NodeOptions {
    const NAME: &'static str = "hoplite_node_options";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for ClientOptions {
    const NAME: &'static str = "hoplite_client_options";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for PutOptions {
    const NAME: &'static str = "hoplite_put_options";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for CreateOptions {
    const NAME: &'static str = "hoplite_create_options";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for GetOptions {
    const NAME: &'static str = "hoplite_get_options";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for ReduceOptions {
    const NAME: &'static str = "hoplite_reduce_options";
}
