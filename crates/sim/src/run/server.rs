//! From the description of a server to the paths on which its data moves: GPU to NIC and back, GPU to GPU.

use std::collections::BTreeMap;

use railnet_core::Span;
use railnet_core::event::Sink;
use railnet_fabric::{BusHop, BusPath, BusResource, Network};
use railnet_topology::host::{DeviceId, DeviceKind, Host, PathType};
use railnet_topology::{Cluster, Places};

use super::server_ranks::GpuBus;
use crate::scenario::{ClusterSection, TransportName};

/// How long a slice takes to cross a bridge inside a server, besides its bytes: about what a PCIe switch adds.
const BRIDGE_DELAY: Span = Span::from_ns(150);

/// The paths of one endpoint. Where the kernel carries data there is one for each core.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointPaths {
    /// The port of the fabric that it uses.
    pub(super) port: u32,
    /// From its memory to its NIC; empty where nothing lies between.
    pub(super) out: Vec<BusPath>,
    /// From its NIC to its memory.
    pub(super) into: Vec<BusPath>,
}

/// An endpoint, a NIC, the endpoint that helps, and whether data goes without a copy.
type NicPaths = (u32, u32, Option<u32>, bool);

/// All servers, with a bus resource for each direction of each link in them, and for each core that serves a port.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) section: ClusterSection,
    /// What the servers are, where that is said.
    pub(super) cluster: Option<Cluster>,
    /// Lanes of the links of each server: `[server][link][direction]`.
    pub(super) links: Vec<Vec<[BusResource; 2]>>,
    /// The paths between the GPUs of one server, made when first used.
    local: BTreeMap<(u32, u32), BusPath>,
    pub(super) endpoints: Vec<EndpointPaths>,
    /// Where endpoints are.
    pub(super) ends: Places,
    /// Where ports are.
    pub(super) ports: Places,
    /// The bus resources of GPUs, made when first used.
    pub(super) gpus: BTreeMap<u32, GpuBus>,
    /// The paths between an endpoint and a NIC, by the endpoint that helps and whether it goes without a copy.
    pub(super) to_nics: BTreeMap<NicPaths, (Vec<BusPath>, Vec<BusPath>)>,
    /// What some servers give and take at most, whatever their NICs carry.
    pub(super) limits: BTreeMap<u32, [BusHop; 2]>,
    /// The cores that serve each port for the kernel, sending and receiving.
    cores: BTreeMap<u32, Vec<[BusResource; 2]>>,
    /// Connections of collectives that each port sends or receives for.
    connections: BTreeMap<(u32, bool), u32>,
    /// What to call each lane in reports.
    pub(super) names: Vec<(String, BusResource)>,
}

impl Servers {
    /// The servers behind so many ports: each port is one where nothing is said of them.
    pub(super) fn new<S: Sink>(
        network: &mut Network<S>,
        section: &ClusterSection,
        cluster: Option<Cluster>,
        ports: u32,
    ) -> Self {
        let [ends, ports] = match &cluster {
            Some(cluster) => [cluster.ends().clone(), cluster.ports().clone()],
            None => [Places::even(ports, 1), Places::even(ports, 1)],
        };
        let (servers, endpoints) = (ports.nodes(), ends.total());
        let mut this = Self {
            section: section.clone(),
            cluster,
            links: Vec::new(),
            local: BTreeMap::new(),
            endpoints: Vec::new(),
            ends,
            ports,
            gpus: BTreeMap::new(),
            to_nics: BTreeMap::new(),
            limits: BTreeMap::new(),
            cores: BTreeMap::new(),
            connections: BTreeMap::new(),
            names: Vec::new(),
        };
        for server in 0..servers {
            this.add_bus(network, server);
        }
        for endpoint in 0..endpoints {
            let paths = this.endpoint_paths(network, endpoint);
            this.endpoints.push(paths);
        }
        this
    }

    /// What a server is.
    pub(super) fn host_at(&self, server: u32) -> Option<&Host> {
        self.cluster.as_ref().map(|cluster| cluster.host_of(server))
    }

    /// Which server an endpoint is part of.
    pub(super) fn server_of(&self, endpoint: u32) -> u32 {
        self.ends.node_of(endpoint)
    }

    /// The links of a GPU, in both directions.
    pub(super) fn bus_of(&self, gpu: u32) -> Vec<BusResource> {
        let (server, local) = self.ends.place(gpu);
        let Some(host) = self.host_at(server) else { return Vec::new() };
        let Some(device) = host.gpus().get(local as usize).copied() else {
            return Vec::new();
        };
        let resources = &self.links[server as usize];
        let of_gpu = host.links.iter().zip(resources).filter(|(link, _)| link.ends.contains(&device));
        of_gpu.flat_map(|(_, resources)| *resources).collect()
    }

