//! Functions about asynchronous calls: wait, callbacks, results, cancel.

use std::{ffi::c_void, ptr::NonNull};

use hoplite::signals::blocked;

use crate::{
    arguments::{self, User, required},
    code::Code,
    entry::{Entry, PENDING},
    errors::call,
    open::LEASES,
    outputs::{
        open_buffer, open_locations, open_refs, open_text, open_view, write_ready, write_ref,
    },
    queue,
    values::{Buffer, Lease, Locations, Pending, Queue, Ref, Refs, Text, View},
    versioned::{Out, null},
};

/// Function that the library calls when an asynchronous call is over, on a thread of its own. It may call every function
/// of this header, and may block. Callbacks of several calls run at the same time.
///
/// `pending` has the id 0 if the call was taken or cancelled meanwhile. An exception must not leave the function.
pub type Callback = Option<unsafe extern "C" fn(user: *mut c_void, pending: Pending)>;

/// Waits until a call is over, with success or an error, without taking its result.
///
/// @param timeout seconds to wait.
/// @return `HOPLITE_TIMEOUT` if the call is not over by then; `HOPLITE_CANCELLED` if another thread cancels or takes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_wait(pending: Pending, timeout: f64) -> Code {
    call(|| Entry::of(pending)?.wait(arguments::timeout(timeout)?))
}

/// Registers a function that is called exactly once when the call is over, also if it is over already or is cancelled.
///
/// @param callback function; a call has at most one.
/// @param user first argument of the function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_on_done(
    pending: Pending,
    callback: Callback,
    user: *mut c_void,
) -> Code {
    call(|| {
        let callback = callback.ok_or_else(|| null("callback"))?;
        let user = User(user);
        let call = move || {
            let user = user;
            let id = if PENDING.contains(pending.id) { pending.id } else { 0 };
            // SAFETY: the header obliges the caller to pass a function that may be called on any thread.
            unsafe { callback(user.0, Pending { id }) };
        };
        blocked(|| Entry::of(pending)?.on_done(Box::new(call)))
    })
}

/// Adds a call to a queue once it is over. A call is in at most one queue.
///
/// @param user value that `hoplite_queue_next` returns with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_enqueue(
    pending: Pending,
    queue: Queue,
    user: *mut c_void,
) -> Code {
    call(|| queue::enqueue(pending, queue, User(user)))
}

/// Waits for a call and returns its code and ref: of put, seal, reserve, reduce, latest. Releases `pending`.
///
/// A call with a result of another type is not released: each take function returns `HOPLITE_INVALID_ARGUMENT` then.
///
/// @param[out] ref the ref; may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_ref(pending: Pending, r#ref: *mut Ref) -> Code {
    call(|| {
        let taken: hoplite::Ref = Entry::take(pending)?;
        match NonNull::new(r#ref) {
            // SAFETY: the obligations of the header.
            Some(out) => unsafe { write_ref(out, &taken) },
            None => Ok(()),
        }
    })
}

/// Waits for a get and returns its code and view. Releases `pending`.
///
/// @param[out] view the view. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_view(pending: Pending, view: *mut View) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(view, "view") }?;
        open_view(out, Entry::take(pending)?)
    })
}

/// Waits for a create and returns its code and buffer. Releases `pending`.
///
/// @param[out] buffer the buffer. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_buffer(
    pending: Pending,
    buffer: *mut Buffer,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(buffer, "buffer") }?;
        open_buffer(out, Entry::take(pending)?)
    })
}

/// Waits for a get into memory and returns its code and the number of bytes. Releases `pending`.
///
/// @param[out] copied number of bytes; may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_size(pending: Pending, copied: *mut u64) -> Code {
    call(|| {
        let number: u64 = Entry::take(pending)?;
        if !copied.is_null() {
            // SAFETY: the obligations of the header.
            unsafe { copied.write(number) };
        }
        Ok(())
    })
}

/// Waits for a wait and returns its code and indices. Releases `pending`.
///
/// @param[out] ready the indices.
/// @param room number of indices that fit at `ready`; the `n` of the call is enough.
/// @param[out] ready_count number of indices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_ready(
    pending: Pending,
    ready: *mut usize,
    room: usize,
    ready_count: *mut usize,
) -> Code {
    call(|| {
        let number = required(ready_count, "ready_count")?;
        let found: Vec<usize> = Entry::take(pending)?;
        // SAFETY: the obligations of the header.
        unsafe { write_ready(&found, ready, room, number) }
    })
}

/// Waits for an inputs, lost or slots call and returns its code and refs. Releases `pending`.
///
/// @param[out] refs the refs. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_refs(pending: Pending, refs: *mut Refs) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(refs, "refs") }?;
        open_refs(out, &Entry::take::<Vec<_>>(pending)?)
    })
}

/// Waits for a lease and returns its code and handle. Releases `pending`.
///
/// @param[out] lease the lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_lease(pending: Pending, lease: *mut Lease) -> Code {
    call(|| {
        let out = required(lease, "lease")?;
        let id = LEASES.insert(Entry::take(pending)?)?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Lease { id }) };
        Ok(())
    })
}

/// Waits for a locations call and returns its code and list. Releases `pending`.
///
/// @param[out] locations the list. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_locations(
    pending: Pending,
    locations: *mut Locations,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(locations, "locations") }?;
        open_locations(out, &Entry::take::<Vec<_>>(pending)?)
    })
}

/// Waits for a status call and returns its code and text. Releases `pending`.
///
/// @param[out] text the text. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_text(pending: Pending, text: *mut Text) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(text, "text") }?;
        open_text(out, &Entry::take::<String>(pending)?)
    })
}

/// Waits for a delete and returns its code. Releases `pending`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_take_done(pending: Pending) -> Code {
    call(|| Entry::take(pending))
}

/// Cancels a call and releases it. When this returns, the library no longer uses memory of the caller for it.
///
/// What the call has done already stays: a put may have created its object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_pending_cancel(pending: Pending) -> Code {
    call(|| Entry::cancel(pending))
}
