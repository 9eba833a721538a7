//! Dispatches events to machines. Client requests are in [`super::verbs`], messages in [`super::messages`].

use super::Node;
use crate::{directory::Directory, event::Event};

impl Node {
    pub(super) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Asked { client, request, ask, deadline } => {
                self.ask(client, request, ask, deadline);
            }
            Event::Cancelled { request } => self.time_out(request),
            Event::ClientGone { client } => self.client_gone(client),
            Event::ClientForked { client, heir } => self.client_forked(client, heir),
            Event::SlotReady { instance } => self.slot_ready(instance),
            Event::SlotRefused { instance, detail } => {
                self.copies.slot_refused(instance, detail, &mut self.world);
            }
            Event::SlotFailed { instance, detail } => self.slot_failed(instance, detail),
            Event::Kept { all } => self.adopt_kept(all),
            Event::Spilled { instance } => self.copies.spilled(instance, &self.world),
            Event::SpillFailed { instance, detail } => self.spill_failed(instance, detail),
            Event::Unspilled { instance } => self.unspilled(instance),
            Event::UnspillFailed { instance, detail } => self.unspill_failed(instance, detail),
            Event::Message { from, message } => {
                // A node outside this membership view must introduce itself first.
                if self.world.members().contains(from) {
                    self.membership.heard(from);
                    self.receive(from, message);
                }
            }
            Event::PeerUp { member } => self.meet(member),
            Event::PeerAgain { member } => self.meet_again(member),
            Event::PeerLost { node, is_dead } => {
                let lost = self.membership.peer_lost(node, is_dead, &mut self.world);
                self.go_on_without(lost);
            }
            Event::PeerBarred { node, reason } => {
                let lost = self.membership.peer_barred(node, reason, &mut self.world);
                self.go_on_without(lost);
            }
            Event::CallFailed { node, failure } => self.membership.call_failed(node, failure),
            Event::FetchAsked { serve, id, instance } => self.serve(serve, &id, instance),
            Event::ServeEnded { serve } => self.serve_ended(serve),
            Event::FetchGrew { instance, source, received, missing, shares } => {
                self.fetch_grew(instance, source, received, missing, shares);
            }
            Event::Fetched { instance } => self.fetched(instance),
            Event::FetchFailed { instance, source, not_here } => {
                self.fetch_failed(instance, source, not_here);
            }
            Event::BlockCorrupt { source } => self.block_corrupt(source),
            Event::CopyDiffers { instance, source } => self.copy_differs(instance, source),
            Event::InlineDiffers { id, source } => self.inline_differs(&id, source),
            Event::FoldedInline { reduce, epoch, result } => {
                self.folded_inline(reduce, epoch, result);
            }
            Event::FoldWaited { key, node } => self.fold_waited(key, node),
            Event::FoldEnded { key, failure } => self.fold_ended(key, failure),
            Event::LinkMeasured { link, has_bandwidth } => {
                self.world.link_measured(link);
                let usual = has_bandwidth.then_some(link.bytes_per_second);
                self.pulls.set_usual_rate(usual);
                self.directory.set_usual_rate(usual);
            }
            Event::LeaveAsked { patience_ns } => self.leave(patience_ns),
            Event::DeadlinePassed => self.expire(),
        }
    }

    fn expire(&mut self) {
        self.tell_directory(Directory::expire);
        self.expire_retelling();
        self.expire_pulls();
        self.copies.expire(&mut self.world);
        self.watches.expire(&mut self.world);
        self.expire_reduces();
        self.leaving.expire(self.world.now());
        self.leases.expire(self.world.now());
        for request in self.replicas.expire(&mut self.requests, &mut self.world) {
            self.time_out(request);
        }
        self.expire_members();
        self.surveys.expire(&mut self.world);
    }
}
