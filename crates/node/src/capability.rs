//! Capabilities as texts: granted from a cluster's token, narrowed by a holder, parsed, and
//! verified by a node.
//!
//! ```text
//!   hoplite capability 1      tag = HMAC(key, this line), key = HMAC(token, "hoplite capability")
//!   prefix=team-a/            tag = HMAC(tag, this line)
//!   verbs=get,put             tag = HMAC(tag, this line)
//!   5b0e...                   the last tag, in hex
//! ```
//! The tag of a line is the key of the next: a holder can add lines, but can't remove or change
//! one. [`hoplite_proto::capability`] interprets the lines; the caller enforces them.

use std::{collections::BTreeSet, fmt::Write as _};

use hoplite_proto::{
    capability::{Capability, Caveat, Verb},
    id::BadRef,
};

use crate::sealing::{Secret, hmac, is_hmac};

/// The first line, with the version of the format.
const HEADER: &str = "hoplite capability 1";

/// Limit of lines between the first and the last. Each holder may add a few.
const CAVEATS_MAX: usize = 32;

/// Bytes of the longest text: a few prefixes of maximum length.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// Restrictions of a capability to grant or narrow; None does not restrict.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Required prefix of names.
    pub prefix: Option<String>,
    /// Allowed verbs.
    pub verbs: Option<Vec<String>>,
    /// Expiry time, in seconds since 1970.
    pub until: Option<u64>,
}

impl Bounds {
    fn caveats(&self) -> Result<Vec<Caveat>, BadRef> {
        let verbs = self.verbs.as_ref().map(|verbs| {
            verbs.iter().map(|verb| verb.parse()).collect::<Result<BTreeSet<Verb>, BadRef>>()
        });
        let prefix = self.prefix.clone().map(Caveat::Prefix);
        let verbs = verbs.transpose()?.map(Caveat::Verbs);
        Ok([prefix, verbs, self.until.map(Caveat::Expires)].into_iter().flatten().collect())
    }
}

/// A parsed text, whose tag is not verified.
struct Chain<'a> {
    lines: Vec<&'a str>,
    caveats: Vec<Caveat>,
    tag: Secret,
}

impl<'a> Chain<'a> {
    fn read(text: &'a str) -> Result<Self, BadRef> {
        let bad = |why: &str| BadRef(format!("not a valid capability: {why}"));
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let rest = text.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix('\n'));
        let rest = rest.ok_or_else(|| bad(&format!("it does not begin with \"{HEADER}\"")))?;
        let (lines, tag) = rest.rsplit_once('\n').ok_or_else(|| bad("it is incomplete"))?;
        let tag = from_hex(tag).ok_or_else(|| bad("its last line is not 64 hex digits"))?;
        let lines: Vec<&str> = lines.split('\n').collect();
        if lines.len() > CAVEATS_MAX {
            return Err(bad(&format!("it has more than {CAVEATS_MAX} restrictions")));
        }
        // A line may be the tag of another capability, in a file with two: do not quote it.
        let read = |(number, line): (usize, &&str)| {
            line.parse().map_err(|_: BadRef| {
                bad(&format!("line {} is not prefix=, verbs= or expires= with a value", number + 2))
            })
        };
        let caveats: Result<Vec<Caveat>, BadRef> = lines.iter().enumerate().map(read).collect();
        Ok(Self { caveats: caveats?, lines, tag })
    }
}

/// Grants a capability from a cluster's token.
///
/// # Errors
/// [`BadRef`] if the bounds are not valid.
pub fn grant(token: &str, bounds: &Bounds) -> Result<String, BadRef> {
    let caveats = bounds.caveats()?;
    Capability::of(&caveats)?;
    let lines: Vec<String> = caveats.iter().map(ToString::to_string).collect();
    let tag = lines.iter().fold(root(token), |tag, line| mac(&tag, line));
    Ok(written(lines.iter().map(String::as_str), &tag))
}

