//! What lies between the GPUs of two servers, as the cost model sees it: PCIe inside the servers, the kernel's cores where it
//! carries the data, and the links of the fabric. A collective is a set of demands on these; the resource that is busy longest
//! with the demands of all groups that communicate at the same time bounds how fast any of them is.

use std::collections::BTreeMap;
use std::ops::Range;

use railnet_core::{Rate, Span};
use railnet_topology::host::{DeviceId, Host};
use railnet_topology::{Cluster, Demands, LoadedFabric};

/// What NCCL's latency of a hop over the network stands for: two links of a microsecond each. What a path has more or less
/// than that is added to it.
pub(super) const REFERENCE_DELAY_S: f64 = 2e-6;

/// Hops whose paths are timed, to know what they take in the mean; of more, the first.
const HOPS_TIMED: f64 = 4_096.0;

/// How data gets from the memory of a GPU to the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostPath {
    /// The NIC reads and writes the memory of the GPU.
    GpuDirect,
    /// Copies through the memory of the host.
    Bounce,
    /// The kernel's sockets: copies through the memory of the host and into that of the kernel, by a core.
    Kernel(KernelCosts),
}

/// What the kernel spends on the data of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelCosts {
    /// Cores that serve a port, sending and receiving apart; a connection has one of them.
    pub cores: u32,
    /// A system call.
    pub system_call: Span,
    /// From the arrival of data to the moment when a core handles it.
    pub interrupt: Span,
    /// What a core spends on each packet.
    pub per_packet: Span,
    /// How fast a core copies between user memory and socket buffers.
    pub copy: Rate,
}

/// The interconnect of a job.
#[derive(Clone, Debug)]
pub struct Interconnect {
    /// The fabric between the ports.
    pub fabric: LoadedFabric,
    /// The ports of each server of the job.
    pub ports: Vec<Range<u32>>,
    /// The ports of each parameter server.
    pub parameter_servers: Vec<Range<u32>>,
    /// The ports of each storage server.
    pub storage_servers: Vec<Range<u32>>,
    /// Payload of a full packet.
    pub mtu: u32,
    /// Bytes of a packet on the wire besides its payload.
    pub header: u32,
    /// Bytes of a packet that a switch waits for before it forwards: all of them, or the header where it cuts through.
    pub forward: u32,
    /// How data gets to the NIC.
    pub host_path: HostPath,
    /// What it takes to start a copy between the memory of a GPU and that of the host.
    pub copy_start: Span,
    /// Queue pairs of a connection.
    pub queue_pairs: u32,
    /// Whether the switches of the fabric reduce (SHARP).
    pub aggregates: bool,
}

impl Interconnect {
    /// Bytes on the wire for each byte of payload.
    pub fn wire_factor(&self) -> f64 {
        f64::from(self.mtu + self.header) / f64::from(self.mtu)
    }

    /// The rate of the link at a port, of the ports of a server of the job.
    pub fn port_rate(&self, node: u32, nic: u32) -> Option<Rate> {
        let ports = self.ports.get(node as usize)?;
        let port = ports.start + nic;
        ports.contains(&port).then(|| self.fabric.host_rate(port)).flatten()
    }

    /// Whether a NIC that may reach the memory of a GPU does so.
    fn is_direct(&self, gdr: bool) -> bool {
        gdr && self.host_path == HostPath::GpuDirect
    }

    /// What a hop takes besides what NCCL's latency of one has in it: paths that are longer or shorter than the reference, and
    /// copies that wait for a whole piece.
    fn extra_delay(&self, ports: [u32; 2], direct: [bool; 2], piece: f64, pcie: f64) -> f64 {
        let Some((delay, links)) = self.fabric.path(ports[0], ports[1]) else { return 0.0 };
        let rate = self.fabric.host_rate(ports[0]).map_or(1.0, |rate| rate.as_bps() as f64 / 8.0);
        let packet = f64::from(self.forward) / rate;
        let mut seconds =
            delay.as_secs_f64() - REFERENCE_DELAY_S + f64::from(links.saturating_sub(2)) * packet;
        for is_direct in direct {
            if !is_direct {
                seconds += self.copy_start.as_secs_f64() + piece / pcie;
            }
        }
        if let HostPath::Kernel(kernel) = self.host_path {
            let work = kernel.work(piece, self.mtu);
            seconds += kernel.interrupt.as_secs_f64() + 2.0 * work;
        }
        seconds
    }
}

