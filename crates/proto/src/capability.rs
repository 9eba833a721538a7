//! Capabilities: what a client may do. A capability allows some verbs on objects below a name
//! prefix, until a time.
//!
//! ```text
//!   prefix=team-a/     verbs=get,put     prefix=team-a/runs/     expires=1790000000
//!   `-- of the grant --------------'     `-- narrowed by a holder ----------------'
//! ```
//! Each caveat narrows the rights of the caveats before it. This module checks each request of a
//! client with a capability. It does not know the key that authenticates capabilities.

use alloc::{
    borrow::Cow,
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, str::FromStr};

use crate::{
    error::Error,
    id::{BadRef, Name, ObjectId},
    limits::NAME_BYTES_MAX,
    quoted::Quoted,
    reduce::MISSING,
    request::{Reply, Request},
    table,
};

/// Maximum size of a prefix in bytes. It leaves space for the names that nodes generate for
/// clients, and for short names.
pub const PREFIX_BYTES_MAX: usize = NAME_BYTES_MAX - 64;

/// A right on the objects below a prefix.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase", parse_err_ty = BadRef, parse_err_fn = unknown_verb)]
pub enum Verb {
    /// Create and reserve objects, and replicate them.
    Put,
    /// Read objects, and wait for them.
    Get,
    /// Delete objects, prune older ones, and take leases. A lease counts as deletion, since its end
    /// deletes the object.
    Delete,
    /// Fold objects into a new one.
    Reduce,
    /// List the existing objects.
    List,
}

impl Verb {
    /// Every verb.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;
}

fn unknown_verb(text: &str) -> BadRef {
    let all = Verb::ALL.iter().copied().collect();
    BadRef(format!("unknown verb {}: use one or more of {}", Quoted(text), listed(&all)))
}

fn listed(verbs: &BTreeSet<Verb>) -> String {
    let names: Vec<&str> = verbs.iter().map(<&str>::from).collect();
    names.join(",")
}

/// One line of a capability. It narrows the rights of the lines before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caveat {
    /// Only names that begin with this text, which ends with `/`. The empty prefix allows every
    /// name and every id.
    Prefix(String),
    /// Only these verbs.
    Verbs(BTreeSet<Verb>),
    /// Only until this time, in seconds since 1970.
    Expires(u64),
}

impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => write!(f, "prefix={prefix}"),
            Self::Verbs(verbs) => write!(f, "verbs={}", listed(verbs)),
            Self::Expires(until) => write!(f, "expires={until}"),
        }
    }
}

impl FromStr for Caveat {
    type Err = BadRef;

