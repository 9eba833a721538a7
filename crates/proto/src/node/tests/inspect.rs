//! Reports of members about themselves: each request goes to its member and gets one reply.

use super::*;
use crate::inspection::Inspection;

const ACTIVITY: Inspection = Inspection::Activity { after: 7, limit: 9 };

fn inspect(node: Option<u64>) -> Request {
    Request::Inspect { node: node.map(NodeId), inspection: ACTIVITY }
}

#[test]
fn each_member_reports_about_itself() {
    let mut cluster = Cluster::new(3);
    for (asked, reporter) in [(None, 2), (Some(2), 2), (Some(3), 3)] {
        let request = cluster.ask(2, inspect(asked));
        let report = format!("{ACTIVITY:?} of {:?}", NodeId(reporter));
        assert_eq!(cluster.reply(request), &Ok(Reply::Inspected { report }));
    }
    cluster.assert_at_rest();
}

#[test]
fn a_report_of_a_member_that_goes_or_is_silent_ends() {
    let mut cluster = Cluster::new(3);
    cluster.slow_down(3);
    let request = cluster.ask(2, inspect(Some(3)));
    assert!(!cluster.replies.contains_key(&request));
    let late = cluster.ask_until(2, inspect(Some(3)), Some(cluster.now + SECOND));
    cluster.wait(SECOND);
    assert!(is_timeout(cluster.reply(late)), "{:?}", cluster.reply(late));
    cluster.slow = None;
    cluster.kill(3);
    let is_down = |reply: &Result<Reply, Error>| matches!(reply, Err(Error::NodeDown(_)));
    assert!(is_down(cluster.reply(request)));
    let request = cluster.ask(2, inspect(Some(3)));
    assert!(is_down(cluster.reply(request)), "no member");
    cluster.assert_at_rest();
}

#[test]
fn only_the_member_that_was_asked_can_reply() {
    let mut cluster = Cluster::new(3);
    cluster.slow_down(3);
    let request = cluster.ask(2, inspect(Some(3)));
    let (number, answer) = (cluster.question_of(2), Answer::Report("false".into()));
    let message = Message::Answer { number, answer };
    cluster.tell(2, Event::Message { from: NodeId(1), message });
    assert!(!cluster.replies.contains_key(&request));
    cluster.slow = None;
    cluster.kill(3);
    cluster.assert_at_rest();
}

#[test]
fn a_report_that_is_too_long_is_not_sound() {
    let reply = |length| {
        let answer = Answer::Report("x".repeat(length));
        Message::Answer { number: QuestionId(1), answer }
    };
    assert!(reply(crate::limits::REPORT_BYTES_MAX).is_valid());
    assert!(!reply(crate::limits::REPORT_BYTES_MAX + 1).is_valid());
}
