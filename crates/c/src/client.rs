//! Clients of nodes.

use std::{ffi::c_char, time::Duration};

use hoplite::{Client as Native, ClientOptions as NativeOptions};

use crate::{
    arguments::{self, optional_seconds, optional_text, required, text},
    code::Code,
    errors::{Failure, Result, call},
    fork,
    handles::Type,
    open::CLIENTS,
    options::ClientOptions,
    values::Client,
    versioned::read,
};

/// Opens a client of a node; starts an embedded node if there is none, which ends with the last client that uses it.
///
/// Without an address, the first of these that exists is used: the address in `HOPLITE_ADDRESS`; in a Slurm job, the
/// node of that job on this host; this user's node on this host (`hoplite node`); a node that another process of this
/// user has embedded; a new embedded node, with the settings of the environment.
///
/// @param address "local" for this host's node; "unix:" and the path of a node's socket; "host:port", several separated
/// by commas, for an embedded node that joins that cluster; NULL searches.
/// @param options NULL for the defaults.
/// @param timeout seconds to wait for the node.
/// @param[out] client handle of the client.
/// @return `HOPLITE_CONNECT_ERROR`, `HOPLITE_JOIN_ERROR`, `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_NOT_ALLOWED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_init(
    address: *const c_char,
    options: *const ClientOptions,
    timeout: f64,
    client: *mut Client,
) -> Code {
    call(|| {
        let out = required(client, "client")?;
        let limit = arguments::timeout(timeout)?;
        // SAFETY: the obligations of the header.
        let (address, options) =
            unsafe { (optional_text(address, "address")?, native_options(&read(options)?)?) };
        fork::register();
        let id = open(hoplite::init(address, options, limit)?)?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Client { id }) };
        Ok(())
    })
}

/// Opens a client of the node of this host that serves a socket.
///
/// @param address path of the socket, or "unix:" and the path.
/// @param options NULL for the defaults.
/// @param timeout seconds to wait for the node.
/// @param[out] client handle of the client.
/// @return `HOPLITE_CONNECT_ERROR` if no node replies there; `HOPLITE_NOT_ALLOWED` without a valid capability.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_connect(
    address: *const c_char,
    options: *const ClientOptions,
    timeout: f64,
    client: *mut Client,
) -> Code {
    call(|| {
        let out = required(client, "client")?;
        let limit = arguments::timeout(timeout)?;
        // SAFETY: the obligations of the header.
        let (address, options) =
            unsafe { (text(address, "address")?, native_options(&read(options)?)?) };
        fork::register();
        let id = open(hoplite::connect(address, options, limit)?)?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Client { id }) };
        Ok(())
    })
}

/// Closes a client and releases its handle. Its calls in progress and later ones return `HOPLITE_CLIENT_CLOSED`; its
/// views stay valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_client_close(client: Client) -> Code {
    call(|| {
        CLIENTS.remove(client.id)?.close();
        Ok(())
    })
}

/// The client of a handle.
///
/// # Errors
/// [`Code::ClientClosed`] after its close, and [`Code::InvalidHandle`] for what was never a client.
pub(crate) fn of(client: Client) -> Result<Native> {
    CLIENTS.get(client.id, Native::clone).map_err(|failure| match Type::of(client.id) {
        Some(Type::Client) => {
            let message =
                "this client was closed: open another with hoplite_connect or hoplite_init";
            Failure::new(Code::ClientClosed, message)
        }
        _ => failure,
    })
}

/// Opens a client for the caller.
pub(crate) fn open(native: Native) -> Result<u64> {
    CLIENTS.insert(native)
}

/// The options of the client core.
///
/// # Safety
/// The texts are null or NUL-terminated.
pub(crate) unsafe fn native_options(options: &ClientOptions) -> Result<NativeOptions> {
    // SAFETY: as the caller ensures.
    let text = |pointer, name| unsafe { optional_text(pointer, name) };
    Ok(NativeOptions {
        job: text(options.job, "job")?.map(str::to_owned),
        capability: text(options.capability, "capability")?.map(str::to_owned),
        reconnect: !options.no_reconnect.is_set(),
        digest: options.digest.is_set().then_some(true),
        timeout: match options.default_timeout {
            f64::INFINITY => Some(Duration::MAX),
            seconds => optional_seconds(seconds, "default_timeout")?,
        },
    })
}