    fn from_str(text: &str) -> Result<Self, BadRef> {
        let unknown = || {
            BadRef(format!(
                "unknown caveat {}: use prefix=TEXT/, verbs=VERB,VERB or expires=SECONDS since \
                 1970",
                Quoted(text)
            ))
        };
        let (what, value) = text.split_once('=').ok_or_else(unknown)?;
        match what {
            "prefix" => Ok(Self::Prefix(value.into())),
            "verbs" => value.split(',').map(str::parse).collect::<Result<_, _>>().map(Self::Verbs),
            "expires" => value.parse().map(Self::Expires).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

/// The rights of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    tenant: String,
    prefix: String,
    verbs: BTreeSet<Verb>,
    until: Option<u64>,
}

impl Capability {
    /// The rights that a chain of caveats leaves.
    ///
    /// # Errors
    /// [`BadRef`] if a caveat would extend the rights of those before it, or if no caveat has a
    /// prefix.
    pub fn of(caveats: &[Caveat]) -> Result<Self, BadRef> {
        let (tenant, prefix) = (String::new(), String::new());
        let all = Self { tenant, prefix, verbs: Verb::ALL.iter().copied().collect(), until: None };
        let left = caveats.iter().try_fold(all, Self::narrowed)?;
        // Even unlimited rights must be explicit.
        if !caveats.iter().any(|caveat| matches!(caveat, Caveat::Prefix(_))) {
            return Err(BadRef("a capability needs a prefix, such as team-a/".into()));
        }
        Ok(left)
    }

    fn narrowed(mut self, caveat: &Caveat) -> Result<Self, BadRef> {
        match caveat {
            Caveat::Prefix(prefix) => {
                check_prefix(prefix)?;
                if !prefix.starts_with(&self.prefix) {
                    let (prefix, own) = (Quoted(prefix), Quoted(&self.prefix));
                    return Err(BadRef(format!(
                        "the prefix {prefix} is not below {own}: use a prefix that begins with \
                         {own}"
                    )));
                }
                self.prefix.clone_from(prefix);
                if self.tenant.is_empty() {
                    self.tenant.clone_from(prefix);
                }
            }
            Caveat::Verbs(verbs) => {
                if verbs.is_empty() || !verbs.is_subset(&self.verbs) {
                    let (verbs, own) = (listed(verbs), listed(&self.verbs));
                    return Err(BadRef(format!(
                        "the verbs {verbs} are not among {own}: use some of these"
                    )));
                }
                self.verbs.clone_from(verbs);
            }
            Caveat::Expires(until) => {
                if let Some(own) = self.until.filter(|own| own < until) {
                    return Err(BadRef(format!(
                        "it would outlast the capability that it restricts, which expires at {}",
                        Utc(own)
                    )));
                }
                self.until = Some(*until);
            }
        }
        Ok(self)
    }

    /// The first prefix of the chain that is not empty. Narrowing the capability does not change
    /// it.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The prefix of the allowed names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The allowed verbs.
    pub const fn verbs(&self) -> &BTreeSet<Verb> {
        &self.verbs
    }

    /// When the capability expires, in seconds since 1970; `None` means never.
    pub const fn until(&self) -> Option<u64> {
        self.until
    }

    /// Whether the capability has expired at `now`, in seconds since 1970.
    pub fn has_expired(&self, now: u64) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Checks a request at `now`, in seconds since 1970, and rewrites it for the node. An object
    /// without a name gets one below the prefix that ends in `unique`. A listing is limited to the
    /// prefix.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if the capability does not allow the request, or has expired.
    pub fn authorize(
        &self,
        body: Request,
        now: u64,
        unique: impl FnOnce() -> String,
    ) -> Result<Request, Error> {
        self.judge(&body, now)?;
        let fresh = || {
            let name = format!("{}{}", self.prefix, unique()).parse::<Name>();
            name.map_err(|error| Error::InvalidArgument(error.to_string()))
        };
        Ok(match body {
            other if self.prefix.is_empty() => other,
            Request::Put { id: None, meta, bytes, ttl_ns } => {
                Request::Put { id: Some(ObjectId::Named(fresh()?)), meta, bytes, ttl_ns }
            }
            Request::Create { id: None, meta, ttl_ns } => {
                Request::Create { id: Some(ObjectId::Named(fresh()?)), meta, ttl_ns }
            }
            Request::Reduce { inputs, op, count, id: None, ttl_ns } => {
                Request::Reduce { inputs, op, count, id: Some(ObjectId::Named(fresh()?)), ttl_ns }
            }
            Request::Reserve { name: None } => Request::Reserve { name: Some(fresh()?) },
            Request::List { owner, prefix, after } if prefix.len() < self.prefix.len() => {
                Request::List { owner, prefix: self.prefix.clone(), after }
            }
            Request::Objects { prefix, after } if prefix.len() < self.prefix.len() => {
                Request::Objects { prefix: self.prefix.clone(), after }
            }
            other => other,
        })
    }

    /// The rights that a request needs.
    fn claim<'a>(&self, body: &'a Request) -> Needed<'a> {
        match body {
            Request::Put { id, .. } | Request::Create { id, .. } => Needed::of(Verb::Put, id),
            Request::Replicate { id, .. } => Needed::of(Verb::Put, [id]),
            Request::Reserve { name: None } => Needed::of(Verb::Put, []),
            Request::Slots { .. } => Needed { what: "slots", ..Needed::of(Verb::Put, []) },
            Request::Reserve { name: Some(name) } => Needed::of_text(Verb::Put, name.as_str()),
            Request::JoinJob { job } => Needed::of_text(Verb::Put, job.as_str()),
            Request::Get { id } | Request::GetRange { id, .. } | Request::Follow { id } => {
                Needed::of(Verb::Get, [id])
            }
            Request::Wait { ids, .. } => Needed::of(Verb::Get, ids),
            Request::Latest { prefix, .. } => Needed::of_text(Verb::Get, prefix),
            Request::Reduce { inputs, id, .. } => Needed::of(Verb::Reduce, inputs.iter().chain(id)),
            Request::Inputs { id } | Request::LostInputs { id } => Needed::of(Verb::Reduce, [id]),
            Request::Delete { ids } => Needed::of(Verb::Delete, ids),
            // The end of a lease deletes the object.
            Request::AcquireLease { id } => Needed::of(Verb::Delete, [id]),
            // The older names of its group begin with the prefix too, since the prefix ends with a
            // slash.
            Request::Prune { name, .. } => Needed::of_text(Verb::Delete, name.as_str()),
            // Every verb may learn whether and where an object exists.
            Request::Locations { id, .. } | Request::Explain { id } | Request::Owners { id } => {
                Needed::of_any("locations", [id])
            }
            Request::List { prefix, .. } | Request::Objects { prefix, .. }
                if self.prefix.starts_with(prefix.as_str()) =>
            {
                Needed::of(Verb::List, [])
            }
            Request::List { prefix, .. } | Request::Objects { prefix, .. } => {
                Needed::of_text(Verb::List, prefix)
            }
            Request::ReleaseLease { id } => Needed::of_any("release", [id]),
            // A report names objects of all tenants.
            Request::Inspect { .. } => Needed { what: "inspect", ..Needed::of(Verb::List, []) },
            // The status names no object.
            Request::Status => Needed::of_any("status", []),
            // These end what the client itself has begun, which the state machine checks.
            Request::Seal { .. }
            | Request::Abort { .. }
            | Request::Release { .. }
            | Request::ReleaseCopied { .. }
            | Request::CancelReservations
            | Request::ExplainRequest { .. } => Needed::of_any("end", []),
        }
    }

