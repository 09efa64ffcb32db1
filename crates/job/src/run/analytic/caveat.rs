//! Where formulas and packets are known to differ, and why: said on the screen and in the JSON of a run by formulas, beside the
//! predicted time of a single collective, and in the table of docs/validation.md.

use std::fmt;

use railnet_coll::tuner::{Constants, Decision, Inputs, Request};
use railnet_coll::{Algorithm, Collective, Protocol};

use super::interconnect::{Load, REFERENCE_DELAY_S};
use super::pipeline;

/// Steps that are shorter than this by packets make a call so much shorter that it is said.
const LATENCY_SHARE: f64 = 0.20;
/// NCCL's time for the bytes is so much longer than what the interconnect needs for them that it is said.
const TRANSFER_FACTOR: f64 = 1.2;
/// So many times the mean load on the fullest of equal paths is said,
const COLLISIONS: f64 = 1.05;
/// where the interconnect is busy for this part of the call.
const BOUND: f64 = 0.5;

/// Why packets may take longer or shorter than formulas say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Caveat {
    /// NCCL's latency of a hop between servers is longer than what packets, PCIe and CPUs take.
    HopLatency {
        /// The algorithm whose hops these are.
        algorithm: Algorithm,
        /// NCCL's figure.
        table_us: f32,
        /// The part of the call's time that it has over what packets take.
        excess: f64,
    },
    /// NCCL's bandwidth of an algorithm whose reductions are in switches of the network decides, not the interconnect.
    SwitchBandwidth {
        /// The algorithm.
        algorithm: Algorithm,
        /// How many times as long as the interconnect is busy the bytes take by it.
        factor: f64,
    },
    /// A hash chooses among equal paths: formulas have the mean over hashes, a run has one.
    Collisions(f64),
}

/// What a call takes, in seconds, and how much of that each side has.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Times {
    /// The call.
    pub(super) seconds: f64,
    /// Its bytes, by NCCL's estimate.
    pub(super) transfer: f64,
    /// The busiest resource of the interconnect.
    pub(super) on_network: f64,
}

impl Caveat {
    /// What is to be said of a collective over an interconnect that is loaded like this.
    pub(super) fn of(
        inputs: &Inputs,
        request: &Request,
        decision: &Decision,
        load: &Load,
        times: Times,
    ) -> Option<Self> {
        if inputs.nodes < 2 || times.seconds <= 0.0 {
            return None;
        }
        Self::of_nccl(inputs, request, decision, times).or_else(|| Self::of_paths(load, times))
    }

    /// Algorithms between servers whose steps NCCL has one figure for, with all that GPUs do in it: packets have but a part of that.
    fn of_nccl(inputs: &Inputs, request: &Request, decision: &Decision, times: Times) -> Option<Self> {
        let algorithm = decision.algorithm;
        let Times { seconds, transfer, on_network } = times;
        let in_switches = match algorithm {
            Algorithm::CollNetDirect | Algorithm::CollNetChain | Algorithm::Nvls => true,
            Algorithm::NvlsTree => false,
            _ => return None,
        };
        if in_switches && on_network > 0.0 && transfer > on_network * TRANSFER_FACTOR {
            return Some(Self::SwitchBandwidth { algorithm, factor: transfer / on_network });
        }
        let table_us = Constants::NCCL.step[2][algorithm as usize][Protocol::Simple as usize];
        // Trees go up and down; switches of the network are one hop, there and back.
        let hops = match algorithm {
            Algorithm::NvlsTree if request.collective == Collective::AllReduce => {
                2 * pipeline::tree_depth(inputs.nodes)
            }
            Algorithm::NvlsTree => pipeline::tree_depth(inputs.nodes),
            _ => 1,
        };
        let shorter_us = f64::from(table_us) - simulated_us(inputs);
        let excess = f64::from(hops) * shorter_us / 1e6 / seconds;
        (excess > LATENCY_SHARE).then_some(Self::HopLatency { algorithm, table_us, excess })
    }

    /// Equal paths among which a hash chooses, where the fullest of them bounds the call.
    pub(super) fn of_paths(load: &Load, times: Times) -> Option<Self> {
        let collisions = load.collisions();
        let bounds = times.on_network >= times.seconds * BOUND;
        (bounds && collisions > COLLISIONS).then_some(Self::Collisions(collisions))
    }

    /// A word for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::HopLatency { .. } => "hop_latency",
            Self::SwitchBandwidth { .. } => "switch_bandwidth",
            Self::Collisions(_) => "hash_collisions",
        }
    }

    /// The remark without advice, for a table.
    pub fn reason(&self) -> String {
        match self {
            Self::HopLatency { algorithm, table_us, excess } => format!(
                "NCCL's {table_us} µs for a hop of {algorithm} between servers, of which packets need a part, are {:.0} % of a call's time",
                excess * 100.0
            ),
            Self::SwitchBandwidth { algorithm, factor } => format!(
                "NCCL's bandwidth of {algorithm} decides: {factor:.1} times as long as the interconnect is busy"
            ),
            Self::Collisions(times) => {
                format!(
                    "ECMP puts {times:.1} times the mean on the fullest path, on average; a run has one hash"
                )
            }
        }
    }
}

/// What a hop with the Simple protocol takes at packet fidelity besides its bytes: the CPU's part at both ends, and the two links
/// that NCCL's figure is taken to have in it.
fn simulated_us(inputs: &Inputs) -> f64 {
    f64::from(3.0 * inputs.net_overhead_us()) + REFERENCE_DELAY_S * 1e6
}

/// The notice of a run.
impl fmt::Display for Caveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self {
            Self::HopLatency { .. } | Self::SwitchBandwidth { .. } => "packets take less",
            Self::Collisions(_) => "packets may take more or less",
        };
        write!(f, "{}; {way}: see `railnet sim --fidelity packet`", self.reason())
    }
}
