//! What NCCL says while it starts, with `NCCL_DEBUG=INFO`: the lines its users look for, about what was found here.
//!
//! The forms are those of NCCL 2.30.7 (src/init.cc, graph/*.cc, transport/*.cc). What a simulated rank does not have is
//! left out (bus ids, sockets, timings) or stands for itself: a rank's process id is its number, and the first line says
//! who speaks.

use std::fmt::Write as _;

use railnet_topology::host::{DeviceId, DeviceKind, PathType};
use railnet_topology::{Cluster, Places};

use crate::algorithm::{Algorithm, tree_place};
use crate::options::TopologyOptions;
use crate::protocol::Protocol;
use crate::search::{self, Graph, policy};
use crate::transport::{Transport, Transports};
use crate::tuner::{Decision, Inputs, Request, Table, thread_threshold, threads_max};
use crate::variables::{Debug, DebugLevel, Source, Subsystem, TUNED, Variables};
use crate::wiring::Wiring;

/// Algorithms in one block of the table.
const BLOCK: usize = 3;

/// A communicator that starts: all that its lines are about.
#[derive(Clone, Debug)]
pub struct Start<'a> {
    /// The servers.
    pub cluster: &'a Cluster,
    /// What the search found in them.
    pub graphs: &'a search::Graphs,
    /// What the cost model looks at.
    pub inputs: &'a Inputs,
    /// What the user set.
    pub variables: &'a Variables,
    wiring: Wiring,
    transports: Transports,
    places: Places,
    options: TopologyOptions,
    debug: Debug,
}

impl<'a> Start<'a> {
    /// A communicator of all GPUs of a cluster.
    pub fn new(
        cluster: &'a Cluster,
        graphs: &'a search::Graphs,
        inputs: &'a Inputs,
        variables: &'a Variables,
    ) -> Self {
        let options = variables.topology();
        Self {
            cluster,
            graphs,
            inputs,
            variables,
            wiring: Wiring::new(graphs),
            transports: Transports::of(cluster, &options),
            places: graphs.places(),
            options,
            debug: variables.debug(),
        }
    }

    /// The lines of a rank, in NCCL's order; none unless `NCCL_DEBUG` asks for them.
    pub fn lines(&self, rank: u32) -> Vec<String> {
        let mut log = Log { prefix: self.prefix(rank), debug: self.debug, lines: Vec::new() };
        if self.debug.level >= DebugLevel::Version && rank == 0 {
            let version = env!("CARGO_PKG_VERSION");
            log.lines.push(format!("Railnet version {version}, as NCCL version 2.30.7 would start"));
        }
        if self.debug.level >= DebugLevel::Info {
            self.set_up(&mut log, rank);
            self.channels(&mut log, rank);
            self.connections(&mut log, rank);
            self.summary(&mut log, rank);
        }
        log.lines
    }

    /// The line about a call, on rank 0.
    pub fn decision(&self, request: &Request, decision: &Decision) -> Option<String> {
        let mut log = Log { prefix: self.prefix(0), debug: self.debug, lines: Vec::new() };
        let (algorithm, protocol) = (shouted(decision.algorithm), decision.protocol.name().to_uppercase());
        log.say(&[Subsystem::Tuning], || {
            format!(
                "{}: {} Bytes -> Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{0..{}}}",
                request.collective,
                request.bytes.0,
                decision.channels - 1
            )
        });
        log.lines.pop()
    }

    fn prefix(&self, rank: u32) -> String {
        let (node, device) = self.place(rank);
        format!("node{node:02}:{rank}:{rank} [{device}]")
    }

    /// The node of a rank, and which of its GPUs it has.
    fn place(&self, rank: u32) -> (u32, u32) {
        self.places.place(rank)
    }

    fn ranks(&self) -> u32 {
        self.places.total()
    }

    fn set_up(&self, log: &mut Log, rank: u32) {
        for (name, value, source) in self.variables.set() {
            let by = match source {
                Source::Environment => "environment".to_owned(),
                other => other.to_string(),
            };
            log.say(&[Subsystem::Env], || format!("{name} set by {by} to {value}."));
        }
        let is_socket = self.options.ib_disable;
        let (node, device) = self.place(rank);
        log.say(&[Subsystem::Init, Subsystem::Net], || self.nics(node, is_socket));
        let network = if is_socket { "Socket" } else { "IB" };
        log.say(&[Subsystem::Init, Subsystem::Net], || format!("Using network {network}"));
        let ranks = self.ranks();
        let who = format!("comm 0x1 rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device}");
        log.say(&[Subsystem::Init], || format!("[Rank {rank}] ncclCommInitRankConfig {who} - Init START"));
        if self.inputs.switch_reduces {
            log.say(&[Subsystem::Init, Subsystem::Nvls], || {
                format!("NVLS multicast support is available on dev {device}")
            });
        }
        let (nodes, local) = (self.graphs.nodes, self.places.count(node));
        log.say(&[Subsystem::Init], || {
            format!(
                "comm 0x1 rank {rank} nRanks {ranks} nNodes {nodes} localRanks {local} localRank {device} MNNVL 0"
            )
        });
    }

