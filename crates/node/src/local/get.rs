//! Gets of a client, and views: the memory that it reads. Dropping a view notifies the node.

use std::{ops::Range, sync::atomic::Ordering, time::Duration};

use hoplite_proto::{
    id::{Instance, ObjectId},
    inline::Inline,
    meta::Meta,
    request::{Reply, Request},
    selection::Selection,
};
use hoplite_shm::{Ready, Slot};

use super::{client::Client, connection::SlotGuard, wait::PendingReply};
use crate::error::Error;

impl Client {
    /// Waits until an object is complete on this node, and returns a view of it.
    ///
    /// # Errors
    /// [`CallError::Timeout`], [`CallError::ObjectLost`], [`CallError::ObjectDeleted`],
    /// [`CallError::NodeDown`].
    pub fn get(&self, id: &ObjectId, timeout: Option<Duration>) -> Result<View, Error> {
        self.start_get(id, timeout).join()
    }

    /// Starts a get of an object.
    pub fn start_get(&self, id: &ObjectId, timeout: Option<Duration>) -> PendingReply<View> {
        self.start(Request::Get { id: id.clone() }, timeout, |reply, guard| {
            View::of(reply, guard).map(|(view, _)| view)
        })
    }

    /// Starts a get of rows or bytes of an object. If the object is on this node or arrives, the
    /// view pins the whole of it; otherwise only the selected bytes are transferred. They are not
    /// checked against a digest.
    ///
    /// # Errors
    /// As [`Client::get`]; [`CallError::InvalidArgument`] if the object is a pickle, Arrow data or
    /// a scalar.
    pub fn start_get_range(
        &self,
        id: &ObjectId,
        selection: Selection,
        timeout: Option<Duration>,
    ) -> PendingReply<View> {
        let body = Request::GetRange { id: id.clone(), selection };
        self.start(body, timeout, move |reply, guard| match View::of(reply, guard)? {
            (view, true) => Ok(view),
            (whole, false) => whole.select(selection),
        })
    }

    /// Starts to wait for the memory of an object that a concurrent get receives. None if nothing
    /// can be copied before that get completes.
    pub fn start_follow(
        &self,
        id: &ObjectId,
        timeout: Option<Duration>,
    ) -> PendingReply<Option<PartialView>> {
        self.start(Request::Follow { id: id.clone() }, timeout, |reply, guard| {
            match (reply, guard) {
                (Reply::Growing { meta, .. }, Some(guard)) => Ok(Some(PartialView { meta, guard })),
                (Reply::Growing { .. } | Reply::Done, None) => Ok(None),
                _ => Err(Error::unexpected_reply()),
            }
        })
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
