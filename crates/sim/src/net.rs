//! Simulates the network: control messages in order for each pair of nodes, payload in blocks that share links.
//!
//! Control and payload do not delay each other. This module handles bytes and times, and does not interpret messages.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    id::NodeId,
    place::{Group, Place},
    reduce::cost::Link,
    time::Instant,
};

use crate::dice::Dice;

/// All links and connections.
#[derive(Debug)]
pub(crate) struct Net {
    link: Link,
    /// By the two ends, lower first: the number of the connection that is open or being opened.
    connections: BTreeMap<(NodeId, NodeId), u64>,
    connections_made: u64,
    /// Pairs whose last connection broke.
    broken: BTreeSet<(NodeId, NodeId)>,
    /// Connections whose messages from the first node to the second are lost.
    cut: BTreeSet<(NodeId, NodeId, u64)>,
    /// Directions without connectivity, and until when.
    held: BTreeMap<(NodeId, NodeId), Instant>,
    /// The newest connection over which the second node received something from the first. Messages of older
    /// connections are dropped after that.
    newest: BTreeMap<(NodeId, NodeId), u64>,
    /// When the last message from the first to the second arrives: messages stay in order.
    last_arrival: BTreeMap<(NodeId, NodeId), Instant>,
    uplink_free: BTreeMap<NodeId, Instant>,
    downlink_free: BTreeMap<NodeId, Instant>,
    /// Nodes whose links are slower by this factor, and until when.
    slowed: BTreeMap<NodeId, (u64, Instant)>,
    /// Whether messages always take exactly the latency of the link.
    is_steady: bool,
    /// Racks whose shared links affect bursts, although no node is configured with them.
    unannounced: BTreeMap<NodeId, Hidden>,
    bursts_free: BTreeMap<Queue, Instant>,
}

/// The location of a node that is not configured.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    rack: u64,
    pod: u64,
}

/// A link in which a burst queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    HostOut(NodeId),
    RackOut(u64),
    RackIn(u64),
    PodOut(u64),
    PodIn(u64),
    HostIn(NodeId),
}

/// When a block has left its sender, and when it has arrived completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
}

impl Net {
    pub(crate) const fn new(link: Link) -> Self {
        Self {
            link,
            connections: BTreeMap::new(),
            connections_made: 0,
            broken: BTreeSet::new(),
            cut: BTreeSet::new(),
            newest: BTreeMap::new(),
            held: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            uplink_free: BTreeMap::new(),
            downlink_free: BTreeMap::new(),
            slowed: BTreeMap::new(),
            is_steady: false,
            unannounced: BTreeMap::new(),
            bursts_free: BTreeMap::new(),
        }
    }

    pub(crate) const fn be_steady(&mut self) {
        self.is_steady = true;
    }

    /// Returns the connection between two nodes, if there is one.
    pub(crate) fn connection(&self, one: NodeId, other: NodeId) -> Option<u64> {
        self.connections.get(&pair(one, other)).copied()
    }

    /// Opens a connection; `None` if one exists already.
    pub(crate) fn connect(&mut self, one: NodeId, other: NodeId) -> Option<u64> {
        if self.connections.contains_key(&pair(one, other)) {
            return None;
        }
        self.connections_made += 1;
        self.connections.insert(pair(one, other), self.connections_made);
        self.broken.remove(&pair(one, other));
        Some(self.connections_made)
    }

    pub(crate) fn disconnect(&mut self, one: NodeId, other: NodeId) -> Option<u64> {
        self.connections.remove(&pair(one, other))
    }

    /// Breaks a connection that neither end closed.
    pub(crate) fn break_off(&mut self, one: NodeId, other: NodeId) -> Option<u64> {
        let connection = self.disconnect(one, other)?;
        self.broken.insert(pair(one, other));
        Some(connection)
    }

    /// Whether the last connection of two nodes broke.
    pub(crate) fn is_broken(&self, one: NodeId, other: NodeId) -> bool {
        self.broken.contains(&pair(one, other))
    }

    /// Drops everything in flight from `from` to `to` over this connection.
    pub(crate) fn lose(&mut self, from: NodeId, to: NodeId, connection: u64) {
        self.cut.insert((from, to, connection));
    }

    /// Receives something over a connection. Returns whether it is lost.
    pub(crate) fn is_lost(&mut self, from: NodeId, to: NodeId, connection: u64) -> bool {
        let newest = self.newest.entry((from, to)).or_default();
        *newest = connection.max(*newest);
        let is_old = connection != 0 && connection < *newest;
        is_old || self.cut.contains(&(from, to, connection))
    }

    /// Returns when a control message that is sent now arrives.
    pub(crate) fn arrival(
        &mut self,
        now: Instant,
        from: NodeId,
        to: NodeId,
        dice: &mut Dice,
    ) -> Instant {
        let arrival = now.max(self.healed_at(from, to)) + self.latency_ns(dice);
        let last = self.last_arrival.entry((from, to)).or_default();
        *last = arrival.max(*last + 1);
        *last
    }

    /// Puts a node into a rack of a pod, without configuring it. The hosts of a rack share one link, as fast as a
    /// host's, for traffic that leaves the rack. The racks of a pod share such a link for traffic that leaves the pod.
    pub(crate) fn hide(&mut self, node: NodeId, rack: u64, pod: u64) {
        self.unannounced.insert(node, Hidden { rack, pod });
    }

