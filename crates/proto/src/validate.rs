//! Validation of messages: contradictory numbers, and lists above their limits.
//!
//! Checks one message at a time. Checks that depend on the sender or on the receiver's state are in
//! the file `permit` of [`crate::node`].

use core::ops::Range;

use crate::{
    error::is_reducible,
    id::{Instance, ObjectId},
    inline::Inline,
    limits::{
        BLOCK_BYTES, BURIED_MAX, INLINE_BYTES_MAX, LISTED_MAX, MEMBERS_MAX, NAME_BYTES_MAX,
        OBJECT_BYTES_MAX, REASON_BYTES_MAX, REPORT_BYTES_MAX, SURVEY_BYTES_MAX,
    },
    message::{Announce, ENDED, FoldOrder, Message, Progress, Source},
    meta::Meta,
    pipeline::is_frame_length,
    question::{Answer, Question},
    swim::SwimMessage,
};

impl Message {
    /// Whether the message is well-formed. A malformed message comes from a broken peer and is
    /// dropped.
    pub fn is_valid(&self) -> bool {
        let are_whole = match self {
            Self::Announce(announce) => announce.is_valid(),
            Self::ClaimAtBackup(claim) => claim.claim && claim.is_valid(),
            Self::Ask { question, .. } => question.is_valid(),
            Self::Answer { answer, .. } => answer.is_valid(),
            Self::StoreReplica { meta, inline, .. } => meta.carries(inline.as_ref()),
            Self::Fold(order) => order.is_valid(),
            Self::RingReduce(order) => order.is_valid(),
            Self::Members(members) => members.len() <= MEMBERS_MAX,
            Self::Tombstone { instances, .. } => instances.len() <= BURIED_MAX,
            Self::Down { reason, .. } => reason.len() <= REASON_BYTES_MAX,
            Self::Survey(bytes) => bytes.len() <= SURVEY_BYTES_MAX,
            // That number is reserved for the end of a process.
            Self::Swim(
                SwimMessage::Suspect { incarnation, .. } | SwimMessage::Alive { incarnation, .. },
            ) => *incarnation < ENDED,
            _ => true,
        };
        are_whole && self.instances().all(|(id, instance)| can_be(id, instance))
    }

    /// Metadata and bytes of the inline object in the message, if there is one.
    pub fn small_object(&self) -> Option<(&Meta, &Inline)> {
        match self {
            Self::Announce(Announce { meta, progress, .. })
            | Self::ClaimAtBackup(Announce { meta, progress, .. }) => {
                Some((meta, progress.bytes()?))
            }
            Self::Answer { answer, .. } => answer.small_object(),
            Self::StoreReplica { meta, inline: Some(bytes), .. } => Some((meta, bytes)),
            _ => None,
        }
    }

    /// The instances that the message names, with their objects.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (&ObjectId, Instance)> {
        let one = match self {
            Self::Announce(Announce { id, instance, .. })
            | Self::ClaimAtBackup(Announce { id, instance, .. })
            | Self::Claimed { id, instance, .. }
            | Self::Withdraw { id, instance }
            | Self::Redirect { id, instance, .. }
            | Self::Reserve { id, instance }
            | Self::ReserveAtBackup { id, instance }
            | Self::Drop { id, instance, .. }
            | Self::DropPartial { id, instance, .. }
            | Self::Reannounce { id, instance }
            | Self::Dropped { id, instance }
            | Self::Abandon { id, instance }
            | Self::StoreReplica { id, instance, .. }
            | Self::ReplicaReply { id, instance, .. }
            | Self::ReleaseReplica { id, instance } => Some((id, *instance)),
            Self::Ask { question: Question::Locate(locate), .. } => {
                locate.not_here.map(|(_, instance)| (&locate.id, instance))
            }
            Self::Ask { question: Question::LocateRange(locate), .. } => {
                Some((&locate.id, locate.instance))
            }
            Self::Answer { answer: Answer::Located(located), .. } => {
                Some((&located.id, located.instance))
            }
            Self::RateReport(paced) => Some((&paced.id, paced.instance)),
            Self::RingReduce(order) => Some((&order.id, order.instance)),
            _ => None,
        };
        let many = match self {
            Self::Tombstone { id, instances, .. } => Some((id, &instances[..])),
            _ => None,
        };
        let many = many.into_iter().flat_map(|(id, all)| all.iter().map(move |it| (id, *it)));
        one.into_iter().chain(many)
    }
}