    fn judge(&self, body: &Request, now: u64) -> Result<(), Error> {
        let Needed { what, verb, names } = self.claim(body);
        let is_outside = |name: &&Cow<'_, str>| !name.starts_with(&self.prefix);
        // An operation that began in time may end at any time.
        let (name, advice) = if self.has_expired(now) && !body.is_allowed_while_leaving() {
            (names.first(), "it has expired: get a new one (hoplite token grant)".into())
        } else if let Some(verb) = verb.filter(|verb| !self.verbs.contains(verb)) {
            (names.first(), format!("get one with {verb} (hoplite token grant)"))
        } else if matches!(body, Request::Inspect { .. }) && !self.prefix.is_empty() {
            (None, "get one for every object, or use a client without one".into())
        } else if matches!(body, Request::Slots { .. }) && !self.prefix.is_empty() {
            (None, format!("agree on names that begin with {}", Quoted(&self.prefix)))
        } else if let Some(name) = names.iter().find(is_outside) {
            (Some(name), format!("use names that begin with {}", Quoted(&self.prefix)))
        } else {
            return Ok(());
        };
        let of = name.map_or_else(String::new, |name| format!(" of {}", Quoted(name)));
        let said =
            format!("{what}{of} is not allowed: this client has a capability {self}; {advice}");
        Err(Error::NotAllowed(said))
    }

