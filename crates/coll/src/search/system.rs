//! A server as the search sees it: GPUs, NICs, and the ways between them link by link, after the rules for P2P,
//! GPUDirect and PXN have been applied (NCCL 2.30 graph/paths.cc).

use std::collections::BTreeMap;

use railnet_core::{Rate, Span};
use railnet_topology::host::{
    Architecture, DeviceId, DeviceKind, Host, HostLinkKind, Path, PathType, Processor, Vendor,
};

use super::policy;
use crate::options::TopologyOptions;

/// Megabytes per second: NCCL rounds to a thousandth of a GB/s too.
pub(super) type Megabytes = i64;

/// More than any link carries (NCCL's LOC_BW).
const LOCAL: Megabytes = 5_000_000;

/// A way from one place to another.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) kind: PathType,
    pub(super) bandwidth: Megabytes,
    pub(super) hops: Vec<Hop>,
    /// Whether it crosses an Intel CPU, which is slow at passing on what comes from PCIe.
    pub(super) crosses_intel: bool,
    /// The GPU to which data is handed on the way (PXN).
    pub(crate) relay: Option<usize>,
}

/// One direction of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    pub(super) edge: usize,
    pub(super) is_pci: bool,
    pub(super) ends_at_gpu: bool,
}

/// A NIC of the server.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) device: DeviceId,
    /// Its place among the NICs for traffic between GPUs.
    pub(crate) place: u32,
    pub(super) bandwidth: Megabytes,
    pub(super) latency: Span,
    /// The GPU that is to use it first.
    pub(crate) gpu: Option<usize>,
}

/// What the search works on.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(crate) gpus: Vec<DeviceId>,
    /// The NICs, where there are other nodes to reach.
    pub(crate) nics: Vec<Nic>,
    nics_near_gpu: Vec<Vec<usize>>,
    gpus_near_nic: Vec<Vec<usize>>,
    /// The NICs each GPU uses by itself, in the order of channels.
    pub(super) own_nics: Vec<Vec<usize>>,
    pub(super) has_switch: bool,
    /// Whether it is a rack of trays rather than one server.
    pub(super) has_trays: bool,
    pub(super) capability: u16,
    pub(super) processor: Option<Processor>,
    /// `[from][to]`.
    pub(crate) gpu_to_gpu: Vec<Vec<Route>>,
    pub(crate) gpu_to_nic: Vec<Vec<Route>>,
    pub(crate) nic_to_gpu: Vec<Vec<Route>>,
    pub(super) switch_to_gpu: Vec<Route>,
    pub(super) gpu_to_switch: Vec<Route>,
    /// One direction of the PCIe link of each GPU that has one; the other is that with its last bit flipped.
    pub(super) gpu_pci: Vec<Option<usize>>,
    /// What each direction of each link carries.
    pub(super) edges: Vec<Megabytes>,
    /// What the best path of a GPU carries: no channel has more.
    pub(super) most: Megabytes,
    /// What a GPU can send in all.
    pub(super) total: Megabytes,
}

impl System {
    /// One server, which is one of several where `is_inter`.
    pub(crate) fn new(host: &Host, is_inter: bool, options: &TopologyOptions) -> Self {
        let wires = Wires::new(host);
        let gpus = host.gpus();
        let trays = host.trays();
        let mut system = Self {
            nics_near_gpu: Vec::new(),
            gpus_near_nic: Vec::new(),
            own_nics: Vec::new(),
            nics: if is_inter { used_nics(host, options) } else { Vec::new() },
            has_switch: host.devices.iter().any(|device| is_switch(&device.kind)),
            has_trays: gpus.iter().any(|gpu| trays[gpu.0 as usize] != 0),
            capability: host.compute_capability().unwrap_or(0),
            processor: host.processor(),
            gpu_to_gpu: Vec::new(),
            gpu_to_nic: Vec::new(),
            nic_to_gpu: Vec::new(),
            switch_to_gpu: Vec::new(),
            gpu_to_switch: Vec::new(),
            gpu_pci: gpus.iter().map(|gpu| wires.pci_of(*gpu)).collect(),
            edges: wires.edges.clone(),
            most: 0,
            total: 0,
            gpus,
        };
        system.find_routes(host, &wires);
        system.divert_gpus(host, &wires, options);
        system.settle_nics();
        system.relay_and_divert_nics(host, &wires, options);
        system.settle_nics();
        system.own_nics = (0..system.gpus.len()).map(|gpu| system.find_own_nics(gpu)).collect();
        system.measure(host);
        system
    }

