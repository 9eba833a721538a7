//! Injects faults: processes fail and restart, hosts freeze or become slow, and hosts cannot reach each other.
//!
//! A frozen host performs all its actions later, in the same order. Messages over a cut connection arrive when it
//! heals, because TCP retransmits them; messages already in flight still arrive. If the two nodes connect through a
//! relay before that, messages in flight are lost.

use hoplite_proto::{id::NodeId, time::Instant};

use crate::{
    dice::Dice,
    plan::{Act, DETECTION_NS, Fault, MILLISECOND, Plan, SECOND},
    shell::Flow,
    users::Later,
    world::{NotHere, SimEvent, World},
};

/// How long two nodes fail to reach each other before they try a relay. Real nodes wait longer, but few faults here
/// last that long.
pub(crate) const DETOUR_NS: u64 = DETECTION_NS;

impl Plan {
    /// Adds failing hosts and links, for shorter and longer than the detection time.
    pub(crate) fn add_faults(&mut self, horizon: u64, dice: &mut Dice) {
        use Fault::{Freeze, NoReceive, Off, OneWay, Pair, Partition, Slow};
        let times = [50 * MILLISECOND, SECOND, 4 * SECOND, 9 * SECOND];
        let faults = [Freeze, Freeze, Slow { times: 30 }, Off, NoReceive, Pair, OneWay, Partition];
        if !dice.chance(30) {
            return;
        }
        for _ in 0..dice.between(1, 3) {
            let (when, at) = (dice.below(horizon * 3 / 2), dice.below(64));
            let time_ns = dice.pick(&times).unwrap_or(SECOND) + dice.below(SECOND);
            let Some(fault) = dice.pick(&faults) else { return };
            self.add(when, Act::Fault { at, fault, time_ns });
            // A node that is away learns late of a deletion, when perhaps no member remembers it any more.
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
    /// Kills a process, if the others can continue without it.
    pub(crate) fn crash(&mut self, at: u64) -> Option<NodeId> {
        let up: Vec<NodeId> = self.hosts.keys().copied().filter(|id| self.is_up(*id)).collect();
        let can_crash = up.len() > 1 && self.all_have_met();
        let node = *up.get(at as usize % up.len().max(1)).filter(|_| can_crash)?;
        self.users.is_shrunk = true;
        self.stop_host(node, true);
        Some(node)
    }

    /// Kills a process and starts another one at its address.
    pub(crate) fn restart(&mut self, at: u64, pause_ns: u64) {
        let Some(member) = self.crash(at).and_then(|node| self.hosts.get(&node)).map(|h| h.member)
        else {
            return;
        };
        self.after(pause_ns, SimEvent::Users(Later::Begin { member }));
    }

    /// Breaks the connection of two nodes, chosen by a number.
    pub(crate) fn break_off(&mut self, at: u64) {
        let up: Vec<NodeId> = self.hosts.keys().copied().filter(|id| self.is_up(*id)).collect();
        let (count, number) = (up.len(), at as usize);
        if count < 2 || !self.all_have_met() {
            return;
        }
        self.users.is_shrunk = true;
        let (one, other) =
            (up[number % count], up[(number + 1 + number / 7 % (count - 1)) % count]);
        self.trace.line(self.now, Some(one), "world", || format!("connection to {other:?} breaks"));
        self.break_all_connections(one, other);
    }

    /// Breaks the control connection of two nodes, and their payload connections.
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

    /// Injects a fault for a while, if all nodes have met.
    pub(crate) fn inject_fault(&mut self, at: u64, fault: Fault, time_ns: u64) {
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
        let one = up[at as usize % up.len()];
        if let Fault::Blocks { .. } | Fault::Copies { .. } = fault {
            return self.damage(one, fault, until);
        }
        self.users.is_shrunk = true;
        match fault {
            Fault::Freeze => {
                self.trace.line(self.now, Some(one), "world", || format!("frozen until {until}"));
                if let Some(host) = self.hosts.get_mut(&one) {
                    host.frozen_until = Some(until);
                }
            }
            Fault::Slow { times } => {
                let words = || format!("{times} times slower until {until}");
                self.trace.line(self.now, Some(one), "world", words);
                self.net.slow_until(one, times, until);
            }
            _ => self.cut(&up, at as usize, fault, until),
        }
    }

    /// Cuts the links between some nodes.
    fn cut(&mut self, up: &[NodeId], number: usize, fault: Fault, until: Instant) {
        let (one, other) = (up[number % up.len()], up[(number + 1) % up.len()]);
        let half = |node: NodeId| (node.0 >> (number % 3)) % 2;
        let is_cut = |(from, to): &(NodeId, NodeId)| match fault {
            Fault::Freeze | Fault::Slow { .. } | Fault::Blocks { .. } | Fault::Copies { .. } => {
                false
            }
            Fault::Off => (*from == one) != (*to == one),
            Fault::NoReceive => *to == one && *from != one,
            Fault::Pair => (*from, *to) == (one, other) || (*from, *to) == (other, one),
            Fault::OneWay => (*from, *to) == (one, other),
            Fault::Partition => half(*from) != half(*to),
        };
        let pairs = up.iter().flat_map(|from| up.iter().map(|to| (*from, *to)));
        for (from, to) in pairs.filter(is_cut) {
            self.trace.line(self.now, Some(from), "world", || {
                format!("cannot reach {to:?} until {until}")
            });
            self.net.cut_until(from, to, until);
            self.after(DETOUR_NS, SimEvent::Reroute { one: from, other: to });
        }
    }

    /// Connects two nodes that cannot reach each other through a relay, if a third node reaches both.
    pub(crate) fn reroute(&mut self, one: NodeId, other: NodeId) {
        let is_open = |from, to| self.net.healed_at(from, to) <= self.now;
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
        self.trace.line(self.now, Some(one), "world", || format!("relay to {other:?}"));
        self.net.reroute(one, other);
        self.break_all_connections(one, other);
    }

    /// Returns when the host of an event unfreezes, if it is frozen.
    pub(crate) fn late_until(&self, event: &SimEvent) -> Option<Instant> {
        let node = match event {
            SimEvent::Arrive { to: node, .. }
            | SimEvent::Deliver { node, .. }
            | SimEvent::SlotTaken { node, .. }
            | SimEvent::FileWritten { node, .. }
            | SimEvent::BlockRead { node, .. }
            | SimEvent::Alarm { node, .. }
            | SimEvent::SurveyAlarm { node, .. }
            | SimEvent::Barred { node, .. }
            | SimEvent::FetchOver { node, .. }
            | SimEvent::FoldOver { node, .. } => *node,
            SimEvent::FlowRequested { flow } | SimEvent::BlockSent { flow } => {
                self.shell.flows.get(flow)?.from
            }
            SimEvent::BlockArrived { flow, .. } => self.shell.flows.get(flow)?.to,
            SimEvent::FoldStalls { fold } => self.shell.folds.get(fold)?.host,
            SimEvent::Write(writer) => writer.node,
            SimEvent::Users(Later::Cancel { request }) => self.users.requests.get(request)?.node,
            SimEvent::Users(
                Later::Release { node, .. }
                | Later::ChildEnds { node, .. }
                | Later::Locations { node, .. }
                | Later::Put { node, .. },
            ) => *node,
            SimEvent::Users(Later::Begin { .. })
            | SimEvent::Reroute { .. }
            | SimEvent::CheckSources { .. }
            | SimEvent::Ended { .. }
            | SimEvent::Heal
            | SimEvent::RunPrograms
            | SimEvent::WakeProgram { .. }
            | SimEvent::Act(_) => return None,
        };
        self.hosts.get(&node)?.frozen_until.filter(|until| *until > self.now)
    }

    /// Returns how long a small message takes from one host to another.
    pub(crate) fn passage_ns(&mut self, from: NodeId, to: NodeId) -> u64 {
        let latency_ns = self.net.latency_ns(&mut self.dice);
        self.net.healed_at(from, to).since(self.now) + latency_ns
    }
}
