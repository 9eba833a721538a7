//! Spilled objects of a node: a few threads write and read their files.
//!
//! ```text
//! Spill       --> queue --> a thread writes the file --> Spilled, SpillFailed
//! Unspill     --> queue --> a thread reads the file into a slot --> Unspilled, UnspillFailed
//! DropSpilled --> queue --> a thread removes the file
//! ```
//! [`file`] defines the file format, [`folder`] manages the folder. Does not know why copies go to
//! disk and come back.

pub(crate) mod file;
pub(crate) mod folder;

use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hoplite_proto::{
    id::Instance,
    node::{Event, SpilledCopy},
};
use tracing::{debug, warn};

use self::{file::SpillFile, folder::Folder};
use crate::{
    backing::{self, Backing},
    counters::Counters,
    engine::{
        event_sender::EventSender,
        tasks::{Supervisor, Task},
    },
    repeats::log_once,
    store::StoredCopy,
    sync::lock,
};

/// Threads that read and write files. One thread works at the rate of a disk; several keep a queue
/// of requests, which a fast disk needs.
const THREADS: usize = 4;

/// Limit of writing threads: reads do not wait behind all writes.
const WRITERS_MAX: usize = 2;

/// Timeout for a thread that writes or reads 1 MiB when the node ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of a node.
pub(crate) struct Disk {
    folder: Folder,
    files: Mutex<HashMap<Instance, State>>,
    queue: Mutex<Queue>,
    changed: Condvar,
    serial: AtomicU64,
    counters: Arc<Counters>,
    events: EventSender,
}

/// The state of a copy's file.
enum State {
    /// Being written; the flag is set if it is no longer needed.
    Writing(Arc<AtomicBool>),
    Written(Arc<SpillFile>),
}

/// A queued job.
enum Job {
    Write { copy: Box<SpilledCopy>, stored: Option<Arc<StoredCopy>>, is_void: Arc<AtomicBool> },
    Read { instance: Instance, stored: Arc<StoredCopy>, file: Arc<SpillFile> },
    Remove(PathBuf),
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<Job>,
    others: VecDeque<Job>,
    writing: usize,
    /// Threads that run a job.
    busy: usize,
    is_closed: bool,
}

impl Queue {
    fn next(&mut self) -> Option<Job> {
        self.reads.pop_front().or_else(|| {
            let may_write = self.writing < WRITERS_MAX;
            let is_next = |job: &Job| may_write || !matches!(job, Job::Write { .. });
            let at = self.others.iter().position(is_next)?;
            let job = self.others.remove(at)?;
            self.writing += usize::from(matches!(job, Job::Write { .. }));
            Some(job)
        })
    }
}

