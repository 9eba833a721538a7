//! Open questions at an owner: what they leave behind, and what an event looks at.

use alloc::{boxed::Box, format, vec, vec::Vec};

use super::{
    questions::Kind,
    tests::{
        Owner, announced, answered, ask, delete, instance, locate, locate_with, minted, named,
        watch,
    },
    *,
};
use crate::{
    error::Error,
    id::{NodeId, ObjectId, QuestionId},
    limits::{MERGE_NS, STRAY_NS},
    message::{Holding, Message, Progress},
    question::{Answer, LocateRange, Question},
};

fn latest(number: u64, after: Option<u64>) -> Message {
    ask(number, Question::Latest { prefix: "policy/".parse().unwrap(), after })
}

fn version(number: u64) -> ObjectId {
    format!("policy/{number}").parse().unwrap()
}

fn put(owner: &mut Owner, id: &ObjectId, serial: u64) -> Outbox {
    owner.receives(2, announced(id, instance(2, serial), true, Progress::Complete))
}

/// Nothing is left of any question.
fn assert_no_questions(owner: &Owner) {
    assert_eq!(owner.directory.asked.len(), 0);
    assert!(owner.directory.entries.iter().all(|(_, entry)| !entry.has_questions()));
}

/// Goal: a cancellation finds its question by node and number, whatever it is about.
#[test]
fn a_cancellation_closes_the_question_of_its_node_and_number() {
    let mut owner = Owner::new();
    let id = minted();
    let all = [
        Question::Watch { id: id.clone(), seen_at: None },
        Question::Locations { id: id.clone(), known: Some(vec![]) },
        Question::Latest { prefix: "policy/".parse().unwrap(), after: None },
    ];
    for node in 2..=3 {
        for (number, question) in (1..).zip(&all) {
            let answer = owner.receives(node, ask(number, question.clone()));
            assert_eq!(answer, [answered(node, number, Answer::Pending)]);
        }
    }
    for number in 1..=3 {
        let number = QuestionId(number);
        assert_eq!(owner.receives(2, Message::Cancel { number }), []);
    }
    assert_eq!(owner.directory.asked.len(), 3);
    let outbox = put(&mut owner, &version(1), 1);
    let ObjectId::Named(name) = version(1) else { unreachable!() };
    assert_eq!(outbox, [answered(3, 3, Answer::Latest(name))]);
    owner.receives(3, Message::Cancel { number: QuestionId(1) });
    owner.receives(3, Message::Cancel { number: QuestionId(2) });
    assert_no_questions(&owner);
}

#[test]
fn a_question_of_the_same_number_replaces_the_earlier_one() {
    let mut owner = Owner::new();
    owner.receives(3, watch(&minted()));
    owner.receives(3, latest(1, Some(7)));
    owner.receives(3, latest(1, None));
    let number = match watch(&minted()) {
        Message::Ask { number, .. } => number,
        other => panic!("{other:?}"),
    };
    owner.receives(3, latest(number.0, Some(3)));
    assert_eq!(owner.directory.asked.len(), 2);
    let entry = owner.directory.entries.get(&minted());
    assert!(entry.is_none_or(|entry| !entry.has_questions()));
    put(&mut owner, &version(4), 1);
    assert_no_questions(&owner);
}

/// Goal: the questions of a node go with it, and those of others stay.
#[test]
fn the_questions_of_a_departed_node_are_closed() {
    let mut owner = Owner::new();
    let id = minted();
    owner.receives(2, announced(&id, instance(2, 1), true, Progress::Complete));
    for node in 3..=4 {
        owner.receives(node, watch(&id));
        owner.receives(node, latest(1, None));
        let known = owner.directory.entries.get(&id).unwrap().live.as_ref().unwrap().holdings();
        owner.receives(node, ask(2, Question::Locations { id: id.clone(), known: Some(known) }));
        owner.receives(node, locate(&version(9)));
    }
    owner.receives(4, delete(&id));
    let before = owner.directory.asked.len();
    owner.loses(4);
    assert!(owner.directory.asked.len() < before);
    let is_of = |node: NodeId| {
        let entries = owner.directory.entries.iter().map(|(_, entry)| entry);
        let count = |entry: &super::entry::Entry| {
            let of_kind =
                |kind: &Kind| entry.open(*kind).filter(|((asker, _), _)| *asker == node).count();
            Kind::ALL.iter().map(of_kind).sum::<usize>()
        };
        entries.map(count).sum::<usize>()
    };
    assert_eq!((is_of(NodeId(4)), is_of(NodeId(3)) > 0), (0, true));
    assert_eq!(owner.directory.asked.latest_of(NodeId(4)), 0);
}

