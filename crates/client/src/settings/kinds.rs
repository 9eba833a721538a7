//! Types of settings: the syntax and the check of each. The first argument of each function names the setting.

use std::{path::PathBuf, time::Duration};

use hoplite_node::proto::{
    id::NUMBER_MAX,
    place::{Group, Place},
};

use super::paths::expanded;
use crate::error::{Error, Result};

/// A smaller store fits few useful objects: probably the unit is missing.
const CAPACITY_MIN: u64 = 1 << 20;

/// The address space of a process. A larger store can't exist: probably the unit is wrong.
const CAPACITY_MAX: u64 = 128 << 40;

/// A node that shares two busy processors with others may wait half of this time to be scheduled.
const DETECTION_MIN: Duration = Duration::from_millis(500);

/// Any text.
pub(crate) fn text(_: &str, text: &str) -> Result<String> {
    Ok(text.into())
}

/// A path.
pub(crate) fn path(_: &str, text: &str) -> Result<PathBuf> {
    Ok(expanded(text.as_ref()))
}

/// Texts separated by commas; none if the text is empty, as from an empty list in a file.
pub(crate) fn list(_: &str, text: &str) -> Result<Vec<String>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    Ok(text.split(',').map(|part| part.trim().into()).collect())
}

/// True or false.
pub(crate) fn flag(name: &str, text: &str) -> Result<bool> {
    match text.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(invalid(name, text, "true or false; also 1 or 0 in a variable")),
    }
}

/// A number of seconds.
pub(crate) fn seconds(name: &str, text: &str) -> Result<Duration> {
    let number = text.trim().parse().ok().filter(|seconds: &f64| *seconds >= 0.0);
    match number {
        // Infinity, or too large for a `Duration`.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        None => Err(invalid(name, text, "a number of seconds, such as 30")),
    }
}

/// A number of bytes, such as "8GiB", "500MB" or "1024". K, M, G and T alone are KiB, MiB, GiB and TiB.
pub(crate) fn size(name: &str, text: &str) -> Result<u64> {
    const UNITS: [(&str, u64); 14] = [
        ("", 1),
        ("B", 1),
        ("K", 1 << 10),
        ("KB", 1000),
        ("KiB", 1 << 10),
        ("M", 1 << 20),
        ("MB", 1_000_000),
        ("MiB", 1 << 20),
        ("G", 1 << 30),
        ("GB", 1_000_000_000),
        ("GiB", 1 << 30),
        ("T", 1 << 40),
        ("TB", 1_000_000_000_000),
        ("TiB", 1 << 40),
    ];
    let wrong = || {
        let message = format!(
            "{name} {text:?} is not a size: write \"8GiB\", \"8G\" (the same), \"500MB\" or a number of bytes"
        );
        Error::argument(message)
    };
    let trimmed = text.trim();
    let end = trimmed.find(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    let (number, unit) = trimmed.split_at(end.unwrap_or(trimmed.len()));
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (_, factor) =
        UNITS.into_iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(wrong)?;
    let bytes = match (is_number, number.parse::<u64>(), number.parse::<f64>()) {
        (true, Ok(whole), _) => whole.saturating_mul(factor),
        (true, _, Ok(number)) => (number * factor as f64) as u64,
        _ => return Err(wrong()),
    };
    checked_size(name, bytes)
}

/// Checks a number of bytes.
pub(crate) fn checked_size(name: &str, bytes: u64) -> Result<u64> {
    if (1..=NUMBER_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    let message = format!("{name} is {bytes} bytes: set more than 0 and less than 8 EiB");
    Err(Error::argument(message))
}

/// Checks the capacity of a store.
pub(crate) fn checked_capacity(bytes: u64) -> Result<u64> {
    if bytes > CAPACITY_MAX {
        let message = format!(
            "capacity {bytes} B is more than a process can map: set at most {CAPACITY_MAX} (128 TiB)"
        );
        return Err(Error::argument(message));
    }
    if checked_size("capacity", bytes)? >= CAPACITY_MIN {
        return Ok(bytes);
    }
    let intended =
        if bytes < 1024 { format!(" (did you mean \"{bytes}GiB\"?)") } else { String::new() };
    let message =
        format!("capacity {bytes} B is too small{intended}: set at least {CAPACITY_MIN} (1 MiB)");
    Err(Error::argument(message))
}

/// Checks a detection timeout.
pub(crate) fn checked_detection(time: Duration) -> Result<Duration> {
    if time >= DETECTION_MIN {
        return Ok(time);
    }
    let message = format!(
        "detection_timeout {} is too short: a busy host would be declared dead. Set at least {}",
        time.as_secs_f64(),
        DETECTION_MIN.as_secs_f64()
    );
    Err(Error::argument(message))
}

/// The place of a host in a rack.
pub(crate) fn place(rack: String) -> Result<Place> {
    Place::new(&[Group { label: rack, carries: 0 }]).map_err(Error::argument)
}

fn invalid(name: &str, text: &str, syntax: &str) -> Error {
    Error::argument(format!("{name} {text:?} is not valid: write {syntax}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let parsed = |text| size("capacity", text).ok();
        assert_eq!(parsed("1024"), Some(1024));
        assert_eq!(parsed(" 8GiB "), Some(8 << 30));
        assert_eq!(parsed("1.5 MiB"), Some(3 << 19));
        assert_eq!(parsed("500MB"), Some(500_000_000));
        assert_eq!(
            (parsed("10G"), parsed("3 K"), parsed("2M")),
            (Some(10 << 30), Some(3 << 10), Some(2 << 20))
        );
        assert_eq!(parsed("1.5T"), Some(3 << 39));
        for wrong in ["", "GiB", "0", "-1", "1e3", "1 PiB", "8gib", "9223372036854775808", "1 2"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn impossible_capacities_are_rejected() {
        let error = checked_capacity(size("capacity", "999999TiB").unwrap()).unwrap_err();
        assert!(error.to_string().ends_with("set at most 140737488355328 (128 TiB)"), "{error}");
        assert_eq!(checked_capacity(128 << 40).unwrap(), 128 << 40);
    }

    #[test]
    fn small_capacity_is_rejected_with_a_guess() {
        let error = checked_capacity(8).unwrap_err().to_string();
        assert!(error.contains("did you mean \"8GiB\"?"), "{error}");
        assert_eq!(checked_capacity(1 << 20).unwrap(), 1 << 20);
    }

    #[test]
    fn seconds_and_flags() {
        assert_eq!(seconds("x", "0.5").unwrap(), Duration::from_millis(500));
        assert!(seconds("x", "-1").is_err());
        assert!(seconds("x", "NaN").is_err());
        assert_eq!((flag("x", "Yes").unwrap(), flag("x", "0").unwrap()), (true, false));
        assert!(flag("x", "2").is_err());
        assert!(checked_detection(Duration::from_millis(499)).is_err());
    }
}
