//! The real world: who this process is among its peers, how they meet, how processes are started and ended, and what
//! this machine can do.
//!
//! Ranks started by torchrun, Slurm, Open MPI, MPICH or `railnet run` find themselves ([`launch`]), meet over TCP
//! ([`rendezvous`]) and keep a control channel ([`control`]) for what must reach everyone: barriers, small values, and
//! the news that a rank is gone. Every wait has a limit.
//!
//! ```
//! use std::time::Duration;
//! use railnet_live::{Launch, rendezvous};
//!
//! // Started by hand this is rank 0 of 1; under a launcher, whatever that says.
//! let launch = Launch::from_env()?;
//! let control = rendezvous::meet(&rendezvous::Config::from_env(&launch)?, b"my address")?;
//! let everyone = control.all_gather("greeting", b"hello", Duration::from_secs(10))?;
//! assert_eq!(everyone.len(), launch.world_size as usize);
//! control.leave(Duration::from_secs(10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod agreement;
mod authentication;
pub mod calls;
pub mod communicator;
mod conduit;
pub mod control;
mod engine;
pub mod host;
pub mod hostfile;
pub mod launch;
mod log;
pub mod memory;
pub mod message;
#[doc(hidden)]
pub mod parsers;
mod rdma;
pub mod rendezvous;
pub mod roce;
mod seal;
mod secret;
mod shared_memory;
mod socket;
pub mod status;
pub mod supervisor;
mod tcp;
mod thread;
mod transport;

pub use authentication::Authentication;
pub use communicator::{Communicator, CommunicatorBuilder, Element, Group, Options, Pending, Window};
pub use conduit::Conduit;
pub use control::Control;
pub use engine::ReachError;
pub use launch::Launch;
pub use log::Level;
pub use secret::Secret;