impl KernelCosts {
    /// Seconds of a core for a piece of so many bytes.
    fn work(&self, piece: f64, mtu: u32) -> f64 {
        self.system_call.as_secs_f64() + piece * self.per_byte(mtu)
    }

    /// Seconds of a core for each byte, without system calls.
    pub(super) fn per_byte(&self, mtu: u32) -> f64 {
        self.per_packet.as_secs_f64() / f64::from(mtu) + 8.0 / self.copy.as_bps() as f64
    }
}

/// One end of a hop between servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HopEnd {
    pub(super) node: u32,
    /// The GPU, by its number in the server; none where data lies in the memory of the host.
    pub(super) gpu: Option<u32>,
    /// The NIC, by its place among those for traffic between GPUs.
    pub(super) nic: u32,
    /// The GPU beside the NIC to which data is handed first (PXN).
    pub(super) relay: Option<u32>,
    /// Whether the NIC may reach the memory of the GPU.
    pub(super) gdr: bool,
}

/// A link inside a server, by its place among them, and a direction of it.
type HostLinkId = (u32, u8);
/// The kind of a server, the GPU and the NIC of an end, the GPU that helps, whether the NIC reaches the memory of the GPU, and whether
/// the end sends.
type EndKey = (u32, u32, u32, Option<u32>, bool, bool);

/// Paths inside servers, computed once for each kind of server.
#[derive(Clone, Debug, Default)]
pub(super) struct HostPaths {
    known: BTreeMap<EndKey, Vec<HostLinkId>>,
    /// Bytes per second between a GPU of a kind of server and the memory of its host.
    to_memory: BTreeMap<(u32, u32), f64>,
}

impl HostPaths {
    /// The links between a GPU and a NIC, in the direction of the data.
    fn between(&mut self, host: &Host, key: EndKey) -> &[HostLinkId] {
        self.known.entry(key).or_insert_with(|| {
            let (_, gpu, nic, relay, is_direct, sends) = key;
            let (gpus, nics) = (host.gpus(), host.compute_nics());
            let gpu = gpus.get(gpu as usize).copied();
            let nic = nics.get(nic as usize % nics.len().max(1)).copied();
            let (Some(gpu), Some(nic)) = (gpu, nic) else { return Vec::new() };
            let cpu = host.numa_of(nic).and_then(|numa| host.cpus().get(numa as usize).copied());
            let relay = relay.and_then(|relay| gpus.get(relay as usize).copied());
            let mut stops = vec![gpu];
            match (cpu, relay) {
                (Some(cpu), _) if !is_direct => stops.push(cpu),
                (_, Some(relay)) if sends => stops.push(relay),
                _ => {}
            }
            stops.push(nic);
            if !sends {
                stops.reverse();
            }
            let legs = stops.windows(2).flat_map(|leg| host.path(leg[0], leg[1]).devices);
            let devices: Vec<DeviceId> = legs.collect();
            devices.windows(2).filter_map(|step| host_link(host, step[0], step[1])).collect()
        })
    }

    /// Bytes per second between a GPU and the memory of its host.
    fn memory_rate(&mut self, kind: u32, host: &Host, gpu: u32) -> f64 {
        *self.to_memory.entry((kind, gpu)).or_insert_with(|| {
            let gpu = host.gpus().get(gpu as usize).copied();
            let numa = gpu.and_then(|gpu| host.numa_of(gpu));
            let cpu = numa.and_then(|numa| host.cpus().get(numa as usize).copied());
            let path = gpu.zip(cpu).map(|(gpu, cpu)| host.path(gpu, cpu).bandwidth);
            path.map_or(f64::INFINITY, |rate| rate.as_bps() as f64 / 8.0)
        })
    }
}

/// The fastest link between two devices, and the direction from the first to the second.
fn host_link(host: &Host, from: DeviceId, to: DeviceId) -> Option<HostLinkId> {
    let joins = |ends: [DeviceId; 2]| ends == [from, to] || ends == [to, from];
    let links = host.links.iter().enumerate().filter(|(_, link)| joins(link.ends));
    let (index, link) = links.max_by_key(|(_, link)| link.bandwidth)?;
    Some((index as u32, u8::from(link.ends[0] != from)))
}

/// Which resource is busy longest, for each byte of a call.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Load {
    /// Seconds for each byte.
    pub(super) seconds: f64,
    /// The same if equal paths of the fabric carried equal loads.
    pub(super) seconds_balanced: f64,
    /// Its name.
    pub(super) resource: String,
    /// What a hop takes besides NCCL's figure for one, in seconds, in the mean.
    pub(super) extra_delay: f64,
}

