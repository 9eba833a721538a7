//! Tests of every kernel against wider arithmetic, at any length and alignment.

use half::bf16;

use super::*;

/// Elements as bits: zeros, ones, the limits of every type and their neighbors.
const ODD: [u64; 24] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x3c00,
    0x7bff,
    0x7c00,
    0x7e01,
    0x7f80,
    0x8000,
    0x8001,
    0xfc00,
    0xffff,
    0x3f80_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7fc0_0001,
    0x8000_0000,
    0xff80_0000,
    0x7ff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0x8000_0000_0000_0000,
];

/// Odd elements and `random` arbitrary ones.
fn elements(dtype: Dtype, random: usize) -> Vec<Vec<u8>> {
    // Multiples of 2^64 divided by the golden ratio are spread over all bits.
    let random = (1..=random as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).reverse_bits());
    let size = dtype.size() as usize;
    let wide = |bits: u64| u128::from(bits) | u128::from(bits.rotate_left(20)) << 64;
    ODD.into_iter().chain(random).map(|bits| wide(bits).to_le_bytes()[..size].to_vec()).collect()
}

fn pairs(dtype: Dtype) -> (Vec<u8>, Vec<u8>) {
    let elements = elements(dtype, 40);
    let pairs = elements.iter().flat_map(|a| elements.iter().map(move |b| (&a[..], &b[..])));
    let (left, right): (Vec<&[u8]>, Vec<&[u8]>) = pairs.unzip();
    (left.concat(), right.concat())
}

fn float(dtype: Dtype, bytes: &[u8]) -> f64 {
    match dtype {
        Dtype::Float16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Dtype::BFloat16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        Dtype::Float32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        Dtype::Float64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        integer => unreachable!("{integer}"),
    }
}

