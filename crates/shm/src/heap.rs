//! The heap of this process. Does not know what it is used for.

/// Returns the pages of the heap that nothing uses to the system. By itself, glibc keeps those between pages in use. Takes
/// milliseconds per 100 MiB, during which other threads may wait for memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it has no preconditions, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
