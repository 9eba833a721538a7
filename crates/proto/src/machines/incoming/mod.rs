//! Everything that arrives on this node: why it comes ([`Purpose`]), how far it is ([`Phase`]), and
//! its transfers.
//!
//! One arrival ([`Arrival`]) of an object serves all local readers and all receivers behind this
//! node. A range, or the coordinator's own copy of a ring result, arrives by itself. Each transfer
//! ([`FetchId`]) has one source.
//!
//! Also records the sources to avoid: those that failed an arrival, and those that sent corrupt
//! blocks. Each corrupt block is fetched again, from any source. A relay passes on the checksums of
//! the first source, so a corrupt block was changed by the direct source or on the way from it.
//!
//! Does not know which copies are here, nor which readers wait.

mod arrival;
mod parts;

use alloc::{collections::BTreeMap, vec::Vec};
use core::ops::Bound;

pub(crate) use self::{
    arrival::{Arrival, DigestMismatch, Phase, Purpose, RangePlace, RangeRead},
    parts::Parts,
};
use crate::{
    id::{FetchId, Instance, NodeId, ObjectId, ReduceId, RequestId},
    limits::CORRUPT_BLOCKS_MAX,
    message::{FoldOrder, RateReport, ReceiveRate, RingOrder},
    mutants::{self, Mutant},
    rate::{REMEMBERED_NS, Rate, RateMeter, SLOW_TIMES, StallReport},
    selection::Selection,
    time::Instant,
    timed::Timed,
};

/// The number of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArrivalId(u64);

/// All arrivals.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    all: Timed<ArrivalId, Arrival>,
    /// The arrival that serves the readers of an object.
    by_object: BTreeMap<ObjectId, ArrivalId>,
    by_request: BTreeMap<RequestId, ArrivalId>,
    by_copy: BTreeMap<Instance, ArrivalId>,
    by_fetch: BTreeMap<FetchId, ArrivalId>,
    /// Results that grow in parts, by epoch.
    rings: BTreeMap<(ReduceId, u32), ArrivalId>,
    /// The highest serial among the ring orders of each coordinator.
    newest: BTreeMap<NodeId, u64>,
    last_arrival: u64,
    last_fetch: u64,
    /// The number of corrupt blocks that each member has sent.
    corrupt: BTreeMap<NodeId, u32>,
    /// The rate at which this node receives from healthy sources, in bytes per second, once it was
    /// measured.
    usual_rate: Option<u64>,
    /// That this node receives slowly, as reported by an owner.
    slow: Option<SlowNotice>,
}

/// A report that this node receives slowly.
#[derive(Clone, Copy, Debug)]
struct SlowNotice {
    /// How many times slower than others.
    times: u64,
    /// The rate at the time of the report, and that time.
    bytes_per_second: u64,
    at: Instant,
}

/// Arrivals: how they begin, are found and end.
impl Incoming {
    /// Begins to look for an object; the caller still has to send the request to its owner.
    pub(crate) fn begin_whole(&mut self, id: &ObjectId) -> ArrivalId {
        let arrival = self.begin(Arrival::new(id.clone(), Purpose::Whole, Phase::Locating));
        self.by_object.insert(id.clone(), arrival);
        arrival
    }

    /// Begins to wait for an object of which a client wants a range.
    pub(crate) fn begin_range(&mut self, request: RequestId, id: ObjectId, selection: Selection) {
        let range = RangeRead { request, selection, owner: None, at: None };
        let arrival = self.begin(Arrival::new(id, Purpose::Range(range), Phase::Watching));
        self.by_request.insert(request, arrival);
    }

    /// Begins to make the result of a ring. `rank` is this node's index among the contributors, if
    /// it is one. The copy of the coordinator, `me` or another node, serves no readers until it is
    /// complete.
    pub(crate) fn begin_parts(&mut self, order: RingOrder, rank: Option<usize>, me: NodeId) {
        let (id, instance, source) = (order.id.clone(), order.instance, order.source(me));
        let (key, is_coordinator) = ((order.reduce, order.epoch), order.reduce.node == me);
        let purpose = Purpose::Parts(Parts::new(order, rank));
        let phase = Phase::Admitting { source: Some(source) };
        let arrival = self.begin(Arrival::new(id.clone(), purpose, phase));
        self.rings.insert(key, arrival);
        if !is_coordinator {
            self.by_object.insert(id, arrival);
        }
        self.admit(arrival, instance, Some(source));
    }

    fn begin(&mut self, begun: Arrival) -> ArrivalId {
        self.last_arrival += 1;
        let arrival = ArrivalId(self.last_arrival);
        self.all.insert(arrival, begun);
        arrival
    }

