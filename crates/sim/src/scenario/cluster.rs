//! `[cluster]`: what is behind the ports of the fabric.

use std::borrow::Cow;

use railnet_core::{Bytes, Rate, Span};
use railnet_topology::host::Host;
use railnet_topology::{Cluster, FabricGraph, HostNode, catalogue};
use serde::Deserialize;

use super::{Scenario, ScenarioError};
use crate::written::Written;

/// The most servers.
const NODES_MAX: u32 = 1 << 16;
/// The longest slice.
const SLICE_MAX: Bytes = Bytes(1 << 30);
/// The most slices of a flow under way.
const SLOTS_MAX: u32 = 1 << 12;
/// The most cores that serve a port.
const CORES_MAX: u32 = 1 << 8;

/// `[cluster]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSection {
    /// A server of the catalogue, or a topology file of NCCL's; without one, data lies right behind the NIC.
    pub server: Option<String>,
    /// How many servers; as many as the fabric has ports for by default.
    pub nodes: Option<u32>,
    /// Servers that are not all alike, one kind after the other; instead of `server` and `nodes`.
    pub groups: Vec<GroupSection>,
    /// What carries the data.
    pub transport: TransportName,
    /// Whether NICs read and write the memory of GPUs, or data is copied through the memory of the host.
    pub gpudirect: bool,
    /// The pieces in which data moves inside a server.
    pub slice: Written<Bytes>,
    /// Slices of a flow that may be under way: between being read at the sender and being in place at the receiver.
    pub slots: u32,
    /// Time it takes to start a copy between the memory of a GPU and that of its host.
    pub copy_start: Written<Span>,
    /// The kernel's part, with `transport = "tcp"`.
    pub tcp: TcpSection,
    /// The server of the file that `server` names, or of a catalogue of the user's.
    #[serde(skip)]
    pub(super) described: Option<Host>,
    /// Names of the catalogues of the user's.
    #[serde(skip)]
    pub(super) known: Vec<String>,
}

/// `[[cluster.groups]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSection {
    /// A server of the catalogue, or a topology file of NCCL's.
    pub server: String,
    /// How many of them.
    pub nodes: u32,
    /// The server of the file that `server` names, or of a catalogue of the user's.
    #[serde(skip)]
    pub(super) described: Option<Host>,
}

impl GroupSection {
    fn host(&self) -> Option<Host> {
        self.described.clone().or_else(|| catalogue::host(&self.server))
    }
}

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            server: None,
            nodes: None,
            groups: Vec::new(),
            transport: TransportName::default(),
            gpudirect: true,
            slice: Written(Bytes::kib(128)),
            slots: 16,
            copy_start: Written(Span::from_us(5)),
            tcp: TcpSection::default(),
            described: None,
            known: Vec::new(),
        }
    }
}

/// `transport = "…"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum TransportName {
    /// The NIC does it.
    #[default]
    Rdma,
    /// The kernel does it.
    Tcp,
}

/// `[cluster.tcp]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpSection {
    /// Cores that serve each port, sending and receiving apart.
    pub cores: u32,
    /// A system call.
    pub system_call: Written<Span>,
    /// From the arrival of data to the moment when a core deals with it.
    pub interrupt: Written<Span>,
    /// What a core spends on each packet.
    pub per_packet: Written<Span>,
    /// How fast a core copies between the memory of the program and that of the kernel.
    pub copy: Written<Rate>,
}

impl Default for TcpSection {
    fn default() -> Self {
        Self {
            cores: 4,
            system_call: Written(Span::from_ns(500)),
            interrupt: Written(Span::from_us(3)),
            per_packet: Written(Span::from_ns(350)),
            copy: Written(Rate::gbps(80)),
        }
    }
}

