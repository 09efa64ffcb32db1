//! The NICs of switches that reduce: their ports and their configuration.

use railnet_core::{Component, Rate, Span};
use railnet_nic::{Mtu, Nic, NicConfig, PortConfig};
use railnet_topology::{End, FabricGraph, HostNode, Link, LinkKind, Vertex};

use super::{Aggregation, AggregationConfig, Reducer};
use crate::model::host::Host;
use crate::network::host_gid;

/// The depth of the queues on which groups hear of messages. They are drained after every packet.
pub(super) const COMPLETIONS: u32 = 1 << 12;

/// The graph with one more host for each switch, plugged into a port of its own. Hosts, switches and links keep their
/// numbers.
pub(crate) fn extended(graph: &FabricGraph, config: &AggregationConfig) -> FabricGraph {
    let mut extended = graph.clone();
    let adjacency = graph.adjacency();
    for (switch, node) in graph.switches.iter().enumerate() {
        let ports = adjacency.of(Vertex::Switch(switch as u32));
        let all: u64 = ports.iter().map(|port| graph.links[port.link as usize].rate.as_bps()).sum();
        let host = Vertex::Host(extended.hosts.len() as u32);
        extended.hosts.push(HostNode { name: format!("{}.reduction", node.name), node: u32::MAX, rail: 0 });
        extended.links.push(Link {
            ends: [
                End { vertex: host, port: 0 },
                End { vertex: Vertex::Switch(switch as u32), port: ports.len() as u16 },
            ],
            rate: config.rate.unwrap_or(Rate::from_bps(all)),
            // It lies inside the switch.
            delay: Span::ZERO,
            kind: LinkKind::Edge,
        });
    }
    extended
}

/// The NIC of a switch that reduces: like those of the hosts, which it talks to. `line` is what one of its connections can
/// use, the rate of the fastest port of the switch.
pub(crate) fn reducer(like: &NicConfig, component: Component, host: u32, line: Rate) -> Nic {
    let ports = vec![PortConfig { gids: vec![host_gid(host)], rate: line, mtu: Mtu::Mtu4096 }];
    Nic::new(NicConfig { component, ports, ..like.clone() })
}

impl Aggregation {
    /// No groups yet. `reducers` are the hosts that stand for the switches.
    pub(crate) fn new(config: AggregationConfig, reducers: &mut [Host]) -> Self {
        let set_up = |host: &mut Host| {
            let domain = host.nic.alloc_pd();
            let queue = host.nic.create_cq(COMPLETIONS).expect("the depth is within every NIC's limit");
            host.reduces = Some(queue);
            Reducer { domain, queue, used: 0 }
        };
        Self {
            config,
            reducers: reducers.iter_mut().map(set_up).collect(),
            groups: Vec::new(),
            free: Vec::new(),
            teams: Vec::new(),
            queues: std::collections::BTreeMap::new(),
            notifications: std::collections::VecDeque::new(),
        }
    }
}
