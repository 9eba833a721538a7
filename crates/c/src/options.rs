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
    /// Address to listen on for other nodes, "host:port"; port 0 picks one. NULL: no other node can connect.
    pub listen: *const c_char,
    /// Address that other nodes connect to, if it is not `listen`.
    pub advertise: *const c_char,
    /// Addresses of nodes of the cluster to join, separated by commas.
    pub join: *const c_char,
    /// Name of the cluster; nodes of other clusters are refused.
    pub cluster: *const c_char,
    /// Cluster token.
    pub token: *const c_char,
    /// File that holds the cluster token (mode 0600), in place of `token`.
    pub token_file: *const c_char,
    /// File of this node's certificate chain (PEM).
    pub certificate: *const c_char,
    /// File of the private key of `certificate` (PEM).
    pub key: *const c_char,
    /// File of the certificates that sign the certificates of other nodes (PEM).
    pub ca: *const c_char,
    /// File of revoked certificates (PEM).
    pub crl: *const c_char,
    /// Directory to spill objects to when the store is full.
    pub spill: *const c_char,
    /// Rack or zone of this host; hosts in one rack use the same name.
    pub rack: *const c_char,
    /// Path of the socket on which other processes of this host connect.
    pub socket: *const c_char,
    /// Size of the store in bytes; at least 1 MiB.
    pub capacity: u64,
    /// Limit of `spill` in bytes.
    pub spill_limit: u64,
    /// Seconds without a reply after which a node is declared dead.
    pub detection_timeout: f64,
    /// Keep spilled objects for the next node with the same `spill` directory.
    pub spill_persistent: Flag,
    /// Do not encrypt the traffic between nodes.
    pub no_encryption: Flag,
    /// Disable authentication: any node that can reach this one may join.
    pub no_auth: Flag,
    /// Refuse clients of other processes that present no capability.
    pub require_capability: Flag,
}

/// Options of a client.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// `sizeof(hoplite_client_options)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Name of the job, which `hoplite_status` and the limits of a node group by.
    pub job: *const c_char,
    /// Capability that limits what the client may do.
    pub capability: *const c_char,
    /// Do not connect again after the node has restarted.
    pub no_reconnect: Flag,
    /// Announce a SHA-256 digest with each put, which each receiver checks.
    pub digest: Flag,
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
