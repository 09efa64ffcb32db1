//! Which process this is: one that was forked has the handles of the other, and none of its threads.
#![expect(unsafe_code, reason = "the C library is told what to call in a process that was forked")]

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
static TOLD: Once = Once::new();

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts forks from now on.
pub(crate) fn watch() {
    TOLD.call_once(|| {
        // SAFETY: what is called changes one number, and is there as long as the program. Where there is no room for it, a child that
        // uses its parent's communicators is not found out.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// Tells this process from its parent, for as long as both live.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}
