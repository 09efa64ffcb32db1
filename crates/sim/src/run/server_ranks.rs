//! What collectives want of servers: memory of GPUs, paths between them, to switches that reduce, and to any NIC.

use railnet_core::event::Sink;
use railnet_core::{Rate, Span};
use railnet_fabric::{BusHop, BusPath, BusResource, Network};
use railnet_topology::host::{DeviceId, DeviceKind, Host};

use super::server::Servers;
use crate::scenario::TransportName;

/// What of a GPU takes time.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuBus {
    /// The host of the network that its bus resources belong to.
    pub(super) host: u32,
    /// Its memory.
    pub(super) memory: BusResource,
    /// How fast that is.
    pub(super) bandwidth: Rate,
    /// Its threads where they send LL's lines.
    pub(super) lines: BusResource,
}

impl Servers {
    /// The usual server, where one is described.
    pub(super) fn host(&self) -> Option<&Host> {
        self.cluster.as_ref().map(|cluster| &cluster.host)
    }

    /// All servers, where they are described.
    pub(super) fn cluster(&self) -> Option<&railnet_topology::Cluster> {
        self.cluster.as_ref()
    }

    /// The server that an endpoint is part of, where it is described.
    fn host_around(&self, endpoint: u32) -> Option<&Host> {
        self.host_at(self.server_of(endpoint))
    }

    /// The server of an endpoint, and which of its endpoints it is.
    pub(super) fn place_of(&self, endpoint: u32) -> (u32, u32) {
        self.ends.place(endpoint)
    }

    fn gpu(&self, endpoint: u32) -> Option<DeviceId> {
        let host = self.host_around(endpoint)?;
        host.gpus().get(self.ends.place(endpoint).1 as usize).copied()
    }

    /// The bus resources of a GPU, where there is one.
    pub(super) fn gpu_bus<S: Sink>(&mut self, network: &mut Network<S>, endpoint: u32) -> Option<GpuBus> {
        let gpu = self.gpu(endpoint)?;
        let DeviceKind::Gpu { memory_bandwidth, .. } = self.host_around(endpoint)?.device(gpu).kind else {
            return None;
        };
        if let Some(bus) = self.gpus.get(&endpoint) {
            return Some(*bus);
        }
        let server = self.server_of(endpoint);
        let host = self.ports.range(server).start;
        let name = format!("server{server} {}", self.host_around(endpoint)?.device(gpu).name);
        let [memory, lines] = ["memory", "lines of LL"].map(|what| {
            let resource = network.add_bus_resource(host);
            self.names.push((format!("{name} {what}"), resource));
            resource
        });
        let bus = GpuBus { host, memory, bandwidth: memory_bandwidth, lines };
        self.gpus.insert(endpoint, bus);
        Some(bus)
    }

    /// A server gives no more than this, and takes no more: what it keeps the data in is as fast as that.
    pub(super) fn limit<S: Sink>(&mut self, network: &mut Network<S>, server: u32, rate: Rate) {
        let port = self.ports.range(server).start;
        let hops = ["gives", "takes"].map(|what| {
            let resource = network.add_bus_resource(port);
            self.names.push((format!("server{server} {what}"), resource));
            BusHop::moves(resource, rate, Span::ZERO)
        });
        self.limits.insert(server, hops);
    }

    /// From one GPU of a server to another.
    pub(super) fn hops_between(&self, from: u32, to: u32) -> Vec<BusHop> {
        let (Some(host), Some(a), Some(b)) = (self.host_around(from), self.gpu(from), self.gpu(to)) else {
            return Vec::new();
        };
        self.hops(self.server_of(from), host, a, b)
    }

    /// From one GPU of a server to another, by memory of the host that is nearest to the first.
    pub(super) fn hops_through_host(&self, from: u32, to: u32) -> Vec<BusHop> {
        let (Some(host), Some(a), Some(b)) = (self.host_around(from), self.gpu(from), self.gpu(to)) else {
            return Vec::new();
        };
        let server = self.server_of(from);
        let cpus = host.cpus();
        let Some(cpu) = host.numa_of(a).and_then(|numa| cpus.get(numa as usize).copied()) else {
            return self.hops(server, host, a, b);
        };
        [self.hops(server, host, a, cpu), self.hops(server, host, cpu, b)].concat()
    }

    /// Between a GPU and the NVLink switch: up to it, or down from it. Reductions in the switch reach a part of what
    /// NVLink carries; NCCL has figures for it by generation of GPU (2.30.7, src/graph/tuning.cc: `nvlsEfficiency`).
    pub(super) fn hops_at_switch(&self, endpoint: u32, is_up: bool) -> Vec<BusHop> {
        let (Some(host), Some(gpu)) = (self.host_around(endpoint), self.gpu(endpoint)) else {
            return Vec::new();
        };
        let is_switch = |device: &DeviceId| matches!(host.device(*device).kind, DeviceKind::NvSwitch { .. });
        let bus = &self.links[self.server_of(endpoint) as usize];
        let capability = u32::from(host.compute_capability().unwrap_or_default());
        let constants = &railnet_coll::tuner::Constants::NCCL;
        let generation = railnet_coll::tuner::Constants::generation(capability);
        let percent = (constants.nvls_efficiency[generation] * 100.0) as u64;
        let found = host.links.iter().zip(bus).find_map(|(link, bus)| {
            let far = link.ends.iter().find(|end| is_switch(end))?;
            link.ends.contains(&gpu).then(|| {
                let direction = usize::from((link.ends[1] == *far) != is_up);
                let rate = Rate::from_bps(link.bandwidth.as_bps() / 100 * percent.max(1));
                BusHop::moves(bus[direction], rate, railnet_core::Span::ZERO)
            })
        });
        found.into_iter().collect()
    }

