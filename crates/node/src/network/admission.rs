//! Callers that have not shaken hands yet, and how many there may be: strangers that connect and say nothing must take no
//! descriptor that members, clients or memory need. Knows addresses, not what is said.

use std::{collections::HashMap, net::IpAddr};

use rustix::process::{Resource, getrlimit};
use tokio::task::AbortHandle;

/// Callers at a time, if this process may open many descriptors. A handshake takes a few milliseconds at most, so that many
/// suffice for a hundred members that open all their payload connections at once.
const CALLERS_MAX: usize = 1024;

/// The share of this process's descriptors that callers may take, if it may not open many.
const DESCRIPTORS_SHARE: u64 = 4;

/// Callers that there may be in any case: two members may open as many payload connections at once.
const CALLERS_MIN: usize = 32;

/// Callers that have not shaken hands yet, in the order in which they called.
#[derive(Debug, Default)]
pub(super) struct Callers(Vec<Caller>);

/// A caller, and the task that shakes hands with it, or refuses it.
#[derive(Debug)]
struct Caller {
    from: IpAddr,
    task: AbortHandle,
}

impl Callers {
    /// Adds a caller. If there are `most` others, one of the address that has the most is ended: the one that has waited
    /// longest. Returns whether that was so.
    pub(super) fn admit(&mut self, from: IpAddr, most: usize, task: AbortHandle) -> bool {
        self.0.retain(|caller| !caller.task.is_finished());
        let is_full = self.0.len() >= most;
        if is_full {
            self.take_longest().task.abort();
        }
        self.0.push(Caller { from, task });
        is_full
    }

    /// The caller that has waited longest of the address that has the most.
    fn take_longest(&mut self) -> Caller {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for caller in &self.0 {
            *counts.entry(caller.from).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let longest = self.0.iter().position(|caller| counts[&caller.from] == most);
        self.0.remove(longest.unwrap_or_default())
    }
}

/// How many callers there may be at a time: as many as this process has descriptors for.
pub(super) fn callers_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let share = usize::try_from(descriptors / DESCRIPTORS_SHARE).unwrap_or(usize::MAX);
    share.clamp(CALLERS_MIN, CALLERS_MAX)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    #[tokio::test]
    async fn of_too_many_callers_the_longest_of_the_most_frequent_address_goes() {
        let (mut callers, mut tasks) = (Callers::default(), Vec::new());
        let ended = [B, A, A, A, A, B].map(|from| {
            let task = tokio::spawn(pending::<()>());
            let is_one_ended = callers.admit(from, 4, task.abort_handle());
            tasks.push(task);
            is_one_ended
        });
        assert_eq!(ended, [false, false, false, false, true, true]);
        for task in tasks.drain(1..3) {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert!(tasks.iter().all(|task| !task.is_finished()) && callers.0.len() == 4);
    }

    #[tokio::test]
    async fn a_caller_that_is_done_makes_room() {
        let mut callers = Callers::default();
        for _ in 0..3 {
            let task = tokio::spawn(async {});
            assert!(!callers.admit(A, 1, task.abort_handle()));
            task.await.unwrap();
        }
    }
}
