//! Runs the programs: each continues to its next wait when a reply arrives.

use std::task::{Context, Waker};

use hoplite_proto::{
    id::{Instance, NodeId, RequestId},
    node::Event,
    request::Reply,
};

use super::{ProgramOrder, REPLY_NS};
use crate::{
    payload::{Content, Piece, Tag},
    shell::blocks_of,
    world::{SimEvent, World},
};

impl World {
    /// Schedules the programs after a reply has arrived.
    pub(crate) fn wake_programs(&mut self) {
        self.after(REPLY_NS, SimEvent::RunPrograms);
    }

    /// Continues a program whose computation time is over.
    pub(crate) fn wake_program(&mut self, request: RequestId) {
        self.programs.take(request, Ok(Reply::Done), |_| None);
        self.run_programs();
    }

    /// Polls every program and performs the actions that they request.
    pub(crate) fn run_programs(&mut self) {
        self.programs.shared.borrow_mut().now = self.now;
        let mut context = Context::from_waker(Waker::noop());
        self.programs
            .running
            .retain_mut(|program| program.as_mut().poll(&mut context).is_pending());
        let shared = self.programs.shared.clone();
        let orders = std::mem::take(&mut shared.borrow_mut().orders);
        for order in orders {
            match order {
                ProgramOrder::Ask { node, client, request, body } => {
                    let deadline = None;
                    self.deliver(node, Event::Request { client, request, body, deadline });
                }
                ProgramOrder::Fill { node, instance, tag } => self.fill(node, instance, tag),
                ProgramOrder::Disturb { at, fault, time_ns } => {
                    self.inject_fault(at, fault, time_ns)
                }
                ProgramOrder::Wake { request, after_ns } => {
                    self.after(after_ns, SimEvent::WakeProgram { request });
                }
            }
        }
        let failure = shared.borrow_mut().failure.take();
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// Writes all blocks of a slot at once.
    fn fill(&mut self, node: NodeId, instance: Instance, tag: Tag) {
        let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance)).copied();
        let Some(slot) = slot else {
            return self.fail(format!("{instance} at {node:?} has no slot to fill"));
        };
        self.shell.contents.insert(instance, Content::of(tag));
        for index in 0..blocks_of(self.shell.slots[slot].size) {
            self.write_slot(slot, Piece { index, content: Content::of(tag) });
        }
        self.shell.slots[slot].is_complete = true;
    }
}
