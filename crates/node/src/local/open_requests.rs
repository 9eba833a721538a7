//! Open requests of one attached process: their numbers there and at the node, and what they cost.

use std::{collections::HashMap, io};

use hoplite_proto::{
    error::Error as CallError, id::RequestId, limits::SLOTS_MAX, request::Request,
};

use super::{
    limits::{ID_COST_BYTES, REQUEST_COST_BYTES, REQUEST_SHARE_BYTES, REQUESTS_MAX},
    programs::Held,
    quota::{QuotaExceeded, QuotaHolder, QuotaPermit},
};

/// The open requests of one process.
pub(super) struct OpenRequests {
    open: HashMap<u64, OpenRequest>,
    /// Bytes that they take.
    cost: u64,
    /// Its share of the bytes of all processes, for what exceeds [`REQUEST_SHARE_BYTES`].
    share: QuotaPermit,
}

struct OpenRequest {
    /// The node's number of the request, once known.
    ours: Option<RequestId>,
    cost: u64,
}

/// A request beyond a limit.
pub(super) struct OverLimit {
    /// The exceeded limit.
    pub(super) limit: &'static str,
    /// The error for the process.
    pub(super) error: CallError,
}

/// Places that a request takes of limits, besides its bytes.
#[derive(Default)]
pub(super) struct Places {
    pub(super) until_reply: Option<QuotaPermit>,
    /// Until the work that it began ends.
    pub(super) until_end: Option<QuotaPermit>,
    /// How many parts of that work end one by one.
    pub(super) parts: u64,
    /// The reply if it would have to wait.
    pub(super) may_not_wait: Option<OverLimit>,
}

impl OverLimit {
    /// A request that would take more places than its process or grant may have.
    pub(super) fn of(limit: &'static str, what: &str, excess: QuotaExceeded) -> Self {
        let remedy = "wait for some calls to finish, or cancel them";
        let error = CallError::InvalidArgument(excess.explain(limit, what, remedy));
        Self { limit, error }
    }

    /// A request, or what it begins, whose bytes exceed the share.
    pub(super) fn of_bytes(excess: QuotaExceeded) -> Self {
        let what = "bytes of open requests and unfinished reduces, reservations, slots, and leases";
        let remedy = "wait for some calls to finish, or cancel them, put what is reserved, or \
                      release leases";
        let limit = "REQUEST_BYTES_TOTAL_MAX";
        Self { limit, error: CallError::InvalidArgument(excess.explain(limit, what, remedy)) }
    }
}

/// Bytes that an open request takes at the node, if its frame has `frame` bytes.
pub(super) fn cost(body: &Request, frame: usize) -> u64 {
    let ids = match body {
        Request::Wait { ids, .. } | Request::Delete { ids } => ids.len() as u64,
        Request::Get { .. }
        | Request::GetRange { .. }
        | Request::Locations { .. }
        | Request::Latest { .. } => 1,
        _ => 0,
    };
    frame as u64 + REQUEST_COST_BYTES + ids * ID_COST_BYTES
}

/// Bytes that an unfinished reduce takes after its reply, if the frame of the request had `frame`
/// bytes: the names of its inputs, which may be long, and what the node stores of each.
pub(super) fn reduce_cost(inputs: usize, frame: usize) -> u64 {
    frame as u64 + REQUEST_COST_BYTES + inputs as u64 * ID_COST_BYTES
}

/// The ids that a request of `frame` bytes reserves or leases, and the bytes that each takes until
/// it is put, released, or gone.
pub(super) fn kept_cost(body: &Request, frame: usize) -> Option<(u64, u64)> {
    match body {
        Request::Reserve { .. } | Request::AcquireLease { .. } | Request::JoinJob { .. } => {
            Some((1, frame as u64 + ID_COST_BYTES))
        }
        // More than the most are refused.
        Request::Slots { count } if (1..=SLOTS_MAX as u64).contains(&u64::from(*count)) => {
            Some((u64::from(*count), ID_COST_BYTES))
        }
        _ => None,
    }
}

/// Holds the share of a request until all of the `parts` have ended that it began, and frees that
/// of each.
pub(super) fn hold(mut share: QuotaPermit, mut parts: u64) -> Held {
    let each = share.amount() / parts.max(1);
    Box::new(move || {
        parts = parts.saturating_sub(1);
        // A smaller share is always granted.
        let _ = share.resize(each * parts);
        parts > 0
    })
}

impl OpenRequests {
    /// Starts without requests; `share` has no bytes yet.
    pub(super) fn new(share: QuotaPermit) -> Self {
        Self { open: HashMap::new(), cost: 0, share }
    }

    /// Counts its bytes for another taker too, before the first request.
    pub(super) fn also(&mut self, taker: QuotaHolder) {
        // No bytes are always granted.
        let _ = self.share.also(taker);
    }

    /// Registers a request that takes `cost` bytes. Returns [`OverLimit`] if it exceeds a limit;
    /// the caller must still send that reply.
    ///
    /// # Errors
    /// A request with that number is open: the process is broken.
    pub(super) fn begin(&mut self, request: u64, cost: u64) -> io::Result<Result<(), OverLimit>> {
        if self.open.contains_key(&request) {
            let said = format!("the process reused the number of open request {request}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        if self.open.len() >= REQUESTS_MAX {
            let said = format!(
                "this process has {} open requests at its node, and the limit is {REQUESTS_MAX} \
                 (REQUESTS_MAX): wait for some calls to finish, or cancel them",
                self.open.len()
            );
            let error = CallError::InvalidArgument(said);
            return Ok(Err(OverLimit { limit: "REQUESTS_MAX", error }));
        }
        if let Err(excess) = self.share.resize(shared(self.cost + cost)) {
            return Ok(Err(OverLimit::of_bytes(excess)));
        }
        self.open.insert(request, OpenRequest { ours: None, cost });
        self.cost += cost;
        Ok(Ok(()))
    }

    /// Records the node's number of a request, unless the reply was sent meanwhile.
    pub(super) fn set_number(&mut self, request: u64, ours: RequestId) {
        if let Some(open) = self.open.get_mut(&request) {
            open.ours = Some(ours);
        }
    }

    /// The node's number of a request.
    pub(super) fn ours(&self, request: u64) -> Option<RequestId> {
        self.open.get(&request)?.ours
    }

    /// Removes a request after its reply.
    pub(super) fn end(&mut self, request: u64) {
        if let Some(open) = self.open.remove(&request) {
            self.cost -= open.cost;
            // A smaller share is always granted.
            let _ = self.share.resize(shared(self.cost));
        }
    }
}

/// Bytes to take from the share of all processes: in steps, so that few requests need more.
const fn shared(cost: u64) -> u64 {
    cost.saturating_sub(REQUEST_SHARE_BYTES).next_multiple_of(REQUEST_SHARE_BYTES)
}
