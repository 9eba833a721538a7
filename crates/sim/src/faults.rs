//! What goes wrong: processes die and begin again, hosts stand still or are slow, and hosts hear nothing of each other.
//!
//! A host that stands still does everything later, in the order in which it would have done it. What is said over a
//! connection that is cut arrives when it is mended, as TCP sends it again; what has left before arrives. Unless the two
//! connect by way of a third before that: then what was on its way is lost.

use hoplite_proto::{id::NodeId, time::Instant};

use crate::{
    dice::Dice,
    plan::{Act, DETECTION_NS, Fault, MILLISECOND, Plan, SECOND},
    shell::Flow,
    users::Later,
    world::{Happening, NotHere, World},
};

/// After how long two that do not reach each other try others. Real ones wait longer; here few faults last so long.
pub(crate) const DETOUR_NS: u64 = DETECTION_NS;

impl Plan {
    /// Hosts and cables that fail for a while: for less than the time of detection, or for more.
    pub(crate) fn add_faults(&mut self, horizon: u64, dice: &mut Dice) {
        use Fault::{Deaf, Freeze, Halves, Off, OneWay, Pair, Slow};
        let times = [50 * MILLISECOND, SECOND, 4 * SECOND, 9 * SECOND];
        let faults = [Freeze, Freeze, Slow { times: 30 }, Off, Deaf, Pair, OneWay, Halves];
        if !dice.chance(30) {
            return;
        }
        for _ in 0..dice.between(1, 3) {
            let (when, at) = (dice.below(horizon * 3 / 2), dice.below(64));
            let time_ns = dice.pick(&times).unwrap_or(SECOND) + dice.below(SECOND);
            let Some(fault) = dice.pick(&faults) else { return };
            self.add(when, Act::Fault { at, fault, time_ns });
            // A node that is away hears late of a deletion, and by then perhaps no member knows of it any more.
            for _ in 0..dice.below(4) {
                let object = dice.below(self.objects.len() as u64) as usize;
                let delete = Act::Delete { object, at: dice.below(64) };
                self.add(when + dice.below(time_ns), delete);
            }
            if dice.chance(20) {
                self.add(when + dice.below(time_ns), Act::Crash { at: dice.below(64) });
            }
        }
    }
}

impl World {
    /// A process dies, if the others can go on without it.
    pub(crate) fn crash(&mut self, at: u64) -> Option<NodeId> {
        let up: Vec<NodeId> = self.hosts.keys().copied().filter(|id| self.is_up(*id)).collect();
        let can_crash = up.len() > 1 && self.all_have_met();
        let node = *up.get(at as usize % up.len().max(1)).filter(|_| can_crash)?;
        self.users.is_shrunk = true;
        self.stop_host(node, true);
        Some(node)
    }

    /// A process dies, and another one begins at its address.
    pub(crate) fn restart(&mut self, at: u64, pause_ns: u64) {
        let Some(member) = self.crash(at).and_then(|node| self.hosts.get(&node)).map(|h| h.member)
        else {
            return;
        };
        self.after(pause_ns, Happening::Users(Later::Begin { member }));
    }

    /// A connection of two nodes breaks, chosen by a number.
    pub(crate) fn break_off(&mut self, at: u64) {
        let up: Vec<NodeId> = self.hosts.keys().copied().filter(|id| self.is_up(*id)).collect();
        let (count, number) = (up.len(), at as usize);
        if count < 2 || !self.all_have_met() {
            return;
        }
        self.users.is_shrunk = true;
        let (one, other) =
            (up[number % count], up[(number + 1 + number / 7 % (count - 1)) % count]);
        self.trace
            .line(self.now, Some(one), "world", || format!("its connection to {other:?} breaks"));
        self.break_all_connections(one, other);
    }

