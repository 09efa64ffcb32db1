//! The table, what it says of a size, and who wins.

use railnet_core::{Bytes, DataType, ReduceOp};
use thiserror::Error;

use super::constants::Constants;
use super::inputs::Inputs;
use super::limits::{self, Kind, Out};
use super::model::Formula;
use crate::algorithm::Algorithm;
use crate::call::{Call, Collective};
use crate::protocol::Protocol;

/// Operations of a group that NCCL starts at once: 1,024 bytes hold seven descriptions (NCCL 2.30 device.h).
const BATCH: u32 = 7;

/// What the model says of an algorithm with a protocol, whatever the size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Microseconds before data flows.
    pub latency_us: f32,
    /// GB/s of data from there on.
    pub bandwidth: f32,
}

/// What the model says of a size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Microseconds before data flows.
    pub latency_us: f32,
    /// Microseconds in which it flows.
    pub transfer_us: f32,
    /// Both: what is compared.
    pub time_us: f32,
    /// GB/s while it flows.
    pub bandwidth: f32,
}

/// One cell of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// What it costs, or why it is out.
    pub outcome: Result<Model, Out>,
}

/// What is asked: a call without its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The collective.
    pub collective: Collective,
    /// The bytes of the largest buffer, as [`Call::bytes`] counts them.
    pub bytes: Bytes,
    /// Of what type.
    pub dtype: DataType,
    /// How contributions are put together.
    pub op: ReduceOp,
    /// Calls of the same kind in one group, over the channels they share.
    pub together: u32,
}

impl Request {
    /// One call of f32, with a sum.
    pub const fn new(collective: Collective, bytes: Bytes) -> Self {
        Self { collective, bytes, dtype: DataType::F32, op: ReduceOp::Sum, together: 1 }
    }

    /// What a call asks.
    pub fn of(call: &Call, ranks: u32) -> Self {
        let mut request = Self::new(call.collective, call.bytes(ranks));
        (request.dtype, request.op) = (call.dtype, call.op);
        request
    }

    /// The same for another size.
    #[must_use]
    pub const fn sized(self, bytes: Bytes) -> Self {
        Self { bytes, ..self }
    }

    const fn kind(&self) -> Kind {
        Kind { collective: self.collective, dtype: self.dtype, op: self.op }
    }
}

/// Nothing can run the call.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("no algorithm and protocol can run {collective}: {why}")]
pub struct NoChoice {
    /// What was to run.
    pub collective: Collective,
    /// What stands in the way.
    pub why: String,
}

/// NCCL's table for one kind of call on one machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// 21 cells, algorithm by algorithm in NCCL's order.
    cells: Vec<Cell>,
    kind: Kind,
    ranks: u32,
    nodes: u32,
    channels: u32,
    capability: u32,
    corrects_nvls_tree: bool,
    constants: Constants,
}

impl Table {
    /// The table for a collective, with NCCL's constants.
    pub fn new(inputs: &Inputs, request: &Request) -> Self {
        Self::with_constants(inputs, request, Constants::NCCL)
    }

    /// The table for a collective, with constants of another origin.
    pub fn with_constants(inputs: &Inputs, request: &Request, constants: Constants) -> Self {
        let kind = request.kind();
        let cell = |algorithm, protocol| {
            let outcome = match limits::reason(inputs, &kind, algorithm, protocol) {
                Some(out) => Err(out),
                None => model(&constants, inputs, &kind, algorithm, protocol),
            };
            Cell { algorithm, protocol, outcome }
        };
        let cells = Algorithm::TUNED
            .into_iter()
            .flat_map(|algorithm| Protocol::ALL.into_iter().map(move |protocol| (algorithm, protocol)))
            .map(|(algorithm, protocol)| cell(algorithm, protocol))
            .collect();
        Self {
            cells,
            kind,
            ranks: inputs.ranks,
            nodes: inputs.nodes,
            channels: inputs.channels.max(1),
            capability: inputs.capability_min,
            corrects_nvls_tree: inputs.capability_min >= 100 && inputs.cpu.is_x86(),
            constants,
        }
    }

    /// All cells, algorithm by algorithm in NCCL's order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cell of an algorithm that the model knows.
    pub fn cell(&self, algorithm: Algorithm, protocol: Protocol) -> &Cell {
        &self.cells[algorithm as usize * Protocol::ALL.len() + protocol as usize]
    }

