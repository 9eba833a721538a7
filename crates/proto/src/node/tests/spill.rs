//! Pinned copies that go to disk and come back.

use super::*;
use crate::{
    id::ReduceId,
    lifetime::Lifetime,
    message::FoldKey,
    table::{COPY_OVERHEAD_BYTES, Residency, file_bytes},
};

/// The disks of all nodes.
#[derive(Default)]
pub(super) struct Disk {
    /// The files, in the order in which they were written.
    files: Vec<(NodeId, SpilledCopy)>,
    /// Whether all writes and reads fail, and the copy that can't be written.
    fails_to_write: bool,
    unwritable: Option<Instance>,
    pub(super) fails_to_read: bool,
    /// Whether the disks delay operations, and the delayed results.
    is_slow: bool,
    late: VecDeque<(NodeId, Event)>,
    writes: usize,
}

impl Disk {
    pub(super) fn carry_out(&mut self, node: NodeId, action: Action) -> Option<Event> {
        let event = match action {
            Action::Spill { kept } => {
                self.writes += 1;
                let instance = kept.instance;
                let is_disk_failing = self.fails_to_write;
                if is_disk_failing || self.unwritable == Some(instance) {
                    let detail = "/disk: no space left".into();
                    Event::SpillFailed { instance, detail, is_disk_failing }
                } else {
                    self.files.push((node, *kept));
                    Event::Spilled { instance }
                }
            }
            Action::Unspill { instance } => {
                assert!(self.has(node, instance));
                if self.fails_to_read {
                    Event::UnspillFailed { instance, detail: "/disk/file is not right".into() }
                } else {
                    Event::Unspilled { instance }
                }
            }
            Action::DropSpilled { instance } => {
                assert!(self.has(node, instance));
                self.files.retain(|(at, kept)| (*at, kept.instance) != (node, instance));
                return None;
            }
            _ => return None,
        };
        if self.is_slow {
            self.late.push_back((node, event));
            return None;
        }
        Some(event)
    }

    fn has(&self, node: NodeId, instance: Instance) -> bool {
        self.files.iter().any(|(at, kept)| (*at, kept.instance) == (node, instance))
    }
}

const COST: u64 = LARGE + COPY_OVERHEAD_BYTES;

impl Cluster {
    /// Nodes with capacity for three large objects; the first has a disk for `files` of them.
    fn with_disk(size: u64, files: u64, is_persistent: bool) -> Self {
        let mut cluster = Self::with_capacity(size, 3 * COST);
        let node = cluster.nodes.get_mut(&NodeId(1)).expect("it is there");
        node.spill(files * file_bytes(LARGE), is_persistent);
        cluster
    }

    /// Completes the delayed disk operations.
    fn disk_catches_up(&mut self) {
        while let Some((node, event)) = self.disk.late.pop_front() {
            self.tell(node.0, event);
        }
    }

    pub(super) fn place(&self, node: u64, id: &ObjectId) -> Option<Residency> {
        let table = self.nodes[&NodeId(node)].table();
        table.get(table.current(id)?).map(|copy| copy.residency)
    }

    fn places(&self, ids: &[ObjectId]) -> Vec<Option<Residency>> {
        ids.iter().map(|id| self.place(1, id)).collect()
    }

    /// Reads an object to its end.
    fn read(&mut self, node: u64, id: &ObjectId) {
        let request = self.get(node, id);
        let instance = got(self.reply(request));
        self.ask(node, Request::Release { instance });
    }
}

const MEMORY: Option<Residency> = Some(Residency::Memory);
const DISK: Option<Residency> = Some(Residency::Disk);

