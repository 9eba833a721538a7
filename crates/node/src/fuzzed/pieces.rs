//! Splits the bytes of a fuzzer into pieces.

/// Pieces of bytes: each starts with a byte that selects its kind, and two bytes of length.
pub(super) struct Pieces<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Pieces<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let ([what, low, high], rest) = self.0.split_first_chunk()?;
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (piece, rest) = rest.split_at(length);
        self.0 = rest;
        Some((*what, piece))
    }
}
