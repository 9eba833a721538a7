//! Objects with a time to live or of a job: expired objects must be gone, all others must exist.
//!
//! All clients of the job end at the end of the plan, so none of its objects may remain after the cluster has settled.

use hoplite_proto::{
    error::Error,
    id::{ClientId, NodeId, ObjectId},
    request::Request,
    time::Instant,
};

use crate::{
    dice::Dice,
    plan::{Act, MILLISECOND, Make, Plan, SECOND},
    users::{Object, Purpose},
    world::World,
};

/// Name of the job of a simulation; no object has it.
const JOB: &str = "job";

/// How late after its end a copy may still exist: before, members may declare each other dead and re-announce
/// everything.
const SLACK_NS: u64 = 20 * SECOND;

impl Plan {
    /// Gives objects a time to live in some clusters, and makes some clients join a job in others.
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
    /// Lets a new client join the job, with some probability.
    pub(crate) fn join_perhaps(&mut self, node: NodeId, client: ClientId) -> Option<Instant> {
        let may_join = self.plan.has_jobs && self.now < self.plan.end && self.dice.chance(40);
        may_join.then(|| {
            let job = JOB.parse().expect("a name");
            self.ask(node, client, Request::JoinJob { job }, Purpose::Join, None);
            self.now
        })
    }

    /// Records that a client creates an object, and whether it may end without a deletion. Returns its time to live.
    pub(crate) fn lives(&mut self, object: usize, client: ClientId) -> Option<u64> {
        let (now, is_of_job) = (self.now, self.users.is_of_job(client));
        let known = &mut self.users.objects[object];
        (known.made_at, known.is_of_job) = (Some(now), is_of_job);
        known.may_end |= is_of_job || known.spec.ttl_ns.is_some();
        known.spec.ttl_ns
    }

    /// Ends the clients of the job.
    pub(crate) fn end_job(&mut self) {
        for client in self.users.clients_of_job() {
            self.client_dies(client);
        }
    }

    /// Checks an `ObjectDeleted` reply to a get: if no client deleted the object, its time or its job must have ended.
    pub(crate) fn check_not_early(&self, id: &ObjectId, error: &Error) -> Result<(), String> {
        let is_deleted = matches!(error, Error::ObjectDeleted { id: deleted } if deleted == id);
        let mut all = self.users.objects_of(id);
        let (Some(object), None) = (all.next(), all.next()) else { return Ok(()) };
        let Some(made_at) = object.made_at.filter(|_| is_deleted && !object.is_delete_requested)
        else {
            return Ok(());
        };
        let is_timed = object.spec.ttl_ns.is_some_and(|ttl| made_at + ttl <= self.now);
        let is_put = matches!(object.spec.make, Make::Put { .. });
        if is_put && !is_timed && !(object.is_of_job && self.may_have_ended(made_at)) {
            return Err("neither its time to live nor its job has ended".into());
        }
        Ok(())
    }

    /// Whether, from some owner's view, the job may have had no client for a while since then.
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

    /// Checks, after the cluster has settled, that no expired object and no object of the job remains.
    pub(crate) fn check_lifetimes(&mut self) {
        let is_over = |object: &Object| {
            let is_late = |at: Instant, ttl: u64| at + ttl + SLACK_NS < self.now;
            let has_had_its_time =
                object.made_at.zip(object.spec.ttl_ns).is_some_and(|(at, ttl)| is_late(at, ttl));
            object.is_made && (object.is_of_job || has_had_its_time)
        };
        let mut left = None;
        let stored = self.without_copies().into_iter().map(|(id, node)| (id, vec![node]));
        for (id, nodes) in self.existing().into_iter().chain(stored) {
            let mut all = self.users.objects_of(&id);
            if let (Some(object), None) = (all.next(), all.next())
                && is_over(object)
            {
                left = Some(format!("{id:?} has expired, but is still at {nodes:?}"));
            }
        }
        if let Some(left) = left {
            self.fail(left);
        }
    }
}
