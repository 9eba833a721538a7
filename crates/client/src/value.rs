//! Values: the bytes of an object with their dtype and shape.

use std::{borrow::Cow, fmt, sync::Arc};

use bytemuck::{AnyBitPattern, NoUninit};
use hoplite_node::proto::{
    limits,
    meta::{Dtype, Kind, Meta},
};

use crate::error::{Error, ErrorKind, Result};

/// Largest number of axes of an array.
pub const AXES_MAX: usize = limits::AXES_MAX;

/// The dtype of bytes without a layout.
pub(crate) const BYTES: &str = "bytes";

/// A value to put: bytes, or an array in row-major order.
///
/// ```
/// let rows = [1.0_f32, 2.0, 3.0, 4.0];
/// let value = hoplite::Value::array(&rows, &[2, 2])?;
/// let plain = hoplite::Value::from(b"weights");
/// # Ok::<(), hoplite::Error>(())
/// ```
pub struct Value<'a> {
    pub(crate) meta: Meta,
    source: Source<'a>,
}

enum Source<'a> {
    Borrowed(&'a [u8]),
    Owned(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Parts(Vec<Box<dyn AsRef<[u8]> + Send + Sync>>),
}

impl<'a> Value<'a> {
    /// An array of `T`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `shape` has another number of elements.
    pub fn array<T: Element>(elements: &'a [T], shape: &[u64]) -> Result<Self> {
        Self::new(T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// Bytes of an array with a dtype, by its name in NumPy, such as `float32` or `datetime64[ns]`; or plain bytes
    /// with the dtype `bytes`, without axes or with one, the number of bytes.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDtype`]; [`ErrorKind::InvalidArgument`] if the number of bytes does not match, or plain
    /// bytes have another shape.
    pub fn new(dtype: &str, shape: &[u64], bytes: &'a [u8]) -> Result<Self> {
        Ok(Self { meta: meta_of(dtype, shape, bytes.len())?, source: Source::Borrowed(bytes) })
    }

    /// The same of bytes that the value owns.
    ///
    /// # Errors
    /// As [`Value::new`].
    pub fn owned(
        dtype: &str,
        shape: &[u64],
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Self> {
        let meta = meta_of(dtype, shape, bytes.as_ref().len())?;
        Ok(Self { meta, source: Source::Owned(Arc::new(bytes)) })
    }

    /// The bytes of several parts end to end, with any metadata.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if their number does not match.
    #[doc(hidden)]
    pub fn of_parts(meta: Meta, parts: Vec<Box<dyn AsRef<[u8]> + Send + Sync>>) -> Result<Self> {
        let nbytes: usize = parts.iter().map(|part| (**part).as_ref().len()).sum();
        if meta.size == nbytes as u64 && meta.is_consistent() {
            return Ok(Self { meta, source: Source::Parts(parts) });
        }
        Err(mismatch(nbytes as u64, &meta))
    }

    /// The bytes; copied if there are several parts.
    pub(crate) fn joined(&self) -> Cow<'_, [u8]> {
        match &self.source {
            Source::Borrowed(bytes) => Cow::Borrowed(bytes),
            Source::Owned(bytes) => Cow::Borrowed((**bytes).as_ref()),
            Source::Parts(parts) => match &parts[..] {
                [part] => Cow::Borrowed((**part).as_ref()),
                _ => self.parts().concat().into(),
            },
        }
    }

    /// The bytes, in parts.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        match &self.source {
            Source::Borrowed(bytes) => vec![bytes],
            Source::Owned(bytes) => vec![(**bytes).as_ref()],
            Source::Parts(parts) => parts.iter().map(|part| (**part).as_ref()).collect(),
        }
    }
}

fn meta_of(dtype: &str, shape: &[u64], nbytes: usize) -> Result<Meta> {
    let nbytes = nbytes as u64;
    if dtype == BYTES && (shape.is_empty() || shape == [nbytes]) {
        return Ok(Meta::bytes(nbytes));
    }
    let meta = array_meta(dtype, shape)?;
    if meta.size == nbytes {
        return Ok(meta);
    }
    Err(mismatch(nbytes, &meta))
}

fn mismatch(nbytes: u64, meta: &Meta) -> Error {
    Error::argument(format!("{nbytes} bytes do not match {meta}, which has {}", meta.size))
}

/// The metadata of an array, or with the dtype `bytes` of as many bytes as its only axis.
///
/// # Errors
/// [`ErrorKind::UnsupportedDtype`]; [`ErrorKind::InvalidArgument`] for a shape that is not valid.
pub(crate) fn array_meta(dtype: &str, shape: &[u64]) -> Result<Meta> {
    if dtype == BYTES {
        let [bytes] = shape else {
            let message = format!(
                "bytes can't have the shape {shape:?}: pass one axis, the number of bytes, or name the dtype of an array"
            );
            return Err(Error::argument(message));
        };
        return Ok(Meta::bytes(*bytes));
    }
    let known: Dtype = dtype.parse().map_err(|error| {
        let error: hoplite_node::proto::meta::UnknownDtype = error;
        Error::new(ErrorKind::UnsupportedDtype, error.to_string())
    })?;
    if shape.len() > AXES_MAX {
        let message = format!("the shape has {} axes: use at most {AXES_MAX}", shape.len());
        return Err(Error::argument(message));
    }
    Meta::array(known, shape.to_vec()).filter(Meta::is_consistent).ok_or_else(|| {
        let message = format!(
            "an array of {dtype} of shape {shape:?} has too many bytes: create a smaller one"
        );
        Error::argument(message)
    })
}

/// The name of the dtype of an object, and its shape, which is empty for bytes.
pub(crate) fn dtype_of(meta: &Meta) -> (Cow<'static, str>, &[u64]) {
    match &meta.kind {
        Kind::Bytes => (BYTES.into(), &[]),
        Kind::Array { dtype, shape } if dtype.unit().is_none() => (dtype.name().into(), shape),
        Kind::Array { dtype, shape } => (dtype.to_string().into(), shape),
    }
}

/// Bytes of one element of a dtype, by its name in NumPy; 1 for `bytes`, None if the dtype is unknown.
pub fn item_bytes(dtype: &str) -> Option<u64> {
    if dtype == BYTES { Some(1) } else { dtype.parse().ok().map(Dtype::size) }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { meta: Meta::bytes(bytes.len() as u64), source: Source::Borrowed(bytes) }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Value<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a Vec<u8>> for Value<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        text.as_bytes().into()
    }
}

impl From<Vec<u8>> for Value<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        let meta = Meta::bytes(bytes.len() as u64);
        Self { meta, source: Source::Owned(Arc::new(bytes)) }
    }
}

impl From<Arc<[u8]>> for Value<'_> {
    fn from(bytes: Arc<[u8]>) -> Self {
        let meta = Meta::bytes(bytes.len() as u64);
        Self { meta, source: Source::Owned(Arc::new(bytes)) }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", self.meta)
    }
}

/// An element type of arrays in Rust.
pub trait Element: NoUninit + AnyBitPattern + sealed::Sealed {
    /// The name of the dtype.
    const DTYPE: &'static str;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $name:literal,)*) => {
        $(impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: &'static str = $name;
        })*
    };
}

elements! {
    f32 => "float32",
    f64 => "float64",
    i8 => "int8",
    i16 => "int16",
    i32 => "int32",
    i64 => "int64",
    u8 => "uint8",
    u16 => "uint16",
    u32 => "uint32",
    u64 => "uint64",
}