#[test]
fn originals_that_were_not_used_for_long_go_to_disk_and_come_back_when_they_are_read() {
    let mut cluster = Cluster::with_disk(2, 10, false);
    let mut ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    assert_eq!(cluster.disk.writes, 0, "what fits is not written");
    cluster.read(1, &ids[0]);
    ids.push(cluster.put_large(1, None));
    assert_eq!(cluster.places(&ids), [MEMORY, DISK, MEMORY, MEMORY]);
    // On this node, and on another node.
    cluster.read(1, &ids[1]);
    assert_eq!(cluster.places(&ids), [MEMORY, MEMORY, DISK, MEMORY]);
    cluster.read(2, &ids[2]);
    assert_eq!(cluster.place(1, &ids[2]), MEMORY);
    // A copy that has a file leaves memory without another write.
    let writes = cluster.disk.writes;
    cluster.read(1, &ids[1]);
    cluster.read(1, &ids[2]);
    assert_eq!(cluster.disk.writes, writes);
    cluster.ask(1, Request::Delete { ids });
    assert!(cluster.disk.files.is_empty());
    assert_eq!(cluster.nodes[&NodeId(1)].table().on_disk(), 0);
    cluster.assert_at_rest();
}

/// Goal: a returning copy waits until there is capacity for its bytes and its entries.
#[test]
fn a_returning_copy_waits_for_its_full_cost() {
    let mut cluster = Cluster::with_capacity(1, 2 * COST - COPY_OVERHEAD_BYTES / 2);
    cluster.nodes.get_mut(&NodeId(1)).expect("it is there").spill(10 * file_bytes(LARGE), false);
    let ids: Vec<ObjectId> = (0..2).map(|_| cluster.put_large(1, None)).collect();
    assert_eq!(cluster.places(&ids), [DISK, MEMORY]);
    cluster.disk.is_slow = true;
    let get = cluster.get(1, &ids[0]);
    let table = cluster.nodes[&NodeId(1)].table();
    assert!(table.used() <= table.capacity(), "{} of {}", table.used(), table.capacity());
    assert_eq!(cluster.places(&ids), [DISK, MEMORY], "the other has to be written first");
    cluster.disk.is_slow = false;
    cluster.disk_catches_up();
    got(cluster.reply(get));
    assert_eq!(cluster.places(&ids), [MEMORY, DISK]);
}

#[test]
fn copies_in_use_and_cached_copies_are_not_written() {
    let mut cluster = Cluster::with_disk(2, 10, false);
    let theirs = cluster.put_large(2, None);
    cluster.read(1, &theirs);
    let mine: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    assert_eq!((cluster.has(1, &theirs), cluster.disk.writes), (false, 0));
    let views: Vec<RequestId> = mine[..2].iter().map(|id| cluster.get(1, id)).collect();
    cluster.put_large(1, None);
    assert_eq!(cluster.places(&mine), [MEMORY, MEMORY, DISK]);
    let waiting =
        cluster.ask(1, Request::Create { id: None, meta: array(2 * LARGE), ttl_ns: None });
    assert!(!cluster.replies.contains_key(&waiting));
    for view in views {
        let instance = got(cluster.reply(view));
        cluster.ask(1, Request::Release { instance });
    }
    assert!(cluster.replies.contains_key(&waiting));
}

#[test]
fn one_that_is_read_while_it_is_written_stays_in_memory() {
    let mut cluster = Cluster::with_disk(1, 10, false);
    let ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    cluster.disk.is_slow = true;
    let waiting = cluster.ask(1, Request::Create { id: None, meta: array(LARGE), ttl_ns: None });
    let view = cluster.get(1, &ids[0]);
    let instance = got(cluster.reply(view));
    assert_eq!(cluster.disk.writes, 1);
    cluster.disk_catches_up();
    assert_eq!(cluster.place(1, &ids[0]), MEMORY);
    // Another copy leaves memory instead.
    cluster.disk_catches_up();
    assert!(cluster.replies.contains_key(&waiting));
    assert_eq!(cluster.places(&ids), [MEMORY, DISK, MEMORY]);
    cluster.ask(1, Request::Release { instance });
    // A copy that is deleted meanwhile leaves no file.
    cluster.ask(1, Request::Create { id: None, meta: array(2 * LARGE), ttl_ns: None });
    cluster.ask(1, Request::Delete { ids });
    cluster.disk_catches_up();
    assert!(cluster.disk.files.is_empty());
}

