//! The same table for ranks that are processes of computers without GPUs: time = latency + bytes / bandwidth, and the least
//! wins. There is no search and no hardware to know: what hops, messages and bytes cost is measured for each conduit, and
//! handed in.
//!
//! ```
//! use railnet_coll::tuner::{HypercubeLimits, Medium, Processes, Request, Settings};
//! use railnet_coll::{Algorithm, Collective};
//! use railnet_core::Bytes;
//!
//! let medium = Medium {
//!     hop_us: 1.0, message_us: 0.1, bandwidth: 5.0, reduce_bandwidth: 20.0, two_shots: 1.0, two_shots_of_pair: 0..=0, blocks: 1.0,
//!     direct_most: 8, hypercube: HypercubeLimits::NEVER,
//! };
//! let table = Processes { ranks: 4, nodes: 1, medium, settings: Settings::default() };
//! let (cell, _) = table.best(&Request::new(Collective::AllReduce, Bytes(8)))?;
//! assert_eq!(cell.algorithm, Algorithm::Direct);
//! # Ok::<(), railnet_coll::tuner::NoChoice>(())
//! ```

use std::ops::RangeInclusive;

use railnet_core::ReduceOp;

use super::inputs::Settings;
use super::limits::Out;
use super::table::{Cell, Estimate, Model, NoChoice, Request, nothing};
use crate::algorithm::{Algorithm, direct, hypercube};
use crate::call::Collective;
use crate::protocol::Protocol;

/// What two shots of two ranks take of the time around a ring, where they are better off so.
const PAIR_GAIN: f32 = 0.9;

/// What things cost over a conduit.
#[derive(Clone, PartialEq, Debug)]
pub struct Medium {
    /// Microseconds from rank to rank, for each that data has to pass.
    pub hop_us: f32,
    /// Microseconds that a rank spends on each message besides its bytes.
    pub message_us: f32,
    /// GB/s that a rank sends.
    pub bandwidth: f32,
    /// GB/s that a rank reduces.
    pub reduce_bandwidth: f32,
    /// How much longer data takes in two shots of a direct exchange than around a ring.
    pub two_shots: f32,
    /// Bytes of an AllReduce between two ranks that are better off in two shots: neither waits with what it gives for what it takes.
    pub two_shots_of_pair: RangeInclusive<u64>,
    /// How much longer blocks of an AllGather or ReduceScatter take in a direct exchange than around a ring.
    pub blocks: f32,
    /// The most ranks that have a connection from each to each.
    pub direct_most: u32,
    /// What is exchanged bit by bit of the ranks' numbers.
    pub hypercube: HypercubeLimits,
}

/// The most bytes of calls that ranks exchange bit by bit of their numbers. That is few messages, but one after the other: where
/// each rank has a core, or much to send, others have more under way at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HypercubeLimits {
    /// Of AllReduce.
    pub all_reduce: u64,
    /// Of AllGather.
    pub all_gather: u64,
    /// Of ReduceScatter.
    pub reduce_scatter: u64,
    /// Of AllToAll.
    pub all_to_all: u64,
}

impl HypercubeLimits {
    /// Nothing at all.
    pub const NEVER: Self = Self { all_reduce: 0, all_gather: 0, reduce_scatter: 0, all_to_all: 0 };

    const fn most(&self, collective: Collective) -> u64 {
        match collective {
            Collective::AllReduce => self.all_reduce,
            Collective::AllGather => self.all_gather,
            Collective::ReduceScatter => self.reduce_scatter,
            Collective::AllToAll => self.all_to_all,
            _ => 0,
        }
    }
}

/// The table of a communicator.
#[derive(Clone, PartialEq, Debug)]
pub struct Processes {
    /// Ranks.
    pub ranks: u32,
    /// Hosts that they are on.
    pub nodes: u32,
    /// What algorithms cost here.
    pub medium: Medium,
    /// What the user says.
    pub settings: Settings,
}

/// What an algorithm does in a call: hops one after the other, messages of a rank, and bytes that it sends and reduces
/// for each of the call's.
struct Shape {
    hops: u32,
    messages: u32,
    sent: f32,
    reduced: f32,
}

