//! Functions that create objects: put, create and seal, reserve, slots, reduce.
//!
//! A function named `..._call` reads the arguments of a verb; its blocking and its asynchronous form share it.

use std::{ffi::c_char, ptr::NonNull};

use hoplite::{Call, Client as Native, Create, Put, Reduce, Seal, Simple, Value};

use crate::{
    arguments::{self, limited, list, optional_seconds, optional_text, refs, required, text},
    client,
    code::Code,
    errors::{Result, call},
    names::BYTES,
    options::{CreateOptions, PutOptions, ReduceOptions},
    outputs::{open_buffer, open_refs, take_buffer, write_ref},
    values::{Array, Buffer, Client, Ref, Refs},
    versioned::{Out, read},
};

/// Copies a value into the store as a new immutable object.
///
/// @param value bytes or an array.
/// @param options NULL for the defaults.
/// @param timeout seconds to wait for memory in the store and for the replicas.
/// @param[out] ref ref of the object.
/// @return `HOPLITE_NAME_TAKEN`, `HOPLITE_STORE_FULL`, `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_UNSUPPORTED_DTYPE`,
/// `HOPLITE_TIMEOUT` if the replicas were not complete in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_put(
    client: Client,
    value: *const Array,
    options: *const PutOptions,
    timeout: f64,
    r#ref: *mut Ref,
) -> Code {
    call(|| {
        let out = required(r#ref, "ref")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        unsafe { write_ref(out, &put_call(&client, value, options, timeout)?.wait()?) }
    })
}

/// Allocates an array in the store, which the caller fills in place and seals without a copy.
///
/// @param dtype name of the dtype as in numpy; "bytes" or NULL for bytes, with their number as the only length.
/// @param ndim number of dimensions.
/// @param shape the `ndim` lengths; may be NULL if `ndim` is 0.
/// @param options NULL for the defaults.
/// @param timeout seconds to wait for memory in the store.
/// @param[out] buffer memory and ref of the object. Set its `size` before the call.
/// @return `HOPLITE_NAME_TAKEN` (for up to 32 KiB, `hoplite_seal` returns it), `HOPLITE_STORE_FULL`,
/// `HOPLITE_UNSUPPORTED_DTYPE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_create(
    client: Client,
    dtype: *const c_char,
    ndim: u32,
    shape: *const u64,
    options: *const CreateOptions,
    timeout: f64,
    buffer: *mut Buffer,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(buffer, "buffer") }?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        let create = unsafe { create_call(&client, dtype, ndim, shape, options, timeout) }?;
        open_buffer(out, create.wait()?)
    })
}

/// Completes an object. Its memory must not be used afterwards. Releases the buffer, also on an error.
///
/// @param buffer its `id` becomes 0.
/// @param timeout seconds to wait for the replicas.
/// @param[out] ref ref of the object; may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_seal(buffer: *mut Buffer, timeout: f64, r#ref: *mut Ref) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let sealed = unsafe { seal_call(buffer, timeout) }?.wait()?;
        match NonNull::new(r#ref) {
            // SAFETY: the obligations of the header.
            Some(out) => unsafe { write_ref(out, &sealed) },
            None => Ok(()),
        }
    })
}

/// Abandons an object that is not sealed, and releases the buffer. Calls that wait for the object return
/// `HOPLITE_OBJECT_LOST` or `HOPLITE_OBJECT_DELETED`.
///
/// @param buffer its `id` becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_discard(buffer: *mut Buffer) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        drop(unsafe { take_buffer(buffer) }?);
        Ok(())
    })
}

/// Reserves the ref or the name of an object that does not exist yet, so that others can wait for it or reduce it.
///
/// Only this client can create the object, with the ref as its name. If the client ends first, waiting calls get
/// `HOPLITE_OBJECT_LOST`, and others can reserve or put the name.
///
/// @param name name that no object has; NULL: a random one.
/// @param timeout seconds to wait for the node and, with a name, for the owner of the name.
/// @param[out] ref the ref.
/// @return `HOPLITE_NAME_TAKEN` if an object or another client has the name, `HOPLITE_INVALID_ARGUMENT`,
/// `HOPLITE_NOT_ALLOWED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_reserve(
    client: Client,
    name: *const c_char,
    timeout: f64,
    r#ref: *mut Ref,
) -> Code {
    call(|| {
        let out = required(r#ref, "ref")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        unsafe { write_ref(out, &reserve_call(&client, name, timeout)?.wait()?) }
    })
}

/// Makes slots: refs that any client of the cluster may put or create, each once, with the directory entry on the node
/// of this client.
///
/// Calls that wait for a slot that is not filled, and puts of it, get `HOPLITE_OBJECT_LOST` when this client ends.
///
/// @param count number of slots.
/// @param timeout seconds to wait for the node.
/// @param[out] refs the slots. Set its `size` before the call.
/// @return `HOPLITE_INVALID_ARGUMENT`, `HOPLITE_NOT_ALLOWED`, `HOPLITE_STORE_FULL` if the node has too many slots.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_slots(
    client: Client,
    count: u32,
    timeout: f64,
    refs: *mut Refs,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(refs, "refs") }?;
        let client = client::of(client)?;
        open_refs(out, &limited(client.slots(count), timeout)?.wait()?)
    })
}

