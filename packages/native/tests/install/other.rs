//! A library for C in Rust, which a program links together with libhoplite.a.
use std::collections::HashMap;

#[unsafe(no_mangle)]
pub extern "C" fn other_catches_a_panic() -> i32 {
    std::panic::set_hook(Box::new(|_| ()));
    let missing = std::panic::catch_unwind(|| HashMap::<u8, u8>::new()[&1]);
    i32::from(missing.is_err())
}
