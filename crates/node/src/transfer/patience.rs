//! Has the two ends of a transfer bear with each other for as long as [`hoplite_proto::patience`] says.

use std::time::Duration;

use hoplite_proto::{
    limits::TURN_NS,
    patience::{Patience, Waited},
    wire::WireError,
};
use tokio::time;

use crate::{engine::facts::Facts, error::LinkError};

/// How long a turn is. Tests of this crate wait for its end.
pub(super) const TURN: Duration = Duration::from_nanos(TURN_TIME_NS);
const TURN_TIME_NS: u64 = if cfg!(test) { 1_000_000_000 } else { TURN_NS };

/// One end of a transfer that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    facts: Facts,
    patience: Patience,
    waited: Waited,
}

impl Turn {
    /// Of a transfer that begins.
    pub(super) fn new(facts: &Facts) -> Self {
        let patience = Patience::new(facts.now(), TURN_TIME_NS);
        Self { facts: facts.clone(), patience, waited: Waited::new(TURN_TIME_NS) }
    }

    /// Waits for the other end, until the turn is over: then it "gave" or "took" too little.
    ///
    /// # Errors
    /// [`LinkError::Slow`] then, or that of `what`.
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

    /// So many more bytes were moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.patience.moved(self.facts.now(), bytes);
    }

    /// The sender says that it waits.
    ///
    /// # Errors
    /// It may not say so that often.
    pub(super) fn hear_that_it_waits(&mut self) -> Result<(), WireError> {
        if self.patience.waits(self.facts.now()) {
            return Ok(());
        }
        Err(WireError::Unexpected("that the sender waits, more often than it can".into()))
    }

    /// Waits for what the other end has no part in, for as long as this end may be silent: what came, if it did, and whether
    /// this end is to say now that it waits.
    pub(super) async fn wait<T>(&mut self, what: impl Future<Output = T>) -> (Option<T>, bool) {
        let begun = self.facts.now();
        let left = Duration::from_nanos(self.waited.left_ns());
        let result = time::timeout(left, what).await.ok();
        let now = self.facts.now();
        self.patience.restart(now);
        (result, self.waited.waited(now.since(begun)))
    }
}
