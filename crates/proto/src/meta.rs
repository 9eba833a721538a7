//! Metadata of an object: size, element type, shape. Also the operations of a reduce.
//!
//! Contains neither the bytes nor the arithmetic.

use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{narrow::Narrow, quoted::Quoted, unit::Unit};

/// Element type of an array. Messages contain the index of a variant: add new ones at the end.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
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
    /// One byte: 0 is false, anything else true.
    Bool,
    /// Two float32: the real part, then the imaginary part.
    Complex64,
    /// Two float64.
    Complex128,
    /// Signed 64-bit number of time units since 1970. The smallest number is NaT, "not a time".
    Datetime64(Unit),
    /// Signed 64-bit number of time units, with NaT as above.
    Timedelta64(Unit),
    /// One byte; no operation is defined.
    Narrow(Narrow),
}

impl Dtype {
    /// The element types without a unit that NumPy has by itself, and bfloat16.
    const COMMON: [Self; 15] = [
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
        Self::Bool,
        Self::Complex64,
        Self::Complex128,
    ];

    /// Every element type, in the order of the documentation. Types with a unit appear once, last,
    /// in nanoseconds.
    pub fn all() -> impl Iterator<Item = Self> {
        let narrow = Narrow::ALL.iter().copied().map(Self::Narrow);
        let times = [Self::Datetime64(Unit::NANOSECONDS), Self::Timedelta64(Unit::NANOSECONDS)];
        Self::COMMON.into_iter().chain(narrow).chain(times)
    }

    /// The name in NumPy and torch, such as `float32`, without a unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Narrow(narrow) => narrow.name(),
            other => other.into(),
        }
    }

    /// Size of one element in bytes.
    pub const fn size(self) -> u64 {
        match self {
            Self::Int8 | Self::UInt8 | Self::Bool | Self::Narrow(_) => 1,
            Self::Float16 | Self::BFloat16 | Self::Int16 | Self::UInt16 => 2,
            Self::Float32 | Self::Int32 | Self::UInt32 => 4,
            Self::Float64
            | Self::Int64
            | Self::UInt64
            | Self::Complex64
            | Self::Datetime64(_)
            | Self::Timedelta64(_) => 8,
            Self::Complex128 => 16,
        }
    }

    /// The time unit of dates and times; `None` for other types.
    pub const fn unit(self) -> Option<Unit> {
        match self {
            Self::Datetime64(unit) | Self::Timedelta64(unit) => Some(unit),
            _ => None,
        }
    }

    /// Whether the type is a real floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::BFloat16 | Self::Float32 | Self::Float64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.unit().map_or(Ok(()), |unit| unit.fmt(f))
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let with_unit = |name, make: fn(Unit) -> Self| {
            text.strip_prefix(name).and_then(|unit| unit.parse().ok()).map(make)
        };
        let common = Self::COMMON.into_iter().find(|dtype| dtype.name() == text);
        common
            .or_else(|| text.parse().ok().map(Self::Narrow))
            .or_else(|| with_unit("datetime64", Self::Datetime64))
            .or_else(|| with_unit("timedelta64", Self::Timedelta64))
            .ok_or_else(|| UnknownDtype(String::from(text)))
    }
}

/// An element type that Hoplite can't store in an array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown dtype {}: use float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, \
     bool, complex64, complex128, a narrow type such as float8_e4m3fn or int4, or datetime64 or \
     timedelta64 with a NumPy unit",
    Quoted(.0)
)]
pub struct UnknownDtype(pub String);

/// The operation that a reduce applies to two elements.
///
/// Integers and times wrap around on overflow, as in NumPy. `Min` and `Max` of floats are NaN if
/// either element is NaN. `Min` and `Max` of dates and times, and the sum of times, are NaT if
/// either element is NaT. `Mean` is the sum divided by the number of inputs. `Any` and `All` apply
/// to bool. [`crate::error::is_reducible`] defines the valid combinations.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownOp, parse_err_fn = unknown_op)]
#[allow(missing_docs)]
pub enum Op {
    Sum,
    Min,
    Max,
    Prod,
    Mean,
    Any,
    All,
}

impl Op {
    /// Every operation, in the order of the documentation.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name of the operation in the Python API.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown_op(text: &str) -> UnknownOp {
    UnknownOp(text.into())
}

/// An operation that a reduce does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown op {}: use sum, min, max, prod, mean, any or all", Quoted(.0))]
pub struct UnknownOp(pub String);

/// Layout of an object's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Bytes without a layout; they can't be reduced.
    Bytes,
    /// Elements in row-major order, little-endian.
    Array {
        /// Type of each element.
        dtype: Dtype,
        /// Length of each axis; empty for a scalar.
        shape: Box<[u64]>,
    },
}

/// The library whose value was put, so that a reader can restore it. No decision depends on it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownForm, parse_err_fn = unknown_form)]
pub enum Form {
    /// Bytes, or an array of no particular library.
    #[default]
    Plain,
    /// A torch tensor.
    Torch,
    /// An Arrow IPC stream.
    Arrow,
    /// A pickled object with its buffers.
    Pickle,
}