/// Goal: an entry that this node no longer owns takes its questions with it.
#[test]
fn the_questions_of_a_removed_entry_are_closed() {
    let mut owner = Owner::new();
    let id = (0..).map(|at| format!("x{at}").parse::<ObjectId>().unwrap()).find(|id| {
        let owners = owner.members.owners(id);
        !owners.contains(NodeId(1))
    });
    let id = id.unwrap();
    owner.receives(3, watch(&id));
    owner.receives(3, announced(&id, instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.directory.asked.len(), 1);
    owner.waits(STRAY_NS);
    assert_no_questions(&owner);
}

/// Goal: an announcement looks at the questions that it answers, not at all those below its prefix.
#[test]
fn an_announcement_answers_those_that_lack_its_version() {
    let mut owner = Owner::new();
    for after in 0..100 {
        owner.receives(3, latest(1 + after, Some(after)));
    }
    for number in 1..=100 {
        assert_eq!(put(&mut owner, &version(number), number).len(), 1, "{number}");
    }
    assert_no_questions(&owner);
}

/// Goal: the newest version is found without a walk through the others, and the index has no more
/// than the live names.
#[test]
fn the_index_of_versions_follows_the_names() {
    let mut owner = Owner::new();
    for number in 1..=50 {
        put(&mut owner, &version(number), number);
    }
    assert_eq!(owner.directory.versions.len(), 50);
    for number in 2..=50 {
        owner.receives(4, delete(&version(number)));
    }
    let ObjectId::Named(name) = version(1) else { unreachable!() };
    assert_eq!(owner.receives(3, latest(1, None)), [answered(3, 1, Answer::Latest(name))]);
    assert_eq!(owner.directory.versions.len(), 1, "each name that is gone is looked at once");
    owner.receives(3, announced(&version(7), instance(3, 1), true, Progress::Complete));
    assert_eq!(owner.directory.versions.len(), 2, "it exists again");
    let older = ask(2, Question::OlderVersions { name: "policy/9".parse().unwrap(), retain: 2 });
    let first = Answer::OlderVersions(Vec::from(["policy/1".parse().unwrap()]));
    assert_eq!(owner.receives(3, older), [answered(3, 2, first)]);
}

/// Goal: whatever a question is about, pending membership changes are applied to what it reads.
#[test]
fn each_question_about_an_object_names_it() {
    let (id, name) = (minted(), "policy/1".parse().unwrap());
    let prefix = "policy/".parse().unwrap();
    let Message::Ask { question: locate, .. } = locate(&id) else { unreachable!() };
    let (avoid, not_here) = (vec![], None);
    let range = LocateRange { id: id.clone(), instance: instance(2, 1), bytes: 1, avoid, not_here };
    let all = [
        locate,
        Question::LocateRange(Box::new(range)),
        Question::Watch { id: id.clone(), seen_at: None },
        Question::Locations { id: id.clone(), known: None },
        Question::Delete { id, pruned: false },
        Question::Latest { prefix, after: None },
        Question::OlderVersions { name, retain: 1 },
    ];
    assert!(all.iter().all(|question| question.subject().is_some()));
}

/// Goal: a node takes one place at an entry, however many requests for a source it sends.
#[test]
fn a_new_request_for_a_source_replaces_the_earlier_one_of_the_node() {
    let mut owner = Owner::new();
    let id = minted();
    let Message::Ask { question, .. } = locate(&id) else { unreachable!() };
    for number in 1..=3 {
        let outbox = owner.receives(3, ask(number, question.clone()));
        assert!(outbox.contains(&answered(3, number, Answer::NoSource)), "{outbox:?}");
    }
    owner.receives(4, ask(1, question));
    assert_eq!(owner.directory.asked.len(), 2, "one of each node");
    let outbox = put(&mut owner, &id, 1);
    let is_located = |(to, message): &&(NodeId, Message)| {
        let is_it = |answer: &Answer| matches!(answer, Answer::Located(_));
        let number = QuestionId(if *to == NodeId(3) { 3 } else { 1 });
        matches!(message, Message::Answer { number: of, answer } if *of == number && is_it(answer))
    };
    assert_eq!(outbox.iter().filter(is_located).count(), 2, "{outbox:?}");
    assert_no_questions(&owner);
}

/// Goal: a client that waits for a change of the holders gets that of a refused copy too.
#[test]
fn a_refused_copy_is_reported_to_those_that_watch_the_holders() {
    let id = minted();
    let of = instance(2, 1);
    let not_here = Some((NodeId(2), of));
    let range = LocateRange {
        id: id.clone(),
        instance: of,
        bytes: 1,
        avoid: vec![],
        not_here: Some((NodeId(2), 0)),
    };
    let range = ask(7, Question::LocateRange(Box::new(range)));
    let whole = locate_with(&id, |locate| locate.not_here = not_here);
    for refusal in [range, whole] {
        let mut owner = Owner::new();
        owner.receives(2, announced(&id, of, true, Progress::Complete));
        assert_eq!(owner.source_of(3, &id), Some(2));
        let known = owner.directory.entries.get(&id).unwrap().live.as_ref().unwrap().holdings();
        let locations = Question::Locations { id: id.clone(), known: Some(known) };
        assert_eq!(owner.receives(4, ask(9, locations)), [answered(4, 9, Answer::Pending)]);
        let outbox = owner.receives(3, refusal);
        let is_news = |message: &(NodeId, Message)| {
            let (to, Message::Answer { number, answer }) = message else { return false };
            let is_of_it = (*to, *number) == (NodeId(4), QuestionId(9));
            let is_without = |them: &[Holding]| them.iter().all(|it| it.node != NodeId(2));
            is_of_it && matches!(answer, Answer::Locations(them) if is_without(them))
        };
        assert!(outbox.iter().any(is_news), "{outbox:?}");
    }
}

/// Goal: an object whose holder and both owners end at once is lost to those that have seen it,
/// although no owner has recorded it.
#[test]
fn a_name_that_only_its_requester_knows_is_lost() {
    let (id, gone) = (named(&Owner::new(), "x"), NodeId(77));
    for question in seen_at(&id, gone) {
        let mut owner = Owner::new();
        owner.receives(4, watch(&id));
        owner.receives(3, ask(1, question.clone()));
        assert_eq!(owner.waits(MERGE_NS / 2), [], "a holder may still announce it");
        assert_eq!(owner.waits(MERGE_NS / 4), []);
        let outbox = owner.waits(MERGE_NS);
        assert!(matches!(&outbox[..], [only] if is_loss(only)), "{outbox:?}");
        assert_eq!(owner.directory.asked.len(), 1, "the other waits for its first put");
        owner.receives(3, ask(1, question));
        put(&mut owner, &id, 1);
        assert!(!owner.waits(2 * MERGE_NS).iter().any(is_loss), "a holder has announced it");
    }
}

/// Goal: an owner without a record declares no loss while another node may have one: the holder,
/// however late it announces, and the primary owner.
#[test]
fn a_name_that_is_not_recorded_yet_is_not_lost() {
    let id = named(&Owner::new(), "x");
    for question in seen_at(&id, NodeId(2)) {
        let mut owner = Owner::new();
        owner.receives(3, ask(1, question));
        assert!(!owner.waits(10 * MERGE_NS).iter().any(is_loss), "its holder is a member");
        owner.receives(4, ask(2, Question::Watch { id: id.clone(), seen_at: Some(NodeId(5)) }));
        owner.receives(5, ask(2, Question::Watch { id: id.clone(), seen_at: Some(NodeId(5)) }));
        owner.loses(2);
        assert!(!owner.waits(2 * MERGE_NS).iter().any(is_loss), "another holder is a member");
        owner.receives(4, Message::Cancel { number: QuestionId(2) });
        assert!(owner.waits(2 * MERGE_NS).iter().any(is_loss), "nobody has seen it there");
    }
    let owner = Owner::new();
    let is_backup = |id: &ObjectId| {
        let owners = owner.members.owners(id);
        owners.backup == Some(NodeId(1)) && owners.primary != NodeId(3)
    };
    let mut names = (0..).map(|group| format!("group{group}/x").parse().unwrap());
    let id: ObjectId = names.find(is_backup).unwrap();
    let primary = owner.members.owners(&id).primary;
    for question in seen_at(&id, NodeId(77)) {
        let mut owner = Owner::new();
        owner.receives(3, ask(1, question));
        assert!(!owner.waits(2 * MERGE_NS).iter().any(is_loss), "the primary owner decides");
        owner.loses(primary.0);
        assert!(owner.waits(2 * MERGE_NS).iter().any(is_loss), "it is the primary owner now");
    }
}

/// Questions about an object that was last seen at a node.
fn seen_at(id: &ObjectId, node: NodeId) -> [Question; 2] {
    let Message::Ask { question: located, .. } =
        locate_with(id, |locate| locate.seen_at = Some(node))
    else {
        unreachable!()
    };
    [Question::Watch { id: id.clone(), seen_at: Some(node) }, located]
}

/// Whether a message reports a loss in reply to question 1 of node 3.
fn is_loss((to, message): &(NodeId, Message)) -> bool {
    let Message::Answer { number, answer } = message else { return false };
    let is_it = (*to, *number) == (NodeId(3), QuestionId(1));
    is_it && matches!(answer, Answer::Gone(Error::ObjectLost { .. }))
}
