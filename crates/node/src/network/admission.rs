//! Callers that have not shaken hands yet, and how many there may be: strangers that connect and say nothing must take no
//! descriptor that members, clients or memory need. Knows addresses, not what is said.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use rustix::process::{Resource, getrlimit};
use tokio::task::AbortHandle;

use crate::sync::lock;

/// Callers at a time, if this process may open many descriptors. A handshake takes a few milliseconds at most, so that many
/// suffice for a hundred members that open all their payload connections at once.
const CALLERS_MAX: usize = 1024;

/// The share of this process's descriptors that callers may take, if it may not open many.
const DESCRIPTORS_SHARE: u64 = 4;

/// Callers that there may be in any case: two members may open as many payload connections at once.
const CALLERS_MIN: usize = 32;

/// Callers that have not shaken hands yet.
#[derive(Debug, Default)]
pub(super) struct Callers {
    all: Mutex<All>,
}

/// In the order in which they called.
#[derive(Debug, Default)]
struct All {
    next: u64,
    callers: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    number: u64,
    from: IpAddr,
    /// None until the task has started.
    task: Option<AbortHandle>,
}

/// A caller that shakes hands; dropped when it has, or was refused.
#[derive(Debug)]
pub(super) struct Calling {
    callers: Arc<Callers>,
    number: u64,
}

impl Drop for Calling {
    fn drop(&mut self) {
        lock(&self.callers.all).callers.retain(|caller| caller.number != self.number);
    }
}

impl Callers {
    /// Has a task shake hands with a caller. If there are `most`, one of the address that has the most is ended: the one
    /// that has waited longest. Returns whether that was so.
    pub(super) fn admit(
        self: &Arc<Self>,
        from: IpAddr,
        most: usize,
        start: impl FnOnce(Calling) -> AbortHandle,
    ) -> bool {
        let (number, ended) = {
            let mut all = lock(&self.all);
            let ended = (all.callers.len() >= most).then(|| all.take_longest());
            let number = all.next;
            all.next += 1;
            all.callers.push(Caller { number, from, task: None });
            (number, ended)
        };
        let is_one_ended = ended.is_some();
        // Outside the lock, which the end of a task takes.
        if let Some(task) = ended.and_then(|caller| caller.task) {
            task.abort();
        }
        let task = start(Calling { callers: self.clone(), number });
        // It may be over by now.
        let mut all = lock(&self.all);
        if let Some(caller) = all.callers.iter_mut().find(|caller| caller.number == number) {
            caller.task = Some(task);
        }
        is_one_ended
    }
}

/// How many callers there may be at a time: as many as this process has descriptors for.
pub(super) fn callers_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = usize::try_from(descriptors / DESCRIPTORS_SHARE).unwrap_or(usize::MAX);
    share.clamp(CALLERS_MIN, CALLERS_MAX)
}

impl All {
    /// The caller that has waited longest of the address that has the most.
    fn take_longest(&mut self) -> Caller {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for caller in &self.callers {
            *counts.entry(caller.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let longest = self.callers.iter().position(|caller| counts[&caller.from] == most);
        self.callers.remove(longest.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn numbers(callers: &Callers) -> Vec<u64> {
        lock(&callers.all).callers.iter().map(|caller| caller.number).collect()
    }

    #[tokio::test]
    async fn of_too_many_callers_the_longest_of_the_most_frequent_address_goes() {
        let callers = Arc::new(Callers::default());
        let mut tasks = Vec::new();
        let mut call = |from| {
            callers.admit(from, 4, |calling| {
                let task = tokio::spawn(async move {
                    let _calling = calling;
                    pending::<()>().await;
                });
                let handle = task.abort_handle();
                tasks.push(task);
                handle
            })
        };
        let ended: Vec<bool> = [B, A, A, A, A, B].into_iter().map(&mut call).collect();
        assert_eq!(ended, [false, false, false, false, true, true]);
        for task in tasks.drain(1..3) {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert_eq!(numbers(&callers), [0, 3, 4, 5]);
    }

    #[tokio::test]
    async fn a_caller_that_is_done_makes_room() {
        let callers = Arc::new(Callers::default());
        for _ in 0..3 {
            let mut done = None;
            let is_one_ended = callers.admit(A, 1, |calling| {
                let task = tokio::spawn(async move { drop(calling) });
                let handle = task.abort_handle();
                done = Some(task);
                handle
            });
            assert!(!is_one_ended);
            done.unwrap().await.unwrap();
            assert_eq!(numbers(&callers), [0; 0]);
        }
    }
}