impl Form {
    /// Every form.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name of the form in clients.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

fn unknown_form(text: &str) -> UnknownForm {
    UnknownForm(text.into())
}

/// A form that this release does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown form {}: use plain, torch, arrow or pickle", Quoted(.0))]
pub struct UnknownForm(pub String);

/// SHA-256 of an object's bytes. The shell computes and compares it; the state machine only stores
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Size of the object in bytes.
    pub size: u64,
    /// Layout of the bytes.
    pub kind: Kind,
    /// The library whose value was put.
    pub form: Form,
    /// Digest that each receiver checks, if the creator announced one. Boxed, since few objects
    /// have one.
    pub digest: Option<Box<Digest>>,
}

impl Meta {
    /// Metadata of `size` plain bytes.
    pub const fn bytes(size: u64) -> Self {
        Self { size, kind: Kind::Bytes, form: Form::Plain, digest: None }
    }

    /// Returns the metadata with another form.
    pub fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Element type; `None` for bytes.
    pub const fn dtype(&self) -> Option<Dtype> {
        match self.kind {
            Kind::Bytes => None,
            Kind::Array { dtype, .. } => Some(dtype),
        }
    }

    /// Returns the metadata with a digest.
    pub fn with_digest(self, digest: Digest) -> Self {
        Self { digest: Some(Box::new(digest)), ..self }
    }

    /// Returns the metadata without a digest, for other bytes such as a sum of several objects.
    pub fn without_digest(self) -> Self {
        Self { digest: None, ..self }
    }

    /// Metadata of an array; `None` if its size in bytes does not fit into 64 bits.
    pub fn array(dtype: Dtype, shape: Vec<u64>) -> Option<Self> {
        let (size, shape) = (array_bytes(dtype, &shape)?, shape.into());
        Some(Self { size, kind: Kind::Array { dtype, shape }, form: Form::Plain, digest: None })
    }

    /// Whether size, element type, shape and form agree. They disagree only in metadata from a
    /// broken peer.
    pub fn is_consistent(&self) -> bool {
        match &self.kind {
            Kind::Bytes => self.form != Form::Torch,
            Kind::Array { dtype, shape } => {
                matches!(self.form, Form::Plain | Form::Torch)
                    && dtype.unit().is_none_or(|unit| unit.is_consistent())
                    && shape.len() <= crate::limits::AXES_MAX
                    && array_bytes(*dtype, shape) == Some(self.size)
            }
        }
    }
}

/// Size of an array in bytes; `None` if it does not fit into 64 bits.
fn array_bytes(dtype: Dtype, shape: &[u64]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, axis| product.checked_mul(*axis))?;
    elements.checked_mul(dtype.size())
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
    use crate::unit::Scale;

    #[test]
    fn names_read_back() {
        for dtype in Dtype::all() {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
        }
        assert_eq!("uint4".parse(), Ok(Dtype::Narrow(Narrow::Uint4)));
        for &op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        for &form in Form::ALL {
            assert_eq!(form.name().parse(), Ok(form));
        }
        assert!("jax".parse::<Form>().unwrap_err().to_string().contains("torch"));
        assert_eq!("datetime64".parse(), Ok(Dtype::Datetime64(Unit::GENERIC)));
        let days = Unit::new(7, Scale::Days).unwrap();
        assert_eq!("timedelta64[7D]".parse(), Ok(Dtype::Timedelta64(days)));
        for text in ["complex256", "bool[ns]", "datetime64[1ns]", "datetime64ns"] {
            assert!(text.parse::<Dtype>().unwrap_err().to_string().contains(text));
        }
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
    fn a_unit_from_a_broken_peer_is_found_out() {
        let times = |count: u32| {
            // The wire order: the size, the kind, the dtype index, the unit's count and index, a
            // shape, the form, no digest.
            let unit = postcard::to_allocvec(&(count, Scale::Seconds)).unwrap();
            let head = [8, 1, 15].into_iter();
            head.chain(unit).chain([1, 1, 0, 0]).collect::<Vec<u8>>()
        };
        let meta = |count| postcard::from_bytes::<Meta>(&times(count)).unwrap();
        assert_eq!(meta(25).to_string(), "datetime64[25s][1]");
        assert!(meta(25).is_consistent());
        assert!(!meta(0).is_consistent() && !meta(u32::MAX).is_consistent());
    }

    #[test]
    fn each_narrow_element_occupies_one_byte() {
        for &narrow in Narrow::ALL {
            assert_eq!(Meta::array(Dtype::Narrow(narrow), vec![2, 3]).unwrap().size, 6);
        }
    }

    /// Other nodes and files on disk refer to the types by these numbers.
    #[test]
    fn the_numbers_of_the_types_do_not_change() {
        let number = |dtype: Dtype| postcard::to_allocvec(&dtype).unwrap();
        assert_eq!(number(Dtype::Complex128), [14]);
        assert_eq!(number(Dtype::Narrow(Narrow::Float8E4m3fn)), [17, 3]);
        assert_eq!(number(Dtype::Narrow(Narrow::Uint4)), [17, 17]);
    }

    #[test]
    fn display_reads_like_numpy() {
        let meta = Meta::array(Dtype::Float32, vec![64, 1024]).unwrap();
        assert_eq!(meta.to_string(), "float32[64, 1024]");
    }
}
