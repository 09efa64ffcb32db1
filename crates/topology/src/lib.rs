//! Fabrics and servers as descriptions: what is joined to what, how fast, and which way packets may go.
//!
//! - [`FabricGraph`] is a fabric: hosts (ports of NICs) and switches joined by links. [`fabric::FabricKind`] builds the
//!   usual shapes and explicit lists.
//! - [`Routes`] has the equal-cost next hops of every switch towards every host, with or without dead links;
//!   [`DragonflyRoutes`] adds what detours over a random group need.
//! - [`LoadedFabric`] says which link is busy longest with a set of demands, by routes and the hash of ECMP.
//! - [`summary`] measures a fabric: bisection, path lengths, path counts. [`draw`] makes a picture of it.
//! - [`host::Host`] is a server: GPUs, NVLink, PCIe, NUMA nodes, NICs; [`host::Host::path`] classifies the ways
//!   between them as NCCL does. [`Cluster`] is so many of them. [`catalogue`] has servers that people have.
//!
//! Nothing here moves, reads a file or asks a clock.
//!
//! # Example
//!
//! ```
//! use railnet_core::{Rate, Span};
//! use railnet_topology::fabric::{FabricKind, LeafSpine, LinkSpec};
//! use railnet_topology::{Routes, summary};
//!
//! let links = LinkSpec::new(Rate::gbps(400), Span::from_ns(500));
//! let graph = FabricKind::LeafSpine(LeafSpine::new(4, 8, 4)).build(&links)?;
//! let routes = Routes::shortest(&graph);
//!
//! // From leaf 0, host 3 is on port 3; host 31, on another leaf, is behind each of the four spines.
//! assert_eq!(routes.next_hops(0, 3), [3]);
//! assert_eq!(routes.next_hops(0, 31), [8, 9, 10, 11]);
//!
//! let measures = summary(&graph, &routes);
//! assert_eq!(measures.bisection, Rate::gbps(8 * 400));
//! assert_eq!(measures.paths, (1, 4));
//! # Ok::<(), railnet_topology::fabric::BuildError>(())
//! ```
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod catalogue;
mod cluster;
pub mod fabric;
mod flow;
mod graph;
pub mod host;
mod load;
mod measure;
mod places;
mod routes;
mod svg;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use cluster::{Cluster, ClusterError};
pub use graph::{
    Adjacency, End, FabricGraph, GraphBuilder, GraphError, HostNode, Link, LinkKind, Neighbour, SwitchNode,
    Vertex,
};
pub use load::{Bottleneck, Demands, LoadedFabric, PathSelection};
pub use measure::{Summary, bisection, summary};
pub use places::Places;
pub use routes::{DragonflyRoutes, Routes};
pub use svg::draw;