/// Narrows a capability to one that allows less; needs no key.
///
/// # Errors
/// [`BadRef`] if the text is not a valid capability, or the bounds are empty, not valid, or allow
/// more.
pub fn narrow(text: &str, bounds: &Bounds) -> Result<String, BadRef> {
    let Chain { lines, caveats, tag } = Chain::read(text)?;
    let more = bounds.caveats()?;
    if more.is_empty() || caveats.len() + more.len() > CAVEATS_MAX {
        let said = format!(
            "specify a prefix, verbs or a lifetime, and at most {CAVEATS_MAX} restrictions in total"
        );
        return Err(BadRef(said));
    }
    let all: Vec<Caveat> = caveats.into_iter().chain(more.iter().cloned()).collect();
    Capability::of(&all)?;
    let added: Vec<String> = more.iter().map(ToString::to_string).collect();
    let tag = added.iter().fold(tag, |tag, line| mac(&tag, line));
    Ok(written(lines.into_iter().chain(added.iter().map(String::as_str)), &tag))
}

/// Parses what a capability allows, without verifying that a cluster granted it.
///
/// # Errors
/// [`BadRef`] if the text is not a valid capability.
pub fn read(text: &str) -> Result<Capability, BadRef> {
    Capability::of(&Chain::read(text)?.caveats)
}

/// Verifies that a capability was derived from one of these tokens; returns what it allows.
///
/// # Errors
/// [`BadRef`] with the reason why it is not valid.
pub(crate) fn verify<'a>(
    text: &str,
    tokens: impl IntoIterator<Item = &'a str>,
) -> Result<Capability, BadRef> {
    let Chain { lines, caveats, tag } = Chain::read(text)?;
    let is_of = |token: &str| {
        let Some((last, before)) = lines.split_last() else { return false };
        let key = before.iter().fold(root(token), |tag, line| mac(&tag, line));
        is_hmac(&key, last.as_bytes(), &tag)
    };
    if !tokens.into_iter().any(is_of) {
        return Err(BadRef("it was modified, or derived from the token of another cluster".into()));
    }
    Capability::of(&caveats)
}

/// Computes the tag of the first line.
fn root(token: &str) -> Secret {
    mac(&mac(token.as_bytes(), "hoplite capability"), HEADER)
}

fn mac(key: &[u8], line: &str) -> Secret {
    hmac(key, line.as_bytes())
}

