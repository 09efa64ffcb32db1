//! NCCL's estimate of a call, bounded by what the interconnect carries.

use railnet_coll::transport::Transports;
use railnet_coll::tuner::{Constants, Decision, Inputs, Request, Table};
use railnet_coll::{Algorithm, Collective, Protocol, Wiring};
use railnet_core::Span;
use railnet_topology::Cluster;

use super::caveat::{Caveat, Times};
use super::interconnect::{HopEnd, HostPaths, Interconnect, Load, Loads, Way, Ways};
use super::pipeline;
use super::traffic::{self, Hop, Wired};

/// What a call takes, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Bounded {
    /// From its start to its end.
    pub(super) seconds: f64,
    /// Of that, how long the slowest resource of the interconnect is busy.
    pub(super) on_network: f64,
    /// Why packets may differ.
    pub(super) caveat: Option<Caveat>,
}

impl Bounded {
    /// Messages, which nothing but the interconnect bounds.
    pub(super) fn of_messages(load: &Load, seconds: f64, on_network: f64) -> Self {
        let caveat = Caveat::of_paths(load, Times { seconds, transfer: 0.0, on_network });
        Self { seconds, on_network, caveat }
    }
}

/// What a call takes by formulas.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// From its start to its end.
    pub time: Span,
    /// Why packets may differ.
    pub caveat: Option<Caveat>,
}

/// A call that NCCL's cost model knows, over an interconnect that is loaded like this; nothing for grouped sends and receives.
pub(super) fn bounded(
    inputs: &Inputs,
    request: &Request,
    decision: &Decision,
    load: &Load,
) -> Option<Bounded> {
    let estimate = decision.estimate?;
    let latency = latency(inputs, request, decision, load.extra_delay)?;
    let on_network = load.seconds * request.bytes.as_u64() as f64 * traffic::flags_factor(decision.protocol);
    let transfer = f64::from(estimate.transfer_us) / 1e6;
    let seconds = match decision.algorithm {
        _ if inputs.nodes < 2 => latency + transfer.max(on_network),
        Algorithm::Ring => pipeline::ring(inputs, request, decision, (latency, transfer, on_network)),
        Algorithm::Tree => {
            let tree = pipeline::tree(inputs, request, decision, (latency, on_network));
            tree.unwrap_or_else(|| latency + transfer.max(on_network))
        }
        _ => latency + transfer.max(on_network),
    };
    let caveat = Caveat::of(inputs, request, decision, load, Times { seconds, transfer, on_network });
    Some(Bounded { seconds, on_network, caveat })
}

/// NCCL's latency of a call, with the hops that its trees really have, which take so many seconds more, or less, than its figure for
/// one.
fn latency(inputs: &Inputs, request: &Request, decision: &Decision, extra_delay: f64) -> Option<f64> {
    let hops_us = |inputs: &Inputs| {
        let table = Table::new(inputs, request);
        table.cell(decision.algorithm, decision.protocol).outcome.as_ref().ok().map(|model| model.latency_us)
    };
    // What NCCL makes of it for some sizes of a ring is left out: see `pipeline`.
    let nccl_us = match decision.algorithm {
        Algorithm::Ring if inputs.nodes > 1 => hops_us(inputs)? * request.together.max(1) as f32,
        _ => decision.estimate?.latency_us,
    };
    let nccl = f64::from(nccl_us) / 1e6;
    if inputs.nodes < 2 {
        return Some(nccl);
    }
    let mut delayed = inputs.clone();
    if matches!(decision.algorithm, Algorithm::Tree | Algorithm::NvlsTree) {
        // NCCL rounds the depth of its trees down; they have the depth of the next larger full tree.
        delayed.nodes = 1 << pipeline::tree_depth(inputs.nodes);
        delayed.ranks = inputs.ranks / inputs.nodes * delayed.nodes;
    }
    // With Simple, NCCL counts what a NIC adds twice: there is a flush after the data.
    let times = if decision.protocol == Protocol::Simple { 2.0 } else { 1.0 };
    let graphs = &mut delayed.graphs;
    let all = [
        &mut graphs.ring,
        &mut graphs.tree,
        &mut graphs.collnet_chain,
        &mut graphs.collnet_direct,
        &mut graphs.nvls,
    ];
    for graph in all.into_iter().flatten() {
        graph.latency_inter_us += (extra_delay * 1e6 / times) as f32;
    }
    let more = hops_us(&delayed)? - hops_us(inputs)?;
    Some((nccl + f64::from(more) / 1e6).max(0.0))
}

