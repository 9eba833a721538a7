//! Logs a repeated cause once an hour, and its repeats at debug. Does not know the causes.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::sync::lock;

/// Time after which a cause is logged again, with the number of its repeats.
const QUIET: Duration = Duration::from_secs(3600);

/// Limit of causes per [`QUIET`]. Strangers can cause any number; the excess is logged at debug.
const CAUSES_MAX: usize = 256;

/// The causes that this process logged in the last [`QUIET`]. Several nodes of a process share one log.
static SEEN: Repeats = Repeats(Mutex::new(BTreeMap::new()));

/// Logs an event at a level if its cause, a text, was not logged recently; else at debug.
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
    SEEN.note(Instant::now(), (place, cause))
}

type Cause = (&'static str, String);

/// When each cause was last logged, and how often it repeated since.
struct Repeats(Mutex<BTreeMap<Cause, (Instant, u64)>>);

impl Repeats {
    fn note(&self, now: Instant, cause: Cause) -> Option<u64> {
        let mut seen = lock(&self.0);
        if let Some((logged, repeats)) = seen.get_mut(&cause) {
            *repeats += 1;
            let is_due = now.saturating_duration_since(*logged) >= QUIET;
            return is_due.then(|| {
                *logged = now;
                std::mem::take(repeats) - 1
            });
        }
        if seen.len() >= CAUSES_MAX {
            seen.retain(|_, (logged, _)| now.saturating_duration_since(*logged) < QUIET);
        }
        if seen.len() >= CAUSES_MAX {
            return None;
        }
        seen.insert(cause, (now, 0));
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(of: usize) -> Cause {
        ("here", of.to_string())
    }

    #[test]
    fn a_cause_is_logged_once_an_hour_with_its_repeats() {
        let (seen, now) = (Repeats(Mutex::default()), Instant::now());
        assert_eq!(seen.note(now, cause(1)), Some(0));
        assert_eq!(seen.note(now, cause(2)), Some(0), "another cause");
        assert_eq!(seen.note(now, cause(1)), None);
        assert_eq!(seen.note(now + QUIET / 2, cause(1)), None);
        assert_eq!(seen.note(now + QUIET, cause(1)), Some(2));
        assert_eq!(seen.note(now + QUIET, cause(1)), None);
    }

    #[test]
    fn causes_are_bounded() {
        let (seen, now) = (Repeats(Mutex::default()), Instant::now());
        let logged = (0..2 * CAUSES_MAX).filter(|of| seen.note(now, cause(*of)).is_some()).count();
        assert_eq!((logged, lock(&seen.0).len()), (CAUSES_MAX, CAUSES_MAX));
        assert_eq!(seen.note(now + QUIET, cause(usize::MAX)), Some(0), "old causes are dropped");
    }
}