    /// Whether an object is below the prefix.
    fn has(&self, id: &ObjectId) -> bool {
        match id {
            ObjectId::Named(name) => name.as_str().starts_with(&self.prefix),
            ObjectId::Minted { .. } => self.prefix.is_empty(),
        }
    }

    /// Removes the names of objects outside the prefix from a reply.
    pub fn filter_reply(&self, reply: Result<Reply, Error>) -> Result<Reply, Error> {
        match reply {
            all if self.prefix.is_empty() => all,
            Ok(Reply::Objects { mut rows, next }) => {
                rows.retain(|row| self.has(&row.id));
                Ok(Reply::Objects { rows, next: next.filter(|(id, _)| self.has(id)) })
            }
            Ok(Reply::List { mut rows, next }) => {
                rows.retain(|row| self.has(&row.id));
                Ok(Reply::List { rows, next: next.filter(|id| self.has(id)) })
            }
            Ok(Reply::Inputs { mut ids }) => {
                ids.retain(|id| self.has(id));
                Ok(Reply::Inputs { ids })
            }
            Ok(Reply::Explained { what, state, lacks }) => {
                let state = self.filter_text(state);
                Ok(Reply::Explained { what, state, lacks })
            }
            Ok(
                same @ (Reply::Put { .. }
                | Reply::Reserved { .. }
                | Reply::Slots { .. }
                | Reply::Created { .. }
                | Reply::Got { .. }
                | Reply::Growing { .. }
                | Reply::Waited { .. }
                | Reply::Reducing { .. }
                | Reply::Replicated { .. }
                | Reply::Done
                | Reply::Latest { .. }
                | Reply::Locations(_)
                | Reply::Owners(_)
                | Reply::Inspected { .. }
                | Reply::Status(_)),
            ) => Ok(same),
            Err(error) => Err(self.filter_error(error)),
        }
    }

    /// Removes the names of objects outside the prefix from an error. A reduce may have a name
    /// below the prefix and inputs outside.
    fn filter_error(&self, error: Error) -> Error {
        let hidden = |what: &str| {
            Error::NotAllowed(format!(
                "{what} outside the rights of this client, which has a capability {self}: use a \
                 client with more rights"
            ))
        };
        match error {
            Error::Timeout { what, waited_ns, state } => Error::Timeout {
                what: self.filter_text(what),
                waited_ns,
                state: self.filter_text(state),
            },
            Error::ObjectLost { id, detail } if self.has(&id) => {
                Error::ObjectLost { id, detail: self.filter_text(detail) }
            }
            Error::ObjectLost { .. } => hidden("an object is lost"),
            Error::ObjectDeleted { id } if self.has(&id) => Error::ObjectDeleted { id },
            Error::ObjectDeleted { .. } => hidden("an object was deleted"),
            Error::NameTaken { id, holder } if self.has(&id) => Error::NameTaken { id, holder },
            Error::NameTaken { .. } => hidden("a name is taken"),
            Error::StoreFull { needed, capacity, pinned, mut largest } => {
                hide_names(&mut largest, |_| false);
                Error::StoreFull { needed, capacity, pinned, largest }
            }
            // It may name a control group. The largest objects are the only ones that it names.
            Error::NoMemory { needed, mut detail } => {
                hide_names(&mut detail, |_| false);
                Error::NoMemory { needed, detail }
            }
            Error::ShapeMismatch { first, other, metas }
                if self.has(&first) && self.has(&other) =>
            {
                Error::ShapeMismatch { first, other, metas }
            }
            Error::ShapeMismatch { .. } => hidden(
                "inputs of a reduce must have the same dtype and shape, and differ in an object",
            ),
            Error::Unreducible { id, meta, op, advice } if self.has(&id) => {
                Error::Unreducible { id, meta, op, advice }
            }
            Error::Unreducible { .. } => hidden("a reduce can't fold an object"),
            Error::TooFewInputs { count, possible, mut gone } => {
                gone.retain(|id| self.has(id));
                Error::TooFewInputs { count, possible, gone }
            }
            Error::ObjectCorrupt { id, senders } if self.has(&id) => {
                Error::ObjectCorrupt { id, senders }
            }
            Error::ObjectCorrupt { .. } => hidden("an object is corrupt"),
            Error::InvalidArgument(said) => Error::InvalidArgument(self.filter_text(said)),
            Error::NodeDown(said) => Error::NodeDown(self.filter_text(said)),
            // This module wrote it, about the client's own request.
            same @ Error::NotAllowed(_) => same,
        }
    }

