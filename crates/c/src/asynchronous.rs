//! The asynchronous forms of the verbs.

use std::ffi::{c_char, c_void};

use hoplite::{Client as Native, signals::blocked};

use crate::{
    arguments::{limited, refs as texts, required, text},
    client,
    code::Code,
    entry::{Entry, Taken},
    errors::{Result, call},
    getting::{get_call, get_into_call, latest_call, wait_call},
    making::{create_call, put_call, reduce_call, reserve_call, seal_call},
    options::{CreateOptions, GetOptions, PutOptions, ReduceOptions},
    values::{Array, Buffer, Client, Pending},
};

/// Starts a call of a client, on threads that receive no signals, and writes its handle.
///
/// # Safety
/// `pending` is null or points to writable memory.
unsafe fn start<T: Taken>(
    client: Client,
    pending: *mut Pending,
    start: impl FnOnce(&Native) -> Result<hoplite::Pending<T>>,
) -> Code {
    call(|| {
        let out = required(pending, "pending")?;
        let client = client::of(client)?;
        let started = Entry::open(blocked(|| start(&client))?)?;
        // SAFETY: as the caller ensures.
        unsafe { out.write(started) };
        Ok(())
    })
}

/// Starts `hoplite_put`; `hoplite_pending_take_ref` returns its result. `value->data` must stay valid until the call is
/// over, taken or cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_put_async(
    client: Client,
    value: *const Array,
    options: *const PutOptions,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| Ok(put_call(client, value, options, timeout)?.start()))
    }
}

/// Starts `hoplite_create`; `hoplite_pending_take_buffer` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_create_async(
    client: Client,
    dtype: *const c_char,
    ndim: u32,
    shape: *const u64,
    options: *const CreateOptions,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(create_call(client, dtype, ndim, shape, options, timeout)?.start())
        })
    }
}

/// Starts `hoplite_seal`; `hoplite_pending_take_ref` returns its result. Releases the buffer at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_seal_async(
    buffer: *mut Buffer,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    call(|| {
        let out = required(pending, "pending")?;
        // SAFETY: the obligations of the header.
        let seal = unsafe { seal_call(buffer, timeout) }?;
        let started = Entry::open(blocked(|| seal.start()))?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(started) };
        Ok(())
    })
}

/// Starts `hoplite_reserve`; `hoplite_pending_take_ref` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_reserve_async(
    client: Client,
    name: *const c_char,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe { start(client, pending, |client| Ok(reserve_call(client, name, timeout)?.start())) }
}

/// Starts `hoplite_slots`; `hoplite_pending_take_refs` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_slots_async(
    client: Client,
    count: u32,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe { start(client, pending, |client| Ok(limited(client.slots(count), timeout)?.start())) }
}

/// Starts `hoplite_reduce`; `hoplite_pending_take_ref` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_reduce_async(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    op: *const c_char,
    options: *const ReduceOptions,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(reduce_call(client, (refs, n), op, options, timeout)?.start())
        })
    }
}

/// Starts `hoplite_get`; `hoplite_pending_take_view` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get_async(
    client: Client,
    r#ref: *const c_char,
    options: *const GetOptions,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| Ok(get_call(client, r#ref, options, timeout)?.start()))
    }
}

/// Starts `hoplite_get_into`; `hoplite_pending_take_size` returns its result. The memory at `out` must stay valid, and
/// belongs to the library, until the call is over, taken or cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get_into_async(
    client: Client,
    r#ref: *const c_char,
    out: *mut c_void,
    nbytes: u64,
    dtype: *const c_char,
    ndim: u32,
    shape: *const u64,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(get_into_call(client, r#ref, (out, nbytes), (dtype, ndim, shape), timeout)?.start())
        })
    }
}

/// Starts `hoplite_wait`; `hoplite_pending_take_ready` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_wait_async(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    count: usize,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| Ok(wait_call(client, (refs, n), count, timeout)?.start()))
    }
}

/// Starts `hoplite_inputs`; `hoplite_pending_take_refs` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_inputs_async(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(limited(client.inputs(text(r#ref, "ref")?), timeout)?.start())
        })
    }
}

/// Starts `hoplite_lost`; `hoplite_pending_take_refs` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_lost_async(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(limited(client.lost(text(r#ref, "ref")?), timeout)?.start())
        })
    }
}

/// Starts `hoplite_latest`; `hoplite_pending_take_ref` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_latest_async(
    client: Client,
    prefix: *const c_char,
    after: i64,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| Ok(latest_call(client, prefix, after, timeout)?.start()))
    }
}

/// Starts `hoplite_delete`; `hoplite_pending_take_done` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_delete_async(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(limited(client.delete(texts(refs, n)?), timeout)?.start())
        })
    }
}

/// Starts `hoplite_lease_acquire`; `hoplite_pending_take_lease` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_lease_acquire_async(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(limited(client.lease(text(r#ref, "ref")?), timeout)?.start())
        })
    }
}

/// Starts `hoplite_get_locations`; `hoplite_pending_take_locations` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get_locations_async(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe {
        start(client, pending, |client| {
            Ok(limited(client.locations(text(r#ref, "ref")?), timeout)?.start())
        })
    }
}

/// Starts `hoplite_status`; `hoplite_pending_take_text` returns its result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_status_async(
    client: Client,
    timeout: f64,
    pending: *mut Pending,
) -> Code {
    // SAFETY: the obligations of the header.
    unsafe { start(client, pending, |client| Ok(limited(client.status(), timeout)?.start())) }
}
