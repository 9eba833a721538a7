//! The transport of payload: what a transfer needs of the connection between two nodes.
//! [`super::tcp`] is the one of production.
//!
//! Above it are ranges, claims, checksums, credit and timeouts; below it connections, framing and
//! encryption.

use hoplite_proto::{
    id::NodeId,
    wire::{Fetch, FrameKind, Header, Unavailable, WireError},
};
use hoplite_shm::Ready;

use super::streams::Streams;
use crate::{error::LinkError, frame, mutants, store::StoredCopy};

/// A transport to other nodes.
pub(crate) trait PayloadPath: Send + Sync + 'static {
    type Incoming: Incoming;

    /// Sends a request to a node, and returns the receiving end of its transfer.
    fn fetch(
        &self,
        node: NodeId,
        transfer: u64,
        fetch: &Fetch,
    ) -> impl Future<Output = Result<Self::Incoming, LinkError>> + Send;
}

/// What arrives of a transfer.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// Complete frames, in the first places; not decrypted yet.
    Frames(Vec<Header>),
    /// The sender reports that it waits itself.
    KeepAlive,
    Ended(End),
}

/// The end of a transfer, as its sender reports it.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Complete,
    Unavailable(Unavailable),
}

/// The receiving end of one transfer.
pub(crate) trait Incoming: Send {
    /// Waits for frames, or for a report of the sender. The bytes go to `places`, each as long as
    /// its frame. Pass those that are not filled yet again next time, as the first ones. Without
    /// places, only reports may arrive.
    fn next(
        &mut self,
        places: &mut [&mut [u8]],
    ) -> impl Future<Output = Result<Arrived, LinkError>> + Send;

    /// Decrypts a frame, in the order of arrival.
    ///
    /// # Errors
    /// [`WireError::NotAuthentic`].
    fn decrypt(&mut self, header: &mut Header, bytes: &mut [u8]) -> Result<(), WireError>;

    /// Grants the sender credit.
    fn grant(&mut self, bytes: u64) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Sends the request of the transfer after this one.
    fn request(
        &mut self,
        transfer: u64,
        fetch: &Fetch,
    ) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Begins that transfer, after the end of this one.
    fn follow(&mut self, transfer: u64);

    /// Keeps the connection for another transfer, after the end of this one.
    fn keep(self);
}

/// What a receiver sends.
#[derive(Debug)]
pub(crate) enum Request {
    /// The request of a transfer with this number.
    Fetch(u64, Fetch),
    /// Bytes of credit for a transfer.
    Credit(u64, u64),
}

/// The requests of a receiver, which come while a transfer to it runs.
pub(crate) trait Requests: Send + 'static {
    /// Waits for the next one; None at the end of the connection.
    fn next(&mut self) -> impl Future<Output = Result<Option<Request>, LinkError>> + Send;
}

/// Makes the headers of the frames of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers<'a> {
    pub(crate) transfer: u64,
    /// Number of transfers that share the busiest link on the path.
    pub(crate) shares: u16,
    /// The copy that has the checksums of frames which it received.
    pub(crate) sums: Option<&'a StoredCopy>,
}

impl Headers<'_> {
    /// The header of a frame.
    pub(crate) fn of(&self, offset: u64, bytes: &[u8]) -> Header {
        let known = self.sums.and_then(|stored| stored.known_sum(offset, bytes.len()));
        let checksum = mutants::checksum(offset, known.unwrap_or_else(|| frame::crc(bytes)));
        let new = Header::new(FrameKind::Blocks, bytes.len() as u32, checksum);
        Header { shares: self.shares, transfer: self.transfer, offset, ..new }
    }
}

/// The sending end of a connection, for one transfer at a time.
pub(crate) trait Outgoing: Send {
    /// Sets whether the system holds only a little that is not sent: then several connections send
    /// in the order of their writes, and a process that is stopped soon sends nothing.
    fn limit_unsent(&mut self, is_limited: bool);

    /// Sends frames, each an offset and its bytes. `headers` makes the header of a frame from the
    /// bytes as they are sent: they are copied, into memory of `streams`, if they are encrypted or
    /// another process can write them.
    fn send(
        &mut self,
        streams: &Streams,
        frames: &[(u64, Ready<'_>)],
        headers: Headers<'_>,
    ) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Reports that this end waits.
    fn keep_alive(&mut self, transfer: u64) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Ends a transfer.
    fn end(
        &mut self,
        transfer: u64,
        end: &End,
    ) -> impl Future<Output = Result<(), LinkError>> + Send;
}