    /// The NIC a GPU uses on a channel: GPUs that are equally near to several share them out.
    pub(crate) fn local_nic(&self, gpu: usize, channel: usize) -> Option<usize> {
        let nics = &self.nics_near_gpu[gpu];
        let gpus = self.gpus_near_nic[*nics.first()?].len().max(1);
        let mut start = gpu % gpus;
        if nics.len().is_power_of_two() {
            start = mirrored(start, nics.len());
        }
        Some(nics[(start + channel % nics.len().div_ceil(gpus)) % nics.len()])
    }

    /// The NICs a GPU uses, in the order of channels.
    fn find_own_nics(&self, gpu: usize) -> Vec<usize> {
        let mut own = Vec::new();
        for channel in 0..TopologyOptions::CHANNELS_MAX as usize {
            match self.local_nic(gpu, channel) {
                Some(nic) if !own.contains(&nic) => own.push(nic),
                _ => break,
            }
        }
        own
    }

    /// The GPUs nearest to a NIC; none where it reaches none.
    pub(super) fn local_gpus(&self, nic: usize) -> &[usize] {
        &self.gpus_near_nic[nic]
    }

    pub(crate) fn has_nvlink(&self, gpu: usize) -> bool {
        let others = self.gpu_to_gpu[gpu].iter().enumerate().filter(|(peer, _)| *peer != gpu);
        self.gpus.len() == 1 || others.into_iter().any(|(_, route)| route.kind == PathType::Nvl)
    }

    /// Whether GPUs go through an AMD CPU, where changing the order of channels does not help.
    pub(super) fn is_amd(&self) -> bool {
        self.processor.is_some_and(|cpu| cpu.architecture == Architecture::X86 && cpu.vendor == Vendor::Amd)
    }

    fn find_routes(&mut self, host: &Host, wires: &Wires) {
        let switch = host.devices.iter().position(|device| is_switch(&device.kind));
        for gpu in self.gpus.clone() {
            let paths = host.paths_from(gpu);
            let to = |device: DeviceId| wires.route(host, &paths[device.0 as usize]);
            self.gpu_to_gpu.push(self.gpus.iter().map(|peer| to(*peer)).collect());
            self.gpu_to_nic.push(self.nics.iter().map(|nic| to(nic.device)).collect());
            self.gpu_to_switch.extend(switch.map(|switch| to(DeviceId(switch as u32))));
        }
        for nic in &self.nics {
            let paths = host.paths_from(nic.device);
            let to = |device: &DeviceId| wires.route(host, &paths[device.0 as usize]);
            self.nic_to_gpu.push(self.gpus.iter().map(to).collect());
        }
        if let Some(switch) = switch {
            let paths = host.paths_from(DeviceId(switch as u32));
            let to = |device: &DeviceId| wires.route(host, &paths[device.0 as usize]);
            self.switch_to_gpu = self.gpus.iter().map(to).collect();
        }
    }

    /// GPUs that may not use each other's memory go through that of the host, beside the receiver. Where they may not
    /// do that either, they have only the network.
    fn divert_gpus(&mut self, host: &Host, wires: &Wires, options: &TopologyOptions) {
        let level = policy::p2p_level(host, options);
        for to in 0..self.gpus.len() {
            let cpu = nearest_cpu(host, self.gpus[to]);
            for from in 0..self.gpus.len() {
                if from == to || self.gpu_to_gpu[from][to].kind <= level {
                    continue;
                }
                let route = cpu.map(|cpu| {
                    let first = wires.route(host, &host.path(self.gpus[from], cpu));
                    first.then(wires.route(host, &host.path(cpu, self.gpus[to])))
                });
                let mut route = route.unwrap_or_else(Route::none);
                if options.shm_disable {
                    route.kind = route.kind.max(PathType::Net);
                }
                self.gpu_to_gpu[from][to] = route;
            }
        }
    }

