//! Kernels for elements other than plain numbers: bool, complex, dates and times.
//!
//! Loops as in the parent module: no branches, no alignment. Each kernel accepts the operations
//! defined for its type.

use hoplite_proto::meta::{Dtype, Op};

use super::{Number, fold_as, zip};

/// NumPy's "not a time".
const NAT: i64 = i64::MIN;

/// Folds bool. The result is 0 or 1, whatever byte represented true.
pub(super) fn fold_bool(op: Op, into: &mut [u8], other: &[u8]) {
    match op {
        Op::Any => zip(into, other, |[a], [b]| [u8::from((a | b) != 0)]),
        Op::All => zip(into, other, |[a], [b]| [u8::from(a != 0) & u8::from(b != 0)]),
        other => unreachable!("{other} of bool"),
    }
}

/// Folds complex numbers of two f32 each.
pub(super) fn fold_complex64(op: Op, into: &mut [u8], other: &[u8]) {
    match op {
        // Each part separately.
        Op::Sum | Op::Mean => fold_as(op, into, other, f32::from_le_bytes, f32::to_le_bytes),
        Op::Prod => multiply(into, other, f32::from_le_bytes, f32::to_le_bytes),
        other => unreachable!("{other} of complex64"),
    }
}

/// Folds complex numbers of two f64 each.
pub(super) fn fold_complex128(op: Op, into: &mut [u8], other: &[u8]) {
    match op {
        Op::Sum | Op::Mean => fold_as(op, into, other, f64::from_le_bytes, f64::to_le_bytes),
        Op::Prod => multiply(into, other, f64::from_le_bytes, f64::to_le_bytes),
        other => unreachable!("{other} of complex128"),
    }
}

/// Folds dates and times as numbers, except that NaT on either side wins.
pub(super) fn fold_times(op: Op, dtype: Dtype, into: &mut [u8], other: &[u8]) {
    match op {
        Op::Sum => {
            times(into, other, |a, b| if a == NAT || b == NAT { NAT } else { a.wrapping_add(b) })
        }
        // NaT is the least number.
        Op::Min => times(into, other, |a, b| a.min(b)),
        // Subtracting 1 makes NaT the greatest number, and keeps the order of the others.
        Op::Max => {
            times(into, other, |a, b| a.wrapping_sub(1).max(b.wrapping_sub(1)).wrapping_add(1))
        }
        other => unreachable!("{other} of {dtype}"),
    }
}

fn times(into: &mut [u8], other: &[u8], op: impl Fn(i64, i64) -> i64) {
    zip(into, other, |a, b| op(i64::from_le_bytes(a), i64::from_le_bytes(b)).to_le_bytes());
}

/// (a + bi)(c + di) by four products, as in NumPy: a NaN or infinity in any of them propagates.
fn multiply<const SIZE: usize, T: Number>(
    into: &mut [u8],
    other: &[u8],
    load: impl Fn([u8; SIZE]) -> T,
    store: impl Fn(T) -> [u8; SIZE],
) {
    let (into, other) = (into.as_chunks_mut::<SIZE>().0, other.as_chunks::<SIZE>().0);
    for (into, other) in into.as_chunks_mut::<2>().0.iter_mut().zip(other.as_chunks::<2>().0) {
        let ([a, b], [c, d]) = (into.map(&load), other.map(&load));
        let real = a.product(c).less(b.product(d));
        let imaginary = a.product(d).sum(b.product(c));
        *into = [store(real), store(imaginary)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folding::kernels::{finish, fold};

    fn folded(op: Op, dtype: Dtype, into: &[u8], other: &[u8]) -> Vec<u8> {
        let mut into = into.to_vec();
        fold(op, dtype, &mut into, other);
        into
    }

    #[test]
    fn any_and_all_accept_every_true_byte() {
        let all = 0..=u8::MAX;
        let (left, right): (Vec<u8>, Vec<u8>) =
            all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).unzip();
        let any = folded(Op::Any, Dtype::Bool, &left, &right);
        let both = folded(Op::All, Dtype::Bool, &left, &right);
        for (at, (a, b)) in left.into_iter().zip(right).enumerate() {
            assert_eq!(any[at], u8::from(a != 0 || b != 0), "{a} {b}");
            assert_eq!(both[at], u8::from(a != 0 && b != 0), "{a} {b}");
        }
    }

    /// Integers whose products are exact in f32: (a + bi)(c + di) compared with integer arithmetic.
    #[test]
    fn complex_sum_product_and_mean_are_exact() {
        let few = -3..=3_i64;
        let pairs: Vec<[i64; 2]> = few
            .clone()
            .flat_map(|real| few.clone().map(move |imaginary| [real, imaginary]))
            .collect();
        let both = || pairs.iter().flat_map(|a| pairs.iter().map(move |b| (*a, *b)));
        for dtype in [Dtype::Complex64, Dtype::Complex128] {
            let bytes = |numbers: Vec<[i64; 2]>| -> Vec<u8> {
                let parts = numbers.into_iter().flatten();
                if dtype == Dtype::Complex64 {
                    parts.flat_map(|part| (part as f32).to_le_bytes()).collect()
                } else {
                    parts.flat_map(|part| (part as f64).to_le_bytes()).collect()
                }
            };
            let (left, right): (Vec<_>, Vec<_>) = both().unzip();
            let (left, right) = (bytes(left), bytes(right));
            let sums = bytes(both().map(|([a, b], [c, d])| [a + c, b + d]).collect());
            let products =
                bytes(both().map(|([a, b], [c, d])| [a * c - b * d, a * d + b * c]).collect());
            assert_eq!(folded(Op::Sum, dtype, &left, &right), sums);
            // A zero may have either sign: adding zero makes it positive.
            let zero = bytes(vec![[0, 0]; pairs.len() * pairs.len()]);
            let got = folded(Op::Prod, dtype, &left, &right);
            assert_eq!(folded(Op::Sum, dtype, &got, &zero), products);
            let mut mean = bytes(pairs.iter().map(|[a, b]| [a * 5, b * 5]).collect());
            finish(Op::Mean, dtype, &mut mean, 5);
            assert_eq!(mean, bytes(pairs.clone()));
        }
    }

    #[test]
    fn not_a_time_on_either_side_wins() {
        const ODD: [i64; 9] = [NAT, NAT + 1, -25, -1, 0, 1, 25, i64::MAX - 1, i64::MAX];
        let (date, time): (Dtype, Dtype) =
            ("datetime64[25us]".parse().unwrap(), "timedelta64".parse().unwrap());
        for (op, dtype) in
            [(Op::Min, date), (Op::Max, date), (Op::Sum, time), (Op::Min, time), (Op::Max, time)]
        {
            for (a, b) in ODD.iter().flat_map(|a| ODD.iter().map(move |b| (*a, *b))) {
                let expected = match op {
                    _ if a == NAT || b == NAT => NAT,
                    Op::Sum => a.wrapping_add(b),
                    Op::Min => a.min(b),
                    _ => a.max(b),
                };
                let got = folded(op, dtype, &a.to_le_bytes(), &b.to_le_bytes());
                assert_eq!(got, expected.to_le_bytes(), "{op} of {dtype}: {a}, {b}");
            }
        }
    }
}
