//! Who takes part: nodes are met, lost and told of.
//!
//! Everything the directory knows is told again by those who know it first-hand when its owners change, so
//! nobody has to agree on who is a member.

use alloc::{collections::BTreeSet, string::String, vec::Vec};

use super::{Action, Node};
use crate::{
    id::{NodeId, ObjectId},
    members::{Member, Members},
    message::{Announce, Message},
    planted::{self, Bug},
    swim::{self, Death, Rumour},
};

/// How a member went.
#[derive(Debug)]
pub(super) enum Loss {
    /// It said so.
    Left,
    /// This node found out, and tells the others.
    Found { incarnation: u32, reason: String },
    /// Somebody else did.
    Told { reason: String },
}

impl Node {
    /// A node has introduced itself, or answered when it was called.
    pub(super) fn meet(&mut self, member: Member) {
        if member.id == self.world.me() {
            return;
        }
        let before = self.world.members().clone();
        if self.world.members_mut().insert(member) {
            self.world.act(Action::AddPeer(member));
            for other in before.others().filter(|other| other.id != member.id) {
                self.world.send(other.id, Message::Members(Vec::from([member])));
            }
            self.swim.members_changed(self.world.now(), self.world.members());
        }
        self.absentees.remove(member.id);
        if before.is_departed(member.id) {
            self.directory.merge(self.world.now());
            self.world.send(member.id, Message::Forgotten);
        }
        let all = self.world.members().iter().collect();
        self.world.send(member.id, Message::Members(all));
        // Even if it was known: what was sent to it over a connection that broke may be lost.
        self.tell_again(&before, Some(member.id));
    }

    /// A member has connected anew: what it said last may be lost. Both begin with each other as if they never had met,
    /// so that nobody need know what of all that is said can be lost.
    pub(super) fn meet_again(&mut self, member: Member) {
        let is_known = self.world.members().contains(member.id);
        if is_known && !planted::has(Bug::TrustsBrokenConnections) {
            self.directory.merge(self.world.now());
            self.without(member.id, false);
            self.pulls_without(member.id);
            self.world.send(member.id, Message::Forgotten);
        }
        self.meet(member);
        self.hand_over_anew(member.id);
    }

    /// A member tells of others.
    pub(super) fn learn(&mut self, from: NodeId, told: &[Member]) {
        let before = self.world.members().clone();
        // Of a node that is gone only its own word counts: what others tell may have been said before it went, and
        // two nodes that believed each other's old news would tell it to each other for ever.
        let is_news = |member: &Member| {
            !before.contains(member.id) && (member.id == from || !before.is_departed(member.id))
        };
        let new: Vec<Member> = told.iter().copied().filter(is_news).collect();
        for member in &new {
            self.world.members_mut().insert(*member);
            self.world.act(Action::AddPeer(*member));
        }
        if new.is_empty() {
            return;
        }
        self.swim.members_changed(self.world.now(), self.world.members());
        for other in before.others().filter(|other| other.id != from) {
            self.world.send(other.id, Message::Members(new.clone()));
        }
        for member in new {
            self.world.send(member.id, Message::Members(Vec::from([self.world.my_member()])));
        }
        self.tell_again(&before, None);
    }

    /// The connection to a node broke for good, or for now.
    pub(super) fn peer_lost(&mut self, node: NodeId, is_dead: bool) {
        if is_dead || self.world.config().detection_ns.is_none() {
            // Nothing that it said before will be said by it again.
            let (incarnation, reason) = (u32::MAX, String::from("its process is gone"));
            self.lose(node, Loss::Found { incarnation, reason });
        } else {
            self.doubt(node);
        }
    }

    fn doubt(&mut self, node: NodeId) {
        let mut mail = Vec::new();
        self.swim.doubt(self.world.now(), node, self.world.members(), &mut mail);
        self.spread(mail);
    }

    /// A node is no member any more.
    pub(super) fn lose(&mut self, node: NodeId, loss: Loss) {
        let Some(member) = self.world.members().iter().find(|member| member.id == node) else {
            return;
        };
        let before = self.world.members().clone();
        if !self.world.members_mut().remove(node) {
            return;
        }
        let has_left = matches!(loss, Loss::Left);
        self.world.act(Action::DropPeer { node, has_left });
        let is_over = has_left || matches!(loss, Loss::Found { incarnation: u32::MAX, .. });
        if let Loss::Found { incarnation, reason } = &loss {
            for other in self.world.members().others().map(|other| other.id).collect::<Vec<_>>() {
                let (incarnation, reason) = (*incarnation, reason.clone());
                self.world.send(other, Message::Down { node, incarnation, reason });
            }
        }
        match loss {
            Loss::Left => {}
            _ if planted::has(Bug::NeverCallsTheLost) => {}
            Loss::Found { reason, .. } | Loss::Told { reason } => {
                self.absentees.insert(self.world.now(), member, reason);
            }
        }
        self.swim.members_changed(self.world.now(), self.world.members());
        self.unseating.remove(&node);
        self.without(node, is_over);
        if !has_left {
            // Who leaves sends what it has begun to send.
            self.pulls_without(node);
        }
        self.tell_again(&before, None);
        self.hand_over_again(node);
    }