    /// The control connection of two nodes breaks, and those by which payload comes.
    fn break_all_connections(&mut self, one: NodeId, other: NodeId) {
        self.break_connection(one, other);
        let is_theirs = |flow: &&Flow| {
            (flow.from, flow.to) == (one, other) || (flow.from, flow.to) == (other, one)
        };
        let flows = self.shell.flows.iter().filter(|(_, flow)| is_theirs(flow));
        for flow in flows.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.break_flow(flow, NotHere(false));
        }
    }

    /// Something goes wrong for a while, if all have met.
    pub(crate) fn go_wrong(&mut self, at: u64, fault: Fault, time_ns: u64) {
        let until = self.now + time_ns;
        let is_frozen = |id: &NodeId| {
            let host = self.hosts.get(id);
            host.and_then(|host| host.frozen_until).is_some_and(|until| until > self.now)
        };
        let is_freeze = matches!(fault, Fault::Freeze);
        let up = self.hosts.keys().copied().filter(|id| self.is_up(*id));
        let up: Vec<NodeId> = up.filter(|id| !(is_freeze && is_frozen(id))).collect();
        if up.len() < 2 || !self.all_have_met() {
            return;
        }
        self.users.is_shrunk = true;
        let one = up[at as usize % up.len()];
        match fault {
            Fault::Freeze => {
                self.trace.line(self.now, Some(one), "world", || format!("frozen until {until}"));
                if let Some(host) = self.hosts.get_mut(&one) {
                    host.frozen_until = Some(until);
                }
            }
            Fault::Slow { times } => {
                let words = || format!("{times} times as slow until {until}");
                self.trace.line(self.now, Some(one), "world", words);
                self.net.slow_until(one, times, until);
            }
            _ => self.cut(&up, at as usize, fault, until),
        }
    }

    /// Some hear nothing of others.
    fn cut(&mut self, up: &[NodeId], number: usize, fault: Fault, until: Instant) {
        let (one, other) = (up[number % up.len()], up[(number + 1) % up.len()]);
        let half = |node: NodeId| (node.0 >> (number % 3)) % 2;
        let is_cut = |(from, to): &(NodeId, NodeId)| match fault {
            Fault::Freeze | Fault::Slow { .. } => false,
            Fault::Off => (*from == one) != (*to == one),
            Fault::Deaf => *to == one && *from != one,
            Fault::Pair => (*from, *to) == (one, other) || (*from, *to) == (other, one),
            Fault::OneWay => (*from, *to) == (one, other),
            Fault::Halves => half(*from) != half(*to),
        };
        let pairs = up.iter().flat_map(|from| up.iter().map(|to| (*from, *to)));
        for (from, to) in pairs.filter(is_cut) {
            self.trace
                .line(self.now, Some(from), "world", || format!("not to {to:?} until {until}"));
            self.net.cut_until(from, to, until);
            self.after(DETOUR_NS, Happening::LeadRound { one: from, other: to });
        }
    }

    /// Two that do not reach each other connect by way of a third, if one reaches both.
    pub(crate) fn lead_round(&mut self, one: NodeId, other: NodeId) {
        let is_open = |from, to| self.net.mended(from, to) <= self.now;
        let reach_each_other = |one, other| is_open(one, other) && is_open(other, one);
        let helps = |helper: &NodeId| {
            ![one, other].contains(helper)
                && self.is_up(*helper)
                && reach_each_other(one, *helper)
                && reach_each_other(*helper, other)
        };
        if reach_each_other(one, other) || !self.hosts.keys().any(helps) {
            return;
        }
        self.trace.line(self.now, Some(one), "world", || format!("a way round to {other:?}"));
        self.net.lead_round(one, other);
        self.break_all_connections(one, other);
    }

    /// Until when the host stands still that something happens at, if it does.
    pub(crate) fn late_until(&self, happening: &Happening) -> Option<Instant> {
        let node = match happening {
            Happening::Arrive { to: node, .. }
            | Happening::Tell { node, .. }
            | Happening::SlotTaken { node, .. }
            | Happening::FileWritten { node, .. }
            | Happening::BlockRead { node, .. }
            | Happening::Alarm { node, .. }
            | Happening::FetchOver { node, .. }
            | Happening::FoldOver { node, .. } => *node,
            Happening::FlowAsked { flow } | Happening::BlockSent { flow } => {
                self.shell.flows.get(flow)?.from
            }
            Happening::BlockArrived { flow, .. } => self.shell.flows.get(flow)?.to,
            Happening::FoldWaits { fold } => self.shell.folds.get(fold)?.host,
            Happening::Write(writer) => writer.node,
            Happening::Users(Later::Cancel { request }) => self.users.questions.get(request)?.node,
            Happening::Users(Later::Release { node, .. } | Later::Locations { node, .. }) => *node,
            Happening::Users(Later::Begin { .. })
            | Happening::LeadRound { .. }
            | Happening::CheckFeeds { .. }
            | Happening::Meet
            | Happening::RunPrograms
            | Happening::WakeProgram { .. }
            | Happening::Act(_) => return None,
        };
        self.hosts.get(&node)?.frozen_until.filter(|until| *until > self.now)
    }

    /// How long something small takes from one host to another.
    pub(crate) fn passage_ns(&mut self, from: NodeId, to: NodeId) -> u64 {
        let latency_ns = self.net.latency_ns(&mut self.dice);
        self.net.mended(from, to).since(self.now) + latency_ns
    }
}
