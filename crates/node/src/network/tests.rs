//! What tests of the network share.

pub(super) mod own_ca;
