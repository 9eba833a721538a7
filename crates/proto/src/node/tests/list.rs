//! Listings of all objects of the cluster, member by member and page by page.

use super::*;
use crate::{
    limits::{LISTED_MAX, LOOKED_AT_MAX},
    message::Listed,
};

fn list(owner: u64, prefix: &str, after: Option<ObjectId>) -> Request {
    Request::List { owner: NodeId(owner), prefix: prefix.into(), after }
}

impl Cluster {
    fn page(
        &mut self,
        owner: u64,
        prefix: &str,
        after: Option<ObjectId>,
    ) -> (Vec<Listed>, Option<ObjectId>) {
        let request = self.ask(2, list(owner, prefix, after));
        let Ok(Reply::List { rows, next }) = self.reply(request) else {
            panic!("{:?}", self.reply(request))
        };
        (rows.clone(), next.clone())
    }

    /// All pages of all members, as node 2 receives them. Both owners of an object have it; the
    /// listing contains it once.
    fn listed(&mut self, prefix: &str) -> Vec<Listed> {
        let mut all = BTreeMap::new();
        for owner in self.nodes.keys().map(|node| node.0).collect::<Vec<_>>() {
            let mut after = None;
            loop {
                let (rows, next) = self.page(owner, prefix, after);
                all.extend(rows.into_iter().map(|row| (row.id.clone(), row)));
                let Some(next) = next else { break };
                after = Some(next);
            }
        }
        all.into_values().collect()
    }
}

#[test]
fn each_living_object_is_listed_once_with_its_copies() {
    let mut cluster = Cluster::new(3);
    let mut ids = vec![cluster.put_small(1, None), cluster.put_large(3, None)];
    for name in ["policy/1", "policy/2", "other/1", "policyx"] {
        ids.push(cluster.put_large(1, Some(name)));
    }
    let (growing, instance) = cluster.create(2, Some("policy/3"));
    ids.push(growing.clone());
    let request = cluster.get(3, &ids[2]);
    cluster.ask(3, Request::Release { instance: got(cluster.reply(request)) });
    cluster.ask(1, Request::Delete { ids: vec![named("policy/2")] });
    ids.retain(|id| id.to_string() != "policy/2");

    let mut all: Vec<ObjectId> = cluster.listed("").into_iter().map(|row| row.id).collect();
    all.sort();
    ids.sort();
    assert_eq!(all, ids);
    let under = cluster.listed("policy/");
    let said = |row: &Listed| (row.id.to_string(), row.complete, row.partial);
    assert_eq!(
        under.iter().map(said).collect::<Vec<_>>(),
        [("policy/1".into(), 2, 0), ("policy/3".into(), 0, 1)]
    );
    assert_eq!(under[0].meta, array(LARGE));
    let of_one = cluster.listed("@0000000000000001.");
    assert_eq!(of_one.iter().map(|row| row.id.minter()).collect::<Vec<_>>(), [Some(NodeId(1))]);
    cluster.ask(2, Request::Seal { instance });
    cluster.assert_at_rest();
}

#[test]
fn pages_are_bounded_and_leave_nothing_out() {
    let mut cluster = Cluster::new(2);
    let name = cluster.owned_name(1, 2, "");
    let count = 2 * LISTED_MAX + 1;
    for number in 0..count {
        cluster.put_small(1, Some(&format!("{name}{number}")));
    }
    let (first, next) = cluster.page(1, &name, None);
    assert_eq!(first.len(), LISTED_MAX);
    assert_eq!(next, Some(first[LISTED_MAX - 1].id.clone()));
    let mut ids: Vec<ObjectId> = cluster.listed(&name).into_iter().map(|row| row.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), count);
    let answer = Answer::List { rows: first, next };
    let longest = Message::Answer { number: QuestionId(1), answer };
    assert!(longest.is_valid());
    cluster.assert_at_rest();
}

#[test]
fn the_objects_scanned_for_a_page_are_limited() {
    let mut cluster = Cluster::new(2);
    for _ in 0..LOOKED_AT_MAX + 1 {
        cluster.put_small(1, None);
    }
    // A prefix that matches no generated id.
    let (rows, next) = cluster.page(1, "@f", None);
    assert!(rows.is_empty() && next.is_some(), "looked at {LOOKED_AT_MAX} of one more");
    assert_eq!(cluster.page(1, "@f", next), (vec![], None));
    cluster.assert_at_rest();
}

#[test]
fn a_list_of_a_member_that_goes_or_is_silent_ends() {
    let mut cluster = Cluster::new(3);
    cluster.slow_down(3);
    let request = cluster.ask(2, list(3, "", None));
    assert!(!cluster.replies.contains_key(&request));
    let late = cluster.ask_until(2, list(3, "", None), Some(cluster.now + SECOND));
    cluster.wait(SECOND);
    assert!(is_timeout(cluster.reply(late)), "{:?}", cluster.reply(late));
    cluster.slow = None;
    cluster.kill(3);
    let is_down = |reply: &Result<Reply, Error>| matches!(reply, Err(Error::NodeDown(_)));
    assert!(is_down(cluster.reply(request)));
    let request = cluster.ask(2, list(3, "", None));
    assert!(is_down(cluster.reply(request)), "no member");
    let request = cluster.ask(2, list(1, &"x".repeat(2000), None));
    assert!(matches!(cluster.reply(request), Err(Error::InvalidArgument(_))));
    cluster.assert_at_rest();
}

#[test]
fn a_page_that_can_not_be_true_is_not_sound() {
    let row =
        |meta| Listed { id: named("x"), meta, complete: 1, partial: 0, age_ns: 0, lifetime: None };
    let page = |rows| {
        let answer = Answer::List { rows, next: None };
        Message::Answer { number: QuestionId(1), answer }
    };
    assert!(page(vec![row(array(8))]).is_valid());
    let mut broken = array(8);
    broken.size += 1;
    assert!(!page(vec![row(broken)]).is_valid());
    assert!(!page(vec![row(array(8)); LISTED_MAX + 1]).is_valid());
}
