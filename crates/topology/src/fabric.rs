//! The usual shapes of fabrics, and what a scenario names them by.
//!
//! ```
//! use railnet_core::{Rate, Span};
//! use railnet_topology::fabric::{FabricKind, FatTree, LinkSpec};
//!
//! let links = LinkSpec::new(Rate::gbps(100), Span::from_us(1));
//! let graph = FabricKind::FatTree(FatTree::new(8)).build(&links)?;
//! assert_eq!((graph.hosts.len(), graph.switches.len()), (128, 80));
//!
//! let odd = FabricKind::FatTree(FatTree::new(5)).build(&links).unwrap_err();
//! assert_eq!(odd.to_string(), "fat-tree: k = 5 is odd, but half of a switch's ports face up; use 4 or 6");
//! # Ok::<(), railnet_topology::fabric::BuildError>(())
//! ```

mod dragonfly;
mod explicit;
mod fat_tree;
mod leaf_spine;
mod rail_optimised;
mod single_switch;
#[cfg(test)]
mod tests;

use railnet_core::{Rate, Span};

use crate::graph::{FabricGraph, GraphBuilder, GraphError, LinkKind, Vertex};

pub use dragonfly::Dragonfly;
pub use explicit::{Explicit, ExplicitLink};
pub use fat_tree::FatTree;
pub use leaf_spine::LeafSpine;
pub use rail_optimised::{Pods, RailOptimised};
pub use single_switch::SingleSwitch;

pub use railnet_core::limits::{HOSTS_MAX, LINKS_MAX, PORTS_MAX};

/// The shape of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricKind {
    /// All hosts on one switch.
    SingleSwitch(SingleSwitch),
    /// Leaves, each joined to every spine.
    LeafSpine(LeafSpine),
    /// A k-ary fat-tree of two or three tiers.
    FatTree(FatTree),
    /// One leaf per rail and group of servers, joined by spines.
    RailOptimised(RailOptimised),
    /// Groups joined all to all by long links.
    Dragonfly(Dragonfly),
    /// A list of switches and links.
    Explicit(Explicit),
}

impl FabricKind {
    /// What scenarios call the kinds.
    pub const NAMES: [&str; 6] =
        ["single-switch", "leaf-spine", "fat-tree", "rail-optimised", "dragonfly", "explicit"];

    /// What scenarios call this kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SingleSwitch(_) => SingleSwitch::NAME,
            Self::LeafSpine(_) => LeafSpine::NAME,
            Self::FatTree(_) => FatTree::NAME,
            Self::RailOptimised(_) => RailOptimised::NAME,
            Self::Dragonfly(_) => Dragonfly::NAME,
            Self::Explicit(_) => Explicit::NAME,
        }
    }

    /// The fabric, checked.
    pub fn build(&self, links: &LinkSpec) -> Result<FabricGraph, BuildError> {
        let graph = match self {
            Self::SingleSwitch(shape) => shape.build(links),
            Self::LeafSpine(shape) => shape.build(links),
            Self::FatTree(shape) => shape.build(links),
            Self::RailOptimised(shape) => shape.build(links),
            Self::Dragonfly(shape) => shape.build(links),
            Self::Explicit(shape) => shape.build(links),
        }?;
        graph.check()?;
        Ok(graph)
    }
}

/// What the links of a fabric are like: one rate and delay for all, and what differs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// The rate of every link that has no other.
    pub rate: Rate,
    /// The delay of every link that has no other.
    pub delay: Span,
    /// Between hosts and switches.
    pub edge: LinkOverride,
    /// Between leaves and the tier above.
    pub up: LinkOverride,
    /// Between aggregation and core switches; as `up` where it says nothing.
    pub core: LinkOverride,
    /// Inside a group of a dragonfly.
    pub local: LinkOverride,
    /// Between groups of a dragonfly.
    pub global: LinkOverride,
}

/// What differs from the rest on some links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkOverride {
    /// Their rate, if it is another.
    pub rate: Option<Rate>,
    /// Their delay, if it is another.
    pub delay: Option<Span>,
}