    fn nics(&self, node: u32, is_socket: bool) -> String {
        let host = self.cluster.host_of(node);
        let mut line = format!("NET/{} : Using", if is_socket { "Socket" } else { "IB" });
        for (place, nic) in host.compute_nics().into_iter().enumerate() {
            let name = &host.device(nic).name;
            if self.options.ib_hca.allows(name) {
                let link = if is_socket { "" } else { ":1/RoCE" };
                let _ = write!(line, " [{place}]{name}{link}");
            }
        }
        line
    }

    /// What the search found, and the rings and trees of all channels.
    fn channels(&self, log: &mut Log, rank: u32) {
        let graphs = self.graphs;
        let (node, _) = self.place(rank);
        let all = [
            Some(graphs.ring_of(node)),
            Some(graphs.tree_of(node)),
            graphs.collnet_chain.as_ref(),
            graphs.collnet_direct.as_ref(),
            graphs.nvls.as_ref(),
        ];
        for graph in all.into_iter().flatten() {
            for line in searched(graph) {
                log.say(&[Subsystem::Graph], || line);
            }
        }
        let count = graphs.counts.collective;
        let rings = |channel: u32| &self.wiring.rings[channel as usize % self.wiring.rings.len()];
        if rank == 0 {
            for channel in 0..count {
                log.say(&[Subsystem::Init], || {
                    let ranks = rings(channel).iter().fold(String::new(), |mut line, rank| {
                        let _ = write!(line, "{rank:4}");
                        line
                    });
                    format!("Channel {channel:02}/{count:02} : {ranks}")
                });
            }
        }
        log.say(&[Subsystem::Init], || {
            let mut line = String::from("Trees");
            for channel in 0..count {
                let (up, down) = tree_place(&self.wiring, channel, rank);
                let below =
                    (0..3).map(|index| number(down.get(index).copied())).collect::<Vec<_>>().join("/");
                let _ = write!(line, " [{channel}] {below}->{rank}->{}", number(up));
            }
            line
        });
        let chunk = self.inputs.peers.chunk.0;
        log.say(&[Subsystem::Init], || format!("P2P Chunksize set to {chunk}"));
    }

    /// How each ring and tree leaves this rank.
    fn connections(&self, log: &mut Log, rank: u32) {
        let count = self.graphs.counts.collective;
        if self.ranks() == 1 {
            return;
        }
        for channel in 0..count {
            let ring = &self.wiring.rings[channel as usize % self.wiring.rings.len()];
            let at = ring.iter().position(|one| *one == rank).unwrap_or(0);
            let next = ring[(at + 1) % ring.len()];
            let previous = ring[(at + ring.len() - 1) % ring.len()];
            self.receive(log, Algorithm::Ring, channel, previous, rank);
            self.send(log, Algorithm::Ring, channel, rank, next);
        }
        let gdr = (0..count).all(|channel| {
            let nic = self.wiring.nic(Algorithm::Ring, channel, rank);
            nic.is_none_or(|nic| self.gdr(rank, nic, true).0)
        });
        log.say(&[Subsystem::Init], || {
            let pxn = u8::from(self.graphs.ring.type_inter == PathType::Pxn);
            format!("Connected all rings, use ring PXN {pxn} GDR {}", u8::from(gdr))
        });
        for channel in 0..count {
            let (up, down) = tree_place(&self.wiring, channel, rank);
            for peer in down.iter().copied().chain(up) {
                if self.place(peer).0 != self.place(rank).0 {
                    self.receive(log, Algorithm::Tree, channel, peer, rank);
                }
            }
            for peer in down.into_iter().chain(up) {
                self.send(log, Algorithm::Tree, channel, rank, peer);
            }
        }
        log.say(&[Subsystem::Init], || "Connected all trees".to_owned());
    }

