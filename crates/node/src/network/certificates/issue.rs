//! Compares two revocation lists by age: by their CRL numbers and dates (thisUpdate).
//!
//! rustls has already parsed a list but exposes neither field, so this module walks the DER of RFC
//! 5280, section 5.1. Input that does not parse is `None`, never a panic.

use std::{cmp::Ordering, fmt};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SHORT_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;
const EXTENSIONS: u8 = 0xa0;

/// From this value on, the first byte of a length holds the number of length bytes.
const LONG: u8 = 0x80;

/// The object identifier 2.5.29.20.
const CRL_NUMBER: [u8; 3] = [0x55, 0x1d, 0x14];

/// The age of a list, comparable with other lists of the same issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Issue {
    /// The CRL number without leading zeros, most significant byte first. Not all CAs set one.
    number: Option<Vec<u8>>,
    /// Issue date, as `YYYYMMDDHHMMSSZ`.
    date: String,
}

impl Issue {
    /// Whether this list is older than another of its issuer. The numbers decide, because a clock
    /// may be set back. Lists with equal numbers, or without a number, compare by date.
    pub(super) fn is_older(&self, other: &Self) -> bool {
        let by_number = match (&self.number, &other.number) {
            (Some(own), Some(others)) => own.len().cmp(&others.len()).then_with(|| own.cmp(others)),
            _ => Ordering::Equal,
        };
        by_number.then_with(|| self.date.cmp(&other.date)).is_lt()
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = &self.number {
            f.write_str("CRL number 0x")?;
            number.iter().try_for_each(|byte| write!(f, "{byte:02X}"))?;
            f.write_str(" of ")?;
        }
        f.write_str(&self.date)
    }
}

/// Reads the issuer of a list, as DER, and the age of the list.
pub(super) fn read(list: &[u8]) -> Option<(Vec<u8>, Issue)> {
    let (list, _) = tagged(SEQUENCE, list)?;
    let (signed, _) = tagged(SEQUENCE, list)?;
    let (_version, rest) = tagged(INTEGER, signed)?;
    let (_algorithm, rest) = tagged(SEQUENCE, rest)?;
    let (issuer, rest) = tagged(SEQUENCE, rest)?;
    let (tag, date, mut rest) = element(rest)?;
    let date = str::from_utf8(date).ok()?;
    let date = match tag {
        LONG_TIME => date.to_owned(),
        // Years of two digits are those from 1950 to 2049.
        SHORT_TIME if date < "50" => format!("20{date}"),
        SHORT_TIME => format!("19{date}"),
        _ => return None,
    };
    let mut number = None;
    while let Some((tag, contents, after)) = element(rest) {
        if tag == EXTENSIONS {
            number = crl_number(contents);
        }
        rest = after;
    }
    Some((issuer.to_vec(), Issue { number, date }))
}

fn crl_number(extensions: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, _) = tagged(SEQUENCE, extensions)?;
    while let Some((SEQUENCE, extension, after)) = element(rest) {
        let (object, mut parts) = tagged(OBJECT, extension)?;
        if object == CRL_NUMBER {
            // An optional boolean, whether the extension is critical, precedes it.
            while let Some((tag, contents, more)) = element(parts) {
                if tag == OCTETS {
                    let (number, _) = tagged(INTEGER, contents)?;
                    return Some(number.iter().copied().skip_while(|byte| *byte == 0).collect());
                }
                parts = more;
            }
        }
        rest = after;
    }
    None
}

/// The contents of the next element, which must have this tag, and the rest.
fn tagged(tag: u8, input: &[u8]) -> Option<(&[u8], &[u8])> {
    element(input).filter(|(found, ..)| *found == tag).map(|(_, contents, rest)| (contents, rest))
}

/// The tag and the contents of the next element, and the rest.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < LONG {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first - LONG);
        // Four length bytes exceed the longest accepted file.
        if !(1..=4).contains(&count) {
            return None;
        }
        let (bytes, rest) = rest.split_at_checked(count)?;
        (bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(number: Option<&[u8]>, date: &str) -> Issue {
        Issue { number: number.map(<[u8]>::to_vec), date: date.into() }
    }

    #[test]
    fn crl_numbers_decide_before_dates() {
        let of = [
            issue(Some(&[9]), "20260102000000Z"),
            issue(Some(&[1, 0]), "20260101000000Z"),
            issue(Some(&[1, 0]), "20260101000001Z"),
        ];
        for (at, one) in of.iter().enumerate() {
            for (other_at, other) in of.iter().enumerate() {
                assert_eq!(one.is_older(other), at < other_at, "{one} and {other}");
            }
        }
        let dated = [issue(None, "20491231000000Z"), issue(Some(&[1]), "20500101000000Z")];
        assert!(dated[0].is_older(&dated[1]));
        assert!(!dated[1].is_older(&dated[0]));
    }

    /// Goal: no input panics. Method: a list truncated at every byte, and with each byte changed.
    #[test]
    fn corrupt_lists_never_panic() {
        let ca = crate::network::tests::own_ca::Ca::new();
        let list = super::super::lists("x".as_ref(), ca.list(&[7]).as_bytes()).unwrap();
        let list = list[0].as_ref();
        assert_eq!(read(list).unwrap().1.number, Some(vec![1]));
        for at in 0..list.len() {
            assert_eq!(read(&list[..at]), None);
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = list.to_vec();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }
}
