//! What the threads of a GPU send at most, whatever the wires carry: NCCL's cost model (2.30.7, src/graph/tuning.cc) when
//! wires are taken to be as fast as one likes.
//!
//! NCCL's limits are bus bandwidths. In a ring that is what each GPU sends, data without flags, over all channels together;
//! in a tree too, what goes up and what goes down. So `llMaxBws` is a limit of a GPU: each of its threads stores a line of
//! 16 bytes with two flags and polls for one, and all of its blocks together get no further. Between nodes it is lower and
//! depends on the CPU: lines for the network lie in the memory of the host, where GPUs reach them over PCIe and a proxy
//! looks at every flag. `perChMax…Bws` are limits of a channel: of one that the search placed, which NCCL has two blocks of
//! threads run, and more where two do not get all through that the wires would carry.

use super::constants::Constants;
use super::inputs::{CpuVendor, Inputs};
use crate::algorithm::Algorithm;
use crate::protocol::Protocol;

/// Blocks of threads that NCCL has in mind for a channel of the search: it runs every channel twice (graph/connect.cc).
const BLOCKS: f64 = 2.0;
/// How much more a tree moves for LL than its data.
pub(super) const TREE_LL: f64 = 3.8;

/// What part of LL128's bytes NCCL takes to be data in a tree.
pub(super) const fn tree_lines(nodes: u32) -> f64 {
    if nodes == 1 { 7.0 / 9.0 } else { 120.0 / 128.0 }
}

/// What the threads of a GPU send at most, in GB/s of data without flags.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threads {
    /// NCCL has no limit for them: they keep up with memory and wires.
    Unlimited,
    /// All threads of the GPU together.
    Gpu(f64),
    /// Those that run one channel of the communicator.
    Block(f64),
}

impl Threads {
    /// Those of each GPU of a communicator. What has no row in NCCL's tables runs like a ring. Where both limits hold, it is
    /// the one that is lower when all channels run.
    ///
    /// ```
    /// use railnet_coll::tuner::{Constants, GraphFacts, Graphs, Inputs, Threads};
    /// use railnet_coll::{Algorithm, Protocol};
    ///
    /// let inputs = Inputs::hopper(1, 8, Graphs { ring: Some(GraphFacts::uniform(12, 30.0)), ..Graphs::default() });
    /// let of = |protocol| Threads::of(&Constants::NCCL, &inputs, Algorithm::Ring, protocol);
    /// assert_eq!(of(Protocol::Ll), Threads::Gpu(141.0));
    /// assert_eq!(of(Protocol::Ll128), Threads::Block(36.7 / 2.0));
    /// assert_eq!(of(Protocol::Simple), Threads::Unlimited);
    /// ```
    pub fn of(constants: &Constants, inputs: &Inputs, algorithm: Algorithm, protocol: Protocol) -> Self {
        let limits = constants.limits(inputs);
        let channel = match (algorithm, protocol) {
            (Algorithm::Tree, Protocol::Ll) => limits.tree / TREE_LL,
            (Algorithm::Tree, Protocol::Ll128) => {
                (limits.tree * tree_lines(inputs.nodes)).min(limits.tree_ll128)
            }
            (Algorithm::Tree, Protocol::Simple) => limits.tree,
            (_, Protocol::Ll) => return Self::Gpu(limits.ll),
            (_, Protocol::Ll128) => limits.ring_ll128,
            (_, Protocol::Simple) => return Self::Unlimited,
        };
        let block = channel / BLOCKS;
        match protocol {
            Protocol::Ll if limits.ll < block * f64::from(inputs.channels) => Self::Gpu(limits.ll),
            _ => Self::Block(block),
        }
    }
}

/// The limits of one communicator, in GB/s of bus bandwidth: the first of a GPU, the others of a channel of the search.
pub(super) struct Limits {
    pub(super) ll: f64,
    pub(super) ring_ll128: f64,
    pub(super) tree_ll128: f64,
    pub(super) tree: f64,
}

impl Constants {
    pub(super) fn limits(&self, inputs: &Inputs) -> Limits {
        let generation = Self::generation(inputs.capability_min);
        let scale = Self::scale(inputs.nodes);
        // On one node LL depends on the GPU, between nodes on who made the CPU.
        let row = match (inputs.nodes, inputs.cpu) {
            (..=1, _) => generation,
            (_, CpuVendor::Amd | CpuVendor::Mixed) => 1,
            _ => 0,
        };
        Limits {
            ll: self.ll_max[row][scale],
            ring_ll128: self.ring_ll128_max[generation][scale],
            tree_ll128: self.tree_ll128_max[generation][scale],
            tree: self.tree_max[generation][scale],
        }
    }
}
