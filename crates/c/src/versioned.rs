//! Structs that begin with their size, of programs that were compiled with an older or a newer header.

use std::{
    mem::{MaybeUninit, size_of},
    ptr::NonNull,
};

use crate::errors::{Failure, Result};

/// A struct of the header that begins with `size`.
///
/// # Safety
/// The type is `repr(C)`, its first field is `size: usize`, and every value of its bytes is valid.
pub(crate) unsafe trait Versioned: Copy {
    /// Its name in the header.
    const NAME: &'static str;
}

/// The smallest size: that of the field `size`.
const LEAST: usize = size_of::<usize>();

/// The largest size. That of a struct that nobody initialized is an arbitrary number.
const MOST: usize = 1 << 14;

fn wrong_size<T: Versioned>(size: usize, reason: &str) -> Failure {
    let name = T::NAME;
    Failure::argument(format!(
        "the size of the {name} is {size}, {reason}: initialize it with HOPLITE_INIT({name})"
    ))
}

/// Reads options. Fields past the size of the caller are zero, as are all without a struct.
///
/// # Safety
/// `pointer` is null, or points to as many readable bytes as its field `size` has.
pub(crate) unsafe fn read<T: Versioned>(pointer: *const T) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !pointer.is_null() {
        // SAFETY: the caller passes a pointer to at least the field `size`.
        let size = unsafe { pointer.cast::<usize>().read() };
        if size < LEAST {
            return Err(wrong_size::<T>(size, "too small"));
        }
        if size > MOST {
            return Err(wrong_size::<T>(size, "too large"));
        }
        if size > size_of::<T>() {
            // SAFETY: the caller's struct has `size` bytes.
            let bytes = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), size) };
            if bytes[size_of::<T>()..].iter().any(|byte| *byte != 0) {
                let message = format!(
                    "the {} has {size} bytes, with options that this version {} of the library does not have: update \
                     the library, or leave them 0",
                    T::NAME,
                    env!("CARGO_PKG_VERSION")
                );
                return Err(Failure::argument(message));
            }
        }
        let common = size.min(size_of::<T>());
        // SAFETY: the caller's struct has `common` readable bytes, and the value as many writable ones.
        unsafe {
            value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(pointer.cast(), common);
        }
    }
    // SAFETY: all bytes are initialized, and every value of them is valid.
    Ok(unsafe { value.assume_init() })
}

/// The memory of a caller for a struct of results.
pub(crate) struct Out<T> {
    pointer: NonNull<T>,
    size: usize,
}

impl<T: Versioned> Out<T> {
    /// Checks the memory before the call that fills it.
    ///
    /// # Safety
    /// `pointer` is null, or points to as many writable bytes as its field `size` has, until the last use.
    pub(crate) unsafe fn new(pointer: *mut T, parameter: &str) -> Result<Self> {
        let Some(pointer) = NonNull::new(pointer) else { return Err(null(parameter)) };
        // SAFETY: the caller passes a pointer to at least the field `size`.
        let size = unsafe { pointer.cast::<usize>().read() };
        if size < size_of::<T>() {
            return Err(wrong_size::<T>(size, "too small"));
        }
        if size > MOST {
            return Err(wrong_size::<T>(size, "too large"));
        }
        Ok(Self { pointer, size })
    }

    /// Writes a value, except for its size. Fields that this version does not know become zero.
    pub(crate) fn write(self, value: &T) {
        let (from, to) = (std::ptr::from_ref(value).cast::<u8>(), self.pointer.cast::<u8>());
        // SAFETY: the memory has `size` writable bytes, of which the value has the first ones. Both begin with the size.
        unsafe {
            let (from, rest) = (from.add(LEAST), to.add(LEAST));
            rest.as_ptr().copy_from_nonoverlapping(from, size_of::<T>() - LEAST);
            to.add(size_of::<T>()).write_bytes(0, self.size - size_of::<T>());
        }
    }
}

/// The error of a null pointer.
pub(crate) fn null(parameter: &str) -> Failure {
    Failure::argument(format!("{parameter} is NULL: pass a pointer"))
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;
    use crate::code::Code;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Known {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: `repr(C)` with the size first; numbers may have any value.
    unsafe impl Versioned for Known {
        const NAME: &'static str = "hoplite_known";
    }

    /// A struct of a newer header.
    #[repr(C)]
    struct Newer {
        known: Known,
        third: u64,
    }

    fn known(size: usize) -> Known {
        Known { size, first: 1, second: 2 }
    }

    #[test]
    fn fields_past_the_size_of_the_caller_are_zero() {
        // SAFETY: the structs have at least the bytes of their sizes.
        let of = |options: &Known| unsafe { read(options) }.unwrap();
        assert_eq!(of(&known(24)), known(24));
        assert_eq!(of(&known(16)), Known { second: 0, ..known(16) });
        assert_eq!(of(&known(8)), Known { first: 0, second: 0, size: 8 });
        // SAFETY: null.
        let missing = unsafe { read::<Known>(null()) };
        assert_eq!(missing.unwrap(), Known { size: 0, first: 0, second: 0 });
    }

    #[test]
    fn unknown_options_must_be_zero() {
        let mut newer = Newer { known: known(size_of::<Newer>()), third: 0 };
        // SAFETY: the struct has the bytes of its size.
        let of = |options: &Newer| unsafe { read((&raw const *options).cast::<Known>()) };
        assert_eq!(of(&newer).unwrap(), newer.known);
        newer.third = 1;
        let failure = of(&newer).unwrap_err();
        assert_eq!(failure.code, Code::InvalidArgument);
        assert!(failure.message.contains("hoplite_known has 32 bytes"), "{}", failure.message);
    }

    #[test]
    fn a_struct_without_its_size_is_an_error() {
        for size in [0, 7, 1 << 15, usize::MAX] {
            // SAFETY: the struct has more bytes than a size that is too small, and of others only the size is read.
            let failure = unsafe { read(&known(size)) }.unwrap_err();
            assert!(failure.message.contains("HOPLITE_INIT(hoplite_known)"), "{}", failure.message);
        }
    }

    #[test]
    fn a_result_keeps_the_size_and_clears_what_is_unknown() {
        let mut newer = Newer { known: known(size_of::<Newer>()), third: 9 };
        let pointer = (&raw mut newer).cast::<Known>();
        // SAFETY: the struct has the bytes of its size.
        let out = unsafe { Out::new(pointer, "known") }.unwrap();
        out.write(&Known { size: 0, first: 5, second: 6 });
        assert_eq!(newer.known, Known { size: size_of::<Newer>(), first: 5, second: 6 });
        assert_eq!(newer.third, 0);
    }

    #[test]
    fn a_result_needs_its_whole_struct() {
        let mut small = known(16);
        // SAFETY: the struct has more bytes than its size; null is an error.
        let (short, missing) = unsafe {
            (
                Out::new(&raw mut small, "known").err(),
                Out::<Known>::new(std::ptr::null_mut(), "known").err(),
            )
        };
        assert!(short.unwrap().message.contains("is 16, too small"));
        let mut garbage = known(usize::MAX);
        // SAFETY: only the size is read.
        let large = unsafe { Out::new(&raw mut garbage, "known") }.err();
        assert!(large.unwrap().message.contains("too large"));
        assert_eq!(missing.unwrap().message, "known is NULL: pass a pointer");
    }
}
