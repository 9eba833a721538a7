//! What goes wrong for a while: hosts stand still, and hosts hear nothing of each other.
//!
//! A host that stands still does everything later, in the order in which it would have done it. What is said over a
//! connection that is cut arrives when it is mended, as TCP sends it again; what has left before arrives.

use hoplite_proto::{id::NodeId, time::Instant};

use crate::{
    plan::Split,
    users::Later,
    world::{Happening, World},
};

impl World {
    /// A host stands still for a while: its process is stopped, or the machine is busy with something else.
    pub(crate) fn freeze(&mut self, at: u64, time_ns: u64) {
        let awake = self.staying();
        let Some(node) = awake.get(at as usize % awake.len().max(1)).copied() else { return };
        if awake.len() < 2 || !self.all_have_met() {
            return;
        }
        self.users.is_shrunk = true;
        let until = self.now + time_ns;
        self.trace.line(self.now, Some(node), "world", || format!("frozen until {until}"));
        if let Some(host) = self.hosts.get_mut(&node) {
            host.frozen_until = Some(until);
        }
    }

    /// Some hosts hear nothing of others for a while.
    pub(crate) fn cut(&mut self, at: u64, split: Split, time_ns: u64) {
        let up: Vec<NodeId> = self.hosts.keys().copied().filter(|id| self.is_up(*id)).collect();
        let (count, number) = (up.len(), at as usize);
        if count < 2 || !self.all_have_met() {
            return;
        }
        self.users.is_shrunk = true;
        let until = self.now + time_ns;
        let one = up[number % count];
        let pairs = up.iter().flat_map(|from| up.iter().map(|to| (*from, *to)));
        let is_cut = |from: NodeId, to: NodeId| match split {
            Split::Off => (from == one) != (to == one),
            Split::Deaf => to == one && from != one,
            Split::Pair => {
                let other = up[(number + 1) % count];
                (from, to) == (one, other) || (from, to) == (other, one)
            }
            Split::OneWay => (from, to) == (one, up[(number + 1) % count]),
            Split::Halves => {
                let half = |node: NodeId| (node.0 >> (at % 3)) % 2;
                half(from) != half(to)
            }
        };
        for (from, to) in pairs.filter(|(from, to)| is_cut(*from, *to)).collect::<Vec<_>>() {
            self.trace
                .line(self.now, Some(from), "world", || format!("not to {to:?} until {until}"));
            self.net.cut_until(from, to, until);
        }
    }

    /// Until when the host stands still that something happens at, if it does.
    pub(crate) fn late_until(&self, happening: &Happening) -> Option<Instant> {
        let node = match happening {
            Happening::Arrive { to: node, .. }
            | Happening::Tell { node, .. }
            | Happening::SlotTaken { node, .. }
            | Happening::Alarm { node, .. }
            | Happening::FetchOver { node, .. }
            | Happening::FoldOver { node, .. } => *node,
            Happening::FlowAsked { flow } | Happening::BlockSent { flow } => {
                self.shell.flows.get(flow)?.from
            }
            Happening::BlockArrived { flow, .. } => self.shell.flows.get(flow)?.to,
            Happening::Write(writer) => writer.node,
            Happening::Users(Later::Cancel { request }) => self.users.questions.get(request)?.node,
            Happening::Users(Later::Release { node, .. } | Later::Locations { node, .. }) => *node,
            Happening::CheckFeeds { .. } | Happening::Act(_) => return None,
        };
        self.hosts.get(&node)?.frozen_until.filter(|until| *until > self.now)
    }

    /// How long something small takes from one host to another.
    pub(crate) fn passage_ns(&mut self, from: NodeId, to: NodeId) -> u64 {
        let latency_ns = self.net.latency_ns(&mut self.dice);
        self.net.mended(from, to).since(self.now) + latency_ns
    }
}
