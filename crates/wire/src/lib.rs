//! RoCEv2 on the wire: what each byte means.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod gid;
mod opcode;
mod transport;

pub use gid::Gid;
pub use opcode::{Opcode, Position, Transport};
pub use transport::{Aeth, AtomicEth, Bth, Deth, Extended, Headers, NakCode, Reth, Syndrome};