fn integer(dtype: Dtype, bytes: &[u8]) -> i128 {
    let signed = matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
    let negative = signed && bytes.last().is_some_and(|high| high & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

/// Computes one element in a wider type, and converts it back.
fn reference(op: Op, dtype: Dtype, a: &[u8], b: &[u8]) -> Vec<u8> {
    if !dtype.is_float() {
        let (a, b) = (integer(dtype, a), integer(dtype, b));
        let wide = match op {
            Op::Sum | Op::Mean => a + b,
            Op::Prod => a.wrapping_mul(b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::Any | Op::All => unreachable!("{op} of {dtype}"),
        };
        return wide.to_le_bytes()[..dtype.size() as usize].to_vec();
    }
    let (a, b) = (float(dtype, a), float(dtype, b));
    let wide = match op {
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Op::Sum | Op::Mean => a + b,
        Op::Prod => a * b,
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::Any | Op::All => unreachable!("{op} of {dtype}"),
    };
    narrow(dtype, wide)
}

/// Rounds to f32 first, as the kernels do. f64 has more than twice the bits of f32, so rounding a
/// sum, product or quotient twice equals rounding it once.
fn narrow(dtype: Dtype, wide: f64) -> Vec<u8> {
    match dtype {
        Dtype::Float16 => f16::from_f32(wide as f32).to_le_bytes().to_vec(),
        Dtype::BFloat16 => bf16::from_f32(wide as f32).to_le_bytes().to_vec(),
        Dtype::Float32 => (wide as f32).to_le_bytes().to_vec(),
        Dtype::Float64 => wide.to_le_bytes().to_vec(),
        integer => unreachable!("{integer}"),
    }
}

/// Compares bits, except that any NaN equals any NaN, and for `Min` and `Max` any zero equals any
/// zero.
fn same(op: Op, dtype: Dtype, a: &[u8], b: &[u8]) -> bool {
    let parts = |part: Dtype| {
        let size = part.size() as usize;
        a.chunks(size).zip(b.chunks(size)).all(|(a, b)| same(op, part, a, b))
    };
    match dtype {
        Dtype::Complex64 => return parts(Dtype::Float32),
        Dtype::Complex128 => return parts(Dtype::Float64),
        _ => {}
    }
    let alike = || {
        let (a, b) = (float(dtype, a), float(dtype, b));
        (a.is_nan() && b.is_nan()) || (matches!(op, Op::Min | Op::Max) && a == b)
    };
    a == b || (dtype.is_float() && alike())
}

fn all_supported() -> impl Iterator<Item = (Op, Dtype)> {
    let all = Op::ALL.iter().flat_map(|op| Dtype::all().map(move |dtype| (*op, dtype)));
    all.filter(|(op, dtype)| is_reducible(*op, *dtype))
}

/// The types of `special` have their own tests.
fn of_numbers() -> impl Iterator<Item = (Op, Dtype)> {
    all_supported().filter(|(_, dtype)| dtype.is_float() || dtype.name().contains("int"))
}

/// Goal: every kernel is right on edge values. Method: all pairs of them against a wider type.
#[test]
fn every_kernel_agrees_with_wide_arithmetic() {
    assert_eq!(of_numbers().count(), 4 * 12 + 4);
    for (op, dtype) in of_numbers() {
        let size = dtype.size() as usize;
        let (left, right) = pairs(dtype);
        let mut folded = left.clone();
        fold(op, dtype, &mut folded, &right);
        for ((a, b), got) in left.chunks(size).zip(right.chunks(size)).zip(folded.chunks(size)) {
            let expected = reference(op, dtype, a, b);
            assert!(
                same(op, dtype, got, &expected),
                "{op} of {dtype} {a:x?} {b:x?}: {got:x?}, not {expected:x?}"
            );
        }
    }
}

/// Goal: alignment and length make no difference. Method: the same fold, shifted.
#[test]
fn any_length_and_alignment_works() {
    for (op, dtype) in all_supported() {
        let size = dtype.size() as usize;
        let (left, right) = pairs(dtype);
        let mut expected = left.clone();
        fold(op, dtype, &mut expected, &right);
        for count in [0, 1, 2, 3, 5, 7, 8, 15, 17, 31, 33, 63, 127, 1001] {
            let len = count * size;
            for shift in [0, 1, 3] {
                let mut into = vec![0xa5; shift + len + 1];
                into[shift..shift + len].copy_from_slice(&left[..len]);
                let other = [&[0; 6][..2 * shift], &right[..len]].concat();
                fold(op, dtype, &mut into[shift..shift + len], &other[2 * shift..]);
                for (got, expected) in
                    into[shift..].chunks_exact(size).zip(expected.chunks(size)).take(count)
                {
                    assert!(same(op, dtype, got, expected), "{op} of {dtype}: {count}, {shift}");
                }
                assert!(into[..shift].iter().chain(&into[shift + len..]).all(|b| *b == 0xa5));
            }
        }
    }
}

#[test]
fn nan_on_either_side_wins() {
    for dtype in Dtype::all().filter(|dtype| dtype.is_float()) {
        for op in [Op::Min, Op::Max] {
            for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
                let mut into = narrow(dtype, a);
                fold(op, dtype, &mut into, &narrow(dtype, b));
                assert!(float(dtype, &into).is_nan(), "{op} of {dtype}: {a}, {b}");
            }
        }
    }
}

/// Goal: 16-bit floats round correctly. Method: each value, the middle to the next one, and the f32
/// next to either of them, against another implementation.
#[test]
fn sixteen_bit_floats_convert_exactly() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        let mut wide_half = [0.0];
        widen(&bits.to_le_bytes(), &mut wide_half);
        let ([wide_half], wide_brain) = (wide_half, f32_of_bf16(bits.to_le_bytes()));
        assert!(half.is_nan() == wide_half.is_nan() && brain.is_nan() == wide_brain.is_nan());
        assert!(half.is_nan() || wide_half.to_bits() == half.to_f32().to_bits(), "{bits:#x}");
        assert!(brain.is_nan() || wide_brain.to_bits() == brain.to_f32().to_bits(), "{bits:#x}");
        for offset in [-0x8001, -0x8000, -0x7fff, -0x1001, -0x1000, -0xfff, -1, 0, 1] {
            for wide in [wide_half, wide_brain] {
                // Subnormal halves are further apart in f32; their middles are tested below.
                let wide = f32::from_bits(wide.to_bits().wrapping_add_signed(offset));
                check_rounding(wide);
            }
        }
        let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
        let middle = (wide_half + next) / 2.0;
        for wide in [middle.next_down(), middle, middle.next_up()] {
            check_rounding(wide);
        }
    }
}

