//! Signals: threads of the library block all of them, so that a handler of the program never runs on these threads.

use nix::sys::signal::{SigSet, SigmaskHow};

/// Blocks every signal in this thread until it ends.
pub(crate) fn block() {
    // This fails only for an unknown `how`.
    let _ = SigSet::all().thread_set_mask();
}

/// Runs a call that may start threads, which start with every signal blocked.
pub fn blocked<T>(call: impl FnOnce() -> T) -> T {
    let _before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok().map(Restore);
    call()
}

/// The signals that this thread blocked before.
struct Restore(SigSet);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sys::signal::Signal;

    use super::*;

    fn blocks(signal: Signal) -> bool {
        SigSet::thread_get_mask().unwrap().contains(signal)
    }

    #[test]
    fn threads_start_with_every_signal_blocked() {
        let inside = blocked(|| {
            thread::spawn(|| [Signal::SIGINT, Signal::SIGXFSZ].map(blocks)).join().unwrap()
        });
        assert_eq!(inside, [true, true]);
        assert!(!blocks(Signal::SIGINT));
        let runtime = crate::process::runtime().unwrap();
        let worker = runtime.spawn(async { blocks(Signal::SIGTERM) });
        let helper = runtime.spawn_blocking(|| blocks(Signal::SIGTERM));
        let both = runtime.block_on(async { (worker.await.unwrap(), helper.await.unwrap()) });
        assert_eq!(both, (true, true));
    }
}
