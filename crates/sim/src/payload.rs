//! Represents simulated bytes by their provenance.
//!
//! Every put gets its own [`Tag`]. A block of a put object is its tag. A block of a fold is the multiset of the tags of
//! its inputs. A block that was taken from a wrong copy, folded twice or omitted is therefore detected.

use std::{fmt, rc::Rc};

use hoplite_proto::inline::Inline;

/// Identifies one put; never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(pub(crate) u64);

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// What every block of an instance contains, apart from its index: sorted tags, with repetitions.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Content(Rc<[Tag]>);

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Size of a small object: room for 64 tags of 8 bytes.
pub(crate) const SMALL_BYTES: u64 = 512;

impl Content {
    /// The content of a put.
    pub(crate) fn of(tag: Tag) -> Self {
        Self([tag].into())
    }

    /// The content of a fold of `parts`.
    pub(crate) fn fold<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut tags: Vec<Tag> = parts.flat_map(|part| part.0.iter().copied()).collect();
        tags.sort_unstable();
        Self(tags.into())
    }

    pub(crate) fn tags(&self) -> &[Tag] {
        &self.0
    }

    /// Whether both are equal; fast if one is a clone of the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }

    /// Encodes the content as the bytes of a small object.
    pub(crate) fn to_inline(&self) -> Inline {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|tag| tag.0.to_le_bytes()).collect();
        assert!(bytes.len() as u64 <= SMALL_BYTES, "{} tags in a small object", self.0.len());
        bytes.resize(SMALL_BYTES as usize, 0);
        bytes.into()
    }

    pub(crate) fn from_inline(inline: &Inline) -> Self {
        let words = inline.as_bytes().chunks_exact(8);
        let tags = words.map(|word| Tag(u64::from_le_bytes(word.try_into().unwrap_or([0; 8]))));
        let mut tags: Vec<Tag> = tags.filter(|tag| tag.0 != 0).collect();
        tags.sort_unstable();
        Self(tags.into())
    }
}

/// One block in transfer.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Index of the block in its instance.
    pub(crate) index: u32,
    pub(crate) content: Content,
}