    /// What a cell costs at a size; `None` where it is out (NCCL 2.30 graph/tuning.cc ncclTopoGetAlgoTime).
    pub fn estimate(&self, cell: &Cell, bytes: Bytes, together: u32) -> Option<Estimate> {
        let Ok(model) = &cell.outcome else { return None };
        if self.ranks == 1 {
            return Some(Estimate { latency_us: 0.0, transfer_us: 0.0, time_us: 0.0, bandwidth: 0.0 });
        }
        let Model { mut latency_us, mut bandwidth } = *model;
        let is_ring = cell.algorithm == Algorithm::Ring;
        if self.kind.collective == Collective::AllReduce {
            let size = (bytes.0 >> 6).max(1).ilog2() as usize;
            let known = match cell.algorithm {
                Algorithm::Tree => 23,
                Algorithm::NvlsTree if self.corrects_nvls_tree => 24,
                _ => 0,
            };
            if size < known {
                bandwidth *= self.constants.tree_correction[cell.protocol as usize][size];
            }
            let per_rank = bytes.0 / (u64::from(self.channels) * u64::from(self.ranks));
            if is_ring && cell.protocol == Protocol::Simple && self.nodes > 1 && per_rank >= 64 {
                latency_us *= self.constants.ring_plateau[usize::from(self.capability >= 80)];
            }
        }
        let starts = if is_ring { together.max(1) } else { together.max(1).div_ceil(BATCH) };
        let latency_us = latency_us * starts as f32;
        let transfer_us = bytes.0 as f32 / (1000.0 * bandwidth);
        let mut time_us = latency_us + transfer_us;
        let is_fp8 = matches!(self.kind.dtype, DataType::F8E4M3 | DataType::F8E5M2);
        if is_fp8 && is_ring && self.ranks > 8 && self.kind.collective.reduces() {
            // Each step of a ring rounds again; with this NCCL takes anything else that there is.
            time_us *= 1024.0;
        }
        Some(Estimate { latency_us, transfer_us, time_us, bandwidth })
    }

    /// The cheapest cell, and what it costs: the first of equals.
    pub fn best(&self, bytes: Bytes, together: u32) -> Result<(&Cell, Estimate), NoChoice> {
        let mut best: Option<(&Cell, Estimate)> = None;
        for cell in &self.cells {
            let Some(estimate) = self.estimate(cell, bytes, together) else { continue };
            if best.as_ref().is_none_or(|(_, least)| estimate.time_us < least.time_us) {
                best = Some((cell, estimate));
            }
        }
        best.ok_or_else(|| nothing(self.kind.collective, &self.cells))
    }

    /// The sizes at which the formulas of the table change, ascending.
    pub(super) fn breakpoints(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = (7..=30).map(|power| 1 << power).collect();
        sizes.push(64 * u64::from(self.channels) * u64::from(self.ranks));
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }
}

/// Why none of these can run a collective.
pub(super) fn nothing(collective: Collective, cells: &[Cell]) -> NoChoice {
    let mut reasons: Vec<String> = Vec::new();
    for cell in cells {
        let Err(out) = &cell.outcome else { continue };
        let is_dull = matches!(out, Out::Collective(..) | Out::Protocol(_));
        let text = format!("{}/{}: {out}", cell.algorithm, cell.protocol);
        if !is_dull {
            reasons.push(text);
        }
    }
    NoChoice { collective, why: reasons.join("; ") }
}

fn model(
    constants: &Constants,
    inputs: &Inputs,
    kind: &Kind,
    algorithm: Algorithm,
    protocol: Protocol,
) -> Result<Model, Out> {
    if inputs.ranks == 1 {
        return Ok(Model { latency_us: 0.0, bandwidth: 0.0 });
    }
    let graph = inputs.graphs.of(algorithm).ok_or(Out::NoChannels)?;
    let formula = Formula { constants, inputs, graph, collective: kind.collective, algorithm, protocol };
    let bandwidth = formula.bandwidth();
    if bandwidth > 0.0 && bandwidth.is_finite() {
        Ok(Model { latency_us: formula.latency(), bandwidth })
    } else {
        Err(Out::NoBandwidth)
    }
}
