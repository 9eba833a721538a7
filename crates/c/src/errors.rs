//! Failures of a call: the code that it returns, and the message that the calling thread keeps.
//!
//! Every function of the header runs inside [`call`], so that no panic leaves the library, and no cancellation of a
//! thread unwinds it.

use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
};

use hoplite::{Error, ErrorKind};

use crate::{code::Code, threads};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// The result of a step of a call.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A [`Code::InvalidArgument`].
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(error.kind()), error.to_string())
    }
}

/// The code of an error of the client core.
pub(crate) fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Timeout => Code::Timeout,
        ErrorKind::ObjectLost => Code::ObjectLost,
        ErrorKind::ObjectCorrupt => Code::ObjectCorrupt,
        ErrorKind::ObjectDeleted => Code::ObjectDeleted,
        ErrorKind::NameTaken => Code::NameTaken,
        ErrorKind::StoreFull => Code::StoreFull,
        ErrorKind::ShapeMismatch => Code::ShapeMismatch,
        ErrorKind::UnknownOp => Code::UnknownOp,
        ErrorKind::UnsupportedDtype => Code::UnsupportedDtype,
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NodeDown => Code::NodeDown,
        ErrorKind::NotAllowed => Code::NotAllowed,
        ErrorKind::ClientClosed => Code::ClientClosed,
        ErrorKind::ForkedClient => Code::ForkedClient,
        ErrorKind::JoinError => Code::JoinError,
        ErrorKind::AddressInUse => Code::AddressInUse,
        ErrorKind::ConnectError => Code::ConnectError,
        ErrorKind::HostError => Code::HostError,
        _ => Code::Internal,
    }
}

thread_local! {
    /// The message of the last call of this thread that failed; empty if its last call succeeded.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call: catches panics and keeps the message of a failure.
pub(crate) fn call(body: impl FnOnce() -> Result<()>) -> Code {
    let _uncancelled = threads::Uncancelled::begin();
    let is_ending = LAST.try_with(|_| ()).is_err();
    let body = || if is_ending { elsewhere(body) } else { body() };
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            keep(None);
            return Code::Ok;
        }
        Ok(Err(failure)) => failure,
        Err(panicked) => Failure::new(Code::Internal, description(panicked.as_ref())),
    };
    keep(Some(failure.message));
    failure.code
}

fn elsewhere(body: impl FnOnce() -> Result<()>) -> Result<()> {
    threads::elsewhere(body).unwrap_or_else(|error| {
        let message = format!("can't start a thread for a call of a thread that ends ({error})");
        Err(Failure::new(Code::Internal, message))
    })
}

/// Keeps a message for this thread. A thread that is ending keeps none.
fn keep(message: Option<String>) {
    let _ = LAST.try_with(|last| match (last.try_borrow_mut(), message) {
        (Ok(last), None) if last.is_empty() => {}
        (Ok(mut last), message) => {
            let text = message.unwrap_or_default().replace('\0', "\\0");
            *last = CString::new(text).unwrap_or_default();
        }
        (Err(_), _) => {}
    });
}

/// The message of the last call of this thread.
pub(crate) fn last() -> *const c_char {
    let pointer = LAST.try_with(|last| last.try_borrow().map(|last| last.as_ptr()));
    pointer.ok().and_then(std::result::Result::ok).unwrap_or(c"".as_ptr())
}

fn description(panicked: &(dyn Any + Send)) -> String {
    let text = panicked
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panicked.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    format!("a defect in the library ({text}): report this with the log of the process")
}

#[cfg(test)]
mod tests {
    use std::{ffi::CStr, thread};

    use super::*;

    fn message() -> String {
        // SAFETY: the text is valid until the next call of this thread.
        unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(call(|| panic!("broken {}", 7)), Code::Internal);
        assert!(message().contains("broken 7"), "{}", message());
        assert_eq!(call(|| panic!("as it is")), Code::Internal);
        assert!(message().contains("as it is"), "{}", message());
    }

    #[test]
    fn the_message_is_that_of_the_last_call_of_the_thread() {
        let fail = || call(|| Err(Failure::argument("a \0 inside")));
        assert_eq!(fail(), Code::InvalidArgument);
        assert_eq!(message(), "a \\0 inside");
        thread::scope(|scope| scope.spawn(|| assert_eq!(message(), "")).join()).unwrap();
        assert_eq!(call(|| Ok(())), Code::Ok);
        assert_eq!(message(), "");
    }
}
