//! The verbs of a client: one `async fn` each, which waits as its mode requires.

pub(crate) mod checks;
pub(crate) mod create;
pub(crate) mod get;
pub(crate) mod into;
pub(crate) mod latest;
pub(crate) mod lease;
pub(crate) mod put;
pub(crate) mod reduce;
pub(crate) mod simple;
