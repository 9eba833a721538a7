//! One attached process that has a capability: what it may ask and hear, and memory of its own for what it reads.
//!
//! An extent holds objects of several clients beside each other, and after each other: a process that maps it can read them
//! all. So this one is lent no extent but those that it fills itself. What it gets is copied into memory that never holds
//! anything else, once for each object that it reads at a time.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{
    ask::{Answer, Ask},
    capability::Capability,
    error::Error as CallError,
    id::Instance,
};
use hoplite_shm::{Arena, ShmError, Slot, WriterId};

use super::{programs::Programs, protocol::Place};
use crate::{capability, network::proofs::Token, sync::lock};

/// What the numbers of copies have that those of extents have not.
const COPY: u64 = 1 << 63;

/// What confines a process.
pub(super) struct Confined {
    programs: Arc<Programs>,
    capability: Capability,
    copies: Mutex<HashMap<Instance, Copied>>,
}

/// An object in memory that is for this process alone.
struct Copied {
    /// For an answer whose descriptor it has.
    place: Place,
    /// Answers that spoke of it and were not released.
    readers: usize,
}

impl Confined {
    /// Takes the capability of a process, or says why it is not let in with that, or without one.
    pub(super) fn admit(
        programs: &Arc<Programs>,
        text: Option<&str>,
    ) -> Result<Option<Self>, String> {
        let Some(text) = text else {
            return if programs.confine {
                Err("this node takes no process without a capability: give connect() or init() the file of one \
                     (capability=, or HOPLITE_CAPABILITY_FILE), which hoplite token grant makes"
                    .into())
            } else {
                Ok(None)
            };
        };
        let tokens = &programs.network.identity.tokens;
        if tokens.is_empty() {
            return Err("this node has no token to verify a capability with: start it with the token of which the \
                        capability was made (--token-file)"
                .into());
        }
        let capability = capability::verify(text, tokens.iter().map(Token::text))
            .map_err(|error| format!("this node does not take the capability: {error}"))?;
        if capability.has_expired(now()) {
            let said = "has expired: get another (hoplite token grant)";
            return Err(format!("the capability {capability} {said}"));
        }
        Ok(Some(Self { programs: programs.clone(), capability, copies: Mutex::default() }))
    }

    /// The question as it is asked of the node.
    pub(super) fn asks(&self, ask: Ask) -> Result<Ask, CallError> {
        let unique = || {
            let node = self.programs.network.identity.member.id;
            format!("@{node}/{:x}", self.programs.facts.next_id())
        };
        self.capability.admit(ask, now(), unique)
    }

    /// An answer as the process may hear it.
    pub(super) fn hears(&self, answer: Result<Answer, CallError>) -> Result<Answer, CallError> {
        self.capability.shown(answer)
    }

    /// Copies an object, if the process has no copy of it, and lets `tell` answer with it. Takes a while.
    pub(super) fn lend(
        &self,
        instance: Instance,
        slot: &Slot,
        tell: impl FnOnce(Place, Option<Arc<OwnedFd>>),
    ) -> Result<(), ShmError> {
        let mut made: Option<(Place, Arc<OwnedFd>)> = None;
        loop {
            {
                // Held while it is told: an answer without the descriptor must not overtake the one that has it.
                let mut copies = lock(&self.copies);
                if let Some(copied) = copies.get_mut(&instance) {
                    copied.readers += 1;
                    tell(copied.place.clone(), None);
                    return Ok(());
                }
                if let Some((place, descriptor)) = made.take() {
                    let with_descriptor = Place { has_descriptor: true, ..place.clone() };
                    copies.insert(instance, Copied { place, readers: 1 });
                    tell(with_descriptor, Some(descriptor));
                    return Ok(());
                }
            }
            made = Some(self.copied(slot)?);
        }
    }

    fn copied(&self, slot: &Slot) -> Result<(Place, Arc<OwnedFd>), ShmError> {
        // Of one extent, which is as long as the object.
        let arena = Arena::new(0);
        let copy = arena.allocate(slot.len(), None)?;
        copy.copy_from(slot.bytes().unwrap_or_default(), |_| {})?;
        let extent = copy.extent();
        let (descriptor, extent_len) =
            arena.descriptor(extent, WriterId(0)).ok_or(ShmError::UnknownExtent { extent })?;
        let (offset, len) = (copy.offset(), copy.len());
        let extent = COPY | self.programs.facts.next_id();
        Ok((Place { extent, extent_len, offset, len, has_descriptor: false }, descriptor))
    }

    /// The process has released an object; the number of its copy, if that is to go.
    pub(super) fn released(&self, instance: Instance) -> Option<u64> {
        let mut copies = lock(&self.copies);
        let copied = copies.get_mut(&instance)?;
        copied.readers -= 1;
        let is_last = copied.readers == 0;
        if is_last { Some(copies.remove(&instance)?.place.extent) } else { None }
    }

    /// The process could not map a copy: the next answer brings another.
    pub(super) fn unmapped(&self, extent: u64) {
        lock(&self.copies).retain(|_, copied| copied.place.extent != extent);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
