//! What is recorded has limits, whatever clients and members do.

use hoplite_proto::{id::QuestionId, limits::REPORT_BYTES_MAX, question::Answer, request::Reply};

use super::*;

/// A name of about a kilobyte. Each of its bytes takes two in JSON.
fn long(number: usize) -> String {
    format!("{}{number}", "\"".repeat(1000))
}

fn got(scene: &mut Scene, name: &str) {
    scene.requests += 1;
    let (request, id) = (RequestId(scene.requests), named(name));
    let body = Request::Get { id: id.clone() };
    let asked = Event::Request { client: CLIENT, request, body, deadline: None };
    scene.recorder.event(scene.now, &asked, &scene.machine, &Known);
    let (meta, inline) = (Meta::bytes(1), None);
    let reply = Ok(Reply::Got { id, meta, instance: COPY, inline, is_range: false });
    scene.action(Action::Reply { client: CLIENT, request, reply });
}

#[test]
fn a_client_that_ends_while_it_waits_leaves_nothing() {
    let mut scene = Scene::new();
    scene.put("a/1");
    let other = named("b");
    for body in [
        Request::Get { id: other.clone() },
        Request::Wait { ids: vec![named("a/1"), other.clone()], count: 2 },
        Request::Latest { prefix: "c/".into(), after: None },
        Request::Locations { id: named("a/1"), known: Some(vec![]) },
        Request::Create { id: Some(named("d")), meta: Meta::bytes(1 << 20), ttl_ns: None },
    ] {
        scene.ask(body);
    }
    scene.event(Event::ClientDisconnected { client: CLIENT, process: None });
    let activity = scene.activity(0, 0);
    assert_eq!(activity["waits"].as_array().unwrap().len(), 0, "{}", activity["waits"]);
    assert_eq!(scene.recorder.clients.count(), 0);
    assert_eq!(scene.last()["process"], 700);
}

#[test]
fn a_reduce_that_fails_at_once_does_not_run() {
    let mut scene = Scene::new();
    scene.put("a");
    scene.put("b");
    for id in [None, Some(named("sum")), None] {
        let inputs = vec![named("a"), named("b")];
        scene.ask(Request::Reduce { inputs, op: Op::Sum, count: 2, id, ttl_ns: None });
        let activity = scene.activity(0, 0);
        assert!(activity["reduces"].as_array().unwrap().is_empty(), "{}", activity["reduces"]);
    }
}

#[test]
fn a_report_of_the_longest_names_fits_into_a_message() {
    let mut scene = Scene::new();
    for number in 0..3000 {
        scene.ask(Request::Get { id: named(&long(number)) });
        got(&mut scene, &format!("{}/1", long(number)));
    }
    let text = report::activity(&scene.recorder, ME, &scene.machine, 0, u32::MAX);
    assert!(text.len() < REPORT_BYTES_MAX, "{} bytes", text.len());
    let activity: Value = serde_json::from_str(&text).unwrap();
    let reads = activity["reads"].to_string().len();
    assert!(reads < 300 * 1024, "{reads} bytes of reads");
}

#[test]
fn a_prefix_that_is_too_long_for_a_name_is_not_kept() {
    let mut scene = Scene::new();
    let prefix = "x".repeat(REPORT_BYTES_MAX);
    scene.ask(Request::List { owner: ME, prefix: prefix.clone(), after: None });
    scene.ask(Request::Latest { prefix, after: None });
    let error = Error::InvalidArgument("ä".repeat(REPORT_BYTES_MAX));
    let body = Request::Inputs { id: named("a") };
    let (request, client) = (RequestId(99), CLIENT);
    let asked = Event::Request { client, request, body, deadline: None };
    scene.recorder.event(scene.now, &asked, &scene.machine, &Known);
    scene.action(Action::Reply { client, request, reply: Err(error) });
    let text = report::activity(&scene.recorder, ME, &scene.machine, 0, u32::MAX);
    assert!(text.len() < 10_000, "{} bytes", text.len());
}

#[test]
fn the_newest_reads_are_kept() {
    let mut scene = Scene::new();
    for number in 0..5000 {
        scene.now = scene.now + 1;
        got(&mut scene, &format!("a{number}/3"));
    }
    let activity = scene.activity(0, 0);
    let reads = activity["reads"].as_array().unwrap();
    assert!((500..=1024).contains(&reads.len()), "{}", reads.len());
    assert!(reads.iter().any(|read| read["prefix"] == "a4999"));
    assert!(!reads.iter().any(|read| read["prefix"] == "a3900"));
}

#[test]
fn a_rejected_message_is_named_without_what_is_in_it() {
    let mut scene = Scene::new();
    let report = "secret".to_string();
    let (number, answer) = (QuestionId(1), Answer::Report(report));
    let message = Box::new(Message::Answer { number, answer });
    scene.action(Action::Log(LogEvent::MessageRejected { from: OTHER, message }));
    assert_eq!(scene.last()["message"], "Answer");
    let message = Box::new(Message::Leave);
    scene.action(Action::Log(LogEvent::MessageRejected { from: OTHER, message }));
    assert_eq!(scene.last()["message"], "Leave");
}
