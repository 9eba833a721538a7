//! What a hostile member says: a message of each kind, well-formed, about objects, copies, reduces, questions and members that
//! there are, or nearly.
//!
//! It knows everything that any node knows. What every member may do it does only to objects of its own, for to others it
//! would be no lie.

use hoplite_proto::{
    broadcast::Reason,
    error::Error,
    id::{Instance, Name, NodeId, ObjectId, ReduceId, RequestId},
    inline::Inline,
    lifetime::Lease,
    limits::{BLOCK_BYTES, INLINE_BYTES_MAX},
    members::Member,
    message::{
        Announce, ENDED, FoldKey, FoldOrder, Found, Holding, Listed, Message, Paced, Progress,
        Receives, ScatterOrder, Source,
    },
    meta::{Meta, Op},
    node::Kind,
    pace::Rate,
    survey::Burst,
    swim::Rumour,
};

use crate::{payload::Tag, plan::PUBLISHED, world::World};

/// What no client put.
const FALSE: Tag = Tag(u64::MAX);

/// An object and an instance of it, real or made up.
struct Subject {
    id: ObjectId,
    instance: Instance,
    meta: Meta,
}

impl World {
    /// A message for `to`; none if chance wanted what is no lie.
    pub(crate) fn make_up(&mut self, to: NodeId) -> Option<Message> {
        let kind = self.dice.pick(Kind::ALL)?;
        let subject = self.subject()?;
        let is_its = self.is_its_game(&subject.id);
        let message = self.made_up(kind, to, subject)?;
        let is_any_clients = matches!(
            message,
            Message::Delete { .. }
                | Message::Remember { .. }
                | Message::Reserve { .. }
                | Message::Fail { .. }
                | Message::Leased { .. }
        ) || matches!(&message, Message::Announce(told) if told.id.minter().is_none() && self.is_hostile(told.instance.node));
        // What is said of a maker that the receiver has not met is believed: docs/security.md.
        let is_met = match &message {
            Message::Announce(told) => {
                let maker = told.instance.node;
                self.hosts.get(&to).is_some_and(|host| host.node.members().contains(maker))
            }
            _ => true,
        };
        (message.is_sound() && is_met && (is_its || !is_any_clients)).then_some(message)
    }

    fn hostile_node(&self) -> NodeId {
        self.hostile.as_ref().map_or(NodeId(0), |hostile| hostile.node)
    }

    fn any_node(&mut self) -> NodeId {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        self.dice.pick(&nodes).unwrap_or(NodeId(1))
    }

    fn subject(&mut self) -> Option<Subject> {
        let known: Vec<(ObjectId, Instance, Meta)> = self
            .hosts
            .values()
            .flat_map(|host| host.node.table().iter())
            .map(|(instance, copy)| (copy.id.clone(), instance, copy.meta.clone()))
            .collect();
        let named = self.users.by_id.keys().cloned().collect::<Vec<_>>();
        let (mut id, mut instance, mut meta) = match self.dice.pick(&known) {
            Some(known) if self.dice.chance(80) => known,
            _ => {
                // An object that is not there yet, or was never put.
                let maker = self.any_node();
                let serial = self.dice.below(60);
                let minted = ObjectId::Minted { node: maker, serial };
                let id = self.dice.pick(&named).filter(|_| self.dice.chance(50)).unwrap_or(minted);
                let node = id.minter().unwrap_or(maker);
                let spec = self.users.objects_of(&id).next().map(|object| object.spec.meta.clone());
                let meta = spec.unwrap_or(Meta::bytes(INLINE_BYTES_MAX + 1));
                (id, Instance { node, serial: self.dice.below(60) }, meta)
            }
        };
        match self.dice.below(8) {
            0 => instance.serial += self.dice.between(1, 3),
            1 => meta = Meta::bytes(self.dice.between(1, 2 * INLINE_BYTES_MAX)),
            2 if id.minter().is_none() => instance.node = self.any_node(),
            3 => id = self.dice.pick(&named).unwrap_or(id),
            _ => {}
        }
        Some(Subject { id, instance, meta })
    }

