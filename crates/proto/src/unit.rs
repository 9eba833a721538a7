//! Units of dates and times: the step of a datetime64 or timedelta64, such as `[ns]` or `[25us]`.
//!
//! As in NumPy, a step is a whole number of a unit, or has no unit.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A time unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Scale {
    /// No unit: NumPy's "generic", with a step of one.
    Generic,
    Years,
    Months,
    Weeks,
    Days,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
    Picoseconds,
    Femtoseconds,
    Attoseconds,
}

impl Scale {
    /// Every unit except the generic one.
    const ALL: [Self; 13] = [
        Self::Years,
        Self::Months,
        Self::Weeks,
        Self::Days,
        Self::Hours,
        Self::Minutes,
        Self::Seconds,
        Self::Milliseconds,
        Self::Microseconds,
        Self::Nanoseconds,
        Self::Picoseconds,
        Self::Femtoseconds,
        Self::Attoseconds,
    ];

    /// NumPy's abbreviation; empty for no unit.
    const fn letters(self) -> &'static str {
        match self {
            Self::Generic => "",
            Self::Years => "Y",
            Self::Months => "M",
            Self::Weeks => "W",
            Self::Days => "D",
            Self::Hours => "h",
            Self::Minutes => "m",
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::Microseconds => "us",
            Self::Nanoseconds => "ns",
            Self::Picoseconds => "ps",
            Self::Femtoseconds => "fs",
            Self::Attoseconds => "as",
        }
    }
}

/// A whole number of a unit. Written as NumPy does after `datetime64`: `[ns]`, `[25us]`, or empty
/// for no unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
// Every object has a unit. Without padding an announcement fits into 128 bytes, up to which it is
// moved without a call.
#[repr(Rust, packed)]
pub struct Unit {
    count: u32,
    scale: Scale,
}

impl Unit {
    /// No unit.
    pub const GENERIC: Self = Self { count: 1, scale: Scale::Generic };

    /// One nanosecond, the unit of most programs.
    pub const NANOSECONDS: Self = Self { count: 1, scale: Scale::Nanoseconds };

    /// A step of `count` units; `None` if NumPy has no such step.
    pub fn new(count: u32, scale: Scale) -> Option<Self> {
        Some(Self { count, scale }).filter(Self::is_consistent)
    }

    /// Whether NumPy has this step; false only for metadata from a broken peer.
    pub const fn is_consistent(&self) -> bool {
        match self.scale {
            Scale::Generic => self.count == 1,
            // NumPy stores the count as a signed 32-bit number.
            _ => 1 <= self.count && self.count <= i32::MAX as u32,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count, self.scale) {
            (_, Scale::Generic) => Ok(()),
            (1, scale) => write!(f, "[{}]", scale.letters()),
            (count, scale) => write!(f, "[{count}{}]", scale.letters()),
        }
    }
}

/// A text that is not a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownUnit;

impl FromStr for Unit {
    type Err = UnknownUnit;

    /// Parses exactly what `Display` writes: each unit has one text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::GENERIC);
        }
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let inner = inner.ok_or(UnknownUnit)?;
        let letters = inner.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let digits = &inner[..inner.len() - letters.len()];
        let scale = Scale::ALL.into_iter().find(|scale| scale.letters() == letters);
        let count = match digits {
            "" => 1,
            "1" => return Err(UnknownUnit),
            _ if digits.starts_with('0') => return Err(UnknownUnit),
            _ => digits.parse().map_err(|_| UnknownUnit)?,
        };
        Self::new(count, scale.ok_or(UnknownUnit)?).ok_or(UnknownUnit)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn every_unit_reads_back() {
        for scale in Scale::ALL {
            for count in [1, 2, 25, i32::MAX as u32] {
                let unit = Unit::new(count, scale).unwrap();
                assert_eq!(unit.to_string().parse(), Ok(unit));
            }
        }
        assert_eq!(Unit::GENERIC.to_string().parse(), Ok(Unit::GENERIC));
        assert_eq!(Unit::new(25, Scale::Microseconds).unwrap().to_string(), "[25us]");
    }

    #[test]
    fn a_step_that_numpy_lacks_is_none() {
        assert_eq!(Unit::new(0, Scale::Days), None);
        assert_eq!(Unit::new(1 << 31, Scale::Days), None);
        assert_eq!(Unit::new(2, Scale::Generic), None);
        for text in
            ["[]", "[7]", "[1ns]", "[0ns]", "[02ns]", "[ns", "ns", "[2147483648s]", "[S]", "[é]"]
        {
            assert_eq!(text.parse::<Unit>(), Err(UnknownUnit), "{text}");
        }
    }
}
