//! placeholder; being written
#![no_std]
extern crate alloc;
pub mod limits;
pub mod meta;
pub mod ranges;
pub mod reduce;
