//! Chooses the sizes of extents, which extent may serve an object, and how much memory stays warm. It computes with
//! numbers only.
//!
//! The kernel refuses to punch holes into sealed memory, so no page of an extent can be freed while another is used.
//! Therefore a large object has its own extent, which is unmapped with it. Small objects share extents that are small
//! compared with the bound.

use crate::units::PAGE_BYTES;

/// Bytes of the first shared extent of the node or of a writer. Each further one is as large as the bytes in use. So
/// the first object waits briefly, and a client with few objects wastes little memory.
const FIRST_EXTENT_BYTES: u64 = 64 << 10;

/// Objects from this size on, in bytes, have their own extents: creating one takes half as long as filling it.
const OWN_BYTES: u64 = 128 << 10;

/// A shared extent has at most 1/2048 of the bound, or twice [`OWN_BYTES`] if that is more. One small object keeps this
/// much memory mapped, and a put may wait while this much is created and evicted.
const SHARED_SHARE: u64 = 2048;

/// An extent may exceed its object by this part of the object's size: 1/8. Objects of similar sizes can then reuse each
/// other's memory.
const LOOSE_SHARE: u64 = 8;

/// Extents that exceed their objects may waste this part of the bound together: 1/64.
const WASTE_SHARE: u64 = 64;

/// Free memory that always stays warm: 32 MiB, plus as much as is used. A program that puts a version of its data every
/// minute, and then deletes the one before, needs no new memory. If it deletes all of it, nearly all is given back.
const WARM_BYTES: u64 = 32 << 20;

/// Limits of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Maximum bytes of a shared extent.
    pub(super) extent_bytes: u64,
    /// Maximum bytes of all extents together.
    pub(super) bound: u64,
    /// Maximum number of extents for the smallest objects that have their own: each needs a descriptor.
    pub(super) extents_max: u64,
}

impl Sizes {
    /// Size from which an object has its own extent, in bytes.
    pub(super) fn own_bytes(&self) -> u64 {
        OWN_BYTES.max(self.bound / self.extents_max.max(1)).min(self.extent_bytes)
    }

    /// Bytes of the next shared extent of a writer whose shared extents have `used` bytes in use. It is a multiple of
    /// `bytes`, the size of its first object, because most programs put objects of one size.
    pub(super) fn shared_bytes(&self, used: u64, bytes: u64) -> u64 {
        let most = (self.bound / SHARED_SHARE).max(2 * self.own_bytes()).min(self.extent_bytes);
        let wanted = used.max(FIRST_EXTENT_BYTES).min(most);
        wanted - wanted % bytes.clamp(PAGE_BYTES, wanted)
    }

    /// Whether a free extent of one object may serve an object of `bytes`, given the bytes wasted in others.
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

    /// Bytes of free memory that stay mapped while the store is idle, given the bytes in use.
    pub(super) fn warm_bytes(used: u64) -> u64 {
        used.saturating_add(WARM_BYTES)
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
    fn shared_extents_grow_with_used_memory_up_to_a_small_part_of_the_bound() {
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
    fn extents_of_one_object_do_not_exhaust_descriptors() {
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
