//! Fuzzes a node with arbitrary choices of a malicious member: see `crates/proto/tests/hostile`.

#![no_main]

#[path = "../../crates/proto/tests/hostile/choices.rs"]
mod choices;
#[allow(dead_code)]
#[path = "../../crates/proto/tests/hostile/shell.rs"]
mod shell;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shell::play(bytes));