    /// A link inside a server, in both directions.
    pub(super) fn bus_inside(&self, server: u32, link: u32) -> [BusResource; 2] {
        self.links[server as usize][link as usize]
    }

    fn add_bus<S: Sink>(&mut self, network: &mut Network<S>, server: u32) {
        let port = self.ports.range(server).start;
        let mut resources = Vec::new();
        let host = self.cluster.as_ref().map(|cluster| cluster.host_of(server));
        for link in host.iter().flat_map(|host| &host.links) {
            let pair = [0, 1].map(|near: usize| {
                let resource = network.add_bus_resource(port);
                let name = |end: usize| host.map_or("", |host| &host.device(link.ends[end]).name);
                self.names.push((format!("server{server} {} → {}", name(near), name(1 - near)), resource));
                resource
            });
            resources.push(pair);
        }
        self.links.push(resources);
    }

    fn endpoint_paths<S: Sink>(&mut self, network: &mut Network<S>, endpoint: u32) -> EndpointPaths {
        let (server, local) = self.ends.place(endpoint);
        let Some(host) = self.host_at(server).cloned() else {
            let (out, into) =
                self.add_paths(network, endpoint, [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
            return EndpointPaths { port: endpoint, out, into };
        };
        let (gpus, nics) = (host.gpus(), host.compute_nics());
        let gpu = gpus.get(local as usize).copied();
        let nic = match gpu {
            Some(gpu) => {
                // GPUs that are as near to the same NICs share them out.
                let near = host.nearest_nics(gpu);
                let rank = gpus.iter().take_while(|other| **other != gpu);
                let before = rank.filter(|other| host.nearest_nics(**other) == near).count();
                near[before % near.len()]
            }
            None => nics[local as usize],
        };
        let place = nics.iter().position(|other| *other == nic).unwrap_or_default() as u32;
        let port = self.ports.range(server).start + place;
        // Memory of the host that is nearest to the NIC: where copies go through, and the kernel's buffers are.
        let cpu = host.numa_of(nic).and_then(|numa| host.cpus().get(numa as usize).copied());
        let [mut first, mut second] = [Vec::new(), Vec::new()];
        let [mut third, mut fourth] = [Vec::new(), Vec::new()];
        let through_host = !self.section.gpudirect || self.section.transport() == TransportName::Tcp;
        match (gpu, cpu) {
            (Some(gpu), Some(cpu)) if through_host => {
                first = self.copy(server, &host, gpu, cpu);
                second = self.hops(server, &host, cpu, nic);
                third = self.hops(server, &host, nic, cpu);
                fourth = self.copy(server, &host, cpu, gpu);
            }
            (Some(gpu), _) => {
                second = self.hops(server, &host, gpu, nic);
                third = self.hops(server, &host, nic, gpu);
            }
            (None, Some(cpu)) => {
                second = self.hops(server, &host, cpu, nic);
                third = self.hops(server, &host, nic, cpu);
            }
            (None, None) => {}
        }
        let (out, into) = self.add_paths(network, port, [first, second], [third, fourth]);
        EndpointPaths { port, out, into }
    }

    /// The paths out and in, with the kernel's work between their parts where it carries the data.
    pub(super) fn add_paths<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        port: u32,
        out: [Vec<BusHop>; 2],
        into: [Vec<BusHop>; 2],
    ) -> (Vec<BusPath>, Vec<BusPath>) {
        let rate = network.port_rate(port);
        let mut paths = [Vec::new(), Vec::new()];
        if self.section.transport() == TransportName::Rdma {
            let [out, into] = [out, into].map(|[before, after]| joined(before, after));
            if !out.is_empty() {
                paths[0].push(network.add_bus_path_to_port(out, rate));
            }
            if !into.is_empty() {
                paths[1].push(network.add_bus_path_from_port(into, rate));
            }
            let [out, into] = paths;
            return (out, into);
        }
        let tcp = self.section.tcp.clone();
        let cores = self.cores_of(network, port);
        for core in cores {
            for (side, (parts, paths)) in [&out, &into].into_iter().zip(&mut paths).enumerate() {
                let [before, after] = parts;
                let resource = core[side];
                let mut hops = before.clone();
                let mut work = BusHop {
                    resource,
                    fixed: tcp.system_call.0,
                    per_packet: tcp.per_packet.0,
                    rate: Some(tcp.copy.0),
                    times: 1,
                    delay: Span::ZERO,
                    waits: true,
                };
                if side == 1 {
                    // The interrupt comes first. It keeps the core from nothing but this slice: others are dealt with
                    // in the same go.
                    match hops.last_mut() {
                        Some(last) => last.delay += tcp.interrupt.0,
                        None => work.delay += tcp.interrupt.0,
                    }
                }
                hops.push(work);
                let hops = joined(hops, after.clone());
                paths.push(match side {
                    0 => network.add_bus_path_to_port(hops, rate),
                    _ => network.add_bus_path_from_port(hops, rate),
                });
            }
        }
        let [out, into] = paths;
        (out, into)
    }

    /// The cores that serve a port for the kernel, sending and receiving; made when first used.
    fn cores_of<S: Sink>(&mut self, network: &mut Network<S>, port: u32) -> Vec<[BusResource; 2]> {
        if let Some(cores) = self.cores.get(&port) {
            return cores.clone();
        }
        let cores: Vec<[BusResource; 2]> = (0..self.section.tcp.cores)
            .map(|core| {
                ["sends", "receives"].map(|what| {
                    let resource = network.add_bus_resource(port);
                    self.names.push((format!("port{port} core {core} {what}"), resource));
                    resource
                })
            })
            .collect();
        self.cores.insert(port, cores.clone());
        cores
    }

    /// The way of the next connection of a port, sending or receiving: connections take the port's cores in turn.
    pub(super) fn next_path(&mut self, port: u32, sends: bool, paths: &[BusPath]) -> Option<BusPath> {
        let count = self.connections.entry((port, sends)).or_default();
        let path = paths.get(*count as usize % paths.len().max(1)).copied();
        *count += 1;
        path
    }

    /// The way between two endpoints of one server.
    pub(super) fn local_path<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        from: u32,
        to: u32,
    ) -> Option<BusPath> {
        if let Some(path) = self.local.get(&(from, to)) {
            return Some(*path);
        }
        let host = self.host_at(self.server_of(from)).cloned()?;
        let device = |endpoint: u32| {
            let local = self.ends.place(endpoint).1 as usize;
            let devices = if host.gpus().is_empty() { host.compute_nics() } else { host.gpus() };
            devices.get(local).copied()
        };
        let (a, b) = (device(from)?, device(to)?);
        // A kernel on the GPU moves it: nothing has to be started for each slice.
        let hops = self.hops(self.server_of(from), &host, a, b);
        if hops.is_empty() {
            return None;
        }
        let path = network.add_bus_path(hops);
        self.local.insert((from, to), path);
        Some(path)
    }

