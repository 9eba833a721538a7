//! Files of copies: which are being written, the space that they may take, and their failures.
//!
//! Does not know copies: [`crate::table`] records where the bytes of each are.

use alloc::{collections::BTreeMap, format, string::String};

use crate::{
    id::{Instance, ObjectId},
    time::Instant,
};

/// How long nothing is written after a write has failed: 1 s. A disk that was full may have space
/// again.
const RETRY_NS: u64 = 1_000_000_000;

/// Maximum number of lost objects whose file errors are remembered; of more, the first by id are
/// forgotten.
const BROKEN_MAX: usize = 1024;

/// Accounts of files, and of those that are being written.
#[derive(Debug, Default)]
pub(crate) struct SpillFiles {
    /// Maximum bytes of all files; 0 if the node has no disk for copies.
    limit: u64,
    /// Whether files are left for the next node when this one ends.
    is_persistent: bool,
    /// The capacity that each copy takes that is being written.
    writing: BTreeMap<Instance, u64>,
    writing_bytes: u64,
    /// Bytes of the largest file so far.
    largest: u64,
    failure: Option<Failure>,
    /// What was wrong with the files of objects that were lost here.
    broken: BTreeMap<ObjectId, String>,
}

/// The last write, if it failed.
#[derive(Debug)]
struct Failure {
    reason: String,
    retry_at: Option<Instant>,
}

impl SpillFiles {
    pub(crate) const fn set_up(&mut self, limit: u64, is_persistent: bool) {
        (self.limit, self.is_persistent) = (limit, is_persistent);
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether files are left for the next node.
    pub(crate) const fn is_persistent(&self) -> bool {
        self.limit > 0 && self.is_persistent
    }

    pub(crate) fn count_writing(&self) -> usize {
        self.writing.len()
    }

    pub(crate) fn is_writing(&self) -> bool {
        !self.writing.is_empty()
    }

    /// Bytes of the capacity that become free when the current writes finish.
    pub(crate) const fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }

    /// Bytes that more files may take; 0 for a while after a failure.
    pub(crate) fn left(&self, on_disk: u64) -> u64 {
        let has_failed = self.failure.as_ref().is_some_and(|failure| failure.retry_at.is_some());
        if has_failed { 0 } else { self.limit.saturating_sub(on_disk) }
    }

    /// Whether a write has failed recently.
    pub(crate) fn is_failing(&self) -> bool {
        self.deadline().is_some()
    }

    /// The disk space that must stay free for copies that come back, if there is a file of `bytes`
    /// bytes: twice the largest file. A copy that comes back may need memory that the next largest
    /// copy occupies, which is then written first. Only after that can its own file be removed.
    /// Without the reserve, a node whose memory and disk are full could not read anything back.
    pub(crate) const fn reserve(&self, bytes: u64) -> u64 {
        let largest = if bytes > self.largest { bytes } else { self.largest };
        largest.saturating_mul(2)
    }

    /// Records a file of an earlier node.
    pub(crate) const fn found(&mut self, bytes: u64) {
        if bytes > self.largest {
            self.largest = bytes;
        }
    }

    /// Why nothing can be written, if so: a write has failed, or files of `needed` bytes do not
    /// fit.
    pub(crate) fn problem(&self, on_disk: u64, needed: u64) -> Option<String> {
        if self.limit == 0 {
            return None;
        }
        if let Some(failure) = &self.failure {
            return Some(format!("spilling failed: {}", failure.reason));
        }
        let is_full =
            self.limit.saturating_sub(on_disk) < needed.saturating_add(self.reserve(needed));
        let limit = self.limit;
        is_full.then(|| format!("{on_disk} of the {limit} bytes that may be spilled are taken"))
    }

    /// Records that a copy that takes `bytes` of the capacity is being written to a file.
    pub(crate) fn begin_to_write(&mut self, instance: Instance, bytes: u64, file: u64) {
        self.found(file);
        self.writing.insert(instance, bytes);
        self.writing_bytes += bytes;
    }

    /// Records that a copy is written. Returns false if it was not being written.
    pub(crate) fn written(&mut self, instance: Instance) -> bool {
        let is_news = self.end_writing(instance);
        if is_news {
            self.failure = None;
        }
        is_news
    }

