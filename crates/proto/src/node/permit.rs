//! Who may say what: the one place at which a message is refused before any machine sees it.
//!
//! A member is believed in what it says of itself. Of others and of their objects each message may be said by the members that
//! [`Kind::speaker`] names, as far as this node can tell. Members do not always agree on who is one, and so on who owns what:
//! what the owner of before or of later says is refused too, and is said again by the owner of now, which every node asks and
//! tells anew when members change. What can't be told from the truth may be said by any member, and is harmless: the file
//! that takes it says why. The table with its reasons is in docs/security.md.

use super::{Node, requests::Waiting};
use crate::{
    directory::prefix_owner,
    id::{Instance, Name, NodeId, ObjectId, ReduceId},
    message::{Announce, Message},
    reduce::Reduce,
};

/// The members that may say a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// Any member: it speaks of itself, or does no more than every member may do.
    Member,
    /// The member that has the copy. One that claims a name for an object has made it; and of what the receiver itself
    /// makes nothing is told that it has not made.
    Holder,
    /// The member that makes the object.
    Maker,
    /// One of the two owners of the object.
    Owner,
    /// The member that was asked.
    Asked,
    /// The member that asked.
    Asker,
    /// The coordinator of the reduce.
    Coordinator,
    /// A member that has a seat in this attempt of the reduce.
    Seat,
}

impl Speaker {
    /// As docs/security.md has it.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Member => "any member",
            Self::Holder => "the holder itself",
            Self::Maker => "the maker",
            Self::Owner => "an owner",
            Self::Asked => "the member that was asked",
            Self::Asker => "the member that asked",
            Self::Coordinator => "the coordinator",
            Self::Seat => "a seat of the attempt",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident: $speaker:ident,)*) => {
        /// What a message is, without what it says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Kind { $($kind,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Which members may say it.
            pub const fn speaker(self) -> Speaker {
                match self { $(Self::$kind => Speaker::$speaker,)* }
            }

            /// Of a message.
            pub const fn of(message: &Message) -> Self {
                match message { $(Message::$kind { .. } => Self::$kind,)* }
            }
        }
    };
}

kinds! {
    Members: Member,
    Leaving: Member,
    Unseated: Member,
    Leave: Member,
    Down: Member,
    Forgotten: Member,
    Rumour: Member,
    Announce: Holder,
    Claimed: Asked,
    Withdraw: Member,
    Locate: Member,
    Unlocate: Member,
    Paced: Member,
    Slow: Member,
    Waiting: Owner,
    Located: Owner,
    Redirect: Owner,
    Gone: Owner,
    Watch: Member,
    Unwatch: Member,
    Found: Owner,
    Locations: Member,
    Unlocations: Member,
    LocationsAre: Asked,
    Reserve: Maker,
    Delete: Member,
    Deleted: Owner,
    Drop: Owner,
    Stranded: Owner,
    Doubted: Member,
    Dropped: Member,
    Fail: Maker,
    Abandon: Member,
    Remember: Member,
    Latest: Member,
    Unlatest: Member,
    LatestIs: Asked,
    NothingYet: Asked,
    Older: Member,
    OlderAre: Asked,
    List: Member,
    ListIs: Asked,
    Leased: Member,
    Covers: Member,
    JobEnded: Owner,
    Fold: Coordinator,
    Scatter: Coordinator,
    Unfold: Coordinator,
    FoldStarves: Seat,
    FoldProbe: Coordinator,
    FoldAlive: Seat,
    FoldFailed: Seat,
    Adopt: Member,
    Adopted: Asked,
    Unkeep: Asker,
    Measure: Member,
    Burst: Member,
    BurstCame: Member,
    Measured: Member,
    Places: Member,
}

impl Node {
    /// Whether what a member says can be true, and is its to say.
    pub(super) fn may_say(&self, from: NodeId, message: &Message) -> bool {
        if from == self.world.me() {
            return message.is_sound();
        }
        // Of two owners that give two objects one instance, this node can't tell which lies. What an owner finds at another node
        // needs nothing of what is here.
        let is_told_anew = |instance: Instance| match message {
            Message::Located { .. } => self.makes_way(instance),
            Message::Found { found: Some(found), .. } => {
                let me = self.world.me();
                found.holder != me && instance.node != me
            }
            _ => false,
        };
        let is_another = |(id, instance): (&ObjectId, Instance)| {
            instance.node != from && self.is_another(id, instance) && !is_told_anew(instance)
        };
        message.is_sound()
            && !message.instances().any(is_another)
            && match Kind::of(message).speaker() {
                Speaker::Member => true,
                Speaker::Holder => self.may_announce(from, message),
                Speaker::Maker => is_made_by(from, message),
                Speaker::Owner if matches!(message, Message::JobEnded { .. }) => {
                    self.owns_job(from, message)
                }
                Speaker::Owner => {
                    message.spoken_of().is_none_or(|id| self.is_owner(from, id))
                        || self.has_dropped(message)
                }
                Speaker::Asked => self.was_asked(from, message),
                Speaker::Asker => self.has_asked(from, message),
                Speaker::Coordinator => {
                    message.reduce().is_none_or(|(reduce, _)| reduce.node == from)
                }
                Speaker::Seat => self.has_seat(from, message),
            }
    }

    /// Whether this node knows an instance as that of another object: of that, others may say what is said here. Its maker
    /// knows what it is.
    fn is_another(&self, id: &ObjectId, instance: Instance) -> bool {
        let copied = self.table.get(instance).map(|copy| &copy.id);
        let put = copied.or_else(|| self.puts.id_of(instance));
        let is_mine = instance.node == self.world.me();
        let kept_for = || is_mine.then(|| self.names.reduce_of(instance)).flatten();
        let known = put.or_else(|| self.coordinator.get(kept_for()?).map(Reduce::result));
        known.is_some_and(|known| known != id)
    }

