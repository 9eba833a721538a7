//! Tests of nodes and attached processes over real sockets.

pub(super) mod hostile;
mod overload;