#[test]
fn a_failed_or_full_disk_loses_no_object_and_is_reported() {
    for is_full in [false, true] {
        let mut cluster = Cluster::with_disk(1, if is_full { 3 } else { 10 }, false);
        let mut ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
        cluster.disk.fails_to_write = !is_full;
        if is_full {
            ids.push(cluster.put_large(1, None));
        }
        let until = Some(cluster.now + SECOND / 2);
        let create = || Request::Create { id: None, meta: array(LARGE), ttl_ns: None };
        let late = cluster.ask_until(1, create(), until);
        let waiting = cluster.ask(1, create());
        cluster.wait(SECOND / 2);
        let said = cluster.reply(late).as_ref().unwrap_err().to_string();
        let why = if is_full { "bytes that may be spilled are taken" } else { "/disk: no space" };
        assert!(said.contains(why), "{said}");
        assert!(ids.iter().all(|id| cluster.has(1, id)));
        assert!(!cluster.replies.contains_key(&waiting));
        // It continues when the disk works again, or has space.
        cluster.disk.fails_to_write = false;
        if is_full {
            cluster.ask(1, Request::Delete { ids: vec![ids.remove(0)] });
        } else {
            cluster.wait(SECOND);
        }
        let Ok(Reply::Created { instance, .. }) = *cluster.reply(waiting) else { panic!() };
        cluster.ask(1, Request::Abort { instance });
        for id in &ids {
            cluster.read(1, id);
        }
    }
}

/// Goal: a copy that can't be written is set aside, and the next ones are written at once.
#[test]
fn a_copy_that_cannot_be_written_keeps_no_other_in_memory() {
    let mut cluster = Cluster::with_disk(2, 10, false);
    let mut ids: Vec<ObjectId> = (0..3).map(|_| cluster.put_large(1, None)).collect();
    cluster.disk.unwritable = cluster.nodes[&NodeId(1)].table().current(&ids[0]);
    let begun = cluster.now;
    ids.push(cluster.put_large(1, None));
    ids.push(cluster.put_large(1, None));
    assert_eq!(cluster.places(&ids), [MEMORY, DISK, DISK, MEMORY, MEMORY]);
    assert_eq!((cluster.disk.writes, cluster.now), (3, begun));
    cluster.read(1, &ids[0]);
    cluster.read(1, &ids[1]);
    assert_eq!(
        (cluster.disk.writes, cluster.place(1, &ids[0])),
        (4, MEMORY),
        "it is not tried again"
    );
    cluster.ask(1, Request::Delete { ids });
    assert!(cluster.disk.files.is_empty());
    cluster.assert_at_rest();
}

#[test]
fn a_reader_that_gives_up_leaves_it_on_disk_and_holds_up_no_other() {
    let mut cluster = Cluster::with_disk(2, 10, false);
    let ids: Vec<ObjectId> = (0..6).map(|_| cluster.put_large(1, None)).collect();
    let views: Vec<Instance> = ids[3..]
        .iter()
        .map(|id| {
            let request = cluster.get(1, id);
            got(cluster.reply(request))
        })
        .collect();
    let first = cluster.get(1, &ids[0]);
    let far = cluster.get(2, &ids[0]);
    let second = cluster.get(1, &ids[1]);
    assert!([first, far, second].iter().all(|request| !cluster.replies.contains_key(request)));
    let explained = cluster.ask(1, Request::Explain { id: ids[1].clone() });
    let Ok(Reply::Explained { lacks, .. }) = cluster.reply(explained) else { panic!() };
    assert_eq!(*lacks, Some((LARGE, 3 * COST)));
    cluster.tell(1, Event::Cancelled { client: CLIENT, request: first });
    cluster.tell(2, Event::Cancelled { client: CLIENT, request: far });
    cluster.ask(1, Request::Release { instance: views[0] });
    got(cluster.reply(second));
    // The same without memory.
    cluster.lack_memory(1);
    cluster.ask(1, Request::Release { instance: views[1] });
    let third = cluster.get(1, &ids[2]);
    assert_eq!(cluster.place(1, &ids[2]), Some(Residency::Pending));
    cluster.tell(1, Event::Cancelled { client: CLIENT, request: third });
    assert_eq!(cluster.place(1, &ids[2]), DISK);
    cluster.has_memory_again(1);
    cluster.read(1, &ids[2]);
}