    /// Ends an arrival. Its transfers were ended before.
    pub(crate) fn end(&mut self, arrival: ArrivalId) -> Option<Arrival> {
        let ended = self.all.remove(&arrival)?;
        if let Some(instance) = ended.copy {
            self.by_copy.remove(&instance);
        }
        if self.by_object.get(&ended.id) == Some(&arrival) {
            self.by_object.remove(&ended.id);
        }
        match &ended.purpose {
            Purpose::Whole => {}
            Purpose::Range(range) => drop(self.by_request.remove(&range.request)),
            Purpose::Parts(parts) => self.forget_ring(&parts.order, arrival),
        }
        Some(ended)
    }

    pub(crate) fn get(&self, arrival: ArrivalId) -> Option<&Arrival> {
        self.all.get(&arrival)
    }

    /// Changes an arrival.
    pub(crate) fn update<R>(
        &mut self,
        arrival: ArrivalId,
        change: impl FnOnce(&mut Arrival) -> R,
    ) -> Option<R> {
        self.all.update(&arrival, change)
    }

    /// The arrival that serves the readers of an object.
    pub(crate) fn of_object(&self, id: &ObjectId) -> Option<ArrivalId> {
        self.by_object.get(id).copied()
    }

    /// The same, with its state.
    pub(crate) fn object(&self, id: &ObjectId) -> Option<&Arrival> {
        self.get(self.of_object(id)?)
    }

    /// The range that arrives for a request.
    pub(crate) fn of_request(&self, request: RequestId) -> Option<ArrivalId> {
        self.by_request.get(&request).copied()
    }

    /// A request for a range of an object.
    pub(crate) fn range_of(&self, id: &ObjectId) -> Option<RequestId> {
        let mut all = self.by_request.iter();
        all.find(|(_, it)| self.get(**it).is_some_and(|it| it.id == *id)).map(|(it, _)| *it)
    }

    /// What fills a copy.
    pub(crate) fn of_copy(&self, instance: Instance) -> Option<ArrivalId> {
        self.by_copy.get(&instance).copied()
    }

    /// The same, with its state.
    pub(crate) fn copy(&self, instance: Instance) -> Option<&Arrival> {
        self.get(self.of_copy(instance)?)
    }

    /// Whether a copy is made of parts of a ring result.
    pub(crate) fn is_parts(&self, instance: Instance) -> bool {
        self.copy(instance).is_some_and(Arrival::is_parts)
    }

    /// The arrivals that serve the readers of an object.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&ObjectId, ArrivalId)> {
        self.by_object.iter().map(|(id, arrival)| (id, *arrival))
    }

    /// The next object for whose readers something arrives, in order.
    pub(crate) fn next_object(&self, after: Option<&ObjectId>) -> Option<ObjectId> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_object.range((start, Bound::Unbounded)).next().map(|(id, _)| id.clone())
    }

    /// The numbers of ranges, and of results that grow in parts.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.by_request.len(), self.rings.len())
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.all.deadline()
    }

    /// The arrivals that are due, by their deadlines.
    pub(crate) fn due(&self, now: Instant) -> Vec<ArrivalId> {
        self.all.due(now)
    }

    /// Records that a copy waits for capacity or memory, after which it is fetched from `source` if
    /// that is known.
    pub(crate) fn admit(&mut self, arrival: ArrivalId, instance: Instance, source: Option<NodeId>) {
        self.release_copy(arrival);
        let admitted = self.update(arrival, |it| {
            it.copy = Some(instance);
            it.phase = Phase::Admitting { source };
            if it.range().is_some() {
                // Other nodes have this instance.
                it.forget_sources();
            }
        });
        if admitted.is_some() {
            self.by_copy.insert(instance, arrival);
        }
    }

    /// Separates an arrival from its copy, which is out of use.
    pub(crate) fn release_copy(&mut self, arrival: ArrivalId) {
        if let Some(instance) = self.update(arrival, |it| it.copy.take()).flatten() {
            self.by_copy.remove(&instance);
        }
    }
}

/// Transfers.
impl Incoming {
    /// Begins a transfer from a source.
    pub(crate) fn begin_fetch(
        &mut self,
        arrival: ArrivalId,
        source: NodeId,
        size: u64,
        now: Instant,
    ) -> FetchId {
        self.last_fetch += 1;
        let (fetch, usual) = (FetchId(self.last_fetch), self.usual_rate);
        let begun = self.update(arrival, |it| {
            it.receive(size, usual, now);
            it.fetches.insert(fetch, source);
        });
        if begun.is_some() {
            self.by_fetch.insert(fetch, arrival);
        }
        fetch
    }

    /// Ends a transfer. Returns its arrival and its source; `None` if it was ended before.
    pub(crate) fn end_fetch(&mut self, fetch: FetchId) -> Option<(ArrivalId, NodeId)> {
        let arrival = self.by_fetch.remove(&fetch)?;
        let source = self.update(arrival, |it| it.fetches.remove(&fetch)).flatten()?;
        Some((arrival, source))
    }

