//! Checks replies: the bytes must be right, and each error must be explained by what happened.

use std::collections::BTreeSet;

use hoplite_proto::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    meta::{Kind, Meta},
    selection::Selection,
    table::Residency,
};

use crate::{
    payload::{Content, Tag},
    plan::{Fate, Make},
    users::{Object, Purpose},
    world::World,
};

impl World {
    /// Checks the reply to a get.
    pub(crate) fn check_got(
        &mut self,
        node: NodeId,
        id: &ObjectId,
        meta: &Meta,
        instance: Instance,
        inline: Option<&Inline>,
    ) {
        let content = match inline {
            Some(inline) => Some(Content::from_inline(inline)),
            None => {
                let slot = self.hosts.get(&node).and_then(|host| host.slots.get(&instance));
                let slot = slot.map(|slot| &self.shell.slots[*slot]);
                let Some(slot) = slot.filter(|slot| !slot.is_freed) else {
                    return self.fail(format!("no slot: a get of {id:?} returned {instance}"));
                };
                if !slot.is_full() || slot.size != meta.size {
                    let blocks = slot.filled();
                    return self.fail(format!(
                        "incomplete: a get of {id:?} returned with {blocks} of {} blocks",
                        slot.end()
                    ));
                }
                if slot.is_wrong() {
                    return self.fail(format!("wrong bytes: a get of {id:?} returned {instance}"));
                }
                slot.block(0).cloned()
            }
        };
        let Some(content) = content else {
            return self.fail(format!("no block: a get of {id:?} returned without content"));
        };
        // However attempts end, two clients never get the results of different attempts.
        if id.minter().is_some() {
            let given = self.users.given.entry(id.clone()).or_insert_with(|| content.clone());
            if !given.is_same(&content) {
                let given = given.clone();
                return self.fail(format!(
                    "changed bytes: a get of {id:?} returned {content:?}, an earlier one {given:?}"
                ));
            }
        }
        let may_be = self.users.contents_of(id);
        if !may_be.contains(&content) {
            self.fail(format!(
                "wrong bytes: a get of {id:?} returned {content:?}, not one of {may_be:?}"
            ));
        }
    }

    /// The reply to a get of a range must have the selected rows of an object. A result has the size of its inputs,
    /// which may be those of another object with the same name.
    pub(crate) fn check_selected(
        &mut self,
        id: &ObjectId,
        selection: Option<Selection>,
        meta: &Meta,
    ) {
        let selected = |object: &Object| Some(selection?.apply(id, &object.spec.meta).ok()?.1);
        if !self.users.objects.iter().any(|object| selected(object).as_ref() == Some(meta)) {
            self.fail(format!("a get of {selection:?} of {id:?} returned {meta:?}"));
        }
    }

    /// A result must be the fold of exactly `count` candidates, each once, of one of the reduces with this id or name.
    pub(crate) fn check_result(&mut self, id: &ObjectId, content: &Content) {
        let mut wrong = Vec::new();
        for object in self.users.objects_of(id) {
            let Make::Reduce { inputs, count, .. } = &object.spec.make else { continue };
            let ids: BTreeSet<ObjectId> = self.ids(inputs);
            let candidates: Vec<BTreeSet<Content>> =
                ids.iter().map(|input| self.users.contents_of(input)).collect();
            let count = (*count).min(ids.len());
            if is_sum(&mut content.tags().to_vec(), &candidates, count) {
                return;
            }
            wrong.push(format!("{count} of {candidates:?}"));
        }
        if !wrong.is_empty() {
            let wrong = wrong.join(", nor of ");
            self.fail(format!("{id:?} is {content:?}, which is not a fold of {wrong}"));
        }
    }

    /// The inputs that a reduce reports must be the ones that it folded.
    pub(crate) fn check_inputs(&mut self, object: usize, ids: &[ObjectId]) {
        let Some(id) = &self.users.objects[object].id else { return };
        let wrong: Vec<String> =
            self.users.objects_of(id).filter_map(|made| self.wrong_inputs(made, ids)).collect();
        // Of several reduces with one name, only one folded these inputs.
        let reduces = self.users.objects_of(id);
        let reduces = reduces.filter(|made| matches!(made.spec.make, Make::Reduce { .. })).count();
        if wrong.len() == reduces {
            self.fail(wrong.join(", and "));
        }
    }

