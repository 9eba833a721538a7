//! Logs a repeated cause once an hour, and its repeats at debug. Does not know the causes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, TryLockError},
    time::{Duration, Instant},
};

/// Time after which a cause is logged again, with the number of its repeats.
const QUIET: Duration = Duration::from_secs(3600);

/// Limit of causes of one place in the code per [`QUIET`]. The others of that place are logged
/// together. Strangers can cause any number at the places that they reach, and must not use up the
/// log of any other place.
const CAUSES_MAX: usize = 64;

/// The causes that this process logged in the last [`QUIET`]. Several nodes of a process share one
/// log.
static SEEN: Repeats = Repeats(Mutex::new(BTreeMap::new()));

/// Logs an event at a level if its cause, a text, was not logged recently; else at debug.
///
/// A cause is a member, an address or the class of an error, never a text or number that a peer
/// chooses: each would be another cause.
macro_rules! log_once {
    ($level:ident, $cause:expr, $($event:tt)+) => {
        match $crate::repeats::note(concat!(module_path!(), line!()), $cause.to_string()) {
            Some(repeats) => {
                let repeats = (repeats > 0).then_some(repeats);
                tracing::$level!(repeats, $($event)+);
            }
            None => tracing::debug!($($event)+),
        }
    };
}
pub(crate) use log_once;

/// The repeats of a cause since it was last logged; None if that was recently.
pub(crate) fn note(place: &'static str, cause: String) -> Option<u64> {
    SEEN.note(Instant::now(), place, cause)
}

/// When a cause was last logged, and how often it repeated since.
type Logged = (Instant, u64);

/// The causes of each place; None stands for all beyond the limit.
struct Repeats(Mutex<BTreeMap<&'static str, BTreeMap<Option<String>, Logged>>>);

impl Repeats {
    fn note(&self, now: Instant, place: &'static str, cause: String) -> Option<u64> {
        let mut seen = match self.0.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(seen)) => seen.into_inner(),
            // Another thread notes a cause, perhaps a thread of the parent when this process was
            // forked, which never unlocks it: log the event rather than wait.
            Err(TryLockError::WouldBlock) => return Some(0),
        };
        let causes = seen.entry(place).or_default();
        let mut cause = Some(cause);
        if causes.len() >= CAUSES_MAX && !causes.contains_key(&cause) {
            causes.retain(|_, (logged, _)| now.saturating_duration_since(*logged) < QUIET);
            if causes.len() >= CAUSES_MAX {
                cause = None;
            }
        }
        let Some((logged, repeats)) = causes.get_mut(&cause) else {
            causes.insert(cause, (now, 0));
            return Some(0);
        };
        *repeats += 1;
        let is_due = now.saturating_duration_since(*logged) >= QUIET;
        is_due.then(|| {
            *logged = now;
            std::mem::take(repeats) - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::lock;

    #[test]
    fn child_forked_while_a_thread_notes_a_cause_logs_every_event() {
        let seen = Repeats(Mutex::default());
        let _held = seen.0.lock().unwrap();
        for _ in 0..2 {
            assert_eq!(seen.note(Instant::now(), "here", "it".into()), Some(0));
        }
    }

    /// Notes a cause of the place "here".
    fn note(seen: &Repeats, now: Instant, of: usize) -> Option<u64> {
        seen.note(now, "here", of.to_string())
    }

    #[test]
    fn a_cause_is_logged_once_an_hour_with_its_repeats() {
        let (seen, now) = (Repeats(Mutex::default()), Instant::now());
        assert_eq!(note(&seen, now, 1), Some(0));
        assert_eq!(note(&seen, now, 2), Some(0), "another cause");
        assert_eq!(note(&seen, now, 1), None);
        assert_eq!(note(&seen, now + QUIET / 2, 1), None);
        assert_eq!(note(&seen, now + QUIET, 1), Some(2));
        assert_eq!(note(&seen, now + QUIET, 1), None);
    }

    #[test]
    fn causes_beyond_the_limit_are_logged_together() {
        let (seen, now) = (Repeats(Mutex::default()), Instant::now());
        let logged = (0..2 * CAUSES_MAX).filter(|of| note(&seen, now, *of).is_some()).count();
        assert_eq!(logged, CAUSES_MAX + 1);
        assert_eq!(lock(&seen.0)["here"].len(), CAUSES_MAX + 1);
        assert_eq!(note(&seen, now + QUIET / 2, CAUSES_MAX - 1), None, "a cause within the limit");
        assert_eq!(note(&seen, now + QUIET, usize::MAX), Some(0), "old causes are dropped");
        assert_eq!(lock(&seen.0)["here"].len(), 1);
    }

    #[test]
    fn causes_of_one_place_hide_none_of_another() {
        let (seen, now) = (Repeats(Mutex::default()), Instant::now());
        for of in 0..2 * CAUSES_MAX {
            note(&seen, now, of);
        }
        assert_eq!(seen.note(now, "there", "1".into()), Some(0));
        assert_eq!(seen.note(now, "there", "1".into()), None);
    }
}
