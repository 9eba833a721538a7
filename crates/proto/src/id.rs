//! Identities: nodes, instances, objects, requests. Newtypes with one meaning each.
//!
//! Knows how an identity is written and which part of a name decides who owns it; knows no member and no owner.

use alloc::{format, string::String, sync::Arc};
use core::{cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{limits::NAME_BYTES_MAX, quoted::Quoted};

/// One start of one node: a restarted process is another node. Drawn at random by the shell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{:x}", self.0)
    }
}

/// One act of making an object's bytes: a put, or one epoch of a reduce.
///
/// An id is not its bytes: a task that is run again may make other float bits. Copies, transfers, pins and
/// tombstones name an instance, so bytes of two instances never meet in one object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// The node that made the bytes.
    pub node: NodeId,
    /// Counts what that node made.
    pub serial: u64,
}

impl Ord for Instance {
    fn cmp(&self, other: &Self) -> Ordering {
        numbered(self.node, self.serial).cmp(&numbered(other.node, other.serial))
    }
}

impl PartialOrd for Instance {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A node and what it counts, as one number in their order: a search compares the two at once.
const fn numbered(node: NodeId, serial: u64) -> u128 {
    (node.0 as u128) << 64 | serial as u128
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}#{}", self.node.0, self.serial)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A reduce, as its coordinator counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReduceId {
    /// The node of the caller, which coordinates.
    pub node: NodeId,
    /// Counts the reduces of that node.
    pub serial: u64,
}

/// What users hold: an id that a node minted, or a name that a user chose.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ObjectId {
    /// Minted by `node`, which therefore is its first owner: a get is one round trip to where the object is.
    Minted {
        /// The node that minted it.
        node: NodeId,
        /// Counts what that node minted.
        serial: u64,
    },
    /// Chosen by a user.
    Named(Name),
}

impl Ord for ObjectId {
    /// Minted ids, then names.
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Minted { node, serial }, Self::Minted { node: other, serial: later }) => {
                numbered(*node, *serial).cmp(&numbered(*other, *later))
            }
            (Self::Named(name), Self::Named(other)) => name.cmp(other),
            (Self::Minted { .. }, Self::Named(_)) => Ordering::Less,
            (Self::Named(_), Self::Minted { .. }) => Ordering::Greater,
        }
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl ObjectId {
    /// The hash that decides who owns the object. Names hash by the text before their last `/`, so that one
    /// owner knows all names of a prefix.
    pub fn owner_hash(&self) -> u64 {
        match self {
            Self::Minted { node, serial } => mix(node.0 ^ mix(*serial)),
            Self::Named(name) => hash_bytes(name.group().as_bytes()),
        }
    }

    /// Whether the object is the only one that can ever have this id: a minted one, or a name that a node made for the promise of
    /// a client with a capability.
    pub fn is_unique(&self) -> bool {
        match self {
            Self::Minted { .. } => true,
            Self::Named(name) => name.as_str().contains("/@"),
        }
    }

    /// The node that minted the id, if one did.
    pub const fn minter(&self) -> Option<NodeId> {
        match self {
            Self::Minted { node, .. } => Some(*node),
            Self::Named(_) => None,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minted { node, serial } => write!(f, "@{:016x}.{serial:x}", node.0),
            Self::Named(name) => f.write_str(name.as_str()),
        }
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minted { node, serial } => write!(f, "@{:x}.{serial:x}", node.0),
            Self::Named(name) => write!(f, "{:?}", name.as_str()),
        }
    }
}

impl FromStr for ObjectId {
    type Err = BadRef;

    fn from_str(text: &str) -> Result<Self, BadRef> {
        let Some(minted) = text.strip_prefix('@') else {
            return text.parse().map(Self::Named);
        };
        let bad = || {
            BadRef(format!(
                "{} is not a valid ref: expected @, 16 hex digits, a dot and a hex number",
                Quoted(text)
            ))
        };
        let (node, serial) = minted.split_once('.').ok_or_else(bad)?;
        if node.len() != 16 {
            return Err(bad());
        }
        Ok(Self::Minted {
            node: NodeId(u64::from_str_radix(node, 16).map_err(|_| bad())?),
            serial: u64::from_str_radix(serial, 16).map_err(|_| bad())?,
        })
    }
}

