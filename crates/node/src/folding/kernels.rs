//! Kernels of a reduce: fold blocks element by element, as little-endian bytes.
//!
//! Plain loops over fixed-size chunks without branches, which the compiler vectorizes; bytes need
//! no alignment. Does not know trees, windows or the source of bytes.

mod special;
#[cfg(test)]
mod tests;

use half::f16;
use hoplite_proto::{
    error::is_reducible,
    meta::{Dtype, Op},
};
use hoplite_shm::{narrow_float16, widen_float16};

/// Folds `other` into `into`: `into[i] = op(into[i], other[i])`.
///
/// Integers wrap around. `Min` and `Max` of floats give NaN if either element is NaN, and either of
/// two zeros. 16-bit floats are computed as `f32`, and each fold rounds to nearest, ties to even.
/// NaT in dates and times wins like NaN. `Mean` sums; [`finish`] divides.
///
/// # Panics
/// If the lengths differ or are not a multiple of the element size, or if `op` is not defined for
/// `dtype` ([`is_reducible`]).
pub fn fold(op: Op, dtype: Dtype, into: &mut [u8], other: &[u8]) {
    check(op, dtype, into.len());
    assert!(into.len() == other.len(), "{} bytes folded into {}", other.len(), into.len());
    match dtype {
        Dtype::Float16 => fold_f16(op, into, other),
        Dtype::BFloat16 => fold_as(op, into, other, f32_of_bf16, bf16_of_f32),
        Dtype::Float32 => fold_as(op, into, other, f32::from_le_bytes, f32::to_le_bytes),
        Dtype::Float64 => fold_as(op, into, other, f64::from_le_bytes, f64::to_le_bytes),
        Dtype::Int8 => fold_as(op, into, other, i8::from_le_bytes, i8::to_le_bytes),
        Dtype::Int16 => fold_as(op, into, other, i16::from_le_bytes, i16::to_le_bytes),
        Dtype::Int32 => fold_as(op, into, other, i32::from_le_bytes, i32::to_le_bytes),
        Dtype::Int64 => fold_as(op, into, other, i64::from_le_bytes, i64::to_le_bytes),
        Dtype::UInt8 => fold_as(op, into, other, u8::from_le_bytes, u8::to_le_bytes),
        Dtype::UInt16 => fold_as(op, into, other, u16::from_le_bytes, u16::to_le_bytes),
        Dtype::UInt32 => fold_as(op, into, other, u32::from_le_bytes, u32::to_le_bytes),
        Dtype::UInt64 => fold_as(op, into, other, u64::from_le_bytes, u64::to_le_bytes),
        Dtype::Bool => special::fold_bool(op, into, other),
        Dtype::Complex64 => special::fold_complex64(op, into, other),
        Dtype::Complex128 => special::fold_complex128(op, into, other),
        Dtype::Datetime64(_) | Dtype::Timedelta64(_) => special::fold_times(op, dtype, into, other),
        Dtype::Narrow(_) => unreachable!("{op} of {dtype}"),
    }
}

/// Completes the fold of `count` inputs: divides for `Mean`, changes nothing for other operations.
///
/// # Panics
/// As [`fold`]; also if `count` is 0 for `Mean`.
pub fn finish(op: Op, dtype: Dtype, into: &mut [u8], count: u64) {
    check(op, dtype, into.len());
    if op != Op::Mean {
        return;
    }
    assert!(count > 0, "mean of no inputs");
    // Exact: a reduce has far fewer than 2^24 inputs.
    let divisor = count as f32;
    match dtype {
        Dtype::Float16 => {
            in_f32(into, |values| values.iter_mut().for_each(|value| *value /= divisor));
        }
        Dtype::BFloat16 => map(into, |bytes| bf16_of_f32(f32_of_bf16(bytes) / divisor)),
        // Complex numbers are divided by part.
        Dtype::Float32 | Dtype::Complex64 => {
            map(into, |bytes| (f32::from_le_bytes(bytes) / divisor).to_le_bytes())
        }
        Dtype::Float64 | Dtype::Complex128 => {
            map(into, |bytes| (f64::from_le_bytes(bytes) / count as f64).to_le_bytes())
        }
        other => unreachable!("mean of {other} is not supported"),
    }
}

