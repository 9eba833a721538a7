//! Dispatches events to machines. Client requests are in [`super::verbs`], messages in
//! [`super::messages`].

use super::Node;
use crate::{
    directory::Directory, event::Event, id::NodeId, message::Message, question::Answer,
    reduce::cost::Link,
};

impl Node {
    pub(super) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Request { client, request, body, deadline } => {
                self.handle_request(client, request, body, deadline);
            }
            Event::Cancelled { request, .. } => self.time_out(request),
            Event::ClientDisconnected { client, process } => {
                self.client_disconnected(client, process);
            }
            Event::ClientForked { client, child } => self.client_forked(client, child),
            Event::Message { from, message } => self.message_arrived(from, message),
            Event::PeerUp { member } => self.peer_up(member),
            Event::PeerReconnected { member } => self.peer_reconnected(member),
            Event::PeerUnreachable { node, is_dead } => {
                let lost = self.membership.peer_unreachable(node, is_dead, &mut self.world);
                self.handle_departure(lost);
            }
            Event::PeerRevoked { node, reason } => {
                let lost = self.membership.peer_revoked(node, reason, &mut self.world);
                self.handle_departure(lost);
            }
            Event::ReconnectFailed { node, failure } => {
                self.membership.reconnect_failed(node, failure)
            }
            Event::FetchRequested { serve, id, instance } => self.serve(serve, &id, instance),
            Event::ServeEnded { serve } => self.serve_ended(serve),
            Event::FetchQueued { fetch } => self.incoming.queued(fetch),
            Event::FetchStarted { fetch } => self.incoming.started(fetch, self.world.now()),
            Event::FetchProgress { fetch, received, missing, shares } => {
                self.fetch_grew(fetch, received, missing, shares);
            }
            Event::Fetched { fetch } => self.fetch_ended(fetch),
            Event::FetchFailed { fetch, not_here } => self.fetch_failed(fetch, not_here),
            Event::BlockCorrupt { source } => self.block_corrupt(source),
            Event::CopyCorrupt { fetch } => self.copy_differs(fetch),
            Event::InlineCorrupt { id, source } => self.inline_differs(&id, source),
            Event::FoldedInline { reduce, epoch, result } => {
                self.folded_inline(reduce, epoch, result);
            }
            Event::FoldStalled { key, node } => self.fold_stalled(key, node),
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure),
            Event::LinkMeasured { link, has_bandwidth } => {
                self.link_measured(link, has_bandwidth);
            }
            Event::Inspected { to, number, report } => {
                let answer = Answer::Report(report);
                self.world.send(to, Message::Answer { number, answer });
            }
            Event::LeaveRequested { timeout_ns } => self.leave(timeout_ns),
            Event::PlacesFound { places } => self.world.members_mut().set_measured(places),
            Event::DeadlinePassed => self.expire(),
            Event::SlotReady { .. }
            | Event::SlotRefused { .. }
            | Event::SlotFailed { .. }
            | Event::CopiesRecovered { .. }
            | Event::Spilled { .. }
            | Event::SpillFailed { .. }
            | Event::Unspilled { .. }
            | Event::UnspillFailed { .. } => self.dispatch_to_copy(event),
        }
    }

    /// Handles what the shell reports about the memory and the file of a copy.
    fn dispatch_to_copy(&mut self, event: Event) {
        match event {
            Event::SlotReady { instance } => self.slot_ready(instance),
            Event::SlotRefused { instance, detail } => {
                self.copies.slot_refused(instance, detail, &mut self.world);
            }
            Event::SlotFailed { instance, detail } => self.slot_failed(instance, detail),
            Event::CopiesRecovered { all } => self.recover_copies(all),
            Event::Spilled { instance } => self.copies.spilled(instance, &self.world),
            Event::SpillFailed { instance, detail, is_disk_failing } => {
                self.spill_failed(instance, detail, is_disk_failing);
            }
            Event::Unspilled { instance } => self.unspilled(instance),
            Event::UnspillFailed { instance, detail } => self.unspill_failed(instance, detail),
            // Other events do not concern the place of a copy.
            _ => {}
        }
    }

    fn message_arrived(&mut self, from: NodeId, message: Message) {
        // A node outside this membership view must introduce itself first.
        if self.world.members().contains(from) {
            self.membership.responded(from);
            if message.is_reply() {
                self.world.responded(from);
            }
            self.receive(from, message);
        }
    }

    /// The shell has measured the link of this node to the others.
    fn link_measured(&mut self, link: Link, has_bandwidth: bool) {
        self.world.link_measured(link);
        let usual = has_bandwidth.then_some(link.bytes_per_second);
        self.incoming.set_usual_rate(usual);
        self.directory.set_usual_rate(usual);
    }

    fn expire(&mut self) {
        self.update_directory(Directory::expire);
        for (node, is_first) in self.world.expire() {
            self.member_unresponsive(node, is_first);
        }
        self.expire_arrivals();
        self.copies.expire(&mut self.world);
        self.questions.expire(&mut self.world);
        self.expire_reduces();
        self.client_leases.expire(&mut self.world);
        self.expire_replicas();
        self.expire_members();
        self.expire_walk();
    }
}
