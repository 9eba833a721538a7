//! Open requests of one attached process: their numbers there and at the node.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hoplite_proto::{error::Error as CallError, id::RequestId};

use super::limits::{
    REQUEST_BYTES_MAX, REQUEST_BYTES_TOTAL_MAX, REQUEST_COST_BYTES, REQUEST_SHARE_BYTES,
    REQUESTS_MAX,
};

/// The open requests of one process.
pub(super) struct OpenRequests {
    open: HashMap<u64, OpenRequest>,
    bytes: usize,
    /// Bytes of the open requests of all processes.
    of_all: Arc<AtomicUsize>,
}

struct OpenRequest {
    /// The node's number of the request, once known.
    ours: Option<RequestId>,
    bytes: usize,
}

/// A request beyond a limit.
pub(super) struct OverLimit {
    /// The exceeded limit.
    pub(super) limit: &'static str,
    /// The error for the process.
    pub(super) error: CallError,
}

impl OpenRequests {
    /// Starts without requests; `of_all` counts the bytes of all processes.
    pub(super) fn new(of_all: Arc<AtomicUsize>) -> Self {
        Self { open: HashMap::new(), bytes: 0, of_all }
    }

    /// Registers a request of `bytes` bytes. Returns [`OverLimit`] if it exceeds a limit; the caller must still send that
    /// reply.
    ///
    /// # Errors
    /// A request with that number is open: the process is broken.
    pub(super) fn begin(
        &mut self,
        request: u64,
        bytes: usize,
    ) -> io::Result<Result<(), OverLimit>> {
        if self.open.contains_key(&request) {
            let said = format!("the process reused the number of open request {request}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        if self.open.len() >= REQUESTS_MAX || self.bytes + bytes > REQUEST_BYTES_MAX {
            let said = format!(
                "this process has {} open requests of {} bytes at its node, and the limit is \
                 {REQUESTS_MAX} requests of {REQUEST_BYTES_MAX} bytes: wait for some calls to finish",
                self.open.len(),
                self.bytes
            );
            let is_many = self.open.len() >= REQUESTS_MAX;
            let limit = if is_many { "REQUESTS_MAX" } else { "REQUEST_BYTES_MAX" };
            return Ok(Err(OverLimit { limit, error: CallError::InvalidArgument(said) }));
        }
        let (cost, own) = (bytes + REQUEST_COST_BYTES, self.cost());
        let of_all = self.of_all.fetch_add(cost, Ordering::Relaxed);
        if of_all + cost > REQUEST_BYTES_TOTAL_MAX && own + cost > REQUEST_SHARE_BYTES {
            self.of_all.fetch_sub(cost, Ordering::Relaxed);
            let said = format!(
                "the open requests of all processes of this host take {of_all} of {REQUEST_BYTES_TOTAL_MAX} bytes at \
                 their node, {own} of them for this process: wait for some calls to finish"
            );
            let error = CallError::InvalidArgument(said);
            return Ok(Err(OverLimit { limit: "REQUEST_BYTES_TOTAL_MAX", error }));
        }
        self.open.insert(request, OpenRequest { ours: None, bytes });
        self.bytes += bytes;
        Ok(Ok(()))
    }

    /// Bytes that its requests take.
    fn cost(&self) -> usize {
        self.bytes + self.open.len() * REQUEST_COST_BYTES
    }

    /// Records the node's number of a request, unless the reply was sent meanwhile.
    pub(super) fn set_number(&mut self, request: u64, ours: RequestId) {
        if let Some(question) = self.open.get_mut(&request) {
            question.ours = Some(ours);
        }
    }

    /// The node's number of a request.
    pub(super) fn ours(&self, request: u64) -> Option<RequestId> {
        self.open.get(&request)?.ours
    }

    /// Removes a request after its reply.
    pub(super) fn end(&mut self, request: u64) {
        if let Some(question) = self.open.remove(&request) {
            self.bytes -= question.bytes;
            self.of_all.fetch_sub(question.bytes + REQUEST_COST_BYTES, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequests {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.cost(), Ordering::Relaxed);
    }
}
