//! A network: what it consists of, and what can be asked of it.

use std::net::Ipv4Addr;

use railnet_core::event::Sink;
use railnet_core::{Component, Rate, Time};
use railnet_nic::memory::Segments;
use railnet_nic::{CompletionQueue, Context, Nic};
use railnet_topology::{FabricGraph, Routes, Vertex};
use railnet_wire::Gid;

use crate::engine::calendar::COMPONENTS_MAX;
use crate::engine::run::LARGE;
use crate::engine::scheduler::Scheduler;
use crate::model::aggregation::{Aggregation, extended, reducer};
use crate::model::channel::ChannelCounters;
use crate::model::config::{Framing, SwitchConfig};
use crate::model::fabric::Fabric;
use crate::model::host::{Endpoints, Host};
use crate::model::topology::{Topology, component};
use crate::observe::Observers;

/// Hosts and switches, the packets between them, and the events that move them.
#[derive(Debug)]
pub struct Network<S> {
    /// The present.
    pub now: Time,
    /// The memory of all hosts.
    pub memory: Segments,
    /// Where events go.
    pub sink: S,
    pub(crate) topology: Topology,
    pub(crate) fabric: Fabric,
    pub(crate) endpoints: Endpoints,
    pub(crate) scheduler: Scheduler,
    pub(crate) observers: Observers,
    pub(crate) aggregation: Option<Box<Aggregation>>,
}

/// The address of a host.
pub fn host_gid(host: u32) -> Gid {
    let [_, b, c, d] = (host + 1).to_be_bytes();
    Gid::from_ipv4(Ipv4Addr::new(10, b, c, d))
}

/// The host of an address that [`host_gid`] made.
pub(crate) fn host_of(gid: Gid) -> u32 {
    let bytes = gid.0;
    u32::from_be_bytes([0, bytes[13], bytes[14], bytes[15]]).wrapping_sub(1)
}

impl<S: Sink> Network<S> {
    /// A network of this shape. `nic` makes the NIC of each host; its address must be [`host_gid`].
    pub fn new(
        graph: &FabricGraph,
        routes: Routes,
        config: SwitchConfig,
        framing: Framing,
        seed: u64,
        sink: S,
        nic: impl FnMut(u32) -> Nic,
    ) -> Self {
        let host_count = graph.hosts.len() as u32;
        let (graph, routes) = match &config.aggregation {
            None => (graph.clone(), routes),
            Some(aggregation) => {
                let graph = extended(graph, aggregation);
                let routes = Routes::minimal(&graph, &[]);
                (graph, routes)
            }
        };
        // Two more for the application.
        let components = graph.hosts.len() + graph.switches.len() + 2;
        assert!(components <= COMPONENTS_MAX, "a network has at most {COMPONENTS_MAX} nodes");
        let aggregation = config.aggregation.clone();
        let topology = Topology::new(graph, routes, config.routing, host_count, seed);
        let (fabric, egress) = Fabric::new(&topology.graph, config, framing, host_count, seed, S::DETAIL);
        let mut hosts = hosts(&topology, &egress, nic);
        let aggregation =
            aggregation.map(|config| Box::new(Aggregation::new(config, &mut hosts[host_count as usize..])));
        let ports_max = fabric.switches.iter().map(|switch| switch.ports.len()).max().unwrap_or(0);
        let mut network = Self {
            now: Time::ZERO,
            memory: Segments::new(),
            sink,
            scheduler: Scheduler::new(components, ports_max),
            observers: Observers::new(if S::DETAIL { fabric.channels.len() } else { 0 }),
            topology,
            fabric,
            endpoints: Endpoints::new(hosts),
            aggregation,
        };
        if host_count >= LARGE {
            network.use_epochs();
        }
        network
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> u32 {
        self.topology.host_count
    }

    /// The rate of a host's port, without faults.
    pub fn port_rate(&self, host: u32) -> Rate {
        self.fabric.channels[self.endpoints.hosts[host as usize].egress as usize].full_rate()
    }

    /// Its shape. A switch that reduces has a host of its own in it, after all others, for its NIC.
    pub fn graph(&self) -> &FabricGraph {
        &self.topology.graph
    }

    /// The component of a host or switch: hosts first, then switches. The NICs of switches that reduce come last, so that
    /// they change no other number.
    pub fn component(&self, vertex: Vertex) -> Component {
        self.topology.component(vertex)
    }

    /// What packets look like on links.
    pub fn framing(&self) -> railnet_wire::Framing {
        self.fabric.framing.kind
    }

    /// The component of the network as a whole: link failures and changes of routes are its events.
    pub fn environment(&self) -> Component {
        self.topology.environment()
    }

    /// The NIC of a host, with what to lend to its calls. [`Network::kick`] afterwards.
    pub fn nic(&mut self, host: u32) -> (&mut Nic, Context<'_, Segments, S>) {
        let nic = &mut self.endpoints.hosts[host as usize].nic;
        (nic, Context::new(self.now, &mut self.memory, &mut self.sink))
    }

    /// The application hears of completions on this queue of a host.
    pub fn watch(&mut self, host: u32, queue: CompletionQueue) {
        self.endpoints.hosts[host as usize].watched = Some(queue);
    }

    /// Events run so far.
    pub fn events(&self) -> u64 {
        self.scheduler.events
    }

    /// Packets under way.
    pub fn packets_in_flight(&self) -> usize {
        self.fabric.packets.in_use()
    }

    /// Both directions of every link, with their counters: (from, to, rate without faults, counters).
    pub fn channels(&self) -> impl Iterator<Item = (Vertex, Vertex, Rate, &ChannelCounters)> {
        let channels = self.fabric.channels.iter();
        channels.map(|channel| (channel.from, channel.to, channel.full_rate(), &channel.counters))
    }

    /// Its sink, where the process is about to end. Hosts and packets are left to the kernel, which takes a gigabyte back at
    /// once: to free a million queue pairs one by one takes half a second.
    pub fn into_sink_at_exit(self) -> S {
        let Self { sink, endpoints, fabric, .. } = self;
        std::mem::forget((endpoints, fabric));
        sink
    }

    /// Data packets times channels they went over.
    pub fn packet_hops(&self) -> u64 {
        self.fabric.channels.iter().map(|channel| channel.counters.data_packets).sum()
    }
}

/// The NICs of hosts, which `nic` makes, then those of switches that reduce.
fn hosts(topology: &Topology, egress: &[u32], mut nic: impl FnMut(u32) -> Nic) -> Vec<Host> {
    let Topology { graph, host_count, .. } = topology;
    let mut hosts: Vec<_> =
        (0..*host_count).map(|index| Host::new(nic(index), egress[index as usize])).collect();
    for index in *host_count..graph.hosts.len() as u32 {
        let ports = graph.neighbours(Vertex::Switch(index - host_count));
        let lines = ports
            .iter()
            .filter(|port| !matches!(port.peer.vertex, Vertex::Host(host) if host >= *host_count));
        let line = lines.map(|port| graph.links[port.link as usize].rate).max().unwrap_or(Rate::gbps(100));
        let component = component(Vertex::Host(index), topology.nodes());
        let nic = reducer(hosts[0].nic.config(), component, index, line);
        hosts.push(Host::new(nic, egress[index as usize]));
    }
    hosts
}
