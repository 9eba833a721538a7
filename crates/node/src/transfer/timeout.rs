//! Timeouts of a stalled transfer, by the rules of [`hoplite_proto::progress_timeout`].

use std::time::Duration;

use hoplite_proto::{
    limits::PROGRESS_WINDOW_NS,
    progress_timeout::{ProgressTimeout, SourceWait},
    wire::WireError,
};
use tokio::time;

use crate::{engine::event_sender::EventSender, error::LinkError};

/// Length of a turn. Tests of this crate wait for its end, so theirs is short.
pub(super) const TURN: Duration = Duration::from_nanos(WINDOW_NS);
const WINDOW_NS: u64 = if cfg!(test) { 1_000_000_000 } else { PROGRESS_WINDOW_NS };

/// One end of an active transfer.
#[derive(Debug)]
pub(super) struct TransferTimeout {
    events: EventSender,
    timeout: ProgressTimeout,
    waited: SourceWait,
}

impl TransferTimeout {
    /// Starts the first turn of a transfer.
    pub(super) fn new(events: &EventSender) -> Self {
        let timeout = ProgressTimeout::new(events.now(), WINDOW_NS);
        Self { events: events.clone(), timeout, waited: SourceWait::new(WINDOW_NS) }
    }

    /// Waits for the peer until the turn ends: if it "sent" or "accepted" too little by then, the
    /// transfer is stalled.
    ///
    /// # Errors
    /// [`LinkError::Slow`] at the end of the turn, or the error of `what`.
    pub(super) async fn expect<T, E: Into<LinkError>>(
        &self,
        done: &'static str,
        what: impl Future<Output = Result<T, E>>,
    ) -> Result<T, LinkError> {
        let left = self.timeout.deadline().since(self.events.now());
        match time::timeout(Duration::from_nanos(left), what).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(LinkError::Slow(done, TURN.as_secs_f32())),
        }
    }

    /// Records bytes that were moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.timeout.moved(self.events.now(), bytes);
    }

    /// Begins a new turn: this end was the cause of the lack of progress.
    pub(super) fn restart(&mut self) {
        self.timeout.restart(self.events.now());
    }

    /// Handles a report of the sender that it waits.
    ///
    /// # Errors
    /// The sender reports it more often than allowed.
    pub(super) fn receive_keep_alive(&mut self) -> Result<(), WireError> {
        if self.timeout.source_waits(self.events.now()) {
            return Ok(());
        }
        Err(WireError::Unexpected("more reports of a waiting sender than allowed".into()))
    }

    /// Waits for something independent of the peer, for as long as this end may be silent. Returns
    /// the result, if it came, and whether this end must report now that it waits.
    pub(super) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> (Option<T>, bool) {
        let begun = self.events.now();
        let left = Duration::from_nanos(self.waited.remaining_ns());
        let result = time::timeout(left, what).await.ok();
        let now = self.events.now();
        self.timeout.restart(now);
        (result, self.waited.waited(now.since(begun)))
    }
}
