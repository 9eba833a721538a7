//! Copies that are re-announced to new owners in slices, and what happens before all have been announced.

use super::*;

/// Six objects on node 2 whose owners, 1 and 3, have failed. Node 4 is the primary owner now, and has the announcements
/// of some.
fn with_new_owners() -> (Cluster, Vec<ObjectId>) {
    let slice = Slice { entries: 1, pause_ns: 1 };
    let mut cluster = Cluster::in_slices(4, 1 << 30, slice);
    let is_first = |id: &ObjectId| {
        let mut members = cluster.nodes[&NodeId(2)].members().clone();
        let was_owned =
            members.owners(id).contains(NodeId(1)) && members.owners(id).contains(NodeId(3));
        members.remove(NodeId(1));
        members.remove(NodeId(3));
        was_owned && members.owners(id).primary == NodeId(4)
    };
    let ids = (0..).map(|group| named(&format!("group{group}/x")));
    let ids: Vec<ObjectId> = ids.filter(is_first).take(6).collect();
    for id in &ids {
        cluster.put_large(2, Some(&id.to_string()));
    }
    cluster.kill(1);
    cluster.kill(3);
    assert!(cluster.knows(4, &ids[0]) && !cluster.knows(4, &ids[5]));
    (cluster, ids)
}

impl Cluster {
    /// Whether an owner has a holder of the object.
    fn knows(&self, owner: u64, id: &ObjectId) -> bool {
        !self.nodes[&NodeId(owner)].directory().holders(id).is_empty()
    }

    fn work_off_all(&mut self) {
        while let Some(at) = self.nodes[&NodeId(2)].reannouncements.deadline() {
            self.now = self.now.max(at);
            self.wait(0);
        }
    }
}

#[test]
fn new_owners_get_every_copy_and_serve_waiting_readers() {
    let (mut cluster, ids) = with_new_owners();
    let waits = cluster.get(4, &ids[5]);
    assert!(!cluster.replies.contains_key(&waits));
    cluster.work_off_all();
    assert!(ids.iter().all(|id| cluster.knows(4, id)));
    got(cluster.reply(waits));
}

#[test]
fn an_object_deleted_before_its_re_announcement_does_not_return() {
    let (mut cluster, ids) = with_new_owners();
    let request = cluster.ask(2, Request::Delete { ids: vec![ids[5].clone()] });
    assert_eq!(cluster.reply(request), &Ok(Reply::Done));
    assert!(!cluster.has(2, &ids[5]));
    cluster.work_off_all();
    assert!(!cluster.has(2, &ids[5]) && !cluster.knows(4, &ids[5]));
    assert!(ids[..5].iter().all(|id| cluster.has(2, id) && cluster.knows(4, id)));
}

#[test]
fn a_copy_created_between_two_slices_is_announced_once() {
    let (mut cluster, ids) = with_new_owners();
    let id = cluster.put_large(4, None);
    let reading = cluster.get(2, &id);
    let instance = got(cluster.reply(reading));
    cluster.ask(2, Request::Release { instance });
    cluster.work_off_all();
    assert_eq!(cluster.nodes[&NodeId(4)].directory().holders(&id), [NodeId(2), NodeId(4)]);
    assert!(ids.iter().all(|id| cluster.knows(4, id)));
}
