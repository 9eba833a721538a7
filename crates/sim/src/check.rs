//! The checkers: what must hold after every event, of every answer, and when all is over.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_proto::{
    error::Error,
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    message::{Message, Progress},
    meta::{Kind, Meta},
    node::Action,
    table::{Place, Table, file_bytes},
    time::Instant,
};

use crate::{
    disk::Disk,
    payload::{Content, Tag},
    plan::{Fate, Make, SECOND},
    users::{Object, Purpose},
    world::{Host, World},
};

/// How often one holder may refuse one receiver the same copy: once when it has none any more, and a few times because
/// news of its copies cross the refusals.
const REFUSALS_MAX: u32 = 6;

impl World {
    /// After every event of a node.
    pub(crate) fn check_node(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        let table = host.node.table();
        let mut broken = None;
        let in_memory = table.iter().filter(|(_, copy)| copy.place != Place::Disk);
        let bytes: u64 = in_memory.map(|(_, copy)| copy.meta.size).sum();
        if bytes > table.used() || table.used() > table.capacity() {
            broken = Some(format!(
                "{bytes} bytes at {node:?}: {} accounted of {}",
                table.used(),
                table.capacity()
            ));
        }
        let (small, most) = host.node.directory().small_bytes();
        if small > most {
            broken = Some(format!("{small} bytes of small objects live at {node:?}, of {most}"));
        }
        broken = broken.or_else(|| self.check_disk(node));
        if let Some(cycle) = self.directory_cycle(node) {
            broken = Some(cycle);
        }
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// A stale location is corrected by its first use.
    pub(crate) fn check_refusal(&mut self, receiver: NodeId, holder: NodeId, instance: Instance) {
        if self.is_hostile(holder) {
            return;
        }
        let count = self.shell.refusals.entry((receiver, holder, instance)).or_default();
        *count += 1;
        if *count > REFUSALS_MAX {
            let count = *count;
            self.fail(format!("{receiver:?} was refused {instance} {count} times by {holder:?}"));
        }
    }

    /// Small copies that an event brought: all of one instance must be equal, and each result a fold.
    pub(crate) fn check_small_copies(&mut self, node: NodeId, actions: &[Action]) {
        let Some(host) = self.hosts.get(&node).filter(|_| !self.is_hostile(node)) else { return };
        let mut new = Vec::new();
        let mut broken = None;
        let held = host.node.table().iter();
        let held =
            held.filter_map(|(instance, copy)| Some((instance, &copy.id, copy.inline.as_ref()?)));
        // One that lost its name to another was there for no longer than the event.
        let told = actions.iter().filter_map(|action| match action {
            Action::Send { message: Message::Announce(told), .. } if told.origin => {
                let Progress::Inline(bytes) = &told.progress else { return None };
                Some((told.instance, &told.id, bytes))
            }
            _ => None,
        });
        for (instance, id, inline) in held.chain(told) {
            if self.is_its_game(id) {
                continue;
            }
            let content = Content::from_inline(inline);
            match self.shell.contents.get(&instance) {
                None => new.push((instance, id.clone(), content)),
                Some(known) if known.is_same(&content) => {}
                Some(known) => broken = Some(format!("{instance} is {content:?}, not {known:?}")),
            }
        }
        for (instance, id, content) in new {
            self.result_made(&id, &content);
            self.shell.contents.insert(instance, content);
        }
        if let Some(broken) = broken {
            self.fail(broken);
        }
    }

    /// Copies that grow from each other in a circle, as far as one owner knows.
    fn directory_cycle(&self, node: NodeId) -> Option<String> {
        let host = self.hosts.get(&node)?;
        let mut feeds: BTreeMap<(&ObjectId, NodeId), NodeId> = BTreeMap::new();
        for (id, receiver, sender) in host.node.directory().feeds() {
            if host.node.members().owners(id).first == node {
                feeds.insert((id, receiver), sender);
            }
        }
        for (id, start) in feeds.keys() {
            let mut at = *start;
            for _ in 0..=feeds.len() {
                match feeds.get(&(*id, at)) {
                    Some(sender) => at = *sender,
                    None => break,
                }
                if at == *start {
                    return Some(format!("{node:?} lets {start:?} wait for itself for {id:?}"));
                }
            }
        }
        None
    }

    /// Copies that are received from each other in a circle: owners who did not know of each other's answers may have
    /// named such senders, but not for long after they are told of all of it.
    pub(crate) fn check_feeds(&mut self, start: NodeId, instance: Instance, is_first: bool) {
        let mut feeds = BTreeMap::new();
        let mut id = None;
        for flow in self.shell.flows.values() {
            // Those who make parts of a result take them from each other.
            if let crate::shell::What::Copy { id: of, instance: what, ordered: false, .. } =
                &flow.what
                && *what == instance
            {
                feeds.insert(flow.to, flow.from);
                id = Some(of);
            }
        }
        // A hostile owner may say that two copies grow from each other.
        let Some(id) = id.filter(|id| !self.is_its_game(id)) else { return };
        let mut at = start;
        let mut circle = Vec::new();
        for _ in 0..feeds.len() {
            let Some(sender) = feeds.get(&at) else { return };
            at = *sender;
            circle.push(at);
            if at != start {
                continue;
            }
            if is_first || circle.iter().any(|receiver| self.was_held_up(*receiver, id)) {
                let again = crate::world::Happening::CheckFeeds { start, instance };
                return self.after(SECOND, again);
            }
            return self.fail(format!("{start:?} receives {instance} from itself: {feeds:?}"));
        }
    }

    /// Whether something kept a node and the owner of a name from each other within the last second.
    fn was_held_up(&self, node: NodeId, id: &ObjectId) -> bool {
        let lately = self.now.before(SECOND);
        let Some(host) = self.hosts.get(&node) else { return false };
        let owner = host.node.members().owners(id).first;
        let thaws = |id| self.hosts.get(&id).and_then(|host| host.frozen_until).unwrap_or_default();
        [thaws(node), thaws(owner), self.net.mended(node, owner), self.net.mended(owner, node)]
            .into_iter()
            .any(|until| until > lately)
    }

    /// What a get was answered.
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
                    return self.fail(format!("{id:?} was got as {instance}, which has no slot"));
                };
                if !slot.is_full() || slot.size != meta.size {
                    let blocks = slot.filled();
                    return self.fail(format!("{id:?} was got after {blocks} of {}", slot.end()));
                }
                slot.block(0).cloned()
            }
        };
        let Some(content) = content else {
            return self.fail(format!("{id:?} was got without a block"));
        };
        if self.is_its_game(id) {
            return;
        }
        // However attempts end: no two clients get the results of different attempts.
        if id.minter().is_some() {
            let given = self.users.given.entry(id.clone()).or_insert_with(|| content.clone());
            if !given.is_same(&content) {
                let given = given.clone();
                return self
                    .fail(format!("{id:?} was got with {content:?}, before with {given:?}"));
            }
        }
        let may_be = self.users.contents_of(id);
        if !may_be.contains(&content) {
            self.fail(format!("{id:?} was got with {content:?}, but it is one of {may_be:?}"));
        }
    }

    /// A result must be the fold of exactly `count` of its candidates, each of them once; of one of the reduces that
    /// were to go by its name.
    pub(crate) fn check_result(&mut self, id: &ObjectId, content: &Content) {
        if self.is_its_game(id) {
            return;
        }
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
            self.fail(format!("{id:?} is {content:?}, which is no fold of {wrong}"));
        }
    }

    /// The inputs that a reduce says it folded must be what it folded.
    pub(crate) fn check_inputs(&mut self, object: usize, ids: &[ObjectId]) {
        let Some(id) = &self.users.objects[object].id else { return };
        let wrong: Vec<String> =
            self.users.objects_of(id).filter_map(|made| self.wrong_inputs(made, ids)).collect();
        // Of those that go by one name, only one folded these.
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
            // Deleted in the moment of its completion: no client has seen what it held.
            return None;
        }
        let candidates = self.ids(inputs);
        let distinct: BTreeSet<&ObjectId> = ids.iter().collect();
        let count = (*count).min(candidates.len());
        let is_right_number = distinct.len() == ids.len() && ids.len() == count;
        if !is_right_number || !ids.iter().all(|id| candidates.contains(id)) {
            return Some(format!("{ids:?} were folded instead of {count} of {candidates:?}"));
        }
        let parts: Vec<BTreeSet<Content>> =
            ids.iter().map(|id| self.users.contents_of(id)).collect();
        let is_it = |content: &Content| is_sum(&mut content.tags().to_vec(), &parts, parts.len());
        let is_right = contents.iter().any(is_it);
        (!is_right).then(|| format!("{ids:?} are {parts:?}, but {contents:?} was folded"))
    }

    fn ids(&self, objects: &[usize]) -> BTreeSet<ObjectId> {
        objects.iter().filter_map(|object| self.users.objects[*object].id.clone()).collect()
    }

    /// Whether something happened that explains an error.
    pub(crate) fn check_error(&self, request: RequestId, error: &Error) -> Result<(), String> {
        let Some(question) = self.users.questions.get(&request) else { return Ok(()) };
        // It may have told one node before that this instance is another object, of which it is an owner.
        let is_kept_from = self.hostile.is_some() && error.to_string().contains("describes it as");
        if self.is_of_its_game(&question.purpose) || is_kept_from {
            return Ok(());
        }
        let is_late = question.deadline.is_some_and(|deadline| deadline <= self.now);
        let is_leaving = self.hosts.get(&question.node).is_some_and(|host| host.is_leaving);
        if matches!(error, Error::Timeout { .. } | Error::StoreFull { .. } | Error::NoMemory { .. })
            && (is_late || question.is_void)
            || matches!(error, Error::NodeDown(_)) && is_leaving
        {
            return Ok(());
        }
        let objects: Vec<usize> = match &question.purpose {
            Purpose::Put { object, .. } | Purpose::Create { object, .. } => {
                let object = &self.users.objects[*object];
                let rivals = object.id.iter().flat_map(|id| self.users.objects_of(id)).count();
                let is_fair = match error {
                    Error::NameTaken { .. } => rivals > 1,
                    Error::StoreFull { .. } => self.is_tight(),
                    Error::NoMemory { .. } => self.plan.slot_failures > 0,
                    _ => false,
                };
                return is_fair.then_some(()).ok_or_else(|| "a put has no such reason".into());
            }
            Purpose::Inputs { object } => {
                let made = &self.users.objects[*object];
                let table = self.hosts[&question.node].node.table();
                let current = made.id.as_ref().and_then(|id| table.current(id));
                let is_here = current.and_then(|instance| table.get(instance));
                // A reduce that failed, or whose result was deleted, is forgotten, with its list.
                // The object here under a name may be another client's.
                let is_its_own =
                    made.id.as_ref().is_some_and(|id| self.users.objects_of(id).count() == 1);
                if matches!(error, Error::InvalidArgument(_))
                    && !(is_its_own && is_here.is_some_and(|copy| copy.is_complete()))
                {
                    return Ok(());
                }
                // It had no name yet when it was given up.
                let is_nameless = made.spec.name.is_some()
                    && self.users.questions.values().any(|other| {
                        matches!(other.purpose, Purpose::Reduce { object: of } if of == *object)
                            && (other.is_void || other.deadline.is_some())
                    });
                if matches!(error, Error::ObjectLost { .. }) && is_nameless {
                    return Ok(());
                }
                let rivals = made.id.as_ref().and_then(|id| self.users.by_id.get(id));
                rivals.cloned().unwrap_or_default()
            }
            // It is still being filled, has no name yet, or has come to nothing.
            Purpose::Keep { .. }
                if matches!(error, Error::InvalidArgument(_) | Error::ObjectDeleted { .. }) =>
            {
                return Ok(());
            }
            // What is deleted while it is filled has been put all the same; of two under one name, one may not.
            Purpose::Seal { object, .. } if matches!(error, Error::ObjectDeleted { .. }) => {
                let is_rival = self.has_rival(*object);
                return is_rival.then_some(()).ok_or_else(|| "it has been put".into());
            }
            Purpose::Seal { object, .. } | Purpose::Keep { object, .. } => vec![*object],
            Purpose::Get { id, .. } if self.check_not_early(id, error).is_err() => {
                return self.check_not_early(id, error);
            }
            Purpose::Get { id, .. } if !self.may_fail(id, error) => {
                return Err("it is there everywhere".into());
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
                // The name was deleted while it was asked for.
                let is_deleted = matches!(error, Error::ObjectDeleted { .. });
                return (is_deleted && made.may_be_gone())
                    .then_some(())
                    .ok_or_else(|| "a reduce has no such reason".into());
            }
            Purpose::Abort
            | Purpose::Join
            | Purpose::Delete
            | Purpose::Latest { newest: None, .. }
            | Purpose::Prune
            | Purpose::Wait { .. }
            | Purpose::Follow { .. } => Vec::new(),
            Purpose::Latest { newest: Some(newest), .. } => {
                return newest.is_none().then_some(()).ok_or_else(|| "there is a name".into());
            }
        };
        let is_explained = objects.iter().any(|object| self.explains(*object, error));
        is_explained.then_some(()).ok_or_else(|| "nothing that happened explains it".into())
    }

    /// Whether there was another object of that name.
    fn has_rival(&self, object: usize) -> bool {
        let id = self.users.objects[object].id.as_ref();
        id.is_some_and(|id| self.users.objects_of(id).count() > 1)
    }

    /// Whether what happened to an object, or to what it is folded from, explains an error.
    fn explains(&self, object: usize, error: &Error) -> bool {
        let made = &self.users.objects[object];
        let (Object { spec, is_failed, .. }, may_be_gone) = (made, made.may_be_gone());
        let has_rival = self.has_rival(object);
        let is_here = match error {
            // Of two that were put under one name at once, one may be dropped.
            Error::ObjectDeleted { .. } => may_be_gone || has_rival,
            // A deletion of which an owner hears late, or never, looks like a loss.
            Error::ObjectLost { .. } => {
                self.users.is_shrunk || *is_failed || has_rival || may_be_gone
            }
            Error::StoreFull { .. } => self.is_tight(),
            Error::NoMemory { .. } => self.plan.slot_failures > 0,
            Error::NodeDown(_) => self.users.is_shrunk && matches!(spec.make, Make::Reduce { .. }),
            // The name of a result went to another, while two nodes did not agree on its owner.
            Error::NameTaken { .. } => has_rival && matches!(spec.make, Make::Reduce { .. }),
            _ => false,
        };
        let Make::Reduce { inputs, count, patience_ns, .. } = &spec.make else {
            return is_here
                || matches!(spec.make, Make::Put { fate, .. } if fate != Fate::Sealed
                && matches!(error, Error::ObjectLost { .. }));
        };
        is_here
            || match error {
                Error::Timeout { .. } => patience_ns.is_some(),
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

    /// Everything that a node holds under the ids of these objects.
    fn inputs(&self, objects: &[usize]) -> impl Iterator<Item = &Object> {
        self.ids(objects).into_iter().flat_map(|id| self.users.objects_of(&id).collect::<Vec<_>>())
    }

    /// Whether nodes can't hold everything.
    pub(crate) fn is_tight(&self) -> bool {
        self.plan.config.capacity < 1 << 33
    }

    /// After the plan: lets everything come to rest, and checks that it did.
    pub(crate) fn check_end(&mut self) {
        let end = self.plan.end + 90 * SECOND;
        self.run_until(self.plan.end);
        self.end_job();
        self.run_until(end);
        self.check_lifetimes();
        self.check_directories();
        self.check_promises();
        let existing = self.existing();
        self.look_once_more(&existing);
        self.check_kept_names();
        self.get_everything_once_more();
        self.run_until(end + 60 * SECOND);
        self.check_waiters();
        self.clear_away(end + 90 * SECOND);
    }

    /// No client wants anything any more, and everything is deleted: by `end` nothing is left.
    pub(crate) fn clear_away(&mut self, end: Instant) {
        let open = self.users.questions.iter().filter(|(_, asked)| !asked.is_answered);
        for request in open.map(|(request, _)| *request).collect::<Vec<_>>() {
            if self.failure.is_none() {
                self.cancel(request);
            }
        }
        self.delete_everything();
        self.run_until(end);
        self.check_rest();
    }

    /// Objects that are complete somewhere: by id, who has them.
    pub(crate) fn existing(&self) -> BTreeMap<ObjectId, Vec<NodeId>> {
        let mut existing: BTreeMap<ObjectId, Vec<NodeId>> = BTreeMap::new();
        let is_looked_at =
            |node: &NodeId, host: &Host| host.is_up && !host.is_leaving && !self.is_hostile(*node);
        for (node, host) in self.hosts.iter().filter(|(node, host)| is_looked_at(node, host)) {
            for (instance, copy) in host.node.table().iter() {
                let is_current = host.node.table().current(&copy.id) == Some(instance);
                if copy.is_complete() && !copy.doomed && is_current {
                    existing.entry(copy.id.clone()).or_default().push(*node);
                }
            }
        }
        existing
    }

    /// Every complete copy is known to the first owner of its object, and all are of one instance.
    fn check_directories(&mut self) {
        for (id, nodes) in self.existing() {
            let current = |node: &NodeId| self.hosts[node].node.table().current(&id);
            let instances: BTreeSet<Option<Instance>> = nodes.iter().map(current).collect();
            if instances.len() > 1 {
                self.fail(format!("{id:?} lives as {instances:?} at {nodes:?}"));
            }
            let Some(some) = self.hosts.get(&nodes[0]) else { continue };
            let owner = some.node.members().owners(&id).first;
            let Some(host) = self.hosts.get(&owner).filter(|host| host.is_up) else {
                self.fail(format!("{:?} takes {owner:?}, which is down, for a member", nodes[0]));
                continue;
            };
            let known = host.node.directory().holders(&id);
            for node in nodes {
                if !known.contains(&node) {
                    self.fail(format!("{owner:?} does not know that {node:?} holds {id:?}"));
                }
            }
        }
    }

    fn get_everything_once_more(&mut self) {
        for id in self.existing().into_keys() {
            for _ in 0..2 {
                let nodes = self.staying();
                let Some(node) = self.dice.pick(&nodes) else { continue };
                let client = self.client_of(node);
                let ask = hoplite_proto::ask::Ask::Get { id: id.clone() };
                let purpose = Purpose::Get { id: id.clone(), hold_ns: 0 };
                self.ask(node, client, ask, purpose, None);
            }
        }
    }

    /// No client waits for an object that exists, unless it does not fit.
    fn check_waiters(&mut self) {
        let existing = self.existing();
        let mut stuck = None;
        for (request, asked) in &self.users.questions {
            if asked.is_answered {
                continue;
            }
            match &asked.purpose {
                Purpose::Get { id, .. } if existing.contains_key(id) => {
                    let table = self.hosts[&asked.node].node.table();
                    let holder = self.hosts[&existing[id][0]].node.table();
                    let copy = holder.current(id).and_then(|instance| holder.get(instance));
                    let size = copy.map_or(0, |copy| copy.meta.size) + 4096;
                    let can_be_sent = copy.is_none_or(|copy| copy.place == Place::Memory);
                    if has_room(table, size, self.plan.disk)
                        && (can_be_sent || has_room(holder, size, self.plan.disk))
                    {
                        stuck = Some(format!(
                            "{request:?} at {:?} waits for {id:?}; {} of {} bytes are used, {} pinned",
                            asked.node,
                            table.used(),
                            table.capacity(),
                            table.pinned()
                        ));
                    }
                }
                Purpose::Get { id, .. } if self.could_be_folded(id, &existing) => {
                    stuck =
                        Some(format!("{request:?} waits for {id:?}, of which all inputs exist"));
                }
                Purpose::Seal { .. } | Purpose::Delete | Purpose::Reduce { .. } => {
                    stuck = Some(format!("{request:?} waits: {:?}", asked.purpose));
                }
                Purpose::Put { .. } | Purpose::Create { .. } | Purpose::Keep { .. }
                    if !self.is_tight() =>
                {
                    stuck = Some(format!("{request:?} waits: {:?}", asked.purpose));
                }
                purpose => {
                    if let Some(why) = self.stuck_look(asked.node, purpose, &existing) {
                        stuck = Some(format!("{request:?} waits: {purpose:?}: {why}"));
                    }
                }
            }
        }
        if let Some(stuck) = stuck {
            self.fail(format!("{stuck}, which there is"));
        }
    }

    /// Whether an object is the result of a reduce whose caller is there, and so are enough of its inputs, with room for
    /// everything.
    fn could_be_folded(&self, id: &ObjectId, existing: &BTreeMap<ObjectId, Vec<NodeId>>) -> bool {
        let mut made = self.users.objects_of(id);
        let (Some(object), None) = (made.next(), made.next()) else { return false };
        let Make::Reduce { inputs, count, patience_ns, .. } = &object.spec.make else {
            return false;
        };
        // It may have run out of time where the owners of its name did not hear of that.
        if patience_ns.is_some() && object.spec.name.is_some() && self.users.is_shrunk {
            return false;
        }
        let ids = self.ids(inputs);
        let is_there =
            |id: &&ObjectId| existing.contains_key(*id) && self.users.objects_of(id).count() == 1;
        let is_caller_there = object.node.is_some_and(|node| self.staying().contains(&node));
        is_caller_there
            && !(self.is_tight() || object.is_failed || object.may_be_gone())
            && ids.iter().filter(is_there).count() >= (*count).min(ids.len())
    }

    fn delete_everything(&mut self) {
        let nodes = self.staying();
        let Some(node) = self.dice.pick(&nodes) else { return };
        let known = self.users.objects.iter().filter_map(|object| object.id.clone());
        let mut ids: BTreeSet<ObjectId> = known.collect();
        for host in self.hosts.values().filter(|host| host.is_up) {
            ids.extend(host.node.table().iter().map(|(_, copy)| copy.id.clone()));
        }
        let client = self.client_of(node);
        if self.failure.is_none() {
            self.delete(node, client, ids.into_iter().collect());
        }
    }

    /// Everything is deleted and no client asks: nothing is left.
    fn check_rest(&mut self) {
        let mut left = Vec::new();
        for (node, host) in self.hosts.iter().filter(|(_, host)| host.is_up) {
            let waiting = host.node.open_requests();
            if waiting > 0 {
                left.push(format!("{waiting} questions at {node:?}"));
            }
            for (instance, copy) in host.node.table().iter() {
                left.push(format!("a copy of {:?} at {node:?}: {instance} {copy:?}", copy.id));
            }
            // A question may stay with a node that owned the object between two changes of members.
            let is_stale = |what: &String| what.ends_with("of others") && self.users.is_shrunk;
            let unfinished = host.node.unfinished().filter(|what| !is_stale(what));
            left.extend(unfinished.map(|what| format!("{what} at {node:?}")));
            left.extend(host.slots.keys().map(|slot| format!("slot {slot} at {node:?}")));
            left.extend(host.files.keys().map(|file| format!("a file of {file} at {node:?}")));
            for id in self.users.by_id.keys() {
                for holder in host.node.directory().holders(id) {
                    left.push(format!("{holder:?} as a holder of {id:?} at {node:?}"));
                }
            }
        }
        left.extend(self.shell.flows.values().map(|flow| format!("{flow:?}")));
        left.extend(self.shell.folds.values().map(|fold| format!("{fold:?}")));
        let open = self.users.questions.iter().filter(|(_, asked)| !asked.is_answered);
        left.extend(open.map(|(request, asked)| format!("{request:?}: {:?}", asked.purpose)));
        if !left.is_empty() {
            self.fail(format!("left over when all is deleted: {}", left.join("; ")));
        }
    }
}

/// Whether a node has room for a copy, or can make some by writing others to its disk.
fn has_room(table: &Table, size: u64, disk: Option<Disk>) -> bool {
    let disk = disk.filter(|disk| disk.failures == 0);
    let largest = table.iter().map(|(_, copy)| file_bytes(copy.meta.size)).max().unwrap_or(0);
    let files = table.unfiled() + (table.unfiled() >> 3) + 8192 * table.len() as u64;
    let taken = table.on_disk() + files + 2 * largest;
    let spillable = if disk.is_some_and(|disk| taken <= disk.limit) { table.unfiled() } else { 0 };
    table.pinned() - spillable + size <= table.capacity()
}

/// Whether `tags` are one content each of `count` of `candidates`.
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