    /// Ends all transfers of an arrival, and returns them.
    pub(crate) fn end_fetches(&mut self, arrival: ArrivalId) -> Vec<FetchId> {
        let ended = self.update(arrival, |it| core::mem::take(&mut it.fetches)).unwrap_or_default();
        for fetch in ended.keys() {
            self.by_fetch.remove(fetch);
        }
        ended.into_keys().collect()
    }

    /// The transfers from a node. Parts of a ring are not among them: they come from this node or
    /// not at all.
    pub(crate) fn fetches_from(&self, node: NodeId) -> Vec<FetchId> {
        let all = self.all.values().filter(|it| !it.is_parts()).flat_map(|it| &it.fetches);
        all.filter(|(_, source)| **source == node).map(|(fetch, _)| *fetch).collect()
    }

    /// A transfer waits for its turn. It is not stalled, although nothing arrives.
    pub(crate) fn queued(&mut self, fetch: FetchId) {
        self.set_meter(fetch, None);
    }

    /// Measures a queued transfer from now on.
    pub(crate) fn started(&mut self, fetch: FetchId, now: Instant) {
        self.set_meter(fetch, Some(RateMeter::new(now)));
    }

    fn set_meter(&mut self, fetch: FetchId, new: Option<RateMeter>) {
        let Some(arrival) = self.by_fetch.get(&fetch).copied() else { return };
        self.update(arrival, |it| {
            let is_measured = !it.is_parts();
            if let Phase::Receiving { meter, .. } = &mut it.phase {
                *meter = new.filter(|_| is_measured);
            }
        });
    }

    /// Records progress, while `shares - 1` other transfers share the link. Returns the report that
    /// is due.
    pub(crate) fn grew(
        &mut self,
        fetch: FetchId,
        received: u64,
        missing_now: u64,
        shares: u16,
        now: Instant,
    ) -> Option<RateReport> {
        let arrival = *self.by_fetch.get(&fetch)?;
        let rate = self.update(arrival, |it| {
            let is_whole = it.is_whole();
            let Phase::Receiving { meter, missing, usual } = &mut it.phase else { return None };
            *missing = missing_now;
            meter.as_mut()?.grew(now, received, shares, *usual).filter(|_| is_whole)
        });
        let rate = rate.flatten()?;
        // It is no longer slow, compared with the rate of others at the time of the report, which
        // was `times` times higher.
        self.slow.take_if(|slow| {
            slow.bytes_per_second.saturating_mul(slow.times)
                < rate.fair().saturating_mul(SLOW_TIMES)
        });
        self.report(arrival, rate)
    }

    /// Handles a transfer in which nothing has arrived for a while. Returns the report, and which
    /// owner gets it.
    pub(crate) fn stalled(
        &mut self,
        arrival: ArrivalId,
        now: Instant,
    ) -> Option<(RateReport, StallReport)> {
        let due = self.update(arrival, |it| match &mut it.phase {
            Phase::Receiving { meter: Some(meter), .. } => meter.expire(now),
            _ => None,
        });
        let due = due.flatten()?;
        Some((self.report(arrival, Rate::STALLED)?, due))
    }

    fn report(&self, arrival: ArrivalId, rate: Rate) -> Option<RateReport> {
        let it = self.get(arrival)?;
        let &Phase::Receiving { missing, usual, .. } = &it.phase else { return None };
        let (id, instance, source) = (it.id.clone(), it.copy?, it.source()?);
        Some(RateReport { id, instance, source, rate, missing, usual })
    }

    pub(crate) const fn set_usual_rate(&mut self, rate: Option<u64>) {
        self.usual_rate = rate;
    }

    /// Records that an owner found this node to receive `times` times slower than others.
    pub(crate) fn found_slow(&mut self, times: u64, bytes_per_second: u64, now: Instant) {
        self.slow = Some(SlowNotice { times, bytes_per_second, at: now });
    }

    /// The receive rate that this node includes in its requests to owners.
    pub(crate) fn receives(&self, now: Instant) -> ReceiveRate {
        let known = self.slow.filter(|slow| now.since(slow.at) < REMEMBERED_NS);
        ReceiveRate { slowness: known.map_or(1, |slow| slow.times), usual: self.usual_rate }
    }

    /// Counts a corrupt block of a member. Returns the count when the member starts to be avoided.
    pub(crate) fn block_corrupt(&mut self, source: NodeId) -> Option<u32> {
        let count = self.corrupt.entry(source).or_default();
        *count = count.saturating_add(1);
        (*count == CORRUPT_BLOCKS_MAX).then_some(*count)
    }

    /// The number of corrupt blocks of each member.
    pub(crate) fn corrupt(&self) -> Vec<(NodeId, u32)> {
        self.corrupt.iter().map(|(node, blocks)| (*node, *blocks)).collect()
    }

