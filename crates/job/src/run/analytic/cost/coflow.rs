//! What calls put on the interconnect, for a network that shares links among all that are under way.
//!
//! The connections of a channel wait for each other's chunks, so all of them run at one rate: they are a *coflow*, which moves the
//! bytes of the call and uses each resource on their ways for a share of them.

use std::collections::BTreeMap;

use railnet_coll::Collective;
use railnet_coll::tuner::Decision;
use railnet_core::{Bytes, Rank, Rate, Span};

use super::super::interconnect::{HostPath, Interconnect, Load, Resource, Way, Ways};
use super::super::predict::{bounded, message_latency, way};
use super::super::traffic;
use super::super::{Asked, NoPrice};
use super::load::{PIECE, ends};
use super::{ClusterCosts, Shape, request, span};
use crate::graph::What;
use crate::parallel::Group;

/// How a call crosses the interconnect.
#[derive(Clone, PartialEq, Debug)]
pub struct CallPlan {
    /// What the call takes where the interconnect is no bottleneck.
    pub alone: Span,
    /// What it takes besides the time in which its bytes cross the interconnect, where that is the bottleneck.
    pub besides: Span,
    /// Bytes that each coflow moves.
    pub bytes: Bytes,
    /// Each goes at a rate of its own; the call is over with the last.
    pub coflows: Vec<Coflow>,
}

/// Connections that all run at one rate.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Coflow {
    /// Bytes over each resource for each byte of the coflow. Of cores, seconds.
    pub uses: BTreeMap<Resource, f64>,
    /// Seconds that each byte takes at least, because a connection has one core.
    pub seconds_min: f64,
}

/// Messages: so many seconds come on top of their bytes.
struct Messages {
    latency: f64,
    /// Seconds in which other bytes are under way inside servers.
    inside: f64,
    bytes: f64,
}

