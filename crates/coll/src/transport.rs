//! How two ranks reach each other, and why: NCCL 2.30's transports in the order in which it tries them
//! (transport/p2p.cc, shm.cc, net.cc, graph/search.cc).
//!
//! GPUs of one node use each other's memory where that is allowed, else memory of the host, else the network. GPUs of two
//! nodes use the network: the receiver its own NIC, the sender the one on the receiver's rail, handing its data to the GPU
//! beside that NIC where NVLink leads there.
//!
//! Not followed: NCCL prefers the network inside a node where NICs are faster than the way between two GPUs.

use std::fmt::{self, Write as _};

use railnet_topology::host::{Architecture, DeviceKind, Host, PathType, Vendor};
use railnet_topology::{Cluster, Places};

use crate::options::{CrossNic, TopologyOptions};
use crate::search::policy;
use crate::search::system::System;

/// How data gets from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// It is there already.
    Same,
    /// The sender writes into the receiver's memory.
    PeerToPeer {
        /// Over what: NVLink, PCIe.
        path: PathType,
    },
    /// Through memory of the host.
    SharedMemory,
    /// By NICs.
    Network {
        /// The sender's NIC: its place among those for traffic between GPUs.
        from_nic: u32,
        /// The receiver's.
        to_nic: u32,
        /// Whether the sender's NIC reads the memory of a GPU itself.
        gdr_send: bool,
        /// Whether the receiver's NIC writes the memory of the GPU itself.
        gdr_receive: bool,
        /// The rank beside the sender's NIC to which data is handed first (PXN).
        relay: Option<u32>,
        /// Whether the NICs are used through sockets.
        is_socket: bool,
    },
    /// Not at all.
    None,
}

/// As NCCL's log has it after `via`.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("the same rank"),
            Self::PeerToPeer { .. } => f.write_str("P2P/CUMEM"),
            Self::SharedMemory => f.write_str("SHM/direct/direct"),
            Self::Network { from_nic, gdr_send, relay, is_socket, .. } => {
                write!(f, "NET/{}/{from_nic}", if *is_socket { "Socket" } else { "IB" })?;
                if let Some(relay) = relay {
                    write!(f, "({relay})")?;
                }
                f.write_str(if *gdr_send { "/GDRDMA" } else { "" })
            }
            Self::None => f.write_str("nothing"),
        }
    }
}

/// How two ranks reach each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reach {
    /// The transport.
    pub transport: Transport,
    /// Why, in words.
    pub reason: String,
}

/// How the ranks of a cluster reach each other.
#[derive(Clone, Debug)]
pub struct Transports {
    options: TopologyOptions,
    kinds: Vec<Kind>,
    /// The kind of each node; all are of the first where nothing is said.
    of: Vec<u32>,
    ranks: Places,
}

/// A kind of server.
#[derive(Clone, Debug)]
struct Kind {
    host: Host,
    system: System,
}

/// A GPU: the server it is in, and which of its GPUs it is.
#[derive(Clone, Copy)]
struct Seat<'a> {
    server: &'a Kind,
    gpu: usize,
    /// The rank of the first GPU of the server.
    first: u32,
}

impl Kind {
    fn new(host: &Host, options: &TopologyOptions) -> Self {
        // NICs count even in one node: GPUs that share no memory use them.
        Self { host: host.clone(), system: System::new(host, true, options) }
    }

    fn name_of(&self, gpu: usize) -> &str {
        &self.host.device(self.system.gpus[gpu]).name
    }
}

impl Transports {
    /// So many servers.
    pub fn new(host: &Host, nodes: u32, options: &TopologyOptions) -> Self {
        let ranks = Places::even(nodes, host.gpus().len() as u32);
        Self { options: options.clone(), kinds: vec![Kind::new(host, options)], of: Vec::new(), ranks }
    }

    /// The servers of a cluster, which may be unlike each other.
    pub fn of(cluster: &Cluster, options: &TopologyOptions) -> Self {
        let hosts = cluster.kinds();
        let of = |node: u32| hosts.iter().position(|host| *host == cluster.host_of(node));
        let is_mixed = !cluster.unlike.is_empty();
        let nodes = if is_mixed { 0..cluster.nodes } else { 0..0 };
        Self {
            options: options.clone(),
            kinds: hosts.iter().map(|host| Kind::new(host, options)).collect(),
            of: nodes.map(|node| of(node).unwrap_or_default() as u32).collect(),
            ranks: cluster.ranks().clone(),
        }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks.total()
    }

