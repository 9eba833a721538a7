//! The C ABI of Hoplite: `hoplite.h` declares its functions, which call the client core.
//!
//! Handles are numbers in tables, so that a wrong handle is an error. Structs begin with their size, so that programs of
//! an older header keep working. No panic and no signal leaves the library.
//!
//! The opening of `hoplite.h` states what a program must ensure: that pointers are null or valid for the described
//! length. The functions of this crate rely on it: "the obligations of the header".

#![expect(
    clippy::missing_safety_doc,
    reason = "the opening of the header has the obligations of every function"
)]

pub mod about;
mod arguments;
pub mod asynchronous;
pub mod client;
pub mod code;
mod entry;
mod errors;
mod fork;
pub mod getting;
mod handles;
pub mod lifetimes;
pub mod making;
mod memory;
mod names;
pub mod node;
mod open;
pub mod options;
mod origin;
mod outputs;
pub mod pending;
pub mod queue;
mod ready;
mod threads;
pub mod values;
mod versioned;
