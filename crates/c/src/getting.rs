//! Functions that read objects: get, wait, the inputs of a reduce, latest.
//!
//! A function named `..._call` reads the arguments of a verb; its blocking and its asynchronous form share it.

use std::ffi::{c_char, c_void};

use hoplite::{Call, Client as Native, Get, GetInto, Latest, Simple};

use crate::{
    arguments::{self, Flag, limited, optional_text, refs as texts, required, text},
    client,
    code::Code,
    errors::{Failure, Result, call},
    memory::Memory,
    open::{REFS, VIEWS},
    options::GetOptions,
    outputs::{open_refs, open_view, take_id, write_ready, write_ref},
    values::{Client, Ref, Refs, View},
    versioned::{Out, read},
};

/// Waits until an object is complete on this node, and returns its bytes in shared memory, without a copy.
///
/// @param ref ref or name of the object.
/// @param options NULL for the whole object.
/// @param timeout seconds to wait; `HOPLITE_NO_TIMEOUT` waits until the object exists or can no longer appear.
/// @param[out] view the bytes with dtype and shape. Set its `size` before the call.
/// @return `HOPLITE_TIMEOUT`, `HOPLITE_OBJECT_LOST`, `HOPLITE_OBJECT_DELETED`, `HOPLITE_OBJECT_CORRUPT`,
/// `HOPLITE_STORE_FULL`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get(
    client: Client,
    r#ref: *const c_char,
    options: *const GetOptions,
    timeout: f64,
    view: *mut View,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(view, "view") }?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        let get = unsafe { get_call(&client, r#ref, options, timeout) }?;
        open_view(out, get.wait()?)
    })
}

/// Releases a view: its pointers must not be used afterwards.
///
/// @param view its `id` becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_view_release(view: *mut View) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        drop(VIEWS.remove(unsafe { take_id(view, "view", |view| &raw mut (*view).id) }?)?);
        Ok(())
    })
}

/// Copies an object into memory of the caller, while it arrives.
///
/// @param ref ref or name of the object.
/// @param out memory for the bytes; its content is undefined after an error.
/// @param nbytes bytes at `out`: exactly those of the object.
/// @param dtype dtype that the object must have; NULL accepts any dtype and shape.
/// @param ndim number of dimensions that the object must have; ignored without `dtype`.
/// @param shape the `ndim` lengths; may be NULL if `ndim` is 0.
/// @param timeout seconds to wait.
/// @param[out] copied number of bytes copied; may be NULL.
/// @return as `hoplite_get`; `HOPLITE_SHAPE_MISMATCH` if size, dtype or shape differ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get_into(
    client: Client,
    r#ref: *const c_char,
    out: *mut c_void,
    nbytes: u64,
    dtype: *const c_char,
    ndim: u32,
    shape: *const u64,
    timeout: f64,
    copied: *mut u64,
) -> Code {
    call(|| {
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        let get =
            unsafe { get_into_call(&client, r#ref, (out, nbytes), (dtype, ndim, shape), timeout) }?;
        let number = get.wait()?;
        if !copied.is_null() {
            // SAFETY: the obligations of the header.
            unsafe { copied.write(number) };
        }
        Ok(())
    })
}

/// Waits until `count` objects are ready: complete on some node, deleted or lost.
///
/// @param refs refs or names, each listed once; they need not exist yet.
/// @param n number of refs.
/// @param count number of objects to wait for, at most `n`.
/// @param timeout seconds to wait; 0 returns the current state. Fewer ready objects are not an error.
/// @param[out] ready indices into `refs` in the order in which the objects became ready. It has room for `n`.
/// @param[out] ready_count number of indices, at most `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_wait(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    count: usize,
    timeout: f64,
    ready: *mut usize,
    ready_count: *mut usize,
) -> Code {
    call(|| {
        let number = required(ready_count, "ready_count")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        let found = unsafe { wait_call(&client, (refs, n), count, timeout) }?.wait()?;
        // SAFETY: the obligations of the header.
        unsafe { write_ready(&found, ready, n, number) }
    })
}

/// Returns the inputs that a reduce folded into its result. Waits until they are decided.
///
/// @param ref result of a `hoplite_reduce` of a client of this node.
/// @param timeout seconds to wait.
/// @param[out] refs the inputs. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_inputs(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    refs: *mut Refs,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let (out, r#ref) = unsafe { (Out::new(refs, "refs")?, text(r#ref, "ref")?) };
        let client = client::of(client)?;
        open_refs(out, &limited(client.inputs(r#ref), timeout)?.wait()?)
    })
}

/// Returns the inputs of a reduce that can no longer be folded, because they were lost or deleted.
///
/// @param ref result of a `hoplite_reduce` of a client of this node.
/// @param timeout seconds to wait.
/// @param[out] refs the lost inputs. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_lost(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    refs: *mut Refs,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let (out, r#ref) = unsafe { (Out::new(refs, "refs")?, text(r#ref, "ref")?) };
        let client = client::of(client)?;
        open_refs(out, &limited(client.lost(r#ref), timeout)?.wait()?)
    })
}

/// Releases a list of refs: its pointers must not be used afterwards.
///
/// @param refs its `id` becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_refs_release(refs: *mut Refs) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        drop(REFS.remove(unsafe { take_id(refs, "refs", |refs| &raw mut (*refs).id) }?)?);
        Ok(())
    })
}