impl Disk {
    /// Creates the disk of a node, with the files already in `folder`.
    pub(crate) fn new(
        folder: Folder,
        there: Vec<(Instance, SpillFile)>,
        counters: Arc<Counters>,
        events: EventSender,
    ) -> Self {
        let mut files = HashMap::new();
        for (instance, file) in there {
            let before = files.insert(instance, State::Written(Arc::new(file)));
            if let Some(State::Written(before)) = before {
                remove(before.path());
            }
        }
        Self {
            folder,
            files: Mutex::new(files),
            queue: Mutex::default(),
            changed: Condvar::new(),
            serial: AtomicU64::new(1),
            counters,
            events,
        }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn start(self: &Arc<Self>, tasks: &Supervisor) -> std::io::Result<()> {
        for _ in 0..THREADS {
            let disk = self.clone();
            tasks.thread(Task::Disk, "hoplite-disk", {
                let tasks = tasks.clone();
                move || disk.work(&tasks)
            })?;
        }
        Ok(())
    }

    /// The folder of the files.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Queues a copy to be written; `stored` is its memory, unless it is small.
    pub(crate) fn spill(&self, copy: Box<SpilledCopy>, stored: Option<Arc<StoredCopy>>) {
        let is_void = Arc::new(AtomicBool::new(false));
        lock(&self.files).insert(copy.instance, State::Writing(is_void.clone()));
        self.push(Job::Write { copy, stored, is_void });
    }

    /// Queues a copy to be read into its memory.
    pub(crate) fn unspill(&self, instance: Instance, stored: Arc<StoredCopy>) {
        match self.written(instance) {
            Some(file) => self.push(Job::Read { instance, stored, file }),
            None => {
                let detail = format!("there is no file of {instance}");
                self.events.send(Event::UnspillFailed { instance, detail });
            }
        }
    }

    /// Queues the file of a copy to be removed.
    pub(crate) fn drop_file(&self, instance: Instance) {
        let state = lock(&self.files).remove(&instance);
        match state {
            Some(State::Writing(is_void)) => {
                // The writing thread removes it; a queued write no longer keeps the memory.
                is_void.store(true, Ordering::Release);
                let is_it =
                    |job: &Job| matches!(job, Job::Write { copy, .. } if copy.instance == instance);
                self.queue().others.retain(|job| !is_it(job));
            }
            Some(State::Written(file)) => self.push(Job::Remove(file.path().into())),
            None => {}
        }
    }

    /// The file of a copy, if it is written completely.
    pub(crate) fn written(&self, instance: Instance) -> Option<Arc<SpillFile>> {
        match lock(&self.files).get(&instance) {
            Some(State::Written(file)) => Some(file.clone()),
            Some(State::Writing(_)) | None => None,
        }
    }

    /// Ends the threads after their current jobs, and removes the files, unless they are for the
    /// next node.
    pub(crate) fn close(&self) {
        let files = std::mem::take(&mut *lock(&self.files));
        for state in files.values() {
            if let State::Writing(is_void) = state {
                is_void.store(true, Ordering::Release);
            }
        }
        let left = {
            let mut queue = self.queue();
            queue.is_closed = true;
            queue.reads.clear();
            std::mem::take(&mut queue.others)
        };
        self.changed.notify_all();
        let is_busy = |queue: &mut Queue| queue.busy > 0;
        // A thread that takes longer leaves a partial file, which the next node removes.
        drop(self.changed.wait_timeout_while(self.queue(), CLOSE_TIMEOUT, is_busy));
        for job in left {
            if let Job::Remove(path) = job {
                remove(&path);
            }
        }
        for state in files.into_values() {
            match state {
                State::Written(file) if !self.folder.is_kept() => remove(file.path()),
                State::Written(_) | State::Writing(_) => {}
            }
        }
        self.folder.unlock();
    }

    fn push(&self, job: Job) {
        let mut queue = self.queue();
        if queue.is_closed {
            return;
        }
        match job {
            Job::Read { .. } => queue.reads.push_back(job),
            Job::Write { .. } | Job::Remove(_) => queue.others.push_back(job),
        }
        drop(queue);
        self.changed.notify_one();
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Runs jobs until the node ends.
    fn work(&self, tasks: &Supervisor) {
        while let Some(job) = self.next() {
            let is_write = matches!(job, Job::Write { .. });
            let done = tasks.catch(Task::Disk, || self.perform(job));
            {
                let mut queue = self.queue();
                queue.busy -= 1;
                queue.writing -= usize::from(is_write);
            }
            self.changed.notify_all();
            if done.is_none() {
                return;
            }
        }
    }

    /// Waits for the next job; None when the node ends.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(job) = queue.next() {
                queue.busy += 1;
                return Some(job);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn perform(&self, job: Job) {
        match job {
            Job::Write { copy, stored, is_void } => self.write(&copy, stored, &is_void),
            Job::Read { instance, stored, file } => self.read(instance, &stored, &file),
            Job::Remove(path) => remove(&path),
        }
    }

    fn write(&self, copy: &SpilledCopy, stored: Option<Arc<StoredCopy>>, is_void: &AtomicBool) {
        let (instance, serial) = (copy.instance, self.serial.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.file_of(instance, serial);
        let goes_on = || !is_void.load(Ordering::Acquire);
        let written = file::write(&path, copy, stored.as_deref(), goes_on);
        // Release the memory before the file can be requested again.
        drop(stored);
        let event = match written {
            Ok(Some(file)) => {
                let bytes = copy.meta.size;
                let mut files = lock(&self.files);
                if is_void.load(Ordering::Acquire) {
                    drop(files);
                    return remove(&path);
                }
                files.insert(instance, State::Written(Arc::new(file)));
                self.counters.spills.add(1);
                debug!(%instance, bytes, "spilled");
                Event::Spilled { instance }
            }
            Ok(None) => return,
            Err(error) => {
                let mut files = lock(&self.files);
                if is_void.load(Ordering::Acquire) {
                    return;
                }
                files.remove(&instance);
                self.counters.spill_failures.add(1);
                let detail = format!("{}: {error}", self.path().display());
                log_once!(warn, detail, %instance, "can't spill to {detail}");
                let is_disk_failing = file::is_disk_failing(&error);
                Event::SpillFailed { instance, detail, is_disk_failing }
            }
        };
        self.events.send(event);
    }

    fn read(&self, instance: Instance, stored: &Arc<StoredCopy>, file: &SpillFile) {
        let goes_on = || !stored.is_abandoned();
        let read = file.bytes().and_then(|bytes| backing::copy(&bytes, &**stored, goes_on));
        let event = match read {
            Ok(true) => {
                self.counters.unspills.add(1);
                debug!(%instance, bytes = stored.len(), "read back from disk");
                Event::Unspilled { instance }
            }
            Ok(false) => return,
            Err(error) => {
                self.counters.spill_failures.add(1);
                let detail = format!("{}: {error}", file.path().display());
                warn!(%instance, "lost a spilled copy: {detail}");
                Event::UnspillFailed { instance, detail }
            }
        };
        let stored = stored.clone();
        self.events.send_if(event, move || !stored.is_abandoned());
    }
}

/// Removes a file. If that fails, the next node that starts with this folder removes it.
fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        debug!(path = %path.display(), %error, "can't remove the file of an object");
    }
}