    fn is_owner(&self, node: NodeId, id: &ObjectId) -> bool {
        id.minter() == Some(node) || self.world.members().owners(id).contains(node)
    }

    /// Whether a copy that is to be dropped is not here: then its end harms nothing, and an owner of before or of later hears
    /// of it, which would wait for that.
    fn has_dropped(&self, message: &Message) -> bool {
        let Message::Drop { id, instance, error: Some(_) } = message else { return false };
        self.table.get(*instance).is_none()
            && !self.pull_awaits_room_for(id, *instance)
            && !self.puts.contains(*instance)
            && !self.scatters.contains(*instance)
            && self.names.reduce_of(*instance).is_none()
    }

    fn owns_job(&self, node: NodeId, message: &Message) -> bool {
        let Message::JobEnded { job } = message else { return true };
        self.is_owner(node, &ObjectId::Named(job.clone()))
    }

    fn may_announce(&self, from: NodeId, message: &Message) -> bool {
        let Message::Announce(Announce { instance, claim, .. }) = message else { return true };
        (!claim || instance.node == from) && !self.world.is_unmade(*instance)
    }

    /// Whether an answer comes from the node that was asked, and can be one. Of a question that is over it says nothing.
    fn was_asked(&self, from: NodeId, message: &Message) -> bool {
        match message {
            Message::Claimed { id, instance, .. } => {
                let is_owner =
                    self.names.reduce_of(*instance).is_none_or(|_| self.is_owner(from, id));
                is_owner && self.puts.asked_for_name(*instance).is_none_or(|asked| asked == from)
            }
            Message::LocationsAre { request, .. } | Message::NothingYet { request, .. } => {
                self.requests.kind(*request).is_none_or(|kind| match kind {
                    Waiting::Locations { id, .. } => self.is_owner(from, id),
                    Waiting::Latest { prefix, .. } => self.owns_names(from, prefix),
                    _ => false,
                })
            }
            Message::LatestIs { name, request } => match self.requests.kind(*request) {
                Some(Waiting::Latest { prefix, after, .. }) => {
                    let is_under = prefix.strip_suffix('/') == Some(name.group());
                    let is_newer =
                        name.version().is_some_and(|it| after.is_none_or(|after| it > after));
                    is_under && is_newer && self.owns_names(from, prefix)
                }
                other => other.is_none(),
            },
            Message::OlderAre { names, request } => match self.requests.kind(*request) {
                Some(Waiting::Older { name, .. }) => {
                    let is_older = |other: &Name| {
                        other.group() == name.group()
                            && other.version().zip(name.version()).is_some_and(|(it, of)| it < of)
                    };
                    names.iter().all(is_older)
                        && self.is_owner(from, &ObjectId::Named(name.clone()))
                }
                other => other.is_none(),
            },
            Message::ListIs { request, .. } => self
                .requests
                .kind(*request)
                .is_none_or(|kind| matches!(kind, Waiting::Page { owner } if *owner == from)),
            _ => true,
        }
    }

    fn owns_names(&self, node: NodeId, prefix: &str) -> bool {
        prefix_owner(prefix, self.world.members()) == Some(node)
    }

    fn has_asked(&self, from: NodeId, message: &Message) -> bool {
        let Message::Unkeep { instance, .. } = message else { return true };
        self.adoptions.asker(*instance).is_none_or(|asker| asker == from)
    }

    /// Whether a node was ordered to fold in this attempt of a reduce. What is said of another attempt is not listened to.
    fn has_seat(&self, from: NodeId, message: &Message) -> bool {
        let Some((reduce, epoch)) = message.reduce() else { return true };
        let Some(reduce) = self.coordinator.current(reduce, epoch) else { return true };
        let nodes = reduce.nodes();
        let is_seat = |node: NodeId| node == self.world.me() || nodes.contains(&node);
        let is_of_seats = match message {
            Message::FoldStarves { node, .. } => is_seat(*node),
            _ => true,
        };
        is_of_seats && is_seat(from)
    }
}

/// Whether `from` makes what a message says is made, or won't be.
fn is_made_by(from: NodeId, message: &Message) -> bool {
    match message {
        Message::Reserve { instance, .. } => instance.node == from,
        // Who makes what has a name its owner knows.
        Message::Fail { id, .. } => id.minter().is_none_or(|minter| minter == from),
        _ => true,
    }
}

impl Message {
    /// The object of which an owner says something.
    const fn spoken_of(&self) -> Option<&ObjectId> {
        match self {
            Self::Waiting { id }
            | Self::Located { id, .. }
            | Self::Redirect { id, .. }
            | Self::Gone { id, .. }
            | Self::Found { id, .. }
            | Self::Deleted { id, .. }
            | Self::Drop { id, .. }
            | Self::Stranded { id, .. } => Some(id),
            _ => None,
        }
    }

    /// The attempt of a reduce that it is about.
    const fn reduce(&self) -> Option<(ReduceId, u32)> {
        match self {
            Self::Fold(order) => Some((order.key.reduce, order.key.epoch)),
            Self::Scatter(order) => Some((order.reduce, order.epoch)),
            Self::Unfold { reduce, epoch, .. }
            | Self::FoldStarves { reduce, epoch, .. }
            | Self::FoldProbe { reduce, epoch }
            | Self::FoldAlive { reduce, epoch }
            | Self::FoldFailed { reduce, epoch, .. } => Some((*reduce, *epoch)),
            _ => None,
        }
    }
}
