//! Programs that end without dropping their communicators: they keep them where nothing is ever dropped, or call `exit`.
//!
//! To the others such a rank would be lost, although it has finished: a call of theirs whose data has all come could end with
//! an error, now and then. So the C library is told to let them say goodbye at the end of the program. It does so when `main`
//! returns and when somebody calls `exit`, not when a signal or `abort` ends the program: then the rank is lost. So it is when
//! the program says by its exit status that it failed, as far as the C library tells that (glibc does).
#![expect(unsafe_code, reason = "the C library is told what to call at the end of the program")]

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::process::Shared;

static LIVING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static TOLD: Once = Once::new();

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    /// Has a function called at the end of the program, with the exit status and this argument.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// The same where the C library does not tell the status.
///
/// # Safety
/// As that of `on_exit`: the function must be there as long as the program.
#[cfg(not(target_env = "gnu"))]
unsafe fn on_exit(_: extern "C" fn(c_int, *mut c_void), _: *mut c_void) -> c_int {
    extern "C" fn finished() {
        leave(0, std::ptr::null_mut());
    }
    // SAFETY: it takes and gives nothing, and is part of the program.
    unsafe { libc::atexit(finished) }
}

/// Has it say goodbye at the end of the program, if it is there still.
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