impl ClusterSection {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |key: &str, message: String| Err(ScenarioError::new(message).at(key));
        if let Some(name) = &self.server
            && self.host().is_none()
            && !is_file(name)
        {
            return Err(self.unknown(name).at("server"));
        }
        self.check_groups()?;
        if self.nodes.is_some_and(|nodes| !(1..=NODES_MAX).contains(&nodes)) {
            return wrong("nodes", format!("a cluster has 1 to {NODES_MAX} servers"));
        }
        if self.slice.0 == Bytes::ZERO || self.slice.0 > SLICE_MAX {
            return wrong("slice", format!("a slice has 1 B to {SLICE_MAX}, not {}", self.slice.0));
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return wrong("slots", format!("a flow has 1 to {SLOTS_MAX} slots, not {}", self.slots));
        }
        if !(1..=CORES_MAX).contains(&self.tcp.cores) {
            let message = format!("1 to {CORES_MAX} cores serve a port, not {}", self.tcp.cores);
            return wrong("tcp.cores", message);
        }
        if self.tcp.copy.0 == Rate::ZERO {
            return wrong(
                "tcp.copy",
                "a core that copies nothing sends nothing: give `copy` such as \"10GB/s\"".into(),
            );
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> ScenarioError {
        let built_in = catalogue::hosts().map(|(name, _)| name);
        let names: Vec<&str> = built_in.chain(self.known.iter().map(String::as_str)).collect();
        let message = format!(
            "no server is called \"{name}\": one of {}, or a file of NCCL's that ends in .xml",
            names.join(", ")
        );
        let meant = railnet_core::nearest(name, &names).map(str::to_owned);
        ScenarioError { meant, ..ScenarioError::new(message) }
    }

    fn check_groups(&self) -> Result<(), ScenarioError> {
        let Some(first) = self.groups.first() else { return Ok(()) };
        if self.server.is_some() || self.nodes.is_some() {
            let message = "servers that are all alike have `server` and `nodes`, others `groups`: not both";
            return Err(ScenarioError::new(message).at("groups"));
        }
        let size = |host: &Host| (host.gpus().len(), host.compute_nics().len());
        for (index, group) in self.groups.iter().enumerate() {
            let within = |error: ScenarioError| error.within(&format!("groups.{index}"));
            if !(1..=NODES_MAX).contains(&group.nodes) {
                let message = format!("a group has 1 to {NODES_MAX} servers");
                return Err(within(ScenarioError::new(message).at("nodes")));
            }
            let Some(host) = group.host() else {
                if is_file(&group.server) {
                    continue;
                }
                return Err(within(self.unknown(&group.server).at("server")));
            };
            if let Some(usual) = first.host()
                && size(&host) != size(&usual)
            {
                let ((gpus, nics), (other_gpus, other_nics)) = (size(&host), size(&usual));
                let message = format!(
                    "{} has {gpus} GPUs and {nics} NICs, {} {other_gpus} and {other_nics}: servers of one cluster have as \
                     many of both",
                    group.server, first.server
                );
                return Err(within(ScenarioError::new(message).at("server")));
            }
        }
        Ok(())
    }

    /// The server, or the first of those that are not all alike.
    pub(crate) fn host(&self) -> Option<Host> {
        let named = || self.server.as_deref().and_then(catalogue::host);
        let first = || self.groups.first().and_then(GroupSection::host);
        self.described.clone().or_else(named).or_else(first)
    }

    /// How many servers there are, where that is said.
    pub(super) fn count(&self) -> Option<u32> {
        let all = self.groups.iter().map(|group| group.nodes);
        self.nodes.or_else(|| (!self.groups.is_empty()).then(|| all.fold(0, u32::saturating_add)))
    }

    /// So many of these servers.
    fn cluster(&self, nodes: u32) -> Option<Cluster> {
        let mut cluster = Cluster::new(self.host()?, nodes);
        let mut node = 0;
        for group in &self.groups {
            let host = group.host()?;
            for _ in 0..group.nodes {
                if host != cluster.host {
                    cluster.replace(node, host.clone());
                }
                node += 1;
            }
        }
        Some(cluster)
    }

    /// The places for servers of names, each with its key.
    pub(super) fn named(&mut self) -> Vec<(String, String, &mut Option<Host>)> {
        let one = self.server.iter().map(|name| ("cluster.server".to_owned(), name.clone()));
        let mut places: Vec<(String, String, &mut Option<Host>)> =
            one.zip([&mut self.described]).map(|((key, name), place)| (key, name, place)).collect();
        places.extend(self.groups.iter_mut().enumerate().map(|(index, group)| {
            (format!("cluster.groups.{index}.server"), group.server.clone(), &mut group.described)
        }));
        places
    }
}

/// Whether a name is that of a file.
pub(super) fn is_file(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".xml")
}

