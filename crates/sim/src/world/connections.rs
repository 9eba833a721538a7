//! Simulates control connections between nodes: who connects, what arrives, and what is lost when one breaks.

use hoplite_proto::{
    failed_members::ReconnectFailure,
    id::NodeId,
    message::Message,
    node::{Action, Event},
    question::Answer,
};
use hoplite_survey::FILLING_BYTES;

use super::{Packet, SimEvent, World};
use crate::verdict::Mutation;

impl World {
    pub(super) fn arrive(&mut self, from: NodeId, to: NodeId, connection: u64, parcel: Packet) {
        if !self.is_up(to) || self.net.is_lost(from, to, connection) {
            return;
        }
        if self.is_barred(from, to) && !matches!(parcel, Packet::Broken) {
            return;
        }
        match parcel {
            Packet::Hello(member) | Packet::HelloReconnect(member) => {
                if let Some(host) = self.hosts.get(&to) {
                    let back = Packet::HelloBack(host.member);
                    self.transmit(to, from, connection, back);
                }
                let is_again = matches!(parcel, Packet::HelloReconnect(_));
                self.deliver(
                    to,
                    if is_again {
                        Event::PeerReconnected { member }
                    } else {
                        Event::PeerUp { member }
                    },
                );
            }
            Packet::HelloBack(member) => self.deliver(to, Event::PeerUp { member }),
            Packet::Message(message) => {
                if let Some(host) = self.hosts.get_mut(&to) {
                    host.heard += 1;
                }
                let event = self.event_of(from, to, message);
                self.deliver(to, event);
            }
            Packet::Broken => {
                if self.net.connection(from, to) == Some(connection) {
                    self.net.disconnect(from, to);
                }
                let is_member =
                    self.hosts.get(&to).is_some_and(|host| host.node.members().contains(from));
                if self.is_up(from) {
                    // The node itself decides when to reconnect to a member that it has declared dead.
                    if is_member {
                        self.dial(to, from);
                    }
                } else {
                    self.deliver(to, Event::PeerUnreachable { node: from, is_dead: true });
                }
            }
        }
    }

    /// Opens a connection, unless one exists.
    pub(crate) fn dial(&mut self, from: NodeId, to: NodeId) {
        if self.is_barred(from, to) {
            // The handshake is refused, and the shell tries again.
            return;
        }
        let Some(member) = self.hosts.get(&from).map(|host| host.member) else { return };
        let is_again = self.net.is_broken(from, to);
        let Some(connection) = self.net.connect(from, to) else { return };
        if self.is_up(to) {
            let hello = if is_again { Packet::HelloReconnect } else { Packet::Hello };
            self.transmit(from, to, connection, hello(member));
        } else {
            // Refused or no reply; the queued messages are lost.
            self.transmit(to, from, connection, Packet::Broken);
        }
    }

    /// Tries to reach a lost node.
    fn reconnect(&mut self, from: NodeId, to: NodeId) {
        if self.is_up(to) && !self.is_barred(from, to) {
            self.dial(from, to);
        } else {
            let delay_ns = self.passage_ns(from, to);
            let event = Event::ReconnectFailed { node: to, failure: ReconnectFailure::Refused };
            self.after(delay_ns, SimEvent::Deliver { node: from, event });
        }
    }

    pub(super) fn transmit(&mut self, from: NodeId, to: NodeId, connection: u64, parcel: Packet) {
        let at = match &parcel {
            Packet::Message(Message::Survey(part)) if part.len() >= FILLING_BYTES => {
                self.net.burst(self.now, from, to, part.len())
            }
            _ => self.net.arrival(self.now, from, to, &mut self.dice),
        };
        self.at(at, SimEvent::Arrive { from, to, connection, parcel });
    }

    pub(crate) fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        if self.sabotage == Some(Mutation::LosesMessage)
            && matches!(message, Message::Answer { answer: Answer::Located(_), .. })
        {
            return;
        }
        self.pass_message(from, &message);
        self.dial(from, to);
        if let Some(connection) = self.net.connection(from, to) {
            self.transmit(from, to, connection, Packet::Message(message));
        }
    }

    /// Breaks a connection: messages in flight are lost, and both sides notice it a little later.
    pub(crate) fn break_connection(&mut self, one: NodeId, other: NodeId) {
        let Some(connection) = self.net.break_off(one, other) else { return };
        for (from, to) in [(one, other), (other, one)] {
            self.net.lose(from, to, connection);
            let delay_ns = self.passage_ns(from, to);
            // Connection 0 for the notification, because messages of the old connection are lost.
            let news = SimEvent::Arrive { from, to, connection: 0, parcel: Packet::Broken };
            self.after(delay_ns, news);
        }
    }

    /// Closes a node's connection to another one.
    pub(crate) fn hang_up(&mut self, from: NodeId, to: NodeId) {
        if let Some(connection) = self.net.disconnect(from, to) {
            self.net.lose(to, from, connection);
            if self.is_up(to) {
                self.transmit(from, to, connection, Packet::Broken);
            }
        }
    }

    pub(crate) fn carry_out_peer(&mut self, node: NodeId, action: Action) {
        match action {
            Action::Send { to, message } => self.send(node, to, message),
            Action::AddPeer(member) => {
                self.dial(node, member.id);
                self.members_surveyed(node);
            }
            Action::DropPeer { node: peer, .. } => {
                self.hang_up(node, peer);
                self.members_surveyed(node);
            }
            Action::Reconnect(member) => self.reconnect(node, member.id),
            Action::Left { .. } => self.stop_host(node, false),
            _ => {}
        }
    }
}
