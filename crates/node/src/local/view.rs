//! Views: memory that a client reads. Dropping a view notifies the node.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hoplite_proto::{
    id::{Instance, ObjectId},
    inline::Inline,
    meta::Meta,
    request::{Reply, Request},
    selection::Selection,
};
use hoplite_shm::{Ready, Slot};

use super::{
    connection::{Connection, slot_of},
    protocol::ToNode,
};
use crate::error::Error;

/// The memory of a reply. Dropping it notifies the node.
pub(crate) struct SlotGuard {
    pub(crate) connection: Arc<Connection>,
    pub(crate) instance: Instance,
    pub(crate) slot: Option<Slot>,
    pub(crate) at_end: OnDrop,
    /// Whether its reader has copied it.
    pub(crate) is_copied: AtomicBool,
}

/// The message to the node when a guard is dropped.
pub(crate) enum OnDrop {
    Release,
    Abort,
    /// Stop following, with the number of the request.
    StopFollowing(u64),
    Nothing,
}

impl SlotGuard {
    /// Takes the memory of a reply to the request with this number.
    pub(crate) fn of(
        connection: &Arc<Connection>,
        request: u64,
        reply: &Reply,
        slot: Option<Slot>,
    ) -> Option<Self> {
        let instance = slot_of(reply)?;
        let at_end = match reply {
            Reply::Growing { .. } if slot.is_none() => return None,
            Reply::Growing { .. } => OnDrop::StopFollowing(request),
            Reply::Got { .. } => {
                connection.read_began();
                // The node has seen the seal; the header is the writer's.
                if let Some(slot) = &slot {
                    slot.record_complete();
                }
                OnDrop::Release
            }
            _ => OnDrop::Abort,
        };
        let (connection, is_copied) = (connection.clone(), AtomicBool::new(false));
        Some(Self { connection, instance, slot, at_end, is_copied })
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if self.connection.is_forked() {
            // The parent owns the pins. Dropping the slot would return its memory to a list that
            // the child does not share.
            std::mem::forget(self.slot.take());
            return;
        }
        if matches!(self.at_end, OnDrop::Release) {
            self.connection.read_ended();
        }
        let instance = self.instance;
        // Unmap before notifying the node, which may reuse the memory at once.
        self.slot = None;
        let is_copied = *self.is_copied.get_mut();
        self.connection.send(match self.at_end {
            OnDrop::Release if is_copied => {
                ToNode::Notify { body: Request::ReleaseCopied { instance } }
            }
            OnDrop::Release => ToNode::Notify { body: Request::Release { instance } },
            OnDrop::Abort => ToNode::Notify { body: Request::Abort { instance } },
            OnDrop::StopFollowing(request) => ToNode::StopFollowing { request },
            OnDrop::Nothing => return,
        });
    }
}

/// A read-only view of an object, without a copy. Its memory does not change while the view exists,
/// even if the object is deleted.
pub struct View {
    id: ObjectId,
    meta: Meta,
    instance: Instance,
    body: Body,
    /// The viewed bytes, if they are only a part of the body.
    part: Option<Range<usize>>,
}

/// The bytes of a view.
enum Body {
    Inline(Inline),
    Slot(SlotGuard),
}

impl View {
    /// The view of a reply with an object, and whether the reply has only a range of it.
    pub(crate) fn of(reply: Reply, guard: Option<SlotGuard>) -> Result<(Self, bool), Error> {
        let (id, meta, instance, body, is_range) = match (reply, guard) {
            (Reply::Got { id, meta, instance, inline: Some(bytes), is_range }, _) => {
                (id, meta, instance, Body::Inline(bytes), is_range)
            }
            (Reply::Got { id, meta, instance, inline: None, is_range }, Some(guard)) => {
                (id, meta, instance, Body::Slot(guard), is_range)
            }
            _ => return Err(Error::unexpected_reply()),
        };
        Ok((Self { id, meta, instance, body, part: None }, is_range))
    }

    /// Narrows the view of a whole object to rows or bytes of it.
    ///
    /// # Errors
    /// As [`Selection::apply`].
    pub(crate) fn select(self, selection: Selection) -> Result<Self, Error> {
        let (range, meta) = selection.apply(&self.id, &self.meta)?;
        Ok(Self { meta, part: Some(range.start as usize..range.end as usize), ..self })
    }

    /// The id of the object.
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// The metadata of the object.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Records that the reader has copied all of it: once nothing else reads it, the node evicts it
    /// before other copies.
    pub fn note_copied(&self) {
        if let (Body::Slot(guard), None) = (&self.body, &self.part) {
            guard.is_copied.store(true, Ordering::Relaxed);
        }
    }

    /// The bytes of the object, or of the part.
    pub fn as_bytes(&self) -> &[u8] {
        let all = match &self.body {
            Body::Inline(bytes) => bytes.as_bytes(),
            // The node has reported that it is complete. A process without a capability trusts the
            // others of its user; one with a capability reads a copy that nobody can write.
            Body::Slot(guard) => {
                let bytes = guard.slot.as_ref().and_then(Slot::bytes);
                bytes.map(Ready::trusting_writer).unwrap_or_default()
            }
        };
        self.part.clone().map_or(all, |part| all.get(part).unwrap_or_default())
    }
}

/// A copy that was still arriving when it was requested. Bytes that have arrived can be copied out.
pub struct PartialView {
    pub(crate) meta: Meta,
    pub(crate) guard: SlotGuard,
}

impl PartialView {
    /// The metadata of the object.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether a view has the same instance. If not, the bytes copied so far are not valid.
    pub fn becomes(&self, view: &View) -> bool {
        self.guard.instance == view.instance
    }

    /// Copies the bytes that have arrived contiguously from `start` on to their place in `out`;
    /// returns where they end.
    pub fn copy_to(&self, start: u64, out: &mut [u8]) -> u64 {
        let Some(slot) = &self.guard.slot else { return start };
        let end = slot.progress().prefix().min(out.len() as u64);
        match slot.ready(start..end) {
            Some(bytes) if start < end => {
                bytes.copy_to(&mut out[start as usize..end as usize]);
                end
            }
            _ => start,
        }
    }
}

impl std::fmt::Debug for PartialView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("id", &self.id).field("meta", &self.meta).finish()
    }
}
