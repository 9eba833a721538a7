//! Range: a client gets rows or bytes of an object without the rest.
//!
//! If the object is on this node or arrives, the client gets the whole and selects itself.
//! Otherwise a watch reports when a complete copy exists, and the range arrives in a private copy
//! like any other ([`super::receive`]). That copy is never announced, and removed when its reader
//! releases it.

use alloc::{
    boxed::Box,
    string::{String, ToString},
};

use super::{Node, status::NOT_PUT};
use crate::{
    error::Error,
    id::{NodeId, ObjectId, RequestId},
    inline::Inline,
    machines::{
        copies::PendingCopy,
        incoming::{Arrival, ArrivalId, Phase, RangePlace, RangeRead},
        questions::Asker,
        requests::{RequestContext, RequestKind},
    },
    message::Found,
    question::{LocateRange, Question},
    request::Reply,
    selection::Selection,
    table::State,
};

impl Node {
    pub(super) fn get_range(
        &mut self,
        context: &RequestContext,
        id: ObjectId,
        selection: Selection,
    ) -> Option<Result<Reply, Error>> {
        if self.is_here_or_arrives(&id) {
            return self.get(context, id);
        }
        self.requests.remember(context, RequestKind::Range(id.clone()), &self.world);
        self.incoming.begin_range(context.request, id.clone(), selection);
        self.watch_range(context.request, id);
        None
    }

    /// Whether the object is on this node or arrives, so that its bytes need not cross the network
    /// twice. Not if the whole only waits for a source or for capacity.
    fn is_here_or_arrives(&self, id: &ObjectId) -> bool {
        self.copies.current(id).is_some()
    }

    /// An owner reported an object.
    pub(super) fn range_found(
        &mut self,
        from: NodeId,
        request: RequestId,
        id: &ObjectId,
        found: &Found,
    ) {
        let Some(arrival) = self.incoming.of_request(request) else { return };
        if let Some(range) = self.incoming.update(arrival, |it| it.reported(from)).flatten() {
            self.range_is_at(arrival, range, id, found);
        }
    }

    /// Waits for an owner's report that a complete copy exists.
    pub(super) fn watch_range(&mut self, request: RequestId, id: ObjectId) {
        let watch = Question::Watch { id, seen_at: None };
        self.questions.ask(Asker::Range(request), watch, &mut self.world);
    }

    fn range_is_at(&mut self, arrival: ArrivalId, range: RangeRead, id: &ObjectId, found: &Found) {
        let RangeRead { request, selection, at, .. } = range;
        let (id, instance) = (id.clone(), found.instance);
        if self.is_here_or_arrives(&id) {
            // A client of this node has put or requested it meanwhile.
            let Some(context) = self.requests.context(request) else { return };
            self.end_range(request);
            if let Some(reply) = self.get(&context, id) {
                self.requests.reply(request, reply, &mut self.world);
            }
            return;
        }
        if let Some(bytes) = &found.inline {
            let (meta, inline) = (found.meta.clone(), Some(bytes.clone()));
            let got = Reply::Got { id, meta, instance, inline, is_range: false };
            return self.reply_range(request, Ok(got));
        }
        if !found.complete {
            // The owner reports again once a copy is complete.
            return;
        }
        if at.is_some_and(|at| at.of == instance) {
            return self.locate(arrival);
        }
        let (range, meta) = match selection.apply(&id, &found.meta) {
            Ok(selected) => selected,
            Err(error) => return self.reply_range(request, Err(error)),
        };
        if range.is_empty() {
            let inline = Some(Inline::from([].as_slice()));
            let got = Reply::Got { id, meta, instance, inline, is_range: true };
            return self.reply_range(request, Ok(got));
        }
        if !self.copies.table().could_hold(meta.size) {
            let error = self.copies.store_full(meta.size);
            return self.reply_range(request, Err(error));
        }
        // If it has a copy, the name belongs to another object by now.
        self.drop_range_copy(arrival);
        let place = RangePlace { of: instance, start: range.start, size: meta.size };
        self.incoming.update(arrival, |it| it.set_place(place));
        let own = self.world.next_instance();
        self.incoming.admit(arrival, own, None);
        let (state, inline) = (State::Arriving, None);
        self.want(own, PendingCopy { id, meta, inline, state, terms: None });
    }

    /// The request for a source of a range. `not_here`: see [`LocateRange`].
    pub(super) fn range_question(
        &self,
        arrival: ArrivalId,
        not_here: Option<(NodeId, u64)>,
    ) -> Option<Question> {
        let (it, avoid) = (self.incoming.get(arrival)?, self.incoming.avoided(arrival));
        let RangePlace { of: instance, size: bytes, .. } = it.range()?.at?;
        let locate = LocateRange { id: it.id.clone(), instance, bytes, avoid, not_here };
        Some(Question::LocateRange(Box::new(locate)))
    }