/// How many servers the ports of a fabric make.
fn servers(host: &Host, graph: &FabricGraph) -> Result<u32, ScenarioError> {
    let (ports, nics) = (graph.hosts.len() as u32, host.compute_nics().len() as u32);
    if !ports.is_multiple_of(nics) {
        let message = format!(
            "{} has {nics} NICs and the fabric {ports} hosts, which is no whole number of servers: \
             give it a multiple of {nics}",
            host.name
        );
        return Err(ScenarioError::new(message).at("cluster.server"));
    }
    Ok(ports / nics)
}

impl Scenario {
    /// Whether the fabric has ports for as many servers as it is said to have.
    pub(super) fn check_nodes(&self) -> Result<(), ScenarioError> {
        let section = self.cluster.as_ref();
        let Some((host, nodes)) = section.and_then(|section| Some((section.host()?, section.count()?)))
        else {
            return Ok(());
        };
        let found = servers(&host, &super::graph(self)?)?;
        if nodes != found {
            let message = format!(
                "the fabric has ports for {found} servers, not {nodes}: leave `nodes` out, or [fabric]"
            );
            return Err(ScenarioError::new(message).at("cluster.nodes"));
        }
        Ok(())
    }

    /// How often a byte that leaves a GPU for another server is copied on its way, at both ends together; nothing where there are
    /// no GPUs.
    pub fn copies(&self) -> Option<u32> {
        let section = self.cluster.as_ref()?;
        section.host().filter(|host| !host.gpus().is_empty())?;
        Some(match (section.transport, section.gpudirect) {
            // Between GPU and host, and between the program and the kernel.
            (TransportName::Tcp, _) => 4,
            (TransportName::Rdma, false) => 2,
            (TransportName::Rdma, true) => 0,
        })
    }

    /// Puts this server behind the ports, whatever the scenario says.
    pub fn set_server(&mut self, server: Host) {
        self.cluster.get_or_insert_with(ClusterSection::default).described = Some(server);
    }

    /// The servers behind the ports, where `[cluster]` says what they are.
    pub fn servers(&self) -> Result<Cluster, ScenarioError> {
        let Some(host) = self.cluster.as_ref().and_then(ClusterSection::host) else {
            let message = "there are no servers: name one in [cluster], such as server = \"dgx-h100\"";
            return Err(ScenarioError::new(message).at("cluster"));
        };
        let nodes = match self.cluster.as_ref().and_then(ClusterSection::count) {
            Some(nodes) => nodes,
            None => servers(&host, &super::graph(self)?)?,
        };
        let cluster = self.cluster.as_ref().and_then(|section| section.cluster(nodes));
        Ok(cluster.unwrap_or_else(|| Cluster::new(host, nodes)))
    }

    /// The senders and receivers behind the ports of a fabric, as hosts: the GPUs of its servers, or the ports themselves
    /// where a server has none or none is named.
    pub(crate) fn ends<'a>(&self, graph: &'a FabricGraph) -> Result<Cow<'a, FabricGraph>, ScenarioError> {
        let Some(host) = self.cluster.as_ref().and_then(ClusterSection::host) else {
            return Ok(Cow::Borrowed(graph));
        };
        let servers = servers(&host, graph)?;
        let gpus = host.gpus().len() as u32;
        if gpus == 0 {
            return Ok(Cow::Borrowed(graph));
        }
        let gpu = |number: u32| HostNode {
            name: format!("server{}.gpu{}", number / gpus, number % gpus),
            node: number / gpus,
            rail: number % gpus,
        };
        let hosts = (0..servers * gpus).map(gpu).collect();
        Ok(Cow::Owned(FabricGraph { hosts, switches: Vec::new(), links: Vec::new() }))
    }

    /// Who sends and receives: the GPUs of the servers, or the ports of the fabric where there are none, each with the server
    /// it is in.
    pub fn endpoints(&self, graph: &FabricGraph) -> Result<Vec<HostNode>, ScenarioError> {
        Ok(self.ends(graph)?.into_owned().hosts)
    }
}