/// A group that makes a call.
#[derive(Debug)]
pub struct Caller<'a> {
    /// How channels run over its ranks.
    pub wiring: &'a Wiring,
    /// How its ranks reach each other.
    pub transports: &'a Transports,
    /// The server of each of its ranks, and the GPU in it.
    pub places: Vec<(u32, u32)>,
}

/// A call that several groups make at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The interconnect.
    pub net: &'a Interconnect,
    /// The servers.
    pub cluster: &'a Cluster,
    /// What the cost model knows of a group.
    pub inputs: &'a Inputs,
    /// The call.
    pub request: &'a Request,
    /// How it runs.
    pub decision: &'a Decision,
}

/// How long a call of these groups takes by NCCL's cost model, bounded by what the interconnect carries; nothing where the model has
/// nothing to say.
pub fn predict(question: &Question<'_>, callers: &[Caller<'_>]) -> Option<Prediction> {
    let Question { net, cluster, inputs, request, decision } = *question;
    let piece = traffic::piece(request.collective, decision, request.bytes.as_u64() as f64, inputs);
    let kinds = cluster.kinds();
    let kind_of = |node: u32| {
        let host = cluster.host_of(node);
        kinds.iter().position(|kind| std::ptr::eq(*kind, host) || *kind == host).unwrap_or_default() as u32
    };
    let mut paths = HostPaths::default();
    let ways = Ways { net, cluster, paths: &mut paths, kind_of: &kind_of };
    let mut loads = Loads::new(ways, piece);
    let shares = traffic::shares(request.collective, decision, request.bytes, inputs.ranks);
    for caller in callers {
        let wired = Wired::new(caller.wiring.clone(), caller.transports.clone());
        for hop in wired.hops(request.collective, decision, shares) {
            if let Some(way) = way(&hop, &|rank: u32| caller.places[rank as usize]) {
                loads.add(&way, hop.share);
            }
        }
    }
    let load = loads.load();
    let found = match request.collective {
        Collective::AllToAll if load.seconds > 0.0 => {
            let on_network = load.seconds * request.bytes.as_u64() as f64;
            let seconds = (message_latency(true) + load.extra_delay).max(0.0) + on_network;
            Bounded::of_messages(&load, seconds, on_network)
        }
        _ => bounded(inputs, request, decision, &load)?,
    };
    Some(Prediction { time: Span::from_ps((found.seconds * 1e12).round() as u64), caveat: found.caveat })
}

/// What a message takes besides its bytes: NCCL's figures for one step of a ring with the Simple protocol, in seconds.
pub(super) fn message_latency(is_between: bool) -> f64 {
    let (ring, simple) = (Algorithm::Ring as usize, Protocol::Simple as usize);
    let constants = &Constants::NCCL;
    let step = constants.step[if is_between { 2 } else { 0 }][ring][simple];
    f64::from(constants.base[ring][simple] + step) / 1e6
}

/// A connection of a group whose ranks are at these places.
pub(super) fn way(hop: &Hop, place: &impl Fn(u32) -> (u32, u32)) -> Option<Way> {
    let Hop { from, to, nics, relay, gdr, .. } = *hop;
    let relay = relay.map(|rank| place(rank).1);
    let end = |rank: u32, side: usize| {
        let (node, gpu) = place(rank);
        let relay = relay.filter(|_| side == 0);
        HopEnd { node, gpu: Some(gpu), nic: nics[side], relay, gdr: gdr[side] }
    };
    match (from, to) {
        (Some(from), Some(to)) => Some(Way::Send(end(from, 0), end(to, 1))),
        (Some(from), None) => Some(Way::Reduce { end: end(from, 0), sends: true }),
        (None, Some(to)) => Some(Way::Reduce { end: end(to, 1), sends: false }),
        (None, None) => None,
    }
}
