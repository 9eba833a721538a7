//! What a change of members means: everything that a lost node has said is void, and those who know something first-hand
//! tell it to the owners that are new.
//!
//! Nodes need not agree on who is a member: holders and askers tell the directory again what it knows when its owners change.

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
    /// A node has introduced itself, or answered when it was called.
    pub(super) fn meet(&mut self, member: Member) {
        let Some(met) = self.membership.meet(member, &mut self.world) else { return };
        if met.is_back {
            self.directory.merge(self.world.now());
        }
        self.tell_again(&met.change);
    }

    /// A member has connected anew: what it said last may be lost. Both begin with each other as if they never had met,
    /// so that neither need know which of its messages can be lost.
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

    /// A member may have gone: all others get its work.
    pub(super) fn go_on_without(&mut self, lost: Option<Lost>) {
        let Some(Lost { node, has_left, is_over, change }) = lost else { return };
        self.leaving.stop_unseating(node);
        self.forget_node(node, is_over);
        if !has_left {
            // A node that leaves sends what it has begun to send.
            self.pulls_without(node);
        }
        self.tell_again(&change);
        self.leaving.forget_member(node, self.copies.table(), &mut self.world);
    }

    /// A member had given this node up, and takes it for a new one: so is that member for this node.
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

    /// Forgets all that a node has said and was to do; `is_over` if its process does nothing more.
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

    /// Tells the owners that are new, and the node to be told anew, all that this node knows first-hand; asks them what it
    /// still wants to know.
    fn tell_again(&mut self, change: &Change) {
        let renewed = change.renewed;
        self.surveys.members_changed(&self.world);
        self.leaving.tell_again(change, &mut self.world);
        self.tell_directory(|directory, world| directory.members_changed(world, renewed));

        // Before the results that are made under them, for which they would be taken otherwise.
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