/// Folds the first `count` inputs to exist into one new object. Returns at once; `hoplite_get` of the result waits. If
/// the client is closed or its process ends before the result is complete, readers get `HOPLITE_OBJECT_LOST`.
///
/// @param refs refs of arrays of one dtype and shape; they need not exist yet.
/// @param n number of refs.
/// @param op "sum", "min", "max", "prod" or another operation of the documentation.
/// @param options NULL for the defaults.
/// @param timeout seconds to wait for the node.
/// @param[out] ref ref of the result.
/// @return `HOPLITE_UNKNOWN_OP`, `HOPLITE_NAME_TAKEN`, `HOPLITE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_reduce(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    op: *const c_char,
    options: *const ReduceOptions,
    timeout: f64,
    r#ref: *mut Ref,
) -> Code {
    call(|| {
        let out = required(r#ref, "ref")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        unsafe {
            let reduce = reduce_call(&client, (refs, n), op, options, timeout)?;
            write_ref(out, &reduce.wait()?)
        }
    })
}

/// # Safety
/// The obligations of the header; the data stay valid until the call is over.
pub(crate) unsafe fn put_call(
    client: &Native,
    value: *const Array,
    options: *const PutOptions,
    timeout: f64,
) -> Result<Call<'_, Put<'static>>> {
    let value = required(value.cast_mut(), "value")?;
    // SAFETY: as the caller ensures.
    let (dtype, shape, bytes, options, name) = unsafe {
        let value = value.read();
        let options = read(options)?;
        (
            optional_text(value.dtype, "value->dtype")?,
            arguments::shape(value.shape, value.ndim, "value->shape")?,
            list(
                value.data.cast::<u8>(),
                arguments::length(value.nbytes, "value->nbytes")?,
                "value->data",
            )?,
            options,
            optional_text(options.name, "options->name")?,
        )
    };
    let value = Value::new(dtype.unwrap_or(BYTES), shape, bytes)?;
    let put = client
        .put(value)
        .retain((options.retain > 0).then_some(options.retain))
        .ttl(optional_seconds(options.ttl, "options->ttl")?)
        .replicas(options.replicas.max(1))
        .exist_ok(options.exist_ok.is_set())
        .newest(options.newest.is_set());
    let put = match name {
        Some(name) => put.name(name),
        None => put,
    };
    limited(put, timeout)
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn create_call(
    client: &Native,
    dtype: *const c_char,
    ndim: u32,
    shape: *const u64,
    options: *const CreateOptions,
    timeout: f64,
) -> Result<Call<'_, Create>> {
    // SAFETY: as the caller ensures.
    let (dtype, shape, options, name) = unsafe {
        let options = read(options)?;
        (
            optional_text(dtype, "dtype")?,
            arguments::shape(shape, ndim, "shape")?,
            options,
            optional_text(options.name, "options->name")?,
        )
    };
    let create = client
        .create(dtype.unwrap_or(BYTES), shape)
        .replicas(options.replicas.max(1))
        .ttl(optional_seconds(options.ttl, "options->ttl")?);
    let create = match name {
        Some(name) => create.name(name),
        None => create,
    };
    limited(create, timeout)
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn seal_call(buffer: *mut Buffer, timeout: f64) -> Result<Call<'static, Seal>> {
    // SAFETY: as the caller ensures.
    let buffer = unsafe { take_buffer(buffer) }?;
    limited(buffer.seal(), timeout)
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn reserve_call(
    client: &Native,
    name: *const c_char,
    timeout: f64,
) -> Result<Call<'_, Simple<hoplite::Ref>>> {
    // SAFETY: as the caller ensures.
    let reserve = match unsafe { optional_text(name, "name") }? {
        Some(name) => client.reserve_name(name),
        None => client.reserve(),
    };
    limited(reserve, timeout)
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn reduce_call(
    client: &Native,
    (inputs, n): (*const *const c_char, usize),
    op: *const c_char,
    options: *const ReduceOptions,
    timeout: f64,
) -> Result<Call<'_, Reduce>> {
    // SAFETY: as the caller ensures.
    let (inputs, op, options, name) = unsafe {
        let options = read(options)?;
        (refs(inputs, n)?, text(op, "op")?, options, optional_text(options.name, "options->name")?)
    };
    let reduce = client
        .reduce(inputs, op)
        .count((options.count > 0).then_some(options.count as usize))
        .ttl(optional_seconds(options.ttl, "options->ttl")?);
    let reduce = match name {
        Some(name) => reduce.name(name),
        None => reduce,
    };
    limited(reduce, timeout)
}
