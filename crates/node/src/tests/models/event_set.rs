//! A set of events without a kernel. Any waiting thread may take what is raised; a real kernel
//! wakes one of them.

use std::{io, os::fd::AsFd, time::Duration};

use loom::sync::Condvar;
use rustix::io::Errno;

use super::sync::{Mutex, lock};

#[derive(Debug)]
pub(crate) struct EventSet {
    raised: Mutex<Raised>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Raised {
    tokens: Vec<u64>,
    is_poked: bool,
}

impl EventSet {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { raised: Mutex::new(Raised::default()), changed: Condvar::new() })
    }

    pub(crate) fn add(&self, _: impl AsFd, _: u64) -> io::Result<()> {
        Ok(())
    }

    /// Raises the event of a token.
    pub(crate) fn raise(&self, _: impl AsFd, token: u64) -> io::Result<()> {
        lock(&self.raised).tokens.push(token);
        self.changed.notify_all();
        Ok(())
    }

    pub(crate) fn poke(&self) {
        lock(&self.raised).is_poked = true;
        self.changed.notify_all();
    }

    pub(crate) fn wait(
        &self,
        _: Option<Duration>,
        woken: impl Fn(),
        take: &mut impl FnMut(u64, bool),
    ) -> Result<bool, Errno> {
        let mut raised = lock(&self.raised);
        while raised.tokens.is_empty() && !raised.is_poked {
            raised = self.changed.wait(raised).unwrap();
        }
        let Raised { tokens, is_poked } = std::mem::take(&mut *raised);
        drop(raised);
        woken();
        tokens.into_iter().for_each(|token| take(token, false));
        Ok(is_poked)
    }
}