    /// Whatever a node has said, and was to do, is void; `is_over` if its process is, so that it does nothing more.
    fn without(&mut self, node: NodeId, is_over: bool) {
        let mut mail = Vec::new();
        self.directory.member_gone(self.world.now(), node, self.world.members(), &mut mail);
        self.world.post(mail);
        self.reduces_without(node, is_over);
        self.lists_without(node);
        let owed = self.adoptions.iter().filter(|(_, adoption)| adoption.asker == node);
        for id in owed.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            self.adoptions.remove(&id);
            self.end_if_unwanted(&id);
        }
        self.keepers_without(node);
        self.unseated(node);
        self.corrupt.remove(&node);
    }

    /// A member had given this node up, and takes it for a new one: so is that member for this node.
    pub(super) fn was_forgotten(&mut self, by: NodeId) {
        self.directory.catch_up(self.world.now());
        self.directory.merge(self.world.now());
        self.without(by, false);
        self.pulls_without(by);
        let before = self.world.members().clone();
        self.tell_again(&before, Some(by));
        self.hand_over_anew(by);
        let mut mail = Vec::new();
        self.swim.forgotten(self.world.members(), &mut mail);
        self.spread(mail);
    }

    pub(super) fn told_down(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: u32,
        reason: String,
    ) {
        if node == self.world.me() {
            // Whoever believes that learns otherwise.
            self.world.send(from, Message::Members(Vec::from([self.world.my_member()])));
        } else if incarnation == u32::MAX {
            // It refused the sender's call. If its process is over this node hears so itself; and if not, as where only the
            // sender's way to it is barred, it answers.
            self.doubt(node);
        } else if self.swim.is_refuted(node, incarnation) {
            let incarnation = self.swim.incarnation_of(node);
            self.world.send(from, Message::Rumour(Rumour::Alive { node, incarnation }));
        } else {
            self.lose(node, Loss::Told { reason });
        }
    }

    pub(super) fn hear_rumour(&mut self, from: NodeId, rumour: Rumour) {
        let mut mail = Vec::new();
        self.swim.handle(self.world.now(), from, rumour, self.world.members(), &mut mail);
        self.spread(mail);
    }

    fn spread(&mut self, mail: swim::Mail) {
        for (to, rumour) in mail {
            self.world.send(to, Message::Rumour(rumour));
        }
    }

    /// Probes members, gives up those that are silent, and calls the lost.
    pub(super) fn expire_members(&mut self) {
        let mut mail = Vec::new();
        let dead = self.swim.expire(self.world.now(), self.world.members(), &mut mail);
        self.spread(mail);
        for Death { node, incarnation, reason, is_mine } in dead {
            let loss =
                if is_mine { Loss::Found { incarnation, reason } } else { Loss::Told { reason } };
            self.lose(node, loss);
        }
        while let Some(member) = self.absentees.expire(self.world.now()) {
            self.world.act(Action::Call(member));
        }
    }

    /// Tells the owners that were not owners before, and `renewed` in any case, all that this node knows
    /// first-hand; asks them what it still wants to know.
    fn tell_again(&mut self, before: &Members, renewed: Option<NodeId>) {
        self.tell_of_leaving(before, renewed);
        let mut mail = Vec::new();
        self.directory.members_changed(self.world.now(), self.world.members(), renewed, &mut mail);
        self.world.post(mail);

        // Before the results that are made under them, for which they would be taken otherwise.
        self.reserve_again(before, renewed);
        let of_copies = self
            .table
            .iter()
            .filter(|(instance, copy)| self.table.current(&copy.id) == Some(*instance))
            .filter(|_| !planted::has(Bug::TellsNewOwnersNothing))
            .filter(|(_, copy)| !self.new_owners(&copy.id, before, renewed).is_empty())
            .filter_map(|(instance, _)| self.announcement(instance));
        let of_pulls = self.sought().into_iter().filter_map(|id| self.room_announcement(&id));
        for announce in of_copies.chain(of_pulls).collect::<Vec<Announce>>() {
            for owner in self.new_owners(&announce.id, before, renewed) {
                self.world.send(owner, Message::Announce(announce.clone()));
            }
        }
        self.ask_for_names_again(renewed);
        for id in self.sought() {
            if self.new_owner(&id, before, renewed).is_some() {
                self.locate_again(&id);
            }
        }
        let watched: BTreeSet<ObjectId> = self
            .watches
            .keys()
            .chain(self.awaited.keys())
            .chain(self.undecided())
            .cloned()
            .collect();
        for id in watched {
            if self.new_owner(&id, before, renewed).is_some() {
                self.watch(id);
            }
        }
        for (request, id) in self.unconfirmed_deletions() {
            if let Some(owner) = self.new_owner(&id, before, renewed) {
                self.world.send(owner, Message::Delete { id, request });
            }
        }
        for (id, question) in self.owner_questions() {
            if let Some(owner) = self.new_owner(&id, before, renewed) {
                self.world.send(owner, question);
            }
        }
        self.keep_again(renewed);
    }

    /// The owners of `id` that were none before or have to be told anew.
    fn new_owners(&self, id: &ObjectId, before: &Members, renewed: Option<NodeId>) -> Vec<NodeId> {
        let (then, now) = (before.owners(id), self.world.members().owners(id));
        let is_new = |owner: &NodeId| !then.contains(*owner) || renewed == Some(*owner);
        now.iter().filter(is_new).collect()
    }

    /// The first owner of `id`, if it was not that before or has to be told anew.
    pub(super) fn new_owner(
        &self,
        id: &ObjectId,
        before: &Members,
        renewed: Option<NodeId>,
    ) -> Option<NodeId> {
        let (then, now) = (before.owners(id).first, self.world.members().owners(id).first);
        (then != now || renewed == Some(now)).then_some(now)
    }
}
