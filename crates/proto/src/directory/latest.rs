//! Requests for a newer name under a prefix, by prefix: an announcement costs the same however many programs wait for
//! names under other prefixes.
//!
//! Does not know names or entries.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use crate::{
    id::{NodeId, RequestId},
    timed::key_after,
};

/// The version that a requester has, and its request.
type Waiter = (Option<u64>, NodeId, RequestId);

/// All requests for a newer name.
#[derive(Debug, Default)]
pub(super) struct LatestWaiters {
    /// Of each prefix, ordered by the version that the requester has. The value is whether the request is unsettled:
    /// the requester has no reply yet, because holders may not have announced their names here.
    by_prefix: BTreeMap<String, BTreeMap<Waiter, bool>>,
    /// The prefix and the version of each request.
    by_node: BTreeMap<NodeId, BTreeMap<RequestId, (String, Option<u64>)>>,
}

impl LatestWaiters {
    /// Number of requests of a node.
    pub(super) fn count_of(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, BTreeMap::len)
    }

    /// Number of requests for names under those prefixes for which `is_counted` returns true.
    pub(super) fn count(&self, is_counted: impl Fn(&str) -> bool) -> usize {
        let counted = self.by_prefix.iter().filter(|(prefix, _)| is_counted(prefix));
        counted.map(|(_, waiters)| waiters.len()).sum()
    }

    pub(super) fn insert(
        &mut self,
        node: NodeId,
        request: RequestId,
        prefix: &str,
        after: Option<u64>,
        unsettled: bool,
    ) {
        self.by_node.entry(node).or_default().insert(request, (prefix.into(), after));
        let waiters = self.by_prefix.entry(prefix.into()).or_default();
        waiters.insert((after, node, request), unsettled);
    }

    pub(super) fn remove(&mut self, node: NodeId, request: RequestId) {
        if let Some((prefix, after)) = self.forget(node, request)
            && let Some(waiters) = self.by_prefix.get_mut(&prefix)
        {
            waiters.remove(&(after, node, request));
            if waiters.is_empty() {
                self.by_prefix.remove(&prefix);
            }
        }
    }

    fn forget(&mut self, node: NodeId, request: RequestId) -> Option<(String, Option<u64>)> {
        let requests = self.by_node.get_mut(&node)?;
        let forgotten = requests.remove(&request);
        if requests.is_empty() {
            self.by_node.remove(&node);
        }
        forgotten
    }

    pub(super) fn remove_node(&mut self, node: NodeId) {
        let requests = self.by_node.get(&node).into_iter().flat_map(BTreeMap::keys);
        for request in requests.copied().collect::<Vec<RequestId>>() {
            self.remove(node, request);
        }
    }

    /// The prefix after another one, or the first.
    pub(super) fn next_prefix(&self, after: Option<&String>) -> Option<String> {
        key_after(&self.by_prefix, after)
    }

    /// Drops the requests under a prefix.
    pub(super) fn remove_prefix(&mut self, prefix: &str) {
        for (_, node, request) in self.by_prefix.remove(prefix).unwrap_or_default().into_keys() {
            self.forget(node, request);
        }
    }

    /// Whether a request waits for this version.
    pub(super) fn awaits(&self, prefix: &str, version: u64) -> bool {
        let waiters = self.by_prefix.get(prefix);
        let first = waiters.and_then(BTreeMap::first_key_value);
        first.is_some_and(|(&(after, ..), _)| after < Some(version))
    }

    /// Removes and returns the requests for which this version is new.
    pub(super) fn take(&mut self, prefix: &str, version: u64) -> Vec<(NodeId, RequestId)> {
        let mut taken = Vec::new();
        let Some(waiters) = self.by_prefix.get_mut(prefix) else { return taken };
        let least = (Some(version), NodeId(0), RequestId(0));
        let newer = waiters.split_off(&least);
        let due = core::mem::replace(waiters, newer);
        if waiters.is_empty() {
            self.by_prefix.remove(prefix);
        }
        for (_, node, request) in due.into_keys() {
            self.forget(node, request);
            taken.push((node, request));
        }
        taken
    }

    /// Returns the requests that are unsettled, and marks them as settled.
    pub(super) fn settle(&mut self) -> Vec<(NodeId, RequestId)> {
        let waiters = self.by_prefix.values_mut().flatten();
        let unsettled = waiters.filter_map(|(&(_, node, request), unsettled)| {
            core::mem::take(unsettled).then_some((node, request))
        });
        unsettled.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_concerns_only_requests_of_its_prefix_that_do_not_have_it() {
        let mut waiters = LatestWaiters::default();
        let [two, three] = [2, 3].map(NodeId);
        waiters.insert(two, RequestId(1), "a/", None, false);
        waiters.insert(two, RequestId(2), "a/", Some(4), true);
        waiters.insert(three, RequestId(1), "a/", Some(5), false);
        waiters.insert(three, RequestId(2), "b/", Some(0), true);
        assert!(!waiters.awaits("c/", 9) && !waiters.awaits("b/", 0) && waiters.awaits("b/", 1));
        assert_eq!(waiters.settle(), [(two, RequestId(2)), (three, RequestId(2))]);
        assert_eq!(waiters.settle(), []);
        assert_eq!(waiters.take("a/", 5), [(two, RequestId(1)), (two, RequestId(2))]);
        assert_eq!(waiters.take("a/", 5), []);
        assert_eq!((waiters.count_of(two), waiters.count_of(three)), (0, 2));
        assert_eq!((waiters.count_of(two), waiters.count_of(three)), (0, 2));
        waiters.remove_prefix("b/");
        assert_eq!(waiters.count(|_| true), 1);
        waiters.remove_node(three);
        assert!(waiters.by_prefix.is_empty() && waiters.by_node.is_empty());
    }

    #[test]
    fn a_removed_request_leaves_nothing() {
        let mut waiters = LatestWaiters::default();
        waiters.insert(NodeId(2), RequestId(1), "a/", None, false);
        waiters.remove(NodeId(2), RequestId(2));
        waiters.remove(NodeId(3), RequestId(1));
        assert_eq!(waiters.count_of(NodeId(2)), 1);
        waiters.remove(NodeId(2), RequestId(1));
        assert!(waiters.by_prefix.is_empty() && waiters.by_node.is_empty());
    }
}
