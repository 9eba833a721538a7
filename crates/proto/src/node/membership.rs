//! Membership changes: everything that a failed node announced is dropped, and others take over its
//! work.
//!
//! What new owners need again is in [`super::walk`].

use super::Node;
use crate::{
    id::NodeId,
    machines::{
        membership::{Departure, DepartureReason},
        membership_change::MembershipChange,
    },
    members::Member,
    message::Message,
    mutants::{self, Mutant},
};

impl Node {
    /// A node has connected.
    pub(super) fn peer_up(&mut self, member: Member) {
        self.meet(member, None);
    }

    /// A node has connected. `forgotten` is its id if its state was dropped.
    fn meet(&mut self, member: Member, forgotten: Option<NodeId>) {
        let Some(mut met) = self.membership.peer_up(member, &mut self.world) else { return };
        if met.has_rejoined {
            self.directory.merge(self.world.now());
        }
        met.change.forgotten.extend(forgotten);
        self.members_changed(met.change);
    }

    /// A member has reconnected; its last messages may be lost. Both sides drop each other's state
    /// and begin anew, so neither needs to find out which messages were lost.
    pub(super) fn peer_reconnected(&mut self, member: Member) {
        let is_known = self.world.members().contains(member.id);
        let forgotten = is_known && !mutants::is_active(Mutant::TrustsBrokenConnections);
        if forgotten {
            self.directory.merge(self.world.now());
            self.forget_node(member.id, false);
            self.reroute_pulls(member.id);
            self.world.send(member.id, Message::StateDropped);
        }
        self.meet(member, Some(member.id).filter(|_| forgotten));
    }

    pub(super) fn learn(&mut self, from: NodeId, told: &[Member]) {
        if let Some(change) = self.membership.learn(from, told, &mut self.world) {
            self.members_changed(change);
        }
    }

    pub(super) fn remove_member(&mut self, node: NodeId, reason: DepartureReason) {
        let departure = self.membership.remove_member(node, reason, &mut self.world);
        self.handle_departure(departure);
    }

    /// A member left or failed: others take over its work.
    pub(super) fn handle_departure(&mut self, departure: Option<Departure>) {
        let Some(Departure { node, has_left, process_ended, mut change }) = departure else {
            return;
        };
        self.coordinator.stop_draining(node);
        self.forget_node(node, process_ended);
        if !has_left {
            // A leaving node finishes the transfers that it has begun.
            self.reroute_pulls(node);
        }
        change.forgotten.insert(node);
        self.members_changed(change);
    }

    /// A member had declared this node dead and treats it as new. This node does the same with that
    /// member.
    pub(super) fn state_dropped(&mut self, by: NodeId) {
        self.directory.catch_up(self.world.now());
        self.directory.merge(self.world.now());
        self.forget_node(by, false);
        self.reroute_pulls(by);
        let mut change = MembershipChange::new(self.world.members().clone(), Some(by));
        change.forgotten.insert(by);
        self.members_changed(change);
        self.membership.refute_failure(&mut self.world);
    }

    /// A member has not replied to a request for too long. The backup owners get the requests too.
    /// Claims are repeated: a backup owner handles them once the member does not reply to it
    /// either.
    pub(super) fn member_unresponsive(&mut self, node: NodeId, is_first: bool) {
        self.claims.primary_unresponsive(node, self.copies.table(), &mut self.world);
        if !is_first {
            return;
        }
        // It may be that one request gets no reply at once. The reply to this one ends that.
        self.world.probe(node);
        if self.world.is_prober_of(node) {
            // Lookups that it has registered elsewhere go to the backup owners too.
            self.world.probe_by_all(node);
        }
        self.walk.note_unresponsive(&self.world);
    }

    pub(super) fn expire_members(&mut self) {
        for (node, reason) in self.membership.expire(&mut self.world) {
            self.remove_member(node, reason);
        }
    }

    /// Drops everything that a node announced and was to do. `process_ended` means that its process
    /// has ended.
    fn forget_node(&mut self, node: NodeId, process_ended: bool) {
        self.update_directory(|directory, world| directory.member_removed(world, node));
        self.abort_reduces(node, process_ended);
        self.replicas.forget_node(node);
        self.worker.drained(node);
        self.incoming.forget_node(node);
    }
}
