//! Sources of ranges: which complete copy a node fetches a range from.
//!
//! The requester becomes no holder: its range is no copy, and serves nobody.

use super::{
    context::Context,
    entry::answer,
    live::{Live, SourceRequest},
    questions::Asker,
    speeds::Speeds,
    state::Directory,
};
use crate::{
    broadcast::{Candidate, choose_source},
    id::NodeId,
    question::{Answer, LocateRange},
};

impl Directory {
    /// Replies to a request for a source of a range, at once. Without one, the requester watches
    /// the object again.
    pub(super) fn locate_range(
        &mut self,
        context: &mut Context<'_>,
        asker: Asker,
        locate: &LocateRange,
    ) {
        let LocateRange { id, instance, bytes, avoid, not_here } = locate;
        if let Some((holder, ago_ns)) = not_here
            && self.was_announced_before(id, *holder, context.now.before(*ago_ns))
        {
            self.verify_copy(context, *holder, id, *instance);
        }
        let live = self.entries.get_mut(id).and_then(|entry| entry.live.as_mut());
        let live = live.filter(|live| live.instance == *instance);
        let speeds = &mut self.speeds;
        let source =
            live.and_then(|live| live.range_source(context, asker.0, *bytes, avoid, speeds));
        context.outbox.push(answer(asker, Answer::RangeLocated(source)));
    }
}

impl Live {
    /// Chooses the complete copy that is predicted to deliver `bytes` soonest. No copy grows from a
    /// range, so pinned copies need no protection, and concurrent ranges spread over all complete
    /// copies.
    fn range_source(
        &mut self,
        context: &Context<'_>,
        node: NodeId,
        bytes: u64,
        avoid: &[NodeId],
        speeds: &mut Speeds,
    ) -> Option<NodeId> {
        let link = speeds.link_of(node, context.link);
        let request = SourceRequest { node, bytes, avoid, link, movable_since: None };
        let mut candidates = self.candidates(context, &request, speeds);
        candidates.retain(|candidate| candidate.complete);
        let equal = candidates.into_iter().map(|it| Candidate { pinned: false, ..it });
        let source = choose_source(&equal.collect::<alloc::vec::Vec<_>>(), bytes, link)?.node;
        let transfer_ns = u64::try_from(link.transfer_ns(bytes)).unwrap_or(u64::MAX);
        speeds.assigned(context.now, source, transfer_ns);
        Some(source)
    }
}
