//! Servers and fabrics as descriptions: what is joined to what, how fast, and which way packets go. Nothing moves here; [`crate::sim`]
//! runs traffic on them.
//!
//! ```
//! use railnet::topology::fabric::{FabricKind, LeafSpine, LinkSpec};
//! use railnet::topology::{Routes, catalogue::Catalogue, summary};
//! use railnet::units::{Rate, Span};
//!
//! // A fabric of 32 hosts, and its bisection.
//! let links = LinkSpec::new(Rate::gbps(400), Span::from_ns(500));
//! let graph = FabricKind::LeafSpine(LeafSpine::new(4, 8, 4)).build(&links)?;
//! assert_eq!(summary(&graph, &Routes::shortest(&graph)).bisection, Rate::gbps(8 * 400));
//!
//! // Four servers of the catalogue.
//! let cluster = Catalogue::built_in().cluster("dgx-h100x4")?;
//! assert_eq!((cluster.nodes, cluster.host.gpus().len()), (4, 8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use railnet_topology::{
    Adjacency, Bottleneck, Cluster, ClusterError, Demands, DragonflyRoutes, End, FabricGraph, GraphBuilder,
    GraphError, HostNode, Link, LinkKind, LoadedFabric, Neighbour, PathSelection, Places, Routes, Summary,
    SwitchNode, Vertex, bisection, catalogue, draw, fabric, host, summary,
};