    /// Returns when a part of a burst arrives; it queues at each link of its path.
    pub(crate) fn burst(&mut self, now: Instant, from: NodeId, to: NodeId, bytes: u64) -> Instant {
        let both = self.unannounced.get(&from).zip(self.unannounced.get(&to));
        let racks = both.filter(|(a, b)| a.rack != b.rack);
        let pods = both.filter(|(a, b)| a.pod != b.pod);
        let between = [
            racks.map(|(from, _)| Queue::RackOut(from.rack)),
            pods.map(|(from, _)| Queue::PodOut(from.pod)),
            pods.map(|(_, to)| Queue::PodIn(to.pod)),
            racks.map(|(_, to)| Queue::RackIn(to.rack)),
        ];
        let ways = [Queue::HostOut(from)].into_iter().chain(between.into_iter().flatten());
        let mut at = now;
        for queue in ways.chain([Queue::HostIn(to)]) {
            let free = self.bursts_free.entry(queue).or_default();
            *free = at.max(*free) + bytes * 1_000_000_000 / self.link.bytes_per_second.max(1);
            at = *free;
        }
        at = at.max(self.healed_at(from, to)) + self.link.latency_ns;
        let last = self.last_arrival.entry((from, to)).or_default();
        *last = at.max(*last + 1);
        *last
    }

    /// Returns when the last burst ended.
    #[cfg(test)]
    pub(crate) fn last_burst(&self) -> Instant {
        self.bursts_free.values().copied().max().unwrap_or_default()
    }

    /// Half to three times the latency of the link, sometimes twenty times; exactly the latency on a steady network.
    pub(crate) fn latency_ns(&self, dice: &mut Dice) -> u64 {
        let latency = self.link.latency_ns;
        if self.is_steady {
            return latency;
        }
        let longest = if dice.chance(3) { latency * 20 } else { latency * 3 };
        dice.between(latency / 2, longest)
    }

    /// Sends a block of payload, after those that queue at the links of the sender and the receiver.
    pub(crate) fn pass(&mut self, now: Instant, from: NodeId, to: NodeId, bytes: u64) -> Passage {
        let busy_ns = bytes * 1_000_000_000 / self.link.bytes_per_second.max(1);
        let (up_ns, down_ns) =
            (busy_ns * self.slowness(now, from), busy_ns * self.slowness(now, to));
        let uplink = self.uplink_free.entry(from).or_default();
        *uplink = now.max(*uplink) + up_ns;
        let sent = *uplink;
        let downlink = self.downlink_free.entry(to).or_default();
        let first_byte = (sent + self.link.latency_ns).before(up_ns.min(down_ns));
        *downlink =
            (first_byte + down_ns).max(*downlink + down_ns).max(sent + self.link.latency_ns);
        let arrived = *downlink;
        Passage { sent, arrived: arrived.max(self.healed_at(from, to)) }
    }

    /// Slows down the link of a node for a while.
    pub(crate) fn slow_until(&mut self, node: NodeId, times: u64, until: Instant) {
        self.slowed.insert(node, (times, until));
    }

    /// The factor by which a node's link is slower.
    fn slowness(&self, now: Instant, node: NodeId) -> u64 {
        let slowed = self.slowed.get(&node).filter(|(_, until)| now < *until);
        slowed.map_or(1, |(times, _)| *times)
    }

    /// Cuts one direction between two nodes for a while.
    pub(crate) fn cut_until(&mut self, from: NodeId, to: NodeId, until: Instant) {
        let held = self.held.entry((from, to)).or_default();
        *held = until.max(*held);
    }

    /// Reconnects two nodes over a path that is not cut.
    pub(crate) fn reroute(&mut self, one: NodeId, other: NodeId) {
        for way in [(one, other), (other, one)] {
            self.held.remove(&way);
            self.last_arrival.remove(&way);
        }
    }

    /// Returns until when the direction from one node to another is cut, or was.
    pub(crate) fn healed_at(&self, from: NodeId, to: NodeId) -> Instant {
        self.held.get(&(from, to)).copied().unwrap_or_default()
    }
}

fn pair(one: NodeId, other: NodeId) -> (NodeId, NodeId) {
    (one.min(other), one.max(other))
}

/// Assigns hosts to racks.
#[derive(Debug)]
pub(crate) struct Racks {
    /// Separate random numbers, so that racks do not change the other events of a seed.
    dice: Dice,
    count: u64,
    /// Whether nodes survey the network.
    pub(crate) are_surveyed: bool,
}

impl Racks {
    /// Up to three racks. In a quarter of the simulations no node has a rack configured, and in half of these the nodes
    /// survey.
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(!seed);
        let count = dice.below(4);
        let are_surveyed = count == 0 && dice.chance(50);
        Self { dice, count, are_surveyed }
    }

    /// No node has a rack configured.
    pub(crate) fn none() -> Self {
        Self { dice: Dice::new(0), count: 0, are_surveyed: false }
    }

    /// The rack of the next host; some hosts have none configured.
    pub(crate) fn next(&mut self) -> Option<Place> {
        let number = self.dice.below(self.count);
        let is_told = self.count > 0 && self.dice.chance(80);
        // Three racks form two pods.
        let pod = (self.count == 3).then(|| format!("pod{}", number / 2));
        let labels = pod.into_iter().chain([format!("rack{number}")]);
        let groups: Vec<Group> = labels.map(|label| Group { label, carries: 0 }).collect();
        is_told.then(|| Place::new(&groups).ok()).flatten()
    }
}