    fn false_bytes(meta: &Meta) -> Inline {
        let mut bytes = FALSE.0.to_le_bytes().to_vec();
        bytes.resize(meta.size as usize, 0);
        bytes.into()
    }

    fn false_inline(meta: &Meta) -> Option<Inline> {
        (meta.size <= INLINE_BYTES_MAX).then(|| Self::false_bytes(meta))
    }

    fn false_progress(&mut self, meta: &Meta) -> Progress {
        match Self::false_inline(meta) {
            Some(bytes) => Progress::Inline(bytes),
            None => match self.dice.below(4) {
                0 => Progress::Parts,
                1 => Progress::Partial { source: None },
                2 => Progress::Partial { source: Some(self.any_node()) },
                _ => Progress::Complete,
            },
        }
    }

    fn false_source(&mut self, meta: &Meta) -> Source {
        match Self::false_inline(meta) {
            Some(bytes) => Source::Inline(bytes),
            None => Source::Holder { node: self.any_node(), reason: Reason::OnlyHolder },
        }
    }

    fn false_error(&mut self, id: &ObjectId) -> Error {
        let id = id.clone();
        if self.dice.chance(50) {
            Error::ObjectDeleted { id }
        } else {
            Error::ObjectLost { id, detail: "so it is said".into() }
        }
    }

    /// A question that a client of a node waits for, or any other.
    fn any_request(&mut self, of: NodeId) -> RequestId {
        let asked = self.users.questions.iter();
        let open = asked.filter(|(_, asked)| asked.node == of && !asked.is_answered);
        let open: Vec<RequestId> = open.map(|(request, _)| *request).collect();
        self.dice.pick(&open).unwrap_or(RequestId(self.dice.below(100)))
    }

    fn any_name(&mut self) -> Option<Name> {
        format!("{PUBLISHED}{}", self.dice.below(100)).parse().ok()
    }

    fn any_reduce(&mut self) -> (ReduceId, u32) {
        let known = self.hostile.iter().flat_map(|hostile| hostile.reduces.iter().copied());
        let known: Vec<(ReduceId, u32)> = known.collect();
        let (mut reduce, mut epoch) = self
            .dice
            .pick(&known)
            .unwrap_or((ReduceId { node: NodeId(1), serial: self.dice.below(50) }, 0));
        match self.dice.below(4) {
            0 => epoch += 1,
            1 => reduce.node = self.hostile_node(),
            _ => {}
        }
        (reduce, epoch)
    }

    fn any_rumour(&mut self) -> Rumour {
        let (node, sequence) = (self.any_node(), self.dice.below(200));
        let incarnation = match self.dice.below(3) {
            0 => ENDED - 1,
            1 => 0,
            _ => self.dice.below(9) as u32,
        };
        let all = [
            Rumour::Ping { sequence },
            Rumour::Ack { sequence },
            Rumour::PingReq { node, sequence },
            Rumour::Suspect { node, incarnation },
            Rumour::Alive { node, incarnation },
        ];
        all[self.dice.below(all.len() as u64) as usize]
    }

    fn fold_order(&mut self, subject: &Subject) -> FoldOrder {
        let ((reduce, epoch), size) = (self.any_reduce(), subject.meta.size);
        let position = self.dice.below(1 << 20) as u32;
        FoldOrder {
            key: FoldKey { reduce, epoch, segment: 0, position },
            inputs: vec![subject.instance],
            children: Vec::new(),
            op: Op::Sum,
            dtype: hoplite_proto::meta::Dtype::Int64,
            size,
            part: 0..size,
            frame: BLOCK_BYTES as u32,
        }
    }

