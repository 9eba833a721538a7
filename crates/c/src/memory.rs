//! Memory of the caller that a call fills.

use std::{ffi::c_void, ptr::NonNull};

use crate::{arguments, errors::Result, versioned::null};

/// Memory of the caller, which belongs to the library until the call is over.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: until the call is over, nobody else uses the memory: the header obliges the caller.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// `out` is null or has `nbytes` writable bytes, which nobody else uses until the call is over.
    pub(crate) unsafe fn new(out: *mut c_void, nbytes: u64) -> Result<Self> {
        let length = arguments::length(nbytes, "nbytes")?;
        let start = match NonNull::new(out.cast::<u8>()) {
            Some(start) => start,
            None if length == 0 => NonNull::dangling(),
            None => return Err(null("out")),
        };
        Ok(Self { start, length })
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as the caller of `new` ensures.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}