    /// Records that a copy could not be written. With a time, the disk is failing, and nothing is
    /// written for a while. Returns false if the copy was not being written.
    pub(crate) fn failed(
        &mut self,
        instance: Instance,
        reason: String,
        failing_at: Option<Instant>,
    ) -> bool {
        let is_news = self.end_writing(instance);
        if is_news && (failing_at.is_some() || !self.is_failing()) {
            self.failure = Some(Failure { reason, retry_at: failing_at.map(|at| at + RETRY_NS) });
        }
        is_news
    }

    fn end_writing(&mut self, instance: Instance) -> bool {
        let bytes = self.writing.remove(&instance);
        self.writing_bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }

    /// When writing is tried again after a failure.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.failure.as_ref()?.retry_at
    }

    /// Whether writing may be tried again from now on.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let failure = self.failure.as_mut();
        failure.is_some_and(|failure| failure.retry_at.take_if(|at| *at <= now).is_some())
    }

    /// Forgets a copy that no longer exists.
    pub(crate) fn forget(&mut self, instance: Instance) {
        self.end_writing(instance);
    }

    /// Records that the file of an object cannot be read, so that the object is lost here.
    pub(crate) fn note_file_error(&mut self, id: &ObjectId, reason: String) {
        self.broken.insert(id.clone(), reason);
        if self.broken.len() > BROKEN_MAX {
            self.broken.pop_first();
        }
    }

    /// Removes and returns the error of a lost object's file; it is reported once, to the requests
    /// that waited.
    pub(crate) fn take_file_error(&mut self, id: &ObjectId) -> Option<String> {
        self.broken.remove(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;

    const FIRST: Instance = Instance { node: NodeId(1), serial: 1 };
    const SECOND: Instance = Instance { node: NodeId(1), serial: 2 };
    const NOW: Instant = Instant(1_000);

    fn spill_files() -> SpillFiles {
        let mut spill_files = SpillFiles::default();
        spill_files.set_up(1000, false);
        spill_files
    }

    #[test]
    fn a_write_counts_until_its_result_is_reported() {
        let mut spill_files = spill_files();
        spill_files.begin_to_write(FIRST, 300, 300);
        spill_files.begin_to_write(SECOND, 200, 200);
        assert_eq!(spill_files.writing_bytes(), 500);
        assert!(spill_files.written(FIRST) && !spill_files.written(FIRST));
        spill_files.forget(SECOND);
        assert_eq!((spill_files.writing_bytes(), spill_files.is_writing()), (0, false));
        assert!(!spill_files.failed(SECOND, "full".into(), Some(NOW)), "of a deleted copy");
        assert_eq!(spill_files.problem(0, 1), None);
    }

    #[test]
    fn a_copy_that_cannot_be_written_neither_pauses_nor_resumes_the_disk() {
        let mut spill_files = spill_files();
        for instance in [FIRST, SECOND, FIRST] {
            spill_files.begin_to_write(instance, 300, 300);
        }
        assert!(spill_files.failed(FIRST, "too large".into(), None));
        assert_eq!((spill_files.left(0), spill_files.deadline()), (1000, None));
        assert!(spill_files.problem(0, 1).is_some_and(|reason| reason.contains("too large")));
        spill_files.failed(SECOND, "/a: no space".into(), Some(NOW));
        spill_files.begin_to_write(FIRST, 300, 300);
        spill_files.failed(FIRST, "too large".into(), None);
        assert_eq!((spill_files.left(0), spill_files.deadline()), (0, Some(NOW + RETRY_NS)));
    }

    #[test]
    fn a_failure_pauses_writing_and_its_reason_is_kept_longer() {
        let mut spill_files = spill_files();
        spill_files.begin_to_write(FIRST, 300, 300);
        assert!(spill_files.failed(FIRST, "/a: no space".into(), Some(NOW)));
        assert_eq!((spill_files.left(0), spill_files.deadline()), (0, Some(NOW + RETRY_NS)));
        assert!(!spill_files.expire(NOW) && spill_files.expire(NOW + RETRY_NS));
        assert_eq!((spill_files.left(400), spill_files.deadline()), (600, None));
        assert!(spill_files.problem(0, 1).is_some_and(|reason| reason.contains("/a: no space")));
        spill_files.begin_to_write(FIRST, 300, 300);
        spill_files.written(FIRST);
        assert_eq!(spill_files.problem(0, 1), None);
        assert_eq!(spill_files.problem(100, 300), None);
        assert!(
            spill_files.problem(101, 300).is_some_and(|reason| reason.contains("101 of the 1000"))
        );
    }
}