impl Question {
    fn is_valid(&self) -> bool {
        match self {
            Self::Locate(locate) => locate.avoid.len() <= MEMBERS_MAX,
            Self::LocateRange(locate) => {
                locate.avoid.len() <= MEMBERS_MAX && locate.bytes <= OBJECT_BYTES_MAX
            }
            Self::Locations { known: Some(holdings), .. } => holdings.len() <= MEMBERS_MAX,
            Self::Latest { prefix, .. } => prefix.as_str().ends_with('/'),
            Self::List { prefix, .. } => prefix.len() <= NAME_BYTES_MAX,
            _ => true,
        }
    }
}

impl Answer {
    /// Metadata and bytes of the inline object in the answer.
    fn small_object(&self) -> Option<(&Meta, &Inline)> {
        match self {
            Self::Located(located) => match &located.source {
                Source::Inline(bytes) => Some((&located.meta, bytes)),
                Source::Holder { .. } => None,
            },
            Self::Found(found) => Some((&found.meta, found.inline.as_ref()?)),
            _ => None,
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Located(located) => match &located.source {
                Source::Inline(bytes) => located.meta.carries(Some(bytes)),
                Source::Holder { .. } => located.meta.is_valid(),
            },
            Self::Found(found) => found.meta.carries(found.inline.as_ref()),
            Self::Locations(holdings) => holdings.len() <= MEMBERS_MAX,
            Self::List { rows, .. } => {
                rows.len() <= LISTED_MAX && rows.iter().all(|row| row.meta.is_valid())
            }
            Self::Report(report) => report.len() <= REPORT_BYTES_MAX,
            _ => true,
        }
    }
}

/// Whether an object can have this instance: only the node that generated an id creates its bytes,
/// except those of a slot.
pub(crate) fn can_be(id: &ObjectId, instance: Instance) -> bool {
    id.is_slot() || id.minter().is_none_or(|minter| minter == instance.node)
}

impl Announce {
    fn is_valid(&self) -> bool {
        match &self.progress {
            Progress::Inline(bytes) => self.meta.carries(Some(bytes)),
            Progress::Complete | Progress::Partial { .. } | Progress::Parts => self.meta.is_valid(),
            Progress::Stored(bytes) => {
                let bytes = bytes.as_ref().map_or(self.meta.size, Inline::len);
                !self.claim && self.meta.is_valid() && self.meta.is_small(bytes)
            }
        }
    }
}

impl Meta {
    pub(crate) fn is_valid(&self) -> bool {
        self.is_consistent() && self.size <= OBJECT_BYTES_MAX
    }

    /// Whether the object travels with these bytes, or without.
    fn carries(&self, inline: Option<&Inline>) -> bool {
        let fits = match inline {
            Some(bytes) => self.is_small(bytes.len()),
            None => self.size > INLINE_BYTES_MAX,
        };
        self.is_valid() && fits
    }

    /// Whether the object is a small one of that many bytes.
    const fn is_small(&self, bytes: u64) -> bool {
        bytes == self.size && self.size <= INLINE_BYTES_MAX
    }
}

impl FoldOrder {
    fn is_valid(&self) -> bool {
        let is_size = self.size <= OBJECT_BYTES_MAX && self.size.is_multiple_of(self.dtype.size());
        let Range { start, end } = self.part;
        let is_part = start < end && end <= self.size && start.is_multiple_of(BLOCK_BYTES);
        let is_whole = end == self.size || end.is_multiple_of(BLOCK_BYTES);
        let has_source = !self.inputs.is_empty();
        let can_fold = is_frame_length(self.frame) && is_reducible(self.op, self.dtype);
        is_size && is_part && is_whole && has_source && can_fold
    }
}