    /// Members that send corrupt blocks: sources only of objects that no other node has.
    fn unreliable(&self) -> impl Iterator<Item = NodeId> {
        let trusts_all = mutants::is_active(Mutant::TrustsCorruptSources);
        let many = self.corrupt.iter().filter(|(_, count)| **count >= CORRUPT_BLOCKS_MAX);
        many.map(|(node, _)| *node).filter(move |_| !trusts_all)
    }

    /// Sources to use only if no other node has the object: those that failed, and those that send
    /// corrupt blocks.
    pub(crate) fn avoided(&self, arrival: ArrivalId) -> Vec<NodeId> {
        let mut avoided = self.get(arrival).map_or_else(Vec::new, |it| it.avoid.clone());
        for node in self.unreliable() {
            if !avoided.contains(&node) {
                avoided.push(node);
            }
        }
        avoided
    }

    /// Whether a source has failed an arrival before, or sends corrupt blocks.
    pub(crate) fn avoids(&self, arrival: ArrivalId, node: NodeId) -> bool {
        self.get(arrival).is_some_and(|it| it.avoid.contains(&node))
            || self.unreliable().any(|other| other == node)
    }

    /// Forgets a lost member.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.corrupt.remove(&node);
        self.newest.remove(&node);
    }
}

/// Results that grow in parts.
impl Incoming {
    /// The parts of a result.
    pub(crate) fn parts(&self, instance: Instance) -> Option<&Parts> {
        match &self.copy(instance)?.purpose {
            Purpose::Parts(parts) => Some(parts),
            Purpose::Whole | Purpose::Range(_) => None,
        }
    }

    /// The result of an epoch that grows here.
    pub(crate) fn of_epoch(&self, reduce: ReduceId, epoch: u32) -> Option<Instance> {
        self.get(*self.rings.get(&(reduce, epoch))?)?.copy
    }

    /// The results of a reduce up to and including an epoch.
    pub(crate) fn up_to(&self, reduce: ReduceId, epoch: u32) -> Vec<Instance> {
        let all = self.rings.range((reduce, 0)..=(reduce, epoch));
        all.filter_map(|(_, arrival)| self.get(*arrival)?.copy).collect()
    }

    /// The results of a coordinator, and whether all of each is here.
    pub(crate) fn of_coordinator(&self, node: NodeId) -> Vec<(Instance, bool)> {
        let theirs = self.rings.iter().filter(|((reduce, _), _)| reduce.node == node);
        let all = theirs.filter_map(|(_, arrival)| self.get(*arrival));
        all.filter_map(|it| Some((it.copy?, it.is_fetched()))).collect()
    }

    /// Whether an order is newer than all others of its coordinator. Serials only grow, so an order
    /// is never carried out twice.
    pub(crate) fn is_new(&mut self, order: &RingOrder) -> bool {
        let newest = self.newest.entry(order.reduce.node).or_default();
        let is_new = order.instance.serial > *newest;
        *newest = order.instance.serial.max(*newest);
        is_new
    }

    /// Returns the next fold of this node and whether it makes this node's own part, and counts it
    /// as begun.
    pub(crate) fn next_fold(&mut self, instance: Instance) -> Option<(FoldOrder, bool)> {
        let next = self.update(self.of_copy(instance)?, |it| {
            let has_memory = it.is_receiving();
            let Purpose::Parts(parts) = &mut it.purpose else { return None };
            parts.next_fold(has_memory)
        });
        next.flatten()
    }

    /// Records that the coordinator has all of a result, so that the copy here cannot become void.
    /// Returns whether all of it is here.
    pub(crate) fn decide(&mut self, instance: Instance) -> bool {
        let decided = self.of_copy(instance).and_then(|arrival| {
            self.update(arrival, |it| {
                let Purpose::Parts(parts) = &mut it.purpose else { return false };
                parts.is_decided = true;
                it.is_fetched()
            })
        });
        decided == Some(true)
    }

    /// Ends the production of a result from parts. If readers wait for the object, its arrival goes
    /// on as a whole.
    pub(crate) fn end_parts(&mut self, instance: Instance) -> Option<Parts> {
        let arrival = self.of_copy(instance).filter(|_| self.is_parts(instance))?;
        let purpose =
            self.update(arrival, |it| core::mem::replace(&mut it.purpose, Purpose::Whole))?;
        let Purpose::Parts(parts) = purpose else { return None };
        self.forget_ring(&parts.order, arrival);
        if self.by_object.get(&parts.order.id) != Some(&arrival) {
            self.end(arrival);
        }
        Some(parts)
    }

    fn forget_ring(&mut self, order: &RingOrder, arrival: ArrivalId) {
        let key = (order.reduce, order.epoch);
        if self.rings.get(&key) == Some(&arrival) {
            self.rings.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