impl Processes {
    /// Those that take part; all use Simple, because flags among the data are of use to GPUs.
    pub const ALGORITHMS: [Algorithm; 6] = [
        Algorithm::Direct,
        Algorithm::PointToPoint,
        Algorithm::Hypercube,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Pat,
    ];

    /// What each algorithm costs for a call, or why it is out.
    pub fn cells(&self, request: &Request) -> Vec<Cell> {
        let cell = |algorithm| {
            let outcome = match self.reason(request, algorithm) {
                Some(out) => Err(out),
                None => Ok(self.model(request, algorithm)),
            };
            Cell { algorithm, protocol: Protocol::Simple, outcome }
        };
        Self::ALGORITHMS.into_iter().map(cell).collect()
    }

    /// What a cell costs.
    pub fn estimate(cell: &Cell, request: &Request) -> Option<Estimate> {
        let Model { latency_us, bandwidth } = *cell.outcome.as_ref().ok()?;
        let transfer_us = if bandwidth > 0.0 { request.bytes.0 as f32 / (1000.0 * bandwidth) } else { 0.0 };
        Some(Estimate { latency_us, transfer_us, time_us: latency_us + transfer_us, bandwidth })
    }

    /// The cheapest, and what it costs: the first of equals.
    pub fn best(&self, request: &Request) -> Result<(Cell, Estimate), NoChoice> {
        let cells = self.cells(request);
        let mut best: Option<(&Cell, Estimate)> = None;
        for cell in &cells {
            let Some(estimate) = Self::estimate(cell, request) else { continue };
            if best.as_ref().is_none_or(|(_, least)| estimate.time_us < least.time_us) {
                best = Some((cell, estimate));
            }
        }
        let best = best.map(|(cell, estimate)| (cell.clone(), estimate));
        best.ok_or_else(|| nothing(request.collective, &cells))
    }

    fn reason(&self, request: &Request, algorithm: Algorithm) -> Option<Out> {
        let collective = request.collective;
        if !algorithm.does(collective) {
            return Some(Out::Collective(algorithm, collective));
        }
        let selection = &self.settings.algorithms;
        let is_allowed = match algorithm {
            // NCCL has no name for them.
            Algorithm::Direct | Algorithm::Hypercube => selection.allows_others(collective),
            Algorithm::PointToPoint => true,
            _ => selection.allows(collective, algorithm as usize),
        };
        if !is_allowed {
            return Some(Out::Variable("NCCL_ALGO", selection.text().to_owned()));
        }
        match algorithm {
            Algorithm::Direct if self.ranks > self.medium.direct_most => {
                Some(Out::TooManyPeers { ranks: self.ranks, limit: self.medium.direct_most })
            }
            Algorithm::Hypercube if !self.ranks.is_power_of_two() => Some(Out::NoPowerOfTwo(self.ranks)),
            Algorithm::Hypercube if request.bytes.0 > self.medium.hypercube.most(collective) => {
                let (bytes, limit) = (request.bytes.0, self.medium.hypercube.most(collective));
                Some(Out::TooMuch { bytes, limit })
            }
            Algorithm::Pat if self.nodes != self.ranks => Some(Out::PatManyLocal(self.ranks / self.nodes)),
            Algorithm::Pat if collective == Collective::ReduceScatter => {
                let scales = matches!(request.op, ReduceOp::Average | ReduceOp::PreMulSum(_));
                scales.then_some(Out::PatOperation(request.op))
            }
            _ => None,
        }
    }

    fn model(&self, request: &Request, algorithm: Algorithm) -> Model {
        if self.ranks == 1 {
            return Model { latency_us: 0.0, bandwidth: 0.0 };
        }
        let Medium { hop_us, message_us, bandwidth, reduce_bandwidth, .. } = self.medium;
        let Shape { hops, messages, sent, reduced } = self.shape(request, algorithm);
        let latency_us = hop_us * hops as f32 + message_us * messages as f32;
        Model { latency_us, bandwidth: 1.0 / (sent / bandwidth + reduced / reduce_bandwidth) }
    }

