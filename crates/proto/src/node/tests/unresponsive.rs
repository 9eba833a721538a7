//! An owner that does not reply, and that is neither an input nor a reader, delays nobody by more
//! than 0.25 s.

use super::*;
use crate::{
    message::{Announce, Progress},
    selection::Selection,
    swim::SwimMessage,
};

const MILLISECOND: u64 = SECOND / 1000;

impl Cluster {
    /// A second after the owner responds again and its client has ended, nothing of an object
    /// remains.
    fn assert_recovered(&mut self, id: ObjectId) {
        self.wait_in_steps(SECOND);
        assert!(!self.nodes[&NodeId(4)].world.is_unresponsive(NodeId(1)));
        self.tell(4, Event::ClientDisconnected { client: CLIENT, process: None });
        self.ask(3, Request::Delete { ids: vec![id] });
        self.assert_at_rest();
    }

    /// Lets time pass in small steps, as in a process that runs.
    fn wait_in_steps(&mut self, ns: u64) {
        for _ in 0..ns / (25 * MILLISECOND) {
            self.wait(25 * MILLISECOND);
        }
    }
}

/// Requests about an object that need a reply of its owner.
fn lookups(id: &ObjectId) -> [Request; 7] {
    let (ids, prefix) = (vec![id.clone()], id.to_string().replace('1', ""));
    let ObjectId::Named(name) = id.clone() else { panic!("{id} is no name") };
    [
        Request::Get { id: id.clone() },
        Request::GetRange { id: id.clone(), selection: Selection::default() },
        Request::Wait { ids: ids.clone(), count: 1 },
        Request::Reduce { inputs: ids, op: Op::Sum, count: 1, id: None, ttl_ns: None },
        Request::Locations { id: id.clone(), known: None },
        Request::Latest { prefix, after: None },
        Request::Prune { name, retain: 1 },
    ]
}

/// A cluster with an object whose owners are nodes 1 and 2. Node 3 has put it, and node 1 has
/// become unresponsive.
fn with_unresponsive_owner() -> (Cluster, ObjectId) {
    let mut cluster = Cluster::new(4);
    let names = (0..).map(|number| format!("{}/1", "x".repeat(number + 1)));
    let members = cluster.nodes[&NodeId(1)].members();
    let owners = [NodeId(1), NodeId(2)];
    let mut ids = names.map(|name| named(&name));
    let id = ids.find(|id| members.owners(id).iter().eq(owners)).expect("a name");
    cluster.put_large(3, Some(&id.to_string()));
    cluster.slow_down(1);
    (cluster, id)
}

#[test]
fn an_unresponsive_owner_delays_no_lookup_by_more_than_a_quarter_of_a_second() {
    let (_, id) = with_unresponsive_owner();
    for lookup in lookups(&id) {
        let (mut cluster, id) = with_unresponsive_owner();
        let mut request = cluster.ask(4, lookup.clone());
        if let Some(Ok(Reply::Reducing { id: sum })) = cluster.replies.get(&request) {
            request = cluster.ask(4, Request::Get { id: sum.clone() });
        }
        assert!(!cluster.replies.contains_key(&request), "{lookup:?}");
        cluster.wait_in_steps(250 * MILLISECOND);
        assert!(cluster.reply(request).is_ok(), "{lookup:?}: {:?}", cluster.reply(request));
        cluster.catch_up();
        cluster.assert_recovered(id);
    }
}

#[test]
fn one_late_reply_of_an_owner_is_enough() {
    let (mut cluster, id) = with_unresponsive_owner();
    let first = cluster.ask(4, Request::Get { id: id.clone() });
    cluster.wait_in_steps(250 * MILLISECOND);
    got(cluster.reply(first));
    for lookup in lookups(&id) {
        let request = cluster.ask(4, lookup.clone());
        assert!(cluster.reply(request).is_ok(), "{lookup:?}");
    }
}

/// Goal: a reply of a member ends the detour at once.
#[test]
fn an_owner_that_responds_again_gets_all_requests_alone() {
    let (mut cluster, id) = with_unresponsive_owner();
    let first = cluster.ask(4, Request::Wait { ids: vec![id.clone()], count: 1 });
    cluster.wait_in_steps(250 * MILLISECOND);
    assert!(cluster.reply(first).is_ok());
    cluster.catch_up();
    cluster.slow_down(2);
    let second = cluster.ask(4, Request::Get { id });
    got(cluster.reply(second));
    let (_, waiting) = cluster.slow.take().expect("node 2 is slow");
    let is_asked =
        |event: &Event| matches!(event, Event::Message { message: Message::Ask { .. }, .. });
    assert!(!waiting.iter().any(is_asked), "{waiting:?}");
}

