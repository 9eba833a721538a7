//! What the handles of a program stand for. The last owner of each value drops it without a lock.

use std::{
    ffi::{CString, c_char},
    sync::{Arc, Mutex, OnceLock},
};

use crate::{
    handles::{Table, Type},
    values::Location,
};

pub(crate) static NODES: Table<Arc<OpenNode>> = Table::new(Type::Node);
pub(crate) static CLIENTS: Table<hoplite::Client> = Table::new(Type::Client);
pub(crate) static VIEWS: Table<Box<OpenView>> = Table::new(Type::View);
pub(crate) static BUFFERS: Table<Mutex<hoplite::Buffer>> = Table::new(Type::Buffer);
pub(crate) static LEASES: Table<hoplite::Lease> = Table::new(Type::Lease);
pub(crate) static REFS: Table<OpenRefs> = Table::new(Type::Refs);
pub(crate) static LOCATIONS: Table<OpenLocations> = Table::new(Type::Locations);
pub(crate) static TEXTS: Table<CString> = Table::new(Type::Text);

/// A node with the texts about it.
pub(crate) struct OpenNode {
    pub(crate) native: hoplite::Node,
    /// Number of forks before its start.
    pub(crate) fork: u32,
    pub(crate) id: CString,
    pub(crate) address: Option<CString>,
    pub(crate) socket: Option<CString>,
    pub(crate) failure: OnceLock<CString>,
}

/// A view, with the name of its dtype if that is no static text.
pub(crate) struct OpenView {
    pub(crate) view: hoplite::View,
    pub(crate) dtype: Option<CString>,
}

/// Refs, and the pointers to them.
pub(crate) struct OpenRefs {
    pub(crate) _texts: Vec<CString>,
    pub(crate) pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead to the texts in the same struct, which never change.
unsafe impl Send for OpenRefs {}
// SAFETY: as above.
unsafe impl Sync for OpenRefs {}

/// Locations, and the texts that they point to.
pub(crate) struct OpenLocations {
    pub(crate) _texts: Vec<(CString, Option<CString>)>,
    pub(crate) items: Vec<Location>,
}

// SAFETY: the pointers lead to the texts in the same struct, which never change.
unsafe impl Send for OpenLocations {}
// SAFETY: as above.
unsafe impl Sync for OpenLocations {}
