//! Objects that end by their time or with their job: what should be gone is gone, and what should live lives.
//!
//! All clients of the job are gone at the end of the plan, so that nothing of it may be left when all is at rest.

use hoplite_proto::{
    ask::Ask,
    error::Error,
    id::{ClientId, NodeId, ObjectId},
    lifetime::Job,
    time::Instant,
};

use crate::{
    dice::Dice,
    plan::{Act, MILLISECOND, Make, Plan, SECOND},
    users::{Object, Purpose},
    world::World,
};

/// What the job of a simulation is called. No object is.
const JOB: &str = "job";

/// How late after its end a copy may still be there: members take each other for dead, and tell everything again, before.
const SLACK_NS: u64 = 20 * SECOND;

impl Plan {
    /// In some clusters objects have a time to live, in some clients are of a job.
    pub(crate) fn add_lifetimes(&mut self, horizon: u64, dice: &mut Dice) {
        if dice.chance(25) {
            for object in &mut self.objects {
                let ttl_ns = dice.between(MILLISECOND, 2 * horizon);
                object.ttl_ns = dice.chance(30).then_some(ttl_ns);
            }
        }
        self.has_jobs = dice.chance(25);
    }
}

impl World {
    /// A client that is new is of the job, perhaps.
    pub(crate) fn join_perhaps(&mut self, node: NodeId, client: ClientId) -> Option<Instant> {
        let may_join = self.plan.has_jobs && self.now < self.plan.end && self.dice.chance(40);
        may_join.then(|| {
            let job = Job { name: JOB.parse().expect("a name"), cleanup: true };
            self.ask(node, client, Ask::Join { job }, Purpose::Join, None);
            self.now
        })
    }

    /// A client makes an object: whether it may end without a client that deletes it.
    pub(crate) fn lives(&mut self, object: usize, client: ClientId) -> Option<u64> {
        let (now, is_of_job) = (self.now, self.users.is_of_job(client));
        let known = &mut self.users.objects[object];
        (known.made_at, known.is_of_job) = (Some(now), is_of_job);
        known.may_end |= is_of_job || known.spec.ttl_ns.is_some();
        known.spec.ttl_ns
    }

    /// The clients of the job are gone.
    pub(crate) fn end_job(&mut self) {
        for client in self.users.clients_of_job() {
            self.client_dies(client);
        }
    }

    /// Whether an object may be deleted that no client has deleted. Said of one that was got.
    pub(crate) fn check_not_early(&self, id: &ObjectId, error: &Error) -> Result<(), String> {
        let is_deleted = matches!(error, Error::ObjectDeleted { id: deleted } if deleted == id);
        let mut all = self.users.objects_of(id);
        let (Some(object), None) = (all.next(), all.next()) else { return Ok(()) };
        let Some(made_at) = object.made_at.filter(|_| is_deleted && !object.is_delete_asked) else {
            return Ok(());
        };
        let is_timed = object.spec.ttl_ns.is_some_and(|ttl| made_at + ttl <= self.now);
        let is_put = matches!(object.spec.make, Make::Put { .. });
        if is_put && !is_timed && !(object.is_of_job && self.may_have_ended(made_at)) {
            return Err("its time is not over, nor its job".into());
        }
        Ok(())
    }

    /// Whether there may have been no client of the job for a while since then, as some owner saw it.
    fn may_have_ended(&self, since: Instant) -> bool {
        let harms = |act: &Act| {
            matches!(
                act,
                Act::Leave { .. }
                    | Act::Crash { .. }
                    | Act::Restart { .. }
                    | Act::Break { .. }
                    | Act::Fault { .. }
                    | Act::Join
            )
        };
        let is_calm = !self.users.is_shrunk && !self.plan.acts.iter().any(|(_, act)| harms(act));
        !is_calm || !self.users.has_client_of_job_since(since)
    }

    /// When all is at rest: nothing is left whose time is over, nor of the job.
    pub(crate) fn check_lifetimes(&mut self) {
        let is_over = |object: &Object| {
            let is_late = |at: Instant, ttl: u64| at + ttl + SLACK_NS < self.now;
            let has_had_its_time =
                object.made_at.zip(object.spec.ttl_ns).is_some_and(|(at, ttl)| is_late(at, ttl));
            object.is_made && (object.is_of_job || has_had_its_time)
        };
        let mut left = None;
        for (id, nodes) in self.existing() {
            let mut all = self.users.objects_of(&id);
            if let (Some(object), None) = (all.next(), all.next())
                && is_over(object)
            {
                left = Some(format!("{id:?} has ended and is at {nodes:?}"));
            }
        }
        if let Some(left) = left {
            self.fail(left);
        }
    }
}
