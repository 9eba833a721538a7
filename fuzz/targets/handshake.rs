//! Fuzzes the handshake: see `crates/node/src/fuzzed/handshake.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_node::fuzzed::handshake(bytes));
