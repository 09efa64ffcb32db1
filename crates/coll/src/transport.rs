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
    /// How.
    pub transport: Transport,
    /// Why, in words.
    pub reason: String,
}

/// How the ranks of a cluster of equal servers reach each other.
#[derive(Clone, Debug)]
pub struct Transports {
    host: Host,
    options: TopologyOptions,
    system: System,
    nodes: u32,
}

impl Transports {
    /// So many servers.
    pub fn new(host: &Host, nodes: u32, options: &TopologyOptions) -> Self {
        // NICs count even in one node: GPUs that share no memory use them.
        let system = System::new(host, true, options);
        Self { host: host.clone(), options: options.clone(), system, nodes }
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.per_node()
    }

    fn per_node(&self) -> u32 {
        self.system.gpus.len() as u32
    }

    /// How `from` reaches `to`. Both exist.
    pub fn between(&self, from: u32, to: u32) -> Reach {
        assert!(from < self.ranks() && to < self.ranks(), "ranks {from} and {to} are among {}", self.ranks());
        if from == to {
            return Reach { transport: Transport::Same, reason: "it is the same rank".into() };
        }
        if from / self.per_node() == to / self.per_node() {
            self.inside(from, to)
        } else {
            self.across(from, to, None)
        }
    }

    fn inside(&self, from: u32, to: u32) -> Reach {
        let local = |rank: u32| self.system.gpus[(rank % self.per_node()) as usize];
        let path = self.host.path(local(from), local(to));
        let level = policy::p2p_level(&self.host, &self.options);
        if path.kind <= level {
            let what = words(path.kind);
            return Reach {
                transport: Transport::PeerToPeer { path: path.kind },
                reason: format!("{what} ({}), {} GB/s", path.kind, gigabytes(path.bandwidth.as_bps())),
            };
        }
        let too_far = self.why_no_p2p(path.kind, level);
        let shared =
            self.system.gpu_to_gpu[(from % self.per_node()) as usize][(to % self.per_node()) as usize].kind;
        if shared < PathType::Net {
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

    fn why_no_p2p(&self, kind: PathType, level: PathType) -> String {
        if self.options.p2p_disable {
            return "NCCL_P2P_DISABLE forbids P2P".into();
        }
        let who = match (self.options.p2p_level, self.host.processor()) {
            (Some(_), _) => "NCCL_P2P_LEVEL".to_owned(),
            (None, Some(cpu)) if cpu.architecture == Architecture::X86 && cpu.vendor == Vendor::Amd => {
                "P2P among more than two GPUs".to_owned()
            }
            (None, Some(cpu)) => format!("P2P with {}", cpu.name()),
            (None, None) => "P2P".to_owned(),
        };
        format!("{} ({kind}) is farther than {level}, where {who} ends", words(kind))
    }

    fn across(&self, from: u32, to: u32, before: Option<String>) -> Reach {
        let per_node = self.per_node();
        let (sender, receiver) = ((from % per_node) as usize, (to % per_node) as usize);
        let before = before.map_or("different nodes".to_owned(), |before| before);
        let (Some(own), Some(to_nic)) =
            (self.system.local_nic(sender, 0), self.system.local_nic(receiver, 0))
        else {
            let reason = format!("{before}, and no NIC that may be used is in reach");
            return Reach { transport: Transport::None, reason };
        };
        let (from_nic, relay) = self.sending_nic(sender, receiver, own);
        let near = relay.unwrap_or(sender);
        let (gdr_send, why_send) = self.gdr(near, from_nic, true);
        let (gdr_receive, why_receive) = self.gdr(receiver, to_nic, false);
        let name = |nic: usize| &self.host.device(self.system.nics[nic].device).name;
        let mut reason = format!("{before}; out by {}", name(from_nic));
        if let Some(relay) = relay {
            let rank = from / per_node * per_node + relay as u32;
            let _ = write!(reason, ", handed to rank {rank} beside it over NVLink (PXN)");
        }
        let _ = write!(reason, ", {why_send}; in by {}, {why_receive}", name(to_nic));
        Reach {
            transport: Transport::Network {
                from_nic: self.system.nics[from_nic].place,
                to_nic: self.system.nics[to_nic].place,
                gdr_send,
                gdr_receive,
                relay: relay.map(|relay| from / per_node * per_node + relay as u32),
                is_socket: self.options.ib_disable,
            },
            reason,
        }
    }

    /// How a rank sends by a NIC on which its channel runs, or receives by it: the rank beside that NIC to which data is handed
    /// first (PXN), and whether the NIC uses the memory of the GPU itself.
    pub fn by_nic(&self, rank: u32, nic: u32, sends: bool) -> (Option<u32>, bool) {
        let per_node = self.per_node();
        let gpu = (rank % per_node) as usize;
        let Some(nic) = self.system.nics.iter().position(|one| one.place == nic) else { return (None, true) };
        let relay = self.system.gpu_to_nic[gpu][nic].relay.filter(|_| sends);
        let (gdr, _) = self.gdr(relay.unwrap_or(gpu), nic, sends);
        (relay.map(|relay| rank / per_node * per_node + relay as u32), gdr)
    }

    /// The NIC by which a GPU sends to a GPU of another node, and the GPU beside it that helps. NCCL takes the NIC on the
    /// receiver's rail where NVLink leads to a GPU beside it, so that messages to one receiver can travel together.
    fn sending_nic(&self, sender: usize, receiver: usize, own: usize) -> (usize, Option<usize>) {
        let rail = self.system.local_nic(receiver, 0).unwrap_or(own);
        if !self.options.pxn_disable
            && let Some(beside) = self.system.nics[rail].gpu
            && self.system.gpu_to_gpu[beside][sender].kind <= PathType::Nvl
            && self.system.gpu_to_nic[beside][rail].kind <= PathType::P2c
        {
            return (rail, (beside != sender).then_some(beside));
        }
        if self.options.cross_nic == CrossNic::Never { (rail, None) } else { (own, None) }
    }

    /// Whether a NIC uses the memory of a GPU itself, and why, in words.
    fn gdr(&self, gpu: usize, nic: usize, is_read: bool) -> (bool, String) {
        let device = self.system.nics[nic].device;
        let kind = self.host.path(self.system.gpus[gpu], device).kind;
        let level = policy::gdr_level(&self.options);
        let capability = match self.host.device(self.system.gpus[gpu]).kind {
            DeviceKind::Gpu { compute_capability, .. } => compute_capability,
            _ => 0,
        };
        if self.options.ib_disable {
            (false, "through host memory (NCCL_IB_DISABLE: sockets)".into())
        } else if !policy::nic_has_gdr(&self.host, device, &self.options) {
            (false, "through host memory (the NIC has no GPUDirect)".into())
        } else if is_read && !policy::gdr_reads(capability, self.system.has_nvlink(gpu), &self.options) {
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
    fn without_a_nic_there_is_no_way() {
        let none = TopologyOptions { ib_hca: NicFilter::new("bnxt"), ..TopologyOptions::default() };
        let (transport, why) = reach("dgx-h100", &none, 0, 8);
        assert_eq!(
            (transport.as_str(), why.as_str()),
            ("nothing", "different nodes, and no NIC that may be used is in reach")
        );
    }
}
