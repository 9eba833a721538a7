//! Arguments of a call, out of pointers and numbers of C.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr::NonNull,
    time::Duration,
};

use hoplite::{AXES_MAX, Call, Verb};

use crate::{
    errors::{Failure, Result},
    versioned::null,
};

/// A flag of C, of which any byte but 0 is true. A `bool` of Rust may not have other values than 0 and 1.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag(u8);

impl Flag {
    /// The flag of a `bool`.
    pub(crate) const fn new(is_set: bool) -> Self {
        Self(is_set as u8)
    }

    /// Whether it is set.
    pub(crate) const fn is_set(self) -> bool {
        self.0 != 0
    }
}

/// A pointer that the library passes back to the program.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: the library does not use the memory behind it.
unsafe impl Send for User {}

/// Memory for a result that must be there.
pub(crate) fn required<T>(pointer: *mut T, parameter: &str) -> Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(|| null(parameter))
}

/// A text that must be there.
///
/// # Safety
/// `pointer` is null, or points to a NUL-terminated text, which stays unchanged during the call.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, parameter: &str) -> Result<&'a str> {
    // SAFETY: as the caller ensures.
    unsafe { optional_text(pointer, parameter) }?.ok_or_else(|| null(parameter))
}

/// A text; None if it is null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    parameter: &str,
) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not null, and the caller ensures the rest.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map(Some).map_err(|error| {
        let at = error.valid_up_to();
        Failure::argument(format!("{parameter} is not UTF-8 at byte {at}: pass UTF-8 text"))
    })
}

/// The elements of a list.
///
/// # Safety
/// `pointer` is null, or points to `length` values, which stay unchanged during the call.
pub(crate) unsafe fn list<'a, T>(
    pointer: *const T,
    length: usize,
    parameter: &str,
) -> Result<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(parameter));
    }
    if length > isize::MAX as usize / size_of::<T>().max(1) {
        let message = format!("{parameter} has {length} elements: pass the actual number");
        return Err(Failure::argument(message));
    }
    // SAFETY: the pointer is not null, and the caller ensures the rest.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The lengths of the dimensions of an array.
///
/// # Safety
/// As [`list`].
pub(crate) unsafe fn shape<'a>(
    pointer: *const u64,
    ndim: u32,
    parameter: &str,
) -> Result<&'a [u64]> {
    // A struct that was not initialized has any number.
    if ndim as usize > AXES_MAX {
        let message = format!("{parameter} has {ndim} axes: use at most {AXES_MAX}");
        return Err(Failure::argument(message));
    }
    // SAFETY: as the caller ensures.
    unsafe { list(pointer, ndim as usize, parameter) }
}

/// The texts of a list of refs.
///
/// # Safety
/// As [`list`] and, for each element, [`text`].
pub(crate) unsafe fn refs<'a>(
    pointer: *const *const c_char,
    length: usize,
) -> Result<Vec<&'a str>> {
    // SAFETY: as the caller ensures.
    let all = unsafe { list(pointer, length, "refs") }?;
    let one = |(index, pointer): (usize, &*const c_char)| {
        // SAFETY: as the caller ensures.
        unsafe { text(*pointer, &format!("refs[{index}]")) }
    };
    all.iter().enumerate().map(one).collect()
}

/// `HOPLITE_DEFAULT_TIMEOUT`: the timeout of the client.
const DEFAULT_TIMEOUT: f64 = f64::NEG_INFINITY;

/// A call with its timeout; with that of its client for `HOPLITE_DEFAULT_TIMEOUT`.
pub(crate) fn limited<V: Verb>(call: Call<'_, V>, seconds: f64) -> Result<Call<'_, V>> {
    Ok(if seconds == DEFAULT_TIMEOUT { call } else { call.timeout(timeout(seconds)?) })
}

/// A timeout of a function without a client; None waits without limit.
pub(crate) fn timeout(seconds: f64) -> Result<Option<Duration>> {
    if seconds == DEFAULT_TIMEOUT {
        let message = "timeout is HOPLITE_DEFAULT_TIMEOUT, which only calls of a client have: pass seconds, or \
                       HOPLITE_NO_TIMEOUT to wait without limit";
        return Err(Failure::argument(message));
    }
    if seconds.is_nan() || seconds < 0.0 {
        let message = format!(
            "timeout is {seconds}: pass seconds, 0 or more, HOPLITE_DEFAULT_TIMEOUT, or HOPLITE_NO_TIMEOUT to wait \
             without limit"
        );
        return Err(Failure::argument(message));
    }
    // More seconds than a duration has are without limit, too.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// A time that is not given if it is zero.
pub(crate) fn optional_seconds(seconds: f64, parameter: &str) -> Result<Option<Duration>> {
    if seconds == 0.0 {
        return Ok(None);
    }
    Duration::try_from_secs_f64(seconds).map(Some).map_err(|_| {
        Failure::argument(format!("{parameter} is {seconds}: pass seconds above 0, or 0 for none"))
    })
}

/// A number of bytes.
pub(crate) fn length(nbytes: u64, parameter: &str) -> Result<usize> {
    usize::try_from(nbytes).ok().filter(|length| isize::try_from(*length).is_ok()).ok_or_else(
        || Failure::argument(format!("{parameter} is {nbytes}: pass the actual number of bytes")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_without_limit_is_none() {
        assert_eq!(timeout(0.0).unwrap(), Some(Duration::ZERO));
        assert_eq!(timeout(1.5).unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(timeout(f64::INFINITY).unwrap(), None);
        assert_eq!(timeout(1e300).unwrap(), None);
        for wrong in [-1.0, -0.5, f64::NAN, f64::NEG_INFINITY] {
            assert!(timeout(wrong).unwrap_err().message.starts_with("timeout is "));
        }
    }

    #[test]
    fn zero_seconds_are_not_given() {
        assert_eq!(optional_seconds(0.0, "ttl").unwrap(), None);
        assert_eq!(optional_seconds(2.0, "ttl").unwrap(), Some(Duration::from_secs(2)));
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(optional_seconds(wrong, "ttl").unwrap_err().message.starts_with("ttl is "));
        }
    }

    #[test]
    fn a_length_without_a_pointer_is_an_error() {
        // SAFETY: null pointers.
        unsafe {
            assert!(list::<u8>(std::ptr::null(), 0, "data").unwrap().is_empty());
            assert_eq!(
                list::<u8>(std::ptr::null(), 1, "data").unwrap_err().message,
                "data is NULL: pass a pointer"
            );
            let one = [1_u64];
            let wrong = shape(one.as_ptr(), u32::MAX, "shape").unwrap_err().message;
            assert_eq!(wrong, "shape has 4294967295 axes: use at most 64");
            assert_eq!(optional_text(std::ptr::null(), "name").unwrap(), None);
            let failure = text(c"a\xffb".as_ptr(), "name").unwrap_err();
            assert_eq!(failure.message, "name is not UTF-8 at byte 1: pass UTF-8 text");
        }
    }
}
