//! What came of a run.

use railnet_core::event::Sink;
use railnet_core::{Rate, Time};
use railnet_fabric::{ChannelCounters, Network};
use railnet_topology::Vertex;

use super::collective::{CollectiveResult, Collectives, TransferResult};
use super::inside::LaneResult;
use super::runner::Runner;
use super::series::Series;
use crate::scenario::Fidelity;
use crate::traffic::Flow;

/// A flow and when it was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowResult {
    /// The flow.
    pub flow: Flow,
    /// When its first message was posted.
    pub started: Time,
    /// When its last byte had arrived.
    pub finished: Time,
}

/// One direction of a link and what it counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkResult {
    /// The sending end.
    pub from: String,
    /// The receiving end.
    pub to: String,
    /// Its rate.
    pub rate: Rate,
    /// What it counted.
    pub counters: ChannelCounters,
    /// Bytes that waited in front of it when the run ended.
    pub queued: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether packets were simulated. At flow fidelity none was: what counts packets in switches and NICs, events and queues is 0, and
    /// means nothing.
    pub fidelity: Fidelity,
    /// What carried the packets: without IP none could be marked, and InfiniBand links know no pauses.
    pub framing: railnet_wire::Framing,
    /// The flows, as the scenario lists them.
    pub flows: Vec<FlowResult>,
    /// Flows that had started when a run failed or was stopped, and had not finished; empty otherwise.
    pub open_flows: Vec<FlowResult>,
    /// Both directions of every link.
    pub links: Vec<LinkResult>,
    /// When the last flow had finished.
    pub completion: Time,
    /// Data packets times links they went over.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Packets sent again by the NICs.
    pub resent: u64,
    /// Acknowledgement timeouts.
    pub timeouts: u64,
    /// Congestion notifications sent.
    pub notifications: u64,
    /// Hosts and switches.
    pub size: (usize, usize),
    /// What ranks did together, in the order of the scenario.
    pub collectives: Vec<CollectiveResult>,
    /// What came of transfers, by send and receive and by put.
    pub transfers: Vec<TransferResult>,
    /// What moved inside the servers; empty where the scenario has none.
    pub lanes: Vec<LaneResult>,
    /// What was seen over time, where that was asked for.
    pub series: Option<Series>,
}

pub(super) fn outcome<S: Sink>(
    network: &mut Network<S>,
    runner: Runner,
    collectives: Option<Collectives>,
    series: Option<Series>,
) -> Outcome {
    let graph = network.graph();
    let name = |vertex: Vertex| graph.name(vertex).to_owned();
    let size = (network.host_count() as usize, graph.switches.len());
    let links = network
        .channels()
        .zip(network.samples())
        .map(|((from, to, rate, counters), now)| LinkResult {
            from: name(from),
            to: name(to),
            rate,
            // A run that fails or is stopped may end while a pause holds.
            counters: ChannelCounters { paused_ps: now.paused_ps, ..*counters },
            queued: now.queued,
        })
        .collect();
    let lanes = runner.inside.as_ref().map_or_else(Vec::new, |inside| inside.lanes(network));
    let ended = collectives.as_ref().map_or(Time::ZERO, |collectives| collectives.finished);
    let completion = runner.finished.iter().copied().max().unwrap_or(Time::ZERO).max(ended);
    let (collectives, mut transfers) =
        collectives.map_or_else(Default::default, |all| (all.results, all.transfers.results));
    transfers.sort_by_key(|one| (one.section, one.is_put));
    let times = runner.started.into_iter().zip(runner.finished);
    let flows = runner
        .flows
        .into_iter()
        .zip(times)
        .map(|(flow, (started, finished))| FlowResult { flow, started, finished })
        .collect();
    let (mut resent, mut timeouts, mut notifications) = (0, 0, 0);
    for host in 0..network.host_count() {
        let (nic, _) = network.nic(host);
        let counters = nic.counters();
        resent += counters.resent;
        timeouts += counters.timeouts;
        notifications += counters.notifications_sent;
    }
    let (packet_hops, events, framing) = (network.packet_hops(), network.events(), network.framing());
    Outcome {
        fidelity: Fidelity::Packet,
        framing,
        flows,
        open_flows: Vec::new(),
        links,
        completion,
        packet_hops,
        events,
        resent,
        timeouts,
        notifications,
        size,
        collectives,
        transfers,
        lanes,
        series,
    }
}
