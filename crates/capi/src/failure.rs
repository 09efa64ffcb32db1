//! What goes wrong, on its way to the program: a code, a message that stays, and never a panic.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use railnet_live::communicator::Error;
use railnet_live::rendezvous::ConfigError;

use crate::codes::{Code, code};
use crate::communicator::Entry;

/// Why a function of the library failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
    /// The communicator that it is about.
    at: Option<Arc<Entry>>,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), at: None }
    }

    /// One value is wrong.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, text)
    }

    /// The call is wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidUsage, text)
    }

    /// The same, about a communicator, unless it is about another one.
    pub(crate) fn at(self, entry: &Arc<Entry>) -> Self {
        Self { at: self.at.or_else(|| Some(Arc::clone(entry))), ..self }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code(&error), error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Error::from(error).into()
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Code::SystemError, error.to_string())
    }
}

thread_local! {
    /// The message of the last failure in this thread.
    static LAST: RefCell<CString> = RefCell::default();
    /// What the program was given last: it is there until the program asks again.
    static GIVEN: RefCell<CString> = RefCell::default();
}

/// Does what a function of the library does. Whatever goes wrong ends here.
pub(crate) fn guarded(name: &str, action: impl FnOnce() -> Result<(), Failure>) -> Code {
    // Tables and counters are whole after a panic, and the engine ends itself.
    let failure = match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(())) => return Code::Success,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let said = said(&*panic);
            Failure::new(Code::InternalError, format!("a bug of Railnet's, please report it: {said}"))
        }
    };
    // It may be the last that holds a communicator, which ends here then.
    catch_unwind(AssertUnwindSafe(|| report(name, failure))).unwrap_or(Code::InternalError)
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

fn report(name: &str, failure: Failure) -> Code {
    let text = format!("{name}: {}", failure.text);
    if let Some(entry) = failure.at {
        entry.set_last(&text);
    }
    // Not in a thread that ends, whose variables are gone.
    let _ = LAST.try_with(|last| last.replace(c_string(&text)));
    failure.code
}

fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// The message of the last failure of a communicator, or else of this thread. It is there until this thread asks again.
pub(crate) fn last(entry: Option<&Entry>) -> *const c_char {
    let empty: &CStr = c"";
    let text = match entry {
        Some(entry) => c_string(&entry.last()),
        None => LAST.try_with(|last| last.borrow().clone()).unwrap_or_default(),
    };
    let given = GIVEN.try_with(|given| {
        given.replace(text);
        given.borrow().as_ptr()
    });
    given.unwrap_or(empty.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error_with_its_message() {
        let code = guarded("railnetTest", || panic!("boom {}", 7));
        assert_eq!(code, Code::InternalError);
        let text = LAST.with(|last| last.borrow().clone());
        assert_eq!(text.to_str(), Ok("railnetTest: a bug of Railnet's, please report it: boom 7"));
    }

    #[test]
    fn a_message_is_the_threads_own() {
        assert_eq!(guarded("railnetOne", || Err(Failure::usage("here"))), Code::InvalidUsage);
        let other = std::thread::spawn(|| LAST.with(|last| last.borrow().clone())).join();
        assert_eq!(other.expect("it ends").to_str(), Ok(""));
        assert_eq!(LAST.with(|last| last.borrow().clone()).to_str(), Ok("railnetOne: here"));
    }
}
