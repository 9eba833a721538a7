//! Reduces of more inputs than one event handles.

use super::*;

const SLICE: Slice = Slice { entries: 4, pause_ns: 1000 };

fn reduce(inputs: Vec<ObjectId>) -> Request {
    let count = inputs.len() as u32;
    Request::Reduce { inputs, op: Op::Sum, count, id: None, ttl_ns: None }
}

/// Goal: no event of a large reduce reads or watches all inputs, and it folds all of them in the
/// end. Method: count the messages of each event, instead of its time.
#[test]
fn inputs_are_read_and_watched_a_slice_at_a_time() {
    let mut cluster = Cluster::in_slices(4, 1 << 30, SLICE);
    let inputs: Vec<ObjectId> =
        (0..30).map(|serial| cluster.put_large(2 + serial % 3, None)).collect();
    let request = cluster.ask(1, reduce(inputs.clone()));
    assert!(!cluster.replies.contains_key(&request), "its inputs are not read");
    let is_watched = |cluster: &Cluster| cluster.nodes[&NodeId(1)].questions.len();
    let mut watched = 0;
    for _ in 0..30 {
        cluster.wait(SLICE.pause_ns);
        let now = is_watched(&cluster);
        assert!(now <= watched + SLICE.entries || now == 0, "{now} after {watched}");
        watched = now;
    }
    let Ok(Reply::Reducing { id }) = cluster.reply(request).clone() else { panic!("it began") };
    let folded = cluster.ask(1, Request::Inputs { id: id.clone() });
    assert!(matches!(cluster.reply(folded), Ok(Reply::Inputs { ids }) if ids.len() == 30));
    let got_it = cluster.get(1, &id);
    let instance = got(cluster.reply(got_it));
    cluster.ask(1, Request::Release { instance });
    cluster.assert_at_rest();
}

#[test]
fn duplicates_in_later_slices_are_found() {
    let mut cluster = Cluster::in_slices(2, 1 << 30, SLICE);
    let mut inputs: Vec<ObjectId> = (0..9).map(|number| named(&format!("input{number}"))).collect();
    inputs.push(inputs[0].clone());
    let request = cluster.ask(1, reduce(inputs));
    (0..3).for_each(|_| cluster.wait(SLICE.pause_ns));
    let Err(Error::InvalidArgument(said)) = cluster.reply(request) else { panic!("it began") };
    assert!(said.contains("1 of 10 inputs are duplicates"), "{said}");
    assert_eq!(cluster.nodes[&NodeId(1)].open_requests(), 0);
    cluster.assert_at_rest();
}

/// A client that ends while its request is read leaves nothing.
#[test]
fn a_request_that_ends_while_it_is_read_starts_nothing() {
    let mut cluster = Cluster::in_slices(2, 1 << 30, SLICE);
    let inputs: Vec<ObjectId> = (0..20).map(|number| named(&format!("input{number}"))).collect();
    cluster.ask(1, reduce(inputs));
    cluster.tell(1, Event::ClientDisconnected { client: CLIENT, process: None });
    (0..9).for_each(|_| cluster.wait(SLICE.pause_ns));
    assert_eq!(cluster.nodes[&NodeId(1)].questions.len(), 0);
    cluster.assert_at_rest();
}
