//! Readers: client requests that wait for an object here, copies that clients read or other nodes
//! receive, and receivers that wait for the first byte.
//!
//! Does not know how an object comes to this node, nor what a copy is.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};

use crate::{
    id::{ClientId, Instance, ObjectId, RequestId, ServeId},
    time::Instant,
};

#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// Gets of objects that are not complete here, in order of the requests.
    waiting: ByObject,
    /// Requests to read an object while it arrives.
    followers: ByObject,
    /// Copies that clients read, and how often each.
    reads: BTreeMap<ClientId, BTreeMap<Instance, u32>>,
    /// Copies that this node sends to others, and since when.
    serves: BTreeMap<ServeId, (Instance, Instant)>,
    /// Receivers that were sent here before the first byte, by object, each with the instance that
    /// it wants.
    parked: BTreeMap<ObjectId, BTreeMap<ServeId, Instance>>,
    parked_for: BTreeMap<ServeId, ObjectId>,
}

#[derive(Debug, Default)]
struct ByObject(BTreeMap<ObjectId, BTreeSet<RequestId>>);

impl ByObject {
    fn insert(&mut self, id: &ObjectId, request: RequestId) {
        self.0.entry(id.clone()).or_default().insert(request);
    }

    /// Returns whether it was the last one.
    fn remove(&mut self, id: &ObjectId, request: RequestId) -> bool {
        let Some(requests) = self.0.get_mut(id) else { return false };
        let was_there = requests.remove(&request);
        let is_last = requests.is_empty();
        if is_last {
            self.0.remove(id);
        }
        was_there && is_last
    }

    fn take(&mut self, id: &ObjectId) -> BTreeSet<RequestId> {
        self.0.remove(id).unwrap_or_default()
    }
}