    fn wrong_inputs(&self, made: &Object, ids: &[ObjectId]) -> Option<String> {
        let Object { spec, contents, .. } = made;
        let Make::Reduce { inputs, count, .. } = &spec.make else { return None };
        if contents.is_empty() && made.may_be_gone() {
            // Deleted when it was completed: no client has seen its contents.
            return None;
        }
        let candidates = self.ids(inputs);
        let distinct: BTreeSet<&ObjectId> = ids.iter().collect();
        let count = (*count).min(candidates.len());
        let is_right_number = distinct.len() == ids.len() && ids.len() == count;
        if !is_right_number || !ids.iter().all(|id| candidates.contains(id)) {
            return Some(format!("folded {ids:?} instead of {count} of {candidates:?}"));
        }
        let parts: Vec<BTreeSet<Content>> =
            ids.iter().map(|id| self.users.contents_of(id)).collect();
        let is_it = |content: &Content| is_sum(&mut content.tags().to_vec(), &parts, parts.len());
        let is_right = contents.iter().any(is_it);
        (!is_right)
            .then(|| format!("{ids:?} have the contents {parts:?}, but the result is {contents:?}"))
    }

    pub(super) fn ids(&self, objects: &[usize]) -> BTreeSet<ObjectId> {
        objects.iter().filter_map(|object| self.users.objects[*object].id.clone()).collect()
    }

