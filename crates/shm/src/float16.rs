//! Converts between float16 and f32 with processor instructions. It is in this crate because it needs unsafe code; it
//! has nothing to do with shared memory.

/// Converts little-endian float16 to f32. Returns false, without doing anything, if this processor lacks the
/// instructions.
///
/// # Panics
/// If `bytes` does not have two bytes for each of `values`.
pub fn widen_float16(bytes: &[u8], values: &mut [f32]) -> bool {
    assert!(bytes.len() == 2 * values.len(), "{} bytes for {} values", bytes.len(), values.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the instructions that the function uses.
        unsafe { x86::widen(bytes, values) };
        return true;
    }
    false
}

/// Rounds f32 to the nearest little-endian float16, ties to even. Returns false, without doing anything, if this
/// processor lacks the instructions.
///
/// # Panics
/// If `bytes` does not have two bytes for each of `values`.
pub fn narrow_float16(values: &[f32], bytes: &mut [u8]) -> bool {
    assert!(bytes.len() == 2 * values.len(), "{} bytes for {} values", bytes.len(), values.len());
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        // SAFETY: the processor has the instructions that the function uses.
        unsafe { x86::narrow(values, bytes) };
        return true;
    }
    false
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    /// Elements per instruction.
    const LANES: usize = 8;

    #[target_feature(enable = "f16c")]
    pub(super) fn widen(bytes: &[u8], values: &mut [f32]) {
        let (halves, rest_of_halves) = bytes.as_chunks::<{ 2 * LANES }>();
        let (wide, rest) = values.as_chunks_mut::<LANES>();
        for (half, wide) in halves.iter().zip(wide) {
            eight_wider(half, wide);
        }
        if !rest.is_empty() {
            let (mut half, mut wide) = ([0; 2 * LANES], [0.0; LANES]);
            half[..rest_of_halves.len()].copy_from_slice(rest_of_halves);
            eight_wider(&half, &mut wide);
            rest.copy_from_slice(&wide[..rest.len()]);
        }
    }

    #[target_feature(enable = "f16c")]
    pub(super) fn narrow(values: &[f32], bytes: &mut [u8]) {
        let (wide, rest_of_wide) = values.as_chunks::<LANES>();
        let (halves, rest) = bytes.as_chunks_mut::<{ 2 * LANES }>();
        for (wide, half) in wide.iter().zip(halves) {
            eight_narrower(wide, half);
        }
        if !rest.is_empty() {
            let (mut wide, mut half) = ([0.0; LANES], [0; 2 * LANES]);
            wide[..rest_of_wide.len()].copy_from_slice(rest_of_wide);
            eight_narrower(&wide, &mut half);
            rest.copy_from_slice(&half[..rest.len()]);
        }
    }

    #[target_feature(enable = "f16c")]
    fn eight_wider(half: &[u8; 2 * LANES], wide: &mut [f32; LANES]) {
        // SAFETY: both are as long as the loaded and stored data, and neither needs alignment.
        unsafe {
            let eight = _mm_loadu_si128(half.as_ptr().cast());
            _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(eight));
        }
    }

    #[target_feature(enable = "f16c")]
    fn eight_narrower(wide: &[f32; LANES], half: &mut [u8; 2 * LANES]) {
        // SAFETY: both are as long as the loaded and stored data, and neither needs alignment.
        unsafe {
            let eight =
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(wide.as_ptr()));
            _mm_storeu_si128(half.as_mut_ptr().cast(), eight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_elements_converts_to_f32_and_back() {
        for count in [0, 1, 7, 8, 9, 255, 256, 1001] {
            // Whole numbers that a float16 represents exactly, without repetition among eight neighbors.
            let values: Vec<f32> = (0..count).map(|n| f32::from(n % 2048_u16) - 1024.0).collect();
            let mut bytes = vec![0xa5; 2 * values.len()];
            let mut back = vec![f32::NAN; values.len()];
            if narrow_float16(&values, &mut bytes) {
                assert!(widen_float16(&bytes, &mut back));
                assert_eq!(back, values);
            } else {
                assert!(!widen_float16(&bytes, &mut back));
            }
        }
    }

    #[test]
    #[should_panic = "3 bytes for 2 values"]
    fn bytes_and_values_are_equally_many() {
        widen_float16(&[0; 3], &mut [0.0; 2]);
    }
}
