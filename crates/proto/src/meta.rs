//! What is known of an object beside its bytes: size, element type, shape; and the operations of a reduce.
//!
//! Knows nothing of where bytes are or how they are folded.

use alloc::{string::String, vec::Vec};
use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Quoted;

/// Element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Dtype {
    Float16,
    BFloat16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
}

impl Dtype {
    /// Every element type, in the order of the documentation.
    pub const ALL: [Self; 12] = [
        Self::Float16,
        Self::BFloat16,
        Self::Float32,
        Self::Float64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::UInt8,
        Self::UInt16,
        Self::UInt32,
        Self::UInt64,
    ];

    /// The name as NumPy and torch write it, such as `float32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float16 => "float16",
            Self::BFloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::UInt8 => "uint8",
            Self::UInt16 => "uint16",
            Self::UInt32 => "uint32",
            Self::UInt64 => "uint64",
        }
    }

    /// Bytes of one element.
    pub const fn size(self) -> u64 {
        match self {
            Self::Int8 | Self::UInt8 => 1,
            Self::Float16 | Self::BFloat16 | Self::Int16 | Self::UInt16 => 2,
            Self::Float32 | Self::Int32 | Self::UInt32 => 4,
            Self::Float64 | Self::Int64 | Self::UInt64 => 8,
        }
    }

    /// Whether the type holds fractions.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::BFloat16 | Self::Float32 | Self::Float64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text)
            .ok_or_else(|| UnknownDtype(String::from(text)))
    }
}

/// The name of an element type that Hoplite can't hold in an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown dtype {}: arrays are float16, bfloat16, float32, float64, int8 to int64 or uint8 to uint64",
    Quoted(.0)
)]
pub struct UnknownDtype(pub String);

/// What a reduce does with two elements.
///
/// Integers wrap around on overflow, as in NumPy. `Min` and `Max` of floats give NaN when either element is
/// NaN. `Mean` is the sum divided by the number of inputs, for float types only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Op {
    Sum,
    Min,
    Max,
    Prod,
    Mean,
}

impl Op {
    /// Every operation, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Min, Self::Max, Self::Prod, Self::Mean];

    /// The name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
            Self::Mean => "mean",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| UnknownOp(String::from(text)))
    }
}

/// The name of an operation that a reduce doesn't know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown op {}: a reduce knows sum, min, max, prod and mean", Quoted(.0))]
pub struct UnknownOp(pub String);

/// How the bytes of an object are to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Bytes without further meaning; can't be reduced.
    Bytes,
    /// Elements in row-major order, little-endian.
    Array {
        /// Type of each element.
        dtype: Dtype,
        /// Length of each axis; empty for a scalar.
        shape: Vec<u64>,
    },
}

/// What a reader is to make of the bytes: the library whose value was put. No decision depends on it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Form {
    /// Bytes, or an array of nobody's in particular.
    #[default]
    Plain,
    /// A torch tensor.
    Torch,
    /// Arrow's IPC stream.
    Arrow,
    /// A pickled object with its buffers.
    Pickle,
}

impl Form {
    /// Every form.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Torch, Self::Arrow, Self::Pickle];

    /// The name that clients use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Torch => "torch",
            Self::Arrow => "arrow",
            Self::Pickle => "pickle",
        }
    }
}

impl FromStr for Form {
    type Err = UnknownForm;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = Self::ALL.into_iter().find(|form| form.name() == text);
        form.ok_or_else(|| UnknownForm(String::from(text)))
    }
}

/// The name of a form that this release does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown form {}: values are plain, torch, arrow or pickle", Quoted(.0))]
pub struct UnknownForm(pub String);

/// What is known of an object beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Length of the object in bytes.
    pub size: u64,
    /// How the bytes are to be read.
    pub kind: Kind,
    /// What a reader is to make of them.
    pub form: Form,
}

impl Meta {
    /// Metadata of `size` plain bytes.
    pub const fn bytes(size: u64) -> Self {
        Self { size, kind: Kind::Bytes, form: Form::Plain }
    }

    /// The same, to be read in another form.
    pub fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Metadata of an array; `None` if its size in bytes doesn't fit 64 bits.
    pub fn array(dtype: Dtype, shape: Vec<u64>) -> Option<Self> {
        let elements = shape.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis))?;
        let size = elements.checked_mul(dtype.size())?;
        Some(Self { size, kind: Kind::Array { dtype, shape }, form: Form::Plain })
    }

    /// Whether size, element type, shape and form agree with each other; false only for metadata from a broken peer.
    pub fn is_consistent(&self) -> bool {
        match &self.kind {
            Kind::Bytes => self.form != Form::Torch,
            Kind::Array { dtype, shape } => {
                matches!(self.form, Form::Plain | Form::Torch)
                    && shape.len() <= crate::limits::AXES_MAX
                    && Self::array(*dtype, shape.clone()).is_some_and(|meta| meta.size == self.size)
            }
        }
    }
}

impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Bytes if self.form == Form::Plain => write!(f, "{} bytes", self.size),
            Kind::Bytes => write!(f, "{} bytes of {}", self.size, self.form.name()),
            Kind::Array { dtype, shape } => {
                write!(f, "{dtype}[")?;
                for (axis, length) in shape.iter().enumerate() {
                    write!(f, "{}{length}", if axis == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;

    #[test]
    fn names_read_back() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        for form in Form::ALL {
            assert_eq!(form.name().parse(), Ok(form));
        }
        assert!("jax".parse::<Form>().unwrap_err().to_string().contains("torch"));
        assert!("complex64".parse::<Dtype>().unwrap_err().to_string().contains("complex64"));
        assert!("avg".parse::<Op>().unwrap_err().to_string().contains("mean"));
    }

    #[test]
    fn a_shape_that_overflows_is_no_array() {
        assert_eq!(Meta::array(Dtype::Float64, vec![u64::MAX, 2]), None);
        assert_eq!(Meta::array(Dtype::Float64, vec![1 << 61]), None);
        assert_eq!(Meta::array(Dtype::Float32, vec![]).unwrap().size, 4);
        assert_eq!(Meta::array(Dtype::Float32, vec![3, 0]).unwrap().size, 0);
    }

    #[test]
    fn metadata_that_contradicts_itself_is_found_out() {
        let mut meta = Meta::array(Dtype::Int16, vec![2, 3]).unwrap();
        assert!(meta.is_consistent());
        assert!(meta.clone().with_form(Form::Torch).is_consistent());
        assert!(!meta.clone().with_form(Form::Pickle).is_consistent());
        assert!(!Meta::bytes(3).with_form(Form::Torch).is_consistent());
        meta.size += 1;
        assert!(!meta.is_consistent());
    }

    #[test]
    fn display_reads_like_numpy() {
        let meta = Meta::array(Dtype::Float32, vec![64, 1024]).unwrap();
        assert_eq!(meta.to_string(), "float32[64, 1024]");
    }
}
