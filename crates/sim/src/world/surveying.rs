//! Runs the surveys of all nodes, each with its own alarm.

use hoplite_proto::{id::NodeId, inline::Inline, message::Message, node::Event, time::Instant};
use hoplite_survey::{Effect, Scope, Surveys};

use super::{Host, SimEvent, World};

impl World {
    /// Passes the members of a node to its surveys.
    pub(crate) fn members_surveyed(&mut self, node: NodeId) {
        let now = self.now;
        let Some(Host { surveys, node: machine, .. }) = self.hosts.get_mut(&node) else { return };
        surveys.members_changed(now, Scope::new(machine.members()));
        self.set_survey_alarm(node);
    }

    /// Passes a message of another member to the surveys of a node.
    pub(crate) fn survey_message(&mut self, node: NodeId, from: NodeId, message: &Inline) {
        self.survey(node, |surveys, now, is_busy| surveys.receive(now, from, message, is_busy));
    }

    pub(super) fn survey_alarm(&mut self, node: NodeId, at: Instant) {
        let Some(host) = self.hosts.get_mut(&node).filter(|host| host.is_up) else { return };
        if host.survey_alarm == Some(at) {
            host.survey_alarm = None;
            self.survey(node, Surveys::expire);
        }
    }

    fn survey(
        &mut self,
        node: NodeId,
        step: impl FnOnce(&mut Surveys, Instant, bool) -> Vec<Effect>,
    ) {
        let (now, is_busy) = (self.now, self.moves_objects(node));
        let Some(host) = self.hosts.get_mut(&node) else { return };
        for effect in step(&mut host.surveys, now, is_busy) {
            match effect {
                Effect::Send { to, message } => self.send(node, to, Message::Survey(message)),
                Effect::PlacesFound(places) => {
                    self.deliver_soon(node, Event::PlacesFound { places });
                }
                Effect::Surveyed { nodes, groups } => {
                    self.trace.line(now, Some(node), "note", || {
                        format!("surveyed {nodes} nodes: {groups} groups")
                    })
                }
            }
        }
        self.set_survey_alarm(node);
    }

    fn set_survey_alarm(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let Some(at) = host.surveys.deadline() else { return };
        if host.survey_alarm.is_none_or(|alarm| at < alarm) {
            host.survey_alarm = Some(at);
            self.at(at, SimEvent::SurveyAlarm { node, at });
        }
    }

    /// Whether a node sends or receives objects or partial results.
    fn moves_objects(&self, node: NodeId) -> bool {
        self.shell.flows.values().any(|flow| flow.from == node || flow.to == node)
    }
}
