//! Range: a client gets rows or bytes of an object without the rest.
//!
//! If the object is on this node or arrives, the client gets the whole and selects itself.
//! Otherwise a watch reports when a complete copy exists, an owner chooses a source, and the range
//! is fetched into a private copy. [`crate::machines::range_reads`] tracks each request.

use alloc::string::{String, ToString};

use super::{Node, status::NOT_PUT};
use crate::{
    error::Error,
    event::{Action, FetchOrder, RangeSource},
    id::{Instance, NodeId, ObjectId, RequestId},
    inline::Inline,
    machines::{
        copies::PendingCopy,
        questions::Asker,
        range_reads::{RangeCopy, RangePhase},
        requests::{RequestContext, RequestKind},
    },
    message::{Found, Message},
    question::Question,
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
        self.range_reads.begin(context.request, id.clone(), selection);
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
        if let Some((selection, copy)) = self.range_reads.reported(request, from) {
            self.range_is_at(request, id, found, selection, copy);
        }
    }

    fn watch_range(&mut self, request: RequestId, id: ObjectId) {
        let watch = Question::Watch { id, seen: false };
        self.questions.ask(Asker::Range(request), watch, &mut self.world);
    }

    fn range_is_at(
        &mut self,
        request: RequestId,
        id: &ObjectId,
        found: &Found,
        selection: Selection,
        copy: Option<RangeCopy>,
    ) {
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
        if copy.is_some_and(|copy| copy.of == instance) {
            return self.locate_range(request);
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
        if let Some(before) = self.range_reads.drop_copy(request) {
            // The name belongs to another object by now.
            self.drop_range_copy(before);
        }
        let (own, size) = (self.world.next_instance(), meta.size);
        let copy = RangeCopy { instance: own, of: instance, start: range.start, size };
        self.range_reads.admit(request, copy);
        let state = State::Flowing(None);
        self.want(own, PendingCopy { id, meta, inline: None, state, terms: None });
    }

    /// Memory is allocated for a private copy.
    pub(super) fn range_in_memory(&mut self, instance: Instance) {
        if let Some(request) = self.range_reads.request_of(instance) {
            self.locate_range(request);
        }
    }

    /// Requests a source from the owner that reported the object, or from the other one if that is
    /// unresponsive.
    pub(super) fn locate_range(&mut self, request: RequestId) {
        let Some(query) = self.range_reads.begin_locate(request, self.world.now()) else { return };
        let owner = match self.world.is_unresponsive(query.owner) {
            true => self.world.other_owner(&query.id, query.owner).unwrap_or(query.owner),
            false => query.owner,
        };
        let (id, instance, bytes) = (query.id, query.copy.of, query.copy.size);
        let (avoid, not_here) = (self.pulls.with_unreliable(query.avoid), query.not_here);
        let locate = Message::LocateRange { id, instance, bytes, avoid, not_here, request };
        self.world.send(owner, locate);
    }

    pub(super) fn range_located(&mut self, request: RequestId, source: Option<NodeId>) {
        let (me, members) = (self.world.me(), self.world.members());
        let usable = source.filter(|source| *source != me && members.contains(*source));
        let Some(source) = usable else {
            return self.range_reads.pause(request, self.world.now());
        };
        let Some(RangeCopy { instance, of, start, .. }) = self.range_reads.receive(request, source)
        else {
            return;
        };
        let Some(id) = self.copies.get(instance).map(|copy| copy.id.clone()) else { return };
        self.copies.set_state(instance, State::Flowing(Some(source)));
        let (order, range) =
            (self.fetch_order(id, instance, source), Some(RangeSource { of, start }));
        self.world.act(Action::Fetch(FetchOrder { range, ..order }));
    }

    pub(super) fn range_failed(&mut self, instance: Instance, source: NodeId, not_here: bool) {
        let Some(request) = self.range_reads.request_of(instance) else { return };
        let failed = self.range_reads.failed(request, source, not_here, self.world.now());
        let Some(is_first) = failed else { return };
        self.copies.set_state(instance, State::Flowing(None));
        if is_first {
            self.locate_range(request);
        }
    }

    /// The whole range has arrived. Its copy is out of use for all others, and removed once the
    /// client releases it.
    pub(super) fn range_arrived(&mut self, instance: Instance) {
        let Some(request) = self.range_reads.request_of(instance) else { return };
        let Some(read) = self.range_reads.end(request) else { return };
        self.questions.close_of(Asker::Range(request), &mut self.world);
        let meta = self.copies.get(instance).map(|copy| copy.meta.clone());
        let Some((client, meta)) = self.requests.client(request).zip(meta) else {
            return self.drop_range_copy(instance);
        };
        self.copies.add_reader(instance);
        self.readers.begin(client, instance);
        self.copies.set_state(instance, State::Complete);
        self.copies.doom(instance, &mut self.world);
        let got = Reply::Got { id: read.id, meta, instance, inline: None, is_range: true };
        self.requests.reply(request, Ok(got), &mut self.world);
    }

    /// A member is gone: ranges from it arrive from other sources.
    pub(super) fn reroute_range_reads(&mut self, node: NodeId) {
        for instance in self.range_reads.received_from(node) {
            self.stop_fetches(instance);
            self.range_failed(instance, node, false);
        }
    }

    pub(super) fn expire_range_reads(&mut self) {
        while let Some((request, id)) = self.range_reads.next_due(self.world.now()) {
            self.watch_range(request, id);
        }
    }

    /// An owner reported that an object can't appear. `is_first` if it is the primary owner;
    /// another owner may not have the next put of the name yet.
    pub(super) fn range_gone(&mut self, is_first: bool, request: RequestId, error: Error) {
        let phase = self.range_reads.get(request).map(|read| read.phase);
        if is_first || phase == Some(RangePhase::Watching) {
            self.reply_range(request, Err(error));
        }
    }

    /// Fails the request for a private copy.
    pub(super) fn fail_range_of(&mut self, instance: Instance, error: Error) {
        if let Some(request) = self.range_reads.request_of(instance) {
            self.reply_range(request, Err(error));
        }
    }

    fn reply_range(&mut self, request: RequestId, reply: Result<Reply, Error>) {
        self.end_range(request);
        self.requests.reply(request, reply, &mut self.world);
    }

    /// Ends a range read without its result.
    pub(super) fn end_range(&mut self, request: RequestId) {
        let Some(read) = self.range_reads.end(request) else { return };
        self.questions.close_of(Asker::Range(request), &mut self.world);
        if let Some(copy) = read.copy {
            self.drop_range_copy(copy.instance);
        }
    }

    fn drop_range_copy(&mut self, instance: Instance) {
        self.copies.cancel(instance);
        self.stop_fetches(instance);
        self.copies.doom(instance, &mut self.world);
    }

    /// The error of a range that waits for capacity or memory on this node.
    pub(super) fn range_shortfall(&self, request: RequestId) -> Option<Error> {
        let copy = self.range_reads.get(request)?.copy?;
        self.copies.shortfall(copy.instance)
    }

    /// Describes why a range is not here, for a waiting client.
    pub(super) fn range_state(&self, request: RequestId) -> String {
        if let Some(full) = self.range_shortfall(request) {
            return full.to_string();
        }
        let state = self.range_reads.state(request);
        state.unwrap_or_else(|| match self.questions.are_answered(Asker::Range(request)) {
            true => NOT_PUT.to_string(),
            false => "its owner has not replied yet".to_string(),
        })
    }
}