    fn shape(&self, request: &Request, algorithm: Algorithm) -> Shape {
        let ranks = self.ranks;
        let others = ranks - 1;
        let depth = ranks.next_power_of_two().ilog2();
        let (all, part) = (others as f32, others as f32 / ranks as f32);
        let (hops, messages, sent, reduced) = match (request.collective, algorithm) {
            (Collective::AllReduce, Algorithm::Direct) if direct::is_one_shot(ranks, request.bytes.0) => {
                (1, others, all, all)
            }
            (Collective::AllReduce, Algorithm::Direct) => {
                let is_better = ranks == 2 && self.medium.two_shots_of_pair.contains(&request.bytes.0);
                let more = if is_better { PAIR_GAIN } else { self.medium.two_shots };
                (2, 2 * others, 2.0 * part * more, part * more)
            }
            (Collective::AllReduce, Algorithm::Hypercube) => {
                let all = depth as f32;
                let is_alone = hypercube::is_alone(request.bytes.0);
                let (messages, sent, reduced) =
                    if is_alone { (depth, all, all) } else { (2 * depth, 2.0 * part, part) };
                (2 * depth, messages, sent, reduced)
            }
            // Blocks are passed on.
            (Collective::AllToAll, Algorithm::Hypercube) => (depth, depth, depth as f32 / 2.0, 0.0),
            // On one host it is a chain: sums go up, and the result comes down.
            (Collective::AllReduce, Algorithm::Tree) if self.nodes == 1 => (2 * others, 2, 3.0, 1.0),
            // A rank with two children sends the sum up, and the result to both.
            (Collective::AllReduce, Algorithm::Tree) => (2 * depth, 2 * depth, 3.0, 1.0),
            (Collective::AllReduce, _) => (2 * others, 2 * others, 2.0 * part, part),
            (Collective::Broadcast, Algorithm::Direct) => (1, others, all, 0.0),
            (Collective::Broadcast, _) => (others, 1, 1.0, 0.0),
            (Collective::Reduce, _) => (others, 1, 1.0, 1.0),
            (collective, _) => {
                let reduced = if collective == Collective::ReduceScatter { part } else { 0.0 };
                let hops = match algorithm {
                    Algorithm::Direct | Algorithm::PointToPoint => 1,
                    Algorithm::Pat | Algorithm::Hypercube => depth,
                    _ => others,
                };
                let is_few = matches!(algorithm, Algorithm::Pat | Algorithm::Hypercube);
                let messages = if is_few { depth } else { others };
                let more = if algorithm == Algorithm::Direct { self.medium.blocks } else { 1.0 };
                (hops, messages, part * more, reduced * more)
            }
        };
        Shape { hops, messages, sent, reduced }
    }
}

#[cfg(test)]
mod tests {
    use railnet_core::Bytes;

    use super::*;
    use crate::variables::{Source, Variables};

    fn table(ranks: u32, nodes: u32, algo: &str) -> Processes {
        let medium = Medium {
            hop_us: 1.0,
            message_us: 0.1,
            bandwidth: 5.0,
            reduce_bandwidth: 20.0,
            two_shots: 1.1,
            two_shots_of_pair: 0..=0,
            blocks: 1.0,
            direct_most: 8,
            hypercube: HypercubeLimits::NEVER,
        };
        let pairs = match algo {
            "" => Vec::new(),
            _ => vec![("NCCL_ALGO".to_owned(), algo.to_owned())],
        };
        let variables = Variables::merge([(Source::Environment, pairs)]).unwrap();
        Processes { ranks, nodes, medium, settings: variables.settings() }
    }