#[test]
fn a_file_that_can_t_be_read_is_a_lost_copy_and_another_node_serves() {
    let mut cluster = Cluster::with_disk(2, 10, false);
    let twice = cluster.put_large(1, None);
    cluster.ask(1, Request::Replicate { id: twice.clone(), replicas: 2 });
    let ids: Vec<ObjectId> = (0..4).map(|_| cluster.put_large(1, None)).collect();
    assert_eq!((cluster.place(1, &ids[0]), cluster.place(1, &twice)), (DISK, DISK));
    cluster.disk.fails_to_read = true;
    let request = cluster.get(1, &twice);
    let unfinished: Vec<String> = cluster.nodes[&NodeId(1)].unfinished().collect();
    assert!(cluster.replies.contains_key(&request), "{unfinished:?}; {:?}", cluster.done);
    let lost = cluster.get(1, &ids[0]);
    cluster.wait(SECOND);
    let said = cluster.reply(lost).as_ref().unwrap_err();
    assert!(matches!(said, Error::ObjectLost { .. }), "{said}");
    assert!(said.to_string().contains("/disk/file is not right"), "{said}");
}

#[test]
fn a_fold_reads_its_input_from_disk() {
    let mut cluster = Cluster::with_disk(1, 10, false);
    let inputs: Vec<ObjectId> = (0..6).map(|_| cluster.put_large(1, None)).collect();
    let count = inputs.len() as u32;
    let reduce =
        Request::Reduce { inputs: inputs.clone(), op: Op::Sum, count, id: None, ttl_ns: None };
    let request = cluster.ask(1, reduce);
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!() };
    assert!(cluster.has(1, &id), "{:?}", cluster.done);
    assert_eq!(cluster.folds.len(), 1);
    assert!(cluster.places(&inputs[..3]) == [DISK; 3], "{:?}", cluster.places(&inputs));
}

#[test]
fn the_next_node_restores_copies_that_no_member_adopted() {
    let mut cluster = Cluster::with_disk(1, 10, true);
    let large: Vec<ObjectId> = (0..4).map(|_| cluster.put_large(1, None)).collect();
    let small = cluster.put_small(1, Some("a/1"));
    let ask = Request::Create { id: None, meta: array(LARGE), ttl_ns: Some(60 * SECOND) };
    let request = cluster.ask(1, ask);
    let Ok(Reply::Created { id: short, instance }) = cluster.reply(request).clone() else {
        panic!()
    };
    cluster.ask(1, Request::Seal { instance });
    cluster.tell(1, Event::LeaveRequested { timeout_ns: SECOND });
    assert_eq!(cluster.lost[&NodeId(1)], LostObjects::default());
    assert_eq!(cluster.disk.files.len(), 6);
    let mut next = Cluster::with_disk(1, 10, true);
    next.disk.files = core::mem::take(&mut cluster.disk.files);
    let mut all: Vec<SpilledCopy> = next.disk.files.iter().map(|(_, kept)| kept.clone()).collect();
    let mut others = BTreeMap::new();
    for kept in &mut all {
        // An instance of this node would be one that it has created itself.
        kept.instance.node = NodeId(9);
        let before = kept.id.clone();
        if let ObjectId::Minted { node, .. } = &mut kept.id {
            *node = NodeId(9);
        }
        others.insert(before, kept.id.clone());
    }
    let large: Vec<ObjectId> = large.iter().map(|id| others[id].clone()).collect();
    let (small, short) = (others[&small].clone(), others[&short].clone());
    next.disk.files = all.iter().map(|kept| (NodeId(1), kept.clone())).collect();
    next.tell(1, Event::CopiesRecovered { all });
    for id in &large {
        next.read(1, id);
    }
    let request = next.get(1, &small);
    assert!(matches!(next.reply(request), Ok(Reply::Got { inline: Some(_), .. })));
    let row = next.nodes[&NodeId(1)].table().current(&short).unwrap();
    let left = next.nodes[&NodeId(1)].table().get(row).unwrap().lifetime(next.now).unwrap();
    assert!(matches!(*left, Lifetime { remaining_ns: Some(1..), .. }), "{left:?}");
    next.wait(61 * SECOND);
    assert!(!next.has(1, &short));
    next.ask(1, Request::Delete { ids: [large, vec![small]].concat() });
    assert!(next.disk.files.is_empty());
}

