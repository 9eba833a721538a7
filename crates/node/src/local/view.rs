//! Memory that a program was given to read. Dropping it tells the node.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hoplite_proto::{
    ask::{Answer, Ask},
    id::{Instance, ObjectId},
    inline::Inline,
    meta::Meta,
};
use hoplite_shm::Slot;

use super::{
    connection::{Connection, slot_of},
    protocol::ToNode,
};

/// The memory of an answer; dropping it tells the node.
pub(crate) struct Guard {
    pub(crate) connection: Arc<Connection>,
    pub(crate) instance: Instance,
    pub(crate) slot: Option<Slot>,
    pub(crate) at_end: AtEnd,
    /// Its reader has copied it.
    pub(crate) is_copied: AtomicBool,
}

/// What the node is told when a guard is dropped.
pub(crate) enum AtEnd {
    Release,
    Abort,
    /// The node holds the memory for this question.
    LetGo(u64),
    Nothing,
}

impl Guard {
    /// The memory of an answer to the question of this number.
    pub(crate) fn of(
        connection: &Arc<Connection>,
        request: u64,
        answer: &Answer,
        slot: Option<Slot>,
    ) -> Option<Self> {
        let instance = slot_of(answer)?;
        let at_end = match answer {
            Answer::Growing { .. } if slot.is_none() => return None,
            Answer::Growing { .. } => AtEnd::LetGo(request),
            Answer::Got { .. } => {
                connection.read_began();
                AtEnd::Release
            }
            _ => AtEnd::Abort,
        };
        let (connection, is_copied) = (connection.clone(), AtomicBool::new(false));
        Some(Self { connection, instance, slot, at_end, is_copied })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.connection.is_forked() {
            // The pins belong to the parent; a slot would take its memory back into a list that is not shared.
            std::mem::forget(self.slot.take());
            return;
        }
        if matches!(self.at_end, AtEnd::Release) {
            self.connection.read_ended();
        }
        let instance = self.instance;
        // Before the node is told: it may give the memory to another object at once.
        self.slot = None;
        let is_copied = *self.is_copied.get_mut();
        self.connection.say(match self.at_end {
            AtEnd::Release if is_copied => ToNode::Tell { ask: Ask::ReleaseCopied { instance } },
            AtEnd::Release => ToNode::Tell { ask: Ask::Release { instance } },
            AtEnd::Abort => ToNode::Tell { ask: Ask::Abort { instance } },
            AtEnd::LetGo(request) => ToNode::LetGo { request },
            AtEnd::Nothing => return,
        });
    }
}

/// An object to read, without a copy. Its memory stays as it is for as long as the view lives, whatever happens to
/// the object.
pub struct View {
    pub(crate) id: ObjectId,
    pub(crate) meta: Meta,
    pub(crate) instance: Instance,
    pub(crate) body: Body,
}

/// Where the bytes of a view are.
pub(crate) enum Body {
    Inline(Inline),
    Slot(Guard),
}

impl View {
    /// The object.
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// What it is.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Its reader has copied all of it: once nothing else reads it, the node lets go of it before other copies.
    pub fn note_copied(&self) {
        if let Body::Slot(guard) = &self.body {
            guard.is_copied.store(true, Ordering::Relaxed);
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.body {
            Body::Inline(bytes) => bytes.as_bytes(),
            // Complete before it was handed out, and so for ever.
            Body::Slot(guard) => guard.slot.as_ref().and_then(Slot::bytes).unwrap_or_default(),
        }
    }
}

/// An object that is still arriving, or was when it was asked for. What is there of it can be copied away.
pub struct Growing {
    pub(crate) meta: Meta,
    pub(crate) guard: Guard,
}

impl Growing {
    /// What it will be.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether a view is of the same bytes. If not, what was copied is void.
    pub fn becomes(&self, view: &View) -> bool {
        self.guard.instance == view.instance
    }

    /// Copies what is there without a gap from `start` on to its place in `out`; returns where that ends.
    pub fn copy_to(&self, start: u64, out: &mut [u8]) -> u64 {
        let Some(slot) = &self.guard.slot else { return start };
        let end = slot.progress().prefix().min(out.len() as u64);
        match slot.ready(start..end) {
            Some(bytes) if start < end => {
                out[start as usize..end as usize].copy_from_slice(bytes);
                end
            }
            _ => start,
        }
    }
}

impl std::fmt::Debug for Growing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Growing").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View").field("id", &self.id).field("meta", &self.meta).finish()
    }
}
