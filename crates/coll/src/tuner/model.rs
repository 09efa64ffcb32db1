//! The formulas: bandwidth and latency of a cell (NCCL 2.30.7 src/graph/tuning.cc).
//!
//! NCCL keeps results in `float` and multiplies by literals, which are `double`. So does this: otherwise the last digits
//! of what NCCL logs do not agree.

use railnet_topology::host::PathType;

use super::constants::Constants;
use super::inputs::{CpuVendor, GraphFacts, Inputs};
use super::threads::{TREE_LL, tree_lines};
use crate::algorithm::Algorithm;
use crate::call::Collective;
use crate::protocol::Protocol;
use crate::wiring::TreePattern;

/// Rows of [`Constants::step`].
const NVLINK: usize = 0;
const PCIE: usize = 1;
const NET: usize = 2;

/// One cell of the model, ready to compute with.
pub(super) struct Formula<'a> {
    pub(super) constants: &'a Constants,
    pub(super) inputs: &'a Inputs,
    pub(super) graph: &'a GraphFacts,
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
}

/// Steps that data takes.
fn steps(collective: Collective, ranks: u32) -> u32 {
    match collective {
        Collective::AllReduce => 2 * (ranks - 1),
        Collective::ReduceScatter | Collective::AllGather => ranks - 1,
        _ => ranks,
    }
}

fn gathers_or_scatters(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
}

