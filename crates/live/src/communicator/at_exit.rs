//! Programs that end without dropping their communicators: these are in statics, or the program calls `exit`.
//!
//! The others would take such a rank for lost, although it has finished, and a call of theirs could fail after its data has
//! arrived. So the C library calls a function that says goodbye, when `main` returns or `exit` is called. After a signal or
//! `abort` the rank counts as lost, and also if the exit status reports a failure, where the C library passes the status (glibc
//! does).
#![expect(unsafe_code, reason = "the C library is told what to call at the end of the program")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::process::Shared;

static LIVING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static TOLD: Once = Once::new();

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// Registers a function for the end of the program, which gets the exit status and this argument.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The same for C libraries that do not pass the status.
///
/// # Safety
/// As that of `on_exit`: the function must exist until the program ends.
#[cfg(not(target_env = "gnu"))]
unsafe fn on_exit(_: extern "C" fn(c_int, *mut c_void), _: *mut c_void) -> c_int {
    extern "C" fn finished() {
        leave(0, std::ptr::null_mut());
    }
    // SAFETY: it takes and gives nothing, and is part of the program.
    unsafe { libc::atexit(finished) }
}

/// Has the process say goodbye at the end of the program, if it still exists.
pub(super) fn remember(shared: &Arc<Shared>) {
    TOLD.call_once(|| {
        // SAFETY: what is called does not use its argument, and is there as long as the program. Where there is no room for it,
        // such ranks count as lost.
        let _ = unsafe { on_exit(leave, std::ptr::null_mut()) };
    });
    let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
    living.retain(|one| one.strong_count() > 0);
    living.push(Arc::downgrade(shared));
}

extern "C" fn leave(status: c_int, _: *mut c_void) {
    let living = std::mem::take(&mut *LIVING.lock().unwrap_or_else(PoisonError::into_inner));
    for shared in living.iter().filter_map(Weak::upgrade) {
        shared.end_at_exit(status == 0);
    }
}
