//! Tests of the shared epoll set with real descriptors and threads.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::write;

use crate::shared_epoll::{SharedEpoll, Waited};

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
                while !epoll.is_waited() {
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
    while !epoll.is_waited() {
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
