//! Lookup of settings: an argument, else the variable HOPLITE_<NAME>, else a key of the TOML file, else nothing.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use super::{
    paths::expanded,
    secrets::{check_private, check_trusted},
};
use crate::error::{Error, Result};

/// Every setting, as in Python. Those that other programs read are accepted in a file too.
const NAMES: [&str; 33] = [
    "listen",
    "advertise",
    "rack",
    "topology",
    "topology_host",
    "join",
    "cluster",
    "token",
    "token_file",
    "certificate",
    "key",
    "ca",
    "crl",
    "no_encryption",
    "no_auth",
    "require_capability",
    "capacity",
    "spill",
    "spill_limit",
    "spill_persistent",
    "socket",
    "detection_timeout",
    "leave_timeout",
    "http",
    "http_key_file",
    "log_level",
    "log_format",
    "address",
    "allow_pickle",
    "capability",
    "digest",
    "job",
    "timeout",
];

/// The settings of this process, apart from arguments.
#[derive(Debug)]
pub(crate) struct Settings {
    file: BTreeMap<String, String>,
    path: PathBuf,
}

/// A value and its origin, for messages.
#[derive(Debug)]
pub(crate) struct Found<T> {
    pub(crate) value: Option<T>,
    pub(crate) origin: String,
}

/// Origin of a value that the caller passed, which a message need not name.
const ARGUMENT: &str = "argument";

impl<T> Found<T> {
    /// Checks or converts the value.
    ///
    /// # Errors
    /// Those of `check`. The message names the variable or file of the value.
    pub(crate) fn checked<U>(self, check: impl FnOnce(T) -> Result<U>) -> Result<Found<U>> {
        let Self { value, origin } = self;
        match value.map(check).transpose() {
            Ok(value) => Ok(Found { value, origin }),
            Err(error) if origin == ARGUMENT => Err(error),
            Err(error) => Err(Error::new(error.kind(), format!("{origin}: {error}"))),
        }
    }
}

impl Settings {
    /// Reads the file of settings: `config`, or else the file in HOPLITE_CONFIG, if that is set.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not readable or not valid, or too many users can read or write it.
    pub(crate) fn load(config: Option<&Path>) -> Result<Self> {
        let variable = || env::var_os("HOPLITE_CONFIG").filter(|path| !path.is_empty());
        let path = config.map(Path::to_owned).or_else(|| variable().map(PathBuf::from));
        let Some(path) = path.map(|path| expanded(&path)) else {
            return Ok(Self { file: BTreeMap::new(), path: PathBuf::new() });
        };
        let shown = path.display();
        let unreadable =
            |error| Error::argument(format!("can't read the settings in {shown}: {error}"));
        let metadata = fs::metadata(&path).map_err(unreadable)?;
        let text = fs::read_to_string(&path).map_err(unreadable)?;
        let table = DeTable::parse(&text)
            .map_err(|error| Error::argument(format!("{shown} is not valid TOML: {error}")))?;
        let mut file = BTreeMap::new();
        for (key, value) in table.get_ref() {
            let (key, value) = (key.get_ref(), value.get_ref());
            let invalid = |message: String| Error::argument(format!("{shown}: {message}"));
            if value.is_table() {
                let advice = "write settings at the top of the file, without sections";
                return Err(invalid(format!("[{key}] is a section: {advice}")));
            }
            if !NAMES.contains(&key.as_ref()) {
                return Err(invalid(format!("unknown setting {key}: use {}", NAMES.join(", "))));
            }
            let text = as_text(value)
                .ok_or_else(|| invalid(format!("{key} has a value of an unknown type")))?;
            file.insert(key.clone().into_owned(), text);
        }
        if file.contains_key("token") {
            check_private(&path, &metadata, "a token")?;
        }
        check_trusted(&path, &metadata)?;
        Ok(Self { file, path })
    }

    /// Finds the value of a setting.
    ///
    /// # Errors
    /// `InvalidArgument` if the text of a variable or of the file is not valid.
    pub(crate) fn find<T>(
        &self,
        name: &str,
        argument: Option<T>,
        parse: impl FnOnce(&str, &str) -> Result<T>,
    ) -> Result<Found<T>> {
        let variable = format!("HOPLITE_{}", name.to_uppercase());
        let (text, origin) = match (&argument, env::var(&variable), self.file.get(name)) {
            (Some(_), ..) => return Ok(Found { value: argument, origin: ARGUMENT.into() }),
            (None, Ok(text), _) if !text.is_empty() => (text, variable),
            (None, _, Some(text)) => (text.clone(), self.path.display().to_string()),
            _ => return Ok(Found { value: None, origin: "default".into() }),
        };
        Found { value: Some(text), origin }.checked(|text| parse(name, &text))
    }
}

/// The text of a value, as in a variable.
fn as_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).ok().map(|it| it.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().into()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| as_text(item.get_ref())).collect();
            Some(items?.join(","))
        }
        _ => None,
    }
}
