//! A set of descriptors whose events several threads wait for, and a counter that makes one of them
//! check something. Only the system calls: [`crate::shared_epoll`] decides which thread waits.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};

#[derive(Debug)]
pub(crate) struct EventSet {
    set: OwnedFd,
    poke: OwnedFd,
}

/// The token of an [`EventSet::poke`] event.
const POKED: u64 = u64::MAX;

/// The events of a descriptor.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// Events that one thread takes at a time. Other threads take the rest.
const EVENTS_AT_ONCE: usize = 8;

impl EventSet {
    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Its value is never read: each increment is an event.
        epoll::add(&set, &poke, EventData::new_u64(POKED), EventFlags::IN | EventFlags::ET)?;
        // Not registered for forked children: these keep no socket open, and all such descriptors
        // have one inode.
        Ok(Self { set, poke })
    }

    pub(crate) fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        debug_assert_ne!(token, POKED);
        Ok(epoll::add(&self.set, descriptor, EventData::new_u64(token), READABLE)?)
    }

    /// Raises the event of a descriptor again if there is something to read.
    pub(crate) fn raise(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::modify(&self.set, descriptor, EventData::new_u64(token), READABLE)?)
    }

    /// Raises an event without a descriptor.
    pub(crate) fn poke(&self) {
        // This fails only if the counter is full, which takes longer than any machine lives.
        let _ = rustix::io::write(&self.poke, &1_u64.to_ne_bytes());
    }

    /// Waits for events, for at most `time`, then calls `woken`, and `take` for each event of a
    /// descriptor. Returns whether the poke was among them.
    ///
    /// # Errors
    /// A signal came first. Our own descriptor has no other errors.
    pub(crate) fn wait(
        &self,
        time: Option<Duration>,
        woken: impl Fn(),
        take: &mut impl FnMut(u64, bool),
    ) -> Result<bool, Errno> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        let timeout = time.and_then(|time| Timespec::try_from(time).ok());
        let waited = epoll::wait(&self.set, &mut events, timeout.as_ref());
        woken();
        let (events, _) = waited?;
        let mut is_poked = false;
        for event in events {
            match event.data.u64() {
                POKED => is_poked = true,
                token => take(token, !event.flags.difference(EventFlags::IN).is_empty()),
            }
        }
        Ok(is_poked)
    }
}
