//! Random programs of verbs: several processes of several threads, which open the library as any program does and call it by its C
//! interface alone.
//!
//! A seed decides everything but the time at which threads run ([`Program`]): connections of all services, shared receive queues,
//! ways to post and to poll, work requests with their data, which connections end in an error, which process is killed. Whoever
//! starts the processes is their only connection beside the wire: a process writes a line and waits for one, `meet NAME` for `go`.
//! Each checks its own part: every completion once, in its status, and every byte.

mod calls;
mod completions;
mod ending;
mod endpoint;
mod noise;
mod play;
mod program;

pub use play::{Report, play};
pub use program::Program;
