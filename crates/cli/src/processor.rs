//! What this process has had of the processor.

use rustix::time::{ClockId, clock_gettime};

/// Seconds of the processor that all threads of this process have had, in user and system mode.
pub(crate) fn seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
