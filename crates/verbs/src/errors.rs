//! Errors as the manual pages of rdma-core have them: a positive number, or a null pointer and `errno`.

use std::io;

use libc::c_int;
use railnet_nic::{PostError, VerbsError};

/// The number of a verb's refusal.
pub(crate) fn of_verb(error: &VerbsError) -> c_int {
    match error {
        VerbsError::Busy { .. } => libc::EBUSY,
        VerbsError::Exhausted(_) => libc::ENOMEM,
        VerbsError::Fault { .. } => libc::EFAULT,
        _ => libc::EINVAL,
    }
}

/// The number of a refused work request.
pub(crate) fn of_post(error: &PostError) -> c_int {
    match error {
        PostError::Full { .. } => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// The number of a driver's error.
pub(crate) fn of_driver(error: &railnet_live::roce::Error) -> c_int {
    use railnet_live::roce::Error;
    match error {
        Error::Verbs(error) => of_verb(error),
        Error::Bind { source, .. } | Error::Sender { source, .. } => of_io(source),
        _ => libc::EINVAL,
    }
}

/// The number of a system call's error.
pub(crate) fn of_io(error: &io::Error) -> c_int {
    match (error.raw_os_error(), error.kind()) {
        (Some(number), _) => number,
        (None, io::ErrorKind::TimedOut) => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

/// Sets `errno`.
#[expect(unsafe_code, reason = "errno is a place of the C library's")]
pub(crate) fn set(number: c_int) {
    // SAFETY: the C library hands out the calling thread's own.
    unsafe { *libc::__errno_location() = number };
}

/// What the last function of the C library, or of this one, left in `errno`.
pub(crate) fn last() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sets `errno`, for functions that return a pointer.
pub(crate) fn null<T>(number: c_int) -> *mut T {
    set(number);
    std::ptr::null_mut()
}

/// 0, or the number of the refusal.
pub(crate) fn status(outcome: Result<(), c_int>) -> c_int {
    match outcome {
        Ok(()) => 0,
        Err(number) => number,
    }
}

/// Runs a function of the C interface. A panic is a bug, and must not cross into C: the call fails instead.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> T) -> T {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(failed)
}

/// Has this called when the process ends in an orderly way; once, however often it is asked for.
#[expect(unsafe_code, reason = "a function of the C library's")]
pub(crate) fn at_exit(function: extern "C" fn()) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the function lives as long as this library, which programs do not unload.
    ONCE.call_once(|| _ = unsafe { libc::atexit(function) });
}

/// A sentence on standard error, where a program that knows only numbers would keep it from its user.
#[expect(clippy::print_stderr, reason = "a library behind a C interface has no other way to say a sentence")]
pub(crate) fn complain(text: &str) {
    eprintln!("railnet: {text}");
}
