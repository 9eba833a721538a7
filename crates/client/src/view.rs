//! Views: the bytes of an object on this host, without a copy.

use std::{borrow::Cow, fmt};

use hoplite_node::{View as Native, proto::limits::INLINE_BYTES_MAX};

use crate::{
    error::{Error, ErrorKind, Result},
    value::{Element, dtype_of},
};

/// A read-only view of an object, or of rows of it. Its memory does not change while the view exists, even if the
/// object is deleted. The first byte of a whole object is at a multiple of 64.
pub struct View {
    native: Native,
    dtype: Cow<'static, str>,
    /// An aligned copy of a small object, which arrives inside a message: the memory, and where its bytes begin.
    aligned: Option<(Box<[u8]>, usize)>,
}

/// Alignment of the bytes.
pub(crate) const ALIGNMENT: usize = 64;

impl View {
    pub(crate) fn new(native: Native) -> Self {
        let bytes = native.as_bytes();
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        let is_small = bytes.len() as u64 <= INLINE_BYTES_MAX;
        let aligned = (is_small && !is_aligned).then(|| {
            let (mut memory, start) = aligned(bytes.len());
            memory[start..start + bytes.len()].copy_from_slice(bytes);
            (memory, start)
        });
        let dtype = dtype_of(native.meta()).0;
        Self { native, dtype, aligned }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.aligned {
            Some((memory, start)) => &memory[*start..*start + self.native.as_bytes().len()],
            None => self.native.as_bytes(),
        }
    }

    /// The dtype by its name in NumPy, such as `float32`; or `bytes`.
    pub fn dtype(&self) -> &str {
        &self.dtype
    }

    /// Length of each axis; empty for a scalar and for bytes.
    pub fn shape(&self) -> &[u64] {
        dtype_of(self.native.meta()).1
    }

    /// Size in bytes.
    pub fn nbytes(&self) -> u64 {
        self.native.meta().size
    }

    /// The library whose value was put: `plain`, `torch`, `arrow` or `pickle`.
    pub fn form(&self) -> &'static str {
        self.native.meta().form.name()
    }

    /// The elements.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDtype`] if the object has another dtype.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        check::<T>(&self.dtype)?;
        bytemuck::try_cast_slice(self.bytes()).map_err(|error| {
            let message = format!(
                "the bytes of {} can't be read as {} ({error}): copy them",
                self.native.id(),
                T::DTYPE
            );
            Error::argument(message)
        })
    }

    /// The underlying view.
    #[doc(hidden)]
    pub fn into_raw(self) -> Native {
        self.native
    }
}

/// Zeroed memory with `bytes` bytes from the returned offset on, which is aligned.
pub(crate) fn aligned(bytes: usize) -> (Box<[u8]>, usize) {
    let memory = vec![0; bytes + ALIGNMENT].into_boxed_slice();
    let start = memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
    (memory, start)
}

/// Checks that the elements of an object are `T`.
///
/// # Errors
/// [`ErrorKind::UnsupportedDtype`].
pub(crate) fn check<T: Element>(dtype: &str) -> Result<()> {
    if dtype == T::DTYPE {
        return Ok(());
    }
    let message = format!(
        "the elements are {dtype}, not {}: read them with their own type, or as bytes",
        T::DTYPE
    );
    Err(Error::new(ErrorKind::UnsupportedDtype, message))
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({}, {})", self.native.id(), self.native.meta())
    }
}
