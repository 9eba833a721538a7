//! An epoll set shared by a background thread and one thread that waits for the result of an event.
//!
//! Otherwise the background thread would receive a reply and then wake the waiting thread; on an
//! idle machine each wake-up takes 0.1 ms. Here both threads wait for the same events, and the
//! kernel wakes the last one to wait: the thread waiting for a reply, if there is one. No thread
//! spins. Knows descriptors, not their data.

use std::{
    cell::Cell,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{
        EventfdFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        eventfd,
    },
    io::Errno,
};

/// A set of descriptors. Each event goes to one of the waiting threads.
#[derive(Debug)]
pub(crate) struct SharedEpoll {
    set: OwnedFd,
    /// Written to make the waiting thread check whether its wait is over.
    poke: OwnedFd,
    /// Held by the polling caller; at most one.
    place: Mutex<()>,
    /// Whether that thread waits for the next event, or is about to.
    is_waited: AtomicBool,
    is_closed: AtomicBool,
}

thread_local! {
    /// The address of the set in which this thread waits, 0 if none.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// How a wait for events ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The result is there, or the time has passed.
    Over,
    /// A signal handler ran on this thread.
    Interrupted,
    /// Another thread handles the events, or none does any more.
    Elsewhere,
}

/// The token of a [`SharedEpoll::poke`] event.
const POKED: u64 = u64::MAX;

/// The events of a descriptor.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

/// Events that one thread takes at a time. Other threads take the rest.
const EVENTS_AT_ONCE: usize = 8;

