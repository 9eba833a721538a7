//! Refs: identifiers of objects that exist or will exist.

use std::fmt;

use hoplite_node::proto::id::ObjectId;

use crate::error::{Error, Result};

/// Identifies one object, by an id that `put` or `reduce` generated or by a name such as `policy/17`.
///
/// Refs with the same text are equal. A ref does not keep its object alive. Send its text to use it in another
/// process; every call that takes a ref also takes its text.
#[derive(Clone)]
pub struct Ref {
    text: Box<str>,
    replicas: Option<u32>,
}

impl Ref {
    pub(crate) fn new(id: &ObjectId) -> Self {
        Self { text: id.to_string().into(), replicas: None }
    }

    pub(crate) fn with_replicas(self, replicas: u32) -> Self {
        Self { replicas: Some(replicas), ..self }
    }

    /// The text of the ref.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Number of nodes that kept a copy when the `put` or `seal` that returned this ref completed. It is below the
    /// requested number if the cluster has fewer nodes, and None for refs from other calls.
    pub const fn replicas(&self) -> Option<u32> {
        self.replicas
    }

    /// The number at the end of a name, such as 17 for `policy/17`; None without one.
    pub fn number(&self) -> Option<u64> {
        match parse(self) {
            Ok(ObjectId::Named(name)) => name.version(),
            _ => None,
        }
    }
}

/// Parses a ref or a name.
///
/// # Errors
/// [`crate::ErrorKind::InvalidArgument`].
pub(crate) fn parse(text: impl AsRef<str>) -> Result<ObjectId> {
    text.as_ref().parse().map_err(Error::argument)
}

/// Parses several refs or names.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_all(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<ObjectId>> {
    texts.into_iter().map(parse).collect()
}

impl AsRef<str> for Ref {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({:?})", self.text)
    }
}

impl PartialEq for Ref {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Ref {}

impl std::hash::Hash for Ref {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