    #[test]
    fn hops_count_for_little_data_and_bytes_for_much() {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce};
        let cases = [
            (2, 1, "", AllReduce, 8, Algorithm::Direct),
            (4, 1, "", AllReduce, 1 << 20, Algorithm::Ring),
            (16, 1, "", AllReduce, 8, Algorithm::Tree),
            (16, 1, "", AllReduce, 1 << 20, Algorithm::Ring),
            (4, 1, "", AllGather, 8, Algorithm::Direct),
            (16, 1, "", AllGather, 8, Algorithm::Ring),
            (16, 16, "", AllGather, 8, Algorithm::Pat),
            (4, 1, "", Broadcast, 1 << 20, Algorithm::Ring),
            (4, 1, "", Reduce, 8, Algorithm::Ring),
            (4, 1, "tree", AllReduce, 1 << 20, Algorithm::Tree),
            (4, 1, "^ring;allgather:ring", AllReduce, 1 << 20, Algorithm::Direct),
            (4, 1, "^ring;allgather:ring", AllGather, 8, Algorithm::Ring),
            (4, 1, "^ring,tree", AllReduce, 8, Algorithm::Direct),
        ];
        for (ranks, nodes, algo, collective, bytes, expected) in cases {
            let (cell, estimate) =
                table(ranks, nodes, algo).best(&Request::new(collective, Bytes(bytes))).unwrap();
            assert_eq!(cell.algorithm, expected, "{collective} of {bytes} among {ranks}, {algo:?}");
            assert!(estimate.time_us > 0.0);
        }
    }

    #[test]
    fn little_is_exchanged_bit_by_bit_where_that_is_wanted() {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast};
        let mut table = table(4, 1, "");
        table.medium.message_us = 5.0;
        let limits = HypercubeLimits { all_reduce: 1 << 20, all_gather: 100, ..HypercubeLimits::NEVER };
        table.medium.hypercube = limits;
        let cases = [
            (4, AllReduce, 8, Algorithm::Hypercube),
            (4, AllReduce, 100_000, Algorithm::Hypercube),
            (4, AllReduce, 2_000_000, Algorithm::Ring),
            (4, AllGather, 100, Algorithm::Hypercube),
            (4, AllGather, 101, Algorithm::Direct),
            (4, AllToAll, 8, Algorithm::PointToPoint),
            (4, Broadcast, 8, Algorithm::Ring),
            (6, AllReduce, 8, Algorithm::Tree),
        ];
        for (ranks, collective, bytes, expected) in cases {
            let table = Processes { ranks, ..table.clone() };
            let (cell, _) = table.best(&Request::new(collective, Bytes(bytes))).unwrap();
            assert_eq!(cell.algorithm, expected, "{collective} of {bytes} among {ranks}");
        }
        let cells = table.cells(&Request::new(AllGather, Bytes(101)));
        let out = cells.iter().find(|cell| cell.algorithm == Algorithm::Hypercube).unwrap();
        let reason = out.outcome.as_ref().unwrap_err().to_string();
        assert_eq!(reason, "it is for up to 100 B, not for 101 B");
        let cells = table.cells(&Request::new(AllToAll, Bytes(8)));
        let out = cells.iter().find(|cell| cell.algorithm == Algorithm::Hypercube).unwrap();
        let reason = out.outcome.as_ref().unwrap_err().to_string();
        assert_eq!(reason, "between these ranks it is never the fastest");
    }

    #[test]
    fn what_cannot_run_says_why() {
        let request = Request::new(Collective::AllReduce, Bytes(8));
        let error = table(4, 1, "NVLS").best(&request).unwrap_err().to_string();
        let expected = "no algorithm and protocol can run AllReduce: Direct/Simple: NCCL_ALGO=NVLS leaves it out; \
                        Hypercube/Simple: NCCL_ALGO=NVLS leaves it out; Ring/Simple: NCCL_ALGO=NVLS leaves it out; Tree/Simple: NCCL_ALGO=NVLS leaves it out";
        assert_eq!(error, expected);
        let cells = table(9, 1, "").cells(&Request::new(Collective::AllGather, Bytes(8)));
        let reasons: Vec<String> =
            cells.iter().filter_map(|cell| cell.outcome.as_ref().err().map(ToString::to_string)).collect();
        assert_eq!(
            reasons,
            [
                "9 ranks are too many for a connection from each to each, of which it takes 8",
                "P2P does not do AllGather",
                "it needs a power of two of ranks, and there are 9",
                "Tree does not do AllGather",
                "it needs one rank on each node, and there are 9"
            ]
        );
    }
}
