//! The place of a host: the groups of hosts that it is in, outermost first. Knows nothing of who else is in them.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{id::BadRef, quoted::Quoted};

/// As long as the value of a label in Kubernetes, which is where such names often come from.
pub const LABEL_BYTES_MAX: usize = 63;

/// Groups within groups: a zone, a pod, a rack, and one more.
pub const LEVELS_MAX: usize = 4;

/// Bytes of all labels of a place, and a zero after each. A place is a part of every member, and these are copied.
pub const PLACE_BYTES_MAX: usize = 96;

/// Where a host stands: in a rack, or in a rack of a pod. Hosts of a group reach each other over links of their own; between two
/// groups there is less bandwidth than all their hosts have together.
///
/// In order, places of one group follow each other, at every level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Group>", into = "Vec<Group>")]
pub struct Place {
    /// The labels, outermost first, each followed by a zero; then zeros.
    labels: [u8; PLACE_BYTES_MAX],
    /// See [`Group::carries`].
    carries: [u8; LEVELS_MAX],
}

/// One group of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name, which no other group inside the same outer group has.
    pub label: String,
    /// Transfers at the full rate of a host that its link to the rest of the network carries at once, each way; 0 if that
    /// is not known.
    pub carries: u8,
}

impl Place {
    /// Of such groups, outermost first.
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

    /// The labels, outermost first.
    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.labels.split(|byte| *byte == 0).take_while(|label| !label.is_empty())
    }

    /// How many groups there are, at least one.
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

    /// The group at a level, 0 the outermost, with those around it.
    pub fn outer(&self, level: usize) -> Self {
        let mut outer = *self;
        let length: usize = self.labels().take(level + 1).map(|label| label.len() + 1).sum();
        outer.labels[length..].fill(0);
        outer.carries[level + 1..].fill(0);
        outer
    }

    /// [`Group::carries`] of the group at a level; 1 where that is not known.
    pub fn carries(&self, level: usize) -> u64 {
        u64::from(self.carries[level]).max(1)
    }

    /// The outermost level at which two places are in different groups, as far as both are known.
    pub fn parts_at(&self, other: &Self) -> Option<usize> {
        self.labels().zip(other.labels()).position(|(one, other)| one != other)
    }

    /// How far apart two places are: 0 in one group, and the more the further out the group is that has both.
    pub fn distance(&self, other: &Self) -> u8 {
        self.parts_at(other).map_or(0, |level| (LEVELS_MAX - level) as u8)
    }
}

fn check(label: &str) -> Result<(), BadRef> {
    if label.is_empty() {
        return Err(BadRef("the name of a rack or group can't be empty".into()));
    }
    if label.len() > LABEL_BYTES_MAX {
        return Err(BadRef(format!(
            "the name of a rack or group may have at most {LABEL_BYTES_MAX} bytes: shorten {}, which has {}",
            Quoted(label),
            label.len()
        )));
    }
    if label.chars().any(char::is_control) {
        return Err(BadRef(format!(
            "the name of a rack or group contains a control character, remove it: {}",
            Quoted(label)
        )));
    }
    Ok(())
}

/// A place of one group.
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
    fn what_is_no_place_is_refused_from_the_wire_too() {
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
