//! Replicas: other nodes hold an original too, so that the object outlives the death of the node that it was put at.
//!
//! As long as this node lives it sees to it that there are as many copies as its client asked for, whichever nodes come and
//! go. A copy that another node keeps is as good as the original, and is not evicted. Does not know the memory of this node,
//! nor whether a copy here is an original.
//!
//! Copies spread evenly over all nodes, by their bytes. A keeper whose own clients need the room asks to give copies back,
//! and holds them until another node has them.
//!
//! What was asked for one of them is in [`super::replicated`].

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use crate::{
    ask::Answer,
    error::Error,
    event::Note,
    id::{Instance, NodeId, RequestId},
    machines::{
        replicated::Replicated,
        requests::{Asked, Requests, Waiting},
        world::World,
    },
    message::Message,
    planted::{self, Bug},
    table::Copy,
    time::Instant,
    timed::Timed,
};

/// The originals of this node that are to be at several nodes.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    all: Timed<Instance, Replicated>,
    /// How many bytes of them each other node keeps, or was asked to.
    load: BTreeMap<NodeId, u64>,
    /// Nodes that did not answer in time, and have answered nothing since: they are asked last.
    silent: BTreeSet<NodeId>,
}

impl Replicas {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn contains(&self, instance: Instance) -> bool {
        self.all.contains_key(&instance)
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    /// A client wants an original of this node to be at `copies` nodes.
    pub(crate) fn want(
        &mut self,
        asked: &Asked,
        (instance, copy): (Instance, &Copy),
        copies: u32,
        requests: &mut Requests,
        world: &mut World,
    ) {
        if !self.contains(instance) {
            self.all.insert(instance, Replicated::new(copy));
        }
        self.all.update(&instance, |original| {
            original.copies = original.copies.max(copies as usize);
            original.requests.push(asked.request);
        });
        requests.remember(asked, Waiting::Copies(copy.id.clone(), instance), world);
        self.ask(instance, requests, world);
    }

    /// A client does not wait any more.
    pub(crate) fn stop_waiting(&mut self, instance: Instance, request: RequestId) {
        self.all.update(&instance, |original| original.requests.retain(|it| *it != request));
    }

    /// Asks as many others as it takes, and answers the clients that wait once they have it.
    fn ask(&mut self, instance: Instance, requests: &mut Requests, world: &mut World) {
        let Self { all, load, silent } = self;
        let answered = all.update(&instance, |original| {
            original
                .ask(instance, load, silent, world)
                .then(|| (original.reached(), core::mem::take(&mut original.requests)))
        });
        let (copies, answered) = answered.flatten().unwrap_or_default();
        for request in answered {
            requests.reply(request, Ok(Answer::Kept { copies }), world);
        }
    }

    /// A node keeps so much less for this one.
    fn discharge(&mut self, node: NodeId, bytes: u64) {
        if let Some(kept) = self.load.get_mut(&node) {
            *kept = kept.saturating_sub(bytes);
        }
    }

    /// Another node keeps an original of this one, or can't, or wants to give it back.
    pub(crate) fn answered(
        &mut self,
        from: NodeId,
        instance: Instance,
        is_kept: bool,
        requests: &mut Requests,
        world: &mut World,
    ) {
        let wanted_of = world.members().others().count();
        let discharged = self.all.update(&instance, |original| {
            if original.answers(from) {
                self.silent.remove(&from);
                original.lost.remove(&from);
                if is_kept && original.kept.len() >= original.wanted(wanted_of) {
                    // Another one was asked beside it, and was faster.
                    world.send(from, Message::Unkeep { id: original.id.clone(), instance });
                    return Some(Some(original.bytes));
                }
                let nodes = if is_kept { &mut original.kept } else { &mut original.refused };
                nodes.insert(from);
            } else if !is_kept && original.kept.remove(&from) {
                original.tired.insert(from);
            } else {
                return None;
            }
            Some((!is_kept).then_some(original.bytes))
        });
        let Some(discharged) = discharged.flatten() else { return };
        if let Some(bytes) = discharged {
            self.discharge(from, bytes);
        }
        self.ask(instance, requests, world);
    }

