//! Results that create an object, which must not stay if nobody takes the result.

use std::fmt;

use hoplite_node::{Client as Native, proto::id::ObjectId};

/// The result of a verb, with the object that it created, if any.
pub struct Outcome<T> {
    value: T,
    created: Discard,
}

impl<T> Outcome<T> {
    /// A result with the object that it created.
    pub(crate) const fn new(value: T, created: Discard) -> Self {
        Self { value, created }
    }

    /// Returns the result: somebody has it now.
    pub(crate) fn keep(self) -> T {
        self.created.keep();
        self.value
    }
}

impl<T> fmt::Debug for Outcome<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome").finish_non_exhaustive()
    }
}

impl<T> From<T> for Outcome<T> {
    fn from(value: T) -> Self {
        Self { value, created: Discard::nothing() }
    }
}

/// Deletes objects when it is dropped, unless [`Discard::keep`] was called.
pub(crate) struct Discard(Option<(Native, Vec<ObjectId>)>);

impl Discard {
    pub(crate) fn new(native: &Native, id: &ObjectId) -> Self {
        Self::all(native, Vec::from([id.clone()]))
    }

    pub(crate) fn all(native: &Native, ids: Vec<ObjectId>) -> Self {
        Self(Some((native.clone(), ids)))
    }

    const fn nothing() -> Self {
        Self(None)
    }

    /// Keeps the object.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Discard {
    fn drop(&mut self) {
        if let Some((native, ids)) = self.0.take() {
            // Deletions that have started are completed, whether anybody waits or not.
            drop(native.start_delete(ids, None));
        }
    }
}
