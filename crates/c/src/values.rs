//! Handles and structs that carry values across the boundary, as the header declares them.

use std::ffi::{c_char, c_void};

use crate::{arguments::Flag, versioned::Versioned};

/// Bytes of a `hoplite_ref` with the final NUL.
pub const REF_BYTES: usize = 1040;

/// An embedded node. Released by `hoplite_node_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// 0 is no node.
    pub id: u64,
}

/// A client of a node. Released by `hoplite_client_close`. Every thread may use it at the same time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// 0 is no client.
    pub id: u64,
}

/// An asynchronous call. Released by `hoplite_pending_cancel` or a `hoplite_pending_take_` function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// 0 is no call.
    pub id: u64,
}

/// A queue of asynchronous calls that are over. Released by `hoplite_queue_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// 0 is no queue.
    pub id: u64,
}

/// A lease of an object: the object is deleted 5 s after its last lease ends. Released by `hoplite_lease_release`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// 0 is no lease.
    pub id: u64,
}

/// The text of a ref, which any process of the cluster can pass to `hoplite_get`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ref {
    /// NUL-terminated UTF-8.
    pub text: [c_char; REF_BYTES],
    /// Nodes that kept a copy when the put or seal that returned the ref completed; 0 for refs of other calls.
    pub replicas: u32,
}

/// A value to put: bytes, or an array in row-major order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// The elements; may be NULL if `nbytes` is 0.
    pub data: *const c_void,
    /// Bytes at `data`: the product of `shape` times the size of an element.
    pub nbytes: u64,
    /// Name of the dtype as in numpy ("float32", "int64"); NULL or "bytes" for bytes, which have no axis, or one of
    /// length `nbytes`.
    pub dtype: *const c_char,
    /// Dimensions; 0 for bytes and scalars.
    pub ndim: u32,
    /// The `ndim` lengths; may be NULL if `ndim` is 0.
    pub shape: *const u64,
}

/// An object in shared memory, read-only. The pointers are valid until `hoplite_view_release`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// `sizeof(hoplite_view)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Handle of the view; 0 once it is released.
    pub id: u64,
    /// The bytes, aligned to 64 bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub nbytes: u64,
    /// Name of the dtype as in numpy, or "bytes".
    pub dtype: *const c_char,
    /// Library whose value was put: "plain", "torch", "arrow" (an IPC stream) or "pickle".
    pub form: *const c_char,
    /// Dimensions; 0 for bytes and scalars.
    pub ndim: u32,
    /// The `ndim` lengths.
    pub shape: *const u64,
}

/// An object that the caller fills before `hoplite_seal`. The pointer is valid until `hoplite_seal` or
/// `hoplite_discard`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// `sizeof(hoplite_buffer)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Handle of the buffer; 0 once it is sealed or discarded.
    pub id: u64,
    /// The bytes, aligned to 64 bytes and not zeroed.
    pub data: *mut c_void,
    /// Number of bytes.
    pub nbytes: u64,
    /// Ref of the object, for which other clients can wait already.
    pub r#ref: Ref,
}

/// A list of refs. Released by `hoplite_refs_release`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Refs {
    /// `sizeof(hoplite_refs)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Handle of the list; 0 once it is released.
    pub id: u64,
    /// The `count` refs, each NUL-terminated.
    pub items: *const *const c_char,
    /// Number of refs.
    pub count: usize,
}

/// A node that holds a copy of an object, completely or in part.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// Id of the node.
    pub node: *const c_char,
    /// Address of the node; NULL if it does not listen.
    pub address: *const c_char,
    /// Whether the copy is complete.
    pub complete: Flag,
}

/// A list of locations. Released by `hoplite_locations_release`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Locations {
    /// `sizeof(hoplite_locations)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Handle of the list; 0 once it is released.
    pub id: u64,
    /// The `count` locations.
    pub items: *const Location,
    /// Number of locations.
    pub count: usize,
}

/// A text. Released by `hoplite_text_release`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// `sizeof(hoplite_text)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Handle of the text; 0 once it is released.
    pub id: u64,
    /// NUL-terminated UTF-8.
    pub text: *const c_char,
    /// Bytes of `text` without the final NUL.
    pub length: usize,
}

/// What `hoplite_node_get_info` reports. The pointers are valid until the node is released.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NodeInfo {
    /// `sizeof(hoplite_node_info)`; `HOPLITE_INIT` sets it.
    pub size: usize,
    /// Id of the node.
    pub id: *const c_char,
    /// Address at which other nodes connect; NULL if the node does not listen.
    pub address: *const c_char,
    /// Path of the socket on which other processes of this host connect; NULL if there is none.
    pub socket: *const c_char,
    /// Whether the node has stopped.
    pub closed: Flag,
    /// Why the node has failed; NULL if it has not.
    pub failure: *const c_char,
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for View {
    const NAME: &'static str = "hoplite_view";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for Buffer {
    const NAME: &'static str = "hoplite_buffer";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for Refs {
    const NAME: &'static str = "hoplite_refs";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for Locations {
    const NAME: &'static str = "hoplite_locations";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for Text {
    const NAME: &'static str = "hoplite_text";
}

// SAFETY: `repr(C)` with the size first; pointers, numbers and flags may have any value.
unsafe impl Versioned for NodeInfo {
    const NAME: &'static str = "hoplite_node_info";
}
