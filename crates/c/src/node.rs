//! Embedded nodes.

use std::{
    ffi::{CStr, CString, c_char},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    ptr::null,
    sync::{Arc, OnceLock},
    time::Duration,
};

use hoplite::{Node as Native, NodeOptions as NativeOptions};

use crate::{
    arguments::{self, Flag, optional_seconds, optional_text, required},
    client,
    code::Code,
    errors::{Result, call},
    fork,
    open::{NODES, OpenNode},
    options::{ClientOptions, NodeOptions},
    origin,
    outputs::c_text,
    values::{Client, Node, NodeInfo},
    versioned::{Out, read},
};

/// The longest time that a node takes to hand over its objects: without limit.
const NO_LIMIT: Duration = Duration::from_secs(1_000_000_000);

/// Starts an embedded node, which runs on threads of this process until `hoplite_node_close` or the end of the process.
///
/// @param options NULL for the defaults.
/// @param[out] node handle of the node.
/// @return `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_ADDRESS_IN_USE`, `HOPLITE_JOIN_ERROR`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_node_start(options: *const NodeOptions, node: *mut Node) -> Code {
    call(|| {
        let out = required(node, "node")?;
        // SAFETY: the obligations of the header.
        let options = unsafe { native_options(&read(options)?) }?;
        fork::register();
        let native = Native::start(options)?;
        let socket = native.socket().map(|path| CString::new(path.as_os_str().as_bytes()));
        let open = OpenNode {
            fork: origin::number(),
            id: c_text(&native.id()),
            address: native.address().as_deref().map(c_text),
            socket: socket.and_then(std::result::Result::ok),
            failure: OnceLock::new(),
            native,
        };
        let id = NODES.insert(Arc::new(open))?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Node { id }) };
        Ok(())
    })
}

/// Returns id, address, socket and state of a node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_node_get_info(node: Node, info: *mut NodeInfo) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(info, "info") }?;
        let node = NODES.get(node.id, Arc::clone)?;
        let text = |text: &Option<CString>| text.as_deref().map_or(null(), CStr::as_ptr);
        let failure = node.native.failure();
        let failure = failure.map(|reason| node.failure.get_or_init(|| c_text(&reason)).as_ptr());
        out.write(&NodeInfo {
            size: 0,
            id: node.id.as_ptr(),
            address: text(&node.address),
            socket: text(&node.socket),
            closed: Flag::new(node.native.is_closed()),
            failure: failure.unwrap_or(null()),
        });
        Ok(())
    })
}

/// Opens a client of an embedded node.
///
/// @param options NULL for the defaults.
/// @param[out] client handle of the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_node_client(
    node: Node,
    options: *const ClientOptions,
    client: *mut Client,
) -> Code {
    call(|| {
        let out = required(client, "client")?;
        // SAFETY: the obligations of the header.
        let options = unsafe { client::native_options(&read(options)?) }?;
        let node = NODES.get(node.id, Arc::clone)?;
        origin::check(node.fork, "node")?;
        let id = client::open(node.native.client(options)?)?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Client { id }) };
        Ok(())
    })
}

/// Closes a node and releases its handle. Objects without another copy in the cluster are first sent to other nodes.
///
/// @param timeout seconds for the transfer of the objects; 0 sends none.
/// @param[out] complete whether every object has a copy elsewhere; may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_node_close(node: Node, timeout: f64, complete: *mut bool) -> Code {
    call(|| {
        let limit = arguments::timeout(timeout)?.unwrap_or(NO_LIMIT);
        let node = NODES.remove(node.id)?;
        if origin::check(node.fork, "node").is_err() {
            // Its threads run in the parent.
            std::mem::forget(node);
            return origin::check(u32::MAX, "node");
        }
        let is_complete = node.native.close(Some(limit));
        if !complete.is_null() {
            // SAFETY: the obligations of the header.
            unsafe { complete.write(is_complete) };
        }
        Ok(())
    })
}

/// The options of the client core.
///
/// # Safety
/// The texts are null or NUL-terminated.
unsafe fn native_options(options: &NodeOptions) -> Result<NativeOptions> {
    let text = |pointer: *const c_char, name: &str| {
        // SAFETY: as the caller ensures.
        unsafe { optional_text(pointer, name) }.map(|text| text.map(str::to_owned))
    };
    let path = |pointer, name| text(pointer, name).map(|text| text.map(PathBuf::from));
    let flag = |flag: Flag| flag.is_set().then_some(true);
    let number = |number: u64| (number > 0).then_some(number);
    let join = text(options.join, "join")?;
    Ok(NativeOptions {
        listen: text(options.listen, "listen")?,
        advertise: text(options.advertise, "advertise")?,
        join: join.map(|all| all.split(',').map(|one| one.trim().to_owned()).collect()),
        capacity: number(options.capacity),
        spill: path(options.spill, "spill")?,
        spill_limit: number(options.spill_limit),
        spill_persistent: flag(options.spill_persistent),
        cluster: text(options.cluster, "cluster")?,
        token: text(options.token, "token")?,
        token_file: path(options.token_file, "token_file")?,
        certificate: path(options.certificate, "certificate")?,
        key: path(options.key, "key")?,
        ca: path(options.ca, "ca")?,
        crl: path(options.crl, "crl")?,
        no_encryption: flag(options.no_encryption),
        no_auth: flag(options.no_auth),
        require_capability: flag(options.require_capability),
        rack: text(options.rack, "rack")?,
        detection_timeout: optional_seconds(options.detection_timeout, "detection_timeout")?,
        socket: path(options.socket, "socket")?,
        ..NativeOptions::default()
    })
}
