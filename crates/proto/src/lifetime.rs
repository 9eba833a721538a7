//! Lifetimes of objects that are deleted automatically: after a time to live, with the last client
//! of a job, or with the last lease.
//!
//! Clocks of nodes differ. Messages therefore carry the remaining time, each node counts it by its
//! own clock, and the earliest end wins. An owner of an object decides about its deletion,
//! see [`crate::directory`].

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, ObjectId},
    time::Instant,
};

/// The lifetime of an object in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// Nanoseconds until the deletion, counted from when the message was sent.
    pub remaining_ns: Option<u64>,
    /// Time to live in nanoseconds of an object that is not complete yet.
    pub ttl_ns: Option<u64>,
    /// The job of the client that created the object.
    pub job: Option<Name>,
}

/// The lifetime of an object at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Time to live in nanoseconds, until the object is complete.
    pub ttl_ns: Option<u64>,
    /// When to delete the object, once it is complete.
    pub ends_at: Option<Instant>,
    /// The job of the client that created the object.
    pub job: Option<Name>,
}

/// A lease: clients take it, and its objects are deleted after the last client has ended or
/// returned it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lease {
    /// A job, with all objects that its clients create. Each of its clients takes the lease.
    Job(Name),
    /// One object. Any client can take the lease.
    Object(ObjectId),
}

impl Lease {
    /// The object whose owners are also the owners of the lease.
    pub fn place(&self) -> ObjectId {
        match self {
            Self::Job(name) => ObjectId::Named(name.clone()),
            Self::Object(id) => id.clone(),
        }
    }
}

impl Terms {
    /// The terms of a new object; `None` if it exists until it is deleted and has no job.
    pub fn new(ttl_ns: Option<u64>, job: Option<Name>) -> Option<Box<Self>> {
        let is_bound = ttl_ns.is_some() || job.is_some();
        is_bound.then(|| Box::new(Self { ttl_ns, ends_at: None, job }))
    }

    /// Converts the lifetime in a message of another node.
    pub fn from_lifetime(lifetime: &Lifetime, now: Instant) -> Box<Self> {
        let ends_at = lifetime.remaining_ns.map(|left| now + left);
        Box::new(Self { ttl_ns: lifetime.ttl_ns, ends_at, job: lifetime.job.clone() })
    }

    /// Starts the time to live, since the object is complete.
    pub fn begin(&mut self, now: Instant) {
        if let Some(ttl) = self.ttl_ns.take() {
            self.ends_at = self.ends_at.into_iter().chain([now + ttl]).min();
        }
    }

    /// The lifetime to send to another node now.
    pub fn to_lifetime(&self, now: Instant) -> Box<Lifetime> {
        let remaining_ns = self.ends_at.map(|at| at.since(now));
        let ttl_ns = self.ttl_ns.filter(|_| remaining_ns.is_none());
        Box::new(Lifetime { remaining_ns, ttl_ns, job: self.job.clone() })
    }

    /// Merges the terms from another node. Reported times can only be too late, so the earlier end
    /// is the correct one.
    pub fn join(&mut self, other: &Self) {
        self.ends_at = self.ends_at.into_iter().chain(other.ends_at).min();
        // A node that received the object while it grew counts from the completion of its own copy.
        self.ttl_ns = self.ttl_ns.or(other.ttl_ns).filter(|_| self.ends_at.is_none());
        if self.job.is_none() {
            self.job.clone_from(&other.job);
        }
    }

    /// The job whose end deletes the object.
    pub fn lease(&self) -> Option<&Name> {
        self.job.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000);

    #[test]
    fn time_runs_from_when_the_object_is_complete() {
        let mut terms = Terms::new(Some(500), None).expect("it has a time");
        assert_eq!(terms.to_lifetime(NOW).remaining_ns, None);
        terms.begin(NOW);
        terms.begin(NOW + 100);
        assert_eq!(terms.to_lifetime(NOW + 100).remaining_ns, Some(400));
        assert_eq!(terms.to_lifetime(NOW + 501).remaining_ns, Some(0));
        assert_eq!(Terms::new(None, None), None);
    }

    #[test]
    fn the_earlier_end_counts_and_a_long_time_does_not_overflow() {
        let lifetime = |remaining_ns| {
            Terms::from_lifetime(&Lifetime { remaining_ns, ttl_ns: None, job: None }, NOW)
        };
        let mut terms = lifetime(None);
        terms.join(&lifetime(Some(u64::MAX)));
        terms.join(&lifetime(Some(7)));
        terms.join(&lifetime(None));
        assert_eq!(terms.ends_at, Some(NOW + 7));
    }

    #[test]
    fn a_holder_of_a_partial_copy_gets_the_time_to_live() {
        let growing = Terms::new(Some(500), None).expect("it has a time");
        let mut terms = Terms::from_lifetime(&growing.to_lifetime(NOW), NOW);
        assert_eq!((terms.ends_at, terms.ttl_ns), (None, Some(500)));
        terms.begin(NOW + 10);
        terms.join(&Terms::from_lifetime(
            &Lifetime { remaining_ns: Some(490), ttl_ns: None, job: None },
            NOW,
        ));
        assert_eq!((terms.ends_at, terms.ttl_ns), (Some(NOW + 490), None));
    }
}
