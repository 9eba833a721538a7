//! Timeouts of a stalled transfer, by the rules of [`hoplite_proto::patience`].

use std::time::Duration;

use hoplite_proto::{
    limits::TURN_NS,
    patience::{Patience, Waited},
    wire::WireError,
};
use tokio::time;

use crate::{engine::facts::Facts, error::LinkError};

/// Length of a turn. Tests of this crate wait for its end, so theirs is short.
pub(super) const TURN: Duration = Duration::from_nanos(TURN_TIME_NS);
const TURN_TIME_NS: u64 = if cfg!(test) { 1_000_000_000 } else { TURN_NS };

/// One end of an active transfer.
#[derive(Debug)]
pub(super) struct Turn {
    facts: Facts,
    patience: Patience,
    waited: Waited,
}

impl Turn {
    /// Starts the first turn of a transfer.
    pub(super) fn new(facts: &Facts) -> Self {
        let patience = Patience::new(facts.now(), TURN_TIME_NS);
        Self { facts: facts.clone(), patience, waited: Waited::new(TURN_TIME_NS) }
    }

    /// Waits for the peer until the turn ends: if it "sent" or "accepted" too little by then, the transfer is stalled.
    ///
    /// # Errors
    /// [`LinkError::Slow`] at the end of the turn, or the error of `what`.
    pub(super) async fn expect<T, E: Into<LinkError>>(
        &self,
        done: &'static str,
        what: impl Future<Output = Result<T, E>>,
    ) -> Result<T, LinkError> {
        let left = self.patience.deadline().since(self.facts.now());
        match time::timeout(Duration::from_nanos(left), what).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(LinkError::Slow(done, TURN.as_secs_f32())),
        }
    }

    /// Records bytes that were moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.patience.moved(self.facts.now(), bytes);
    }

    /// Handles a report of the sender that it waits.
    ///
    /// # Errors
    /// The sender reports it more often than allowed.
    pub(super) fn hear_that_it_waits(&mut self) -> Result<(), WireError> {
        if self.patience.waits(self.facts.now()) {
            return Ok(());
        }
        Err(WireError::Unexpected("more reports of a waiting sender than allowed".into()))
    }

    /// Waits for something independent of the peer, for as long as this end may be silent. Returns the result, if it
    /// came, and whether this end must report now that it waits.
    pub(super) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> (Option<T>, bool) {
        let begun = self.facts.now();
        let left = Duration::from_nanos(self.waited.left_ns());
        let result = time::timeout(left, what).await.ok();
        let now = self.facts.now();
        self.patience.restart(now);
        (result, self.waited.waited(now.since(begun)))
    }
}
