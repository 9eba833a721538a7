//! Fair shares of a limited resource: a process, or the clients of one tenant, may use as much of
//! it as they leave free. Knows neither the resource nor the parties.
//!
//! ```text
//! 64 places:   |---- first: 32 --------|-- second: 16 ------|- 8 -|-|  free
//! ```
//! A greedy party thus leaves half, and something remains for each party that has nothing yet.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard},
};

use hoplite_shm::peer_process;
use tokio::{net::UnixStream, sync::Notify};

use super::request_reader::process_number;
use crate::sync::{lock, until};

/// A party that uses a share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum QuotaHolder {
    /// A process, by its id.
    Process(u32),
    /// A process in a PID namespace invisible to this process, by the inode of its pidfd. Before
    /// Linux 6.9 all of these have one inode, and share the limit of one process.
    Unseen(u64),
    /// The clients whose capabilities derive from one grant.
    Tenant(String),
}

impl QuotaHolder {
    /// The peer process of a connection.
    pub(super) fn of(stream: &UnixStream) -> Self {
        process_number(stream).map_or_else(
            || {
                let process = peer_process(stream.as_fd()).ok();
                let metadata = process.and_then(|process| rustix::fs::fstat(process).ok());
                Self::Unseen(metadata.map_or(0, |metadata| metadata.st_ino))
            },
            Self::Process,
        )
    }
}

/// The shares of one resource.
#[derive(Clone, Debug)]
pub(super) struct Quota(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: u64,
    state: Mutex<State>,
    freed: Notify,
    /// Notified when a sixteenth of the limit was freed.
    shrunk: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// The most that was taken since `shrunk` was notified.
    peak: u64,
    by: HashMap<QuotaHolder, u64>,
}

/// A share; dropping it frees it.
#[derive(Debug)]
pub(super) struct QuotaPermit {
    of: Arc<Inner>,
    amount: u64,
    takers: Vec<QuotaHolder>,
}

/// Reason why no share was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QuotaExceeded {
    /// Amount that the party has.
    pub(super) own: u64,
    /// Amount that all parties have.
    pub(super) taken: u64,
    /// The limit.
    pub(super) most: u64,
}

impl QuotaExceeded {
    /// The error for the party, with the limit and the remedy.
    pub(super) fn explain(self, limit: &str, what: &str, remedy: &str) -> String {
        let Self { own, taken, most } = self;
        format!(
            "this node has {taken} of at most {most} {what} ({limit}), {own} of them of this \
             process or its grant, which may have only as many as it leaves free for others: \
             {remedy}"
        )
    }
}

impl Quota {
    pub(super) fn new(most: u64) -> Self {
        let (state, freed, shrunk) = (Mutex::default(), Notify::new(), Notify::new());
        Self(Arc::new(Inner { most, state, freed, shrunk }))
    }

    /// Takes `amount` if it is free and each of the takers then leaves as much free as it has. A
    /// taker without a share need not leave anything.
    pub(super) fn take(
        &self,
        takers: &[QuotaHolder],
        amount: u64,
    ) -> Result<QuotaPermit, QuotaExceeded> {
        let mut permit = QuotaPermit { of: self.0.clone(), amount: 0, takers: takers.to_vec() };
        permit.resize(amount)?;
        Ok(permit)
    }

    /// A share without an amount yet.
    pub(super) fn none(&self, taker: &QuotaHolder) -> QuotaPermit {
        QuotaPermit { of: self.0.clone(), amount: 0, takers: vec![taker.clone()] }
    }

    /// Completes when a sixteenth of the limit was freed.
    pub(super) async fn shrunk(&self) {
        self.0.shrunk.notified().await;
    }

    /// Waits until the amount can be taken.
    pub(super) async fn wait(&self, takers: &[QuotaHolder], amount: u64) -> QuotaPermit {
        until(&self.0.freed, || self.take(takers, amount).ok()).await
    }
}