    /// The hops of a copy that someone has to start. That takes time but keeps no link from work.
    pub(super) fn copy(&self, server: u32, host: &Host, a: DeviceId, b: DeviceId) -> Vec<BusHop> {
        let mut hops = self.hops(server, host, a, b);
        if let Some(first) = hops.first_mut() {
            first.delay += self.section.copy_start.0;
        }
        hops
    }

    /// The links from one device to another, as hops.
    pub(super) fn hops(&self, server: u32, host: &Host, a: DeviceId, b: DeviceId) -> Vec<BusHop> {
        let path = host.path(a, b);
        if path.kind == PathType::Dis {
            return Vec::new();
        }
        let resources = &self.links[server as usize];
        let steps = path.devices.windows(2);
        steps
            .filter_map(|step| {
                let joins = |link: &railnet_topology::host::HostLink| {
                    link.ends == [step[0], step[1]] || link.ends == [step[1], step[0]]
                };
                let links = host.links.iter().enumerate().filter(|(_, link)| joins(link));
                let (index, link) = links.max_by_key(|(_, link)| link.bandwidth)?;
                let direction = usize::from(link.ends[0] != step[0]);
                let crosses =
                    !matches!(host.device(step[1]).kind, DeviceKind::Gpu { .. } | DeviceKind::Nic { .. });
                let delay = if crosses { BRIDGE_DELAY } else { Span::ZERO };
                Some(BusHop::moves(resources[index][direction], link.bandwidth, delay))
            })
            .collect()
    }
}

/// One part of a way after the other. Between them somebody has to hear that the slice is in the memory of the host.
fn joined(mut before: Vec<BusHop>, mut after: Vec<BusHop>) -> Vec<BusHop> {
    if let Some(first) = after.first_mut() {
        first.waits = !before.is_empty();
    }
    before.append(&mut after);
    before
}