    fn send(&self, log: &mut Log, algorithm: Algorithm, channel: u32, from: u32, to: u32) {
        let way = format!("Channel {channel:02}/0 : {} -> {}", self.named(from), self.named(to));
        let transport = self.transports.between(from, to).transport;
        let subsystem = match transport {
            Transport::PeerToPeer { .. } | Transport::Same => Subsystem::P2p,
            Transport::SharedMemory => Subsystem::Shm,
            Transport::Network { .. } | Transport::None => Subsystem::Net,
        };
        log.say(&[Subsystem::Init, subsystem], || match transport {
            Transport::Network { from_nic, .. } => {
                let nic = self.wiring.nic(algorithm, channel, from).unwrap_or(from_nic);
                format!("{way} [send] via {}", self.network(from, nic, true))
            }
            other => format!("{way} via {other}"),
        });
    }

    /// A rank tells of what it receives only where that comes by the network.
    fn receive(&self, log: &mut Log, algorithm: Algorithm, channel: u32, from: u32, to: u32) {
        let Transport::Network { to_nic, .. } = self.transports.between(from, to).transport else { return };
        log.say(&[Subsystem::Init, Subsystem::Net], || {
            let nic = self.wiring.nic(algorithm, channel, to).unwrap_or(to_nic);
            format!(
                "Channel {channel:02}/0 : {} -> {} [receive] via {}",
                self.named(from),
                self.named(to),
                self.network(to, nic, false)
            )
        });
    }

    fn named(&self, rank: u32) -> String {
        format!("{rank}[{}]", self.place(rank).1)
    }

    /// `NET/IB/3/GDRDMA`, with the rank that helps in parentheses.
    fn network(&self, rank: u32, nic: u32, is_read: bool) -> String {
        let name = if self.options.ib_disable { "Socket" } else { "IB" };
        let (gdr, relay) = self.gdr(rank, nic, is_read);
        let relay = relay.map_or(String::new(), |relay| format!("({relay})"));
        format!("NET/{name}/{nic}{relay}{}", if gdr { "/GDRDMA" } else { "" })
    }

    /// Whether a NIC uses the memory of the GPU that talks to it, and the rank of that GPU where it is another's.
    fn gdr(&self, rank: u32, nic: u32, is_read: bool) -> (bool, Option<u32>) {
        let (node, device) = self.place(rank);
        let host = self.cluster.host_of(node);
        let (gpus, nics) = (host.gpus(), host.compute_nics());
        let (Some(gpu), Some(nic)) = (gpus.get(device as usize), nics.get(nic as usize)) else {
            return (false, None);
        };
        let path =
            if self.options.pxn_disable { host.path(*gpu, *nic) } else { host.path_with_pxn(*gpu, *nic) };
        let is_gpu = |id: &&DeviceId| matches!(host.device(**id).kind, DeviceKind::Gpu { .. });
        let beside = if path.kind == PathType::Pxn { path.devices.iter().rfind(is_gpu) } else { None };
        let near = beside.unwrap_or(gpu);
        let capability = match host.device(*near).kind {
            DeviceKind::Gpu { compute_capability, .. } => compute_capability,
            _ => 0,
        };
        let gdr = policy::nic_has_gdr(host, *nic, &self.options)
            && host.path(*near, *nic).kind <= policy::gdr_level(&self.options)
            && (!is_read || policy::gdr_reads(capability, host.nvlinks(*near) > 0, &self.options));
        let relay = beside.and_then(|id| gpus.iter().position(|gpu| gpu == id));
        (gdr, relay.map(|local| self.places.range(node).start + local as u32))
    }

    fn summary(&self, log: &mut Log, rank: u32) {
        let inputs = self.inputs;
        if rank == 0 {
            for line in tuning(inputs) {
                log.say(&[Subsystem::Tuning], || line);
            }
        }
        let threshold = |algorithm, protocol| thread_threshold(inputs, algorithm, protocol);
        let row =
            |algorithm| Protocol::ALL.map(|protocol| threshold(algorithm, protocol).to_string()).join("/");
        log.say(&[Subsystem::Init], || {
            format!(
                "threadThresholds {} | {} | {} | {}",
                row(Algorithm::Tree),
                row(Algorithm::Ring),
                threshold(Algorithm::CollNetDirect, Protocol::Simple),
                threshold(Algorithm::CollNetChain, Protocol::Simple)
            )
        });
        let counts = self.graphs.counts;
        let count = counts.collective;
        log.say(&[Subsystem::Init], || {
            format!(
                "{count} coll channels, {count} collnet channels, {} nvls channels, {} p2p channels, {} p2p \
                 channels per peer",
                counts.nvls, counts.p2p, counts.p2p_per_peer
            )
        });
        let (_, device) = self.place(rank);
        let ranks = self.ranks();
        log.say(&[Subsystem::Init], || {
            format!(
                "ncclCommInitRankConfig comm 0x1 rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} - \
                 Init COMPLETE"
            )
        });
    }
}

