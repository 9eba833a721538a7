//! Signals: threads of the library receive none, so that a handler of the program never runs on them.

use std::mem::MaybeUninit;

/// Runs a call that may start threads, which start with every signal blocked.
pub(crate) fn blocked<T>(call: impl FnOnce() -> T) -> T {
    let _restored = Mask::block();
    call()
}

/// The mask of this thread before, which is restored at the end.
struct Mask(libc::sigset_t);

impl Mask {
    fn block() -> Self {
        let (mut all, mut before) =
            (MaybeUninit::uninit(), MaybeUninit::<libc::sigset_t>::zeroed());
        // SAFETY: both sets are memory of this function, and `sigfillset` initializes the first before it is read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: `pthread_sigmask` returned this set.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