    /// A NIC that is nearer to another GPU is reached by way of it; one that may not use the memory of GPUs, by way of
    /// the host's.
    fn relay_and_divert_nics(&mut self, host: &Host, wires: &Wires, options: &TopologyOptions) {
        let level = policy::gdr_level(options);
        let trays = host.trays();
        let tray = |device: DeviceId| trays[device.0 as usize];
        for nic in 0..self.nics.len() {
            let device = self.nics[nic].device;
            let has_gdr = policy::nic_has_gdr(host, device, options);
            for gpu in 0..self.gpus.len() {
                if let Some(relay) = self.nics[nic].gpu.filter(|relay| *relay != gpu && !options.pxn_disable)
                {
                    let (near, own) = (&self.gpu_to_nic[relay][nic], &self.gpu_to_nic[gpu][nic]);
                    let reads = policy::gdr_reads(self.capability, self.has_nvlink(relay), options);
                    if near.kind <= PathType::P2c
                        && near.kind <= level
                        && has_gdr
                        && reads
                        && self.gpu_to_gpu[relay][gpu].kind <= PathType::Nvl
                        && tray(self.gpus[relay]) == tray(self.gpus[gpu])
                        && (near.bandwidth > own.bandwidth || own.kind > PathType::Pxn)
                    {
                        let mut route = self.gpu_to_gpu[gpu][relay].clone().then(near.clone());
                        route.kind = PathType::Pxn;
                        route.relay = Some(relay);
                        self.gpu_to_nic[gpu][nic] = route;
                    }
                }
                let distance = match self.gpu_to_nic[gpu][nic].relay {
                    Some(relay) => self.gpu_to_nic[relay][nic].kind,
                    None => self.gpu_to_nic[gpu][nic].kind,
                };
                if self.gpu_to_nic[gpu][nic].kind < PathType::Phb
                    && !(has_gdr && distance <= level)
                    && let Some(cpu) = nearest_cpu(host, self.gpus[gpu])
                {
                    let [to_cpu, from_cpu] = [(self.gpus[gpu], cpu), (cpu, self.gpus[gpu])]
                        .map(|(a, b)| wires.route(host, &host.path(a, b)));
                    let [out, into] =
                        [(cpu, device), (device, cpu)].map(|(a, b)| wires.route(host, &host.path(a, b)));
                    self.gpu_to_nic[gpu][nic] = to_cpu.then(out);
                    self.nic_to_gpu[nic][gpu] = into.then(from_cpu);
                }
            }
        }
    }

    /// The GPU that is to use each NIC first.
    fn settle_nics(&mut self) {
        self.nics_near_gpu = self.gpu_to_nic.iter().map(|routes| nearest(routes)).collect();
        self.gpus_near_nic = self.nic_to_gpu.iter().map(|routes| nearest(routes)).collect();
        for nic in 0..self.nics.len() {
            let gpus = self.local_gpus(nic);
            let uses = |gpu: usize, channel: usize| self.local_nic(gpu, channel) == Some(nic);
            let channels = 0..TopologyOptions::CHANNELS_MAX as usize;
            let first = channels.flat_map(|channel| gpus.iter().map(move |gpu| (*gpu, channel)));
            self.nics[nic].gpu =
                first.into_iter().find(|(gpu, channel)| uses(*gpu, *channel)).map(|(gpu, _)| gpu);
        }
    }

    fn measure(&mut self, host: &Host) {
        if self.nics.is_empty() && self.gpus.len() == 1 {
            (self.most, self.total) = (LOCAL, LOCAL);
            return;
        }
        let routes = if self.nics.is_empty() { &self.gpu_to_gpu } else { &self.gpu_to_nic };
        let used = routes.iter().flatten().filter(|route| !route.hops.is_empty());
        self.most = used.map(|route| route.bandwidth).max().unwrap_or(0);
        for gpu in &self.gpus {
            let (mut nvlink, mut pci) = (0, 0);
            for link in host.links.iter().filter(|link| link.ends.contains(gpu)) {
                match link.kind {
                    HostLinkKind::NvLink { .. } => nvlink += megabytes(link.bandwidth),
                    HostLinkKind::Pcie { .. } | HostLinkKind::RootPort { .. } => {
                        pci = megabytes(link.bandwidth);
                    }
                    HostLinkKind::C2c | HostLinkKind::Socket => {}
                }
            }
            self.total = self.total.max(nvlink).max(pci);
        }
    }
}

impl Route {
    fn none() -> Self {
        Self { kind: PathType::Dis, bandwidth: 0, hops: Vec::new(), crosses_intel: false, relay: None }
    }

    /// This way, then that.
    fn then(mut self, next: Self) -> Self {
        self.kind = self.kind.max(next.kind);
        self.bandwidth = self.bandwidth.min(next.bandwidth);
        self.hops.extend(next.hops);
        self.crosses_intel |= next.crosses_intel;
        self
    }
}

/// The links of a server, each direction by itself. A NIC has one more: the cable to the network.
struct Wires {
    edges: Vec<Megabytes>,
    /// The widest link that joins two devices, and whether it is PCIe.
    links: BTreeMap<(DeviceId, DeviceId), (usize, bool)>,
    cables: BTreeMap<DeviceId, usize>,
}