impl Load {
    /// How many times the mean load of equal paths the fullest has, because a hash chooses.
    pub(super) fn collisions(&self) -> f64 {
        if self.seconds_balanced > 0.0 { self.seconds / self.seconds_balanced } else { 1.0 }
    }
}

/// A part of the interconnect that data occupies on its way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Resource {
    /// A direction of a link inside a server.
    HostLink {
        /// The server.
        node: u32,
        /// The link, by its place among those of the server.
        link: u32,
        /// The direction: 0 from the first end to the second.
        direction: u8,
    },
    /// The kernel's cores that serve a port.
    Cores {
        /// The port of the fabric.
        port: u32,
        /// Whether they send.
        sends: bool,
    },
    /// A connection between two ports over the fabric.
    Path {
        /// The port that sends.
        from: u32,
        /// The port that receives.
        to: u32,
    },
    /// A direction of the link of a port, whose other end is anywhere in the fabric.
    Port {
        /// The port of the fabric.
        port: u32,
        /// Whether the port sends.
        sends: bool,
    },
    /// A server that has parameters or storage, where its rate is stated.
    Server {
        /// The first of its ports.
        port: u32,
        /// What it takes and gives.
        rate: Rate,
    },
}

/// A connection over the interconnect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// From a GPU to one of another server.
    Send(HopEnd, HopEnd),
    /// From a GPU to the switches of the fabric that reduce, or back.
    Reduce { end: HopEnd, sends: bool },
    /// Between a GPU and a port of a server that has no ranks.
    Exchange { end: HopEnd, far: u32, sends: bool },
}

/// Knows what data occupies on its way.
pub(super) struct Ways<'a> {
    pub(super) net: &'a Interconnect,
    pub(super) cluster: &'a Cluster,
    pub(super) paths: &'a mut HostPaths,
    pub(super) kind_of: &'a dyn Fn(u32) -> u32,
}

impl Ways<'_> {
    fn port(&self, end: HopEnd) -> u32 {
        let ports = &self.net.ports[end.node as usize];
        ports.start + end.nic % (ports.end - ports.start).max(1)
    }

    /// All parts of the interconnect that a connection occupies.
    pub(super) fn occupied(&mut self, way: &Way, emit: &mut impl FnMut(Resource)) {
        match *way {
            Way::Send(from, to) => {
                let [from_port, to_port] = [self.port(from), self.port(to)];
                self.inside(from, from_port, true, emit);
                self.inside(to, to_port, false, emit);
                emit(Resource::Path { from: from_port, to: to_port });
            }
            Way::Reduce { end, sends } => {
                let port = self.port(end);
                self.inside(end, port, sends, emit);
                emit(Resource::Port { port, sends });
            }
            Way::Exchange { end, far, sends } => {
                let port = self.port(end);
                self.inside(end, port, sends, emit);
                self.at_port(far, !sends, emit);
                let [from, to] = if sends { [port, far] } else { [far, port] };
                emit(Resource::Path { from, to });
            }
        }
    }

    /// The part of a hop between the memory of a GPU and its NIC.
    fn inside(&mut self, end: HopEnd, port: u32, sends: bool, emit: &mut impl FnMut(Resource)) {
        self.at_port(port, sends, emit);
        let Some(gpu) = end.gpu else { return };
        let host = self.cluster.host_of(end.node);
        let key = ((self.kind_of)(end.node), gpu, end.nic, end.relay, self.net.is_direct(end.gdr), sends);
        for (link, direction) in self.paths.between(host, key) {
            emit(Resource::HostLink { node: end.node, link: *link, direction: *direction });
        }
    }

    fn at_port(&self, port: u32, sends: bool, emit: &mut impl FnMut(Resource)) {
        if matches!(self.net.host_path, HostPath::Kernel(_)) {
            emit(Resource::Cores { port, sends });
        }
    }

    /// What a hop takes besides NCCL's figure for one, in seconds; nothing where its other end is a switch.
    fn extra_delay(&mut self, way: &Way, piece: f64) -> Option<f64> {
        let (end, ports, direct) = match *way {
            Way::Send(from, to) => (from, [self.port(from), self.port(to)], [from.gdr, to.gdr]),
            Way::Exchange { end, far, sends: true } => (end, [self.port(end), far], [end.gdr, true]),
            Way::Exchange { end, far, sends: false } => (end, [far, self.port(end)], [end.gdr, true]),
            Way::Reduce { .. } => return None,
        };
        let direct = direct.map(|gdr| self.net.is_direct(gdr));
        let host = self.cluster.host_of(end.node);
        let rate = |gpu| self.paths.memory_rate((self.kind_of)(end.node), host, gpu);
        let pcie = end.gpu.map_or(f64::INFINITY, rate);
        Some(self.net.extra_delay(ports, direct, piece, pcie))
    }
}

