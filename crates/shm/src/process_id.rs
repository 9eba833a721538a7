//! The id of this process, without a system call. After a fork it differs from an id that was noted before.
//!
//! Linux removes the contents of a page marked `MADV_WIPEONFORK` from a child process. The page keeps the id, and a
//! child reads zero there and queries the system again. No fork handler runs, so no way to fork can bypass it.

use std::{
    ffi::c_void,
    process,
    ptr::{self, NonNull},
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::units::PAGE_BYTES;

/// The word that keeps the id. Null until the first call; never unmapped.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The word if the system cannot wipe a page (Linux before 4.14): always 0.
static UNSUPPORTED: AtomicU32 = AtomicU32::new(0);

/// The id of this process, as [`std::process::id`].
pub fn process_id() -> u32 {
    let word = word();
    match word.load(Ordering::Relaxed) {
        0 => {
            let id = process::id();
            if !ptr::eq(word, &raw const UNSUPPORTED) {
                // Other threads of this process store the same.
                word.store(id, Ordering::Relaxed);
            }
            id
        }
        id => id,
    }
}

fn word() -> &'static AtomicU32 {
    let mut word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        let new =
            wiped_page().map_or((&raw const UNSUPPORTED).cast_mut(), |page| page.cast().as_ptr());
        // No lock: a child forked during the first call would find it locked. A second thread's page stays unused.
        let set = WORD.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
        word = set.map_or_else(|first| first, |_| new);
    }
    // SAFETY: it points to `UNSUPPORTED`, or to the start of a zeroed page that is readable, writable and never
    // unmapped, so it is aligned and valid for the life of the process. All accesses are atomic.
    unsafe { &*word }
}

/// Maps a page whose contents a forked child does not get.
fn wiped_page() -> Option<NonNull<c_void>> {
    let (len, rights) = (PAGE_BYTES as usize, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: no address is requested, so the mapping replaces none.
    let page =
        unsafe { mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the range is the page that was just mapped, which nothing refers to.
    if unsafe { mm::madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _ = unsafe { mm::munmap(page, len) };
        return None;
    }
    NonNull::new(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_finds_its_own_id() {
        assert_eq!(process_id(), process::id());
        assert!(!ptr::eq(word(), &raw const UNSUPPORTED), "this system wipes pages");
        // SAFETY: the child only calls functions that neither allocate nor lock, then exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_own = process_id() == process::id() && process_id() == process::id();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if is_own { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert_eq!(process_id(), process::id());
    }
}