impl Wires {
    fn new(host: &Host) -> Self {
        let mut this = Self { edges: Vec::new(), links: BTreeMap::new(), cables: BTreeMap::new() };
        for link in &host.links {
            let [a, b] = link.ends;
            let is_pci = matches!(link.kind, HostLinkKind::Pcie { .. } | HostLinkKind::RootPort { .. });
            let rate = megabytes(link.bandwidth);
            for (from, to) in [(a, b), (b, a)] {
                let known = this.links.get(&(from, to)).map(|(edge, _)| this.edges[*edge]);
                if known.is_none_or(|known| known < rate) {
                    this.links.insert((from, to), (this.edges.len(), is_pci));
                }
                this.edges.push(rate);
            }
        }
        for nic in host.nics() {
            if let DeviceKind::Nic { rate, .. } = host.device(nic).kind {
                this.cables.insert(nic, this.edges.len());
                this.edges.extend([megabytes(rate); 2]);
            }
        }
        this
    }

    fn pci_of(&self, device: DeviceId) -> Option<usize> {
        let links = self.links.range((device, DeviceId(0))..=(device, DeviceId(u32::MAX)));
        links.filter(|(_, (_, is_pci))| *is_pci).map(|(_, (edge, _))| *edge).next()
    }

    /// A path as hops. One that begins or ends at a NIC includes its cable.
    fn route(&self, host: &Host, path: &Path) -> Route {
        let (Some(first), Some(last)) = (path.devices.first(), path.devices.last()) else {
            return Route::none();
        };
        let mut hops = Vec::new();
        if let Some(cable) = self.cables.get(first) {
            hops.push(Hop { edge: cable + 1, is_pci: false, ends_at_gpu: false });
        }
        for step in path.devices.windows(2) {
            let Some((edge, is_pci)) = self.links.get(&(step[0], step[1])) else { return Route::none() };
            let ends_at_gpu = matches!(host.device(step[1]).kind, DeviceKind::Gpu { .. });
            hops.push(Hop { edge: *edge, is_pci: *is_pci, ends_at_gpu });
        }
        if let Some(cable) = self.cables.get(last) {
            hops.push(Hop { edge: *cable, is_pci: false, ends_at_gpu: false });
        }
        let is_intel = |device: &DeviceId| match host.device(*device).kind {
            DeviceKind::Cpu { processor, .. } => {
                processor.architecture == Architecture::X86 && processor.vendor == Vendor::Intel
            }
            _ => false,
        };
        Route {
            kind: path.kind,
            bandwidth: megabytes(path.bandwidth),
            hops,
            crosses_intel: path.devices.iter().any(is_intel),
            relay: None,
        }
    }
}

fn used_nics(host: &Host, options: &TopologyOptions) -> Vec<Nic> {
    let places = host.compute_nics().into_iter().enumerate();
    let nics = places.filter(|(_, nic)| options.ib_hca.allows(&host.device(*nic).name));
    nics.filter_map(|(place, device)| match host.device(device).kind {
        DeviceKind::Nic { rate, latency, .. } => {
            Some(Nic { device, place: place as u32, bandwidth: megabytes(rate), latency, gpu: None })
        }
        _ => None,
    })
    .collect()
}

/// Of these ways, those that carry most, and of those the shortest.
fn nearest(routes: &[Route]) -> Vec<usize> {
    let rank = |route: &Route| (std::cmp::Reverse(route.bandwidth), route.kind);
    let reachable = || routes.iter().enumerate().filter(|(_, route)| route.kind < PathType::Dis);
    let best = reachable().map(|(_, route)| rank(route)).min();
    reachable().filter(|(_, route)| Some(rank(route)) == best).map(|(index, _)| index).collect()
}

/// The bits of `number` below those of the power of two `size`, in reverse.
fn mirrored(number: usize, size: usize) -> usize {
    let bits = size.trailing_zeros();
    if bits == 0 { 0 } else { (number % size).reverse_bits() >> (usize::BITS - bits) }
}

fn nearest_cpu(host: &Host, device: DeviceId) -> Option<DeviceId> {
    let numa = host.numa_of(device)?;
    host.cpus().get(numa as usize).copied()
}

fn is_switch(kind: &DeviceKind) -> bool {
    matches!(kind, DeviceKind::NvSwitch { .. })
}

fn megabytes(rate: Rate) -> Megabytes {
    (rate.as_bps() / 8_000_000) as Megabytes
}