fn check(op: Op, dtype: Dtype, len: usize) {
    assert!(is_reducible(op, dtype), "{op} of {dtype} is not supported");
    let size = dtype.size();
    assert!(
        (len as u64).is_multiple_of(size),
        "{len} bytes are not a multiple of {size}, the size of {dtype}"
    );
}

/// One loop per pair of operation and element type, so that no loop has a branch.
fn fold_as<const SIZE: usize, T: Number>(
    op: Op,
    into: &mut [u8],
    other: &[u8],
    load: impl Fn([u8; SIZE]) -> T,
    store: impl Fn(T) -> [u8; SIZE],
) {
    match op {
        Op::Sum | Op::Mean => zip(into, other, |a, b| store(load(a).sum(load(b)))),
        Op::Prod => zip(into, other, |a, b| store(load(a).product(load(b)))),
        Op::Min => zip(into, other, |a, b| store(load(a).smaller(load(b)))),
        Op::Max => zip(into, other, |a, b| store(load(a).larger(load(b)))),
        Op::Any | Op::All => unreachable!("{op} of numbers"),
    }
}

fn zip<const SIZE: usize>(
    into: &mut [u8],
    other: &[u8],
    op: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    let (into, other) = (into.as_chunks_mut().0, other.as_chunks().0);
    for (into, other) in into.iter_mut().zip(other) {
        *into = op(*into, *other);
    }
}

fn map<const SIZE: usize>(into: &mut [u8], op: impl Fn([u8; SIZE]) -> [u8; SIZE]) {
    for into in into.as_chunks_mut().0 {
        *into = op(*into);
    }
}

/// A type in which elements are computed.
trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn less(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn less(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn less(self, other: Self) -> Self {
                self - other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            // A comparison with NaN is false, so a NaN on the right is taken without a check.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
        }
    )*};
}

floats!(f32, f64);

#[inline(always)]
fn f32_of_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

#[inline(always)]
fn bf16_of_f32(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    // Add half of the last place, less one bit if that is even: the carry rounds, up to infinity.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // The carry must not turn a NaN into infinity or zero; a quiet NaN keeps the bits that fit.
    let bits = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    ((bits >> 16) as u16).to_le_bytes()
}

/// Elements converted to f32 and back at once: few enough for the level-1 cache.
const F16_AT_ONCE: usize = 256;

fn fold_f16(op: Op, into: &mut [u8], other: &[u8]) {
    let bytes = 2 * F16_AT_ONCE;
    for (into, other) in into.chunks_mut(bytes).zip(other.chunks(bytes)) {
        let mut theirs = [0.0; F16_AT_ONCE];
        let theirs = &mut theirs[..other.len() / 2];
        widen(other, theirs);
        in_f32(into, |ours| {
            // One loop per operation, as in `fold_as`.
            match op {
                Op::Sum | Op::Mean => zip_f32(ours, theirs, f32::sum),
                Op::Prod => zip_f32(ours, theirs, f32::product),
                Op::Min => zip_f32(ours, theirs, f32::smaller),
                Op::Max => zip_f32(ours, theirs, f32::larger),
                Op::Any | Op::All => unreachable!("{op} of float16"),
            }
        });
    }
}

fn zip_f32(into: &mut [f32], other: &[f32], op: impl Fn(f32, f32) -> f32) {
    for (into, other) in into.iter_mut().zip(other) {
        *into = op(*into, *other);
    }
}

/// Computes on float16 elements as f32.
fn in_f32(bytes: &mut [u8], compute: impl Fn(&mut [f32])) {
    for bytes in bytes.chunks_mut(2 * F16_AT_ONCE) {
        let mut values = [0.0; F16_AT_ONCE];
        let values = &mut values[..bytes.len() / 2];
        widen(bytes, values);
        compute(values);
        if !narrow_float16(values, bytes) {
            for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = f16::from_f32(*value).to_le_bytes();
            }
        }
    }
}

/// Converts float16 elements to f32, with processor instructions if available.
fn widen(bytes: &[u8], values: &mut [f32]) {
    if !widen_float16(bytes, values) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f16::from_le_bytes(*bytes).to_f32();
        }
    }
}
