//! Settings from variables HOPLITE_<NAME> and from a TOML file, as in Python. Does not know nodes.

pub(crate) mod address;
pub(crate) mod kinds;
pub(crate) mod paths;
pub(crate) mod secrets;
pub(crate) mod source;
