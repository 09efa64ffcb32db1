//! `[cluster]`: what is behind the ports of the fabric.

use std::borrow::Cow;

use railnet_core::limits::NODES_MAX;
use railnet_core::{Bytes, Rate, Span};
use railnet_topology::host::{DeviceKind, Host};
use railnet_topology::{Cluster, FabricGraph, HostNode, LinkKind, Vertex, catalogue};
use serde::Deserialize;

use super::{Scenario, ScenarioError};
use crate::written::Written;

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
    /// GPUs of each server that there are, the first so many; all by default. Its NICs stay.
    pub gpus_per_node: Option<u32>,
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
    /// Whether NCCL's variables ask for sockets.
    #[serde(skip)]
    pub(super) sockets: bool,
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
            gpus_per_node: None,
            groups: Vec::new(),
            transport: TransportName::default(),
            gpudirect: true,
            slice: Written(Bytes::kib(128)),
            slots: 16,
            copy_start: Written(Span::from_us(5)),
            tcp: TcpSection::default(),
            sockets: false,
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
    /// What carries the data: as written, or sockets where `NCCL_IB_DISABLE` asks for them.
    pub(crate) const fn transport(&self) -> TransportName {
        if self.sockets { TransportName::Tcp } else { self.transport }
    }

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
        if self.groups.is_empty() {
            return Ok(());
        }
        if self.server.is_some() || self.nodes.is_some() || self.gpus_per_node.is_some() {
            let message = "servers that are all alike have `server`, `nodes` and `gpus_per_node`, others `groups`: not both";
            return Err(ScenarioError::new(message).at("groups"));
        }
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
            if host.compute_nics().is_empty() {
                let message =
                    format!("{} has no NIC, and a server of a group needs one at least", group.server);
                return Err(within(ScenarioError::new(message).at("server")));
            }
        }
        if self.count().is_some_and(|nodes| nodes > NODES_MAX) {
            let message = format!("a cluster has 1 to {NODES_MAX} servers, those of all groups together");
            return Err(ScenarioError::new(message).at("groups"));
        }
        Ok(())
    }

    /// The server, or of those that are not all alike the first that has GPUs, else the first.
    pub(crate) fn host(&self) -> Option<Host> {
        let named = || self.server.as_deref().and_then(catalogue::host);
        let of_groups = || {
            let hosts: Vec<Host> = self.groups.iter().filter_map(GroupSection::host).collect();
            let place = hosts.iter().position(|host| !host.gpus().is_empty()).unwrap_or(0);
            hosts.into_iter().nth(place)
        };
        self.described.clone().or_else(named).or_else(of_groups)
    }

    /// How many servers there are, where that is said.
    pub(super) fn count(&self) -> Option<u32> {
        let all = self.groups.iter().map(|group| group.nodes);
        self.nodes.or_else(|| (!self.groups.is_empty()).then(|| all.fold(0, u32::saturating_add)))
    }

    /// So many of these servers.
    fn cluster(&self, nodes: u32) -> Option<Cluster> {
        // A server that is put behind the ports from outside takes the place of all.
        if self.groups.is_empty() || self.described.is_some() {
            return self.host().map(|host| Cluster::new(host, nodes));
        }
        let groups = self.groups.iter().map(|group| Some((group.host()?, group.nodes)));
        Cluster::of_groups(&groups.collect::<Option<Vec<_>>>()?)
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

/// The rates of the NICs of a server that are for traffic between GPUs.
fn nic_rates(host: &Host) -> Vec<Rate> {
    let rates = host.compute_nics().into_iter().map(|nic| match host.device(nic).kind {
        DeviceKind::Nic { rate, .. } => rate,
        _ => Rate::ZERO,
    });
    rates.collect()
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
        let graph = super::graph(self)?;
        let cluster = self.servers()?;
        if cluster.is_uneven() {
            let (ports, nics) = (graph.hosts.len() as u32, cluster.ports().total());
            if ports != nics {
                let message = format!(
                    "the servers of all groups have {nics} NICs, and the fabric has ports for {ports} hosts: give it {nics}, or \
                     leave [fabric] out"
                );
                return Err(ScenarioError::new(message).at("cluster.groups"));
            }
            return Ok(());
        }
        let found = servers(&host, &graph)?;
        if nodes != found {
            let message = format!(
                "the fabric has ports for {found} servers, not {nodes}: leave `nodes` out, or [fabric]"
            );
            return Err(ScenarioError::new(message).at("cluster.nodes"));
        }
        Ok(())
    }

    /// The servers of groups with unlike numbers of GPUs or NICs; nothing where all have as many.
    pub(super) fn uneven_servers(&self) -> Option<Cluster> {
        let section = self.cluster.as_ref()?;
        if section.groups.is_empty() {
            return None;
        }
        self.servers().ok().filter(Cluster::is_uneven)
    }

    /// Links carry what the fastest NIC of the servers does.
    pub(super) fn match_links(&mut self) {
        let Some(section) = &self.cluster else { return };
        let groups = section.groups.iter().filter_map(GroupSection::host);
        let hosts = section.host().into_iter().chain(groups);
        let fastest = hosts.flat_map(|host| nic_rates(&host)).max().filter(|rate| *rate > Rate::ZERO);
        if let Some(rate) = fastest {
            self.fabric.link.rate = Written(rate);
        }
    }

    /// Gives servers as many GPUs as `gpus_per_node` says, and NICs of the rate that `nic.rate` does.
    pub(super) fn shape_servers(&mut self) -> Result<(), ScenarioError> {
        let rate = self.nic.rate.map(|rate| rate.0);
        let Some(section) = &mut self.cluster else { return Ok(()) };
        let wrong = |message: String| Err(ScenarioError::new(message).at("cluster.gpus_per_node"));
        if let Some(wanted) = section.gpus_per_node {
            let Some(host) = section.host() else {
                return wrong(
                    "`gpus_per_node` is of servers: name them, such as server = \"dgx-h100\"".to_owned(),
                );
            };
            let gpus = host.gpus().len() as u32;
            if wanted == 0 || wanted > gpus {
                return wrong(format!("{} has {gpus} GPUs: 1 to {gpus} of them, not {wanted}", host.name));
            }
            section.described = Some(host.with_gpus(&(0..wanted).collect::<Vec<_>>()));
        }
        let Some(rate) = rate else { return Ok(()) };
        if section.groups.is_empty() {
            section.described = section.host().map(|host| host.with_nic_rate(rate));
        }
        for group in &mut section.groups {
            group.described = group.host().map(|host| host.with_nic_rate(rate));
        }
        Ok(())
    }

    /// Links to hosts carry what `nic.rate` says; those to servers of groups no more than the NICs at their ends.
    pub(super) fn narrow(&self, graph: &mut FabricGraph) {
        if let Some(rate) = self.nic.rate {
            for link in graph.links.iter_mut().filter(|link| link.kind == LinkKind::Edge) {
                link.rate = rate.0;
            }
            return;
        }
        let Some(section) = self.cluster.as_ref().filter(|section| !section.groups.is_empty()) else {
            return;
        };
        let Some(cluster) = section.count().and_then(|nodes| section.cluster(nodes)) else { return };
        let rates = (0..cluster.nodes).flat_map(|node| nic_rates(cluster.host_of(node)));
        let rates: Vec<Rate> = rates.collect();
        for link in &mut graph.links {
            for end in link.ends {
                if let Vertex::Host(port) = end.vertex
                    && let Some(rate) = rates.get(port as usize)
                {
                    link.rate = link.rate.min(*rate);
                }
            }
        }
    }

    /// The ports of rails that servers have NICs for: a server with fewer NICs than there are rails is on the first of them.
    pub(super) fn on_rails(
        &self,
        graph: FabricGraph,
        (nodes, rails): (u32, u32),
    ) -> Result<FabricGraph, ScenarioError> {
        let Some(cluster) = self.uneven_servers() else { return Ok(graph) };
        if nodes != cluster.nodes {
            let message = format!(
                "the groups have {} servers, and the fabric is for {nodes} nodes: give it `nodes = {}`",
                cluster.nodes, cluster.nodes
            );
            return Err(ScenarioError::new(message).at("fabric.topology.nodes"));
        }
        let ports = cluster.ports();
        if let Some(node) = (0..nodes).find(|node| ports.count(*node) > rails) {
            let (name, nics) = (&cluster.host_of(node).name, ports.count(node));
            let message = format!(
                "{name} has {nics} NICs, and there are {rails} rails: a rail for each of its NICs, `rails = {nics}`"
            );
            return Err(ScenarioError::new(message).at("fabric.topology.rails"));
        }
        Ok(graph.keep_hosts(|host| host.rail < ports.count(host.node)))
    }

    /// How often a byte that leaves a GPU for another server is copied on its way, at both ends together; nothing where there are
    /// no GPUs.
    pub fn copies(&self) -> Option<u32> {
        let section = self.cluster.as_ref()?;
        section.host().filter(|host| !host.gpus().is_empty())?;
        Some(match (section.transport(), section.gpudirect) {
            // Between GPU and host, and between the program and the kernel.
            (TransportName::Tcp, _) => 4,
            (TransportName::Rdma, false) => 2,
            (TransportName::Rdma, true) => 0,
        })
    }

    /// Puts this server behind the ports, whatever the scenario says.
    pub fn set_server(&mut self, server: Host) {
        let rate = self.nic.rate.map(|rate| rate.0);
        let section = self.cluster.get_or_insert_with(ClusterSection::default);
        let few = section.gpus_per_node.filter(|wanted| (*wanted as usize) < server.gpus().len());
        let server = match few {
            Some(wanted) => server.with_gpus(&(0..wanted).collect::<Vec<_>>()),
            None => server,
        };
        section.described = Some(match rate {
            Some(rate) => server.with_nic_rate(rate),
            None => server,
        });
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

    /// The senders and receivers behind the ports of a fabric, as hosts: the GPUs of each server, or its ports where it has none
    /// or none is named.
    pub(crate) fn ends<'a>(&self, graph: &'a FabricGraph) -> Result<Cow<'a, FabricGraph>, ScenarioError> {
        if self.cluster.as_ref().and_then(ClusterSection::host).is_none() {
            return Ok(Cow::Borrowed(graph));
        }
        let cluster = self.servers()?;
        if cluster.gpus() == 0 {
            return Ok(Cow::Borrowed(graph));
        }
        let mut hosts = Vec::new();
        for node in 0..cluster.nodes {
            let gpus = cluster.ranks().count(node);
            hosts.extend((0..gpus).map(|gpu| HostNode {
                name: format!("server{node}.gpu{gpu}"),
                node,
                rail: gpu,
            }));
            if gpus == 0 {
                let ports = cluster.ports().range(node).enumerate();
                hosts.extend(ports.map(|(rail, port)| HostNode {
                    name: graph.hosts[port as usize].name.clone(),
                    node,
                    rail: rail as u32,
                }));
            }
        }
        Ok(Cow::Owned(FabricGraph { hosts, switches: Vec::new(), links: Vec::new() }))
    }

    /// The senders and receivers that take part where nobody is named: GPUs, or all where there are none.
    pub(crate) fn everyone(&self, ends: &FabricGraph) -> Vec<u32> {
        let all = 0..ends.hosts.len() as u32;
        match self.uneven_servers().filter(|cluster| cluster.gpus() > 0) {
            Some(cluster) => {
                all.filter(|end| cluster.ranks().count(cluster.ends().node_of(*end)) > 0).collect()
            }
            None => all.collect(),
        }
    }

    /// Who sends and receives: the GPUs of the servers, or the ports of the fabric where there are none, each with the server
    /// it is in.
    pub fn endpoints(&self, graph: &FabricGraph) -> Result<Vec<HostNode>, ScenarioError> {
        Ok(self.ends(graph)?.into_owned().hosts)
    }
}
