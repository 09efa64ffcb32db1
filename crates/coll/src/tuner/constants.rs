//! The numbers of NCCL's cost model, as NCCL 2.30.7 has them (src/graph/tuning.cc). NVIDIA measured them; nothing here is
//! fitted to anything.

/// Latencies of the three protocols, in microseconds: LL, LL128, Simple.
pub type Latencies = [f32; 3];

/// Bandwidths in GB/s for one node, two nodes, more nodes.
pub type Scaled = [f64; 3];

/// How far the model's numbers go: another set may be measured for other hardware, as NCCL's tuner plugins do.
#[derive(Clone, PartialEq, Debug)]
pub struct Constants {
    /// What starting costs, for each algorithm.
    pub base: [Latencies; 7],
    /// What a step costs over NVLink, PCIe and the network, for each algorithm.
    pub step: [[Latencies; 7]; 3],
    /// What LL carries at most. On one node by generation of GPU; on more, the first row for Intel and the second for AMD.
    pub ll_max: [Scaled; 4],
    /// What a channel carries at most in a ring with LL128, by generation of GPU.
    pub ring_ll128_max: [Scaled; 4],
    /// What a channel carries at most in a tree with LL128.
    pub tree_ll128_max: [Scaled; 4],
    /// What a channel carries at most in a tree.
    pub tree_max: [Scaled; 4],
    /// What a channel carries at most in an NVLSTree.
    pub nvls_tree_max: [Scaled; 4],
    /// What part of NVLink's bandwidth reductions in the switch reach.
    pub nvls_efficiency: [f32; 4],
    /// How much of their bandwidth trees reach in AllReduce, for messages from 64 B on, by powers of two.
    pub tree_correction: [[f32; 24]; 3],
    /// What the latency of a ring grows by between nodes for messages that are not small: GPUs before Ampere, and since.
    pub ring_plateau: [f32; 2],
}

/// A row that does not depend on the number of nodes.
const fn flat(bandwidth: f64) -> Scaled {
    [bandwidth; 3]
}

/// Only Simple exists.
const fn simple(latency: f32) -> Latencies {
    [0.0, 0.0, latency]
}

impl Constants {
    /// NCCL's. Rows are Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT; generations are Volta, Ampere,
    /// Hopper, Blackwell.
    pub const NCCL: Self = Self {
        base: [
            [6.8, 14.0, 8.4],
            [6.6, 14.0, 8.4],
            simple(0.0),
            simple(0.0),
            simple(0.0),
            simple(0.0),
            [8.0, 8.0, 8.0],
        ],
        step: [
            [
                [0.6, 1.25, 4.0],
                [0.6, 1.9, 3.4],
                simple(3.7),
                simple(2.8),
                simple(25.0),
                simple(25.0),
                simple(4.0),
            ],
            [
                [1.0, 1.9, 4.0],
                [1.0, 2.5, 5.7],
                simple(3.7),
                simple(2.8),
                simple(0.0),
                simple(0.0),
                simple(4.0),
            ],
            [
                [5.0, 8.5, 14.0],
                [2.7, 4.0, 14.0],
                simple(31.0),
                simple(30.0),
                simple(18.0),
                simple(20.9),
                simple(14.0),
            ],
        ],
        ll_max: [[39.0, 39.0, 20.4], [87.7, 22.5, 19.0], [141.0, 45.0, 35.0], [282.0, 90.0, 70.0]],
        ring_ll128_max: [flat(20.0), flat(20.0), flat(36.7), flat(40.0)],
        tree_ll128_max: [flat(20.0), flat(20.0), [36.7, 36.7, 29.0], [55.6, 31.67, 20.0]],
        tree_max: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [38.7, 41.4, 36.0], [70.0, 42.8, 24.0]],
        nvls_tree_max: [[26.5, 18.5, 10.0], [24.0, 23.6, 17.8], [0.0, 57.7, 45.5], [0.0, 96.0, 80.0]],
        nvls_efficiency: [0.0, 0.0, 0.85, 0.74],
        tree_correction: [
            [
                1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8,
                0.9, 1.0, 1.0, 1.0, 1.0, 1.0,
            ],
            [
                1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9,
                0.9, 0.9, 0.9, 1.0, 1.0, 1.0,
            ],
            [
                0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8,
                0.7, 0.7, 0.8, 0.9, 0.9, 0.9,
            ],
        ],
        ring_plateau: [1.9, 1.4],
    };

    /// The row of a generation, by compute capability (90 for 9.0).
    pub const fn generation(capability: u32) -> usize {
        match capability {
            100.. => 3,
            90.. => 2,
            80.. => 1,
            _ => 0,
        }
    }

    /// The column of a number of nodes.
    pub const fn scale(nodes: u32) -> usize {
        match nodes {
            0 | 1 => 0,
            2 => 1,
            _ => 2,
        }
    }
}