/// Where a link is, as [`LinkSpec`] tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Edge,
    Up,
    Core,
    Local,
    Global,
}

impl LinkSpec {
    /// All links alike.
    pub fn new(rate: Rate, delay: Span) -> Self {
        let same = LinkOverride::default();
        Self { rate, delay, edge: same, up: same, core: same, local: same, global: same }
    }

    fn at(&self, place: Place) -> (Rate, Span) {
        let (first, second) = match place {
            Place::Edge => (self.edge, self.edge),
            Place::Up => (self.up, self.up),
            Place::Core => (self.core, self.up),
            Place::Local => (self.local, self.local),
            Place::Global => (self.global, self.global),
        };
        let rate = first.rate.or(second.rate).unwrap_or(self.rate);
        let delay = first.delay.or(second.delay).unwrap_or(self.delay);
        (rate, delay)
    }
}

/// Why a fabric cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The numbers do not fit together.
    #[error("{kind}: {problem}; {remedy}")]
    Impossible {
        /// The kind of fabric, as scenarios name it.
        kind: &'static str,
        /// What is wrong.
        problem: String,
        /// What would do.
        remedy: String,
    },
    /// More than is ever built.
    #[error("{kind}: {count} {what}; at most {limit} are built")]
    TooLarge {
        /// The kind of fabric, as scenarios name it.
        kind: &'static str,
        /// What there is too much of.
        what: &'static str,
        /// How much of it there would be.
        count: u64,
        /// How much there may be.
        limit: u64,
    },
    /// A link of an explicit list that cannot be read.
    #[error("explicit: link {text:?}: {problem}; write \"name - name\" or \"name:port - name:port\"")]
    Link {
        /// What was written.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What was built is not a fabric.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn impossible(kind: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> BuildError {
    BuildError::Impossible { kind, problem: problem.into(), remedy: remedy.into() }
}

/// An error unless `value` is at least one.
fn at_least_one(kind: &'static str, what: &str, value: u32) -> Result<(), BuildError> {
    if value == 0 {
        return Err(impossible(kind, format!("{what} is 0"), "use at least 1"));
    }
    Ok(())
}

/// The product, or something larger than every limit.
fn product(factors: &[u32]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(u64::from(*factor)))
}

/// How large a fabric would be: asked before anything is allocated.
#[derive(Clone, Copy, Debug)]
struct Size {
    hosts: u64,
    links: u64,
    /// Of the switch that has most.
    ports: u64,
}

impl Size {
    fn check(self, kind: &'static str) -> Result<(), BuildError> {
        let limits = [
            ("hosts", self.hosts, HOSTS_MAX),
            ("links", self.links, LINKS_MAX),
            ("ports on one switch", self.ports, PORTS_MAX),
        ];
        for (what, count, limit) in limits {
            if count > limit {
                return Err(BuildError::TooLarge { kind, what, count, limit });
            }
        }
        Ok(())
    }
}

/// A graph under construction that knows what its links are like.
struct Plan<'a> {
    graph: GraphBuilder,
    links: &'a LinkSpec,
}

impl<'a> Plan<'a> {
    fn new(links: &'a LinkSpec) -> Self {
        Self { graph: GraphBuilder::new(), links }
    }

    /// The next host, alone in its server.
    fn host(&mut self, id: u32) -> Vertex {
        self.graph.host(format!("host{id}"), id, 0)
    }

    fn link(&mut self, a: Vertex, b: Vertex, place: Place) {
        let (rate, delay) = self.links.at(place);
        let kind = match place {
            Place::Edge => LinkKind::Edge,
            Place::Up | Place::Core => LinkKind::Up,
            Place::Local => LinkKind::Local,
            Place::Global => LinkKind::Global,
        };
        self.graph.link(a, b, rate, delay, kind);
    }

    fn finish(self) -> FabricGraph {
        self.graph.finish()
    }
}