fn written<'a>(lines: impl Iterator<Item = &'a str>, tag: &Secret) -> String {
    let mut text = format!("{HEADER}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    for byte in tag {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Parses 32 bytes with a unique encoding: upper-case digits and signs are rejected.
fn from_hex(text: &str) -> Option<Secret> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().map(digit).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| (pair[0] << 4) | pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "a token";

    fn bounds(prefix: Option<&str>, verbs: Option<&str>, until: Option<u64>) -> Bounds {
        let verbs = verbs.map(|verbs| verbs.split(',').map(String::from).collect());
        Bounds { prefix: prefix.map(String::from), verbs, until }
    }

    fn granted() -> String {
        grant(TOKEN, &bounds(Some("team-a/"), Some("get,put"), Some(1_790_000_000))).unwrap()
    }

    #[test]
    fn granted_capability_verifies_and_parses() {
        let text = granted();
        let capability = verify(&text, ["another", TOKEN]).unwrap();
        assert_eq!(read(&text).unwrap(), capability);
        assert_eq!((capability.prefix(), capability.until()), ("team-a/", Some(1_790_000_000)));
        assert_eq!(capability.verbs(), &[Verb::Put, Verb::Get].into());
        assert!(!text.contains(TOKEN) && text.is_ascii());
    }

    #[test]
    fn any_changed_bit_is_rejected() {
        let text = granted();
        for at in 0..text.len() {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).unwrap();
                assert!(verify(&changed, [TOKEN]).is_err(), "{changed:?}");
            }
        }
        for at in 0..text.len() {
            assert!(verify(&text[..at], [TOKEN]).is_err());
            let doubled = format!("{}{}", &text[..=at], &text[at..]);
            assert!(verify(&doubled, [TOKEN]).is_err(), "{doubled:?}");
        }
    }

    #[test]
    fn holder_can_add_but_not_remove_lines() {
        let text = granted();
        let narrow = narrow(&text, &bounds(Some("team-a/runs/"), Some("get"), None)).unwrap();
        let capability = verify(&narrow, [TOKEN]).unwrap();
        assert_eq!(
            (capability.prefix(), capability.until()),
            ("team-a/runs/", Some(1_790_000_000))
        );
        assert_eq!(capability.verbs(), &[Verb::Get].into());
        let lines: Vec<&str> = narrow.split('\n').collect();
        for at in 1..lines.len() - 1 {
            let mut fewer = lines.clone();
            fewer.remove(at);
            assert!(verify(&fewer.join("\n"), [TOKEN]).is_err(), "without {}", lines[at]);
            let mut swapped = lines.clone();
            swapped.swap(at, 1 + at % (lines.len() - 2));
            assert!(verify(&swapped.join("\n"), [TOKEN]).is_err(), "{swapped:?}");
        }
        // The lines of one with the tag of the other.
        let with_tag_of = |lines: &str, tag: &str| {
            format!("{}\n{}", lines.rsplit_once('\n').unwrap().0, tag.rsplit_once('\n').unwrap().1)
        };
        assert!(verify(&with_tag_of(&text, &narrow), [TOKEN]).is_err());
        assert!(verify(&with_tag_of(&narrow, &text), [TOKEN]).is_err());
    }

    #[test]
    fn no_error_repeats_a_tag() {
        let text = granted();
        let (lines, tag) = text.rsplit_once('\n').unwrap();
        let of_two = [
            format!("{text}\n{text}"),
            format!("{text}{text}"),
            format!("{text} {text}"),
            format!("{lines}{tag}\n{tag}"),
            format!("{lines}\nverbs={tag}\n{tag}"),
            format!("{lines}\nexpires={tag}\n{tag}"),
            format!("{tag}\n{text}"),
        ];
        for joined in of_two {
            for error in [read(&joined).unwrap_err(), verify(&joined, [TOKEN]).unwrap_err()] {
                assert!(!error.to_string().contains(&tag[..8]), "{error}");
            }
        }
    }

    #[test]
    fn widening_is_rejected() {
        let text = granted();
        for wide in [
            bounds(Some("team-b/"), None, None),
            bounds(None, Some("delete"), None),
            bounds(None, None, Some(1_790_000_001)),
            bounds(None, Some("look"), None),
            Bounds::default(),
        ] {
            assert!(narrow(&text, &wide).is_err(), "{wide:?}");
        }
        assert!(grant(TOKEN, &bounds(None, Some("get"), None)).is_err());
        assert!(grant(TOKEN, &bounds(Some("team-a"), None, None)).is_err());
        // A holder of a line's tag can sign any next line: it is rejected for its content.
        let (lines, tag) = text.rsplit_once('\n').unwrap();
        let tag = mac(&from_hex(tag).unwrap(), "verbs=get,put,delete");
        let lines = lines.split('\n').skip(1).chain(["verbs=get,put,delete"]);
        let widened = written(lines, &tag);
        assert!(verify(&widened, [TOKEN]).unwrap_err().to_string().contains("are not among"));
    }

    #[test]
    fn derivation_matches_the_documentation() {
        // The documented derivation must not change, so that granted capabilities stay valid.
        let text = grant(TOKEN, &bounds(Some("a/"), None, None)).unwrap();
        let key = mac(&mac(&mac(b"a token", "hoplite capability"), HEADER), "prefix=a/");
        assert_eq!(text, written(["prefix=a/"].into_iter(), &key));
        assert!(text.starts_with("hoplite capability 1\nprefix=a/\n"));
    }
}