    /// Checks that something happened that explains an error.
    pub(crate) fn check_error(&self, request: RequestId, error: &Error) -> Result<(), String> {
        let Some(pending) = self.users.requests.get(&request) else { return Ok(()) };
        let is_late = pending.deadline.is_some_and(|deadline| deadline <= self.now);
        let is_leaving = self.hosts.get(&pending.node).is_some_and(|host| host.is_leaving);
        if matches!(error, Error::Timeout { .. } | Error::StoreFull { .. } | Error::NoMemory { .. })
            && (is_late || pending.is_void)
            || matches!(error, Error::NodeDown(_)) && is_leaving
        {
            return Ok(());
        }
        if let (Purpose::Get { id, .. }, Error::ObjectCorrupt { senders, .. }) =
            (&pending.purpose, error)
        {
            return self.check_corrupt(pending.node, id, pending.at, senders);
        }
        let objects: Vec<usize> = match &pending.purpose {
            Purpose::Reserve { object }
            | Purpose::Slot { object, .. }
            | Purpose::Put { object, .. }
            | Purpose::Create { object, .. } => {
                if matches!(error, Error::ObjectLost { .. } | Error::ObjectDeleted { .. })
                    && self.has_lost_its_slot(*object)
                {
                    return Ok(());
                }
                if self.has_not_met_the_slot(pending.node, *object)
                    && matches!(error, Error::ObjectLost { .. })
                {
                    return Ok(());
                }
                let is_steady = !self.has_changed_since_reservation(*object);
                let object = &self.users.objects[*object];
                // The name was deleted while the reservation waited for it.
                if matches!(pending.purpose, Purpose::Reserve { .. })
                    && matches!(error, Error::ObjectDeleted { .. })
                    && object.may_be_gone()
                {
                    return Ok(());
                }
                let rivals = object.id.iter().flat_map(|id| self.users.objects_of(id)).count();
                // A name that a client has reserved is refused to it only after a deletion, a
                // disagreement or a membership change, or after it has used the name for a reduce.
                let all = object.id.iter().flat_map(|id| self.users.objects_of(id));
                let mut by_it = all.filter(|other| {
                    other.reserved_by == object.reserved_by
                        || matches!(other.spec.make, Make::Reduce { .. })
                });
                let is_its_own = object.reserved_by.is_some()
                    && by_it.nth(1).is_none()
                    && object.is_agreed
                    && is_steady
                    && !(self.users.is_shrunk || object.is_delete_requested);
                let is_fair = match error {
                    Error::NameTaken { .. } => rivals > 1 && !is_its_own,
                    Error::StoreFull { .. } => self.is_tight(),
                    Error::NoMemory { .. } => self.plan.slot_failures > 0,
                    _ => false,
                };
                return is_fair
                    .then_some(())
                    .ok_or_else(|| "nothing explains this error of a put".into());
            }
            Purpose::Inputs { object } => {
                let made = &self.users.objects[*object];
                let table = self.hosts[&pending.node].node.table();
                let current = made.id.as_ref().and_then(|id| table.current(id));
                let is_here = current.and_then(|instance| table.get(instance));
                // A reduce that failed, or whose result was deleted, is dropped together with its list of inputs. With
                // a name, the object on this host may be another client's.
                let is_its_own =
                    made.id.as_ref().is_some_and(|id| self.users.objects_of(id).count() == 1);
                if matches!(error, Error::InvalidArgument(_))
                    && !(is_its_own && is_here.is_some_and(|copy| copy.is_complete()))
                {
                    return Ok(());
                }
                // The request was canceled before the result had a name.
                let is_nameless = made.spec.name.is_some()
                    && self.users.requests.values().any(|other| {
                        matches!(other.purpose, Purpose::Reduce { object: of } if of == *object)
                            && (other.is_void || other.deadline.is_some())
                    });
                if matches!(error, Error::ObjectLost { .. }) && is_nameless {
                    return Ok(());
                }
                let rivals = made.id.as_ref().and_then(|id| self.users.by_id.get(id));
                rivals.cloned().unwrap_or_default()
            }
            // The object is still being filled, has no name yet, or was aborted.
            Purpose::Replicate { .. }
                if matches!(error, Error::InvalidArgument(_) | Error::ObjectDeleted { .. }) =>
            {
                return Ok(());
            }
            // The original is on disk, and its node has no free memory to read it back for the replicas.
            Purpose::Replicate { object, .. }
                if matches!(error, Error::Timeout { state, .. } if state.contains("to read it back"))
                    && self.is_out_of_memory(pending.node, *object) =>
            {
                return Ok(());
            }
            // An object deleted while it is filled still counts as put. Of two puts of one name, one may fail.
            Purpose::Seal { object, .. } if matches!(error, Error::ObjectDeleted { .. }) => {
                let is_rival = self.has_rival(*object);
                return is_rival.then_some(()).ok_or_else(|| "the object was put".into());
            }
            Purpose::Seal { object, .. } | Purpose::Replicate { object, .. } => vec![*object],
            Purpose::Get { id, .. } if self.check_not_early(id, error).is_err() => {
                return self.check_not_early(id, error);
            }
            Purpose::Get { id, .. } if !self.may_fail(id, error) => {
                return Err("the object exists everywhere".into());
            }
            Purpose::Get { id, .. } | Purpose::Locations { id, .. } => {
                self.users.by_id.get(id).cloned().unwrap_or_default()
            }
            Purpose::Reduce { object } => {
                let made = &self.users.objects[*object];
                let rivals = made.id.iter().flat_map(|id| self.users.objects_of(id)).count();
                if matches!(error, Error::NameTaken { .. }) && rivals > 1 {
                    return Ok(());
                }
                // The name was deleted while the reduce waited for it.
                let is_deleted = matches!(error, Error::ObjectDeleted { .. });
                return (is_deleted && made.may_be_gone())
                    .then_some(())
                    .ok_or_else(|| "nothing explains this error of a reduce".into());
            }
            Purpose::Abort
            | Purpose::Join
            | Purpose::Delete { .. }
            | Purpose::Latest { newest: None, .. }
            | Purpose::Prune
            | Purpose::Wait { .. }
            | Purpose::Follow { .. } => Vec::new(),
            Purpose::Latest { newest: Some(newest), .. } => {
                return newest
                    .is_none()
                    .then_some(())
                    .ok_or_else(|| "a name with the prefix exists".into());
            }
        };
        let is_explained = objects.iter().any(|object| self.explains(*object, error));
        is_explained.then_some(()).ok_or_else(|| "nothing that happened explains this error".into())
    }

    /// Whether another object has, or had, the same name.
    fn has_rival(&self, object: usize) -> bool {
        let id = self.users.objects[object].id.as_ref();
        id.is_some_and(|id| self.users.objects_of(id).count() > 1)
    }

    /// Whether the members have changed since a client reserved the name of an object. A new owner
    /// may grant the name to another client before it receives the reservation.
    fn has_changed_since_reservation(&self, object: usize) -> bool {
        self.users.requests.values().any(|asked| {
            matches!(asked.purpose, Purpose::Reserve { object: of } if of == object)
                && asked.at <= self.agreed_since
        })
    }

