//! Queues of asynchronous calls that are over, for event loops of programs.

use std::{
    ffi::{c_int, c_void},
    os::fd::AsRawFd,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io,
};

use crate::{
    arguments::{User, required},
    code::Code,
    entry::Entry,
    errors::{Failure, Result, call},
    origin,
    ready::{OpenQueue, QUEUES, of},
    values::{Pending, Queue},
};

/// Makes a queue of calls that are over, for an event loop.
///
/// @param[out] queue handle of the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_queue_new(queue: *mut Queue) -> Code {
    call(|| {
        let out = required(queue, "queue")?;
        let open = OpenQueue {
            fork: origin::number(),
            descriptor: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(limit)?,
            ready: Mutex::default(),
        };
        let id = QUEUES.insert(Arc::new(open))?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Queue { id }) };
        Ok(())
    })
}

/// Returns a file descriptor that is readable while the queue is not empty, for poll, epoll or select.
///
/// The descriptor belongs to the queue: do not read, write or close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_queue_fd(queue: Queue, fd: *mut c_int) -> Code {
    call(|| {
        let out = required(fd, "fd")?;
        let descriptor = of(queue)?.descriptor.as_raw_fd();
        // SAFETY: the obligations of the header.
        unsafe { out.write(descriptor) };
        Ok(())
    })
}

/// Removes the oldest call from the queue, without waiting. The caller takes its result.
///
/// @param[out] pending the call.
/// @param[out] user the value of `hoplite_pending_enqueue`; may be NULL.
/// @return `HOPLITE_NOT_READY` if the queue is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_queue_next(
    queue: Queue,
    pending: *mut Pending,
    user: *mut *mut c_void,
) -> Code {
    call(|| {
        let out = required(pending, "pending")?;
        let Some((next, value)) = of(queue)?.next() else {
            let message = "the queue is empty: wait until its descriptor is readable";
            return Err(Failure::new(Code::NotReady, message));
        };
        // SAFETY: the obligations of the header.
        unsafe {
            out.write(next);
            if let Some(user) = NonNull::new(user) {
                user.write(value.0);
            }
        }
        Ok(())
    })
}

/// Closes a queue, and releases it and its descriptor. Its calls go on, and can be waited for and taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_queue_close(queue: Queue) -> Code {
    call(|| {
        drop(QUEUES.remove(queue.id)?);
        Ok(())
    })
}

/// Adds a call to a queue once it is over.
pub(crate) fn enqueue(pending: Pending, queue: Queue, user: User) -> Result<()> {
    let queue = Arc::downgrade(&of(queue)?);
    let push = move || {
        let user = user;
        if let Some(queue) = queue.upgrade() {
            queue.push(pending, user);
        }
    };
    Entry::of(pending)?.when_done(Box::new(push))
}

fn limit(error: io::Errno) -> Failure {
    let message = format!(
        "can't open a descriptor for the queue ({error}): close files, or raise the limit with ulimit -n"
    );
    Failure::new(Code::HostError, message)
}