fn check_rounding(wide: f32) {
    let mut half = [0; 2];
    in_f32(&mut half, |values| values.fill(wide));
    let half = f16::from_le_bytes(half);
    let brain = bf16::from_le_bytes(bf16_of_f32(wide));
    if wide.is_nan() {
        assert!(half.is_nan() && brain.is_nan(), "{:#x}", wide.to_bits());
    } else {
        assert_eq!(half.to_bits(), f16::from_f32(wide).to_bits(), "{wide:e} as float16");
        assert_eq!(brain.to_bits(), bf16::from_f32(wide).to_bits(), "{wide:e} as bfloat16");
    }
}

/// Goal: sums of 16-bit floats are rounded in each fold. Method: 40,000 pairs against another
/// implementation.
#[test]
fn sums_of_sixteen_bit_floats_round_once_per_fold() {
    let operands: Vec<u16> = (0..40_000u32).map(|n| ((n * 40_503) >> 3) as u16).collect();
    let left: Vec<u8> = operands.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let right: Vec<u8> = operands.iter().rev().flat_map(|bits| bits.to_le_bytes()).collect();
    for dtype in [Dtype::Float16, Dtype::BFloat16] {
        let mut folded = left.clone();
        fold(Op::Sum, dtype, &mut folded, &right);
        for ((a, b), got) in left.chunks(2).zip(right.chunks(2)).zip(folded.chunks(2)) {
            let expected = reference(Op::Sum, dtype, a, b);
            assert!(same(Op::Sum, dtype, got, &expected), "{dtype} {a:x?} + {b:x?}: {got:x?}");
        }
    }
}

#[test]
fn mean_is_the_sum_divided() {
    for dtype in Dtype::all().filter(|dtype| dtype.is_float()) {
        let size = dtype.size() as usize;
        for count in [1, 2, 3, 7, 65_536] {
            let sums = elements(dtype, 101).concat();
            let mut means = sums.clone();
            finish(Op::Mean, dtype, &mut means, count);
            for (sum, mean) in sums.chunks(size).zip(means.chunks(size)) {
                let expected = narrow(dtype, float(dtype, sum) / count as f64);
                assert!(
                    same(Op::Mean, dtype, mean, &expected),
                    "{dtype} {sum:x?} / {count}: {mean:x?}, not {expected:x?}"
                );
            }
        }
    }
}

#[test]
fn only_a_mean_needs_finishing() {
    for (op, dtype) in all_supported().filter(|(op, _)| *op != Op::Mean) {
        let (fold, _) = pairs(dtype);
        let mut finished = fold.clone();
        finish(op, dtype, &mut finished, 3);
        assert_eq!(finished, fold, "{op} of {dtype}");
    }
}

#[test]
#[should_panic = "8 bytes folded into 4"]
fn lengths_must_agree() {
    fold(Op::Sum, Dtype::Float32, &mut [0; 4], &[0; 8]);
}

#[test]
#[should_panic = "6 bytes are not a multiple of 4, the size of float32"]
fn elements_must_be_whole() {
    fold(Op::Sum, Dtype::Float32, &mut [0; 6], &[0; 6]);
}

#[test]
#[should_panic = "mean of int32 is not supported"]
fn integers_have_no_mean() {
    fold(Op::Mean, Dtype::Int32, &mut [0; 4], &[0; 4]);
}

#[test]
#[should_panic = "mean of no inputs"]
fn nothing_has_no_mean() {
    finish(Op::Mean, Dtype::Float32, &mut [0; 4], 0);
}
