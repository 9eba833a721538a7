//! Requests for replicas of this node's pinned copies, and the replies of other nodes.

use alloc::{collections::BTreeSet, string::String, sync::Arc, vec::Vec};

use super::{set::ReplicaSet, state::Replicas};
use crate::{
    error::Error,
    event::LogEvent,
    id::{Instance, NodeId, RequestId},
    machines::{
        membership_change::MembershipChange,
        requests::{RequestContext, RequestKind, Requests},
        world::World,
    },
    message::Message,
    mutants::{self, Mutant},
    request::Reply,
    table::Copy,
    time::Instant,
};

impl Replicas {
    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.sets.contains_key(&instance)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let hand_over = self.hand_over.as_ref().map(|it| it.deadline());
        self.sets.deadline().into_iter().chain(hand_over).min()
    }

    /// Handles the request of a client for `count` replicas of a pinned copy of this node, the
    /// pinned copy included.
    pub(crate) fn want(
        &mut self,
        context: &RequestContext,
        (instance, copy): (Instance, &Copy),
        count: u32,
        requests: &mut Requests,
        world: &mut World,
    ) {
        self.open((instance, copy));
        self.sets.update(&instance, |set| {
            set.replicas = set.replicas.max(count as usize);
            set.requests.push(context.request);
        });
        requests.remember(context, RequestKind::Replicas(copy.id.clone(), instance), world);
        self.send_requests(instance, requests, world);
    }

    pub(super) fn open(&mut self, (instance, copy): (Instance, &Copy)) {
        if !self.contains(instance) {
            self.sets.insert(instance, ReplicaSet::new(copy));
        }
    }

    /// Removes a request that no longer waits.
    pub(crate) fn stop_waiting(&mut self, instance: Instance, request: RequestId) {
        self.sets.update(&instance, |set| set.requests.retain(|it| *it != request));
    }

    /// Requests as many replicas as are missing, and replies to waiting clients once enough exist.
    pub(super) fn send_requests(
        &mut self,
        instance: Instance,
        requests: &mut Requests,
        world: &mut World,
    ) {
        let Self { sets, load, unresponsive, .. } = self;
        let is_enough = sets.update(&instance, |set| {
            set.send_requests(instance, load, unresponsive, world)
                .then(|| (set.reached(), core::mem::take(&mut set.requests)))
        });
        let Some(is_enough) = is_enough else { return };
        let (replicas, waiting) = is_enough.unwrap_or_default();
        for request in waiting {
            requests.reply(request, Ok(Reply::Replicated { replicas }), world);
        }
        self.end_hand_over(instance, replicas > 0, world);
    }

    /// Ends the replication of a copy. Nodes that `are_told` may look for it.
    pub(super) fn remove(
        &mut self,
        instance: Instance,
        are_told: impl Fn(&ReplicaSet) -> BTreeSet<NodeId>,
        world: &mut World,
    ) -> Option<ReplicaSet> {
        let set = self.sets.remove(&instance)?;
        for node in are_told(&set) {
            world.send(node, Message::ReleaseReplica { id: set.id.clone(), instance });
        }
        set.charged().into_iter().for_each(|node| self.discharge(node, set.bytes));
        Some(set)
    }

    /// Subtracts bytes from the load of a node.
    fn discharge(&mut self, node: NodeId, bytes: u64) {
        if let Some(stored) = self.load.get_mut(&node) {
            *stored = stored.saturating_sub(bytes);
            if *stored == 0 {
                self.load.remove(&node);
            }
        }
    }

    /// Handles the reply of a node that keeps a replica, cannot, or wants to give it back.
    pub(crate) fn replied(
        &mut self,
        from: NodeId,
        instance: Instance,
        accepted: bool,
        requests: &mut Requests,
        world: &mut World,
    ) {
        let replied =
            |set: &mut ReplicaSet, world: &mut World| set.replied(from, instance, accepted, world);
        if self.change(instance, replied, world) {
            self.unresponsive.remove(&from);
            self.send_requests(instance, requests, world);
        }
    }

    /// Handles that a node no longer has a copy: if it was a replica, another one is requested.
    pub(crate) fn lost(
        &mut self,
        from: NodeId,
        instance: Instance,
        requests: &mut Requests,
        world: &mut World,
    ) {
        if self.change(instance, |set, _| set.withdrawn(from), world) {
            self.send_requests(instance, requests, world);
        }
    }

    /// Changes a set, and the load of the nodes where it takes less capacity then. Returns what
    /// `change` does.
    fn change(
        &mut self,
        instance: Instance,
        change: impl FnOnce(&mut ReplicaSet, &mut World) -> bool,
        world: &mut World,
    ) -> bool {
        let freed = self.sets.update(&instance, |set| {
            let before = set.charged();
            let result = change(set, world);
            let after = set.charged();
            (result, before.into_iter().filter(|node| !after.contains(node)).collect(), set.bytes)
        });
        let (result, freed, bytes): (bool, Vec<NodeId>, u64) = freed.unwrap_or_default();
        freed.into_iter().for_each(|node| self.discharge(node, bytes));
        result
    }

    /// Forgets a lost node.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.unresponsive.remove(&node);
        self.hosted.forget_node(node);
    }

    /// The copies whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<Instance> {
        self.sets.due(now)
    }

    /// The replicated copy after another one, or the first.
    pub(crate) fn next_after(&self, after: Option<Instance>) -> Option<Instance> {
        self.sets.next_after(after.as_ref())
    }

    /// Handles membership changes, unless that is done: drops the replicas of lost nodes, and
    /// requests that may be lost. Other nodes may have to be requested, or can be. Takes all
    /// changes at once, so that no lost node is counted.
    pub(crate) fn resend(
        &mut self,
        instance: Instance,
        changes: &[Arc<MembershipChange>],
        requests: &mut Requests,
        world: &mut World,
    ) {
        let Some(last) = changes.last().map(|change| change.number) else { return };
        if self.sets.get(&instance).is_none_or(|set| set.changes_seen == last) {
            return;
        }
        let is_rejoined = |node: &NodeId| changes.iter().any(|it| it.is_rejoined(*node));
        let is_forgotten = |node: &NodeId| changes.iter().any(|it| it.forgotten.contains(node));
        let lose = |set: &mut ReplicaSet, _: &mut World| {
            set.changes_seen = last;
            for node in set.known().into_iter().filter(is_rejoined) {
                let is_lost = is_forgotten(&node);
                if !is_lost || !mutants::is_active(Mutant::NeverReplacesReplicas) {
                    set.lose(node, is_lost);
                }
            }
            true
        };
        self.change(instance, lose, world);
        self.send_requests(instance, requests, world);
    }

    /// Repeats requests to nodes that had no capacity, and requests other nodes in addition to late
    /// ones. Returns the client requests for which no node is left.
    pub(crate) fn expire(&mut self, requests: &mut Requests, world: &mut World) -> Vec<RequestId> {
        let now = world.now();
        let is_due = |at: &mut Instant| *at <= now;
        let mut hopeless = Vec::new();
        for instance in self.sets.due(now) {
            self.sets.update(&instance, |set| {
                if set.retry_at.take_if(is_due).is_some() {
                    set.forget_refusals();
                }
                if set.give_up_at.take_if(is_due).is_some() {
                    hopeless.append(&mut set.requests);
                }
                for node in set.take_overdue(now) {
                    if world.members().contains(node) {
                        self.unresponsive.insert(node);
                    }
                    world.note(LogEvent::ReplicaLate { id: set.id.clone(), node });
                }
            });
            self.send_requests(instance, requests, world);
        }
        hopeless
    }

    /// Forgets a copy that no longer exists.
    pub(crate) fn end(&mut self, instance: Instance, requests: &mut Requests, world: &mut World) {
        self.hosted.remove(instance);
        self.forget_untaken(instance);
        // They may look for an object that can no longer be found, and that no node puts again.
        let Some(set) = self.remove(instance, ReplicaSet::searching, world) else { return };
        for request in &set.requests {
            let error = Error::ObjectDeleted { id: set.id.clone() };
            requests.reply(*request, Err(error), world);
        }
    }

    /// Describes the progress in words.
    pub(crate) fn state(&self, instance: Instance) -> String {
        let state = self.sets.get(&instance).map(ReplicaSet::state);
        state.unwrap_or_else(|| "it has 1 replica".into())
    }

    /// Whether no other node is charged for replicas of this one.
    #[cfg(test)]
    pub(crate) fn takes_no_room(&self) -> bool {
        self.load.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::{
        event::Action,
        id::{ClientId, ObjectId},
        limits::PROGRESS_WINDOW_NS,
        meta::Meta,
        table::{State, Table},
    };

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    /// Nodes that received a request for a replica, in order.
    fn requested(world: &mut World) -> Vec<u64> {
        let requested = |action| match action {
            Action::Send { to, message: Message::StoreReplica { .. } } => Some(to.0),
            _ => None,
        };
        world.taken().into_iter().filter_map(requested).collect()
    }

    /// A pinned copy of node 1 in a cluster, with a client that requests replicas.
    struct Subscribers {
        world: World,
        table: Table,
        replicas: Replicas,
        requests: Requests,
    }

    impl Subscribers {
        fn new(nodes: u64, count: u32) -> Self {
            let (replicas, requests) = (Replicas::default(), Requests::default());
            let (world, table) = (World::of(nodes), Table::new(1 << 20));
            let mut asking = Self { world, table, replicas, requests };
            asking.want(INSTANCE, count);
            asking
        }

        fn want(&mut self, instance: Instance, count: u32) {
            let id = ObjectId::Minted { node: NodeId(1), serial: instance.serial };
            self.table.insert(instance, id, Meta::bytes(1000), None, State::Complete, true);
            self.send_requests(instance, RequestId(instance.serial), count);
        }

        fn send_requests(&mut self, instance: Instance, request: RequestId, count: u32) {
            let Self { world, table, replicas, requests } = self;
            let copy = table.get(instance).expect("it is there");
            let question = RequestContext { client: ClientId(1), request, deadline: None };
            replicas.want(&question, (instance, copy), count, requests, world);
        }

        fn replied(&mut self, node: u64, accepted: bool) {
            let Self { world, replicas, requests, .. } = self;
            replicas.replied(NodeId(node), INSTANCE, accepted, requests, world);
        }

        /// Advances time to the next deadline. Returns the client requests for which no node is
        /// left.
        fn expire(&mut self) -> Vec<RequestId> {
            let due = self.replicas.deadline().expect("something is due");
            assert!(due > self.world.now());
            self.world.wait_until(due);
            self.replicas.expire(&mut self.requests, &mut self.world)
        }

        /// Nodes that were requested to keep a replica, and those that were released, since the
        /// last call.
        fn told(&mut self) -> (Vec<u64>, Vec<u64>) {
            let (mut requested, mut let_go) = (Vec::new(), Vec::new());
            for action in self.world.taken() {
                match action {
                    Action::Send { to, message: Message::StoreReplica { .. } } => {
                        requested.push(to.0)
                    }
                    Action::Send { to, message: Message::ReleaseReplica { .. } } => {
                        let_go.push(to.0)
                    }
                    _ => {}
                }
            }
            (requested, let_go)
        }
    }

    /// Goal: a member that never replies delays no client, and no other object.
    #[test]
    fn another_node_is_requested_in_addition_to_a_late_one() {
        let mut asking = Subscribers::new(4, 2);
        let begun = asking.world.now();
        assert_eq!(asking.told(), (vec![2], vec![]));
        assert!(asking.expire().is_empty());
        assert!(asking.world.now().since(begun) >= PROGRESS_WINDOW_NS);
        let overdue = LogEvent::ReplicaLate {
            id: asking.replicas.sets.get(&INSTANCE).unwrap().id.clone(),
            node: NodeId(2),
        };
        let actions = asking.world.taken();
        assert!(actions.contains(&Action::Log(overdue)), "{actions:?}");
        let is_to_third = |action: &Action| {
            matches!(action, Action::Send { to: NodeId(3), message: Message::StoreReplica { .. } })
        };
        assert!(actions.iter().any(is_to_third) && actions.len() == 2, "{actions:?}");
        asking.replied(3, true);
        assert_eq!((asking.requests.len(), asking.replicas.deadline()), (0, None));
        // The next requests go to nodes 3 and 4 first.
        for serial in 2..6 {
            asking.want(Instance { serial, ..INSTANCE }, 2);
        }
        assert_eq!(asking.told(), (vec![4, 3, 4, 3], vec![]));
    }

    /// Goal: no more nodes keep an object than needed, and a node that was slow gets requests like
    /// all others afterwards.
    #[test]
    fn the_first_node_with_a_replica_keeps_it_and_a_later_one_is_released() {
        let mut asking = Subscribers::new(3, 2);
        asking.expire();
        assert_eq!(asking.told(), (vec![2, 3], vec![]));
        asking.replied(2, true);
        assert_eq!((asking.requests.len(), asking.told()), (0, (vec![], vec![])));
        asking.replied(3, true);
        assert_eq!(asking.told(), (vec![], vec![3]));
        assert_eq!(asking.replicas.deadline(), None);
        asking.want(Instance { serial: 2, ..INSTANCE }, 2);
        assert_eq!(asking.told().0, [3], "node 3 keeps nothing");
        for serial in 1..3 {
            let instance = Instance { serial, ..INSTANCE };
            asking.replicas.end(instance, &mut asking.requests, &mut asking.world);
        }
        assert!(asking.replicas.takes_no_room());
    }

    #[test]
    fn a_request_fails_when_no_other_node_is_left() {
        let mut asking = Subscribers::new(3, 3);
        assert_eq!(asking.told(), (vec![2, 3], vec![]));
        asking.replied(2, true);
        assert!(asking.expire().is_empty());
        let state = asking.replicas.state(INSTANCE);
        assert!(
            state.contains("has 2 of 3 replicas") && state.contains("has not replied"),
            "{state}"
        );
        assert_eq!(asking.expire(), [RequestId(1)]);
        assert_eq!((asking.replicas.deadline(), asking.told()), (None, (vec![], vec![])));
        // The next request for it has as much time.
        asking.send_requests(INSTANCE, RequestId(2), 3);
        assert_eq!(asking.expire(), [RequestId(2)]);
        // A late replica is kept anyway.
        asking.replied(3, true);
        assert!(asking.replicas.state(INSTANCE).contains("has 3 of 3 replicas"));
    }

    /// Goal: a node that refuses a replica while it has no capacity may still take the copy of a
    /// leaving node. Method: the refusal of the first request arrives after this node has begun to
    /// leave.
    #[test]
    fn a_node_that_refused_before_is_requested_once_more_by_a_leaving_node() {
        let mut asking = Subscribers::new(2, 2);
        assert_eq!(asking.told(), (vec![2], vec![]));
        let Subscribers { world, table, replicas, requests } = &mut asking;
        let copy = table.get(INSTANCE).expect("it is there");
        replicas.begin_hand_over(PROGRESS_WINDOW_NS, false, world);
        replicas.hand_over((INSTANCE, copy), requests, world);
        assert_eq!(asking.told(), (vec![], vec![]));
        asking.replied(2, false);
        let again = asking.world.taken().into_iter().find_map(|action| match action {
            Action::Send { message: Message::StoreReplica { may_wait, .. }, .. } => Some(may_wait),
            _ => None,
        });
        assert_eq!((again, asking.replicas.lack_takers()), (Some(true), false));
        asking.replied(2, false);
        assert_eq!((asking.told().0, asking.replicas.lack_takers()), (vec![], true));
        assert!(asking.replicas.takes_no_room());
    }

    #[test]
    fn a_node_without_capacity_is_replaced_and_requested_again_later() {
        let mut world = World::of(3);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id, Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question =
            RequestContext { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(requested(&mut world), [2]);
        replicas.replied(NodeId(2), INSTANCE, false, &mut requests, &mut world);
        assert_eq!(requested(&mut world), [3]);
        replicas.replied(NodeId(3), INSTANCE, false, &mut requests, &mut world);
        assert_eq!((requested(&mut world), requests.len()), (Vec::new(), 1));
        let due = replicas.deadline().expect("both get another request");
        world.wait_until(due);
        replicas.expire(&mut requests, &mut world);
        assert_eq!(requested(&mut world).len(), 1);
        replicas.replied(NodeId(2), INSTANCE, true, &mut requests, &mut world);
        assert_eq!((requests.len(), replicas.deadline()), (0, None));
        replicas.end(INSTANCE, &mut requests, &mut world);
        assert!(replicas.takes_no_room());
    }

    /// Goal: no node looks forever for an object that ended before its replica arrived, and that no
    /// node puts again.
    #[test]
    fn a_requested_node_is_notified_when_the_object_ends() {
        let mut world = World::of(2);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id.clone(), Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question =
            RequestContext { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(requested(&mut world), [2]);
        replicas.end(INSTANCE, &mut requests, &mut world);
        let message = Message::ReleaseReplica { id, instance: INSTANCE };
        assert!(world.taken().contains(&Action::Send { to: NodeId(2), message }));
    }
    /// Goal: after a partition, no node looks forever for an object that ended. A node may receive
    /// a request after it has dropped this node's state, and this node drops its state later.
    #[test]
    fn a_node_whose_request_may_have_been_lost_is_notified_when_the_object_ends() {
        let mut asking = Subscribers::new(3, 2);
        assert_eq!(asking.told(), (vec![2], vec![]));
        asking.replied(2, true);
        let drop_state = |asking: &mut Subscribers, node, members: &[u64]| {
            for number in 2..=3 {
                asking.world.members_mut().remove(NodeId(number));
            }
            for number in members {
                asking.world.members_mut().insert(World::member(*number));
            }
            let Subscribers { replicas, requests, world, .. } = asking;
            let mut change = MembershipChange::new(world.members().clone(), None);
            change.forgotten.insert(NodeId(node));
            change.number = u32::try_from(node).expect("a small number");
            replicas.resend(INSTANCE, &[Arc::new(change)], requests, world);
        };
        drop_state(&mut asking, 2, &[3]);
        assert_eq!(asking.told(), (vec![3], vec![]), "node 2 is lost");
        drop_state(&mut asking, 3, &[2, 3]);
        assert_eq!(asking.told(), (vec![2], vec![]), "it may still have the replica");
        asking.replicas.end(INSTANCE, &mut asking.requests, &mut asking.world);
        assert_eq!(asking.told(), (vec![], vec![2, 3]));
    }
}
