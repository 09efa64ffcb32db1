//! Programs that end without dropping their communicators: they keep them where nothing is ever dropped, or call `exit`.
//!
//! To the others such a rank would be lost, although it has finished: a call of theirs whose data has all come could end with
//! an error, now and then. So the C library is told to let them say goodbye at the end of the program. It does so when `main`
//! returns and when somebody calls `exit`, not when a signal or `abort` ends the program: then the rank is lost.
#![expect(unsafe_code, reason = "the C library is told what to call at the end of the program")]

use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use super::process::Shared;

static LIVING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());
static TOLD: Once = Once::new();

/// Has it say goodbye at the end of the program, if it is there still.
pub(super) fn remember(shared: &Arc<Shared>) {
    TOLD.call_once(|| {
        // SAFETY: what is called takes and gives nothing, and is there as long as the program. Where there is no room for it, such
        // ranks count as lost.
        let _ = unsafe { libc::atexit(leave) };
    });
    let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
    living.retain(|one| one.strong_count() > 0);
    living.push(Arc::downgrade(shared));
}

extern "C" fn leave() {
    let living = std::mem::take(&mut *LIVING.lock().unwrap_or_else(PoisonError::into_inner));
    for shared in living.iter().filter_map(Weak::upgrade) {
        shared.leave_at_exit();
    }
}
