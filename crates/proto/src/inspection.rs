//! What a client can ask a member about itself. The shell of the member knows the answers.

use serde::{Deserialize, Serialize};

/// What [`crate::request::Request::Inspect`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inspection {
    /// Status, counters and latencies.
    Metrics,
    /// Recent events, and what runs now.
    Activity {
        /// The number of the first event to report.
        after: u64,
        /// Maximum number of events.
        limit: u32,
    },
}
