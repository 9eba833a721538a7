//! How long an object lives, if not until it is deleted: for a time after it is complete, while a client of a job lives, while
//! a client holds it.
//!
//! Nodes have no clock in common: one tells another how much time is left, each counts by its own clock, and the least
//! counts. Knows neither objects nor who decides; that the first owner of the object does, see [`crate::directory`].

use alloc::boxed::Box;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Name, ObjectId},
    time::Instant,
};

/// The job of a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Job {
    /// What its user calls it.
    pub name: Name,
    /// Whether the objects of the client are deleted when the last client of the job is gone.
    pub cleanup: bool,
}

/// What one node tells another of how long an object lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// Nanoseconds until it is to be deleted, from when this is said.
    pub left_ns: Option<u64>,
    /// Nanoseconds that it is to live from when it is complete, which it was not yet.
    pub ttl_ns: Option<u64>,
    /// The job of the client that made it.
    pub job: Option<Job>,
}

/// How long an object lives, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Nanoseconds that it is to live from when it is complete, as long as it is not.
    pub ttl_ns: Option<u64>,
    /// When it is to be deleted, once it is complete.
    pub ends_at: Option<Instant>,
    /// The job of the client that made it.
    pub job: Option<Job>,
}

/// A reason for which objects live on: the lease is taken by clients, and they are deleted when the last one is gone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lease {
    /// A job: all that its clients have made. Taken by each of its clients.
    Job(Name),
    /// One object, taken by whichever client wants it to live on.
    Object(ObjectId),
}

impl Lease {
    /// Its owners are the nodes that own, or would own, this object.
    pub fn place(&self) -> ObjectId {
        match self {
            Self::Job(name) => ObjectId::Named(name.clone()),
            Self::Object(id) => id.clone(),
        }
    }
}

impl Terms {
    /// Those of what a client makes; none if it lives until it is deleted and is of no job.
    pub fn new(ttl_ns: Option<u64>, job: Option<Job>) -> Option<Box<Self>> {
        let is_bound = ttl_ns.is_some() || job.is_some();
        is_bound.then(|| Box::new(Self { ttl_ns, ends_at: None, job }))
    }

    /// As another node tells them.
    pub fn told(told: &Lifetime, now: Instant) -> Box<Self> {
        let ends_at = told.left_ns.map(|left| now + left);
        Box::new(Self { ttl_ns: told.ttl_ns, ends_at, job: told.job.clone() })
    }

    /// The object is complete: its time runs.
    pub fn begin(&mut self, now: Instant) {
        if let Some(ttl) = self.ttl_ns.take() {
            self.ends_at = self.ends_at.into_iter().chain([now + ttl]).min();
        }
    }

    /// What to tell another node now.
    pub fn tell(&self, now: Instant) -> Box<Lifetime> {
        let left_ns = self.ends_at.map(|at| at.since(now));
        let ttl_ns = self.ttl_ns.filter(|_| left_ns.is_none());
        Box::new(Lifetime { left_ns, ttl_ns, job: self.job.clone() })
    }

    /// Another node tells of the same object. What it says comes late rather than early: the earlier end is the right one.
    pub fn join(&mut self, other: &Self) {
        self.ends_at = self.ends_at.into_iter().chain(other.ends_at).min();
        // A node that received it while it grew counts from when its own copy is complete.
        self.ttl_ns = self.ttl_ns.or(other.ttl_ns).filter(|_| self.ends_at.is_none());
        if self.job.is_none() {
            self.job.clone_from(&other.job);
        }
    }

    /// The job whose end is that of the object.
    pub fn lease(&self) -> Option<&Name> {
        self.job.as_ref().filter(|job| job.cleanup).map(|job| &job.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000);

    #[test]
    fn time_runs_from_when_the_object_is_complete() {
        let mut terms = Terms::new(Some(500), None).expect("it has a time");
        assert_eq!(terms.tell(NOW).left_ns, None);
        terms.begin(NOW);
        terms.begin(NOW + 100);
        assert_eq!(terms.tell(NOW + 100).left_ns, Some(400));
        assert_eq!(terms.tell(NOW + 501).left_ns, Some(0));
        assert_eq!(Terms::new(None, None), None);
    }

    #[test]
    fn the_earlier_end_counts_and_a_long_time_does_not_overflow() {
        let told = |left_ns| Terms::told(&Lifetime { left_ns, ttl_ns: None, job: None }, NOW);
        let mut terms = told(None);
        terms.join(&told(Some(u64::MAX)));
        terms.join(&told(Some(7)));
        terms.join(&told(None));
        assert_eq!(terms.ends_at, Some(NOW + 7));
    }

    #[test]
    fn a_node_that_heard_of_it_before_it_was_complete_knows_its_time_too() {
        let growing = Terms::new(Some(500), None).expect("it has a time");
        let mut terms = Terms::told(&growing.tell(NOW), NOW);
        assert_eq!((terms.ends_at, terms.ttl_ns), (None, Some(500)));
        terms.begin(NOW + 10);
        terms.join(&Terms::told(&Lifetime { left_ns: Some(490), ttl_ns: None, job: None }, NOW));
        assert_eq!((terms.ends_at, terms.ttl_ns), (Some(NOW + 490), None));
    }
}