/// A name that a user chose, such as `policy/17`: 1 to [`NAME_BYTES_MAX`] bytes, without control characters, not
/// beginning with `@`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text before the last `/`, or the whole name where there is none.
    pub fn group(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(group, _)| group)
    }

    /// The number after the last `/`, for `latest`; at most [`NUMBER_MAX`].
    pub fn version(&self) -> Option<u64> {
        let (_, last) = self.0.rsplit_once('/')?;
        if last.starts_with('+') { None } else { last.parse().ok() }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The largest number at the end of a name: a signed integer of 64 bits holds it in every language.
pub const NUMBER_MAX: u64 = i64::MAX.cast_unsigned();

impl FromStr for Name {
    type Err = BadRef;

    fn from_str(text: &str) -> Result<Self, BadRef> {
        if text.is_empty() {
            return Err(BadRef("a name can't be empty".into()));
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(BadRef(format!(
                "a name of {} bytes is too long: use at most {NAME_BYTES_MAX}",
                text.len()
            )));
        }
        if text.starts_with('@') {
            return Err(BadRef(format!(
                "the name {} begins with @, which marks generated refs: use another first character",
                Quoted(text)
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(BadRef(format!(
                "the name {} contains a control character: remove it",
                Quoted(text)
            )));
        }
        let last = text.rsplit_once('/').map_or("", |(_, last)| last);
        let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && !last.parse().is_ok_and(|number: u64| number <= NUMBER_MAX) {
            return Err(BadRef(format!(
                "the number at the end of the name {} is above {NUMBER_MAX}: use at most 18 digits",
                Quoted(text)
            )));
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for Name {
    type Error = BadRef;

    fn try_from(text: String) -> Result<Self, BadRef> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        Self::from(&*name.0)
    }
}

/// A text that is not what it should be: a ref, a name, a rack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRef(pub String);

/// A user of a node: an attached process, or the process that embeds it. Counted by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

/// One question of a client, answered exactly once. Counted by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// One transfer out of this node. Counted by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServeId(pub u64);

/// Scrambles a number so that every bit of it moves half of the result (the finaliser of SplitMix64).
pub const fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

/// FNV-1a, then [`mix`]: the same on every node and in every release, unlike a `Hasher` of the standard library.
fn hash_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn refs_read_back() {
        let minted = ObjectId::Minted { node: NodeId(0xabc), serial: 31 };
        assert_eq!(minted.to_string(), "@0000000000000abc.1f");
        assert_eq!(minted.to_string().parse(), Ok(minted));
        let named: ObjectId = "policy/17".parse().unwrap();
        assert_eq!(named.to_string(), "policy/17");
    }

    #[test]
    fn what_is_no_ref_says_why() {
        for (text, why) in [
            ("", "empty"),
            ("@12.3", "16 hex digits"),
            ("@zzzzzzzzzzzzzzzz.0", "16 hex digits"),
            ("a\nb", "control"),
        ] {
            let error = text.parse::<ObjectId>().unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        assert!("x".repeat(NAME_BYTES_MAX + 1).parse::<Name>().is_err());
        assert!("x".repeat(NAME_BYTES_MAX).parse::<Name>().is_ok());
    }

    #[test]
    fn names_of_a_group_share_their_owner() {
        let hash = |text: &str| text.parse::<ObjectId>().unwrap().owner_hash();
        assert_eq!(hash("policy/1"), hash("policy/2"));
        assert_ne!(hash("policy/1"), hash("value/1"));
        assert_ne!(hash("a"), hash("b"));
        assert_eq!(hash("a/b/1"), hash("a/b/2"));
    }

    #[test]
    fn a_version_is_the_number_after_the_last_slash() {
        let version = |text: &str| text.parse::<Name>().unwrap().version();
        assert_eq!(version("policy/17"), Some(17));
        assert_eq!(version("policy/x"), None);
        assert_eq!(version("policy/+1"), None);
        assert_eq!(version("17"), None);
        assert_eq!(version("policy/009223372036854775807"), Some(NUMBER_MAX));
    }

    #[test]
    fn a_number_that_no_version_can_be_is_refused() {
        for text in [
            "policy/9223372036854775808",
            "policy/20261125133000123456",
            "a/b/99999999999999999999999",
        ] {
            let refused = text.parse::<Name>().unwrap_err().to_string();
            assert!(refused.contains("at most 18 digits"), "{refused}");
            assert!(
                text.replace('/', "-").parse::<Name>().is_ok(),
                "without a prefix it is no version"
            );
        }
    }
}
