//! Selections: the rows of an array, or the bytes of a plain object, that a client wants without
//! the rest.
//!
//! Knows metadata, not where the bytes are.

use alloc::{format, vec::Vec};
use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    id::ObjectId,
    meta::{Form, Kind, Meta},
};

/// A slice with step 1, as in Python: a negative bound counts from the end, a missing one means the
/// end, and bounds outside are clipped. Units are rows along axis 0 of an array, or bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The first row or byte.
    pub start: Option<i64>,
    /// The row or byte after the last one.
    pub stop: Option<i64>,
}

impl Selection {
    /// The selected range of a sequence of `length` rows or bytes; it may be empty.
    pub fn of(self, length: u64) -> Range<u64> {
        let place = |bound: i64| match u64::try_from(bound) {
            Ok(bound) => bound.min(length),
            Err(_) => length.saturating_sub(bound.unsigned_abs()),
        };
        let (start, stop) = (self.start.map_or(0, place), self.stop.map_or(length, place));
        start..stop.max(start)
    }

    /// The selected bytes of an object, and their metadata. They have no digest, since the
    /// creator's covers the whole object.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the object has neither rows nor plain bytes.
    pub fn apply(self, id: &ObjectId, meta: &Meta) -> Result<(Range<u64>, Meta), Error> {
        let refuse = |what: &str| {
            let said = format!(
                "part= selects rows of an array or bytes, but {id} is {what}: get the whole object"
            );
            Err(Error::InvalidArgument(said))
        };
        match (meta.form, &meta.kind) {
            (Form::Pickle, _) => refuse("a pickled object"),
            (Form::Arrow, _) => refuse("Arrow data"),
            (Form::Plain | Form::Torch, Kind::Bytes) => {
                let range = self.of(meta.size);
                let size = range.end - range.start;
                Ok((range, Meta::bytes(size)))
            }
            (form, Kind::Array { dtype, shape }) => {
                let Some((rows, inner)) = shape.split_first() else {
                    return refuse("an array without axes");
                };
                let selected = self.of(*rows);
                let count = selected.end - selected.start;
                let shape: Vec<u64> =
                    core::iter::once(count).chain(inner.iter().copied()).collect();
                let row = meta.size.checked_div(*rows).unwrap_or_default();
                let Some(of_part) = Meta::array(*dtype, shape) else {
                    return refuse("an array of an unknown size");
                };
                let start = selected.start.saturating_mul(row);
                if of_part.size != count.saturating_mul(row) {
                    return refuse("an array whose rows share bytes");
                }
                Ok((start..start + of_part.size, of_part.with_form(form)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;
    use crate::{
        id::NodeId,
        meta::{Digest, Dtype},
    };

    const ID: ObjectId = ObjectId::Minted { node: NodeId(1), serial: 1 };

    fn selection(start: Option<i64>, stop: Option<i64>) -> Selection {
        Selection { start, stop }
    }

    #[test]
    fn bounds_are_those_of_python() {
        let cases = [
            (None, None, 0..10),
            (Some(3), Some(5), 3..5),
            (Some(-3), None, 7..10),
            (None, Some(-3), 0..7),
            (Some(-30), Some(30), 0..10),
            (Some(5), Some(3), 5..5),
            (Some(20), None, 10..10),
            (Some(i64::MIN), Some(i64::MAX), 0..10),
            (Some(i64::MAX), Some(i64::MIN), 10..10),
        ];
        for (start, stop, expected) in cases {
            assert_eq!(selection(start, stop).of(10), expected, "{start:?}..{stop:?}");
        }
        assert_eq!(selection(Some(-1), None).of(0), 0..0);
    }

    #[test]
    fn rows_are_ranges_of_bytes_with_their_own_metadata() {
        let whole = Meta::array(Dtype::Float32, vec![100, 3, 2]).unwrap().with_form(Form::Torch);
        let digest = Digest([7; 32]);
        let (range, meta) =
            selection(Some(10), Some(12)).apply(&ID, &whole.with_digest(digest)).unwrap();
        assert_eq!(range, 240..288);
        let expected = Meta::array(Dtype::Float32, vec![2, 3, 2]).unwrap().with_form(Form::Torch);
        assert_eq!(meta, expected);
        let (range, meta) = selection(Some(1), Some(4)).apply(&ID, &Meta::bytes(9)).unwrap();
        assert_eq!((range, meta), (1..4, Meta::bytes(3)));
    }

    #[test]
    fn arrays_without_elements_have_empty_parts() {
        for shape in [vec![0, 3], vec![4, 0]] {
            let whole = Meta::array(Dtype::Int8, shape.clone()).unwrap();
            let (range, meta) = selection(None, Some(2)).apply(&ID, &whole).unwrap();
            let expected = Meta::array(Dtype::Int8, vec![shape[0].min(2), shape[1]]).unwrap();
            assert_eq!((range, meta), (0..0, expected));
        }
    }

    #[test]
    fn other_objects_have_no_parts() {
        let scalar = Meta::array(Dtype::Int8, Vec::new()).unwrap();
        let pickled = Meta::bytes(8).with_form(Form::Pickle);
        let arrow = Meta::bytes(8).with_form(Form::Arrow);
        for (meta, what) in [(scalar, "without axes"), (pickled, "pickled"), (arrow, "Arrow")] {
            let error = selection(None, None).apply(&ID, &meta).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