impl Readers {
    /// The numbers of objects that clients wait for and follow, of copies that they read, of
    /// transfers to other nodes, and of waiting receivers.
    pub(crate) fn counts(&self) -> [(&'static str, usize); 5] {
        let reads = self.reads.values().map(BTreeMap::len).sum();
        let (waiting, followers) = (self.waiting.0.len(), self.followers.0.len());
        let (serves, parked) = (self.serves.len(), self.parked_for.len());
        [
            ("gets", waiting),
            ("followers", followers),
            ("reads", reads),
            ("serves", serves),
            ("receivers that wait for the first byte", parked),
        ]
    }

    pub(crate) fn wait(&mut self, id: &ObjectId, request: RequestId) {
        self.waiting.insert(id, request);
    }

    pub(crate) fn are_waiting(&self, id: &ObjectId) -> bool {
        self.waiting.0.contains_key(id)
    }

    /// Removes a waiting reader. Returns whether it was the last one.
    pub(crate) fn stop_waiting(&mut self, id: &ObjectId, request: RequestId) -> bool {
        self.waiting.remove(id, request)
    }

    /// Removes and returns the waiting requests, which get their replies now.
    pub(crate) fn take_waiting(&mut self, id: &ObjectId) -> BTreeSet<RequestId> {
        self.waiting.take(id)
    }

    pub(crate) fn follow(&mut self, id: &ObjectId, request: RequestId) {
        self.followers.insert(id, request);
    }

    pub(crate) fn stop_following(&mut self, id: &ObjectId, request: RequestId) {
        self.followers.remove(id, request);
    }

    /// Removes and returns the following requests, which get their replies now.
    pub(crate) fn take_followers(&mut self, id: &ObjectId) -> BTreeSet<RequestId> {
        self.followers.take(id)
    }

    /// Records that a client reads a copy, which the node pins once more.
    pub(crate) fn begin(&mut self, client: ClientId, instance: Instance) {
        *self.reads.entry(client).or_default().entry(instance).or_default() += 1;
    }

    /// Records that a client reads a copy once less. Returns false if it does not read it.
    pub(crate) fn end(&mut self, client: ClientId, instance: Instance) -> bool {
        let Some(reads) = self.reads.get_mut(&client) else { return false };
        let Some(count) = reads.get_mut(&instance) else { return false };
        *count -= 1;
        if *count == 0 {
            reads.remove(&instance);
        }
        true
    }

    /// Removes a client that is gone. Returns what it read, and how often.
    pub(crate) fn end_all(&mut self, client: ClientId) -> BTreeMap<Instance, u32> {
        self.reads.remove(&client).unwrap_or_default()
    }

    /// Records a transfer to another node; the copy is pinned until the transfer ends.
    pub(crate) fn begin_serve(&mut self, serve: ServeId, instance: Instance, now: Instant) {
        self.serves.insert(serve, (instance, now));
    }

    /// The copy that a transfer to another node sends, and since when. `None` if it has not begun.
    pub(crate) fn serve(&self, serve: ServeId) -> Option<(Instance, Instant)> {
        self.serves.get(&serve).copied()
    }

    /// Ends a transfer to another node. Returns `None` if it had not begun.
    pub(crate) fn end_serve(&mut self, serve: ServeId) -> Option<Instance> {
        self.serves.remove(&serve).map(|(instance, _)| instance)
    }

    /// Makes a receiver wait.
    pub(crate) fn park(&mut self, id: &ObjectId, serve: ServeId, instance: Instance) {
        self.parked.entry(id.clone()).or_default().insert(serve, instance);
        self.parked_for.insert(serve, id.clone());
    }

    pub(crate) fn have_parked(&self, id: &ObjectId) -> bool {
        self.parked.contains_key(id)
    }

    /// Removes and returns the receivers that waited for an object, each with the instance that it
    /// wants.
    pub(crate) fn take_parked(&mut self, id: &ObjectId) -> BTreeMap<ServeId, Instance> {
        let taken = self.parked.remove(id).unwrap_or_default();
        for serve in taken.keys() {
            self.parked_for.remove(serve);
        }
        taken
    }

    /// Removes a waiting receiver that has disconnected. Returns the object that it waited for.
    pub(crate) fn unpark(&mut self, serve: ServeId) -> Option<ObjectId> {
        let id = self.parked_for.remove(&serve)?;
        if let Some(parked) = self.parked.get_mut(&id) {
            parked.remove(&serve);
            if parked.is_empty() {
                self.parked.remove(&id);
            }
        }
        Some(id)
    }

    /// Makes `child` read once each copy that a client reads. Returns these copies.
    pub(crate) fn inherit(&mut self, client: ClientId, child: ClientId) -> Vec<Instance> {
        let read = self.reads.get(&client).into_iter().flat_map(BTreeMap::keys);
        let held: Vec<Instance> = read.copied().collect();
        self.reads.insert(child, held.iter().map(|instance| (*instance, 1)).collect());
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCE: Instance = Instance { node: crate::id::NodeId(1), serial: 1 };

    #[test]
    fn an_heir_reads_once_what_a_client_reads_often() {
        let (mut readers, client, child) = (Readers::default(), ClientId(1), ClientId(2));
        (0..3).for_each(|_| readers.begin(client, INSTANCE));
        assert_eq!(readers.inherit(client, child), [INSTANCE]);
        assert!(readers.end(child, INSTANCE) && !readers.end(child, INSTANCE));
        assert_eq!(readers.end_all(client), BTreeMap::from([(INSTANCE, 3)]));
        assert!(readers.counts().iter().all(|(_, count)| *count == 0));
    }

    #[test]
    fn receivers_wait_for_the_first_byte_or_until_they_disconnect() {
        let mut readers = Readers::default();
        let id = ObjectId::Minted { node: INSTANCE.node, serial: 1 };
        (1..4).for_each(|serve| readers.park(&id, ServeId(serve), INSTANCE));
        assert_eq!(
            (readers.unpark(ServeId(2)), readers.unpark(ServeId(2))),
            (Some(id.clone()), None)
        );
        let left = BTreeMap::from([(ServeId(1), INSTANCE), (ServeId(3), INSTANCE)]);
        assert!(readers.have_parked(&id));
        assert_eq!(readers.take_parked(&id), left);
        assert!(!readers.have_parked(&id) && readers.unpark(ServeId(1)).is_none());
        assert!(readers.counts().iter().all(|(_, count)| *count == 0));
    }

    #[test]
    fn a_pull_ends_with_its_last_reader() {
        let (mut readers, id) =
            (Readers::default(), ObjectId::Minted { node: INSTANCE.node, serial: 1 });
        readers.wait(&id, RequestId(1));
        readers.wait(&id, RequestId(2));
        assert!(!readers.stop_waiting(&id, RequestId(1)));
        assert!(!readers.stop_waiting(&id, RequestId(1)), "it was not there");
        assert!(readers.stop_waiting(&id, RequestId(2)) && !readers.are_waiting(&id));
    }
}