impl State {
    fn check(
        &self,
        taker: &QuotaHolder,
        amount: u64,
        taken: u64,
        most: u64,
    ) -> Result<(), QuotaExceeded> {
        let own = self.by.get(taker).copied().unwrap_or_default();
        let is_fair = own == 0 || own.saturating_add(amount) <= most.saturating_sub(taken);
        if taken <= most && is_fair {
            return Ok(());
        }
        Err(QuotaExceeded { own, taken: self.taken, most })
    }
}

impl QuotaPermit {
    /// The amount that is taken.
    pub(super) const fn amount(&self) -> u64 {
        self.amount
    }

    /// Changes the amount, as if the difference was taken or freed.
    pub(super) fn resize(&mut self, amount: u64) -> Result<(), QuotaExceeded> {
        if amount == self.amount {
            return Ok(());
        }
        let mut state = lock(&self.of.state);
        if let Some(more) = amount.checked_sub(self.amount) {
            let taken = state.taken.saturating_add(more);
            for taker in &self.takers {
                state.check(taker, more, taken, self.of.most)?;
            }
            if taken > self.of.most {
                return Err(QuotaExceeded { own: 0, taken: state.taken, most: self.of.most });
            }
        }
        state.taken = state.taken - self.amount + amount;
        state.peak = state.peak.max(state.taken);
        for taker in &self.takers {
            let own = state.by.entry(taker.clone()).or_default();
            *own = *own - self.amount + amount;
        }
        let is_less = amount < self.amount;
        self.amount = amount;
        if is_less {
            self.of.note_freed(state);
        }
        Ok(())
    }

    /// Counts the share for another taker too, if that one may have as much. A share without an
    /// amount is always counted, however much the taker has: what is taken later must not exceed
    /// its limit.
    pub(super) fn also(&mut self, taker: QuotaHolder) -> Result<(), QuotaExceeded> {
        let mut state = lock(&self.of.state);
        if self.amount > 0 {
            state.check(&taker, self.amount, state.taken, self.of.most)?;
        }
        *state.by.entry(taker.clone()).or_default() += self.amount;
        self.takers.push(taker);
        Ok(())
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut state = lock(&self.of.state);
        state.taken -= self.amount;
        for taker in &self.takers {
            if let Some(own) = state.by.get_mut(taker) {
                *own -= self.amount;
                if *own == 0 {
                    state.by.remove(taker);
                }
            }
        }
        // A permit that was not granted frees nothing.
        if self.amount > 0 {
            self.of.note_freed(state);
        }
    }
}

impl Inner {
    fn note_freed(&self, mut state: MutexGuard<'_, State>) {
        let has_shrunk = state.peak - state.taken >= self.most.div_ceil(16);
        if has_shrunk {
            state.peak = state.taken;
        }
        drop(state);
        self.freed.notify_waiters();
        if has_shrunk {
            self.shrunk.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes single units until none can be taken.
    fn all(shares: &Quota, takers: &[QuotaHolder]) -> Vec<QuotaPermit> {
        std::iter::from_fn(|| shares.take(takers, 1).ok()).collect()
    }

    #[test]
    fn greedy_taker_leaves_as_much_as_it_has() {
        let shares = Quota::new(64);
        let mut held: Vec<Vec<QuotaPermit>> =
            (1..=3).map(|pid| all(&shares, &[QuotaHolder::Process(pid)])).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8]);
        // A taker without a share gets one while any is free.
        held.extend(
            (4..=11).map(|pid| vec![shares.take(&[QuotaHolder::Process(pid)], 1).unwrap()]),
        );
        let excess = QuotaExceeded { own: 0, taken: 64, most: 64 };
        assert_eq!(shares.take(&[QuotaHolder::Process(12)], 1).unwrap_err(), excess);
        held.remove(0);
        shares.take(&[QuotaHolder::Process(12)], 32).unwrap();
        drop(held);
        assert!(lock(&shares.0.state).by.is_empty() && lock(&shares.0.state).taken == 0);
    }

