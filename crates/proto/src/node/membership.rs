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
    pub(super) fn meet(&mut self, member: Member, out: &mut Vec<Action>) {
        if member.id == self.me.id {
            return;
        }
        let before = self.members.clone();
        if self.members.insert(member) {
            out.push(Action::AddPeer(member));
            for other in before.others().filter(|other| other.id != member.id) {
                self.send(other.id, Message::Members(Vec::from([member])), out);
            }
            self.swim.members_changed(self.now, &self.members);
        }
        self.absentees.remove(member.id);
        if before.is_departed(member.id) {
            self.directory.merge(self.now);
            self.send(member.id, Message::Forgotten, out);
        }
        let all = self.members.iter().collect();
        self.send(member.id, Message::Members(all), out);
        // Even if it was known: what was sent to it over a connection that broke may be lost.
        self.tell_again(&before, Some(member.id), out);
    }

    /// A member has connected anew: what it said last may be lost. Both begin with each other as if they never had met,
    /// so that nobody need know what of all that is said can be lost.
    pub(super) fn meet_again(&mut self, member: Member, out: &mut Vec<Action>) {
        let is_known = self.members.contains(member.id);
        if is_known && !planted::has(Bug::TrustsBrokenConnections) {
            self.directory.merge(self.now);
            self.without(member.id, false, out);
            self.pulls_without(member.id, out);
            self.send(member.id, Message::Forgotten, out);
        }
        self.meet(member, out);
        self.hand_over_anew(member.id, out);
    }

    /// A member tells of others.
    pub(super) fn learn(&mut self, from: NodeId, told: &[Member], out: &mut Vec<Action>) {
        let before = self.members.clone();
        // Of a node that is gone only its own word counts: what others tell may have been said before it went, and
        // two nodes that believed each other's old news would tell it to each other for ever.
        let is_news = |member: &Member| {
            !before.contains(member.id) && (member.id == from || !before.is_departed(member.id))
        };
        let new: Vec<Member> = told.iter().copied().filter(is_news).collect();
        for member in &new {
            self.members.insert(*member);
            out.push(Action::AddPeer(*member));
        }
        if new.is_empty() {
            return;
        }
        self.swim.members_changed(self.now, &self.members);
        for other in before.others().filter(|other| other.id != from) {
            self.send(other.id, Message::Members(new.clone()), out);
        }
        for member in new {
            self.send(member.id, Message::Members(Vec::from([self.me])), out);
        }
        self.tell_again(&before, None, out);
    }

    /// The connection to a node broke for good, or for now.
    pub(super) fn peer_lost(&mut self, node: NodeId, is_dead: bool, out: &mut Vec<Action>) {
        if is_dead || self.config.detection_ns.is_none() {
            // Nothing that it said before will be said by it again.
            let (incarnation, reason) = (u32::MAX, String::from("its process is gone"));
            self.lose(node, Loss::Found { incarnation, reason }, out);
        } else {
            self.doubt(node, out);
        }
    }

    fn doubt(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let mut mail = Vec::new();
        self.swim.doubt(self.now, node, &self.members, &mut mail);
        self.spread(mail, out);
    }

    /// A node is no member any more.
    pub(super) fn lose(&mut self, node: NodeId, loss: Loss, out: &mut Vec<Action>) {
        let Some(member) = self.members.iter().find(|member| member.id == node) else { return };
        let before = self.members.clone();
        if !self.members.remove(node) {
            return;
        }
        let has_left = matches!(loss, Loss::Left);
        out.push(Action::DropPeer { node, has_left });
        let is_over = has_left || matches!(loss, Loss::Found { incarnation: u32::MAX, .. });
        if let Loss::Found { incarnation, reason } = &loss {
            for other in self.members.others().map(|other| other.id).collect::<Vec<_>>() {
                let (incarnation, reason) = (*incarnation, reason.clone());
                self.send(other, Message::Down { node, incarnation, reason }, out);
            }
        }
        match loss {
            Loss::Left => {}
            _ if planted::has(Bug::NeverCallsTheLost) => {}
            Loss::Found { reason, .. } | Loss::Told { reason } => {
                self.absentees.insert(self.now, member, reason);
            }
        }
        self.swim.members_changed(self.now, &self.members);
        self.unseating.remove(&node);
        self.without(node, is_over, out);
        if !has_left {
            // Who leaves sends what it has begun to send.
            self.pulls_without(node, out);
        }
        self.tell_again(&before, None, out);
        self.hand_over_again(node, out);
    }

    /// Whatever a node has said, and was to do, is void; `is_over` if its process is, so that it does nothing more.
    fn without(&mut self, node: NodeId, is_over: bool, out: &mut Vec<Action>) {
        self.directory.member_gone(node, &self.members);
        self.reduces_without(node, is_over, out);
        self.lists_without(node, out);
        let owed = self.adoptions.iter().filter(|(_, adoption)| adoption.asker == node);
        for id in owed.map(|(id, _)| id.clone()).collect::<Vec<ObjectId>>() {
            self.adoptions.remove(&id);
            self.end_if_unwanted(&id, out);
        }
        self.keepers_without(node);
        self.unseated(node);
        self.corrupt.remove(&node);
    }

    /// A member had given this node up, and takes it for a new one: so is that member for this node.
    pub(super) fn was_forgotten(&mut self, by: NodeId, out: &mut Vec<Action>) {
        self.directory.catch_up(self.now);
        self.directory.merge(self.now);
        self.without(by, false, out);
        self.pulls_without(by, out);
        let before = self.members.clone();
        self.tell_again(&before, Some(by), out);
        self.hand_over_anew(by, out);
        let mut mail = Vec::new();
        self.swim.forgotten(&self.members, &mut mail);
        self.spread(mail, out);
    }

    pub(super) fn told_down(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: u32,
        reason: String,
        out: &mut Vec<Action>,
    ) {
        if node == self.me.id {
            // Whoever believes that learns otherwise.
            self.send(from, Message::Members(Vec::from([self.me])), out);
        } else if incarnation == u32::MAX {
            // It refused the sender's call. If its process is over this node hears so itself; and if not, as where only the
            // sender's way to it is barred, it answers.
            self.doubt(node, out);
        } else if self.swim.is_refuted(node, incarnation) {
            let incarnation = self.swim.incarnation_of(node);
            self.send(from, Message::Rumour(Rumour::Alive { node, incarnation }), out);
        } else {
            self.lose(node, Loss::Told { reason }, out);
        }
    }

    pub(super) fn hear_rumour(&mut self, from: NodeId, rumour: Rumour, out: &mut Vec<Action>) {
        let mut mail = Vec::new();
        self.swim.handle(self.now, from, rumour, &self.members, &mut mail);
        self.spread(mail, out);
    }

    fn spread(&mut self, mail: swim::Mail, out: &mut Vec<Action>) {
        for (to, rumour) in mail {
            self.send(to, Message::Rumour(rumour), out);
        }
    }

    /// Probes members, gives up those that are silent, and calls the lost.
    pub(super) fn expire_members(&mut self, out: &mut Vec<Action>) {
        let mut mail = Vec::new();
        let dead = self.swim.expire(self.now, &self.members, &mut mail);
        self.spread(mail, out);
        for Death { node, incarnation, reason, is_mine } in dead {
            let loss =
                if is_mine { Loss::Found { incarnation, reason } } else { Loss::Told { reason } };
            self.lose(node, loss, out);
        }
        while let Some(member) = self.absentees.expire(self.now) {
            out.push(Action::Call(member));
        }
    }

    /// Tells the owners that were not owners before, and `renewed` in any case, all that this node knows
    /// first-hand; asks them what it still wants to know.
    fn tell_again(&mut self, before: &Members, renewed: Option<NodeId>, out: &mut Vec<Action>) {
        self.tell_of_leaving(before, renewed, out);
        let mut mail = Vec::new();
        self.directory.members_changed(self.now, &self.members, renewed, &mut mail);
        self.post(mail, out);

        // Before the results that are made under them, for which they would be taken otherwise.
        self.reserve_again(before, renewed, out);
        self.tell_of_copies(before, renewed, out);
        let of_pulls = self.sought().into_iter().filter_map(|id| self.room_announcement(&id));
        for announce in of_pulls.collect::<Vec<Announce>>() {
            for owner in self.new_owners(&announce.id, before, renewed) {
                self.send(owner, Message::Announce(announce.clone()), out);
            }
        }
        self.ask_for_names_again(renewed, out);
        for id in self.sought() {
            if self.new_owner(&id, before, renewed).is_some() {
                self.locate_again(&id, out);
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
                self.watch(id, out);
            }
        }
        for (request, id) in self.unconfirmed_deletions() {
            if let Some(owner) = self.new_owner(&id, before, renewed) {
                self.tell_before_deletion(&id, out);
                self.send(owner, Message::Delete { id, request }, out);
            }
        }
        for (id, question) in self.owner_questions() {
            if let Some(owner) = self.new_owner(&id, before, renewed) {
                self.send(owner, question, out);
            }
        }
        self.keep_again(renewed, out);
    }

    /// The owners of `id` that were none before or have to be told anew.
    fn new_owners(&self, id: &ObjectId, before: &Members, renewed: Option<NodeId>) -> Vec<NodeId> {
        let (then, now) = (before.owners(id), self.members.owners(id));
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
        let (then, now) = (before.owners(id).first, self.members.owners(id).first);
        (then != now || renewed == Some(now)).then_some(now)
    }
}
