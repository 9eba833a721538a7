//! The receiving end of a payload connection, and what transfers measure of the link.
//!
//! Does not know what the bytes are for.

use std::sync::Arc;

use hoplite_proto::{
    id::NodeId,
    node::Event,
    wire::{Fetch, Header, WireError},
};

use super::{
    path::{Arrived, End, Incoming, PayloadPath},
    shared::Transfers,
    streams::Active,
    timeout::TransferTimeout,
};
use crate::{error::LinkError, frame, link::Throughput};

/// The receiving end of a connection, whatever its bytes are for. It carries one transfer after the
/// other.
pub(super) struct Receiving<I> {
    transfers: Arc<Transfers>,
    pub(super) incoming: I,
    source: NodeId,
    transfer: u64,
    pub(super) timeout: TransferTimeout,
}

impl<I: Incoming> Receiving<I> {
    /// Sends the request of a transfer.
    pub(super) async fn begin<P: PayloadPath<Incoming = I>>(
        transfers: &Arc<Transfers>,
        path: &P,
        source: NodeId,
        fetch: &Fetch,
    ) -> Result<Self, LinkError> {
        let transfer = transfers.events.next_id();
        let incoming = path.fetch(source, transfer, fetch).await?;
        let timeout = TransferTimeout::new(&transfers.events);
        Ok(Self { transfers: transfers.clone(), incoming, source, transfer, timeout })
    }

    /// Sends the request of the transfer after the present one, so that the source sends it without
    /// a pause. Returns its number.
    pub(super) async fn request_next(&mut self, fetch: &Fetch) -> Result<u64, LinkError> {
        let transfer = self.transfers.events.next_id();
        self.incoming.request(transfer, fetch).await?;
        Ok(transfer)
    }

    /// Begins a transfer that was requested ahead.
    pub(super) fn follow(&mut self, transfer: u64) {
        self.transfer = transfer;
        self.incoming.follow(transfer);
        self.timeout = TransferTimeout::new(&self.transfers.events);
    }

    /// Waits for frames in `places`, or the end of the transfer. The frames are not verified yet.
    pub(super) async fn next(
        &mut self,
        places: &mut [&mut [u8]],
    ) -> Result<Result<Vec<Header>, End>, LinkError> {
        loop {
            match self.timeout.expect("sent", self.incoming.next(places)).await? {
                Arrived::KeepAlive => self.timeout.receive_keep_alive()?,
                Arrived::Ended(end) => return Ok(Err(end)),
                Arrived::Frames(headers) => return Ok(Ok(headers)),
            }
        }
    }

    /// Decrypts and verifies a frame of the bytes from `at` on. Counts a corrupt one, and reports
    /// its source to the state machine.
    pub(super) fn open(
        &mut self,
        header: &mut Header,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), WireError> {
        let decrypted = self.incoming.decrypt(header, bytes);
        let opened = decrypted.and_then(|()| frame::verify(header, self.transfer, at, bytes));
        if matches!(opened, Err(WireError::Checksum { .. } | WireError::NotAuthentic(_))) {
            self.transfers.counters.blocks_corrupt.add(1);
            self.transfers.events.send(Event::BlockCorrupt { source: self.source });
        }
        opened
    }

    /// Waits for the end after the last frame.
    pub(super) async fn end(&mut self) -> Result<End, LinkError> {
        match self.next(&mut []).await? {
            Err(end) => Ok(end),
            Ok(_) => Err(WireError::Unexpected("a frame after the last".into()).into()),
        }
    }

    /// Keeps the connection for others, after the end of its last transfer.
    pub(super) fn keep(self) {
        self.incoming.keep();
    }
}

/// What the connections of one object, or of one stream, do to the link of this node together.
#[derive(Debug)]
pub(super) struct LinkUse {
    throughput: Throughput,
    /// Counts the transfer. It uses no link before the first frame.
    active: Option<Active>,
}

impl LinkUse {
    /// A transfer that is requested now, with at most `in_flight` bytes on the way.
    pub(super) fn new(in_flight: u64) -> Self {
        Self { throughput: Throughput::new(in_flight), active: None }
    }

    /// Counts received frames. Returns the number of transfers that share their busiest link.
    pub(super) fn moved(
        &mut self,
        transfers: &Transfers,
        source: NodeId,
        bytes: u64,
        frames: &[Header],
    ) -> u16 {
        let shares = self.shares(transfers, frames);
        transfers.network.traffic.received(source, bytes);
        self.throughput.step(bytes, shares);
        shares
    }

    /// Number of transfers that share the busiest link of these frames.
    fn shares(&mut self, transfers: &Transfers, frames: &[Header]) -> u16 {
        self.active.get_or_insert_with(|| transfers.streams.receiving());
        let theirs = frames.iter().map(|frame| frame.shares).max().unwrap_or(1);
        theirs.max(transfers.streams.shares_in())
    }

    /// Measures the rate of one connection again from now on.
    pub(super) fn restart(&mut self) {
        self.throughput.restart();
    }

    /// Reports the rate after the end. `may_wait`: the source had to compute the bytes.
    pub(super) fn report(&self, transfers: &Transfers, may_wait: bool) {
        self.throughput.report(&transfers.link, may_wait);
    }
}