/// Requests that claim a name.
fn claims(id: &ObjectId, inputs: &[ObjectId]) -> [Request; 4] {
    let ObjectId::Named(name) = id.clone() else { panic!("{id} is no name") };
    let (id, inputs) = (Some(id.clone()), inputs.to_vec());
    [
        Request::Put { id: id.clone(), meta: array(8), bytes: vec![7; 8].into(), ttl_ns: None },
        Request::Create { id: id.clone(), meta: array(LARGE), ttl_ns: None },
        Request::Reserve { name: Some(name) },
        Request::Reduce { inputs, op: Op::Sum, count: 1, id, ttl_ns: None },
    ]
}

#[test]
fn an_unresponsive_owner_delays_no_claim_by_more_than_a_quarter_of_a_second() {
    for (node, number) in [2, 3].into_iter().flat_map(|node| (0..4).map(move |it| (node, it))) {
        let mut cluster = Cluster::new(4);
        let id = named(&cluster.owned_name(1, 2, "x/1"));
        let next = named(&id.to_string().replace("x/1", "x/2"));
        let inputs = [cluster.put_small(node, None)];
        cluster.slow_down(1);
        let claim = claims(&id, &inputs)[number].clone();
        let request = cluster.ask(node, claim.clone());
        assert!(!cluster.replies.contains_key(&request), "{claim:?}");
        cluster.wait_in_steps(250 * MILLISECOND);
        assert!(cluster.reply(request).is_ok(), "{claim:?}: {:?}", cluster.reply(request));
        // Both nodes have waited for one reply. Later claims wait for none.
        let request = cluster.ask(node, claims(&next, &inputs)[number].clone());
        assert!(cluster.reply(request).is_ok(), "{claim:?}: {:?}", cluster.reply(request));
        // A name has one holder, at both owners, and also after the owner responds again.
        for is_responsive in [false, true] {
            for rival in claims(&id, &inputs) {
                let request = cluster.ask(4, rival.clone());
                cluster.wait_in_steps(250 * MILLISECOND);
                let reply = cluster.reply(request);
                assert!(
                    matches!(reply, Err(Error::NameTaken { .. })),
                    "{claim:?}, {rival:?}, {is_responsive}: {reply:?}"
                );
            }
            cluster.catch_up();
        }
    }
}

#[test]
fn the_backup_owner_grants_no_name_while_the_primary_owner_replies_to_it() {
    let mut cluster = Cluster::new(4);
    let id = named(&cluster.owned_name(1, 2, "x/1"));
    let instance = Instance { node: NodeId(4), serial: 99 };
    let (meta, progress) = (array(LARGE), Progress::Partial { source: None });
    let (pinned, claim, lifetime) = (true, true, None);
    let claim = Announce { id: id.clone(), instance, meta, pinned, progress, claim, lifetime };
    for message in
        [Message::ClaimAtBackup(claim), Message::ReserveAtBackup { id: id.clone(), instance }]
    {
        for _ in 0..4 {
            let message = message.clone();
            cluster.tell(2, Event::Message { from: NodeId(4), message });
            cluster.wait_in_steps(125 * MILLISECOND);
        }
    }
    let owner = &cluster.nodes[&NodeId(2)];
    assert!(!owner.world.is_unresponsive(NodeId(1)));
    assert_eq!(owner.directory().len(), 0, "it keeps no claim");
    assert_eq!(cluster.nodes[&NodeId(1)].directory().len(), 1, "it has passed them on");
}

