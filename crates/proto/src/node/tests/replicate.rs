//! Replicas: their distribution, and what happens to them when their capacity is needed.

use super::*;
use crate::table::{COPY_OVERHEAD_BYTES, Residency, file_bytes};

impl Cluster {
    fn keep(&mut self, node: u64, id: &ObjectId, copies: u32) {
        assert_eq!(self.reached(node, id, copies), copies);
    }

    /// Replicates an object to `wanted` nodes, and returns the number of nodes reached.
    fn reached(&mut self, node: u64, id: &ObjectId, copies: u32) -> u32 {
        let request = self.ask(node, Request::Replicate { id: id.clone(), replicas: copies });
        let Ok(Reply::Replicated { replicas: copies }) = *self.reply(request) else {
            panic!("it is not kept")
        };
        copies
    }

    /// Nodes with a pinned copy of an object.
    fn pinned_copies(&self, id: &ObjectId) -> Vec<u64> {
        let holds = |node: &&Node| {
            let copy = node.table().current(id).and_then(|instance| node.table().get(instance));
            copy.is_some_and(|copy| copy.pinned && copy.is_complete())
        };
        self.nodes.values().filter(holds).map(|node| node.world.me().0).collect()
    }
}

/// Number of these objects for which each other node keeps a replica for `putter`.
fn kept(cluster: &Cluster, putter: u64, ids: &[ObjectId]) -> BTreeMap<u64, usize> {
    let mut kept: BTreeMap<u64, usize> = BTreeMap::new();
    for keeper in ids.iter().flat_map(|id| cluster.pinned_copies(id)).filter(|node| *node != putter)
    {
        *kept.entry(keeper).or_default() += 1;
    }
    kept
}

#[test]
fn the_second_copies_of_a_prefix_spread_evenly() {
    let mut cluster = Cluster::new(8);
    let mut ids = Vec::new();
    for number in 0..64 {
        let id = cluster.put_large(3, Some(&format!("p/{number}")));
        cluster.keep(3, &id, 2);
        ids.push(id);
    }
    let kept = kept(&cluster, 3, &ids);
    assert_eq!(kept.values().sum::<usize>(), 64);
    assert!(kept.len() == 7 && kept.values().all(|count| [9, 10].contains(count)), "{kept:?}");
}

#[test]
fn the_second_copies_of_many_putters_spread_evenly() {
    let mut cluster = Cluster::new(8);
    for number in 0..64 {
        let putter = 1 + number % 8;
        let id = cluster.put_large(putter, Some(&format!("p/{number}")));
        cluster.keep(putter, &id, 2);
    }
    for node in cluster.nodes.values() {
        let pinned_copies = node.table().iter().filter(|(_, copy)| copy.pinned).count();
        assert_eq!(pinned_copies, 16, "8 of its own and 8 of others at {:?}", node.world.me());
    }
}

/// Goal: a client gets the capacity that replicas use on its node, and no object has fewer replicas
/// afterwards.
#[test]
fn replicas_move_to_nodes_with_capacity() {
    // Capacity for six objects.
    let mut cluster = Cluster::with_capacity(3, 6 * (LARGE + 256) + 1000);
    let ids: Vec<ObjectId> = (0..4).map(|_| cluster.put_large(1, None)).collect();
    ids.iter().for_each(|id| cluster.keep(1, id, 2));
    assert_eq!(kept(&cluster, 1, &ids), BTreeMap::from([(2, 2), (3, 2)]));
    let own: Vec<ObjectId> = (0..6).map(|_| cluster.put_large(2, None)).collect();
    assert_eq!(kept(&cluster, 1, &ids), BTreeMap::from([(3, 4)]));
    assert!(own.iter().all(|id| cluster.pinned_copies(id) == [2]));
    // If no other node has capacity, the replicas stay and the client waits.
    (0..2).for_each(|_| drop(cluster.put_large(3, None)));
    let request = cluster.ask(3, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    assert!(!cluster.replies.contains_key(&request));
    assert_eq!(kept(&cluster, 1, &ids), BTreeMap::from([(3, 4)]));
    // The failed node had only replicas of objects that other nodes have.
    cluster.kill(3);
    assert!(ids.iter().all(|id| cluster.pinned_copies(id) == [1]));
}

#[test]
fn the_reply_has_the_number_of_replicas() {
    let mut cluster = Cluster::new(3);
    for (wanted, reached) in [(1, 1), (2, 2), (3, 3), (9, 3)] {
        let id = cluster.put_large(1, None);
        assert_eq!(cluster.reached(1, &id, wanted), reached);
        assert_eq!(cluster.pinned_copies(&id).len(), reached as usize);
    }
}

/// Goal: the node of the put is notified whether or not it is an owner of the object.
#[test]
fn a_replica_whose_file_is_lost_is_replaced() {
    let mut was_owner = BTreeSet::new();
    for number in 0..32 {
        let mut cluster = Cluster::with_capacity(4, 3 * (LARGE + COPY_OVERHEAD_BYTES));
        let host = cluster.nodes.get_mut(&NodeId(2)).expect("it is there");
        host.spill(10 * file_bytes(LARGE), false);
        let id = cluster.put_large(1, Some(&format!("{number}/p")));
        was_owner.insert(cluster.nodes[&NodeId(1)].members().owners(&id).contains(NodeId(1)));
        cluster.keep(1, &id, 2);
        assert_eq!(cluster.pinned_copies(&id), [1, 2]);
        (0..3).for_each(|_| drop(cluster.put_large(2, None)));
        assert_eq!(cluster.place(2, &id), Some(Residency::Disk));
        cluster.disk.fails_to_read = true;
        let request = cluster.get(2, &id);
        got(cluster.reply(request));
        assert_eq!(cluster.pinned_copies(&id).len(), 2, "{number}");
        cluster.keep(1, &id, 3);
        assert_eq!(cluster.pinned_copies(&id).len(), 3, "{number}");
    }
    assert_eq!(was_owner.len(), 2);
}

#[test]
fn a_deleted_object_leaves_no_keeper() {
    let mut cluster = Cluster::new(3);
    let id = cluster.put_large(1, None);
    cluster.keep(1, &id, 3);
    let request = cluster.ask(2, Request::Delete { ids: vec![id.clone()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    assert!(cluster.nodes.values().all(|node| node.table().iter().next().is_none()));
    assert!(cluster.nodes.values().all(|node| node.replicas.hosts_none()));
    assert!(cluster.nodes.values().all(|node| node.replicas.takes_no_room()));
    cluster.assert_at_rest();
}
