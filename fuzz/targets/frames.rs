//! Fuzzes frames: see `crates/node/src/fuzzed/frames.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_node::fuzzed::frames(bytes));
