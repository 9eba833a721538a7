//! Threads of the program that end during a call, or make it while they end.

use std::{ffi::c_int, io, ptr::null_mut, thread};

unsafe extern "C" {
    // The crate `libc` lacks it.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Defers `pthread_cancel` of this thread: it would unwind the frames of the library, and so end the process.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn begin() -> Self {
        let mut before = PTHREAD_CANCEL_DISABLE;
        // SAFETY: `before` is memory of this function.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the system returned this state.
        unsafe { pthread_setcancelstate(self.0, null_mut()) };
    }
}

/// Makes a call on another thread, and waits for it: this one has destroyed what the library keeps for each thread. So
/// destructors of static and of thread-local objects, which run then, can make calls.
///
/// # Errors
/// The system can't start a thread.
pub(crate) fn elsewhere<T>(call: impl FnOnce() -> T) -> io::Result<T> {
    let call = Lent(call);
    let run = move || Lent({ call }.0());
    let joined = thread::scope(|scope| {
        let builder = thread::Builder::new().name("hoplite-ending".into());
        builder.spawn_scoped(scope, run).map(thread::ScopedJoinHandle::join)
    });
    match joined? {
        Ok(Lent(result)) => Ok(result),
        Err(panicked) => std::panic::resume_unwind(panicked),
    }
}

/// What another thread uses while its owner waits.
struct Lent<T>(T);

// SAFETY: the owner waits until the other thread has ended, so only one of them uses the value at a time.
unsafe impl<T> Send for Lent<T> {}