impl SharedEpoll {
    pub(crate) fn new() -> io::Result<Self> {
        let set = epoll::create(CreateFlags::CLOEXEC)?;
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Its value is never read: each increment is an event.
        epoll::add(&set, &poke, EventData::new_u64(POKED), EventFlags::IN | EventFlags::ET)?;
        // Not registered for forked children: these keep no socket open, and all such descriptors
        // have one inode.
        let (place, is_waited) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { set, poke, place, is_waited, is_closed: AtomicBool::new(false) })
    }

    /// Adds a non-blocking `descriptor`. The thread that handles its event gets `token` and whether
    /// it is the last event, and must read everything available, or call [`SharedEpoll::raise`]
    /// later. Closing the descriptor removes it.
    pub(crate) fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        debug_assert_ne!(token, POKED);
        Ok(epoll::add(&self.set, descriptor, EventData::new_u64(token), READABLE)?)
    }

    /// Raises the event of a descriptor again if there is something to read, which a thread has
    /// left unread.
    pub(crate) fn raise(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        Ok(epoll::modify(&self.set, descriptor, EventData::new_u64(token), READABLE)?)
    }

    /// Handles events until this is closed.
    pub(crate) fn run(&self, mut take: impl FnMut(u64, bool)) {
        while !self.is_closed() {
            let is_poked = self.take_once(None, || {}, &mut take);
            if is_poked == Ok(true) && self.is_waited.load(Ordering::SeqCst) {
                // The poke was meant for a thread that is about to wait, and would miss it.
                self.poke();
                std::thread::yield_now();
            }
        }
    }

    /// Handles events on the calling thread until `is_over`, for at most `time`. Any other thread
    /// that makes it over must call [`SharedEpoll::poke`].
    pub(crate) fn wait(
        &self,
        time: Duration,
        is_over: impl Fn() -> bool,
        mut take: impl FnMut(u64, bool),
    ) -> Waited {
        let _place = match self.place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => return Waited::Elsewhere,
        };
        let begun = Instant::now();
        HERE.set(self.address());
        let mut waited = Waited::Over;
        while waited == Waited::Over {
            self.is_waited.store(true, Ordering::SeqCst);
            let left = time.saturating_sub(begun.elapsed());
            if is_over() || left.is_zero() || self.is_closed() {
                break;
            }
            let woken = || self.is_waited.store(false, Ordering::SeqCst);
            if self.take_once(Some(left), woken, &mut take).is_err() {
                waited = Waited::Interrupted;
            }
        }
        self.is_waited.store(false, Ordering::SeqCst);
        HERE.set(0);
        if self.is_closed() {
            // Wake the other thread as well.
            self.poke();
            return Waited::Elsewhere;
        }
        waited
    }

    /// Whether the calling thread is inside [`SharedEpoll::wait`], handling an event.
    pub(crate) fn is_here(&self) -> bool {
        HERE.get() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Makes the thread in [`SharedEpoll::wait`], if there is one, check whether its wait is over.
    pub(crate) fn poke(&self) {
        // This fails only if the counter is full, which takes longer than any machine lives.
        let _ = rustix::io::write(&self.poke, &1_u64.to_ne_bytes());
    }

    /// Ends [`SharedEpoll::run`] and [`SharedEpoll::wait`].
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.poke();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Waits for events and handles them; returns whether the poke was among them.
    ///
    /// # Errors
    /// A signal came first. Our own descriptor has no other errors.
    fn take_once(
        &self,
        time: Option<Duration>,
        woken: impl Fn(),
        take: &mut impl FnMut(u64, bool),
    ) -> Result<bool, Errno> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_AT_ONCE];
        let timeout = time.and_then(|time| Timespec::try_from(time).ok());
        let waited = epoll::wait(&self.set, &mut events, timeout.as_ref());
        woken();
        let (events, _) = waited?;
        let mut is_poked = false;
        for event in events {
            match event.data.u64() {
                POKED => is_poked = true,
                token => take(token, !event.flags.difference(EventFlags::IN).is_empty()),
            }
        }
        Ok(is_poked)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::net::UnixStream,
        path::{Path, PathBuf},
        sync::{Arc, atomic::AtomicUsize, mpsc},
        thread,
    };

    use rustix::io::write;

    use super::*;

    const ROUNDS: usize = 100;

    /// Timeout of a test that hangs.
    const LONG: Duration = Duration::from_secs(20);

    /// The file with the state of the calling thread.
    fn this_thread() -> PathBuf {
        fs::canonicalize("/proc/thread-self").unwrap().join("stat")
    }

    /// Waits until a thread that is about to wait for events sleeps.
    fn until_asleep(thread: &Path) {
        let begun = Instant::now();
        while !fs::read_to_string(thread).unwrap().contains(") S ") {
            assert!(begun.elapsed() < LONG, "the thread does not sleep");
            thread::yield_now();
        }
    }

    fn background(epoll: &Arc<SharedEpoll>, taken: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
        let (epoll, taken) = (epoll.clone(), taken.clone());
        thread::spawn(move || {
            epoll.run(|_, _| {
                taken.fetch_add(1, Ordering::SeqCst);
                epoll.poke();
            });
        })
    }

    /// Each event comes when both threads wait, the thread waiting for it last, however busy the
    /// machine is.
    #[test]
    fn waiting_thread_handles_the_event_itself() {
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        epoll.add(&near, 7).unwrap();
        let others = Arc::new(AtomicUsize::new(0));
        let (say, background_is) = mpsc::channel();
        let thread = {
            let (epoll, others) = (epoll.clone(), others.clone());
            thread::spawn(move || {
                say.send(this_thread()).unwrap();
                epoll.run(|_, _| {
                    others.fetch_add(1, Ordering::SeqCst);
                    epoll.poke();
                });
            })
        };
        let background = background_is.recv().unwrap();
        let here = this_thread();
        let mut mine = 0;
        for round in 0..ROUNDS {
            until_asleep(&background);
            let taken = AtomicUsize::new(0);
            let sender = {
                let (epoll, here, far) = (epoll.clone(), here.clone(), far.try_clone().unwrap());
                thread::spawn(move || {
                    while !epoll.is_waited.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    until_asleep(&here);
                    write(&far, b"x").unwrap();
                })
            };
            let is_over =
                || taken.load(Ordering::SeqCst) > 0 || others.load(Ordering::SeqCst) + mine > round;
            let waited = epoll.wait(LONG, is_over, |token, _| {
                assert_eq!(token, 7);
                taken.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(waited, Waited::Over);
            sender.join().unwrap();
            mine += taken.load(Ordering::SeqCst);
        }
        assert_eq!(mine, ROUNDS);
        epoll.close();
        thread.join().unwrap();
    }

    /// Goal: a reply from another thread ends the wait, whichever thread takes the poke.
    #[test]
    fn no_poke_is_lost() {
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        let thread = background(&epoll, &Arc::default());
        for round in 0..2000 {
            let is_over = Arc::new(AtomicBool::new(false));
            let setter = {
                let (epoll, is_over) = (epoll.clone(), is_over.clone());
                thread::spawn(move || {
                    if round % 3 == 0 {
                        thread::yield_now();
                    }
                    is_over.store(true, Ordering::SeqCst);
                    epoll.poke();
                })
            };
            let begun = Instant::now();
            let waited = epoll.wait(LONG, || is_over.load(Ordering::SeqCst), |_, _| {});
            assert_eq!(waited, Waited::Over);
            assert!(begun.elapsed() < LONG);
            setter.join().unwrap();
        }
        epoll.close();
        thread.join().unwrap();
    }

    #[test]
    fn only_one_thread_can_wait() {
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        let first = {
            let epoll = epoll.clone();
            thread::spawn(move || epoll.wait(LONG, || false, |_, _| {}))
        };
        while !epoll.is_waited.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert_eq!(epoll.wait(LONG, || false, |_, _| {}), Waited::Elsewhere);
        epoll.close();
        assert_eq!(first.join().unwrap(), Waited::Elsewhere);
    }

    #[test]
    fn closing_ends_both_threads() {
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        let thread = background(&epoll, &Arc::default());
        let closer = {
            let epoll = epoll.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                epoll.close();
            })
        };
        assert_eq!(epoll.wait(LONG, || false, |_, _| {}), Waited::Elsewhere);
        thread.join().unwrap();
        closer.join().unwrap();
    }

    #[test]
    fn wait_ends_at_its_timeout() {
        let epoll = SharedEpoll::new().unwrap();
        let begun = Instant::now();
        let waited = epoll.wait(Duration::from_millis(20), || false, |_, _| {});
        assert_eq!(waited, Waited::Over);
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