/// Goal: TCP may deliver nothing for a second after a path was broken, in one direction or both.
#[test]
fn an_owner_that_gets_no_request_of_a_node_delays_no_lookup_of_it() {
    for lookup in lookups(&with_unresponsive_owner().1) {
        let (mut cluster, id) = with_unresponsive_owner();
        cluster.catch_up();
        cluster.break_path(4, 1);
        let mut request = cluster.ask(4, lookup.clone());
        if let Some(Ok(Reply::Reducing { id: sum })) = cluster.replies.get(&request) {
            request = cluster.ask(4, Request::Get { id: sum.clone() });
        }
        assert!(!cluster.replies.contains_key(&request), "{lookup:?}");
        for _ in 0..10 {
            cluster.wait(25 * MILLISECOND);
            // The owner still sends messages that reply to nothing.
            let message = Message::Swim(SwimMessage::Ping { sequence: 7 });
            cluster.tell(4, Event::Message { from: NodeId(1), message });
        }
        assert!(cluster.reply(request).is_ok(), "{lookup:?}: {:?}", cluster.reply(request));
        cluster.mend_path();
        cluster.assert_recovered(id);
    }
}

/// Goal: a broken path between two nodes delays no claim, and a name has one holder.
#[test]
fn the_backup_owner_passes_a_claim_on_to_an_owner_that_replies_to_it() {
    for number in 0..4 {
        let mut cluster = Cluster::new(4);
        let id = named(&cluster.owned_name(1, 2, "x/1"));
        let inputs = [cluster.put_small(4, None)];
        cluster.break_path(4, 1);
        let claim = claims(&id, &inputs)[number].clone();
        let request = cluster.ask(4, claim.clone());
        assert!(!cluster.replies.contains_key(&request), "{claim:?}");
        cluster.wait_in_steps(250 * MILLISECOND);
        assert!(cluster.reply(request).is_ok(), "{claim:?}: {:?}", cluster.reply(request));
        for is_mended in [false, true] {
            for rival in claims(&id, &inputs) {
                let request = cluster.ask(3, rival.clone());
                let reply = cluster.reply(request);
                assert!(
                    matches!(reply, Err(Error::NameTaken { .. })),
                    "{claim:?}, {rival:?}, {is_mended}: {reply:?}"
                );
            }
            cluster.mend_path();
        }
        cluster.wait_in_steps(SECOND);
        cluster.tell(4, Event::ClientDisconnected { client: CLIENT, process: None });
        cluster.wait_in_steps(SECOND);
        cluster.ask(3, Request::Delete { ids: vec![id, inputs[0].clone()] });
        cluster.wait_in_steps(SECOND);
        cluster.assert_at_rest();
    }
}

/// Goal: readers that the owner has registered before do not wait for it either.
#[test]
fn a_put_reaches_readers_that_wait_at_an_unresponsive_owner() {
    for node in [2, 3] {
        let mut cluster = Cluster::new(5);
        let id = named(&cluster.owned_name(1, 2, "x/1"));
        let prefix = id.to_string().replace("x/1", "x/");
        let waiting = [
            Request::Get { id: id.clone() },
            Request::Wait { ids: vec![id.clone()], count: 1 },
            Request::Latest { prefix, after: None },
        ];
        let requests: Vec<RequestId> = waiting
            .iter()
            .flat_map(|body| [4, 5].map(|at| cluster.ask(at, body.clone())))
            .collect();
        cluster.slow_down(1);
        cluster.wait_in_steps(SECOND);
        let put = claims(&id, &[])[0].clone();
        let put = cluster.ask(node, put);
        cluster.wait_in_steps(250 * MILLISECOND);
        assert!(cluster.reply(put).is_ok());
        for request in requests {
            assert!(cluster.reply(request).is_ok(), "{:?}", cluster.reply(request));
        }
        cluster.catch_up();
        cluster.wait_in_steps(SECOND);
        cluster.assert_at_rest();
    }
}

#[test]
fn one_member_reports_an_unresponsive_one_to_all_others() {
    let (mut cluster, _) = with_unresponsive_owner();
    let other = named(&cluster.owned_name(1, 2, "later"));
    let reserved = cluster.ask(4, Request::Wait { ids: vec![other], count: 1 });
    cluster.wait_in_steps(250 * MILLISECOND);
    assert!(!cluster.replies.contains_key(&reserved));
    let finds =
        |cluster: &Cluster, node| cluster.nodes[&NodeId(node)].world.is_unresponsive(NodeId(1));
    assert!([2, 3, 4].iter().all(|node| finds(&cluster, *node)), "node 4 is the one before node 1");
    cluster.catch_up();
    assert!(![2, 3, 4].iter().any(|node| finds(&cluster, *node)));
}