/// Lines of INFO, as far as they are asked for.
struct Log {
    prefix: String,
    debug: Debug,
    lines: Vec<String>,
}

impl Log {
    fn say(&mut self, about: &[Subsystem], text: impl FnOnce() -> String) {
        if self.debug.tells(about) {
            self.lines.push(format!("{} NCCL INFO {}", self.prefix, text()));
        }
    }
}

/// A rank, or -1 where there is none.
fn number(rank: Option<u32>) -> String {
    rank.map_or("-1".to_owned(), |rank| rank.to_string())
}

/// NCCL's name for an algorithm in lines about calls.
fn shouted(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::CollNetDirect => "COLLNET_DIRECT".to_owned(),
        Algorithm::CollNetChain => "COLLNET_CHAIN".to_owned(),
        Algorithm::NvlsTree => "NVLS_TREE".to_owned(),
        other => other.name().to_uppercase(),
    }
}

/// What the search found, as NCCL's GRAPH lines have it: a line on the whole, and one for each channel.
fn searched(graph: &Graph) -> Vec<String> {
    let mut lines = vec![format!(
        "Pattern {}, crossNic {}, nChannels {}, bw {:.6}/{:.6}, type {}/{}, sameChannels {}",
        graph.pattern.number(),
        graph.cross_nic,
        graph.channels.len(),
        graph.bw_intra,
        graph.bw_inter,
        graph.type_intra,
        graph.type_inter,
        u8::from(graph.same_channels)
    )];
    for (index, channel) in graph.channels.iter().enumerate() {
        let mut line = format!("{index:2} :");
        let nic = |nic: Option<u32>| nic.map_or(String::new(), |nic| format!(" NET/{nic}"));
        line.push_str(&nic(channel.nic_in));
        for gpu in &channel.gpus {
            let _ = write!(line, " GPU/{gpu}");
        }
        line.push_str(&nic(channel.nic_out));
        lines.push(line);
    }
    lines
}