#[test]
fn adopted_copies_leave_no_file() {
    let mut cluster = Cluster::with_disk(2, 10, true);
    let ids: Vec<ObjectId> = (0..6).map(|_| cluster.put_large(1, None)).collect();
    cluster.tell(1, Event::LeaveRequested { timeout_ns: SECOND });
    cluster.wait(SECOND);
    let taken = ids.iter().filter(|id| cluster.has(2, id)).count();
    assert_eq!(taken, 3, "as many as it has room for");
    assert_eq!(cluster.disk.files.len(), 3);
    assert_eq!(cluster.lost[&NodeId(1)], LostObjects::default());
    let is_kept = |id: &ObjectId| cluster.disk.files.iter().any(|(_, kept)| kept.id == *id);
    assert!(ids.iter().all(|id| cluster.has(2, id) != is_kept(id)));
}

#[test]
fn a_newer_put_takes_precedence_over_a_restored_copy() {
    for serial in [1, u64::MAX] {
        let mut cluster = Cluster::with_disk(2, 10, true);
        let name = cluster.owned_name(2, 1, "1");
        let kept = SpilledCopy {
            id: name.parse().unwrap(),
            // Lower and higher than any instance of these nodes.
            instance: Instance { node: NodeId(if serial == 1 { 0 } else { 9 }), serial },
            meta: array(LARGE),
            lifetime: None,
            inline: None,
        };
        let id = cluster.put_large(2, Some(&name));
        cluster.disk.files.push((NodeId(1), kept.clone()));
        cluster.tell(1, Event::CopiesRecovered { all: vec![kept] });
        assert!(cluster.disk.files.is_empty(), "it is dropped");
        cluster.read(1, &id);
    }
}

/// A pinned copy on disk that a fold of another node reads, that is returning without memory, and
/// that is then deleted. Returns its instance, and a get of the next object of that name.
fn deleted_while_it_comes_back() -> (Cluster, Instance, RequestId) {
    let mut cluster = Cluster::with_disk(2, 10, false);
    cluster.keeps_folding = true;
    let name = cluster.owned_name(1, 2, "x");
    let first = cluster.put_large(1, Some(&name));
    let input = cluster.nodes[&NodeId(1)].table().current(&first).unwrap();
    (0..3).for_each(|_| drop(cluster.put_large(1, None)));
    assert_eq!(cluster.place(1, &first), DISK);
    let (reduce, inputs) = (ReduceId { node: NodeId(2), serial: 1 }, vec![input]);
    let key = FoldKey { reduce, epoch: 0, segment: 0, position: 0 };
    let (op, dtype, size, part) = (Op::Sum, Dtype::Float32, LARGE, 0..LARGE);
    let (result, children, frame) = (named("sum"), vec![], 1 << 16);
    let order = FoldOrder { key, result, inputs, children, op, dtype, size, part, frame };
    cluster.tell(1, Event::Message { from: NodeId(2), message: Message::Fold(order) });
    cluster.lack_memory(1);
    cluster.get(1, &first);
    cluster.ask(1, Request::Delete { ids: vec![first.clone()] });
    let next = cluster.get(1, &first);
    (cluster, input, next)
}

#[test]
fn an_object_deleted_while_it_returns_is_not_read_from_disk() {
    let (mut cluster, instance, next) = deleted_while_it_comes_back();
    let (now, mut actions) = (cluster.now, Vec::new());
    let node = cluster.nodes.get_mut(&NodeId(1)).unwrap();
    node.handle(now, Event::SlotReady { instance }, &mut actions);
    assert_eq!(actions, []);
    assert!(!cluster.replies.contains_key(&next));
}

#[test]
fn deleting_an_object_without_memory_fails_no_get_of_the_next() {
    let (mut cluster, instance, next) = deleted_while_it_comes_back();
    cluster.tell(1, Event::SlotFailed { instance, detail: "no".into() });
    assert!(!cluster.replies.contains_key(&next));
}