    #[allow(clippy::too_many_lines)]
    fn made_up(&mut self, kind: Kind, to: NodeId, subject: Subject) -> Option<Message> {
        let reduce_epoch = self.any_reduce();
        let (reduce, epoch) = reduce_epoch;
        let (node, other) = (self.any_node(), self.any_node());
        let request = self.any_request(to);
        let (yes, error) = (self.dice.chance(50), self.false_error(&subject.id));
        let fold = self.fold_order(&subject);
        let progress = self.false_progress(&subject.meta);
        let source = self.false_source(&subject.meta);
        let Subject { id, instance, meta } = subject;
        let reason = String::from("so it is said");
        Some(match kind {
            Kind::Members => {
                // Nodes that are not there own objects until they are missed.
                let id = NodeId(1000 + self.dice.below(20));
                let port = 7420 + (id.0 % 100) as u16;
                let there = self.hosts.get(&node)?.member;
                let strange = Member { id, address: ([10, 9, 9, 9], port).into(), place: None };
                Message::Members(if self.dice.chance(5) { vec![strange] } else { vec![there] })
            }
            Kind::Leaving => Message::Leaving,
            Kind::Unseated => Message::Unseated,
            Kind::Leave if self.hostile.as_ref()?.may_leave && self.dice.chance(5) => {
                Message::Leave
            }
            Kind::Leave => return None,
            Kind::Down => {
                let incarnation = if yes { ENDED } else { self.dice.below(4) as u32 };
                Message::Down { node, incarnation, reason }
            }
            Kind::Forgotten => Message::Forgotten,
            Kind::Rumour => Message::Rumour(self.any_rumour()),
            Kind::Announce => {
                let (origin, claim) = (yes, self.dice.chance(20));
                Message::Announce(Announce {
                    id,
                    instance,
                    meta,
                    origin,
                    progress,
                    claim,
                    lifetime: None,
                })
            }
            Kind::Claimed => Message::Claimed { id, instance, taken_by: yes.then_some(node) },
            Kind::Withdraw => Message::Withdraw { id, instance },
            Kind::Locate => {
                let (avoid, not_here) = (vec![other], yes.then_some((node, instance)));
                let usual = yes.then(|| self.dice.below(1 << 40));
                let receives = Receives { slowness: self.dice.below(9), usual };
                Message::Locate { id, avoid, not_here, receives, seen: yes }
            }
            Kind::Unlocate => Message::Unlocate { id },
            Kind::Paced => {
                let (bytes_per_second, missing) = (self.dice.below(1 << 30), meta.size);
                let shares = self.dice.below(1 << 16) as u16;
                let rate = Rate { bytes_per_second, shares };
                let usual = yes.then_some(1 << 30);
                let source = node;
                Message::Paced(Paced { id, instance, source, rate, missing, usual })
            }
            Kind::Slow => Message::Slow { times: u64::MAX, bytes_per_second: 0 },
            Kind::Waiting => Message::Waiting { id },
            Kind::Located => Message::Located { id, instance, meta, source, lifetime: None },
            Kind::Redirect => Message::Redirect { id, instance, source: node },
            Kind::Gone => Message::Gone { id, error },
            Kind::Watch => Message::Watch { id, seen: yes },
            Kind::Unwatch => Message::Unwatch { id },
            Kind::Found => {
                let inline = Self::false_inline(&meta);
                let found = Found { instance, meta, holder: node, inline, complete: yes };
                Message::Found { id, found: self.dice.chance(80).then_some(found) }
            }
            Kind::Locations => Message::Locations { id, known: yes.then(Vec::new), request },
            Kind::Unlocations => Message::Unlocations { id, request },
            Kind::LocationsAre => {
                let holdings = Ok(vec![Holding { node, complete: yes }]);
                Message::LocationsAre { request, holdings }
            }
            Kind::Reserve => Message::Reserve { id, instance },
            Kind::Delete => Message::Delete { id, request, pruned: false },
            Kind::Deleted => Message::Deleted { id, request },
            Kind::Drop => Message::Drop { id, instance, error: yes.then_some(error) },
            Kind::Stranded => Message::Stranded { id, instance, error },
            Kind::Doubted => Message::Doubted { id, instance },
            Kind::Dropped => Message::Dropped { id, instance },
            Kind::Fail => Message::Fail { id, error, reserved: None },
            Kind::Abandon => Message::Abandon { id, instance },
            Kind::Remember => {
                let (instances, error) = (vec![instance], yes.then_some(error));
                Message::Remember { id, instances, error, pruned: yes }
            }
            Kind::Latest => {
                Message::Latest { prefix: PUBLISHED.into(), after: yes.then_some(3), request }
            }
            Kind::Unlatest => Message::Unlatest { request },
            Kind::LatestIs => Message::LatestIs { name: self.any_name()?, request },
            Kind::NothingYet => Message::NothingYet { request, id: yes.then_some(id) },
            Kind::Older => {
                Message::Older { name: self.any_name()?, keep: self.dice.below(4), request }
            }
            Kind::OlderAre => Message::OlderAre { names: vec![self.any_name()?], request },
            Kind::List => Message::List { prefix: String::new(), after: None, request },
            Kind::ListIs => {
                let row = Listed {
                    id: id.clone(),
                    meta,
                    complete: 1,
                    partial: 0,
                    age_ns: 0,
                    lifetime: None,
                };
                Message::ListIs { request, rows: vec![row], next: Some(id) }
            }
            Kind::Leased => Message::Leased { lease: Lease::Object(id), is_taken: false },
            Kind::Covers => Message::Covers { job: self.any_name()?, covers: false },
            Kind::JobEnded => Message::JobEnded { job: self.any_name()? },
            Kind::Fold => Message::Fold(fold),
            Kind::Scatter => {
                let serial = self.dice.below(1 << 20);
                let id = ObjectId::Minted { node: reduce.node, serial };
                let order_instance = Instance { node: reduce.node, serial };
                let nodes: Vec<NodeId> = self.hosts.keys().copied().take(4).collect();
                let seats = nodes.into_iter().enumerate().map(|(at, node)| {
                    let serial = instance.serial + at as u64;
                    (node, vec![Instance { serial, ..instance }])
                });
                Message::Scatter(Box::new(ScatterOrder {
                    reduce,
                    epoch,
                    id,
                    instance: order_instance,
                    meta,
                    op: Op::Sum,
                    frame: BLOCK_BYTES as u32,
                    seats: seats.collect(),
                }))
            }
            Kind::Unfold => Message::Unfold { reduce, epoch, is_void: yes },
            Kind::FoldStarves => Message::FoldStarves { reduce, epoch, node },
            Kind::FoldProbe => Message::FoldProbe { reduce, epoch },
            Kind::FoldAlive => Message::FoldAlive { reduce, epoch },
            Kind::FoldFailed => Message::FoldFailed { reduce, epoch, detail: reason, is_lost: yes },
            Kind::Adopt => {
                let inline = Self::false_inline(&meta);
                Message::Adopt { id, instance, meta, inline, lifetime: None, may_wait: yes }
            }
            Kind::Adopted => Message::Adopted { id, instance, kept: yes },
            Kind::Unkeep => Message::Unkeep { id, instance },
            Kind::Measure => {
                let (round, to) = (self.dice.below(50) as u32, node);
                Message::Measure { round, to, bytes: self.dice.below(1 << 32) as u32 }
            }
            Kind::Burst => {
                let filling = vec![0; 64].into();
                Message::Burst { round: self.dice.below(50) as u32, left: 0, filling }
            }
            Kind::BurstCame => {
                Message::BurstCame { round: self.dice.below(50) as u32, is_busy: yes }
            }
            Kind::Measured => {
                let (round, ns) = (self.dice.below(50) as u32, self.dice.below(1 << 40));
                let burst = if yes { Burst::Took(ns) } else { Burst::Void };
                Message::Measured { round, burst }
            }
            Kind::Places => {
                let place = if yes { "lie".parse().ok() } else { None };
                Message::Places { places: vec![(node, place)] }
            }
        })
    }
}
