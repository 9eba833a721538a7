//! Texts about the library and about the last call.

use std::ffi::{CStr, c_char};

use crate::{code::Code, errors};

/// Returns the version of the library, such as "0.1.0". The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn hoplite_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// Returns the name of a code, such as "HOPLITE_TIMEOUT"; "" if there is no such code. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn hoplite_code_name(code: i32) -> *const c_char {
    Code::of(code).map_or(c"", Code::name).as_ptr()
}

/// Returns the message of this thread's last call that failed, or "" if its last call succeeded.
///
/// The text is valid until this thread's next call of another function.
#[unsafe(no_mangle)]
pub extern "C" fn hoplite_last_error() -> *const c_char {
    errors::last()
}
