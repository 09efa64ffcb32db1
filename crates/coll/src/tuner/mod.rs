//! NCCL's cost model: which algorithm and protocol runs a call, and why.
//!
//! For each of 7 algorithms and 3 protocols there is a latency and a bandwidth, computed once from what the search found;
//! the time of a call is *latency + bytes / bandwidth*, and the least wins. A cell that cannot run says why ([`Out`]).
//! Numbers and formulas are those of NCCL 2.30.7, `src/graph/tuning.cc` and `src/enqueue.cc`.
//!
//! ```
//! use railnet_coll::tuner::{GraphFacts, Graphs, Inputs, Request, choose};
//! use railnet_coll::{Algorithm, Collective, Protocol};
//! use railnet_core::Bytes;
//!
//! // A node of 8 H100, without NVLS: 12 channels of 30 GB/s.
//! let channels = Some(GraphFacts::uniform(12, 30.0));
//! let inputs = Inputs::hopper(1, 8, Graphs { ring: channels, tree: channels, ..Graphs::default() });
//! let decision = choose(&inputs, &Request::new(Collective::AllReduce, Bytes::mib(64)))?;
//! assert_eq!((decision.algorithm, decision.protocol), (Algorithm::Ring, Protocol::Simple));
//! # Ok::<(), railnet_coll::tuner::NoChoice>(())
//! ```

mod constants;
mod crossover;
mod decision;
mod inputs;
mod limits;
mod model;
mod peers;
mod processes;
mod table;
#[cfg(test)]
mod tests;
mod threads;

pub use constants::{Constants, Latencies, Scaled};
pub use crossover::Crossover;
pub use decision::{Decision, choose, thread_threshold, threads_max};
pub use inputs::{CollNet, CpuVendor, GraphFacts, Graphs, Inputs, PeerFacts, Settings};
pub use limits::{Kind, Out};
pub use processes::{HypercubeLimits, Medium, Processes};
pub use table::{Cell, Estimate, Model, NoChoice, Request, Table};
pub use threads::Threads;