/// The table of latencies and bandwidths, in blocks of three algorithms; 0.0 where a cell is out.
fn tuning(inputs: &Inputs) -> Vec<String> {
    let mut lines = Vec::new();
    let zero = railnet_core::Bytes::ZERO;
    let tables = TUNED.map(|collective| (collective, Table::new(inputs, &Request::new(collective, zero))));
    for block in Algorithm::TUNED.chunks(BLOCK) {
        let cells =
            || block.iter().flat_map(|algorithm| Protocol::ALL.map(|protocol| (*algorithm, protocol)));
        let row = |head: String, text: &dyn Fn(Algorithm, Protocol) -> String| {
            cells().fold(head, |mut line, (algorithm, protocol)| {
                line.push_str(&text(algorithm, protocol));
                line
            })
        };
        let names = block.iter().fold(String::from("  Algorithm   |"), |mut line, algorithm| {
            let _ = write!(line, " {:14}   {:>14}   {:14} |", "", algorithm.name(), "");
            line
        });
        lines.push(names);
        lines.push(row("  Protocol    |".to_owned(), &|_, protocol| format!(" {:>14} |", protocol.name())));
        lines.push(row(" Max NThreads |".to_owned(), &|algorithm, protocol| {
            format!(" {:14} |", threads_max(inputs, algorithm, protocol))
        }));
        for (collective, table) in &tables {
            lines.push(row(format!("{:>13} |", collective.name()), &|algorithm, protocol| {
                let model = table.cell(algorithm, protocol).outcome.as_ref().ok();
                let (latency, bandwidth) =
                    model.map_or((0.0, 0.0), |model| (model.latency_us, model.bandwidth));
                format!("{latency:8.1}/{bandwidth:6.1} |")
            }));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use railnet_core::Bytes;
    use railnet_topology::catalogue;

    use super::*;
    use crate::search::search;
    use crate::tuner::choose;
    use crate::{Collective, variables};

    fn lines(cluster: &str, set: &[(&str, &str)], rank: u32) -> Vec<String> {
        let pairs = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let variables = Variables::merge([(variables::Source::Environment, pairs)]).unwrap();
        let cluster = catalogue::cluster(cluster).unwrap();
        let graphs = search(&cluster.host, cluster.nodes, &variables.topology()).unwrap();
        let inputs = Inputs::of(&cluster, &graphs, variables.settings(), false);
        let start = Start::new(&cluster, &graphs, &inputs, &variables);
        let request = Request::new(Collective::AllReduce, Bytes::gib(4));
        let decision = start.decision(&request, &choose(&inputs, &request).unwrap());
        start.lines(rank).into_iter().chain(decision).collect()
    }

    #[track_caller]
    fn has(lines: &[String], line: &str) {
        assert!(lines.iter().any(|one| one == line), "{line:?} is missing in\n{}", lines.join("\n"));
    }

    #[test]
    fn nothing_is_told_unless_asked() {
        assert!(lines("dgx-h100", &[], 0).is_empty());
        assert!(lines("dgx-h100", &[("NCCL_DEBUG", "WARN")], 3).is_empty());
        let version = lines("dgx-h100", &[("NCCL_DEBUG", "VERSION")], 0);
        assert_eq!(version.len(), 1);
        assert!(version[0].starts_with("Railnet version "), "{version:?}");
    }

    #[test]
    fn a_start_between_nodes_reads_like_nccls() {
        let told = lines("dgx-h100x2", &[("NCCL_DEBUG", "INFO")], 0);
        let info = |text: &str| format!("node00:0:0 [0] NCCL INFO {text}");
        for text in [
            "NCCL_DEBUG set by environment to INFO.",
            "Using network IB",
            "NVLS multicast support is available on dev 0",
            "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0",
            "P2P Chunksize set to 131072",
            "threadThresholds 8/8/64 | 128/8/64 | 512 | 512",
            "Connected all rings, use ring PXN 0 GDR 1",
            "Connected all trees",
            "ncclCommInitRankConfig comm 0x1 rank 0 nranks 16 cudaDev 0 nvmlDev 0 - Init COMPLETE",
        ] {
            has(&told, &info(text));
        }
        let all = told.join("\n");
        assert!(all.contains("Channel 00/16 : "), "{all}");
        assert!(all.contains(" via P2P/CUMEM"), "{all}");
        assert!(all.contains("[send] via NET/IB/") && all.contains("[receive] via NET/IB/"), "{all}");
        assert!(all.contains("/GDRDMA") && all.contains("16 coll channels"), "{all}");
        assert!(!all.contains("Pattern") && !all.contains("Algo"), "not asked for: {all}");
        let other = lines("dgx-h100x2", &[("NCCL_DEBUG", "INFO")], 9);
        assert!(other[0].starts_with("node01:9:9 [1] NCCL INFO"), "{}", other[0]);
        assert!(!other.join("\n").contains("Channel 00/16"), "rank 0 alone tells of rings");
    }

    #[test]
    fn subsystems_choose_lines() {
        let asked = |subsystems| {
            let set = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystems), ("NCCL_ALGO", "tree,ring")];
            lines("dgx-h100", &set, 0)
        };
        let graph = asked("GRAPH");
        let found =
            "Pattern 4, crossNic 0, nChannels 12, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1";
        has(&graph, &format!("node00:0:0 [0] NCCL INFO {found}"));
        let tuning = asked("TUNING");
        has(
            &tuning,
            "node00:0:0 [0] NCCL INFO AllReduce: 4294967296 Bytes -> Algo RING proto SIMPLE \
             channel{Lo..Hi}={0..23}",
        );
        let row = "    AllReduce |    15.2/  43.6 |    31.5/ 128.8 |    64.4/ 165.6 |    15.0/  80.6 |";
        assert!(tuning.iter().any(|line| line.contains(row)), "{}", tuning.join("\n"));
        assert!(!tuning.iter().any(|line| line.contains("Trees")));
    }

    #[test]
    fn switches_change_what_is_told() {
        let told = lines("dgx-h100x2", &[("NCCL_DEBUG", "INFO"), ("NCCL_IB_DISABLE", "1")], 0).join("\n");
        assert!(told.contains("Using network Socket") && told.contains("via NET/Socket/"), "{told}");
        assert!(!told.contains("GDRDMA"), "{told}");
        let told = lines("dgx-h100", &[("NCCL_DEBUG", "INFO"), ("NCCL_P2P_DISABLE", "1")], 0).join("\n");
        assert!(told.contains("via SHM/direct/direct") && !told.contains("P2P/CUMEM"), "{told}");
    }
}