    /// Removes names of objects outside the prefix from a text. If a word could be such a name, the
    /// whole text is hidden.
    fn filter_text(&self, mut text: String) -> String {
        let is_own = |name: &str| name.starts_with(&self.prefix);
        hide_names(&mut text, is_own);
        let names_others = text.split_whitespace().any(|word| {
            let word = word.trim_matches(|mark: char| mark.is_ascii_punctuation() && mark != '@');
            (word.contains('/') || word.starts_with('@')) && !is_own(word)
        });
        if names_others { HIDDEN.into() } else { text }
    }
}

/// The rights that a request needs: a verb, and names that begin with the prefix.
struct Needed<'a> {
    /// The request, as text.
    what: &'static str,
    /// `None` accepts any verb.
    verb: Option<Verb>,
    names: Vec<Cow<'a, str>>,
}

impl<'a> Needed<'a> {
    fn of(verb: Verb, ids: impl IntoIterator<Item = &'a ObjectId>) -> Self {
        Self { verb: Some(verb), ..Self::of_any(verb.into(), ids) }
    }

    fn of_text(verb: Verb, name: &'a str) -> Self {
        Self { names: [Cow::Borrowed(name)].into(), ..Self::of(verb, []) }
    }

    /// What any verb allows.
    fn of_any(what: &'static str, ids: impl IntoIterator<Item = &'a ObjectId>) -> Self {
        let text = |id: &'a ObjectId| match id {
            ObjectId::Named(name) => Cow::Borrowed(name.as_str()),
            // A generated id begins with no prefix except the empty one.
            minted @ ObjectId::Minted { .. } => Cow::Owned(minted.to_string()),
        };
        Self { what, verb: None, names: ids.into_iter().map(text).collect() }
    }
}

/// Describes the rights as text.
impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for {} ", listed(&self.verbs))?;
        match self.prefix.as_str() {
            "" => f.write_str("of every object"),
            prefix => write!(f, "below {}", Quoted(prefix)),
        }?;
        self.until.map_or(Ok(()), |until| write!(f, " until {}", Utc(until)))
    }
}

/// Replaces the names of other tenants' objects in replies to a client with a capability.
const HIDDEN: &str = "hidden from clients with a capability";

/// Removes the names of the largest objects in a store, and of missing inputs, from the end of a
/// text. The names of missing inputs stay if the client may see all of them.
fn hide_names(text: &mut String, may_show: impl Fn(&str) -> bool) {
    for (before, are_shown) in [(table::LARGEST, false), (MISSING, true)] {
        let Some(at) = text.find(before) else { continue };
        let names = &text[at + before.len()..];
        if !are_shown || !names.split(", ").all(&may_show) {
            text.truncate(at);
            text.push_str(HIDDEN);
        }
    }
}

fn check_prefix(prefix: &str) -> Result<(), BadRef> {
    if prefix.is_empty() {
        return Ok(());
    }
    if !prefix.ends_with('/') {
        return Err(BadRef(format!("the prefix {} must end with /", Quoted(prefix))));
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(BadRef(format!(
            "a prefix of {} bytes is too long: use at most {PREFIX_BYTES_MAX}",
            prefix.len()
        )));
    }
    prefix.parse::<Name>().map(drop)
}

/// Seconds since 1970, displayed as a date.
struct Utc(u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        // Years begin in March, in cycles of 400 years, so that the leap day is the last day of a
        // year.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

#[cfg(test)]
mod tests;
