//! Measured places: messages of a survey go to the shell unread, and its result becomes the places
//! of members.

use super::*;
use crate::{limits::SURVEY_BYTES_MAX, place::Place};

fn handle(cluster: &mut Cluster, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    let node = cluster.nodes.get_mut(&NodeId(1)).unwrap();
    node.handle(cluster.now, event, &mut actions);
    actions
}

#[test]
fn the_shell_gets_the_messages_of_surveys() {
    let mut cluster = Cluster::new(2);
    let receive = |bytes: u64| {
        let message = Message::Survey(vec![7; bytes as usize].into());
        Event::Message { from: NodeId(2), message }
    };
    let message = vec![7; 3].into();
    let expected = [Action::Survey { from: NodeId(2), message }];
    assert_eq!(handle(&mut cluster, receive(3)), expected);
    let refused = handle(&mut cluster, receive(SURVEY_BYTES_MAX + 1));
    let is_refusal =
        |action: &Action| matches!(action, Action::Log(LogEvent::MessageRejected { .. }));
    assert!(refused.len() == 1 && is_refusal(&refused[0]), "{refused:?}");
}

#[test]
fn measured_places_are_those_of_members() {
    let mut cluster = Cluster::new(2);
    let place: Place = "r1".parse().unwrap();
    for places in [BTreeMap::from([(NodeId(2), place)]), BTreeMap::new()] {
        let expected = places.get(&NodeId(2)).copied();
        assert_eq!(handle(&mut cluster, Event::PlacesFound { places }), []);
        let node = &cluster.nodes[&NodeId(1)];
        assert_eq!(node.members().place(NodeId(2)), expected);
        let shown = node.status().members.iter().map(|member| member.place).collect::<Vec<_>>();
        assert_eq!(shown, [None, expected]);
    }
}