/// Demands of everything that communicates at the same time.
pub(super) struct Loads<'a> {
    ways: Ways<'a>,
    /// Bytes that are copied at a time where a copy waits for all of them.
    piece: f64,
    demands: Demands,
    /// Bytes over links inside servers: both directions of the links of the first server, then of the next.
    links: Vec<f64>,
    /// Directions of links that each server has room for.
    links_each: usize,
    /// Bytes and connections of the cores of a port, that send or receive.
    cores: BTreeMap<(u32, bool), (f64, u32)>,
    delay: f64,
    hops: f64,
}

impl<'a> Loads<'a> {
    pub(super) fn new(ways: Ways<'a>, piece: f64) -> Self {
        let cluster = ways.cluster;
        let most = cluster.kinds().iter().map(|host| host.links.len()).max().unwrap_or(0);
        Self {
            piece,
            demands: Demands::default(),
            links: vec![0.0; 2 * most * cluster.nodes as usize],
            links_each: 2 * most,
            cores: BTreeMap::new(),
            delay: 0.0,
            hops: 0.0,
            ways,
        }
    }

    /// So many bytes of payload go over a connection.
    pub(super) fn add(&mut self, way: &Way, bytes: f64) {
        let Self { ways, demands, links, links_each, cores, .. } = self;
        let net = ways.net;
        let wire = bytes * net.wire_factor();
        ways.occupied(way, &mut |resource| match resource {
            Resource::HostLink { node, link, direction } => {
                links[node as usize * *links_each + 2 * link as usize + usize::from(direction)] += bytes;
            }
            Resource::Cores { port, sends } => {
                // Cores that send go first, of two that are busy as long.
                let (all, connections) = cores.entry((port, !sends)).or_default();
                *all += bytes;
                *connections += 1;
            }
            Resource::Path { from, to } => {
                net.fabric.add(demands, [from, to], wire, f64::from(net.queue_pairs.max(1)));
            }
            Resource::Port { port, sends } => net.fabric.add_at_host(demands, port, sends, wire),
            Resource::Server { .. } => {}
        });
        if self.hops < HOPS_TIMED
            && let Some(delay) = self.ways.extra_delay(way, self.piece)
        {
            self.delay += delay;
            self.hops += 1.0;
        }
    }

    /// What is busy longest.
    pub(super) fn load(self) -> Load {
        let fabric = self.ways.net.fabric.bottleneck(&self.demands);
        let mut load = Load {
            seconds: fabric.seconds,
            seconds_balanced: fabric.seconds_balanced,
            resource: fabric.link,
            extra_delay: if self.hops > 0.0 { self.delay / self.hops } else { 0.0 },
        };
        for (place, bytes) in self.links.iter().enumerate().filter(|(_, bytes)| **bytes > 0.0) {
            let (node, link) = (place / self.links_each, place % self.links_each);
            let host = self.ways.cluster.host_of(node as u32);
            let joined = &host.links[link / 2];
            let seconds = bytes * 8.0 / joined.bandwidth.as_bps() as f64;
            if seconds > load.seconds {
                let [from, to] = [link % 2, 1 - link % 2];
                let name = |end: usize| &host.device(joined.ends[end]).name;
                load.resource = format!("server{node} {} → {}", name(from), name(to));
                (load.seconds, load.seconds_balanced) = (seconds, seconds);
            }
        }
        if let HostPath::Kernel(kernel) = self.ways.net.host_path {
            for ((port, receives), (bytes, connections)) in &self.cores {
                let cores = kernel.cores.min(*connections).max(1);
                let calls = kernel.system_call.as_secs_f64() / self.piece.max(1.0);
                let seconds = bytes * (kernel.per_byte(self.ways.net.mtu) + calls) / f64::from(cores);
                if seconds > load.seconds {
                    let what = if *receives { "receive" } else { "send" };
                    load.resource = format!("the {cores} cores that {what} for port {port}");
                    (load.seconds, load.seconds_balanced) = (seconds, seconds);
                }
            }
        }
        load
    }
}
