//! How large extents are made, which of them serve an object, and how much stays warm. Pure: numbers in, numbers out.
//!
//! No page of a sealed extent can be given back while another is used: the kernel refuses to punch holes into it. So a
//! large object has an extent of its own, which goes with it, and small ones share extents that are small beside the bound.

use crate::units::PAGE_BYTES;

/// Bytes of the first extent that objects of the node or of a writer share. Each further one has as much as is in use, so
/// that the first object waits for little, and a client that keeps little keeps little more.
const FIRST_EXTENT_BYTES: u64 = 64 << 10;

/// Objects from this size on, in bytes, have extents of their own: to make one takes half as long as to fill it.
const OWN_BYTES: u64 = 128 << 10;

/// The share of the bound that an extent has at most that several objects share: 1/2048, or twice [`OWN_BYTES`] where that is
/// more. One small object keeps so much, and so much is made while a put waits, and evicted for it.
const SHARED_SHARE: u64 = 2048;

/// The part of an object's size by which an extent may be longer that serves it: 1/8. Objects of nearly one size then use
/// one another's memory.
const LOOSE_SHARE: u64 = 8;

/// The share of the bound that extents longer than their objects may waste together: 1/64.
const WASTE_SHARE: u64 = 64;

/// Bytes of free memory that stay warm for ever, and the share of what is used that stays beside them: 32 MiB and 1/16.
const WARM_BYTES: u64 = 32 << 20;
const WARM_SHARE: u64 = 16;

/// What an arena may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of the longest extent that several objects share.
    pub(super) extent_bytes: u64,
    /// Bytes of all extents together.
    pub(super) bound: u64,
    /// Extents of the smallest objects that have one of their own: each takes a descriptor.
    pub(super) extents_max: u64,
}

impl Sizes {
    /// Bytes from which an object has an extent of its own.
    pub(super) fn own_bytes(&self) -> u64 {
        OWN_BYTES.max(self.bound / self.extents_max.max(1)).min(self.extent_bytes)
    }

    /// Bytes of the next extent that several objects of one writer share, which use `used` in those that there are: as many
    /// whole objects as fit of the `bytes` of the first, for most programs put objects of one size.
    pub(super) fn shared_bytes(&self, used: u64, bytes: u64) -> u64 {
        let most = (self.bound / SHARED_SHARE).max(2 * self.own_bytes()).min(self.extent_bytes);
        let wanted = used.max(FIRST_EXTENT_BYTES).min(most);
        wanted - wanted % bytes.clamp(PAGE_BYTES, wanted)
    }

    /// Whether a free extent of one object may serve an object of `bytes`, when so much is wasted in others.
    pub(super) fn may_serve(&self, extent: u64, bytes: u64, wasted: u64) -> bool {
        let waste = extent.saturating_sub(bytes);
        waste == 0
            || waste <= bytes / LOOSE_SHARE
                && wasted.saturating_add(waste) <= self.bound / WASTE_SHARE
    }

    /// Bytes of the longest extent that may serve an object of `bytes`.
    pub(super) fn longest_for(bytes: u64) -> u64 {
        bytes.saturating_add(bytes / LOOSE_SHARE)
    }

    /// Bytes of free memory that stay when nothing asks for memory, while so much is used.
    pub(super) fn warm_bytes(used: u64) -> u64 {
        (used / WARM_SHARE).saturating_add(WARM_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sizes(bound: u64) -> Sizes {
        Sizes { extent_bytes: 64 * MIB, bound, extents_max: 4096 }
    }

    #[test]
    fn shared_extents_grow_with_what_is_used_to_a_small_part_of_the_bound() {
        let page = PAGE_BYTES;
        assert_eq!(sizes(8192 * MIB).shared_bytes(0, page), FIRST_EXTENT_BYTES);
        assert_eq!(sizes(8192 * MIB).shared_bytes(3 * MIB, page), 3 * MIB);
        assert_eq!(sizes(8192 * MIB).shared_bytes(500 * MIB, page), 4 * MIB);
        assert_eq!(sizes(800_000 * MIB).shared_bytes(500 * MIB, page), 64 * MIB);
        assert_eq!(sizes(64 * MIB).shared_bytes(5 * MIB, page), 2 * OWN_BYTES);
    }

    #[test]
    fn a_shared_extent_holds_whole_objects_of_one_size() {
        let object = 44 << 10;
        assert_eq!(sizes(40 * MIB).shared_bytes(0, object), object);
        assert_eq!(sizes(40 * MIB).shared_bytes(5 * MIB, object), 5 * object);
        assert_eq!(sizes(40 * MIB).shared_bytes(0, 2 * MIB), FIRST_EXTENT_BYTES);
    }

    #[test]
    fn extents_of_one_object_are_no_more_than_there_are_descriptors() {
        assert_eq!(sizes(80 * MIB).own_bytes(), OWN_BYTES);
        assert_eq!(sizes(40_960 * MIB).own_bytes(), 10 * MIB);
        let few = Sizes { extents_max: 16, ..sizes(40_960 * MIB) };
        assert_eq!(few.own_bytes(), 64 * MIB);
    }

    #[test]
    fn an_extent_serves_objects_of_nearly_its_size_while_little_is_wasted() {
        let sizes = sizes(6400 * MIB);
        assert!(sizes.may_serve(8 * MIB, 8 * MIB, u64::MAX));
        assert!(sizes.may_serve(9 * MIB, 8 * MIB, 0));
        assert!(!sizes.may_serve(10 * MIB, 8 * MIB, 0));
        assert!(!sizes.may_serve(9 * MIB, 8 * MIB, 100 * MIB));
        assert_eq!(Sizes::longest_for(8 * MIB), 9 * MIB);
    }
}
