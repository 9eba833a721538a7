//! Checks of arguments that do not depend on the state of the cluster.

use std::{collections::BTreeSet, time::Duration};

use hoplite_node::proto::id::{Name, ObjectId};

use crate::error::{Error, Result};

/// 30 years.
const TTL_MAX: Duration = Duration::from_secs(1_000_000_000);

/// Checks a time to live.
pub(crate) fn ttl(ttl: Option<Duration>) -> Result<Option<Duration>> {
    match ttl {
        Some(ttl) if ttl.is_zero() || ttl > TTL_MAX => {
            let message = format!(
                "ttl is {} s: set more than 0 and at most {} s, or none to keep the object until it is deleted",
                ttl.as_secs_f64(),
                TTL_MAX.as_secs()
            );
            Err(Error::argument(message))
        }
        _ => Ok(ttl),
    }
}

/// Checks the number of nodes that keep a copy.
pub(crate) fn replicas(replicas: u32) -> Result<u32> {
    if replicas > 0 {
        return Ok(replicas);
    }
    Err(Error::argument("replicas is 0, but the count includes the first copy: set at least 1"))
}

/// Checks the number of versions to retain; returns it with the name of the newest.
pub(crate) fn retain(retain: Option<u64>, name: Option<&ObjectId>) -> Result<Option<(Name, u64)>> {
    let Some(number) = retain else { return Ok(None) };
    if number == 0 {
        return Err(Error::argument("retain is 0, and it counts the new object: set at least 1"));
    }
    Ok(Some((versioned("retain", name)?, number)))
}

/// Checks that an object is a version of a prefix, as an option requires; returns its name.
pub(crate) fn newest(newest: bool, name: Option<&ObjectId>) -> Result<Option<Name>> {
    newest.then(|| versioned("newest", name)).transpose()
}

fn versioned(option: &str, name: Option<&ObjectId>) -> Result<Name> {
    let given = match name {
        Some(ObjectId::Named(name)) if name.version().is_some() => return Ok(name.clone()),
        Some(other) => format!("{other:?} does not"),
        None => "this put has no name".into(),
    };
    let message = format!(
        "{option} needs a name that ends in \"/\" and a number, and {given}: use a name such as policy/17"
    );
    Err(Error::argument(message))
}

/// Checks that no object is listed twice.
pub(crate) fn distinct(ids: &[ObjectId], what: &str) -> Result<()> {
    let mut seen = BTreeSet::new();
    match ids.iter().find(|id| !seen.insert(*id)) {
        None => Ok(()),
        Some(twice) => {
            let message = format!("{twice} is listed twice in the {what}: list each once");
            Err(Error::argument(message))
        }
    }
}

/// Checks a number of objects, of `all`.
pub(crate) fn count(count: usize, least: usize, all: usize) -> Result<u32> {
    if (least..=all).contains(&count)
        && let Ok(count) = u32::try_from(count)
    {
        return Ok(count);
    }
    Err(Error::argument(format!("count is {count}: for {all} refs, set {least} to {all}")))
}