    fn seat(&self, rank: u32) -> Seat<'_> {
        let (node, gpu) = self.ranks.place(rank);
        let kind = self.of.get(node as usize).copied().unwrap_or_default();
        Seat { server: &self.kinds[kind as usize], gpu: gpu as usize, first: rank - gpu }
    }

    /// How `from` reaches `to`. Both exist.
    pub fn between(&self, from: u32, to: u32) -> Reach {
        assert!(from < self.ranks() && to < self.ranks(), "ranks {from} and {to} are among {}", self.ranks());
        if from == to {
            return Reach { transport: Transport::Same, reason: "it is the same rank".into() };
        }
        let (from, to) = (self.seat(from), self.seat(to));
        if from.first == to.first { self.inside(from, to) } else { self.across(from, to, None) }
    }

    /// The NIC by which a rank receives from other nodes: its place among those for traffic between GPUs.
    pub fn nic_beside(&self, rank: u32) -> Option<u32> {
        let Seat { server, gpu, .. } = self.seat(rank);
        server.system.local_nic(gpu, 0).map(|nic| server.system.nics[nic].place)
    }

    fn inside(&self, from: Seat<'_>, to: Seat<'_>) -> Reach {
        let Kind { host, system } = from.server;
        let path = host.path(system.gpus[from.gpu], system.gpus[to.gpu]);
        let level = policy::p2p_level(host, &self.options);
        if path.kind <= level {
            let what = words(path.kind);
            return Reach {
                transport: Transport::PeerToPeer { path: path.kind },
                reason: format!("{what} ({}), {} GB/s", path.kind, gigabytes(path.bandwidth.as_bps())),
            };
        }
        let too_far = self.why_no_p2p(host, path.kind, level);
        if system.gpu_to_gpu[from.gpu][to.gpu].kind < PathType::Net {
            return Reach {
                transport: Transport::SharedMemory,
                reason: format!("{too_far}; so through memory of the host"),
            };
        }
        let why = if self.options.shm_disable {
            "NCCL_SHM_DISABLE keeps it from memory of the host"
        } else {
            "no host memory is shared"
        };
        self.across(from, to, Some(format!("{too_far}, and {why}")))
    }

    fn why_no_p2p(&self, host: &Host, kind: PathType, level: PathType) -> String {
        if self.options.p2p_disable {
            return "NCCL_P2P_DISABLE forbids P2P".into();
        }
        let who = match (self.options.p2p_level, host.processor()) {
            (Some(_), _) => "NCCL_P2P_LEVEL".to_owned(),
            (None, Some(cpu)) if cpu.architecture == Architecture::X86 && cpu.vendor == Vendor::Amd => {
                "P2P among more than two GPUs".to_owned()
            }
            (None, Some(cpu)) => format!("P2P with {}", cpu.name()),
            (None, None) => "P2P".to_owned(),
        };
        format!("{} ({kind}) is farther than {level}, where {who} ends", words(kind))
    }

    /// By the network: each end as its own server has it.
    fn across(&self, from: Seat<'_>, to: Seat<'_>, before: Option<String>) -> Reach {
        let before = before.map_or("different nodes".to_owned(), |before| before);
        let (sends, receives) = (&from.server.system, &to.server.system);
        let (Some(own), Some(to_nic)) = (sends.local_nic(from.gpu, 0), receives.local_nic(to.gpu, 0)) else {
            let reason = format!("{before}, and no NIC that may be used is in reach");
            return Reach { transport: Transport::None, reason };
        };
        let (from_nic, relay) = self.sending_nic(from, to, own);
        let (gdr_send, why_send) = self.gdr(from.server, relay.unwrap_or(from.gpu), from_nic, true);
        let (gdr_receive, why_receive) = self.gdr(to.server, to.gpu, to_nic, false);
        let name =
            |server: &Kind, nic: usize| server.host.device(server.system.nics[nic].device).name.clone();
        let mut reason = format!("{before}; out by {}", name(from.server, from_nic));
        let relay = relay.map(|relay| from.first + relay as u32);
        if let Some(rank) = relay {
            let _ = write!(reason, ", handed to rank {rank} beside it over NVLink (PXN)");
        }
        let _ = write!(reason, ", {why_send}; in by {}, {why_receive}", name(to.server, to_nic));
        Reach {
            transport: Transport::Network {
                from_nic: sends.nics[from_nic].place,
                to_nic: receives.nics[to_nic].place,
                gdr_send,
                gdr_receive,
                relay,
                is_socket: self.options.ib_disable,
            },
            reason,
        }
    }

    /// How a rank sends by a NIC on which its channel runs, or receives by it: the rank beside that NIC to which data is handed
    /// first (PXN), and whether the NIC uses the memory of the GPU itself.
    pub fn by_nic(&self, rank: u32, nic: u32, sends: bool) -> (Option<u32>, bool) {
        let Seat { server, gpu, first } = self.seat(rank);
        let system = &server.system;
        let Some(nic) = system.nics.iter().position(|one| one.place == nic) else { return (None, true) };
        let relay = system.gpu_to_nic[gpu][nic].relay.filter(|_| sends);
        let (gdr, _) = self.gdr(server, relay.unwrap_or(gpu), nic, sends);
        (relay.map(|relay| first + relay as u32), gdr)
    }

    /// The NIC by which a GPU sends to a GPU of another node, and the GPU beside it that helps. NCCL takes the NIC on the
    /// receiver's rail where NVLink leads to a GPU beside it, so that messages to one receiver can travel together. The
    /// rail is that of the sender's own GPU of the receiver's number: a server that has no such GPU sends by the NIC
    /// beside the sender.
    fn sending_nic(&self, from: Seat<'_>, to: Seat<'_>, own: usize) -> (usize, Option<usize>) {
        let system = &from.server.system;
        let name = to.server.name_of(to.gpu);
        let same = (0..system.gpus.len()).find(|gpu| from.server.name_of(*gpu) == name);
        let rail = same.and_then(|gpu| system.local_nic(gpu, 0)).unwrap_or(own);
        if !self.options.pxn_disable
            && let Some(beside) = system.nics[rail].gpu
            && system.gpu_to_gpu[beside][from.gpu].kind <= PathType::Nvl
            && system.gpu_to_nic[beside][rail].kind <= PathType::P2c
        {
            return (rail, (beside != from.gpu).then_some(beside));
        }
        if self.options.cross_nic == CrossNic::Never { (rail, None) } else { (own, None) }
    }

    /// Whether a NIC uses the memory of a GPU itself, and why, in words.
    fn gdr(&self, server: &Kind, gpu: usize, nic: usize, is_read: bool) -> (bool, String) {
        let Kind { host, system } = server;
        let device = system.nics[nic].device;
        let kind = host.path(system.gpus[gpu], device).kind;
        let level = policy::gdr_level(&self.options);
        let capability = match host.device(system.gpus[gpu]).kind {
            DeviceKind::Gpu { compute_capability, .. } => compute_capability,
            _ => 0,
        };
        if self.options.ib_disable {
            (false, "through host memory (NCCL_IB_DISABLE: sockets)".into())
        } else if !policy::nic_has_gdr(host, device, &self.options) {
            (false, "through host memory (the NIC has no GPUDirect)".into())
        } else if is_read && !policy::gdr_reads(capability, system.has_nvlink(gpu), &self.options) {
            (false, "through host memory (NCCL_NET_GDR_READ)".into())
        } else if kind > level {
            (false, format!("through host memory ({kind} is farther than {level}, where GPUDirect ends)"))
        } else {
            (true, format!("GPUDirect ({kind})"))
        }
    }
}

