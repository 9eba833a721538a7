//! The place of a host: its nested groups, outermost first.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{id::BadRef, quoted::Quoted};

/// Maximum size of a group name in bytes: that of a Kubernetes label value, where such names often
/// come from.
pub const LABEL_BYTES_MAX: usize = 63;

/// Maximum number of nested groups: for example a zone, a pod, a rack, and one more.
pub const LEVELS_MAX: usize = 4;

/// Maximum size in bytes of all group names of a place, with a zero after each. Every member
/// contains its place and is copied often.
pub const PLACE_BYTES_MAX: usize = 96;

/// The groups of a host, such as a rack inside a pod. Hosts of one group have links of their own.
/// Between groups there is less bandwidth than the total of their hosts.
///
/// Sorting places puts hosts of one group next to each other, at every level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Group>", into = "Vec<Group>")]
pub struct Place {
    /// The names, outermost first, each followed by a zero; then zeros.
    labels: [u8; PLACE_BYTES_MAX],
    /// See [`Group::carries`].
    carries: [u8; LEVELS_MAX],
}

/// One group of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The name of the group, unique inside its outer group.
    pub label: String,
    /// Number of full-rate transfers of a host that the uplink of the group carries at a time in
    /// each direction; 0 if unknown.
    pub carries: u8,
}

impl Place {
    /// A place with these groups, outermost first.
    pub fn new(groups: &[Group]) -> Result<Self, BadRef> {
        if !(1..=LEVELS_MAX).contains(&groups.len()) {
            return Err(BadRef(format!(
                "a host has {} nested groups: use 1 to {LEVELS_MAX}, outermost first",
                groups.len()
            )));
        }
        let mut place = Self { labels: [0; PLACE_BYTES_MAX], carries: [0; LEVELS_MAX] };
        let mut length = 0;
        for (level, group) in groups.iter().enumerate() {
            check(&group.label)?;
            let end = length + group.label.len();
            if end >= PLACE_BYTES_MAX {
                return Err(BadRef(format!(
                    "the group names of a host may have at most {} bytes together: shorten {}",
                    PLACE_BYTES_MAX - groups.len(),
                    Quoted(&group.label)
                )));
            }
            place.labels[length..end].copy_from_slice(group.label.as_bytes());
            place.carries[level] = group.carries;
            length = end + 1;
        }
        Ok(place)
    }

    /// The group names, outermost first.
    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.labels.split(|byte| *byte == 0).take_while(|label| !label.is_empty())
    }

    /// Number of groups, at least one.
    pub fn depth(&self) -> usize {
        self.labels().count()
    }

    /// The groups, outermost first.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        self.labels().zip(self.carries).map(|(label, carries)| {
            let label = str::from_utf8(label).unwrap_or_default().into();
            Group { label, carries }
        })
    }

    /// The name of the innermost group.
    pub fn rack(&self) -> String {
        self.groups().last().map(|group| group.label).unwrap_or_default()
    }

    /// The place that ends at the group of this level; level 0 is the outermost.
    pub fn outer(&self, level: usize) -> Self {
        let mut outer = *self;
        let length: usize = self.labels().take(level + 1).map(|label| label.len() + 1).sum();
        outer.labels[length..].fill(0);
        outer.carries[level + 1..].fill(0);
        outer
    }

    /// [`Group::carries`] of the group at a level; 1 if unknown.
    pub fn carries(&self, level: usize) -> u64 {
        u64::from(self.carries[level]).max(1)
    }

    /// The outermost level at which two places are in different groups; `None` if they do not
    /// differ where both are known.
    pub fn parts_at(&self, other: &Self) -> Option<usize> {
        self.labels().zip(other.labels()).position(|(one, other)| one != other)
    }

    /// Distance of two places: 0 within one group, larger if their common group is further out.
    pub fn distance(&self, other: &Self) -> u8 {
        self.parts_at(other).map_or(0, |level| (LEVELS_MAX - level) as u8)
    }
}

fn check(label: &str) -> Result<(), BadRef> {
    if label.is_empty() {
        return Err(BadRef(
            "the name of a rack or group can't be empty: use at least one character".into(),
        ));
    }
    if label.len() > LABEL_BYTES_MAX {
        return Err(BadRef(format!(
            "the name of a rack or group may have at most {LABEL_BYTES_MAX} bytes: shorten {}, \
             which has {}",
            Quoted(label),
            label.len()
        )));
    }
    if label.chars().any(char::is_control) {
        return Err(BadRef(format!(
            "the name {} of a rack or group contains a control character: remove it",
            Quoted(label)
        )));
    }
    Ok(())
}

/// Parses a place of one group.
impl FromStr for Place {
    type Err = BadRef;

    fn from_str(text: &str) -> Result<Self, BadRef> {
        Self::new(&[Group { label: text.into(), carries: 0 }])
    }
}

impl TryFrom<Vec<Group>> for Place {
    type Error = BadRef;

    fn try_from(groups: Vec<Group>) -> Result<Self, BadRef> {
        Self::new(&groups)
    }
}

impl From<Place> for Vec<Group> {
    fn from(place: Place) -> Self {
        place.groups().collect()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.groups().map(|group| group.label).collect();
        f.write_str(&labels.join(" > "))
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(labels: &[&str]) -> Place {
        let group = |label: &&str| Group { label: (*label).into(), carries: 0 };
        Place::new(&labels.iter().map(group).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_place_survives_the_wire() {
        let long = "x".repeat(LABEL_BYTES_MAX);
        for labels in [&["r1"][..], &["eu-west-1a/row 7", "Rück"], &["a", &long, "b"]] {
            let place = place(labels);
            let bytes = postcard::to_allocvec(&place).unwrap();
            assert_eq!(postcard::from_bytes::<Place>(&bytes).unwrap(), place);
            assert_eq!(place.to_string(), labels.join(" > "));
        }
    }

    #[test]
    fn a_malformed_place_is_rejected_by_the_decoder() {
        let group = |label: &str| Group { label: label.into(), carries: 0 };
        let bad = [
            Vec::new(),
            Vec::from([group("")]),
            Vec::from([group("a\nb")]),
            Vec::from([group("a"), group("a\0b")]),
            Vec::from([group(&"x".repeat(LABEL_BYTES_MAX + 1))]),
            Vec::from(["a"; LEVELS_MAX + 1].map(group)),
            Vec::from(
                [&"x".repeat(40), &"y".repeat(PLACE_BYTES_MAX - 41)].map(|label| group(label)),
            ),
        ];
        for groups in bad {
            assert!(Place::new(&groups).is_err(), "{groups:?}");
            let bytes = postcard::to_allocvec(&groups).unwrap();
            assert!(postcard::from_bytes::<Place>(&bytes).is_err(), "{groups:?}");
        }
    }

    #[test]
    fn distance_is_that_of_the_outermost_groups_that_differ() {
        let (near, far) = (place(&["p0", "r0"]), place(&["p1", "r0"]));
        let beside = place(&["p0", "r1"]);
        assert_eq!(near.distance(&near), 0);
        assert!(near.distance(&beside) > 0 && near.distance(&far) > near.distance(&beside));
        assert_eq!(near.distance(&place(&["p0"])), 0, "its rack is not known");
        assert_eq!(near.distance(&place(&["p1"])), near.distance(&far));
        assert_eq!(near.outer(0), place(&["p0"]));
        let mut all = [far, near, beside, near];
        all.sort();
        assert_eq!(all, [near, near, beside, far]);
    }
}