    #[test]
    fn processes_of_one_tenant_share_one_limit() {
        let shares = Quota::new(64);
        let tenant = |name: &str| QuotaHolder::Tenant(name.into());
        let mut held = Vec::new();
        for pid in 0..64 {
            let mut share = shares.take(&[QuotaHolder::Process(pid)], 1).unwrap();
            if share.also(tenant("a/")).is_ok() {
                held.push(share);
            }
        }
        assert_eq!(held.len(), 32);
        let mut other = shares.take(&[QuotaHolder::Process(99)], 1).unwrap();
        other.also(tenant("b/")).unwrap();
        assert!(shares.take(&[QuotaHolder::Process(100), tenant("a/")], 1).is_err());
    }

    #[test]
    fn a_share_grows_as_far_as_others_leave_it() {
        let shares = Quota::new(64);
        let (one, two) = (QuotaHolder::Process(1), QuotaHolder::Process(2));
        let mut first = shares.none(&one);
        first.also(QuotaHolder::Tenant("a/".into())).unwrap();
        assert!(first.resize(16).is_ok() && first.resize(32).is_ok());
        assert_eq!(first.resize(33).unwrap_err(), QuotaExceeded { own: 32, taken: 32, most: 64 });
        let mut second = shares.none(&two);
        assert!(second.resize(32).is_ok() && first.resize(33).is_err());
        assert!(second.resize(1).is_ok() && first.resize(8).is_ok() && second.resize(28).is_ok());
        drop((first, second));
        assert!(lock(&shares.0.state).taken == 0 && shares.take(&[one], 64).is_ok());
    }

    /// Goal: a tenant that has more than is free can't take more by attaching further processes.
    #[test]
    fn a_share_without_an_amount_counts_for_a_tenant_at_its_limit() {
        let shares = Quota::new(64);
        let tenant = QuotaHolder::Tenant("a/".into());
        let _held = shares.take(&[QuotaHolder::Process(1), tenant.clone()], 32).unwrap();
        let _other = shares.take(&[QuotaHolder::Process(2)], 1).unwrap();
        let mut further = shares.none(&QuotaHolder::Process(3));
        further.also(tenant).unwrap();
        assert_eq!(further.resize(1).unwrap_err(), QuotaExceeded { own: 32, taken: 33, most: 64 });
    }

    #[test]
    fn taker_without_share_may_take_everything() {
        let shares = Quota::new(100);
        let takers = [QuotaHolder::Process(1)];
        assert!(shares.take(&takers, 101).is_err() && shares.take(&takers, u64::MAX).is_err());
        drop(shares.take(&takers, 100).unwrap());
        let _half = shares.take(&takers, 40).unwrap();
        assert!(shares.take(&takers, 11).is_err());
    }

    #[tokio::test]
    async fn end_of_much_use_is_reported_once() {
        let shares = Quota::new(64);
        let mut share = shares.none(&QuotaHolder::Process(1));
        let mut is_reported = async |amounts: [u64; 2]| {
            amounts.iter().for_each(|amount| share.resize(*amount).unwrap());
            tokio::select! {
                biased;
                () = shares.shrunk() => true,
                () = tokio::task::yield_now() => false,
            }
        };
        assert!(!is_reported([20, 18]).await && is_reported([20, 16]).await);
        assert!(!is_reported([16, 13]).await && is_reported([13, 12]).await);
    }

    #[tokio::test]
    async fn waiting_taker_gets_a_freed_share() {
        let shares = Quota::new(1);
        let held = shares.take(&[QuotaHolder::Process(1)], 1).unwrap();
        let (waiting, of_task) = (shares.clone(), shares.clone());
        let waiting =
            tokio::spawn(async move { waiting.wait(&[QuotaHolder::Process(2)], 1).await });
        tokio::task::yield_now().await;
        drop(held);
        drop(waiting.await.unwrap());
        assert!(of_task.take(&[QuotaHolder::Process(1)], 1).is_ok());
    }
}
