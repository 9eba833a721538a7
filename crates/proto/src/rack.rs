//! The name of a rack. Knows nothing of who stands in it.

use alloc::{
    format,
    string::{String, ToString},
};
use core::{fmt, str, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{id::BadRef, quoted::Quoted};

/// As long as the value of a label in Kubernetes, which is where such names often come from.
pub const RACK_BYTES_MAX: usize = 63;

/// Hosts that reach each other over links of their own: a rack, an availability zone. Between two of them there is less
/// bandwidth than all their hosts have together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rack {
    /// The name, and zeros.
    bytes: [u8; RACK_BYTES_MAX],
}

impl Rack {
    /// The name.
    pub fn as_str(&self) -> &str {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(RACK_BYTES_MAX);
        str::from_utf8(&self.bytes[..length]).unwrap_or_default()
    }
}

impl FromStr for Rack {
    type Err = BadRef;

    fn from_str(text: &str) -> Result<Self, BadRef> {
        if text.is_empty() {
            return Err(BadRef("the name of a rack can't be empty".into()));
        }
        if text.len() > RACK_BYTES_MAX {
            return Err(BadRef(format!(
                "the name of a rack has at most {RACK_BYTES_MAX} bytes, {} has {}",
                Quoted(text),
                text.len()
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(BadRef(format!(
                "the name of a rack has control characters: {}",
                Quoted(text)
            )));
        }
        let mut bytes = [0; RACK_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes })
    }
}

impl TryFrom<String> for Rack {
    type Error = BadRef;

    fn try_from(text: String) -> Result<Self, BadRef> {
        text.parse()
    }
}

impl From<Rack> for String {
    fn from(rack: Rack) -> Self {
        rack.to_string()
    }
}

impl fmt::Display for Rack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Rack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_the_wire() {
        for text in ["r1", "eu-west-1a/row 7", "Rück", &"x".repeat(RACK_BYTES_MAX)] {
            let rack: Rack = text.parse().unwrap();
            let bytes = postcard::to_allocvec(&rack).unwrap();
            assert_eq!(postcard::from_bytes::<Rack>(&bytes).unwrap(), rack);
            assert_eq!(rack.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_from_the_wire_too() {
        for text in ["", "a\nb", "a\0b", &"x".repeat(RACK_BYTES_MAX + 1)] {
            assert!(text.parse::<Rack>().is_err(), "{text:?}");
            let bytes = postcard::to_allocvec(text).unwrap();
            assert!(postcard::from_bytes::<Rack>(&bytes).is_err(), "{text:?}");
        }
    }
}
