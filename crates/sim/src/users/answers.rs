//! Handles replies: what clients record, and what they do next.

use hoplite_proto::{
    error::Error,
    id::{ClientId, NodeId, ObjectId, RequestId},
    request::Reply,
};

use super::{Later, Purpose, Writer};
use crate::{
    payload::Content,
    plan::{MICROSECOND, MILLISECOND},
    world::{SimEvent, World},
};

impl World {
    pub(crate) fn answered(
        &mut self,
        node: NodeId,
        client: ClientId,
        request: RequestId,
        reply: Result<Reply, Error>,
    ) {
        let content = |instance| self.shell.contents.get(&instance).cloned();
        let Some(reply) = self.programs.take(request, reply, content) else {
            return self.wake_programs();
        };
        let Some(pending) = self.users.requests.get_mut(&request) else {
            return self.fail(format!("a reply to {request:?}, which no client sent"));
        };
        if pending.is_answered {
            return self.fail(format!("{request:?} got two replies: {reply:?}"));
        }
        if (pending.node, pending.client) != (node, client) {
            return self.fail(format!("the reply to {request:?} went to {client:?} at {node:?}"));
        }
        pending.is_answered = true;
        let purpose = pending.purpose.clone();
        match reply {
            Ok(reply) => self.succeeded(node, client, request, purpose, reply),
            Err(error) => self.failed(request, purpose, error),
        }
    }

    fn succeeded(
        &mut self,
        node: NodeId,
        client: ClientId,
        request: RequestId,
        purpose: Purpose,
        reply: Reply,
    ) {
        match (purpose, reply) {
            (Purpose::Put { object, .. }, Reply::Put { id }) => {
                self.users.objects[object].is_made = true;
                self.object_known(object, id);
            }
            (Purpose::Reserve { object }, Reply::Reserved { .. }) => {
                self.users.objects[object].reserved_by = Some(client);
                let later = self.dice.below(500) * MILLISECOND;
                let put = Later::Put { object, node, client };
                self.after(later + MICROSECOND, SimEvent::Users(put));
            }
            (Purpose::Slot { object, node, filler }, Reply::Slots { ids }) => {
                let [id] = &ids[..] else { return self.fail(format!("{} slots", ids.len())) };
                self.users.objects[object].reserved_by = Some(client);
                self.object_known(object, id.clone());
                let later = self.dice.below(500) * MILLISECOND;
                let put = Later::Put { object, node, client: filler };
                self.after(later + MICROSECOND, SimEvent::Users(put));
            }
            (Purpose::Create { object, tag }, Reply::Created { id, instance }) => {
                self.object_known(object, id);
                self.shell.contents.insert(instance, Content::of(tag));
                let writer = Writer { object, node, client, instance, tag, next: 0 };
                self.after(10 * MICROSECOND, SimEvent::Write(writer));
            }
            (Purpose::Seal { object, instance }, Reply::Put { id }) => {
                self.users.objects[object].is_made = true;
                if self.users.objects[object].id.as_ref() != Some(&id) {
                    self.fail(format!("{instance} was sealed as {id}"));
                }
                let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance));
                if let Some(slot) = slot.copied() {
                    self.shell.slots[slot].is_complete = true;
                }
            }
            (
                Purpose::Get { id: asked, selection, read_ns },
                Reply::Got { id, instance, inline, meta, is_range },
            ) => {
                if id != asked {
                    return self.fail(format!("a get of {asked} returned {id}"));
                }
                if is_range {
                    self.check_selected(&id, selection, &meta);
                } else {
                    self.check_same(node, &id, instance);
                }
                // An empty range has no content.
                if meta.size > 0 {
                    self.check_got(node, &id, &meta, instance, inline.as_ref());
                }
                self.users.got += 1;
                self.users.got_by.insert(node, self.now);
                if inline.is_none() {
                    *self.users.reads.entry((node, instance, client)).or_default() += 1;
                    let release = Later::Release { node, client, instance };
                    self.after(read_ns + MICROSECOND, SimEvent::Users(release));
                }
            }
            (Purpose::Reduce { object }, Reply::Reducing { id }) => self.object_known(object, id),
            (Purpose::Inputs { object }, Reply::Inputs { ids }) => self.check_inputs(object, &ids),
            (Purpose::Replicate { object, replicas: copies }, Reply::Replicated { .. }) => {
                self.check_replicas(node, object, copies);
            }
            (Purpose::Latest { prefix, after, newest }, Reply::Latest { name }) => {
                let is_newer = name.version().is_some_and(|v| after.is_none_or(|after| v > after));
                if !name.as_str().starts_with(prefix) || !is_newer {
                    self.fail(format!(
                        "{name:?} is not a name with the prefix {prefix} newer than {after:?}"
                    ));
                }
                // The owner of a small object still has it after the node of its put has ended. So there may be more
                // names than copies.
                let version = name.version();
                let is_outlived = self.users.is_shrunk
                    || self.users.is_delete_requested(&ObjectId::Named(name.clone()));
                let is_wrong = |newest| newest > version || newest != version && !is_outlived;
                if newest.is_some_and(is_wrong) {
                    self.fail(format!("{name:?} is the latest, but the newest is {newest:?}"));
                }
            }
            (Purpose::Wait { ids, count }, Reply::Waited { ready }) => {
                self.check_waited(request, &ids, count, &ready);
            }
            (Purpose::Follow { id }, Reply::Growing { meta, instance }) => {
                self.check_growing(node, &id, &meta, instance);
            }
            (Purpose::Locations { id, known, changes, must }, Reply::Locations(all)) => {
                self.check_locations(node, client, id, known, changes, &must, &all);
            }
            (Purpose::Delete { ended }, Reply::Done) => self.deleted(ended),
            (
                Purpose::Abort | Purpose::Join | Purpose::Prune | Purpose::Follow { .. },
                Reply::Done,
            ) => {}
            (purpose, reply) => self.fail(format!("{reply:?} is not a reply to {purpose:?}")),
        }
    }

    fn failed(&mut self, request: RequestId, purpose: Purpose, error: Error) {
        if let Err(why) = self.check_error(request, &error) {
            self.fail(format!("{request:?} failed: {error}; {why}"));
        }
        // While the members disagreed, another owner may have granted the name.
        let is_agreed = !self.users.is_shrunk && self.all_have_met();
        let is_refused = matches!(error, Error::NameTaken { .. });
        let is_taken = is_refused && is_agreed;
        match purpose {
            Purpose::Put { object, tag } | Purpose::Create { object, tag } => {
                let known = &mut self.users.objects[object];
                known.is_failed = true;
                known.is_refused = is_refused;
                // After any other error, the object may have existed for a moment.
                if is_taken && known.is_agreed {
                    known.contents.remove(&Content::of(tag));
                }
            }
            Purpose::Reserve { object } => {
                let known = &mut self.users.objects[object];
                (known.is_failed, known.is_refused) = (true, is_refused);
            }
            Purpose::Seal { object, .. } | Purpose::Reduce { object } => {
                self.users.objects[object].is_failed = true;
                self.users.objects[object].is_refused =
                    matches!(error, Error::ObjectDeleted { .. });
            }
            _ => {}
        }
    }

    /// Records that the first block of a reduce's result was folded.
    pub(crate) fn result_made(&mut self, id: &ObjectId, content: &Content) {
        if self.users.is_put(id, content) {
            return;
        }
        self.check_result(id, content);
        for object in self.users.by_id.get(id).cloned().unwrap_or_default() {
            self.users.objects[object].contents.insert(content.clone());
        }
    }
}
