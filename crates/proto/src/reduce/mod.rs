//! placeholder; being written
pub mod assign;
pub mod cost;
pub mod shape;