/// What lies between two devices.
fn words(kind: PathType) -> &'static str {
    match kind {
        PathType::Loc => "the device itself",
        PathType::Nvl => "NVLink",
        PathType::Nvb => "NVLink by way of another GPU",
        PathType::C2c => "a coherent link",
        PathType::Pix => "one PCIe switch",
        PathType::Pxb => "PCIe switches",
        PathType::P2c => "a coherent link and PCIe",
        PathType::Pxn => "NVLink and the PCIe of another GPU",
        PathType::Phb => "a CPU",
        PathType::Sys => "the link between sockets",
        PathType::Net => "the network",
        PathType::Dis => "nothing",
    }
}

/// Bits per second as GB/s with one digit after the point.
fn gigabytes(bps: u64) -> String {
    let tenths = bps / 800_000_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use railnet_topology::catalogue;

    use super::*;
    use crate::options::NicFilter;

    fn reach(name: &str, options: &TopologyOptions, from: u32, to: u32) -> (String, String) {
        let host = catalogue::host(name).unwrap();
        let reach = Transports::new(&host, 2, options).between(from, to);
        (reach.transport.to_string(), reach.reason)
    }

    #[test]
    fn each_pair_takes_the_first_way_that_is_open() {
        let usual = TopologyOptions::default();
        let no_p2p = TopologyOptions { p2p_disable: true, ..usual.clone() };
        let neither = TopologyOptions { shm_disable: true, ..no_p2p.clone() };
        let far = TopologyOptions { p2p_level: Some(PathType::Sys), ..usual.clone() };
        let no_pxn = TopologyOptions { pxn_disable: true, ..usual.clone() };
        let sockets = TopologyOptions { ib_disable: true, ..usual.clone() };
        let one_nic = TopologyOptions { ib_hca: NicFilter::new("=mlx5_0"), ..usual.clone() };
        let near_only = TopologyOptions { net_gdr_level: Some(PathType::Loc), ..usual.clone() };
        let no_reads = TopologyOptions { net_gdr_read: Some(false), ..usual.clone() };
        let own_rail = TopologyOptions { cross_nic: CrossNic::Never, ..no_pxn.clone() };
        let cases = [
            ("dgx-h100", &usual, 0, 7, "P2P/CUMEM", "NVLink (NVL), 370.8 GB/s"),
            ("dgx-h100", &usual, 3, 3, "the same rank", "same"),
            ("dgx-h100", &usual, 0, 8, "NET/IB/0/GDRDMA", "out by mlx5_0, GPUDirect (PIX); in by mlx5_0"),
            ("dgx-h100", &usual, 0, 11, "NET/IB/3(3)/GDRDMA", "out by mlx5_5, handed to rank 3"),
            ("dgx-h100", &no_pxn, 0, 11, "NET/IB/0/GDRDMA", "out by mlx5_0, GPUDirect (PIX); in by mlx5_5"),
            ("dgx-h100", &own_rail, 0, 11, "NET/IB/3", "PHB is farther than P2C"),
            ("dgx-h100", &no_p2p, 0, 1, "SHM/direct/direct", "NCCL_P2P_DISABLE forbids P2P"),
            ("dgx-h100", &neither, 0, 1, "NET/IB/0/GDRDMA", "NCCL_SHM_DISABLE keeps"),
            ("dgx-h100", &sockets, 0, 8, "NET/Socket/0", "NCCL_IB_DISABLE"),
            ("dgx-h100", &one_nic, 5, 8, "NET/IB/0(0)/GDRDMA", "handed to rank 0"),
            ("dgx-h100", &near_only, 0, 8, "NET/IB/0", "PIX is farther than LOC"),
            ("dgx-h100", &no_reads, 0, 8, "NET/IB/0", "NCCL_NET_GDR_READ"),
            ("pcie-4gpu", &usual, 0, 3, "SHM/direct/direct", "(SYS) is farther than PXB"),
            ("pcie-4gpu", &far, 0, 3, "P2P/CUMEM", "between sockets (SYS), 16.0 GB/s"),
            ("pcie-4gpu", &usual, 3, 4, "NET/IB/0", "SYS is farther than P2C"),
            ("gb200-nvl72", &usual, 0, 71, "P2P/CUMEM", "NVLink (NVL), 721.8 GB/s"),
        ];
        for (name, options, from, to, transport, reason) in cases {
            let (got, why) = reach(name, options, from, to);
            assert_eq!(got, transport, "{name} {from} to {to}: {why}");
            assert!(why.contains(reason), "{name} {from} to {to}: {why}");
        }
    }

    #[test]
    fn each_end_is_as_its_own_server_has_it() {
        let host = |name: &str| catalogue::host(name).unwrap();
        let groups = [(host("dgx-h100"), 1), (host("pcie-4gpu"), 2), (host("dgx-h100"), 1)];
        let cluster = Cluster::of_groups(&groups).unwrap();
        let transports = Transports::of(&cluster, &TopologyOptions::default());
        assert_eq!(transports.ranks(), 24);
        let cases = [
            // To GPU 3 of the box: by the NIC of the own GPU 3, into the only one there is.
            (0, 11, "NET/IB/3(3)/GDRDMA", "out by mlx5_5, handed to rank 3"),
            // From the box to GPU 7: it has no GPU 7, and sends by its only NIC.
            (8, 23, "NET/IB/0", "in by mlx5_11, GPUDirect (PIX)"),
            (8, 9, "SHM/direct/direct", "is farther than"),
            (9, 13, "NET/IB/0", "PHB is farther than P2C"),
            (16, 23, "P2P/CUMEM", "NVLink"),
            (20, 1, "NET/IB/1(17)/GDRDMA", "handed to rank 17"),
        ];
        for (from, to, transport, reason) in cases {
            let reach = transports.between(from, to);
            assert_eq!(reach.transport.to_string(), transport, "{from} to {to}: {}", reach.reason);
            assert!(reach.reason.contains(reason), "{from} to {to}: {}", reach.reason);
        }
        assert_eq!((transports.nic_beside(21), transports.nic_beside(10)), (Some(5), Some(0)));
    }

    #[test]
    fn without_a_nic_there_is_no_way() {
        let none = TopologyOptions { ib_hca: NicFilter::new("bnxt"), ..TopologyOptions::default() };
        let (transport, why) = reach("dgx-h100", &none, 0, 8);
        assert_eq!(
            (transport.as_str(), why.as_str()),
            ("nothing", "different nodes, and no NIC that may be used is in reach")
        );
    }
}