/// Returns the ref of the newest object under a prefix: the one with the highest number after it.
///
/// @param prefix prefix of the names, which ends in "/".
/// @param after wait for a higher number than this; -1 accepts any.
/// @param timeout seconds to wait for the object.
/// @param[out] ref ref of the object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_latest(
    client: Client,
    prefix: *const c_char,
    after: i64,
    timeout: f64,
    r#ref: *mut Ref,
) -> Code {
    call(|| {
        let out = required(r#ref, "ref")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        unsafe { write_ref(out, &latest_call(&client, prefix, after, timeout)?.wait()?) }
    })
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn get_call(
    client: &Native,
    reference: *const c_char,
    options: *const GetOptions,
    timeout: f64,
) -> Result<Call<'_, Get>> {
    // SAFETY: as the caller ensures.
    let get = limited(client.get(unsafe { text(reference, "ref") }?), timeout)?;
    if options.is_null() {
        return Ok(get);
    }
    // SAFETY: as the caller ensures.
    let part = unsafe { read(options) }?;
    let bound = |is_given: Flag, bound: i64| is_given.is_set().then_some(bound);
    Ok(match (bound(part.has_start, part.start), bound(part.has_stop, part.stop)) {
        (None, None) => get,
        (start, stop) => get.part(start, stop),
    })
}

/// # Safety
/// The obligations of the header; the memory stays valid until the call is over.
pub(crate) unsafe fn get_into_call(
    client: &Native,
    reference: *const c_char,
    (out, nbytes): (*mut c_void, u64),
    (dtype, ndim, shape): (*const c_char, u32, *const u64),
    timeout: f64,
) -> Result<Call<'_, GetInto<Memory>>> {
    // SAFETY: as the caller ensures.
    let (reference, memory, dtype) = unsafe {
        (text(reference, "ref")?, Memory::new(out, nbytes)?, optional_text(dtype, "dtype")?)
    };
    let get = limited(client.get_into(reference, memory), timeout)?;
    let Some(dtype) = dtype else { return Ok(get) };
    // SAFETY: as the caller ensures.
    Ok(get.expect(dtype, unsafe { arguments::shape(shape, ndim, "shape") }?))
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn wait_call(
    client: &Native,
    (refs, n): (*const *const c_char, usize),
    count: usize,
    timeout: f64,
) -> Result<Call<'_, Simple<Vec<usize>>>> {
    // SAFETY: as the caller ensures.
    limited(client.wait_for(unsafe { texts(refs, n) }?, count), timeout)
}

/// # Safety
/// The obligations of the header.
pub(crate) unsafe fn latest_call(
    client: &Native,
    prefix: *const c_char,
    after: i64,
    timeout: f64,
) -> Result<Call<'_, Latest>> {
    if after < -1 {
        let message = format!("after is {after}: pass a number of 0 or more, or -1 for any");
        return Err(Failure::argument(message));
    }
    // SAFETY: as the caller ensures.
    let latest = client.latest(unsafe { text(prefix, "prefix") }?);
    limited(latest.after(u64::try_from(after).ok()), timeout)
}