impl Formula<'_> {
    /// GB/s of data, as the caller counts it.
    pub(super) fn bandwidth(&self) -> f32 {
        let bus = self.bus_bandwidth();
        if self.algorithm != Algorithm::Ring && gathers_or_scatters(self.collective) {
            return bus;
        }
        let ratio = match self.algorithm {
            Algorithm::Ring | Algorithm::Nvls | Algorithm::NvlsTree => {
                f64::from(self.inputs.ranks) / f64::from(steps(self.collective, self.inputs.ranks))
            }
            _ => 0.5,
        };
        bus * ratio as f32
    }

    /// GB/s on the busiest link.
    fn bus_bandwidth(&self) -> f32 {
        let Self { constants, inputs, graph, .. } = self;
        let channels = f64::from(graph.channels);
        let limits = constants.limits(inputs);
        let mut bus = graph.channels as f32 * self.per_channel();
        let least =
            |bandwidth: f32, factor: f64, limit: f64| (f64::from(bandwidth) * factor).min(limit) as f32;
        match self.algorithm {
            Algorithm::Ring => match self.protocol {
                Protocol::Ll => bus = least(bus, 0.5, limits.ll),
                Protocol::Ll128 => bus = least(bus, 0.92, channels * limits.ring_ll128),
                Protocol::Simple => {}
            },
            Algorithm::Tree => {
                bus = least(bus, 0.92, channels * limits.tree);
                match self.protocol {
                    Protocol::Ll => bus = least(bus, 1.0 / TREE_LL, limits.ll),
                    Protocol::Ll128 => {
                        bus = least(bus, tree_lines(inputs.nodes), channels * limits.tree_ll128);
                    }
                    Protocol::Simple => {}
                }
                if graph.pattern == Some(TreePattern::Plain) {
                    bus = (f64::from(bus) * 0.85) as f32;
                }
            }
            Algorithm::Pat => bus *= 0.75,
            Algorithm::CollNetDirect => bus = self.collnet_direct(bus),
            _ => {}
        }
        bus
    }

    /// GB/s of one channel of the search.
    fn per_channel(&self) -> f32 {
        let Self { constants, inputs, graph, .. } = self;
        match self.algorithm {
            Algorithm::Nvls | Algorithm::NvlsTree => {
                let generation = Constants::generation(inputs.capability_min);
                let channels = graph.channels as f32;
                let mut inside =
                    graph.bandwidth_intra * constants.nvls_efficiency[generation] * (channels - 1.0)
                        / channels;
                if self.collective == Collective::AllReduce {
                    inside *= 2.0;
                } else {
                    inside *= (inputs.per_node() - 1.0) / inputs.per_node();
                }
                let is_tree = self.algorithm == Algorithm::NvlsTree;
                let between = graph.bandwidth_inter * if is_tree && inputs.nodes <= 2 { 2.0 } else { 1.0 };
                let limit = constants.nvls_tree_max[generation][Constants::scale(inputs.nodes)] as f32;
                let bandwidth = inside.min(between);
                if is_tree { bandwidth.min(limit) } else { bandwidth }
            }
            Algorithm::CollNetDirect | Algorithm::CollNetChain => graph.bandwidth_intra,
            _ if inputs.nodes <= 2 => graph.bandwidth_intra,
            _ => graph.bandwidth_inter,
        }
    }

    fn collnet_direct(&self, bus: f32) -> f32 {
        let Self { inputs, graph, .. } = self;
        if gathers_or_scatters(self.collective) {
            return inputs.per_node() * graph.bandwidth_intra.min(graph.bandwidth_inter * 0.9);
        }
        // It is at its best where each GPU has a NIC of its own.
        let mut sharing = (f64::from(inputs.per_node()) / f64::from(graph.channels)) as f32;
        sharing -= (sharing - 1.0) / 2.0;
        let bus = bus / sharing;
        if inputs.capability_min >= 90 { (f64::from(bus) * 0.85) as f32 } else { bus }
    }

    /// Microseconds before the last byte follows the first.
    pub(super) fn latency(&self) -> f32 {
        let Self { constants, inputs, graph, .. } = self;
        let (row, column) = (self.algorithm as usize, self.protocol as usize);
        let base = constants.base[row][column];
        let hardware = if graph.type_intra == PathType::Nvl { NVLINK } else { PCIE };
        let inside = self.step(hardware, self.algorithm);
        let mut between =
            self.step(NET, if inputs.ranks == inputs.nodes { Algorithm::Tree } else { self.algorithm });
        between += graph.latency_inter_us;
        if self.protocol == Protocol::Simple {
            // Data that came through the NIC is flushed to the GPU's memory.
            between += graph.latency_inter_us;
        }
        let locals = (inputs.ranks / inputs.nodes - 1) as f32;
        let depth = inputs.nodes.ilog2() as f32;
        match self.algorithm {
            Algorithm::Ring => base + self.ring_steps(hardware, inside, between),
            Algorithm::Tree => base + 2.0 * (locals * inside + depth * between),
            Algorithm::CollNetDirect => {
                // Sends to all others of the node start one after the other.
                base + (2.0 * f64::from(locals.min(1.0) * inside) + 2.0 * f64::from(locals) * 0.4) as f32
                    + between
            }
            Algorithm::CollNetChain => base + 2.0 * locals * inside + between,
            Algorithm::Nvls => inside + if inputs.nodes > 1 { between } else { 0.0 },
            Algorithm::NvlsTree => base + inside + 2.0 * depth * between,
            Algorithm::Pat => {
                let trees = f64::from(depth) * f64::from(between) / 3.5;
                (f64::from(base) + trees + 2.8 * f64::from(inputs.ranks)) as f32
            }
            Algorithm::Direct | Algorithm::Hypercube | Algorithm::PointToPoint | Algorithm::Custom => base,
        }
    }

    /// The latency of a step; on POWER a tree over PCIe costs what a ring does.
    fn step(&self, hardware: usize, algorithm: Algorithm) -> f32 {
        let is_power = self.inputs.cpu == CpuVendor::Power && hardware == PCIE;
        let slow_tree = is_power && algorithm == Algorithm::Tree && self.protocol == Protocol::Simple;
        let algorithm = if slow_tree { Algorithm::Ring } else { algorithm };
        self.constants.step[hardware][algorithm as usize][self.protocol as usize]
    }

    fn ring_steps(&self, hardware: usize, inside: f32, between: f32) -> f32 {
        let Self { inputs, graph, .. } = self;
        let steps = steps(self.collective, inputs.ranks) as f32;
        if matches!(self.collective, Collective::Broadcast | Collective::Reduce) {
            let hardware = if inputs.nodes == 1 { hardware } else { NET };
            return if graph.same_channels {
                self.step(hardware, Algorithm::Ring)
            } else if self.protocol == Protocol::Simple {
                steps * self.step(hardware, Algorithm::Tree)
            } else {
                steps * self.step(hardware, Algorithm::Ring)
            };
        }
        // Between nodes each step, also one inside, waits for the CPU that serves the network.
        let overhead = if inputs.nodes == 1 { 0.0 } else { self.net_overhead() };
        let crossings = match (inputs.nodes - 1, self.collective) {
            (others, Collective::AllReduce) => 2 * others,
            (others, _) => others,
        } as f32;
        (steps - crossings) * inside.max(overhead) + crossings * between
    }

    fn net_overhead(&self) -> f32 {
        let overhead = self.inputs.net_overhead_us();
        if self.protocol == Protocol::Simple { 3.0 * overhead } else { overhead }
    }
}
