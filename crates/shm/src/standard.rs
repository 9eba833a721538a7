//! Keeps descriptors 0, 1 and 2 of this process taken, so that none of ours gets such a number.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, IntoRawFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::{FdFlags, fcntl_getfd, fcntl_setfd},
    stdio::{stderr, stdin, stdout},
};

/// Opens /dev/null as each of the descriptors 0, 1 and 2 that is closed, as the runtime of a Rust program does at its
/// start. Call it before the first descriptor is opened.
///
/// The kernel gives a new descriptor the lowest free number. If a program has closed its descriptor 2, a socket would
/// get that number, and a line that the program prints would go to the peer. A closed number is taken once here, rather
/// than by moving each new descriptor to a higher one: sockets are also opened by libraries, which have no such option.
///
/// # Errors
/// A descriptor is closed, and /dev/null can't be opened.
pub fn fill_standard_descriptors() -> io::Result<()> {
    let is_open = |descriptor: BorrowedFd<'_>| fcntl_getfd(descriptor).is_ok();
    while !(is_open(stdin()) && is_open(stdout()) && is_open(stderr())) {
        // Closed when another thread executes a program meanwhile.
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        if null.as_raw_fd() > 2 {
            // Another thread has taken the number meanwhile, so the next check finds it open.
            continue;
        }
        // Children inherit the standard descriptors.
        fcntl_setfd(&null, FdFlags::empty())?;
        let _: i32 = null.into_raw_fd();
    }
    Ok(())
}
