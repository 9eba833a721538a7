//! Membership changes: everything that a failed node announced is dropped, and nodes re-announce their own state to new
//! owners.
//!
//! Nodes need no consensus on the membership: holders and requesters re-announce their state when the owners change.

use alloc::vec::Vec;

use super::Node;
use crate::{
    id::NodeId,
    machines::{
        change::Change,
        membership::{Loss, Lost},
    },
    members::Member,
    message::{Announce, Message},
    planted::{self, Bug},
};

impl Node {
    /// A node has connected.
    pub(super) fn meet(&mut self, member: Member) {
        let Some(met) = self.membership.meet(member, &mut self.world) else { return };
        if met.is_back {
            self.directory.merge(self.world.now());
        }
        self.tell_again(&met.change);
    }

    /// A member has reconnected; its last messages may be lost. Both sides drop each other's state and begin anew, so
    /// neither needs to find out which messages were lost.
    pub(super) fn meet_again(&mut self, member: Member) {
        let is_known = self.world.members().contains(member.id);
        if is_known && !planted::has(Bug::TrustsBrokenConnections) {
            self.directory.merge(self.world.now());
            self.forget_node(member.id, false);
            self.pulls_without(member.id);
            self.world.send(member.id, Message::Forgotten);
        }
        self.meet(member);
        self.leaving.ask_anew(member.id, self.copies.table(), &mut self.world);
    }

    pub(super) fn learn(&mut self, from: NodeId, told: &[Member]) {
        if let Some(change) = self.membership.learn(from, told, &mut self.world) {
            self.tell_again(&change);
        }
    }

    pub(super) fn lose(&mut self, node: NodeId, loss: Loss) {
        let lost = self.membership.lose(node, loss, &mut self.world);
        self.go_on_without(lost);
    }

    /// A member left or failed: others take over its work.
    pub(super) fn go_on_without(&mut self, lost: Option<Lost>) {
        let Some(Lost { node, has_left, is_over, change }) = lost else { return };
        self.leaving.stop_unseating(node);
        self.forget_node(node, is_over);
        if !has_left {
            // A leaving node finishes the transfers that it has begun.
            self.pulls_without(node);
        }
        self.tell_again(&change);
        self.leaving.forget_member(node, self.copies.table(), &mut self.world);
    }

    /// A member had declared this node dead and treats it as new. This node does the same with that member.
    pub(super) fn was_forgotten(&mut self, by: NodeId) {
        self.directory.catch_up(self.world.now());
        self.directory.merge(self.world.now());
        self.forget_node(by, false);
        self.pulls_without(by);
        let before = self.world.members().clone();
        self.tell_again(&Change { before, renewed: Some(by) });
        self.leaving.ask_anew(by, self.copies.table(), &mut self.world);
        self.membership.outlive(&mut self.world);
    }

    pub(super) fn expire_members(&mut self) {
        for (node, loss) in self.membership.expire(&mut self.world) {
            self.lose(node, loss);
        }
    }

    /// Drops everything that a node announced and was to do. `is_over` means that its process has ended.
    fn forget_node(&mut self, node: NodeId, is_over: bool) {
        self.tell_directory(|directory, world| directory.member_gone(world, node));
        self.reduces_without(node, is_over);
        self.requests.lists_without(node, &mut self.world);
        for id in self.adoptions.forget_node(node) {
            self.end_if_unwanted(&id);
        }
        self.replicas.forget_node(node);
        self.leaving.unseated(node);
        self.pulls.forget_node(node);
    }

    /// Re-announces this node's state to new owners and to a reconnected node, and repeats its open requests.
    fn tell_again(&mut self, change: &Change) {
        let renewed = change.renewed;
        self.surveys.members_changed(&self.world);
        self.leaving.tell_again(change, &mut self.world);
        self.tell_directory(|directory, world| directory.members_changed(world, renewed));

        // Before the results that are produced under these names, which would otherwise be taken for claims.
        self.reservations.reserve_again(&self.coordinator, change, &mut self.world);
        self.leases.tell_again(change, &mut self.world);
        self.tell_of_copies(change);
        let of_pulls = self.pulls.ids().into_iter().filter_map(|id| self.room_announcement(&id));
        for announce in of_pulls.collect::<Vec<Announce>>() {
            for owner in change.new_owners(&announce.id, &self.world) {
                self.world.send(owner, Message::Announce(announce.clone()));
            }
        }
        self.puts.ask_again(change.renewed, self.copies.table(), &mut self.world);
        for id in self.pulls.ids() {
            if change.new_owner(&id, &self.world).is_some() {
                self.locate_again(&id);
            }
        }
        self.watches.ask_again(change, &mut self.world);
        for id in self.requests.unconfirmed_deletions() {
            if change.new_owner(&id, &self.world).is_some() {
                self.tell_before_deletion(&id);
            }
        }
        self.requests.ask_again(change, &mut self.world);
        self.replicas.ask_again(renewed, &mut self.requests, &mut self.world);
    }
}