impl ClusterCosts<'_> {
    /// How a call of all these groups, or of these senders and receivers, crosses the interconnect; nothing where it does not.
    pub fn call_plan(
        &mut self,
        asked: &Asked<'_>,
        groups: &[Group],
        pairs: &[[Rank; 2]],
    ) -> Result<Option<CallPlan>, NoPrice> {
        let Some(net) = self.interconnect.clone() else { return Ok(None) };
        match (asked.said.what, asked.pair) {
            (_, Some(pair)) => self.messages(&net, pair, pairs, asked.said.bytes),
            (What::Collective(_), None) if asked.group.is_alone() => Ok(None),
            (What::Collective(Collective::AllToAll), None) => self.exchange_plan(&net, asked, groups),
            (What::Collective(collective), None) => self.tuned_plan(&net, asked, collective, groups),
            (What::Push | What::Pull, None) => {
                let (ports, rate) = (net.parameter_servers.clone(), self.rates.server);
                self.server_plan(&net, asked, groups, (&ports, rate, true))
            }
            (What::Write | What::Send { .. } | What::Receive { .. }, None) => {
                let (ports, rate) = (net.storage_servers.clone(), self.rates.storage);
                let gdr = !self.rates.is_storage_bounced;
                self.server_plan(&net, asked, groups, (&ports, rate, gdr))
            }
        }
    }

    /// The shape of a group by which a collective runs: of unlike servers, the slowest.
    pub(super) fn slowest(&mut self, asked: &Asked<'_>, collective: Collective) -> Result<Shape, NoPrice> {
        let shape = self.shape(asked.group)?;
        if !shape.looks.is_empty() {
            return Ok(shape);
        }
        let mut slowest = (Span::ZERO, shape.kind());
        for kind in &shape.kinds {
            let time = self.on_kind(&shape.of_kind(*kind), asked, collective)?.time;
            slowest = slowest.max((time, *kind));
        }
        Ok(shape.of_kind(slowest.1))
    }

    fn tuned_plan(
        &mut self,
        net: &Interconnect,
        asked: &Asked<'_>,
        collective: Collective,
        groups: &[Group],
    ) -> Result<Option<CallPlan>, NoPrice> {
        let shape = self.slowest(asked, collective)?;
        if shape.nodes < 2 {
            return Ok(None);
        }
        let decision = self.choose(&shape, collective, asked.said)?;
        let Some(load) = self.load(&shape, asked.group, collective, &decision, asked.said)? else {
            return Ok(None);
        };
        let request = request(collective, asked.said);
        let inputs = &self.known(&shape)?.inputs;
        // From this on the interconnect is the bottleneck of any call: a second for each byte.
        let seconds = |seconds: f64| {
            let load = Load { seconds, seconds_balanced: seconds, ..load.clone() };
            bounded(inputs, &request, &decision, &load)
        };
        let (Some(free), Some(bound)) = (seconds(0.0), seconds(1.0)) else { return Ok(None) };
        let bytes = asked.said.bytes.as_u64() as f64 * traffic::flags_factor(decision.protocol);
        let piece = traffic::piece(
            collective,
            &decision,
            asked.said.bytes.as_u64() as f64,
            &self.known(&shape)?.inputs,
        );
        let besides = (bound.seconds - bound.on_network).max(0.0);
        Ok(Some(CallPlan {
            alone: span(free.seconds),
            besides: span(besides.min(free.seconds)),
            bytes: Bytes(bytes.round() as u64),
            coflows: self.group_coflows(net, (collective, &decision, asked.said.bytes), piece, groups)?,
        }))
    }

    /// The coflows of a collective of all these groups: one for each channel of each.
    fn group_coflows(
        &mut self,
        net: &Interconnect,
        (collective, decision, bytes): (Collective, &Decision, Bytes),
        piece: f64,
        groups: &[Group],
    ) -> Result<Vec<Coflow>, NoPrice> {
        let mut coflows = Vec::new();
        for group in groups {
            let shares = traffic::shares(collective, decision, bytes, group.size());
            let style = (collective, decision.algorithm, decision.protocol, shares);
            let caller = self.caller(group, style, decision)?;
            let mut channels: BTreeMap<u32, Vec<(Way, f64)>> = BTreeMap::new();
            for hop in caller.hops.iter() {
                if let Some(way) = way(hop, &|rank: u32| caller.places[rank as usize]) {
                    channels.entry(hop.channel).or_default().push((way, hop.share));
                }
            }
            coflows.extend(channels.into_values().map(|ways| self.coflow(net, piece, &ways)));
        }
        Ok(coflows)
    }

    fn exchange_plan(
        &mut self,
        net: &Interconnect,
        asked: &Asked<'_>,
        groups: &[Group],
    ) -> Result<Option<CallPlan>, NoPrice> {
        let shape = self.slowest(asked, Collective::AllToAll)?;
        if shape.nodes < 2 || !shape.looks.is_empty() {
            return Ok(None);
        }
        let decision = self.choose(&shape, Collective::AllToAll, asked.said)?;
        let found = self.load(&shape, asked.group, Collective::AllToAll, &decision, asked.said)?;
        let Some(load) = found else { return Ok(None) };
        let bytes = asked.said.bytes.as_u64() as f64 * asked.load;
        let messages = Messages {
            latency: (message_latency(true) + load.extra_delay).max(0.0),
            inside: self.over_nvlink(&shape, bytes),
            bytes,
        };
        let coflows =
            self.group_coflows(net, (Collective::AllToAll, &decision, asked.said.bytes), PIECE, groups)?;
        Ok(Some(messages.plan(coflows)))
    }

    fn messages(
        &mut self,
        net: &Interconnect,
        pair: [Rank; 2],
        pairs: &[[Rank; 2]],
        bytes: Bytes,
    ) -> Result<Option<CallPlan>, NoPrice> {
        let Some(load) = self.message_load(pair)? else { return Ok(None) };
        let transports = self.transports();
        let mut coflows = Vec::new();
        for [from, to] in pairs {
            let ((node, gpu), (other, other_gpu)) = (self.place(*from)?, self.place(*to)?);
            let ends = ends(self.cluster, &transports, (from.0, node, gpu), (to.0, other, other_gpu));
            if let Some((out, into)) = ends.filter(|_| node != other) {
                coflows.push(self.coflow(net, PIECE, &[(Way::Send(out, into), 1.0)]));
            }
        }
        if coflows.is_empty() {
            return Ok(None);
        }
        let latency = (message_latency(true) + load.extra_delay).max(0.0);
        Ok(Some(Messages { latency, inside: 0.0, bytes: bytes.as_u64() as f64 }.plan(coflows)))
    }

    /// Every rank of the groups exchanges data with all servers, each over the NIC of its own number at either end.
    fn server_plan(
        &mut self,
        net: &Interconnect,
        asked: &Asked<'_>,
        groups: &[Group],
        (ports, rate, gdr): (&[std::ops::Range<u32>], Option<Rate>, bool),
    ) -> Result<Option<CallPlan>, NoPrice> {
        let sends = asked.said.what != What::Pull;
        let Some(load) = self.server_load(ports, rate, gdr, sends)? else { return Ok(None) };
        let transports = self.transports();
        let share = 1.0 / ports.len() as f64;
        let mut coflows = Vec::new();
        for rank in groups.iter().flat_map(Group::ranks) {
            let (node, gpu) = self.place(rank)?;
            let nic = transports.nic_beside(rank.0).unwrap_or(0);
            let ways = ports.iter().map(|server| {
                let far = server.start + nic % (server.end - server.start).max(1);
                let end = super::super::interconnect::HopEnd { node, gpu: Some(gpu), nic, relay: None, gdr };
                (Way::Exchange { end, far, sends }, share)
            });
            let ways: Vec<(Way, f64)> = ways.collect();
            let mut coflow = self.coflow(net, PIECE, &ways);
            if let Some(rate) = rate {
                let servers = ports.iter().map(|server| Resource::Server { port: server.start, rate });
                coflow.uses.extend(servers.map(|server| (server, share)));
            }
            coflows.push(coflow);
        }
        let latency = (message_latency(true) + load.extra_delay).max(0.0);
        let bytes = asked.said.bytes.as_u64() as f64;
        Ok(Some(Messages { latency, inside: 0.0, bytes }.plan(coflows)))
    }

    /// Connections that run at one rate, each for a share of the bytes.
    fn coflow(&mut self, net: &Interconnect, piece: f64, ways: &[(Way, f64)]) -> Coflow {
        let mut paths = std::mem::take(&mut self.host_paths);
        let kind_of = |node: u32| self.kind_of(node);
        let (cluster, mut coflow) = (self.cluster, Coflow::default());
        let mut known = Ways { net, cluster, paths: &mut paths, kind_of: &kind_of };
        for (way, share) in ways {
            known.occupied(way, &mut |resource| {
                let share = match resource {
                    Resource::HostLink { .. } | Resource::Server { .. } => *share,
                    Resource::Path { .. } | Resource::Port { .. } => share * net.wire_factor(),
                    Resource::Cores { .. } => {
                        let seconds = share * core_seconds(net, piece);
                        coflow.seconds_min =
                            coflow.seconds_min.max(seconds / f64::from(net.queue_pairs.max(1)));
                        seconds
                    }
                };
                *coflow.uses.entry(resource).or_default() += share;
            });
        }
        self.host_paths = paths;
        coflow
    }
}

/// Seconds of a core of the kernel for each byte.
fn core_seconds(net: &Interconnect, piece: f64) -> f64 {
    match net.host_path {
        HostPath::Kernel(kernel) => {
            kernel.per_byte(net.mtu) + kernel.system_call.as_secs_f64() / piece.max(1.0)
        }
        HostPath::GpuDirect | HostPath::Bounce => 0.0,
    }
}

impl Messages {
    fn plan(self, coflows: Vec<Coflow>) -> CallPlan {
        CallPlan {
            alone: span(self.latency + self.inside),
            besides: span(self.latency),
            bytes: Bytes(self.bytes.round() as u64),
            coflows,
        }
    }
}
