//! Fuzzes the local protocol: see `crates/node/src/fuzzed/local.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hoplite_node::fuzzed::local(bytes));