    /// What a node kept is lost with it, and what it was asked is void. One that is there all the same is asked again.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        if !planted::has(Bug::ReplacesNoKeepers) {
            for instance in self.all.keys().copied().collect::<Vec<_>>() {
                self.all.update(&instance, |original| original.forget(node));
            }
            self.load.remove(&node);
            self.silent.remove(&node);
        }
    }

    /// Members came or went: others may have to be asked, or can be. What was said to `renewed` may be lost.
    pub(crate) fn ask_again(
        &mut self,
        renewed: Option<NodeId>,
        requests: &mut Requests,
        world: &mut World,
    ) {
        for instance in self.all.keys().copied().collect::<Vec<_>>() {
            let void = self.all.update(&instance, |original| {
                let node = renewed.filter(|node| original.answers(*node))?;
                Some((node, original.bytes))
            });
            if let Some((node, bytes)) = void.flatten() {
                self.discharge(node, bytes);
            }
        }
        for instance in self.all.keys().copied().collect::<Vec<_>>() {
            self.ask(instance, requests, world);
        }
    }

    /// Asks those again that had no room, and others beside those that are late; the questions that no node is left for.
    pub(crate) fn expire(&mut self, requests: &mut Requests, world: &mut World) -> Vec<RequestId> {
        let now = world.now();
        let is_due = |at: &mut Instant| *at <= now;
        let mut hopeless = Vec::new();
        for instance in self.all.due(now) {
            self.all.update(&instance, |original| {
                if original.retry_at.take_if(is_due).is_some() {
                    original.refused.clear();
                }
                if original.hopeless_at.take_if(is_due).is_some() {
                    hopeless.append(&mut original.requests);
                }
                for node in original.take_overdue(now) {
                    self.silent.insert(node);
                    world.note(Note::KeeperLate { id: original.id.clone(), node });
                }
            });
            self.ask(instance, requests, world);
        }
        hopeless
    }

    /// The original is no more.
    pub(crate) fn end(&mut self, instance: Instance, requests: &mut Requests, world: &mut World) {
        let Some(original) = self.all.remove(&instance) else { return };
        // What they look for may not be found any more, and be put by no node again.
        for node in original.unanswered() {
            world.send(node, Message::Unkeep { id: original.id.clone(), instance });
        }
        original.charged().for_each(|node| self.discharge(node, original.bytes));
        for request in &original.requests {
            let error = Error::ObjectDeleted { id: original.id.clone() };
            requests.reply(*request, Err(error), world);
        }
    }

    /// How far it is, in words.
    pub(crate) fn state(&self, instance: Instance) -> String {
        let state = self.all.get(&instance).map(Replicated::state);
        state.unwrap_or_else(|| "it is at 1 node".into())
    }

    /// Whether no other node has room taken by originals of this one.
    #[cfg(test)]
    pub(crate) fn takes_no_room(&self) -> bool {
        self.load.values().all(|bytes| *bytes == 0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::{
        event::Action,
        id::{ClientId, ObjectId},
        limits::TURN_NS,
        meta::Meta,
        table::{State, Table},
    };

    const INSTANCE: Instance = Instance { node: NodeId(1), serial: 1 };

    /// Nodes that are asked to keep the original, in order.
    fn asked(world: &mut World) -> Vec<u64> {
        let asked = |action| match action {
            Action::Send { to, message: Message::Adopt { .. } } => Some(to.0),
            _ => None,
        };
        world.taken().into_iter().filter_map(asked).collect()
    }

    /// An original of node 1, one of so many, of which a client wants so many copies.
    struct Asking {
        world: World,
        table: Table,
        replicas: Replicas,
        requests: Requests,
    }

    impl Asking {
        fn new(nodes: u64, copies: u32) -> Self {
            let (replicas, requests) = (Replicas::default(), Requests::default());
            let (world, table) = (World::of(nodes), Table::new(1 << 20));
            let mut asking = Self { world, table, replicas, requests };
            asking.want(INSTANCE, copies);
            asking
        }

        fn want(&mut self, instance: Instance, copies: u32) {
            let id = ObjectId::Minted { node: NodeId(1), serial: instance.serial };
            self.table.insert(instance, id, Meta::bytes(1000), None, State::Complete, true);
            self.ask(instance, RequestId(instance.serial), copies);
        }

        fn ask(&mut self, instance: Instance, request: RequestId, copies: u32) {
            let Self { world, table, replicas, requests } = self;
            let copy = table.get(instance).expect("it is there");
            let question = Asked { client: ClientId(1), request, deadline: None };
            replicas.want(&question, (instance, copy), copies, requests, world);
        }

        fn answered(&mut self, node: u64, is_kept: bool) {
            let Self { world, replicas, requests, .. } = self;
            replicas.answered(NodeId(node), INSTANCE, is_kept, requests, world);
        }

        /// Time passes until something is due; the questions that no node is left for.
        fn expire(&mut self) -> Vec<RequestId> {
            let due = self.replicas.deadline().expect("something is due");
            assert!(due > self.world.now());
            self.world.wait_until(due);
            self.replicas.expire(&mut self.requests, &mut self.world)
        }

        /// Nodes that were asked to keep an original, and those that need not, since this was asked last.
        fn told(&mut self) -> (Vec<u64>, Vec<u64>) {
            let (mut asked, mut let_go) = (Vec::new(), Vec::new());
            for action in self.world.taken() {
                match action {
                    Action::Send { to, message: Message::Adopt { .. } } => asked.push(to.0),
                    Action::Send { to, message: Message::Unkeep { .. } } => let_go.push(to.0),
                    _ => {}
                }
            }
            (asked, let_go)
        }
    }

    /// Goal: a member that never answers holds up no client, and no other object.
    #[test]
    fn a_node_that_does_not_answer_in_time_has_another_asked_beside_it() {
        let mut asking = Asking::new(4, 2);
        let begun = asking.world.now();
        assert_eq!(asking.told(), (vec![2], vec![]));
        assert!(asking.expire().is_empty());
        assert!(asking.world.now().since(begun) >= TURN_NS);
        let late = Note::KeeperLate {
            id: asking.replicas.all.get(&INSTANCE).unwrap().id.clone(),
            node: NodeId(2),
        };
        let actions = asking.world.taken();
        assert!(actions.contains(&Action::Note(late)), "{actions:?}");
        let is_to_third = |action: &Action| {
            matches!(action, Action::Send { to: NodeId(3), message: Message::Adopt { .. } })
        };
        assert!(actions.iter().any(is_to_third) && actions.len() == 2, "{actions:?}");
        asking.answered(3, true);
        assert_eq!((asking.requests.len(), asking.replicas.deadline()), (0, None));
        // Of the next originals nodes 3 and 4 are asked first.
        for serial in 2..6 {
            asking.want(Instance { serial, ..INSTANCE }, 2);
        }
        assert_eq!(asking.told(), (vec![4, 3, 4, 3], vec![]));
    }

    /// Goal: no more nodes keep an object than are to, and one that was slow is asked like all others then.
    #[test]
    fn the_first_that_has_an_object_keeps_it_and_a_later_one_lets_go() {
        let mut asking = Asking::new(3, 2);
        asking.expire();
        assert_eq!(asking.told(), (vec![2, 3], vec![]));
        asking.answered(2, true);
        assert_eq!((asking.requests.len(), asking.told()), (0, (vec![], vec![])));
        asking.answered(3, true);
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
    fn a_question_ends_when_no_other_node_is_left_to_be_asked() {
        let mut asking = Asking::new(3, 3);
        assert_eq!(asking.told(), (vec![2, 3], vec![]));
        asking.answered(2, true);
        assert!(asking.expire().is_empty());
        let state = asking.replicas.state(INSTANCE);
        assert!(state.contains("at 2 nodes") && state.contains("does not answer"), "{state}");
        assert_eq!(asking.expire(), [RequestId(1)]);
        assert_eq!((asking.replicas.deadline(), asking.told()), (None, (vec![], vec![])));
        // The next question for it has as long.
        asking.ask(INSTANCE, RequestId(2), 3);
        assert_eq!(asking.expire(), [RequestId(2)]);
        // What comes late is kept all the same.
        asking.answered(3, true);
        assert!(asking.replicas.state(INSTANCE).contains("at 3 nodes"));
    }

    #[test]
    fn a_node_without_room_is_replaced_and_asked_again_later() {
        let mut world = World::of(3);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id, Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question = Asked { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [2]);
        replicas.answered(NodeId(2), INSTANCE, false, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [3]);
        replicas.answered(NodeId(3), INSTANCE, false, &mut requests, &mut world);
        assert_eq!((asked(&mut world), requests.len()), (Vec::new(), 1));
        let due = replicas.deadline().expect("both are asked again");
        world.wait_until(due);
        replicas.expire(&mut requests, &mut world);
        assert_eq!(asked(&mut world).len(), 1);
        replicas.answered(NodeId(2), INSTANCE, true, &mut requests, &mut world);
        assert_eq!((requests.len(), replicas.deadline()), (0, None));
        replicas.end(INSTANCE, &mut requests, &mut world);
        assert!(replicas.takes_no_room());
    }

    /// Goal: no node looks for ever for an original that ended before it came there, and that is put by no node again.
    #[test]
    fn who_was_asked_for_what_ends_hears_of_it() {
        let mut world = World::of(2);
        let mut table = Table::new(1 << 20);
        let id = ObjectId::Minted { node: NodeId(1), serial: 1 };
        table.insert(INSTANCE, id.clone(), Meta::bytes(1000), None, State::Complete, true);
        let copy = table.get(INSTANCE).expect("it is there");
        let (mut replicas, mut requests) = (Replicas::default(), Requests::default());
        let question = Asked { client: ClientId(1), request: RequestId(1), deadline: None };
        replicas.want(&question, (INSTANCE, copy), 2, &mut requests, &mut world);
        assert_eq!(asked(&mut world), [2]);
        replicas.end(INSTANCE, &mut requests, &mut world);
        let message = Message::Unkeep { id, instance: INSTANCE };
        assert!(world.taken().contains(&Action::Send { to: NodeId(2), message }));
    }
}