    /// From the memory of a GPU to a NIC of its server, by the GPU that helps where one does: the port, and the paths, one
    /// for each core where the kernel carries data.
    pub(super) fn out_paths<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        endpoint: u32,
        nic: u32,
        relay: Option<u32>,
        gdr: bool,
    ) -> (u32, Vec<BusPath>) {
        let (port, paths) = self.paths(network, endpoint, nic, relay, gdr);
        (port, paths.0)
    }

    /// From a NIC of a server to the memory of a GPU.
    pub(super) fn in_paths<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        endpoint: u32,
        nic: u32,
        gdr: bool,
    ) -> (u32, Vec<BusPath>) {
        let (port, paths) = self.paths(network, endpoint, nic, None, gdr);
        (port, paths.1)
    }

    fn paths<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        endpoint: u32,
        nic: u32,
        relay: Option<u32>,
        gdr: bool,
    ) -> (u32, (Vec<BusPath>, Vec<BusPath>)) {
        let (server, local) = self.ends.place(endpoint);
        let Some(host) = self.host_around(endpoint).cloned() else {
            return self.own_paths(endpoint);
        };
        let Some(gpu) = self.gpu(endpoint) else {
            return self.memory_paths(network, endpoint, &host, local);
        };
        let port = self.ports.range(server).start + nic % self.ports.count(server).max(1);
        let key = (endpoint, nic, relay, gdr);
        if let Some(known) = self.to_nics.get(&key) {
            return (port, known.clone());
        }
        let device = host.compute_nics()[nic as usize % host.compute_nics().len()];
        let cpu = host.numa_of(device).and_then(|numa| host.cpus().get(numa as usize).copied());
        let direct = gdr && self.section.gpudirect && self.section.transport() == TransportName::Rdma;
        let (mut out, mut into) = match (cpu, relay.and_then(|relay| self.gpu(relay))) {
            (Some(cpu), _) if !direct => (
                [self.copy(server, &host, gpu, cpu), self.hops(server, &host, cpu, device)],
                [self.hops(server, &host, device, cpu), self.copy(server, &host, cpu, gpu)],
            ),
            (_, Some(helper)) => {
                let first = self.hops(server, &host, gpu, helper);
                let second = self.hops(server, &host, helper, device);
                ([Vec::new(), [first, second].concat()], [Vec::new(), Vec::new()])
            }
            _ => (
                [Vec::new(), self.hops(server, &host, gpu, device)],
                [Vec::new(), self.hops(server, &host, device, gpu)],
            ),
        };
        if let Some([gives, takes]) = self.limits.get(&server) {
            out[0].insert(0, *gives);
            into[1].push(*takes);
        }
        let paths = self.add_paths(network, port, out, into);
        self.to_nics.insert(key, paths.clone());
        (port, paths)
    }

    /// The paths that an endpoint has by itself.
    fn own_paths(&self, endpoint: u32) -> (u32, (Vec<BusPath>, Vec<BusPath>)) {
        let paths = &self.endpoints[endpoint as usize];
        (paths.port, (paths.out.clone(), paths.into.clone()))
    }

    /// Between the memory of a server without GPUs and its NIC, with what the server gives and takes at most.
    fn memory_paths<S: Sink>(
        &mut self,
        network: &mut Network<S>,
        endpoint: u32,
        host: &Host,
        local: u32,
    ) -> (u32, (Vec<BusPath>, Vec<BusPath>)) {
        let server = self.server_of(endpoint);
        let Some([gives, takes]) = self.limits.get(&server).copied() else { return self.own_paths(endpoint) };
        let port = self.endpoints[endpoint as usize].port;
        let key = (endpoint, local, None, true);
        if let Some(known) = self.to_nics.get(&key) {
            return (port, known.clone());
        }
        let nic = host.compute_nics()[local as usize];
        let cpu = host.numa_of(nic).and_then(|numa| host.cpus().get(numa as usize).copied());
        let hops = |from: DeviceId, to: DeviceId| self.hops(server, host, from, to);
        let out = cpu.map_or_else(Vec::new, |cpu| hops(cpu, nic));
        let into = cpu.map_or_else(Vec::new, |cpu| hops(nic, cpu));
        let paths = self.add_paths(network, port, [vec![gives], out], [into, vec![takes]]);
        self.to_nics.insert(key, paths.clone());
        (port, paths)
    }
}
