//! Measures the link to other nodes from transfers and handshakes.

use std::{sync::Mutex, time::Duration};

use hoplite_proto::{link::LinkEstimate, node::Event, reduce::cost::Link};

use crate::{engine::event_sender::EventSender, sync::lock};

/// The measured link of a node.
#[derive(Debug)]
pub(crate) struct LinkMeter {
    events: EventSender,
    estimate: Mutex<LinkEstimate>,
}

impl LinkMeter {
    /// Starts with `assumed`, until something is measured.
    pub(crate) fn new(events: EventSender, assumed: Link) -> Self {
        Self { events, estimate: Mutex::new(LinkEstimate::new(assumed)) }
    }

    /// The present estimate of latency and bandwidth.
    pub(crate) fn link(&self) -> Link {
        lock(&self.estimate).link()
    }

    /// Records a round trip to another node.
    pub(crate) fn round_trip(&self, round_trip: Duration) {
        let nanoseconds = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        self.measured(|estimate| estimate.round_trip(nanoseconds));
    }

    /// Records that `bytes` arrived from one sender in `time`; see [`LinkEstimate::transfer`] for
    /// `is_steady`.
    pub(crate) fn transfer(&self, bytes: u64, time: Duration, is_steady: bool) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.measured(|estimate| estimate.transfer(bytes, nanoseconds, is_steady));
    }

    fn measured(&self, update: impl FnOnce(&mut LinkEstimate)) {
        let (link, has_bandwidth) = {
            let mut estimate = lock(&self.estimate);
            update(&mut estimate);
            (estimate.link(), estimate.has_bandwidth())
        };
        self.events.send(Event::LinkMeasured { link, has_bandwidth });
    }
}
