//! What the cost model sees of a scenario's network: the fabric with its routes, and the way from GPUs to NICs.

use std::ops::Range;

use railnet_job::run::analytic::{HostPath, Interconnect, KernelCosts};
use railnet_topology::{LoadedFabric, PathSelection};

use super::fabric::RoutingName;
use super::{ClusterSection, PlacedJob, Scenario, ScenarioError, TransportName};

/// The base transport header of a packet in the middle of a message.
const BTH: u32 = 12;
/// What HPCC's telemetry adds to a packet.
const TELEMETRY: u32 = 44;

/// What a cut-through switch waits for before it forwards.
const CUT_THROUGH: u32 = 64;

impl Scenario {
    /// The interconnect of a job that runs where it is placed.
    pub fn interconnect(&self, placed: &PlacedJob) -> Result<Interconnect, ScenarioError> {
        let ports = placed.whole.ports();
        let of = |nodes: Range<u32>| -> Vec<Range<u32>> { nodes.map(|node| ports.range(node)).collect() };
        let own = (0..placed.cluster.nodes).map(|node| ports.range(placed.home(node)));
        let servers = [placed.servers.clone(), placed.storage.clone()].map(of);
        self.interconnect_between(own.collect(), servers)
    }

    /// The interconnect of all servers of the cluster.
    pub(crate) fn whole_interconnect(&self) -> Result<Interconnect, ScenarioError> {
        let cluster = self.servers()?;
        let ports = (0..cluster.nodes).map(|node| cluster.ports().range(node));
        self.interconnect_between(ports.collect(), [Vec::new(), Vec::new()])
    }

    /// The interconnect of servers with these ports, and of servers with parameters and with storage.
    fn interconnect_between(
        &self,
        ports: Vec<Range<u32>>,
        [parameter_servers, storage_servers]: [Vec<Range<u32>>; 2],
    ) -> Result<Interconnect, ScenarioError> {
        let graph = super::graph(self)?;
        let selection = self.path_selection();
        let variables = self.nccl();
        let queue_pairs = variables.number("NCCL_IB_QPS_PER_CONNECTION").unwrap_or(1).max(1);
        let usual = ClusterSection::default();
        let section = self.cluster.as_ref().unwrap_or(&usual);
        Ok(Interconnect {
            fabric: LoadedFabric::new(graph, selection),
            ports,
            parameter_servers,
            storage_servers,
            mtu: self.payload(),
            header: self.header_bytes(),
            forward: self.forward_bytes(),
            host_path: section.host_path(),
            copy_start: section.copy_start.0,
            queue_pairs: u32::try_from(queue_pairs).unwrap_or(1),
            aggregates: self.switch_config().aggregation.is_some(),
        })
    }

    /// How switches choose among equal paths, as far as the load of links goes.
    pub(crate) fn path_selection(&self) -> PathSelection {
        match self.routing_name() {
            RoutingName::Ecmp | RoutingName::Flowlet | RoutingName::Valiant | RoutingName::Lft => {
                PathSelection::Hashed
            }
            RoutingName::Adaptive | RoutingName::Spray => PathSelection::Balanced,
        }
    }

    /// Bytes of a full packet that a switch waits for before it forwards: all of them, or the header where it cuts through.
    pub(crate) fn forward_bytes(&self) -> u32 {
        match self.fabric.switch.cut_through {
            true => CUT_THROUGH,
            false => self.payload() + self.header_bytes(),
        }
    }

    /// Bytes of a full packet on the wire besides its payload.
    pub(crate) fn header_bytes(&self) -> u32 {
        let framing = self.framing();
        let telemetry = if self.has_telemetry() { TELEMETRY } else { 0 };
        framing.overhead + if framing.headers { BTH } else { 0 } + telemetry
    }
}

impl ClusterSection {
    fn host_path(&self) -> HostPath {
        match (self.transport(), self.gpudirect) {
            (TransportName::Rdma, true) => HostPath::GpuDirect,
            (TransportName::Rdma, false) => HostPath::Bounce,
            (TransportName::Tcp, _) => HostPath::Kernel(KernelCosts {
                cores: self.tcp.cores,
                system_call: self.tcp.system_call.0,
                interrupt: self.tcp.interrupt.0,
                per_packet: self.tcp.per_packet.0,
                copy: self.tcp.copy.0,
            }),
        }
    }
}