    /// Whether an object was to fill a slot which may have ended.
    fn has_lost_its_slot(&self, object: usize) -> bool {
        let object = &self.users.objects[object];
        let is_over = object.reserved_by.is_some_and(|client| self.users.is_gone(client));
        object.id.as_ref().is_some_and(ObjectId::is_slot)
            && (is_over || object.may_be_gone() || self.users.is_shrunk)
    }

    /// Whether a node does not know the node of a slot, or not any more.
    fn has_not_met_the_slot(&self, node: NodeId, object: usize) -> bool {
        let id = self.users.objects[object].id.as_ref().filter(|id| id.is_slot());
        let members = self.hosts.get(&node).map(|host| host.node.members());
        id.and_then(ObjectId::minter)
            .zip(members)
            .is_some_and(|(minter, members)| !members.contains(minter))
    }

    /// Whether the original of an object is not in a node's memory.
    fn is_out_of_memory(&self, node: NodeId, object: usize) -> bool {
        let table = self.hosts[&node].node.table();
        let id = self.users.objects[object].id.as_ref();
        let copy = id.and_then(|id| table.get(table.current(id)?));
        copy.is_some_and(|copy| copy.residency != Residency::Memory)
    }

    /// Whether what happened to an object, or to its inputs, explains an error.
    fn explains(&self, object: usize, error: &Error) -> bool {
        let made = &self.users.objects[object];
        let (Object { spec, is_failed, .. }, may_be_gone) = (made, made.may_be_gone());
        let has_rival = self.has_rival(object);
        let is_here = match error {
            // Of two concurrent puts of one name, one may be dropped.
            Error::ObjectDeleted { .. } => may_be_gone || has_rival,
            // A deletion that reaches an owner late, or never, looks like a loss.
            Error::ObjectLost { .. } => {
                self.users.is_shrunk
                    || *is_failed
                    || has_rival
                    || may_be_gone
                    || self.has_lost_its_slot(object)
            }
            Error::StoreFull { .. } => self.is_tight(),
            Error::NoMemory { .. } => self.plan.slot_failures > 0,
            Error::NodeDown(_) => self.users.is_shrunk && matches!(spec.make, Make::Reduce { .. }),
            // Another reduce got the result's name while two nodes disagreed about its owner.
            Error::NameTaken { .. } => has_rival && matches!(spec.make, Make::Reduce { .. }),
            _ => false,
        };
        let Make::Reduce { inputs, count, timeout_ns, .. } = &spec.make else {
            return is_here
                || matches!(spec.make, Make::Put { fate, .. } if fate != Fate::Sealed
                && matches!(error, Error::ObjectLost { .. }));
        };
        is_here
            || match error {
                Error::Timeout { .. } => timeout_ns.is_some(),
                Error::TooFewInputs { .. } => *count < inputs.len(),
                Error::ShapeMismatch { .. } => {
                    self.inputs(inputs).any(|input| input.spec.meta != spec.meta)
                }
                Error::Unreducible { .. } => {
                    self.inputs(inputs).any(|input| input.spec.meta.kind == Kind::Bytes)
                }
                _ => false,
            }
            || self
                .ids(inputs)
                .iter()
                .flat_map(|id| &self.users.by_id[id])
                .any(|input| self.explains(*input, error))
    }

    /// All objects with the ids of these objects.
    fn inputs(&self, objects: &[usize]) -> impl Iterator<Item = &Object> {
        self.ids(objects).into_iter().flat_map(|id| self.users.objects_of(&id).collect::<Vec<_>>())
    }

    /// Whether nodes lack the capacity to hold everything.
    pub(crate) fn is_tight(&self) -> bool {
        self.plan.config.capacity < 1 << 33
    }
}

/// Whether `tags` consist of one content each of `count` of the `candidates`.
fn is_sum(tags: &mut Vec<Tag>, candidates: &[BTreeSet<Content>], count: usize) -> bool {
    let Some((first, rest)) = candidates.split_first() else {
        return count == 0 && tags.is_empty();
    };
    if count > candidates.len() {
        return false;
    }
    for content in first.iter().filter(|_| count > 0) {
        let mut without = tags.clone();
        let mut all = content.tags().iter();
        let is_in = all.all(|tag| match without.iter().position(|other| other == tag) {
            Some(at) => {
                without.swap_remove(at);
                true
            }
            None => false,
        });
        if is_in && is_sum(&mut without, rest, count - 1) {
            return true;
        }
    }
    is_sum(tags, rest, count)
}