    /// The source of a range has sent nothing for a while. Its copy may wait for memory that does
    /// not become free, so an owner chooses another one; meanwhile the transfer may go on.
    pub(super) fn range_stalled(&mut self, arrival: ArrivalId, source: NodeId) {
        self.incoming.update(arrival, |it| {
            it.avoid(source);
            // If the owner does not reply, the other one gets the question anyway.
            it.sender_confirmed();
        });
        if let Some(question) = self.range_question(arrival, None) {
            self.ask_for_source(arrival, question);
        }
    }

    pub(super) fn range_located(&mut self, arrival: ArrivalId, source: Option<NodeId>) {
        let (me, members) = (self.world.me(), self.world.members());
        let source = source.filter(|source| *source != me && members.contains(*source));
        let receiving = self.incoming.get(arrival).filter(|it| it.is_receiving());
        // It was stalled. Each source is left once at most.
        if let Some(before) = receiving.map(Arrival::source) {
            if let Some(source) = source.filter(|source| !self.incoming.avoids(arrival, *source)) {
                self.replace_source(arrival, before, source);
            }
            return;
        }
        match source {
            Some(source) => self.fetch(arrival, source),
            None => self.pause(arrival),
        }
    }

    /// The whole range has arrived. Its copy is out of use for all others, and removed once the
    /// client releases it.
    pub(super) fn range_arrived(&mut self, arrival: ArrivalId) {
        let Some(ended) = self.incoming.end(arrival) else { return };
        let Some((request, instance)) = ended.range().map(|range| range.request).zip(ended.copy)
        else {
            return;
        };
        self.questions.close_of(Asker::Range(request), &mut self.world);
        self.questions.close_of(Asker::Arrival(arrival), &mut self.world);
        let meta = self.copies.get(instance).map(|copy| copy.meta.clone());
        let Some((client, meta)) = self.requests.client(request).zip(meta) else {
            self.copies.doom(instance, &mut self.world);
            return;
        };
        self.copies.add_reader(instance);
        self.readers.begin(client, instance);
        self.copies.set_state(instance, State::Complete);
        self.copies.doom(instance, &mut self.world);
        let got = Reply::Got { id: ended.id, meta, instance, inline: None, is_range: true };
        self.requests.reply(request, Ok(got), &mut self.world);
    }

    /// An owner reported that an object can't appear. `is_first` if it is the primary owner;
    /// another owner may not have the next put of the name yet.
    pub(super) fn range_gone(&mut self, is_first: bool, request: RequestId, error: Error) {
        let arrival = self.incoming.of_request(request).and_then(|it| self.incoming.get(it));
        if is_first || arrival.is_some_and(|it| it.phase == Phase::Watching) {
            self.reply_range(request, Err(error));
        }
    }

    pub(super) fn reply_range(&mut self, request: RequestId, reply: Result<Reply, Error>) {
        self.end_range(request);
        self.requests.reply(request, reply, &mut self.world);
    }

    /// Ends a range read without its result.
    pub(super) fn end_range(&mut self, request: RequestId) {
        let Some(arrival) = self.incoming.of_request(request) else { return };
        self.drop_range_copy(arrival);
        self.incoming.end(arrival);
        self.questions.close_of(Asker::Range(request), &mut self.world);
    }

    fn drop_range_copy(&mut self, arrival: ArrivalId) {
        self.questions.close_of(Asker::Arrival(arrival), &mut self.world);
        let Some(instance) = self.incoming.get(arrival).and_then(|it| it.copy) else { return };
        self.copies.cancel(instance);
        self.stop_fetches(arrival);
        self.copies.doom(instance, &mut self.world);
        self.incoming.release_copy(arrival);
    }

    /// The error of a range that waits for capacity or memory on this node.
    pub(super) fn range_shortfall(&self, request: RequestId) -> Option<Error> {
        let instance = self.incoming.get(self.incoming.of_request(request)?)?.copy?;
        self.copies.shortfall(instance)
    }

    /// Describes why a range is not here, for a waiting client.
    pub(super) fn range_state(&self, request: RequestId) -> String {
        if let Some(full) = self.range_shortfall(request) {
            return full.to_string();
        }
        let arrival = self.incoming.of_request(request);
        arrival.and_then(|it| self.arrival_state(it)).unwrap_or_else(|| {
            match self.questions.are_answered(Asker::Range(request)) {
                true => NOT_PUT.to_string(),
                false => "its owner has not replied yet".to_string(),
            }
        })
    }
}
