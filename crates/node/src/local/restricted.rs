//! Restricts an attached process to its capability: the requests it may send, the replies it may
//! get, and memory of its own for what it reads.
//!
//! An extent holds objects of several clients, at once and over time: a process that maps it can
//! read them all. A confined process therefore maps only extents that it fills itself. Each object
//! that it gets is copied into separate memory, once per object that it reads at a time. The memory
//! is taken back after the process has released the object.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use hoplite_proto::{
    capability::Capability,
    error::Error as CallError,
    id::Instance,
    request::{Reply, Request},
};
use hoplite_shm::{Lent, Slot};

use super::{
    programs::Programs,
    protocol::{COPY, Region},
    quota::{Quota, QuotaHolder, QuotaPermit},
    reply_writer::Descriptor,
};
use crate::{capability, network::proofs::Token, sync::lock};

/// The capability of a process, and the copies that it reads.
pub(super) struct Restricted {
    programs: Arc<Programs>,
    capability: Capability,
    copies: Mutex<HashMap<Instance, Reading>>,
    /// Locked while an object is copied.
    copying: Mutex<()>,
}

/// A copy that the process reads.
struct Reading {
    copied: Arc<PrivateCopy>,
    /// Its place, for a reply when the process already has the descriptor.
    region: Region,
    /// Replies with it that were not released.
    readers: usize,
}

/// A copy of an object for one process and its forks alone. Dropping it takes the memory back.
pub(super) struct PrivateCopy {
    programs: Arc<Programs>,
    lent: Lent,
    // Freed after the memory.
    _bytes: QuotaPermit,
    _number: QuotaPermit,
}

impl AsFd for PrivateCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lent.as_fd()
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // Readers keep their copies when the node ends.
        if !self.programs.network.tasks.is_closed() && !std::thread::panicking() {
            self.lent.take_back();
        }
    }
}

/// Reason why an object was not copied.
pub(super) struct CopyError {
    /// The exceeded limit.
    pub(super) limit: Option<&'static str>,
    /// The message for the process.
    pub(super) detail: String,
}

impl Restricted {
    /// Verifies the capability of a process. The error is the reason of the refusal, with or
    /// without a capability.
    pub(super) fn admit(
        programs: &Arc<Programs>,
        text: Option<&str>,
    ) -> Result<Option<Self>, String> {
        let Some(text) = text else {
            return if programs.require_capability {
                Err("this node requires a capability: create one with hoplite token grant, and \
                     pass its file to connect() or init() (capability=, or HOPLITE_CAPABILITY)"
                    .into())
            } else {
                Ok(None)
            };
        };
        let tokens = &programs.network.identity.tokens;
        if tokens.is_empty() {
            return Err("this node has no token to verify a capability: start it with the token \
                        from which the capability was derived (--token-file)"
                .into());
        }
        let capability = capability::verify(text, tokens.iter().map(Token::text))
            .map_err(|error| format!("this node rejects the capability: {error}"))?;
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

    /// The clients whose capabilities derive from the same grant.
    pub(super) fn tenant(&self) -> QuotaHolder {
        QuotaHolder::Tenant(self.capability.tenant().into())
    }

    /// Checks a request and adapts it for the node.
    pub(super) fn authorize(&self, body: Request) -> Result<Request, CallError> {
        let unique = || {
            let node = self.programs.network.identity.member.id;
            format!("@{node}/{:x}", self.programs.events.next_id())
        };
        self.capability.authorize(body, now(), unique)
    }

    /// Restricts a reply to what the process may see.
    pub(super) fn filter_reply(
        &self,
        answer: Result<Reply, CallError>,
    ) -> Result<Reply, CallError> {
        self.capability.filter_reply(answer)
    }

    /// Copies an object, unless the process already has a copy, and lets `reply` send it. May take
    /// long.
    pub(super) fn lend(
        &self,
        takers: &[QuotaHolder],
        instance: Instance,
        slot: &Slot,
        reply: impl FnOnce(Region, Option<Descriptor>),
    ) -> Result<(), CopyError> {
        let mut made: Option<(Region, Arc<PrivateCopy>)> = None;
        let mut alone = None;
        loop {
            {
                // Locked while the reply is sent: a reply without the descriptor must not overtake
                // the one with it.
                let mut copies = lock(&self.copies);
                if let Some(reading) = copies.get_mut(&instance) {
                    reading.readers += 1;
                    reply(reading.region.clone(), None);
                    return Ok(());
                }
                if let Some((region, copied)) = made.take() {
                    let with_descriptor = Region { has_descriptor: true, ..region.clone() };
                    copies.insert(instance, Reading { copied: copied.clone(), region, readers: 1 });
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

    fn copied(
        &self,
        takers: &[QuotaHolder],
        slot: &Slot,
    ) -> Result<(Region, Arc<PrivateCopy>), CopyError> {
        let len = slot.len();
        let limit = "COPIES_MAX";
        let take = |shares: &Quota, amount, what: &str| {
            shares.take(takers, amount).map_err(|excess| {
                let remedy = "drop views of objects, which a process with a capability reads as \
                              copies, or raise ulimit -n or the capacity of the node";
                let detail = excess.explain(limit, what, remedy);
                CopyError { limit: Some(limit), detail }
            })
        };
        let room = take(&self.programs.copy_bytes, len, "bytes of copies")?;
        let number = take(&self.programs.copies, 1, "copies")?;
        let failed = |why: &dyn std::fmt::Display| CopyError {
            limit: None,
            detail: format!("copying the object failed: {why}"),
        };
        let bytes = slot.bytes().ok_or_else(|| failed(&"it is incomplete"))?;
        let lent = Lent::copy_of(bytes).map_err(|error| failed(&error))?;
        let (extent, extent_len) = (COPY | self.programs.events.next_id(), lent.extent_len());
        let region = Region { extent, extent_len, offset: 0, len, has_descriptor: false };
        let programs = self.programs.clone();
        Ok((region, Arc::new(PrivateCopy { programs, lent, _bytes: room, _number: number })))
    }

    /// The copies that the process reads.
    pub(super) fn copies(&self) -> Vec<Arc<PrivateCopy>> {
        lock(&self.copies).values().map(|reading| reading.copied.clone()).collect()
    }

    /// Records that the process released an object. Returns the extent of its copy after the last
    /// release.
    pub(super) fn released(&self, instance: Instance) -> Option<u64> {
        let mut copies = lock(&self.copies);
        let reading = copies.get_mut(&instance)?;
        reading.readers -= 1;
        let is_last = reading.readers == 0;
        if is_last { Some(copies.remove(&instance)?.region.extent) } else { None }
    }

    /// Drops a copy that the process could not map: the next reply brings another.
    pub(super) fn unmapped(&self, extent: u64) {
        lock(&self.copies).retain(|_, reading| reading.region.extent != extent);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
