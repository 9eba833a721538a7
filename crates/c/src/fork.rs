//! Forks of the program: the child finds consistent tables, and keeps no socket of its parent open.

use std::{
    any::Any, cell::RefCell, mem::MaybeUninit, os::fd::RawFd, panic::catch_unwind, sync::Once,
};

use crate::{
    entry::PENDING,
    open::{BUFFERS, CLIENTS, LEASES, LOCATIONS, NODES, REFS, TEXTS, VIEWS},
    origin,
    ready::QUEUES,
};

/// Registers the handlers of forks, once in a process.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the handlers are functions of this library, which glibc removes with the library.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    });
}

thread_local! {
    /// The locked tables, between [`prepare`] and [`parent`] or [`child`].
    static LOCKED: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

unsafe extern "C" fn prepare() {
    // A panic here leaves the fork unprepared, and must not leave the library.
    let _ = catch_unwind(|| {
        hoplite::fork::prepare();
        let handles = (NODES.lock(), CLIENTS.lock(), PENDING.lock(), QUEUES.lock());
        let lists = (REFS.lock(), LOCATIONS.lock(), TEXTS.lock());
        let objects = (VIEWS.lock(), BUFFERS.lock(), LEASES.lock());
        LOCKED.set(Some(Box::new((handles, lists, objects))));
    });
}

unsafe extern "C" fn parent() {
    let _ = catch_unwind(|| {
        drop(LOCKED.take());
        hoplite::fork::parent();
    });
}

unsafe extern "C" fn child() {
    let _ = catch_unwind(|| {
        origin::count();
        drop(LOCKED.take());
        disconnect(&hoplite::fork::child());
    });
}

/// Replaces the sockets of the parent by `/dev/null`. Their owners in this process may still close the numbers.
fn disconnect(sockets: &[(RawFd, u64)]) {
    // SAFETY: the path is a text, and `stat` is memory of this function.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for (descriptor, inode) in sockets {
            let mut stat = MaybeUninit::<libc::stat>::zeroed();
            let is_open = libc::fstat(*descriptor, stat.as_mut_ptr()) == 0;
            if is_open && stat.assume_init_ref().st_ino == *inode {
                libc::dup3(null, *descriptor, libc::O_CLOEXEC);
            }
        }
        libc::close(null);
    }
}
