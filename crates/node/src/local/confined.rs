//! One attached process that has a capability: what it may ask and hear, and memory of its own for what it reads.
//!
//! An extent holds objects of several clients beside each other, and after each other: a process that maps it can read them
//! all. So this one is lent no extent but those that it fills itself. What it gets is copied into memory that never holds
//! anything else, once for each object that it reads at a time, and taken back when it has released the object.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{
    ask::{Answer, Ask},
    capability::Capability,
    error::Error as CallError,
    id::Instance,
};
use hoplite_shm::{Lent, Slot};

use super::{
    answers::Descriptor,
    programs::Programs,
    protocol::{COPY, Place},
    shares::{Excess, Share, Shares, Taker},
};
use crate::{capability, network::proofs::Token, sync::lock};

/// What confines a process.
pub(super) struct Confined {
    programs: Arc<Programs>,
    capability: Capability,
    copies: Mutex<HashMap<Instance, Reading>>,
    /// Held while an object is copied.
    copying: Mutex<()>,
}

/// A copy that the process reads.
struct Reading {
    copied: Arc<Copied>,
    /// For an answer whose descriptor it has.
    place: Place,
    /// Answers that spoke of it and were not released.
    readers: usize,
}

/// An object in memory that is for one process, and its forks, alone. Dropping it takes the memory back.
pub(super) struct Copied {
    programs: Arc<Programs>,
    lent: Lent,
    // Given back after the memory.
    _bytes: Share,
    _number: Share,
}

impl AsFd for Copied {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lent.as_fd()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // The end of a node takes nothing from its readers.
        if !self.programs.network.tasks.is_closed() && !std::thread::panicking() {
            self.lent.take_back();
        }
    }
}

/// Why an object was not copied.
pub(super) struct NoCopy {
    /// The limit that it is beyond.
    pub(super) limit: Option<&'static str>,
    /// The message for the process.
    pub(super) detail: String,
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
                     (capability=, or HOPLITE_CAPABILITY), which hoplite token grant makes"
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
        Ok(Some(Self {
            programs: programs.clone(),
            capability,
            copies: Mutex::default(),
            copying: Mutex::default(),
        }))
    }

    /// Those whose capabilities were made of the same grant.
    pub(super) fn tenant(&self) -> Taker {
        Taker::Tenant(self.capability.tenant().into())
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

    /// Copies an object, if the process has no copy of it, and lets `reply` answer with it. Takes a while.
    pub(super) fn lend(
        &self,
        takers: &[Taker],
        instance: Instance,
        slot: &Slot,
        reply: impl FnOnce(Place, Option<Descriptor>),
    ) -> Result<(), NoCopy> {
        let mut made: Option<(Place, Arc<Copied>)> = None;
        let mut alone = None;
        loop {
            {
                // Held while it is told: an answer without the descriptor must not overtake the one that has it.
                let mut copies = lock(&self.copies);
                if let Some(reading) = copies.get_mut(&instance) {
                    reading.readers += 1;
                    reply(reading.place.clone(), None);
                    return Ok(());
                }
                if let Some((place, copied)) = made.take() {
                    let with_descriptor = Place { has_descriptor: true, ..place.clone() };
                    copies.insert(instance, Reading { copied: copied.clone(), place, readers: 1 });
                    reply(with_descriptor, Some(copied));
                    return Ok(());
                }
            }
            // Several gets of one object wait for the first to copy it.
            if alone.is_none() {
                alone = Some(lock(&self.copying));
            } else {
                made = Some(self.copied(takers, slot)?);
            }
        }
    }

    fn copied(&self, takers: &[Taker], slot: &Slot) -> Result<(Place, Arc<Copied>), NoCopy> {
        let len = slot.len();
        let take = |shares: &Shares, amount, limit, what| {
            shares.take(takers, amount).map_err(|Excess { own, taken, most }| {
                let detail = format!(
                    "this process has a capability and reads copies: {taken} of {most} {what} are taken, {own} by its \
                     own or by others of its grant, and one may have as many as it leaves free: drop views of objects, \
                     or raise ulimit -n or the capacity of the node"
                );
                NoCopy { limit: Some(limit), detail }
            })
        };
        let bytes = take(&self.programs.copy_bytes, len, "COPIES_MAX", "bytes of copies")?;
        let number = take(&self.programs.copies, 1, "COPIES_MAX", "copies")?;
        let lent = Lent::copy_of(slot.bytes().unwrap_or_default()).map_err(|error| NoCopy {
            limit: None,
            detail: format!("to copy the object: {error}"),
        })?;
        let (extent, extent_len) = (COPY | self.programs.facts.next_id(), lent.extent_len());
        let place = Place { extent, extent_len, offset: 0, len, has_descriptor: false };
        let programs = self.programs.clone();
        Ok((place, Arc::new(Copied { programs, lent, _bytes: bytes, _number: number })))
    }

    /// All copies that the process reads.
    pub(super) fn copies(&self) -> Vec<Arc<Copied>> {
        lock(&self.copies).values().map(|reading| reading.copied.clone()).collect()
    }

    /// The process has released an object; the number of its copy, if that is to go.
    pub(super) fn released(&self, instance: Instance) -> Option<u64> {
        let mut copies = lock(&self.copies);
        let reading = copies.get_mut(&instance)?;
        reading.readers -= 1;
        let is_last = reading.readers == 0;
        if is_last { Some(copies.remove(&instance)?.place.extent) } else { None }
    }

    /// The process could not map a copy: the next answer brings another.
    pub(super) fn unmapped(&self, extent: u64) {
        lock(&self.copies).retain(|_, reading| reading.place.extent != extent);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
